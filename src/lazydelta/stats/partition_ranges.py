"""Ranges from partition values: the value itself, for all rows of the file."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import one_array, typed_scalar
from lazydelta.stats.ranges import ColumnRange, Ranges
from lazydelta.types.schema import Column
from lazydelta.types.text import from_text

__all__ = ["partition_ranges", "partition_ranges_from_parsed", "partition_texts", "text_range"]


def partition_ranges(partition_values: pa.Array | pa.ChunkedArray, columns: Sequence[Column]) -> Ranges:
    """Read the named partition columns from ``partitionValues``, a map<string, string> by physical name.

    An empty text is null, as the protocol says. A key that is missing and a value that cannot be read are unknown.
    """
    found: dict[tuple[str, ...], ColumnRange] = {}
    for column, texts, present in partition_texts(partition_values, columns):
        if present is not None:
            found[column.physical_path] = text_range(column, texts, present)
    return Ranges(len(partition_values), columns=found)


def partition_texts(
    partition_values: pa.Array | pa.ChunkedArray, columns: Sequence[Column]
) -> list[tuple[Column, pa.Array, pa.Array | None]]:
    """Return each row's text of the partition columns named, and where there is one (None: in no row)."""
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
    """Return each row's text under ``name`` and where there is such a key; (…, None) if there is none at all.

    Goes over keys and values as flat arrays; ``map_lookup`` looks into each map in turn and takes three times longer.
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
    # For each row, the position of its hit; a key that occurs twice is not of this protocol, and its last value counts.
    slots = pc.inverse_permutation(rows, max_index=len(maps) - 1) if _distinct(rows) else None
    if slots is None:
        texts = pc.map_lookup(maps, typed_scalar(name, maps.type.key_type), "last")
        return _text(texts), pc.and_(present, pc.is_valid(texts))
    return items.take(where.take(slots)), pc.and_(present, pc.is_valid(slots))


def _single(offsets: pa.Array) -> bool:
    lengths = pc.subtract(offsets[1:], offsets[:-1])
    return bool(pc.all(pc.equal(lengths, typed_scalar(1, offsets.type))).as_py())


def _distinct(rows: pa.Array) -> bool:
    return bool(pc.all(pc.less(rows[:-1], rows[1:]), min_count=0).as_py())  # one row alone is distinct


def text_range(column: Column, texts: pa.Array, present: pa.Array) -> ColumnRange:
    """Return what the texts of partition values say; an empty one is null."""
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
