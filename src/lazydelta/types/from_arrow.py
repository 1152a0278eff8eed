"""From an Arrow schema to Delta's ``schemaString``.

Arrow has more types than Delta. A type that some Delta type holds without loss becomes that one (``uint32`` is a
``long``, a dictionary is what it encodes); data is cast to the table's types when it is written. What no Delta type
holds is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import SchemaMismatchError
from lazydelta.types.conversion_steps import decoded_type, is_list

__all__ = ["has_timestamp_ntz", "to_field", "to_schema_string", "to_type"]

_MAX_PRECISION = 38
# Delta-Spark refuses these in column names unless columns are mapped, which we do not write.
_FORBIDDEN = frozenset(" ,;{}()\n\t=")

_PRIMITIVES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.uint8(): "short",
    pa.uint16(): "integer",
    pa.uint32(): "long",
    pa.uint64(): "decimal(20,0)",
    pa.float16(): "float",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date32(): "date",
    pa.date64(): "date",
}


def to_schema_string(schema: pa.Schema) -> str:
    """Return the ``schemaString`` of a table that holds rows of this schema."""
    return msgspec.json.encode(_struct(schema, "")).decode()


def to_field(field: pa.Field, parent: str = "") -> dict[str, Any]:
    """Return one field as the ``fields`` of a schema hold it; ``parent`` names the struct it is in, for errors."""
    place = f"{parent}.{field.name}" if parent else field.name
    bad = sorted(_FORBIDDEN.intersection(field.name))
    if bad or not field.name:
        shown = ", ".join(map(repr, bad)) or "nothing"
        message = f"The column name {field.name!r} holds {shown}, which other Delta readers do not take"
        raise SchemaMismatchError(message, hint="rename the column")
    return {"name": field.name, "type": to_type(field.type, place), "nullable": field.nullable, "metadata": {}}


def has_timestamp_ntz(schema: pa.Schema) -> bool:
    """Tell whether some column, at any depth, holds timestamps without a time zone, which takes a table feature."""
    return any(_holds_ntz(field.type) for field in schema)


def _holds_ntz(kind: pa.DataType) -> bool:
    kind = decoded_type(kind)
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return any(_holds_ntz(kind.field(index).type) for index in range(kind.num_fields))


def _struct(fields: Iterable[pa.Field], parent: str) -> dict[str, Any]:
    written = [to_field(field, parent) for field in fields]
    seen: set[str] = set()
    for each in written:
        folded = each["name"].lower()
        if folded in seen:
            where = f" of {parent!r}" if parent else ""
            message = f"The column name {each['name']!r}{where} is there twice; Delta does not tell names apart by case"
            raise SchemaMismatchError(message, hint="rename one of the columns")
        seen.add(folded)
    return {"type": "struct", "fields": written}


def to_type(kind: pa.DataType, place: str) -> str | dict[str, Any]:
    """Return a type as a schema holds it; ``place`` names the column, for errors."""
    kind = decoded_type(kind)
    known = _PRIMITIVES.get(kind)
    if known is not None:
        return known
    if pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_decimal(kind) and kind.precision <= _MAX_PRECISION and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return _struct(kind, place)
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": to_type(kind.key_type, f"{place}.key"),
            "valueType": to_type(kind.item_type, f"{place}.value"),
            "valueContainsNull": kind.item_field.nullable,
        }
    if is_list(kind):
        element = kind.value_field
        return {
            "type": "array",
            "elementType": to_type(element.type, f"{place}.element"),
            "containsNull": element.nullable,
        }
    message = f"The column {place!r} is of the type {kind}, which no Delta type holds without loss"
    raise SchemaMismatchError(message, hint="cast the column before writing it")
