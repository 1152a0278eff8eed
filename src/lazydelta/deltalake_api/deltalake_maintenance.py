"""Maintenance under the names and with the answers that deltalake's users know."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

from lazydelta.deltalake_api.left_to_deltalake import refuse
from lazydelta.errors import OptionError
from lazydelta.handle import TableHandle
from lazydelta.maintenance.once import after_commit
from lazydelta.maintenance.optimize.optimizing import FileSizes, OptimizeResult, OptimizeSettings, optimize
from lazydelta.maintenance.vacuum.vacuuming import vacuum
from lazydelta.pruning import Where
from lazydelta.write.data_files import MEMORY_BUDGET

__all__ = ["TableOptimizer", "vacuum_call"]


class TableOptimizer:
    """What ``DeltaTable.optimize`` offers, as in deltalake."""

    def __init__(self, handle: TableHandle, committed: Callable[[], object]) -> None:
        """Work on a table; ``committed`` is called when there may be a newer version."""
        self._handle = handle
        self._committed = committed

    def compact(  # noqa: PLR0913 - deltalake's parameters
        self,
        partition_filters: Where = None,
        target_size: int | None = None,
        max_concurrent_tasks: int | None = None,  # noqa: ARG002
        max_spill_size: int | None = None,
        max_temp_directory_size: int | None = None,
        min_commit_interval: float | timedelta | None = None,
        writer_properties: object = None,
        *args: Any,
        commit_properties: object = None,
        post_commithook_properties: object = None,
        sort_by: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Pack the small files of each partition, and return deltalake's metrics.

        ``sort_by`` orders the rows of what is packed. ``max_spill_size`` is the memory that it may take; one file is
        packed at a time, so ``max_concurrent_tasks`` changes nothing. What is left is deltalake's own and refused.
        """
        _refuse(args, commit_properties, post_commithook_properties, max_temp_directory_size, writer_properties)
        interval = min_commit_interval
        if interval is not None and not isinstance(interval, timedelta):
            interval = timedelta(seconds=interval)
        settings = OptimizeSettings(
            target_size=target_size,
            sort_by=sort_by,
            memory_budget=MEMORY_BUDGET if max_spill_size is None else max_spill_size,
            commit_interval=interval,
        )
        handle = self._handle
        result = optimize(
            handle,
            where=partition_filters,
            settings=settings,
            committed=lambda done: after_commit(handle, done.version, done.metadata),
        )
        self._committed()
        return _metrics(result)

    def z_order(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to order rows along a curve: deltalake does this, and both may share a table."""
        refuse("DeltaTable.optimize.z_order", "order rows along a curve")


def _metrics(result: OptimizeResult) -> dict[str, Any]:
    return {
        "numFilesAdded": result.added.count,
        "numFilesRemoved": result.removed.count,
        "filesAdded": _sizes(result.added),
        "filesRemoved": _sizes(result.removed),
        "partitionsOptimized": result.partitions,
        "numBatches": result.batches,
        "totalConsideredFiles": result.considered,
        "totalFilesSkipped": result.considered - result.removed.count,
        "preserveInsertionOrder": True,
        "plannerStrategy": "preserveLocality",
        "preservedStableOrder": True,
        "maxBinSpanFiles": result.most_files_in_bin,
    }


def _sizes(sizes: FileSizes) -> str:
    mean = sizes.total / sizes.count if sizes.count else 0.0
    found = {"avg": mean, "max": sizes.most, "min": sizes.least, "totalFiles": sizes.count, "totalSize": sizes.total}
    return json.dumps(found, separators=(",", ":"))


def vacuum_call(
    handle: TableHandle,
    retention_hours: float | None,
    dry_run: bool,  # noqa: FBT001 - as deltalake passes it
    enforce: bool,  # noqa: FBT001
    keep_versions: Sequence[int] | None,
    *,
    refused: tuple[Any, ...],
) -> list[str]:
    """Vacuum a table, and return what was deleted, or would be; a file that cannot be deleted is an error."""
    _refuse(*refused)
    try:
        retention = None if retention_hours is None else timedelta(hours=retention_hours)
    except (OverflowError, ValueError, TypeError):
        raise OptionError(f"retention_hours={retention_hours!r} makes no sense", hint="give a number from 0") from None
    result = vacuum(
        handle,
        retention=retention,
        dry_run=dry_run,
        enforce_retention=enforce,
        keep_versions=keep_versions or (),
    )
    result.check(handle.uri)
    return result.paths


def _refuse(args: tuple[Any, ...], *properties: object) -> None:
    if args:
        raise OptionError(f"{len(args)} arguments too many were given by position", hint="give them by name")
    if any(each is not None for each in properties):
        message = "commit_properties, post_commithook_properties, writer_properties and the like are deltalake's own"
        raise OptionError(message, hint="leave them out")
