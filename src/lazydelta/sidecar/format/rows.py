"""Conversion of files to sidecar rows and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lazydelta.log.file_batch import DELETION_VECTOR, PARTITION_VALUES, FileBatch
from lazydelta.protocol.schema import Column, Primitive, TableSchema
from lazydelta.protocol.time import has_plain_year, timestamp_text
from lazydelta.protocol.values import from_text, plain_text
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
from lazydelta.sidecar.format.manifest import RangeText, SidecarError, range_key
from lazydelta.stats import partition_ranges, stats_ranges

if TYPE_CHECKING:
    import numpy.typing as npt  # its docstrings are built at import

__all__ = [
    "PlainPartitions",
    "from_rows",
    "has_plain_partitions",
    "key_at",
    "keys_from_text",
    "partition_column",
    "places_among",
    "ranges_of",
    "sortable",
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


# Sort order of a sidecar as bytes: rows compare by (sort values, path), with missing values last.


_SIGN = {1: 0x80, 4: 0x80000000, 8: 0x8000000000000000, 2: 0x8000}


def sortable(rows: pa.RecordBatch | pa.Table, layout: SidecarLayout) -> pa.BinaryArray:
    """Return bytes that compare in the sort order of the rows."""
    pieces = [_encoded(one_array(rows.column(name))) for name in layout.sort_names()]
    path = pc.cast(one_array(rows.column(layout.name_of(ColumnRole.PATH))), pa.binary())
    if not pieces:
        return path
    return pc.binary_join_element_wise(*pieces, path, _EMPTY)


def keys_from_text(
    keys: Sequence[tuple[str | None, ...]], layout: SidecarLayout, schema: TableSchema
) -> pa.BinaryArray:
    """Return the bytes of manifest keys: the values of the sort columns as strings, and the path."""
    types = {(column.is_partition, column.physical_path): column.type for column in schema.leaves()}
    names = [*layout.sort_names(), layout.name_of(ColumnRole.PATH)]
    arrays = []
    for number, each in enumerate(layout.sort):
        texts = string_array([key[number] for key in keys])
        kind = types[each.role == ColumnRole.PARTITION, each.path]
        values = from_text(texts, kind)
        arrow = kind.to_arrow()
        # NaN and binary values have no string form, so a null does not determine where the key lies.
        if values.null_count != texts.null_count or (
            texts.null_count and (pa.types.is_floating(arrow) or pa.types.is_binary(arrow))
        ):
            message = f"its keys by {'.'.join(each.path)} cannot be read back from text"
            raise SidecarError(message)
        arrays.append(values)
    arrays.append(string_array([key[-1] for key in keys]))
    columns = (*(_column(layout, name) for name in names),)
    return sortable(pa.RecordBatch.from_arrays(arrays, names=names), SidecarLayout(columns, layout.sort))


def _column(layout: SidecarLayout, name: str | None) -> SidecarColumn:
    return next(each for each in layout.columns if each.name == name)


def places_among(ends: pa.BinaryArray, keys: pa.BinaryArray, *, side: str) -> npt.NDArray[np.int64]:
    """Return the position of each key among sorted ends; ``side`` right is after equal ends, left before them."""
    found = pc.search_sorted(ends, keys, side=side)
    # Use the Arrow buffer directly: Arrow's conversion to NumPy would load pandas.
    return np.frombuffer(found.buffers()[1], np.uint64, len(found), found.offset * 8).astype(np.int64)


def _constant(data: bytes) -> pa.BinaryScalar:
    """Return a scalar from its bytes: converting a Python object would load pandas before the first file."""
    ends = pa.py_buffer(np.array([0, len(data)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(data)])[0]


_EMPTY = _constant(b"")
_PRESENT, _MISSING = _constant(b"\x00"), _constant(b"\x01")
_TERMINATOR = _constant(b"\x00\x00")


def _encoded(values: pa.Array) -> pa.BinaryArray:
    body = _text(values) if pa.types.is_string(values.type) or pa.types.is_binary(values.type) else _fixed(values)
    if not values.null_count:
        return pc.binary_join_element_wise(_PRESENT, body, _EMPTY)
    joined = pc.binary_join_element_wise(_PRESENT, pc.fill_null(body, _EMPTY), _EMPTY)
    return pc.if_else(pc.is_valid(values), joined, _MISSING)


def _text(values: pa.Array) -> pa.BinaryArray:
    # Use a terminator that sorts before every byte, so that "a" < "ab". A zero byte in the value is escaped.
    plain = pc.cast(values, pa.binary())
    escaped = pc.replace_substring(plain, pattern=b"\x00", replacement=b"\x00\xff")
    return pc.binary_join_element_wise(escaped, _TERMINATOR, _EMPTY)


def _fixed(values: pa.Array) -> pa.BinaryArray:
    if pa.types.is_boolean(values.type):
        values = pc.cast(values, pa.uint8())
    elif pa.types.is_date32(values.type):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.view(pa.int64())
    kind = values.type
    raw = pc.fill_null(values, _zero(kind)) if values.null_count else values
    if pa.types.is_decimal(kind):
        words = np.frombuffer(raw.buffers()[1], "<u8", len(raw) * 2, raw.offset * 16).reshape(-1, 2)
        high = (words[:, 1] ^ np.uint64(_SIGN[8])).astype(">u8")
        ordered = np.stack([high, words[:, 0].astype(">u8")], axis=1)
        return _binary(ordered.view(np.uint8).reshape(len(raw), 16))
    width = kind.bit_width // 8
    unsigned = np.frombuffer(raw.buffers()[1], f"<u{width}", len(raw), raw.offset * width)
    sign = unsigned.dtype.type(_SIGN[width])
    if pa.types.is_floating(kind):
        negative = (unsigned & sign) != 0
        ordered = np.where(negative, ~unsigned, unsigned | sign)
    elif pa.types.is_unsigned_integer(kind):
        ordered = unsigned
    else:
        ordered = unsigned ^ sign
    return _binary(ordered.astype(f">u{width}").view(np.uint8).reshape(len(raw), width))


def _zero(kind: pa.DataType) -> pa.Scalar:
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(kind.bit_width // 8))])[0]


def _binary(rows: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    count, width = rows.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    data = pa.py_buffer(np.ascontiguousarray(rows).tobytes())
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data])
