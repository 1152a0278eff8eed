"""Maintenance with the names and metrics of deltalake."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from lazydelta.deltalake_names.commit_properties import CommitProperties, PostCommitHookProperties, maintains, note_of
from lazydelta.deltalake_names.parameters import deprecate_positional_commit_args
from lazydelta.errors import OptionError
from lazydelta.maintenance.after_commit import Maintain, after_commit
from lazydelta.maintenance.optimize import FileSizes, OptimizeResult, OptimizeSettings, optimize
from lazydelta.maintenance.vacuum import vacuum
from lazydelta.missing_names import AnswersNames
from lazydelta.predicates import Where
from lazydelta.protocol.properties import TableProperties
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.write.commit import CommitNote
from lazydelta.write.data_files import MEMORY_BUDGET

__all__ = ["TableOptimizer", "vacuum_call"]

_LARGEST = (1 << 63) - 1


class TableOptimizer(AnswersNames):
    """The operations of ``DeltaTable.optimize``, as in deltalake."""

    def __init__(self, snapshot: Snapshot, committed: Callable[[], object]) -> None:
        """Create an optimizer for a table; ``committed`` is called when there can be a newer version."""
        self._snapshot = snapshot
        self._committed = committed

    if not TYPE_CHECKING:

        def __call__(self, *_: object, **__: object) -> NoReturn:
            """Raise an error that says what to write."""
            raise TypeError("optimize is not a function; use optimize.compact(), or optimize.z_order([columns])")

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
        """Compact the small files of each partition and return deltalake's metrics.

        ``sort_by`` sorts the rows of the compacted files. ``max_spill_size`` is the memory limit; files are written one
        at a time, so ``max_concurrent_tasks`` has no effect. Without ``sort_by``, rows are never spilled, so
        ``max_temp_directory_size`` has no effect; with it, spilling has no limit, and the parameter is refused.
        ``args`` are the commit properties by position, which deltalake deprecates. ``writer_properties`` are refused.
        """
        if max_temp_directory_size is not None and sort_by:
            message = "Sorted rows are spilled to temporary files without a limit"
            raise OptionError(message, hint="pass either max_temp_directory_size or sort_by")
        given = deprecate_positional_commit_args(
            "compact",
            args,
            commit_properties,
            post_commithook_properties,
            legacy_order=("post_commithook_properties", "commit_properties"),
        )
        _refuse_recipe("compact", writer_properties)
        return self._run(partition_filters, target_size, max_spill_size, min_commit_interval, given, sort_by=sort_by)

    def z_order(  # noqa: PLR0913 - deltalake's parameters
        self,
        columns: Iterable[str],
        partition_filters: Where = None,
        target_size: int | None = None,
        max_concurrent_tasks: int | None = None,  # noqa: ARG002
        max_spill_size: int | None = None,
        max_temp_directory_size: int | None = None,  # noqa: ARG002
        min_commit_interval: float | timedelta | None = None,
        writer_properties: object = None,
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
        curve: str = "z",
    ) -> dict[str, Any]:
        """Rewrite all files of each partition with their rows along a curve, and return deltalake's metrics.

        Rows with similar values of the ``columns`` are then in the same files, so that a condition on any of them
        leaves files out. ``curve`` is ``z`` or ``hilbert``, whose neighbours are closer together. Rows beyond
        ``max_spill_size`` bytes of memory are sorted in temporary files, without a limit; ``max_concurrent_tasks`` and
        ``max_temp_directory_size`` have no effect. ``args`` are the commit properties by position, which deltalake
        deprecates.
        """
        given = deprecate_positional_commit_args(
            "z_order",
            args,
            commit_properties,
            post_commithook_properties,
            legacy_order=("post_commithook_properties", "commit_properties"),
        )
        _refuse_recipe("z_order", writer_properties)
        names = [columns] if isinstance(columns, str) else list(columns)
        if not names:
            raise OptionError("Z-order requires at least one column", hint="pass the columns that queries filter by")
        metrics = self._run(
            partition_filters, target_size, max_spill_size, min_commit_interval, given, sort_by=names, curve=curve
        )
        return metrics | {"preserveInsertionOrder": False, "plannerStrategy": "zOrder", "preservedStableOrder": False}

    def purge(
        self,
        partition_filters: Where = None,
        *,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> dict[str, Any]:
        """Rewrite the files that have a deletion vector without their deleted rows, and return deltalake's metrics."""
        properties = (commit_properties, post_commithook_properties)
        return self._run(partition_filters, None, None, None, properties, purge=True)

    def _run(
        self,
        where: Where,
        target_size: int | None,
        memory_budget: int | None,
        min_commit_interval: float | timedelta | None,
        properties: tuple[CommitProperties | None, PostCommitHookProperties | None],
        **more: Any,
    ) -> dict[str, Any]:
        note, maintain = _noted(*properties)
        if isinstance(target_size, str):
            raise OptionError(f"target_size={target_size!r} is not valid", hint="pass a number of bytes")
        if target_size is not None and not 1 <= target_size <= _LARGEST:
            message = f"target_file_size must be between 1 and {_LARGEST} bytes, and is {target_size}"
            raise OptionError(message, hint="the log stores it as a 64-bit integer")
        interval = min_commit_interval
        if interval is not None and not isinstance(interval, timedelta):
            interval = timedelta(seconds=interval)
        settings = OptimizeSettings(
            target_size=target_size,
            memory_budget=MEMORY_BUDGET if memory_budget is None else memory_budget,
            commit_interval=interval,
            note=note,
            **more,
        )
        handle = self._snapshot.table
        result = optimize(
            handle,
            where=where,
            settings=settings,
            known=self._snapshot,
            committed=lambda done: after_commit(handle, done.version, done.metadata, maintain=maintain),
        )
        self._committed()
        return _metrics(result)


def _refuse_recipe(method: str, writer_properties: object) -> None:
    if writer_properties is not None:
        message = f"{method}() chooses how files are written, and takes no writer_properties"
        raise OptionError(message, hint="omit them")


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
    lite: bool,
) -> list[str]:
    """Vacuum a table and return the deleted files, or those to delete; raise if a file cannot be deleted."""
    note, maintain = _noted(*properties)
    if not maintain:
        message = "lazydelta's vacuum writes a checkpoint if one is due"
        raise OptionError(message, hint="omit post_commithook_properties")
    try:
        retention = None if retention_hours is None else timedelta(hours=retention_hours)
    except (OverflowError, ValueError, TypeError):
        raise OptionError(
            f"retention_hours={retention_hours!r} is not valid", hint="pass a number of at least 0"
        ) from None
    if retention is not None and retention < timedelta():
        raise OptionError("The retention periods should be positive.")
    if enforce and retention is not None:
        _check_retention(retention, TableProperties.of(handle.newest().metadata).deleted_file_retention)
    result = vacuum(
        handle,
        retention=retention,
        dry_run=dry_run,
        enforce_retention=enforce,
        keep_versions=keep_versions or (),
        note=note,
        lite=lite,
    )
    result.check(handle.uri)
    return result.paths


def _check_retention(asked: timedelta, promised: timedelta) -> None:
    if asked < promised:
        hours = timedelta(hours=1)
        error = OptionError(  # deltalake's sentence: programs look for it
            "Generic error: Invalid retention period, minimum retention for vacuum is configured to be greater than "
            f"{promised / hours:g} hours, got {asked / hours:g} hours"
        )
        error.add_note("enforce_retention_duration=False switches the check off for tables without readers and writers")
        raise error


def _noted(commit: CommitProperties | None, hooks: PostCommitHookProperties | None) -> tuple[CommitNote, Maintain]:
    """Return the extra contents of commits, and whether maintenance follows them."""
    given: tuple[object, object] = (commit, hooks)
    if not isinstance(given[0], CommitProperties | None) or not isinstance(given[1], PostCommitHookProperties | None):
        message = "commit_properties are CommitProperties, and post_commithook_properties PostCommitHookProperties"
        raise OptionError(message, hint="import these classes from lazydelta")
    if commit is not None and commit.max_commit_retries is not None:
        message = "max_commit_retries is for writes: maintenance has its own rules for retries"
        raise OptionError(message, hint="omit it")
    return note_of(commit), maintains(hooks)
