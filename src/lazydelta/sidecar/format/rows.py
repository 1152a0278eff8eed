"""Conversion of files to sidecar rows and back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from lazydelta.log.file_batch import DELETION_VECTOR, PARTITION_VALUES, FileBatch
from lazydelta.protocol.schema import Column, Primitive, TableSchema
from lazydelta.protocol.time import has_plain_year, timestamp_text
from lazydelta.protocol.values import plain_text
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import boolean_array, flags, from_numpy, int64_array, nested, one_array, string_array
from lazydelta.sidecar.format.columns import (
    EXTRA_NAMES,
    STATS_NAMES,
    STATS_OF_COLUMNS,
    ColumnRole,
    SidecarColumn,
    SidecarLayout,
)
from lazydelta.sidecar.format.manifest import RangeText, range_key
from lazydelta.stats import partition_ranges, stats_ranges

__all__ = [
    "PlainPartitions",
    "from_rows",
    "has_plain_partitions",
    "key_at",
    "partition_column",
    "ranges_of",
    "text_of",
    "to_rows",
    "vectors_of",
]


def to_rows(batch: FileBatch, layout: SidecarLayout, schema: TableSchema) -> pa.RecordBatch:
    """Return the files of a batch, with statistics, as sidecar rows of a table with this schema."""
    target = layout.arrow_schema(schema)
    by_path = {column.physical_path: column for column in schema.leaves()}
    wanted = dict.fromkeys(each.path for each in layout.columns if each.role in STATS_OF_COLUMNS)
    stats = tuple(by_path[path] for path in wanted)
    partitions = tuple(
        partition_column(schema, each.path) for each in layout.columns if each.role == ColumnRole.PARTITION
    )
    ranges = stats_ranges(batch, stats)
    values = partition_ranges(batch.partition_values, partitions)
    count = len(batch)

    def source(column: SidecarColumn) -> pa.Array | None:
        match column.role:
            case ColumnRole.PATH | ColumnRole.SIZE | ColumnRole.MODIFICATION_TIME | ColumnRole.PARTITION_VALUES:
                return getattr(batch, column.role)
            case ColumnRole.PARTITION:
                found = values.columns.get(column.path)
                return None if found is None else found.min
            case ColumnRole.NUM_RECORDS | ColumnRole.TIGHT_BOUNDS:
                return getattr(ranges, column.role)
            case ColumnRole.MIN | ColumnRole.MAX | ColumnRole.NULL_COUNT:
                known = ranges.columns.get(column.path)
                return None if known is None else getattr(known, column.role)
            case ColumnRole.DV:
                return None if batch.deletion_vector is None else pc.struct_field(batch.deletion_vector, column.path[0])
            case role:
                return None if batch.extra is None else pc.struct_field(batch.extra, EXTRA_NAMES[role])

    arrays = []
    for column, field in zip(layout.columns, target, strict=True):
        array = source(column)
        arrays.append(pa.nulls(count, field.type) if array is None else array)
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def partition_column(schema: TableSchema, path: tuple[str, ...]) -> Column:
    """Return the partition column with this physical name."""
    return next(column for column in schema.leaves() if column.physical_path == path and column.is_partition)


def has_plain_partitions(rows: pa.Table, layout: SidecarLayout) -> bool:
    """Return whether the partition value map is redundant: one string partition column with values as logged.

    Readers can then skip decoding the map, which takes as long as decoding the paths.
    """
    columns = [each for each in layout.columns if each.role == ColumnRole.PARTITION]
    if len(columns) != 1 or not pa.types.is_string(rows.schema.field(columns[0].name).type) or not rows.num_rows:
        return False
    values = one_array(rows.column(columns[0].name))
    maps = one_array(rows.column(layout.name_of(ColumnRole.PARTITION_VALUES)))
    offsets = maps.offsets
    starts = np.frombuffer(offsets.buffers()[1], np.int32, len(offsets), offsets.offset * 4)
    if maps.null_count or not (np.diff(starts) == 1).all():
        return False
    keys, items = (child.slice(int(starts[0]), len(maps)) for child in (maps.keys, maps.items))
    name = string_array([columns[0].path[0]])[0]
    return bool(pc.all(pc.equal(keys, name)).as_py()) and bool(items.equals(values))


class PlainPartitions:
    """Builder of partition value maps from the values of a single column (see ``has_plain_partitions``).

    Everything except the values is the same for all rows of a scan and is built once.
    """

    def __init__(self) -> None:
        self._name = b""
        self._ends: pa.Array | None = None
        self._keys: pa.Array | None = None

    def maps(self, rows: pa.RecordBatch, column: SidecarColumn) -> pa.MapArray:
        """Return the map of each row."""
        count, name = rows.num_rows, column.path[0].encode()
        if self._ends is None or self._keys is None or count > len(self._keys) or name != self._name:
            ends = np.arange(count + 1, dtype=np.int32)
            buffers = [None, pa.py_buffer(ends * np.int32(len(name))), pa.py_buffer(name * count)]
            self._name, self._ends = name, from_numpy(ends, pa.int32())
            self._keys = pa.Array.from_buffers(pa.string(), count, buffers)
        keys, ends = self._keys.slice(0, count), self._ends.slice(0, count + 1)
        return pa.MapArray.from_arrays(ends, keys, rows.column(column.name), type=PARTITION_VALUES)


def from_rows(
    rows: pa.RecordBatch, layout: SidecarLayout, *, tier: int, plain: PlainPartitions | None = None
) -> FileBatch:
    """Return sidecar rows as files; statistics columns in the rows become native statistics.

    Rows without the partition value map have plain partitions (see ``has_plain_partitions``). Rows without the deletion
    vector kind have no deletion vectors.
    """
    present = set(rows.schema.names)
    columns = [each for each in layout.columns if each.name in present]

    def named(role: ColumnRole, path: tuple[str, ...] = ()) -> pa.Array:
        return rows.column(next(each.name for each in columns if each.role == role and each.path == path))

    partitions = [each for each in columns if each.role == ColumnRole.PARTITION]
    plain = plain or PlainPartitions()
    maps = layout.name_of(ColumnRole.PARTITION_VALUES) in present
    has_vectors = layout.name_of(ColumnRole.DV, ("storageType",)) in present
    return FileBatch(
        path=named(ColumnRole.PATH),
        size=named(ColumnRole.SIZE),
        modification_time=named(ColumnRole.MODIFICATION_TIME),
        partition_values=named(ColumnRole.PARTITION_VALUES) if maps else plain.maps(rows, partitions[0]),
        deletion_vector=vectors_of(rows, layout) if has_vectors else None,
        parsed_stats=_stats_struct(rows, columns),
        parsed_partitions=nested([(each.path, rows.column(each.name)) for each in partitions]) if partitions else None,
        tier=tier,
    )


def vectors_of(rows: pa.RecordBatch | pa.Table, layout: SidecarLayout) -> pa.StructArray | None:
    """Return the deletion vectors of the rows as in the log; None if there are none."""

    def named(name: str) -> pa.Array:
        return one_array(rows.column(layout.name_of(ColumnRole.DV, (name,))))

    kind = named("storageType")
    if kind.null_count == len(kind):
        return None
    children = [named(field.name) for field in DELETION_VECTOR]
    return pa.StructArray.from_arrays(children, fields=list(DELETION_VECTOR), mask=kind.is_null())


def _stats_struct(rows: pa.RecordBatch, columns: Sequence[SidecarColumn]) -> pa.StructArray | None:
    stats = [each for each in columns if each.role in STATS_NAMES]
    if not stats:  # the minimal profile needs none
        return None
    return nested([((STATS_NAMES[each.role], *each.path), rows.column(each.name)) for each in stats])


# Sort keys and ranges of sidecar rows as strings, the form used in the manifest.


_TEXT = pa.string()
_ZERO, _FALSE = int64_array([0])[0], boolean_array(np.zeros(1, np.bool_))[0]


def text_of(value: pa.Scalar) -> str | None:
    """Format a value exactly as a Delta partition value; None if it is null or has no readable form.

    NaN, binary values, and years below 1 or above 9999 have no readable form. Keys are compared with those in
    manifests, so infinity keeps the name it has there.
    """
    kind = value.type
    if kind == _TEXT:
        text: str | None = value.as_py()
        return text
    if not value.is_valid or pa.types.is_binary(kind):
        return None
    if pa.types.is_date32(kind):
        return timestamp_text(value.value, "D") if has_plain_year(value.value, "D") else None
    if pa.types.is_timestamp(kind):
        text = timestamp_text(value.value, "us") if has_plain_year(value.value, "us") else None
        return text if text is None or kind.tz is None else f"{text}Z"
    plain = value.as_py()
    if isinstance(plain, float) and not math.isfinite(plain):
        return None if math.isnan(plain) else repr(plain)
    return plain_text(plain)


def key_at(rows: pa.Table, index: int, layout: SidecarLayout) -> tuple[str | None, ...]:
    """Return the key of a row: its sort values and its path."""
    names = (*layout.sort_names(), layout.name_of(ColumnRole.PATH))
    return tuple(text_of(rows.column(name)[index]) for name in names)


def ranges_of(rows: pa.Table, layout: SidecarLayout, indexed: Sequence[tuple[str, ...]]) -> dict[str, RangeText]:
    """Return the ranges of the partition columns and of the ``indexed`` columns over these rows."""
    found: dict[str, RangeText] = {}
    for column in layout.columns:
        if column.role == ColumnRole.PARTITION:
            found[range_key(column.path)] = _partition_range(rows, layout, column)
    for path in indexed:
        low, high = layout.name_of(ColumnRole.MIN, path), layout.name_of(ColumnRole.MAX, path)
        if low is None or high is None:
            continue
        found[range_key(path)] = _stats_range(rows, layout, path, low, high)
    return found


def _partition_range(rows: pa.Table, layout: SidecarLayout, column: SidecarColumn) -> RangeText:
    values = rows.column(column.name)
    bounds = pc.min_max(values)
    # A null partition value is exact: every row of the file is null, and no bound is missing. NaN lies within no
    # bounds. A string that could not be parsed is null here and can be any value.
    outside = pa.types.is_floating(values.type) and bool(pc.any(pc.is_nan(values)).as_py())
    return RangeText(
        text_of(bounds["min"]),
        text_of(bounds["max"]),
        has_missing=outside or _unwritable(bounds) or _has_unread(rows, layout, column),
        has_null=values.null_count > 0,
    )


def _has_unread(rows: pa.Table, layout: SidecarLayout, column: SidecarColumn) -> bool:
    """Return whether a null of this partition column stands for a string that its type cannot represent."""
    values = rows.column(column.name)
    if not values.null_count or pa.types.is_string(values.type):
        return False
    named = Column(column.path, column.path, Primitive("string"), is_partition=True)
    maps = rows.column(layout.name_of(ColumnRole.PARTITION_VALUES)).filter(values.is_null())
    texts = partition_ranges(maps, [named]).column(named)
    return texts is not None and texts.min is not None and texts.min.null_count < len(maps)


def _stats_range(rows: pa.Table, layout: SidecarLayout, path: tuple[str, ...], low: str, high: str) -> RangeText:
    nulls = rows.column(layout.name_of(ColumnRole.NULL_COUNT, path))
    lows, highs = rows.column(low), rows.column(high)
    # Most files have both bounds. Then nothing is missing, and no counts have to be compared.
    is_lacking = bool(lows.null_count or highs.null_count) and _lacks_bounds(rows, layout, nulls, lows, highs)
    bounds = {"min": pc.min(lows), "max": pc.max(highs)}
    return RangeText(
        text_of(bounds["min"]),
        text_of(bounds["max"]),
        has_missing=is_lacking or _unwritable(bounds),
        has_null=bool((~_mask(pc.equal(nulls, _ZERO))).any()),
    )


def _lacks_bounds(
    rows: pa.Table, layout: SidecarLayout, nulls: pa.ChunkedArray, lows: pa.ChunkedArray, highs: pa.ChunkedArray
) -> bool:
    """Return whether any file has values but no bounds."""
    records = rows.column(layout.name_of(ColumnRole.NUM_RECORDS))
    unbounded = [_mask(bound.is_null()) for bound in (lows, highs)]
    # All-null files have no bounds and need none. With one bound, or without rows, counts prove nothing.
    all_null = _mask(pc.equal(nulls, records)) & ~_mask(pc.equal(records, _ZERO)) & unbounded[0] & unbounded[1]
    return bool(((unbounded[0] | unbounded[1]) & ~all_null).any())


def _unwritable(bounds: dict[str, pa.Scalar] | pa.StructScalar) -> bool:
    return any(bounds[end].is_valid and text_of(bounds[end]) is None for end in ("min", "max"))


def _mask(values: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    filled = pc.fill_null(values, _FALSE) if values.null_count else values
    return flags(one_array(filled))
