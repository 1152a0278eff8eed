"""Value ranges of files, row groups or parts: the common form that every source provides for evaluation."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa

from lazydelta.errors import PredicateError
from lazydelta.protocol.schema import Column
from lazydelta.protocol.values import from_text
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import one_array, typed_array, typed_scalar
from lazydelta.stats.collector import has_range

__all__ = [
    "WRITTEN_HERE",
    "ColumnRange",
    "Ranges",
    "cast_or_none",
    "combine",
    "narrowed_floats",
    "partition_ranges",
    "partition_ranges_from_parsed",
    "partition_texts",
    "ranges_from_parsed",
    "text_range",
]


WRITTEN_HERE = ".ld1"
"""Part of the name of a file whose bounds follow ``stats.collector``, in the log and in its footer."""


class ColumnRange(msgspec.Struct, frozen=True):
    """One column's range, a row per file; values are as logged and widened only during evaluation.

    ``min`` and ``max`` have the column's Arrow type, null where unknown, or are None if nothing is known.
    ``null_count`` is int64. ``all_null`` states that a file holds only nulls, for sources that know it without counting
    (a null partition value); false and null mean unknown. ``exact`` marks a partition value: ``min`` and ``max`` are
    the single value of all rows and are not widened. ``max_knows_nan`` marks the files whose writer is known to omit
    the maximum of a float column that contains NaN.
    """

    min: pa.Array | None
    max: pa.Array | None
    null_count: pa.Array | None = None
    exact: bool = False
    all_null: pa.BooleanArray | None = None
    max_knows_nan: pa.BooleanArray | None = None


class Ranges(msgspec.Struct, frozen=True):
    """Ranges of ``num_rows`` files, by the physical path of the column.

    ``num_records`` (int64) and ``tight_bounds`` (bool) are null or None if unknown. Evaluation treats all bounds as
    outer bounds, and uses a null count only if it is zero or the number of records, so files with loose bounds need no
    special case. ``tight_bounds`` is kept for callers that report statistics.
    """

    num_rows: int
    num_records: pa.Array | None = None
    tight_bounds: pa.BooleanArray | None = None
    columns: Mapping[tuple[str, ...], ColumnRange] = msgspec.field(default_factory=dict)

    def column(self, column: Column) -> ColumnRange | None:
        """Return the range of ``column``, None if unknown."""
        return self.columns.get(column.physical_path)


def combine(ranges: Sequence[Ranges]) -> Ranges:
    """Merge the ranges of the same files from several sources; the first source that knows a value wins.

    Sources fill each other's gaps row by row: a checkpoint may have typed statistics for some files and JSON for
    others. A partition value always wins for its column.
    """
    if len({each.num_rows for each in ranges}) != 1:
        message = f"Ranges of different files cannot be combined: {[each.num_rows for each in ranges]} rows"
        raise PredicateError(message, hint="apply the same file filter to both first")
    columns: dict[tuple[str, ...], ColumnRange] = {}
    for each in ranges:
        for path, known in each.columns.items():
            columns[path] = _fill(columns[path], known) if path in columns else known
    return Ranges(
        ranges[0].num_rows,
        functools.reduce(_coalesce, (each.num_records for each in ranges)),
        functools.reduce(_coalesce, (each.tight_bounds for each in ranges)),
        columns,
    )


def narrowed_floats(doubles: pa.Array, target: pa.DataType) -> pa.Array:
    """Return doubles as a float type, null where they are too large for it."""
    if target == pa.float64():
        return doubles
    singles = pc.cast(doubles, target, safe=False)
    overflowed = pc.and_(pc.is_inf(singles), pc.is_finite(doubles))
    return pc.if_else(overflowed, typed_scalar(None, target), singles)


def _fill(first: ColumnRange, second: ColumnRange) -> ColumnRange:
    if first.exact or second.exact:
        return first if first.exact else second
    return ColumnRange(
        _coalesce(first.min, second.min),
        _coalesce(first.max, second.max),
        _coalesce(first.null_count, second.null_count),
        all_null=_coalesce(first.all_null, second.all_null),
    )


def _coalesce(first: pa.Array | None, second: pa.Array | None) -> pa.Array | None:
    if first is None or second is None:
        return second if first is None else first
    if first.null_count == 0 or first.type != second.type:
        return first
    return pc.coalesce(first, second)


# Ranges from partition values: the value itself, for all rows of the file.


def partition_ranges(partition_values: pa.Array | pa.ChunkedArray, columns: Sequence[Column]) -> Ranges:
    """Read the named partition columns from ``partitionValues``, a map<string, string> by physical name.

    An empty string is null, as the protocol requires. A missing key and an unparsable value are unknown.
    """
    found: dict[tuple[str, ...], ColumnRange] = {}
    for column, texts, present in partition_texts(partition_values, columns):
        if present is not None:
            found[column.physical_path] = text_range(column, texts, present)
    return Ranges(len(partition_values), columns=found)


def partition_texts(
    partition_values: pa.Array | pa.ChunkedArray, columns: Sequence[Column]
) -> list[tuple[Column, pa.Array, pa.Array | None]]:
    """Return the strings of the named partition columns, and the rows that have the key (None: no row has it)."""
    maps = one_array(partition_values)
    if not isinstance(maps, pa.MapArray):
        maps = pc.cast(maps, pa.map_(pa.string(), pa.string()))
    return [(column, *_lookup(maps, column.physical_path[0])) for column in columns if column.is_partition]


def partition_ranges_from_parsed(parsed: pa.Array | pa.ChunkedArray, columns: Sequence[Column]) -> Ranges:
    """Read the named partition columns from ``partitionValues_parsed``, a struct of typed values."""
    structs = one_array(parsed)
    found: dict[tuple[str, ...], ColumnRange] = {}
    for column in columns:
        position = structs.type.get_field_index(column.physical_path[0])
        if not column.is_partition or position < 0:
            continue
        values = pc.struct_field(structs, [position])
        try:
            typed = pc.cast(values, column.type.to_arrow())
        except pa.ArrowException:
            continue
        found[column.physical_path] = _exact(column, typed, pc.is_valid(structs), pc.is_null(values))
    return Ranges(len(structs), columns=found)


def _lookup(maps: pa.MapArray, name: str) -> tuple[pa.Array, pa.Array | None]:
    """Return each row's string under ``name`` and the rows that have this key; (…, None) if no row has it.

    Works on the flattened keys and values; ``map_lookup`` searches each map in turn and takes three times as long.
    """
    offsets = maps.offsets
    keys = _text(pc.list_flatten(pa.ListArray.from_arrays(offsets, maps.keys)))
    items = _text(pc.list_flatten(pa.ListArray.from_arrays(offsets, maps.items)))
    hits = pc.equal(keys, typed_scalar(name, pa.string()))
    present = pc.is_valid(maps)
    if maps.null_count == 0 and len(keys) == len(maps) and pc.all(hits).as_py() and _single(offsets):
        return items, present
    where = pc.indices_nonzero(hits)
    if len(where) == 0:
        return items, None
    rows = pc.take(pc.list_parent_indices(pa.ListArray.from_arrays(offsets, maps.keys)), where)
    # For each row, the position of its hit. Duplicate keys violate the protocol; the last value wins.
    slots = pc.inverse_permutation(rows, max_index=len(maps) - 1) if _distinct(rows) else None
    if slots is None:
        texts = pc.map_lookup(maps, typed_scalar(name, maps.type.key_type), "last")
        return _text(texts), pc.and_(present, pc.is_valid(texts))
    return items.take(where.take(slots)), pc.and_(present, pc.is_valid(slots))


def _single(offsets: pa.Array) -> bool:
    lengths = pc.subtract(offsets[1:], offsets[:-1])
    return bool(pc.all(pc.equal(lengths, typed_scalar(1, offsets.type))).as_py())


def _distinct(rows: pa.Array) -> bool:
    return bool(pc.all(pc.less(rows[:-1], rows[1:]), min_count=0).as_py())  # a single row is distinct


def text_range(column: Column, texts: pa.Array, present: pa.Array) -> ColumnRange:
    """Return the range of partition values given as strings; an empty string is null."""
    empty = pc.fill_null(pc.equal(texts, typed_scalar("", pa.string())), typed_scalar(value=True, kind=pa.bool_()))
    if pc.any(empty).as_py():
        texts = pc.if_else(empty, typed_scalar(None, pa.string()), texts)
    return _exact(column, from_text(texts, column.type), present, empty)


def _exact(column: Column, values: pa.Array, present: pa.Array, is_null: pa.Array) -> ColumnRange:
    if pa.types.is_string(values.type) and values.type == column.type.to_arrow():
        is_null = pc.or_(is_null, pc.fill_null(pc.equal(values, typed_scalar("", pa.string())), _TRUE))
    all_null = pc.and_(present, is_null)
    if pc.any(all_null).as_py() and pa.types.is_string(values.type):
        values = pc.if_else(all_null, typed_scalar(None, values.type), values)
    zero, unknown = typed_scalar(0, pa.int64()), typed_scalar(None, pa.int64())
    null_count = pc.if_else(pc.is_valid(values), zero, unknown)
    return ColumnRange(values, values, null_count, exact=True, all_null=all_null)


_TRUE = typed_scalar(value=True, kind=pa.bool_())


def _text(values: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values if pa.types.is_string(values.type) else pc.cast(values, pa.string())


# Ranges from ``stats_parsed``: statistics typed by the checkpoint's writer.


_ZERO, _THOUSAND = typed_array([0, 1000], pa.int64())


def ranges_from_parsed(stats_parsed: pa.Array | pa.ChunkedArray, columns: Sequence[Column]) -> Ranges:
    """Read the named columns (physical names, nested) from a struct of numRecords, minValues, maxValues, nullCount."""
    stats_parsed = one_array(stats_parsed)
    found: dict[tuple[str, ...], ColumnRange] = {}
    for column in columns:
        null_count = cast_or_none(_get(stats_parsed, ("nullCount", *column.physical_path)), pa.int64())
        lower = upper = None
        if has_range(column):
            lower = _bound(_get(stats_parsed, ("minValues", *column.physical_path)), column, up=False)
            upper = _bound(_get(stats_parsed, ("maxValues", *column.physical_path)), column, up=True)
        if lower is not None or upper is not None or null_count is not None:
            found[column.physical_path] = ColumnRange(lower, upper, null_count)
    return Ranges(
        len(stats_parsed),
        cast_or_none(_get(stats_parsed, ("numRecords",)), pa.int64()),
        cast_or_none(_get(stats_parsed, ("tightBounds",)), pa.bool_()),
        found,
    )


def _get(structs: pa.Array, path: tuple[str, ...]) -> pa.Array | None:
    """Return a nested field with the nulls of its parents, or None if there is no such field."""
    positions = []
    kind = structs.type
    for name in path:
        position = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if position < 0:
            return None
        positions.append(position)
        kind = kind.field(position).type
    while positions and structs.null_count == 0:
        # Without nulls in the parent, the field can be used as it is.
        structs = structs.field(positions.pop(0))
    return pc.struct_field(structs, positions) if positions else structs


def cast_or_none(values: pa.Array | None, kind: pa.DataType) -> pa.Array | None:
    """Return the values in another type, or None if a value does not fit."""
    if values is None or values.type == kind:
        return values
    try:
        return pc.cast(values, kind)
    except pa.ArrowException:
        return None


def _bound(values: pa.Array | None, column: Column, *, up: bool) -> pa.Array | None:
    kind = column.type.to_arrow()
    if values is None or values.type == kind:
        return values
    if pa.types.is_timestamp(values.type) and pa.types.is_timestamp(kind):
        if values.type.unit == "ns":
            return _microseconds(values, up=up).view(kind)
        wide = cast_or_none(values, pa.timestamp("us", values.type.tz))
        return None if wide is None else wide.view(kind)
    return cast_or_none(values, kind)


def _microseconds(nanoseconds: pa.Array, *, up: bool) -> pa.Array:
    """Round outwards to keep the bound valid; a cast truncates towards zero, which is upwards before 1970."""
    stored = nanoseconds.view(pa.int64())
    cut = pc.divide(stored, _THOUSAND)
    rest = pc.subtract(stored, pc.multiply(cut, _THOUSAND))
    if up:
        return pc.add(cut, pc.cast(pc.greater(rest, _ZERO), pa.int64()))
    return pc.subtract(cut, pc.cast(pc.less(rest, _ZERO), pa.int64()))
