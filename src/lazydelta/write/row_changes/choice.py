"""`RowChoice`: selects rows of a table, by file from the log or row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.data_files.columns import bad_filter
from lazydelta.errors import PredicateError
from lazydelta.log.file_batch import FileBatch
from lazydelta.predicates import (
    Predicate,
    Where,
    all_match,
    may_match,
    parse_predicate,
    partition_columns,
    stats_columns,
)
from lazydelta.protocol.actions import Add
from lazydelta.protocol.schema import Column, TableSchema
from lazydelta.rows.file_rows import FileRows
from lazydelta.rows.request import RowMetrics, RowRequest, can_be_masked, filter_expression, row_mask
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import flags, from_numpy, typed_scalar
from lazydelta.runtime.threads import in_parallel
from lazydelta.scan.request import ScanRequest, ScanStrategy
from lazydelta.sidecar.handle import Snapshot
from lazydelta.stats import Ranges, combine, file_partition_ranges, stats_ranges
from lazydelta.storage import Store
from lazydelta.write.checkpoint.rows import json_stats
from lazydelta.write.copied_rows import logged_files

__all__ = ["Progress", "RowChoice", "TouchedFile", "candidate_files", "reported", "touched_files"]


T = TypeVar("T")
Progress: TypeAlias = Callable[[int, int | None], None]
"""Is told how many files are done, and of how many where that is known."""

_POSITION = "\0position"
_FALSE = typed_scalar(value=False, kind=pa.bool_())


@dataclass(frozen=True, slots=True)
class RowChoice:
    """The rows for which ``predicate`` is true. Rows for which it is false or null are not selected.

    Without a predicate all rows are selected.
    """

    table: TableSchema
    predicate: Predicate | None
    expression: pc.Expression | None

    @classmethod
    def of(cls, where: Where, table: TableSchema, *, now: int | None = None) -> RowChoice:
        """Bind ``where``, with ``now`` as its ``now()``. Raise if it cannot be evaluated for each row."""
        # A maximum that ignores NaN does not prove that the file has none. A row missed here would never be deleted.
        predicate = parse_predicate(where, table, now=now, by_engine=True)
        if predicate is None and where is not None:
            message = f"The predicate {where!r} is empty, and would select every row"
            raise PredicateError(message, hint="omit the predicate to change all rows")
        try:
            expression = None if predicate is None else filter_expression(predicate, table)
        except PredicateError as error:
            error.hint = "use any PyArrow expression instead, or run it with deltalake on the same table"
            raise
        return cls(table, predicate, expression)

    def whole_files(self, batch: FileBatch) -> npt.NDArray[np.bool_]:
        """Return a mask of the files for which the log proves that every row is selected."""
        if self.predicate is None:
            return np.ones(len(batch), np.bool_)
        return flags(all_match(self.predicate, self._ranges(self.predicate, batch)))

    def may_hold(self, batch: FileBatch) -> npt.NDArray[np.bool_]:
        """Return a mask of the files that may hold a selected row."""
        if self.predicate is None:
            return np.ones(len(batch), np.bool_)
        return flags(may_match(self.predicate, self._ranges(self.predicate, batch)))

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return a mask of the selected rows. ``rows`` must have all columns of the table."""
        if self.predicate is None:
            return pa.repeat(typed_scalar(value=True, kind=pa.bool_()), rows.num_rows)
        if can_be_masked(self.predicate):
            found = row_mask(self.predicate, lambda column: _values(rows, column), rows.num_rows)
            return pc.fill_null(found, _FALSE)
        positions = from_numpy(np.arange(rows.num_rows, dtype=np.int64))
        numbered = pa.RecordBatch.from_arrays([*rows.columns, positions], names=[*rows.schema.names, _POSITION])
        try:
            passed = numbered.filter(self.expression).column(rows.num_columns)
        except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
            raise bad_filter(self.expression, error) from error
        return pc.is_in(positions, value_set=passed)

    @staticmethod
    def _ranges(predicate: Predicate, batch: FileBatch) -> Ranges:
        found = stats_ranges(batch, stats_columns(predicate))
        partitions = partition_columns(predicate)
        return combine([file_partition_ranges(batch, partitions), found]) if partitions else found


def _values(rows: pa.RecordBatch, column: Column) -> pa.Array:
    array = rows.column(column.path[0])
    return pc.struct_field(array, list(column.path[1:])) if len(column.path) > 1 else array


# The files that hold selected rows, found by the log and, if it does not decide, by reading the predicate's columns.


_THREADS = 4


class TouchedFile(msgspec.Struct, frozen=True):
    """A file that holds selected rows. With ``is_whole`` the log proves that all its rows are selected.

    ``partition`` is in the order of the table's columns. ``rows`` is the live row count, if the log has it. ``chosen``
    is the number of selected rows found: at least one, all of them if they were counted, or None if not read.
    """

    add: Add
    partition: tuple[str | None, ...]
    rows: int | None
    is_whole: bool
    chosen: int | None = None


def reported(files: Iterable[T], progress: Progress | None) -> Iterator[T]:
    """Yield the files, and tell ``progress`` how many there were; their total is not known before the last one."""
    for number, file in enumerate(files, start=1):
        if progress is not None:
            progress(number, None)
        yield file


def touched_files(
    snapshot: Snapshot,
    choice: RowChoice,
    *,
    counted: bool = False,
    with_stats: bool = False,
    progress: Progress | None = None,
) -> Iterator[TouchedFile]:
    """Yield the files that hold at least one selected row. With ``counted`` all selected rows are counted.

    If the log does not decide a file, the columns of the predicate are read up to the first matching row.
    """
    with closing(
        in_parallel(
            lambda file: _looked_into(snapshot.store, choice, file, counted=counted),
            reported(candidate_files(snapshot, choice, with_stats=with_stats), progress),
            threads=_THREADS,
            stop=lambda: None,
        )
    ) as judged:
        yield from (file for file in judged if file is not None)


def _looked_into(store: Store, choice: RowChoice, file: TouchedFile, *, counted: bool) -> TouchedFile | None:
    if file.is_whole:
        return msgspec.structs.replace(file, chosen=file.rows)
    request = RowRequest.of(choice.table, columns=[], where=choice.predicate)
    chosen = 0
    with closing(FileRows(store, request, file.add, RowMetrics()).batches()) as batches:  # type: ignore[type-var]
        for batch in batches:
            chosen += batch.num_rows
            if chosen and not counted:
                break
    return msgspec.structs.replace(file, chosen=chosen) if chosen else None


def candidate_files(snapshot: Snapshot, choice: RowChoice, *, with_stats: bool = False) -> Iterator[TouchedFile]:
    """Yield the files that may hold a selected row according to the log, with all of their statistics if asked for."""
    request = ScanRequest(predicate=choice.predicate, strategy=ScanStrategy.FORWARD, stats_columns=(), extra=True)
    for batch in snapshot.scan(request).batches():
        yield from _files(batch, choice, with_stats=with_stats)


def _files(batch: FileBatch, choice: RowChoice, *, with_stats: bool) -> Iterator[TouchedFile]:
    files = logged_files(batch, choice.table.physical_partition_columns)
    stats = json_stats(batch.with_stats()).to_pylist() if with_stats else [None] * len(batch)
    for file, is_whole, text in zip(files, choice.whole_files(batch).tolist(), stats, strict=True):
        add = msgspec.structs.replace(file.as_add(), stats=text)
        yield TouchedFile(add, file.partition, file.live_rows, is_whole)
