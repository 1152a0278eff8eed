"""Rows of two readers made comparable: one spelling per value, no order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

_UTC_MICROSECONDS = pa.timestamp("us", "UTC")
_PLAIN = {
    pa.string_view(): pa.string(),
    pa.large_string(): pa.string(),
    pa.dictionary(pa.int32(), pa.string()): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.large_binary(): pa.binary(),
}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without the freedoms that readers take: views, large offsets, dictionaries, names of items."""
    if pa.types.is_timestamp(kind):
        return _UTC_MICROSECONDS if kind.tz else pa.timestamp("us")
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("item", plain_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, plain_type(child.type)) for child in kind])
    return kind


def plain_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the plain type of each column."""
    return {field.name: plain_type(field.type) for field in schema}


def _plain_value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if pa.types.is_map(kind):
        pairs = [(_plain_value(k, kind.key_type), _plain_value(v, kind.item_type)) for k, v in value]
        return sorted(pairs, key=repr)
    if pa.types.is_list(kind):
        return [_plain_value(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {child.name: _plain_value(value[child.name], child.type) for child in kind}
    return value


def plain_rows(table: pa.Table) -> list[str]:
    """Return the table's rows, columns by name, sorted."""
    types = plain_types(table.schema)
    columns = {
        name: [_plain_value(value, types[name]) for value in table[name].cast(types[name]).to_pylist()]
        for name in sorted(table.schema.names)
    }
    rows: Iterable[tuple[Any, ...]] = zip(*columns.values(), strict=True)
    return sorted(repr(dict(zip(columns, row, strict=True))) for row in rows)
