"""``FileRows``: the rows of one file that pass, with as little of the file read as its footer allows.

Row groups that cannot hold a match are not read. In the others the columns that the filter looks at come first, and the
rest of the columns only where a row passed. PyArrow decodes a column of a row group from its start, so that what lies
before the first row that passes is decoded with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Event

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import from_numpy
from lazydelta.row_scan.file_layouts import FileLayouts, Layout
from lazydelta.row_scan.footer_ranges import judge_row_groups
from lazydelta.row_scan.repeated_values import RepeatedValues
from lazydelta.row_scan.row_mask import row_mask
from lazydelta.row_scan.row_metrics import RowMetrics
from lazydelta.row_scan.row_request import RowRequest
from lazydelta.row_scan.visibility import open_when_visible
from lazydelta.rows.expression_fields import bad_filter
from lazydelta.rows.opened_file import FileToRead, OpenedFile, Selection, rows_without_columns
from lazydelta.scan.data_file import StoredFile
from lazydelta.storage import Store
from lazydelta.types.schema import Column

__all__ = ["FileRows", "FooterUse", "Sparsity"]

_POSITION = "\0position"
# A second round trip has to save at least this much.
_WORTH_A_REQUEST = 256 << 10
_FEW = 16
_FIRST_FOOTERS = 4
_MANY_ROWS = 32 << 10


@dataclass(slots=True)
class Sparsity:
    """How often a row group had a row that passes, in the files of one scan so far."""

    groups: int = 0
    hits: int = 0

    def count(self, *, hit: bool) -> None:
        """Note one more row group."""
        self.groups += 1
        self.hits += hit

    @property
    def is_sparse(self) -> bool:
        """Tell whether the next row group will rather be without a match; it is worth a try to begin with."""
        return self.hits * 2 <= self.groups + 1


@dataclass(slots=True)
class FooterUse:
    """How often the footer of a file with a single row group decided over it, in the files of one scan so far.

    Where the log has statistics, such a footer seldom says more than the log did, and to ask it takes longer than to
    open the file. What it would have said is found out row by row: only time depends on it.
    """

    asked: int = 0
    decided: int = 0
    passed_by: int = 0

    def is_worth_asking(self, groups: int) -> bool:
        """Tell whether to ask the next footer; one in sixteen is asked in any case, for what comes may be different."""
        if groups > 1 or self.asked < _FIRST_FOOTERS or self.decided * _FEW >= self.asked:
            return True
        self.passed_by += 1
        return self.passed_by % _FEW == 0

    def count(self, *, decided: bool) -> None:
        """Note what one more footer was good for."""
        self.asked += 1
        self.decided += decided


@dataclass(slots=True)
class FileRows:
    """Reads one file for one request; made in one thread, read by one at a time, closed from any.

    ``verified`` has the checksums of its pages compared: whoever changes a table by what is read here insists on it.
    ``is_last`` tells, where it is known in time, that the batch that was yielded is the last one.
    """

    store: Store
    request: RowRequest
    file: FileToRead
    metrics: RowMetrics
    sparsity: Sparsity = field(default_factory=Sparsity)
    footers: FooterUse = field(default_factory=FooterUse)
    repeated: RepeatedValues = field(default_factory=RepeatedValues)
    layouts: FileLayouts | None = None
    verified: bool = True
    is_last: bool = False
    stopped: Event = field(default_factory=Event)
    _opened: OpenedFile | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the live rows that pass, in the order of the file."""
        request = self.request
        layouts = self.layouts or FileLayouts(request)
        opened = open_when_visible(
            lambda: OpenedFile(self.store, request.table, self.file, codes=layouts.codes, verified=self.verified),
            self.stopped,
            self.metrics,
        )
        self._opened = opened
        with opened:
            verdicts = self._verdicts(opened, layouts)
            mine = self._share(len(verdicts))
            read = [index for index in mine if verdicts[index] is not False]
            pruned = len(mine) - len(read)
            self.metrics.add(
                files_opened=1, row_groups_read=len(read), row_groups_pruned=pruned, files_without_match=not read
            )
            reading = _Columns.of(opened, request, layouts, self.repeated) if read else None
            for index in read:
                if reading is None or self.stopped.is_set():
                    return
                if request.expression is None or verdicts[index]:
                    if request.expression is not None:
                        self.metrics.add(row_groups_proven=1)
                    yield from self._all(opened, reading, index, ends=index == read[-1])
                else:
                    yield from self._passing(opened, reading, index)
                opened.forget()

    def close(self) -> None:
        """End the file's requests; whoever reads meets an error or the end."""
        self.stopped.set()
        if self._opened is not None:
            self._opened.abort()

    def _share(self, groups: int) -> range:
        """Return the row groups that are meant: every so many, so that shares of one file are of one size."""
        share = self.file.share if isinstance(self.file, StoredFile) else None
        return range(groups) if share is None else range(share[0], groups, share[1])

    def _verdicts(self, opened: OpenedFile, layouts: FileLayouts) -> list[bool | None]:
        predicate = self.request.predicate
        if predicate is None:
            return [True] * len(opened.groups)
        if layouts.is_of_partitions:
            return [layouts.passes(opened)] * len(opened.groups)
        if not self.footers.is_worth_asking(len(opened.groups)):
            return [None] * len(opened.groups)
        verdicts = judge_row_groups(opened, predicate, self.request.table)
        if len(verdicts) == 1:
            self.footers.count(decided=verdicts[0] is not None)
        return verdicts

    def _all(self, opened: OpenedFile, columns: _Columns, group: int, *, ends: bool) -> Iterator[pa.RecordBatch]:
        wanted, size = columns.layout.all, self.request.rows_a_batch
        opened.foresee(group, wanted.leaves)
        start = 0
        # Every batch comes with its dictionary: small ones would be mostly that.
        few = size < min(_MANY_ROWS, opened.groups[group].num_rows)
        codes = columns.layouts.codes = () if few else opened.repeats(wanted, group)
        for raw in opened.raw(wanted, group, size, codes=codes):
            live = _only(raw, opened.live_mask(group, start, raw.num_rows))
            start += raw.num_rows
            self.metrics.add(rows_read=raw.num_rows)
            if live.num_rows:
                found = columns.assembled(opened.convert(wanted, live), live.num_rows)
                self.is_last = ends and start >= opened.groups[group].num_rows
                yield found

    def _passing(self, opened: OpenedFile, columns: _Columns, group: int) -> Iterator[pa.RecordBatch]:
        tested, others = columns.layout.tested, columns.layout.rest
        waits = self._wait_for_a_match(opened, others, group)
        opened.foresee(group, tested.leaves if waits else columns.layout.both)
        rest: _InStep | None = None
        start = behind = 0
        codes = columns.layouts.codes = opened.repeats(tested, group) if columns.layouts.is_masked else ()
        for raw in opened.raw(tested, group, self.request.batch_size, codes=codes):
            mask = opened.live_mask(group, start, raw.num_rows)
            start += raw.num_rows
            self.metrics.add(rows_read=raw.num_rows)
            live = _only(raw, mask)
            arrays = opened.convert(tested, live, keep_codes=True)
            picked = self._picked(columns, arrays, live.num_rows)
            if not len(picked):
                behind += raw.num_rows
                continue
            everything = len(picked) == live.num_rows
            if not everything:
                arrays = {name: array.take(picked) for name, array in arrays.items()}
            arrays = {name: _as_texts(array) for name, array in arrays.items()}
            if others.fields:
                if rest is None:
                    opened.foresee(group, others.leaves)
                    rest = _InStep(opened.raw(others, group, self.request.batch_size))
                rest.take(behind)
                behind = 0
                found = _only(rest.take(raw.num_rows), mask)
                arrays |= opened.convert(others, found if everything else _taken(found, picked))
            yield columns.assembled(arrays, len(picked))
        if rest is not None:
            rest.close()
        hit = behind < start
        self.sparsity.count(hit=hit)
        if not hit and others.fields:
            self.metrics.add(columns_skipped=1)

    def _wait_for_a_match(self, opened: OpenedFile, others: Selection, group: int) -> bool:
        """Tell whether the other columns are fetched only after a row has passed, which takes another round trip."""
        if not self.store.is_remote:
            return True
        return self.sparsity.is_sparse and opened.size_of(group, others.leaves)[0] >= _WORTH_A_REQUEST

    def _picked(self, columns: _Columns, arrays: Mapping[str, pa.Array], number: int) -> pa.Array:
        predicate = self.request.predicate
        if predicate is not None and columns.layouts.is_masked:
            mask = row_mask(
                predicate, lambda column: _at(columns.value(column.path[0], arrays, number), column), number
            )
            # Most rows pass or none: only what lies between is worth a list of positions.
            if mask.true_count == number:
                return from_numpy(np.arange(number, dtype=np.uint64), pa.uint64())
            return pc.indices_nonzero(mask)
        positions = from_numpy(np.arange(number, dtype=np.int32), pa.int32())
        names = [each.name for each in self.request.tested]
        values = [columns.value(name, arrays, number) for name in names]
        batch = pa.RecordBatch.from_arrays([*values, positions], names=[*names, _POSITION])
        try:
            return batch.filter(self.request.expression).column(len(names))
        except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
            raise bad_filter(self.request.expression, error) from error


@dataclass(slots=True)
class _Columns:
    """The columns of a request in one file."""

    constants: dict[str, pa.Scalar]
    layout: Layout
    layouts: FileLayouts
    repeated: RepeatedValues
    kept: dict[str, pa.Array] = field(default_factory=dict)

    @classmethod
    def of(cls, opened: OpenedFile, request: RowRequest, layouts: FileLayouts, repeated: RepeatedValues) -> _Columns:
        constants = opened.constants([*request.output, *request.tested])
        return cls(constants, layouts.of(opened), layouts, repeated)

    def value(self, name: str, arrays: Mapping[str, pa.Array], number: int) -> pa.Array:
        if name not in self.constants:
            return arrays[name]
        # All batches of a file share one array: each would be as long as the rows are, with nothing new in it.
        kept = self.kept.get(name)
        if kept is None or len(kept) < number:
            kept = self.kept[name] = self.repeated.of(self.constants[name], number)
        return kept if len(kept) == number else kept.slice(0, number)

    def assembled(self, arrays: Mapping[str, pa.Array], number: int) -> pa.RecordBatch:
        names = self.layouts.names
        if not names:
            return rows_without_columns(number)
        columns = [arrays[name] if name in arrays else self.value(name, arrays, number) for name in names]
        return pa.RecordBatch.from_arrays(columns, schema=self.layouts.schema)


class _InStep:
    """Cuts batches of any length into those of another reader of the same rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._left: pa.RecordBatch | None = None

    def close(self) -> None:
        """End the reading of rows that nobody needs any more."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def take(self, number: int) -> pa.RecordBatch:
        """Return the next so many rows."""
        parts: list[pa.RecordBatch] = []
        while number > 0 or not parts:
            batch = self._left if self._left is not None else next(self._batches)
            part = batch.slice(0, number)
            self._left = batch.slice(number) if batch.num_rows > number else None
            number -= part.num_rows
            parts.append(part)
        if len(parts) == 1:
            return parts[0]
        if not parts[0].num_columns:
            return rows_without_columns(sum(part.num_rows for part in parts))
        return pa.concat_batches(parts)


def _at(array: pa.Array, column: Column) -> pa.Array:
    return pc.struct_field(array, list(column.path[1:])) if len(column.path) > 1 else array


def _as_texts(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _only(batch: pa.RecordBatch, mask: pa.BooleanArray | None) -> pa.RecordBatch:
    if mask is None:
        return batch
    # A batch without columns has rows to count and nothing to filter.
    return batch.filter(mask) if batch.num_columns else rows_without_columns(mask.true_count)


def _taken(batch: pa.RecordBatch, picked: pa.Array) -> pa.RecordBatch:
    return batch.take(picked) if batch.num_columns else rows_without_columns(len(picked))
