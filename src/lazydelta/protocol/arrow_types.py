"""Convert an Arrow schema to Delta's ``schemaString``.

Arrow has more types than Delta. A type that a Delta type holds without loss maps to that type (``uint32`` to ``long``,
a dictionary to its value type); data is cast to the table's types when it is written. Other types are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from lazydelta.errors import CorruptLogError, SchemaMismatchError, UnsupportedFeatureError
from lazydelta.protocol.properties import Key
from lazydelta.protocol.schema import TYPE_CHANGES, Array, DataType, Decimal, Field, Map, Primitive, Struct, TableSchema
from lazydelta.runtime import compute as pc

__all__ = [
    "Conversion",
    "check_type_changes",
    "decoded_type",
    "has_timestamp_ntz",
    "is_list",
    "is_widening",
    "null_mask",
    "nulls_of",
    "outer_encoding",
    "to_field",
    "to_schema_string",
    "to_type",
    "unchanged",
    "with_child",
]


# Building blocks for conversions of Arrow arrays, shared by two planners. ``data_files.conversion`` reads existing
# files: it resolves column mapping, follows type widening and accepts legacy types, because each value is checked as it
# is cast. ``write.evolution`` decides by type alone whether new data is accepted, so that nothing is refused halfway,
# and checks for nulls where the table allows none.


Conversion: TypeAlias = Callable[[pa.Array], pa.Array]


def unchanged(array: pa.Array) -> pa.Array:
    """Return the array: a conversion that callers can skip."""
    return array


def outer_encoding(kind: pa.DataType) -> tuple[pa.DataType, Conversion] | None:
    """Return the type inside the outermost encoding and the function that decodes it; None for a plain type."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type, lambda array: array.storage
    if pa.types.is_dictionary(kind):
        return kind.value_type, _decode_dictionary
    if pa.types.is_run_end_encoded(kind):
        return kind.value_type, pc.run_end_decode
    return None


def _decode_dictionary(array: pa.DictionaryArray) -> pa.Array:
    view = array.dictionary.type
    if view not in {pa.string_view(), pa.binary_view()}:
        return array.dictionary_decode()
    # Arrow takes no values out of an array of views, which Polars uses for categories.
    plain = array.dictionary.cast(pa.string() if view == pa.string_view() else pa.binary())
    return plain.take(array.indices).cast(view)


def decoded_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without its encodings."""
    while (outer := outer_encoding(kind)) is not None:
        kind, _ = outer
    return kind


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's lists, which are all arrays in Delta."""
    return isinstance(
        kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType | pa.ListViewType | pa.LargeListViewType
    )


def nulls_of(kind: pa.DataType) -> Conversion:
    """Return a conversion of any array to nulls of a type."""
    return lambda array: pa.nulls(len(array), kind)


def null_mask(array: pa.Array) -> pa.Array | None:
    """Return where an array is null; None if nowhere, which is cheaper to determine."""
    return pc.is_null(array) if array.null_count else None


def with_child(array: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    """Return a list or map with other values and the same offsets and nulls, without taking the lists apart."""
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], null_count=array.null_count, offset=array.offset, children=[child]
    )


_MAX_PRECISION = 38

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
# By id, because PyArrow hashes a type by the string that describes it, which takes long for many columns.
_PRIMITIVE_IDS = {kind.id: name for kind, name in _PRIMITIVES.items()}


def to_schema_string(schema: pa.Schema) -> str:
    """Return the ``schemaString`` of a table that holds rows of this schema."""
    return msgspec.json.encode(_struct(schema, "")).decode()


def to_field(field: pa.Field, parent: str = "") -> dict[str, Any]:
    """Return one field in the JSON form of a schema; ``parent`` names its struct in errors."""
    name = field.name
    place = f"{parent}.{name}" if parent else name
    # deltalake hands generated columns over in the metadata of Arrow fields.
    given = field.metadata
    generation = given.get(Key.GENERATION.encode()) if given else None
    metadata = {} if generation is None else {Key.GENERATION: generation.decode()}
    return {"name": name, "type": to_type(field.type, place), "nullable": field.nullable, "metadata": metadata}


def has_timestamp_ntz(schema: pa.Schema) -> bool:
    """Return whether a column at any depth holds timestamps without a time zone, which require a table feature."""
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
            message = (
                f"The column name {each['name']!r}{where} occurs twice; column names are case-insensitive in Delta"
            )
            raise SchemaMismatchError(message, hint="rename one of the columns")
        seen.add(folded)
    return {"type": "struct", "fields": written}


def to_type(kind: pa.DataType, place: str) -> str | dict[str, Any]:
    """Return a type in the JSON form of a schema; ``place`` names the column in errors."""
    known = _PRIMITIVE_IDS.get(kind.id) or _PRIMITIVE_IDS.get((kind := decoded_type(kind)).id)
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


# The type changes that Delta's type widening allows.
#
# A column can be widened without rewriting its files, so one table can hold files of several types. The same rule
# decides which recorded changes are accepted and which file types can be converted to the table's type.


_WIDER: dict[str, frozenset[str]] = {
    "byte": frozenset({"short", "integer", "long", "double"}),
    "short": frozenset({"integer", "long", "double"}),
    "integer": frozenset({"long", "double"}),
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp_ntz"}),
}
# Digits of the largest value of each integer type. The protocol requires writers to leave more room (ten digits even
# for a byte, twenty for a long), but some do not, and a decimal that holds every value loses none.
_INTEGER_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}


def is_widening(narrow: DataType, wide: DataType) -> bool:
    """Return whether every value of ``narrow`` can be read as ``wide`` (a type is not a widening of itself)."""
    if isinstance(narrow, Primitive) and isinstance(wide, Primitive):
        # A void column holds only nulls, which every type has.
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
    """Raise if the schema records an unsupported type change, as the protocol requires of readers."""
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
    # Changes of an element, key or value are recorded at the nearest field above, so only fields are checked.
    if isinstance(data_type, Struct):
        for each in data_type.fields:
            _check_field(each, f"{name}.{each.name}")
    elif isinstance(data_type, Array):
        _check_nested(data_type.element, name)
    elif isinstance(data_type, Map):
        _check_nested(data_type.key, name)
        _check_nested(data_type.value, name)


def _type_named(name: str) -> DataType:
    # The schema parser knows the name of every type, so parse a schema with one column.
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
