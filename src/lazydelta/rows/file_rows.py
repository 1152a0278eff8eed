"""``FileRows``: the matching rows of one file, reading as little of it as its footer allows.

Row groups that cannot match are skipped. In the others, the columns of the filter are read first, and the remaining
columns only if a row matches. PyArrow decodes a column of a row group from its start, so the values before the first
match are decoded as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.data_files.columns import bad_filter
from lazydelta.data_files.reader import FileToRead, OpenedFile, Selection, page_limit, rows_without_columns
from lazydelta.errors import DataFileError, ObjectNotFoundError
from lazydelta.options import Options
from lazydelta.predicates import NanOrder, Predicate, all_match, may_match, referenced_columns
from lazydelta.predicates.tree import Compare, leaves
from lazydelta.protocol.schema import Column, Struct, TableSchema
from lazydelta.rows.request import RowMetrics, RowRequest, pruned_fields, row_mask
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import Stored, from_numpy, int64_array, typed_array
from lazydelta.runtime.threads import Flag, check_complete
from lazydelta.scan.file import StoredFile
from lazydelta.stats import ColumnRange, Ranges, is_written_here
from lazydelta.storage import Store

__all__ = ["FileLayouts", "FileRows", "FooterUse", "RepeatedValues", "Sparsity", "judge_row_groups"]

_VERIFYING = Options(page_checksums="verify")


# ``FileLayouts``: column lookups shared by all files of a scan that have the same schema.
#
# Most files of a table share one schema. Looking up every column in every file and planning its conversion takes about
# as long as decoding a column of a small file, and it is Python code that holds the interpreter lock.


_MOST_PARTITIONS = 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the requested columns in files of one schema: all, those of the filter, and the rest."""

    all: Selection
    tested: Selection
    rest: Selection
    both: tuple[int, ...]


class FileLayouts:
    """Layouts of the files of one scan. Thread-safe: at worst two threads compute the same layout."""

    def __init__(self, request: RowRequest) -> None:
        self._request = request
        self._last: tuple[pa.Schema, Layout] | None = None
        self.schema = request.schema
        self.names = tuple(each.name for each in request.output)
        self.is_masked = request.is_masked
        self.codes: tuple[str, ...] = ()
        """Columns of the previous file that were read as dictionary codes. The next file is opened the same way."""
        self._partitions: dict[tuple[str | None, ...], bool] = {}
        partitions = request.table.partition_columns
        self.is_of_partitions = (
            self.is_masked and bool(request.tested) and all(each.name in partitions for each in request.tested)
        )
        """Whether the filter refers to partition columns only."""
        # Without a filter, all columns are read together.
        tested = frozenset(request.tested)
        self._rest = tuple(each for each in request.output if request.expression is not None and each not in tested)

    def of(self, opened: OpenedFile) -> Layout:
        """Return the layout of a file."""
        last = self._last
        if last is not None and opened.groups and last[0].equals(opened.arrow_schema, check_metadata=True):
            return last[1]
        found = self._found(opened)
        if opened.groups and _is_flat(found, opened.arrow_schema):
            self._last = opened.arrow_schema, found
        return found

    def passes(self, opened: OpenedFile) -> bool:
        """Return whether the rows of a file match a partition filter. Each partition is evaluated once."""
        tested, values = self._request.tested, opened.file.partition_values
        key = tuple(values.get(each.physical_name) for each in tested)
        known = self._partitions.get(key)
        if known is None:
            shared = {name: pa.repeat(value, 1) for name, value in opened.constants(tested).items()}
            known = self._judged(shared)
            if len(self._partitions) < _MOST_PARTITIONS:
                self._partitions[key] = known
        return known

    def _judged(self, shared: Mapping[str, pa.Array]) -> bool:
        predicate = self._request.predicate
        return predicate is None or bool(row_mask(predicate, lambda column: shared[column.path[0]], 1).true_count)

    def _found(self, opened: OpenedFile) -> Layout:
        tested, rest = opened.select(self._request.tested), opened.select(self._rest)
        both = tuple(sorted({*tested.leaves, *rest.leaves}))
        return Layout(opened.select(self._request.output), tested, rest, both)


def _is_flat(layout: Layout, schema: pa.Schema) -> bool:
    # Nested fields may have different names in Parquet although their Arrow schemas are equal.
    flat = {each.name for each in schema if not pa.types.is_nested(each.type)}
    return all(flat.issuperset(each.names) for each in (layout.all, layout.tested, layout.rest))


# Row group statistics of a file's footer, in the form that predicates are evaluated on.
#
# Footers hold more than the log if a file has several row groups or the log has no statistics. Only reliable bounds are
# used: a minimum or maximum stored in the table's own type, or an integer of another width. Newer files also have page
# bounds, but PyArrow neither exposes them nor skips pages, so row groups are the finest unit.


class _FooterReader(Protocol):
    """Converts a Parquet bound to the stored form of the table's type; ``up`` rounds it upwards."""

    def __call__(self, raw: Any, *, up: bool) -> Stored | None: ...


def judge_row_groups(opened: OpenedFile, predicate: Predicate, schema: TableSchema) -> list[bool | None]:
    """Return whether each row group matches: True for all rows, False for none, None if rows must be tested."""
    count = len(opened.groups)
    if not count:
        return []
    columns = {}
    # The log of such a table has no maximum for data with a NaN. Parquet ignores NaN and has a maximum anyway.
    trusts = any(
        isinstance(leaf, Compare) and leaf.nan is NanOrder.LARGEST_AND_IN_NO_MAXIMUM for leaf in leaves(predicate)
    )
    # Footers written by lazydelta have no bounds for chunks with a NaN.
    ours = typed_array([True] * count, pa.bool_()) if is_written_here(opened.file.path) else None
    for column in referenced_columns(predicate):
        known = _partition(opened, column, schema) if column.is_partition else _stored(opened, column, schema)
        if known is not None:
            if not column.is_partition and pa.types.is_floating(column.type.to_arrow()):
                known = msgspec.structs.replace(known, max_knows_nan=ours)
                if trusts and ours is None:
                    known = msgspec.structs.replace(known, max=None)
            columns[column.physical_path] = known
    ranges = Ranges(count, int64_array([group.num_rows for group in opened.groups]), None, columns)
    may, must = may_match(predicate, ranges).to_pylist(), all_match(predicate, ranges).to_pylist()
    return [False if not one else True if every else None for one, every in zip(may, must, strict=True)]


def _partition(opened: OpenedFile, column: Column, schema: TableSchema) -> ColumnRange:
    field = schema.field(column.path[0])
    value = opened.constants([field])[field.name]
    count = len(opened.groups)
    values = pa.repeat(value, count)
    return ColumnRange(
        values,
        values,
        int64_array([0 if value.is_valid else group.num_rows for group in opened.groups]),
        exact=True,
        all_null=typed_array([not value.is_valid] * count, pa.bool_()),
    )


def _stored(opened: OpenedFile, column: Column, schema: TableSchema) -> ColumnRange | None:
    if isinstance(column.type, Struct):
        return None
    selection = opened.select(pruned_fields(schema, [column]))
    if not selection.leaves:
        # The file was written before the column was added, so all of its values are null.
        return ColumnRange(None, None, int64_array([group.num_rows for group in opened.groups]))
    if len(selection.leaves) != 1 or not _is_itself(opened, selection.leaves[0], column):
        return None
    leaf = selection.leaves[0]
    kind = column.type.to_arrow()
    known = [group.column(leaf).statistics for group in opened.groups]
    # The statistics carry the Parquet type as well. Reading it from the footer's schema would create a reference cycle
    # that only the garbage collector frees.
    first = next((each for each in known if each is not None), None)
    read = None if first is None else _reading(first, _type_at(opened.arrow_schema, column.physical_path), kind)
    lows: list[Stored | None] = []
    highs: list[Stored | None] = []
    nulls: list[int | None] = []
    for stats in known:
        has_bounds = stats is not None and read is not None and stats.has_min_max
        lows.append(read(stats.min_raw, up=False) if has_bounds and read else None)
        highs.append(read(stats.max_raw, up=True) if has_bounds and read else None)
        nulls.append(stats.null_count if stats is not None and stats.has_null_count else None)
    try:
        return ColumnRange(typed_array(lows, kind), typed_array(highs, kind), int64_array(nulls))
    except (OverflowError, TypeError, ValueError):
        return ColumnRange(None, None, int64_array(nulls))


def _is_itself(opened: OpenedFile, leaf: int, column: Column) -> bool:
    """Return whether the leaf is the column itself, not a list element or a placeholder for a missing struct field."""
    path = tuple(opened.groups[0].column(leaf).path_in_schema.split("."))
    if path != column.physical_path:
        return False
    stored = _type_at(opened.arrow_schema, path)
    return stored is not None and not pa.types.is_nested(stored)


def _type_at(schema: pa.Schema, path: tuple[str, ...]) -> pa.DataType | None:
    """Return the type of a leaf nested only in structs, or None if it is inside a list or map."""
    fields = list(schema)
    for depth, name in enumerate(path):
        found = [each for each in fields if each.name == name]
        if len(found) != 1:
            return None
        kind = found[0].type
        if depth + 1 == len(path):
            return kind
        if not pa.types.is_struct(kind):
            return None
        fields = [kind.field(index) for index in range(kind.num_fields)]
    return None


def _reading(stats: pq.Statistics, stored: pa.DataType | None, kind: pa.DataType) -> _FooterReader | None:
    """Return the converter from Parquet bounds to the stored form of ``kind``, or None if it could alter values."""
    physical, logical = stats.physical_type, stats.logical_type.type
    types = pa.types
    if types.is_boolean(kind):
        return _flag if physical == "BOOLEAN" else None
    if types.is_integer(kind):
        signed = logical == "NONE" or (logical == "INT" and '"isSigned":true' in stats.logical_type.to_json())
        return _number if physical in {"INT32", "INT64"} and signed else None
    if types.is_date(kind):
        return _number if physical == "INT32" and logical == "DATE" else None
    if types.is_floating(kind):
        return _float if physical in {"FLOAT", "DOUBLE"} else None
    if types.is_string(kind):
        return _text if physical == "BYTE_ARRAY" and logical == "STRING" else None
    if types.is_timestamp(kind) and physical == "INT64" and logical == "TIMESTAMP":
        return _timestamp(stats.logical_type.to_json())
    if types.is_decimal(kind) and logical == "DECIMAL" and _same_scale(stored, kind):
        return _unscaled
    return None


def _flag(raw: Any, *, up: bool) -> bool:  # noqa: ARG001 - all converters share one signature
    return bool(raw)


def _number(raw: Any, *, up: bool) -> int:  # noqa: ARG001
    return int(raw)


def _float(raw: Any, *, up: bool) -> float:  # noqa: ARG001
    return float(raw)


def _text(raw: Any, *, up: bool) -> str | None:  # noqa: ARG001
    try:
        return raw.decode() if isinstance(raw, bytes) else str(raw)
    except UnicodeDecodeError:
        return None  # truncated in the middle of a character


def _timestamp(logical: str) -> _FooterReader | None:
    if "nanoseconds" in logical:
        return _nanoseconds
    if "microseconds" in logical:
        return _number
    return _milliseconds if "milliseconds" in logical else None


def _nanoseconds(raw: Any, *, up: bool) -> int:
    return -(-int(raw) // 1000) if up else int(raw) // 1000


def _milliseconds(raw: Any, *, up: bool) -> int:  # noqa: ARG001
    return int(raw) * 1000


def _same_scale(stored: Any, kind: Any) -> bool:
    return bool(pa.types.is_decimal(stored)) and stored.scale == kind.scale


def _unscaled(raw: Any, *, up: bool) -> int:  # noqa: ARG001
    return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)


# Retries for files that are in the log but not yet visible in the store.


# A commit is written after its files, so a missing file usually means that the store lags slightly behind. A deleted
# file stays missing, and its error should not take long.
_PAUSES = (0.05, 0.2, 0.5)


def open_when_visible(open_file: Callable[[], OpenedFile], stopped: Flag, metrics: RowMetrics) -> OpenedFile:
    """Open a file, retrying a few times if it does not exist."""
    for pause in _PAUSES:
        try:
            return open_file()
        except DataFileError as error:
            if not isinstance(error.__cause__, ObjectNotFoundError) or stopped.wait(pause):
                raise
            metrics.add(files_looked_for_again=1)
    try:
        return open_file()
    except DataFileError as error:
        if not isinstance(error.__cause__, ObjectNotFoundError):
            raise
        message = f"Data file {error.path} does not exist, even after {len(_PAUSES) + 1} attempts"
        hint = "it may have been vacuumed; read a newer version of the table"
        raise DataFileError(message, path=error.path, hint=hint) from error.__cause__


# ``RepeatedValues``: columns with one value for all rows of a file, such as partition columns.
#
# In a table of narrow rows, such a string column is a fifth of the returned data, and most of its time goes into
# allocating memory. String offsets depend only on the string length, so all files of a scan share them.


_MOST_BYTES = 2**31 - 1
_BLOCK_BYTES = 64 << 10
_MOST_LENGTHS = 8  # hours, days and countries have one length each


class RepeatedValues:
    """Builds repeated columns for the files of one scan."""

    def __init__(self) -> None:
        self._ends: dict[int, pa.Buffer] = {}

    def of(self, value: pa.Scalar, number: int) -> pa.Array:
        """Return an array of ``number`` copies of ``value``."""
        kind = value.type
        if not value.is_valid or not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            return pa.repeat(value, number)
        data = value.as_buffer().to_pybytes()
        if len(data) * number > _MOST_BYTES:
            return pa.repeat(value, number)
        ends = self._ends_of(len(data), number)
        return pa.Array.from_buffers(kind, number, [None, ends, _filled(data, number)])

    def _ends_of(self, length: int, number: int) -> pa.Buffer:
        known = self._ends.get(length)
        size = 4 * (number + 1)
        if known is None or known.size < size:
            known = pa.py_buffer(np.arange(number + 1, dtype=np.int32) * np.int32(length))
            if length in self._ends or len(self._ends) < _MOST_LENGTHS:
                self._ends[length] = known
        return known if known.size == size else known.slice(0, size)


def _filled(data: bytes, number: int) -> pa.Buffer:
    # Allocate from Arrow's pool, which uses large pages; Python's memory would be mapped page by page. Copy blocks that
    # fit in the processor cache: copying value by value takes seven times as long.
    size = len(data) * number
    buffer = pa.allocate_buffer(size)
    if size:
        values = np.frombuffer(buffer, np.uint8)
        block = np.frombuffer(data * min(number, max(1, _BLOCK_BYTES // len(data))), np.uint8)
        for start in range(0, size, len(block)):
            part = values[start : start + len(block)]
            part[:] = block[: len(part)]
    return buffer


_POSITION = "\0position"
# A second round trip must save at least this many bytes.
_WORTH_A_REQUEST = 256 << 10
_FEW = 16
_FIRST_FOOTERS = 4
_MANY_ROWS = 32 << 10


@dataclass(slots=True)
class Sparsity:
    """How often row groups had a matching row, in the files of one scan so far."""

    groups: int = 0
    hits: int = 0

    def count(self, *, hit: bool) -> None:
        """Count one more row group."""
        self.groups += 1
        self.hits += hit

    @property
    def is_sparse(self) -> bool:
        """Whether the next row group is likely to have no match. True at first, because it is worth a try."""
        return self.hits * 2 <= self.groups + 1


@dataclass(slots=True)
class FooterUse:
    """How often the footer of a file with a single row group decided the filter, in one scan so far.

    If the log has statistics, such a footer seldom adds anything, and evaluating it takes longer than opening the file.
    Skipping it never changes the result, because the rows are tested anyway.
    """

    asked: int = 0
    decided: int = 0
    passed_by: int = 0

    def is_worth_asking(self, groups: int) -> bool:
        """Return whether to evaluate the next footer. One in sixteen always is, because later files may differ."""
        if groups > 1 or self.asked < _FIRST_FOOTERS or self.decided * _FEW >= self.asked:
            return True
        self.passed_by += 1
        return self.passed_by % _FEW == 0

    def count(self, *, decided: bool) -> None:
        """Count one more footer and whether it decided the filter."""
        self.asked += 1
        self.decided += decided


@dataclass(slots=True)
class FileRows:
    """Reads one file for one request. Create it in one thread, read it from one at a time, close it from any.

    ``verified`` checks the page checksums, which is required when the rows are used to rewrite the table. ``is_last``
    is set if the yielded batch is already known to be the last one.
    """

    store: Store
    request: RowRequest
    file: FileToRead
    metrics: RowMetrics
    sparsity: Sparsity = field(default_factory=Sparsity)
    footers: FooterUse = field(default_factory=FooterUse)
    repeated: RepeatedValues = field(default_factory=RepeatedValues)
    layouts: FileLayouts | None = None
    options: Options = _VERIFYING
    is_last: bool = False
    stopped: Flag = field(default_factory=Flag)
    _opened: OpenedFile | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the live rows that match, in file order."""
        request = self.request
        layouts = self.layouts or FileLayouts(request)
        opened = open_when_visible(
            lambda: OpenedFile(
                self.store,
                request.table,
                self.file,
                codes=layouts.codes,
                verified=self.options.page_checksums == "verify",
                page_bytes=page_limit(self.options),
                trusts_footers=self.options.page_sizes != "pages",
            ),
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
            delivered = 0
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
                delivered += 1
            check_complete(f"row groups of {self.file.path}", promised=len(read), delivered=delivered)

    def close(self) -> None:
        """Cancel the requests of the file. A concurrent reader gets an error or the end of the file."""
        self.stopped.set()
        if self._opened is not None:
            self._opened.abort()

    def _share(self, groups: int) -> range:
        """Return the row groups of this share: every n-th one, so that the shares of a file have similar sizes."""
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
        # Each batch carries its dictionary, which would dominate small batches.
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
        self._check_rows(opened, group, start)

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
        self._check_rows(opened, group, start)
        hit = behind < start
        self.sparsity.count(hit=hit)
        if not hit and others.fields:
            self.metrics.add(columns_skipped=1)

    def _check_rows(self, opened: OpenedFile, group: int, read: int) -> None:
        if not self.stopped.is_set():
            check_complete(f"rows of {self.file.path}", promised=opened.groups[group].num_rows, delivered=read)

    def _wait_for_a_match(self, opened: OpenedFile, others: Selection, group: int) -> bool:
        """Return whether to fetch the other columns only after a match, which takes another round trip."""
        if not self.store.is_remote:
            return True
        return self.sparsity.is_sparse and opened.size_of(group, others.leaves)[0] >= _WORTH_A_REQUEST

    def _picked(self, columns: _Columns, arrays: Mapping[str, pa.Array], number: int) -> pa.Array:
        predicate = self.request.predicate
        if predicate is not None and columns.layouts.is_masked:
            mask = row_mask(
                predicate, lambda column: _at(columns.value(column.path[0], arrays, number), column), number
            )
            # Usually all rows match or none; build a list of positions only in between.
            if mask.true_count == number:
                return from_numpy(np.arange(number, dtype=np.uint64), pa.uint64())
            return pc.indices_nonzero(mask)
        positions = from_numpy(np.arange(number, dtype=np.int32), pa.int32())
        names = [each.name for each in self.request.tested]
        values = [columns.value(name, arrays, number) for name in names]
        batch = pa.RecordBatch.from_arrays([*values, positions], names=[*names, _POSITION])
        try:
            found = [_passed(batch, each) for each in self.request.alternatives or (self.request.expression,)]
        except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
            raise bad_filter(self.request.expression, error) from error
        if len(found) == 1:
            return found[0]
        return from_numpy(np.unique(np.concatenate([each.to_numpy() for each in found])), pa.int32())


@dataclass(slots=True)
class _Columns:
    """The requested columns in one file."""

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
        # All batches of a file share one array, because its values never differ.
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
    """Slices the batches of one reader to match those of another reader of the same rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._left: pa.RecordBatch | None = None

    def close(self) -> None:
        """Stop reading rows that are no longer needed."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def take(self, number: int) -> pa.RecordBatch:
        """Return the next ``number`` rows."""
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


def _passed(batch: pa.RecordBatch, expression: pc.Expression) -> pa.Array:
    """Return the last column of the matching rows, which holds their positions."""
    return batch.filter(expression).column(batch.num_columns - 1)


def _at(array: pa.Array, column: Column) -> pa.Array:
    return pc.struct_field(array, list(column.path[1:])) if len(column.path) > 1 else array


def _as_texts(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _only(batch: pa.RecordBatch, mask: pa.BooleanArray | None) -> pa.RecordBatch:
    if mask is None:
        return batch
    # A batch without columns has only a row count, so there is nothing to filter.
    return batch.filter(mask) if batch.num_columns else rows_without_columns(mask.true_count)


def _taken(batch: pa.RecordBatch, picked: pa.Array) -> pa.RecordBatch:
    return batch.take(picked) if batch.num_columns else rows_without_columns(len(picked))
