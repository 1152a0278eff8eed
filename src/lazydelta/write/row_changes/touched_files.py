"""The files in which rows are chosen, found by the log and, where that does not tell, by the columns in question."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import msgspec

from lazydelta.execution import in_parallel
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Add
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.snapshot import Snapshot
from lazydelta.row_scan import RowRequest
from lazydelta.row_scan.file_rows import FileRows
from lazydelta.row_scan.row_metrics import RowMetrics
from lazydelta.scan.request import ScanRequest, ScanStrategy
from lazydelta.write.logged_files import logged_files
from lazydelta.write.row_changes.row_choice import RowChoice

__all__ = ["TouchedFile", "touched_files"]

_THREADS = 4


class TouchedFile(msgspec.Struct, frozen=True):
    """A file that holds rows which are chosen; ``is_whole`` where the log proves that it holds no others.

    ``partition`` is in the order of the table's columns, ``rows`` are the live ones where the log counts them, and
    ``chosen`` how many of them were seen to be chosen: all that matter for some, one at least, or None for unseen.
    """

    add: Add
    partition: tuple[str | None, ...]
    rows: int | None
    is_whole: bool
    chosen: int | None = None


def touched_files(
    handle: TableHandle, snapshot: Snapshot, choice: RowChoice, *, counted: bool = False
) -> Iterator[TouchedFile]:
    """Yield the files that hold at least one row that is chosen; with ``counted`` all such rows are counted.

    Of a file that the log does not decide, the columns of the predicate are read, up to the first row that passes.
    """
    with closing(
        in_parallel(
            lambda file: _looked_into(handle, choice, file, counted=counted),
            _found(handle, snapshot, choice),
            threads=_THREADS,
            stop=lambda: None,
        )
    ) as judged:
        yield from (file for file in judged if file is not None)


def _looked_into(handle: TableHandle, choice: RowChoice, file: TouchedFile, *, counted: bool) -> TouchedFile | None:
    if file.is_whole:
        return msgspec.structs.replace(file, chosen=file.rows)
    request = RowRequest.of(choice.table, columns=[], where=choice.predicate)
    chosen = 0
    with closing(FileRows(handle.store, request, file.add, RowMetrics()).batches()) as batches:  # type: ignore[type-var]
        for batch in batches:
            chosen += batch.num_rows
            if chosen and not counted:
                break
    return msgspec.structs.replace(file, chosen=chosen) if chosen else None


def _found(handle: TableHandle, snapshot: Snapshot, choice: RowChoice) -> Iterator[TouchedFile]:
    request = ScanRequest(predicate=choice.predicate, strategy=ScanStrategy.FORWARD, stats_columns=(), extra=True)
    for batch in handle.scan(snapshot, request).batches():
        yield from _files(batch, choice)


def _files(batch: FileBatch, choice: RowChoice) -> Iterator[TouchedFile]:
    files = logged_files(batch, choice.table.physical_partition_columns)
    for file, is_whole in zip(files, choice.whole_files(batch).tolist(), strict=True):
        yield TouchedFile(file.as_add(), file.partition, file.live_rows, is_whole)
