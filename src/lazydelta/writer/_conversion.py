"""A name that programs import from the inside of deltalake."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["_convert_arro3_schema_to_delta"]

_SIGNED = {pa.uint8(): pa.int8(), pa.uint16(): pa.int16(), pa.uint32(): pa.int32(), pa.uint64(): pa.int64()}


def _convert_arro3_schema_to_delta(schema: Any, existing_schema: Any = None) -> Any:
    """Return an Arrow schema with the types that deltalake's writer casts to, as an object of the given class.

    Unsigned integers become signed ones of their width, timestamps microseconds, and columns of nulls have the type of
    the table's column. lazydelta's own writer does not use it: it widens instead, and loses no value.
    """
    known = None if existing_schema is None else pa.schema(existing_schema)
    found = pa.schema([_field(each, known) for each in pa.schema(schema)], pa.schema(schema).metadata)
    return type(schema).from_arrow(found) if hasattr(type(schema), "from_arrow") else found


def _field(field: pa.Field, known: pa.Schema | None) -> pa.Field:
    kind = field.type
    if pa.types.is_null(kind) and known is not None and field.name in known.names:
        kind = known.field(field.name).type
    return field.with_type(_kind(kind, known))


def _kind(kind: pa.DataType, known: pa.Schema | None) -> pa.DataType:
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([_field(each, known) for each in kind])
    if types.is_fixed_size_list(kind):
        value = kind.value_field.with_type(_kind(kind.value_type, None))
        return pa.list_(value.with_name("element") if value.name == "item" else value, kind.list_size)
    for is_such, make in (
        (types.is_large_list, pa.large_list),
        (types.is_list, pa.list_),
        (types.is_list_view, pa.list_view),
        (types.is_large_list_view, pa.large_list_view),
    ):
        if is_such(kind):
            return make(kind.value_field.with_type(_kind(kind.value_type, None)))
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return pa.binary() if types.is_fixed_size_binary(kind) else _SIGNED.get(kind, kind)
