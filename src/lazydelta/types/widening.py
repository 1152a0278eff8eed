"""Which type changes Delta's type widening allows.

A column may be widened without a rewrite of its files, so one table can hold files of several types. The same rule
says which changes recorded in the schema we accept and which file types a reader may turn into the table's type.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lazydelta.errors import CorruptLogError, UnsupportedFeatureError
from lazydelta.types.schema import TYPE_CHANGES, Array, DataType, Decimal, Field, Map, Primitive, Struct, TableSchema

__all__ = ["check_type_changes", "is_widening"]

_WIDER: dict[str, frozenset[str]] = {
    "byte": frozenset({"short", "integer", "long", "double"}),
    "short": frozenset({"integer", "long", "double"}),
    "integer": frozenset({"long", "double"}),
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp_ntz"}),
}
# Digits of the largest value of each integer type. The protocol has writers leave room for more (ten digits even for a
# byte, twenty for a long), but some do not, and a decimal that holds every value loses none.
_INTEGER_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}


def is_widening(narrow: DataType, wide: DataType) -> bool:
    """Tell whether every value of ``narrow`` may be read as ``wide`` (a type is no widening of itself)."""
    if isinstance(narrow, Primitive) and isinstance(wide, Primitive):
        # A void column holds nothing but nulls, which every type has.
        return wide.name in _WIDER.get(narrow.name, frozenset()) or (narrow.name == "void" != wide.name)
    if not isinstance(wide, Decimal):
        return isinstance(narrow, Primitive) and narrow.name == "void"
    whole = wide.precision - wide.scale
    if isinstance(narrow, Decimal):
        return narrow != wide and wide.scale >= narrow.scale and whole >= narrow.precision - narrow.scale
    if isinstance(narrow, Primitive):
        return narrow.name == "void" or whole >= _INTEGER_DIGITS.get(narrow.name, wide.precision + 1)
    return False


def check_type_changes(schema: TableSchema) -> None:
    """Refuse a schema that records a type change we cannot follow, as the protocol asks of readers."""
    for field in schema.fields:
        _check_field(field, field.name)


def _check_field(field: Field, name: str) -> None:
    changes = field.metadata.get(TYPE_CHANGES)
    if changes is not None:
        if not isinstance(changes, list):
            message = f"The type changes of column {name!r} are not a list"
            raise CorruptLogError(message)
        for change in changes:
            _check_change(change, name)
    _check_nested(field.type, name)


def _check_nested(data_type: DataType, name: str) -> None:
    # Changes of an element, key or value are recorded at the nearest field above, so only fields are looked at.
    if isinstance(data_type, Struct):
        for each in data_type.fields:
            _check_field(each, f"{name}.{each.name}")
    elif isinstance(data_type, Array):
        _check_nested(data_type.element, name)
    elif isinstance(data_type, Map):
        _check_nested(data_type.key, name)
        _check_nested(data_type.value, name)


def _type_named(name: str) -> DataType:
    # The schema parser knows the spelling of every type; a schema of one column lends it to us.
    one = {"type": "struct", "fields": [{"name": "changed", "type": name}]}
    return TableSchema.parse(msgspec.json.encode(one).decode(), origin="a type change").fields[0].type


def _check_change(change: Any, name: str) -> None:
    before, after = (change.get("fromType"), change.get("toType")) if isinstance(change, dict) else (None, None)
    if not isinstance(before, str) or not isinstance(after, str):
        message = f"The type changes of column {name!r} have an entry without fromType and toType"
        raise CorruptLogError(message)
    narrow, wide = _type_named(before), _type_named(after)
    if narrow != wide and not is_widening(narrow, wide):
        message = f"Column {name!r} was changed from {before} to {after}, a type change that lazydelta does not read"
        raise UnsupportedFeatureError(
            message,
            features=(f"typeWidening: {before} to {after}",),
            hint="rewrite the table's files with the new type, then try again",
        )
