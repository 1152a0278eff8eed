"""Maintenance under the names and with the answers that deltalake's users know."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

from lazydelta.deltalake_api.commit_properties import CommitProperties, PostCommitHookProperties, maintains, note_of
from lazydelta.deltalake_api.deprecated_parameters import deprecate_positional_commit_args
from lazydelta.deltalake_api.left_to_deltalake import refuse
from lazydelta.errors import OptionError
from lazydelta.handle import TableHandle
from lazydelta.maintenance.once import after_commit
from lazydelta.maintenance.optimize.optimizing import FileSizes, OptimizeResult, OptimizeSettings, optimize
from lazydelta.maintenance.vacuum.vacuuming import vacuum
from lazydelta.pruning import Where
from lazydelta.write.commit_note import CommitNote
from lazydelta.write.data_files import MEMORY_BUDGET

__all__ = ["TableOptimizer", "vacuum_call"]

_LARGEST = (1 << 63) - 1


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
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
        sort_by: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Pack the small files of each partition, and return deltalake's metrics.

        ``sort_by`` orders the rows of what is packed. ``max_spill_size`` is the memory that it may take; one file is
        packed at a time, so ``max_concurrent_tasks`` changes nothing. Without ``sort_by`` no row lies in a temporary
        file, whatever ``max_temp_directory_size`` says; with it there is no limit, and the parameter is refused.
        ``args`` are the commit's properties by position, which deltalake calls deprecated. ``writer_properties`` are
        refused.
        """
        if max_temp_directory_size is not None and sort_by:
            message = "Rows that are sorted lie in temporary files without a limit"
            raise OptionError(message, hint="leave max_temp_directory_size or sort_by out")
        if writer_properties is not None:
            message = "compact() writes files as lazydelta finds best, and takes no writer_properties"
            raise OptionError(message, hint="leave them out")
        noted, hooks = deprecate_positional_commit_args(
            "compact",
            args,
            commit_properties,
            post_commithook_properties,
            legacy_order=("post_commithook_properties", "commit_properties"),
        )
        note, maintain = _noted(noted, hooks)
        if target_size is not None and not 1 <= target_size <= _LARGEST:
            message = f"target_file_size must be between 1 and {_LARGEST} bytes, and is {target_size}"
            raise OptionError(message, hint="the log holds it as a number of 64 bits")
        interval = min_commit_interval
        if interval is not None and not isinstance(interval, timedelta):
            interval = timedelta(seconds=interval)
        settings = OptimizeSettings(
            target_size=target_size,
            sort_by=sort_by,
            memory_budget=MEMORY_BUDGET if max_spill_size is None else max_spill_size,
            commit_interval=interval,
            note=note,
        )
        handle = self._handle
        result = optimize(
            handle,
            where=partition_filters,
            settings=settings,
            committed=(lambda done: after_commit(handle, done.version, done.metadata)) if maintain else None,
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
    properties: tuple[CommitProperties | None, PostCommitHookProperties | None],
) -> list[str]:
    """Vacuum a table, and return what was deleted, or would be; a file that cannot be deleted is an error."""
    note, maintain = _noted(*properties)
    if not maintain:
        message = "lazydelta's vacuum ends with a checkpoint where one is due"
        raise OptionError(message, hint="leave post_commithook_properties out")
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
        note=note,
    )
    result.check(handle.uri)
    return result.paths


def _noted(commit: CommitProperties | None, hooks: PostCommitHookProperties | None) -> tuple[CommitNote, bool]:
    """Return what commits say beside, and whether maintenance follows them."""
    given: tuple[object, object] = (commit, hooks)
    if not isinstance(given[0], CommitProperties | None) or not isinstance(given[1], PostCommitHookProperties | None):
        message = "commit_properties are CommitProperties, and post_commithook_properties PostCommitHookProperties"
        raise OptionError(message, hint="import these classes from lazydelta")
    if commit is not None and commit.max_commit_retries is not None:
        message = "max_commit_retries is for writes: maintenance tries again by rules of its own"
        raise OptionError(message, hint="leave it out")
    return note_of(commit), maintains(hooks)
