"""The public schema classes: fields and types under deltalake's names, with conversions from and to JSON and Arrow.

`TableSchema` is the internal form: it knows physical names and finds columns. These classes are for users who read the
schema of a table or define one. They have the attributes and methods of deltalake's classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from lazydelta.errors import (
    CorruptLogError,
    LazyDeltaError,
    OptionError,
    SchemaMismatchError,
    UnknownColumnError,
    UnsupportedFeatureError,
)
from lazydelta.protocol import schema as parsed
from lazydelta.protocol.arrow_types import decoded_type, is_list, to_type
from lazydelta.protocol.properties import Key

__all__ = [
    "ArrayType",
    "DataType",
    "Field",
    "MapType",
    "PrimitiveType",
    "Schema",
    "StructType",
    "VariantType",
    "schema_object",
    "schema_of",
    "type_name",
]

T = TypeVar("T")

_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


class _Type:
    """Base of all types; two types are equal if their JSON is."""

    __slots__ = ()

    def raw(self) -> Any:
        """Return the decoded JSON form of the type."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Return the JSON form of the type."""
        return msgspec.json.encode(self.raw()).decode()

    @classmethod
    def from_json(cls, json: str) -> Self:
        """Parse a type from the output of `to_json`."""
        return _expected(cls, _read_type(_decoded(json)))

    @classmethod
    def from_arrow(cls, type: object) -> Self:  # noqa: A002 - deltalake's name
        """Return the type that holds the values of an Arrow type, or of any object that exports one."""
        return _expected(cls, _from_arrow(_arrow_field(type).type))

    def to_arrow(self) -> pa.DataType:
        """Return the Arrow type that holds its values."""
        return parsed.parse_type(self.raw(), origin="this type").to_arrow()

    def __arrow_c_schema__(self) -> object:
        return self.to_arrow().__arrow_c_schema__()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.raw() == self.raw()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __str__(self) -> str:
        return repr(self)


class PrimitiveType(_Type):
    """A type without nested types, by its Delta name: ``PrimitiveType("long")``, ``PrimitiveType("decimal(10,2)")``."""

    __slots__ = ("type",)

    def __init__(self, type: str) -> None:  # noqa: A002 - deltalake's name
        if not isinstance(type, str):
            raise TypeError(f"the name of a type is a string, not {type!r}")
        if type == "decimal":
            raise OptionError("'decimal' alone is not a type", hint="write decimal(precision,scale)")
        self.type: str = str(_checked(type, parsed.Primitive, parsed.Decimal))

    def raw(self) -> str:
        """Return the type's name."""
        return self.type

    def __repr__(self) -> str:
        return f'PrimitiveType("{self.type}")'


class VariantType(_Type):
    """A value of any shape, in a binary encoding."""

    __slots__ = ()
    type: ClassVar[str] = "variant"

    def raw(self) -> str:
        """Return the type's name."""
        return self.type

    @classmethod
    def from_arrow(cls, type: object) -> Self:  # noqa: A002 - deltalake's name
        """Return the variant for an Arrow type that stores one: a struct of the binaries metadata and value."""
        kind = _arrow_field(type).type
        if not kind.equals(VariantType().to_arrow()):
            raise TypeError("Type is not a variant")
        return cls()

    def __repr__(self) -> str:
        return "VariantType()"


class ArrayType(_Type):
    """A list of elements of one type."""

    __slots__ = ("contains_null", "element_type")
    type: ClassVar[str] = "array"

    def __init__(self, element_type: DataType | str, contains_null: bool = True) -> None:  # noqa: FBT001, FBT002
        self.element_type = _type_of(element_type)
        self.contains_null = contains_null

    def raw(self) -> dict[str, Any]:
        """Return the decoded JSON form of the type."""
        return {"type": "array", "elementType": self.element_type.raw(), "containsNull": self.contains_null}

    def __repr__(self) -> str:
        return f"ArrayType({self.element_type!r}, contains_null={self.contains_null})"


class MapType(_Type):
    """A map from keys to values."""

    __slots__ = ("key_type", "value_contains_null", "value_type")
    type: ClassVar[str] = "map"

    def __init__(
        self,
        key_type: DataType | str,
        value_type: DataType | str,
        value_contains_null: bool = True,  # noqa: FBT001, FBT002 - deltalake's order
    ) -> None:
        self.key_type = _type_of(key_type)
        self.value_type = _type_of(value_type)
        self.value_contains_null = value_contains_null

    def raw(self) -> dict[str, Any]:
        """Return the decoded JSON form of the type."""
        return {
            "type": "map",
            "keyType": self.key_type.raw(),
            "valueType": self.value_type.raw(),
            "valueContainsNull": self.value_contains_null,
        }

    def __repr__(self) -> str:
        shown = f"{self.key_type!r}, {self.value_type!r}"
        return f"MapType({shown}, value_contains_null={self.value_contains_null})"


class Field:
    """One field of a schema or struct.

    ``metadata`` shows numbers and strings as they are and anything else as JSON, like deltalake. `to_json` writes the
    original values.
    """

    __slots__ = ("_metadata", "name", "nullable", "type")

    def __init__(
        self,
        name: str,
        type: DataType | str,  # noqa: A002 - deltalake's name
        nullable: bool = True,  # noqa: FBT001, FBT002 - deltalake's order
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.type = _type_of(type)
        self.nullable = nullable
        self._metadata = {key: _shown(value) for key, value in (metadata or {}).items()}

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the field."""
        return {key: _shown(value) for key, value in self._metadata.items()}

    def raw(self) -> dict[str, Any]:
        """Return the decoded JSON form of the field."""
        return {
            "name": self.name,
            "type": self.type.raw(),
            "nullable": self.nullable,
            "metadata": dict(self._metadata),
        }

    def to_json(self) -> str:
        """Return the JSON form of the field."""
        return msgspec.json.encode(self.raw()).decode()

    @staticmethod
    def from_json(json: str) -> Field:
        """Parse a field from the output of `to_json`."""
        return _read_field(_decoded(json))

    def to_arrow(self) -> pa.Field:
        """Return the Arrow field, with the metadata as strings."""
        noted = {key: value if isinstance(value, str) else str(value) for key, value in self.metadata.items()}
        return pa.field(self.name, self.type.to_arrow(), nullable=self.nullable, metadata=noted)

    @staticmethod
    def from_arrow(field: object) -> Field:
        """Return the field that holds the values of an Arrow field, or of any object that exports one."""
        given = _arrow_field(field)
        noted = {key.decode(): value.decode() for key, value in (given.metadata or {}).items()}
        return Field(given.name, _from_arrow(given.type), given.nullable, noted)

    def __arrow_c_schema__(self) -> object:
        return self.to_arrow().__arrow_c_schema__()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Field):
            return NotImplemented
        mine, theirs = self.raw() | {"metadata": self.metadata}, other.raw() | {"metadata": other.metadata}
        return mine == theirs

    def __hash__(self) -> int:
        return hash((self.name, self.type, self.nullable))

    def __repr__(self) -> str:
        noted = f", metadata={self.metadata}" if self._metadata else ""
        return f"Field({self.name}, {self.type!r}, nullable={self.nullable}{noted})"


class StructType(_Type):
    """Named fields."""

    __slots__ = ("fields",)
    type: ClassVar[str] = "struct"

    def __init__(self, fields: Sequence[Field]) -> None:
        for each in fields:
            if not isinstance(each, Field):
                raise TypeError(f"a struct has fields, and {each!r} is not one")
        self.fields = list(fields)

    def raw(self) -> dict[str, Any]:
        """Return the decoded JSON form of the type."""
        return {"type": "struct", "fields": [each.raw() for each in self.fields]}

    def to_arrow(self) -> pa.DataType:
        """Return the Arrow type that holds its values."""
        return pa.struct([each.to_arrow() for each in self.fields])

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.fields == self.fields

    __hash__ = _Type.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}([{', '.join(map(repr, self.fields))}])"


class Schema(StructType):
    """The schema of a table.

    It implements Arrow's schema protocol (``pyarrow.schema(schema)``, ``polars.Schema(schema)``) and is equal to a
    PyArrow schema with the same fields.
    """

    __slots__ = ()

    @property
    def names(self) -> list[str]:
        """The names of the columns, in order."""
        return [each.name for each in self.fields]

    def field(self, name: str) -> Field:
        """Return the column of this name."""
        for each in self.fields:
            if each.name == name:
                return each
        raise UnknownColumnError(f"The schema has no column {name!r}", hint=f"it has: {', '.join(self.names)}")

    def __getitem__(self, name: str) -> Field:
        return self.field(name)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    @property
    def invariants(self) -> list[tuple[str, str]]:
        """The columns with an invariant that rows must satisfy, each with its SQL string."""
        return list(_invariants(self.fields, ""))

    def to_arrow(self, as_large_types: bool = False) -> pa.Schema:  # noqa: FBT001, FBT002
        """Return the PyArrow schema; ``as_large_types`` gives strings, binaries and lists 64-bit offsets."""
        fields = [each.to_arrow() for each in self.fields]
        return pa.schema([_large_field(each) for each in fields] if as_large_types else fields)

    to_pyarrow = to_arrow

    @classmethod
    def from_json(cls, json: str) -> Self:
        """Parse a schema from the JSON in a table's log."""
        return cls(StructType.from_json(json).fields)

    @classmethod
    def from_arrow(cls, type: object) -> Self:  # noqa: A002 - deltalake's name
        """Return the table schema for rows of an Arrow schema, or of any object that exports one."""
        return cls([Field.from_arrow(each) for each in _arrow_schema(type)])

    def __len__(self) -> int:
        return len(self.fields)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, pa.Schema):
            return bool(self.to_arrow().equals(other))
        return super().__eq__(other)

    __hash__ = _Type.__hash__


DataType: TypeAlias = PrimitiveType | ArrayType | MapType | StructType | VariantType


def schema_object(fields: Sequence[parsed.Field]) -> Schema:
    """Return the public schema object of a table."""
    return Schema([_object_field(each) for each in fields])


def _object_field(field: parsed.Field) -> Field:
    made = Field(field.name, _object_type(field.type), field.nullable)
    made._metadata = dict(field.metadata)  # noqa: SLF001 - as logged, not as shown
    return made


def _object_type(kind: parsed.DataType) -> DataType:
    if isinstance(kind, parsed.Struct):
        return StructType([_object_field(each) for each in kind.fields])
    if isinstance(kind, parsed.Array):
        return ArrayType(_object_type(kind.element), kind.contains_null)
    if isinstance(kind, parsed.Map):
        return MapType(_object_type(kind.key), _object_type(kind.value), kind.value_contains_null)
    return VariantType() if isinstance(kind, parsed.Variant) else PrimitiveType(str(kind))


def _type_of(given: object) -> DataType:
    if isinstance(given, str):
        return VariantType() if given == VariantType.type else PrimitiveType(given)
    if isinstance(given, PrimitiveType | ArrayType | MapType | StructType | VariantType):
        return given
    raise OptionError(f"{given!r} is not a type", hint="pass a name such as 'long', or one of lazydelta.schema's types")


# Types as people write them, in SQL, Python and NumPy, beside Delta's own names.
_ALIASES = {
    **dict.fromkeys(("int", "int32", "int4"), "integer"),
    **dict.fromkeys(("bigint", "int64", "int8"), "long"),
    **dict.fromkeys(("smallint", "int16", "int2"), "short"),
    **dict.fromkeys(("tinyint",), "byte"),
    **dict.fromkeys(("varchar", "text", "str", "char"), "string"),
    **dict.fromkeys(("real", "float32", "float4"), "float"),
    **dict.fromkeys(("float64", "float8", "double precision"), "double"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("timestamptz", "datetime", "timestamp with time zone"), "timestamp"),
    **dict.fromkeys(("blob", "bytes", "varbinary"), "binary"),
}
_OF_PYTHON = {int: "long", float: "double"}


def type_name(given: str | type) -> str:
    """Return the Delta name of a type; ``varchar(20)`` is a string, Python's int a long."""
    if isinstance(given, type):
        return _OF_PYTHON.get(given) or type_name(given.__name__)
    word, paren, rest = " ".join(given.lower().split()).partition("(")
    word = word.strip()
    if word == "numeric":
        return f"decimal{paren}{rest}"
    known = _ALIASES.get(word, word)
    return known if not paren or known == "string" else f"{known}{paren}{rest}"


def schema_of(given: Any) -> Schema | pa.Schema:
    """Return the schema that an object stands for: of lazydelta or PyArrow, a dictionary, or a data frame."""
    if isinstance(given, Schema | pa.Schema):
        return given
    if isinstance(given, Mapping) and all(isinstance(each, str) or each in _TYPES for each in given.values()):
        return Schema([Field(name, type_name(kind)) for name, kind in given.items()])
    try:
        if isinstance(given, Mapping):
            given = [(name, _arrow_type(kind)) for name, kind in given.items()]
        if hasattr(given, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(given).schema
        return pa.schema(given)
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        hint = "pass a Schema, a pyarrow schema, or {'column': 'long'}"
        raise OptionError(f"The schema cannot be read: {error}", hint=hint) from error


_TYPES = (int, float, str, bool, bytes, datetime, date)


def _arrow_type(given: Any) -> Any:
    if type(given).__module__.startswith("polars."):  # a data type, or its class
        import polars as pl  # noqa: PLC0415 - the caller has imported it

        return pl.Series([], dtype=given).to_arrow().type
    return type_name(given) if isinstance(given, str) else given


def _checked(raw: object, *kinds: type) -> parsed.DataType:
    try:
        found = parsed.parse_type(raw, origin="this type")
    except (CorruptLogError, UnsupportedFeatureError) as error:
        raise OptionError(f"invalid type string: {raw}", hint="it is not a Delta type") from error
    if kinds and not isinstance(found, kinds):
        raise OptionError(f"invalid type string: {raw}", hint="it is not a primitive type")
    return found


def _decoded(json: str) -> Any:
    try:
        return msgspec.json.decode(json)
    except (msgspec.DecodeError, RecursionError, UnicodeError, TypeError) as error:
        raise OptionError(f"This is not the JSON of a schema: {error}") from error


def _read_type(raw: object) -> DataType:
    return _object_type(_checked(raw))


def _read_field(raw: object) -> Field:
    struct = _read_type({"type": "struct", "fields": [raw]})
    return _expected(StructType, struct).fields[0]


def _expected(kind: type[T], found: object) -> T:
    if not isinstance(found, kind):
        wanted = kind.__name__.removesuffix("Type").lower()
        raise TypeError(f"Type is not {'an' if wanted == 'array' else 'a'} {wanted}")
    return found


def _arrow_field(given: object) -> pa.Field:
    if isinstance(given, pa.Field):
        return given
    if isinstance(given, pa.DataType):
        return pa.field("", given)
    if not hasattr(given, "__arrow_c_schema__"):
        raise OptionError(f"{type(given).__name__} is not an Arrow type", hint="pass an object with __arrow_c_schema__")
    return pa.field(given)


def _arrow_schema(given: object) -> pa.Schema:
    if not isinstance(given, pa.Schema) and not hasattr(given, "__arrow_c_schema__"):
        raise OptionError(
            f"{type(given).__name__} is not an Arrow schema", hint="pass an object with __arrow_c_schema__"
        )
    return pa.schema(given)


def _from_arrow(kind: pa.DataType) -> DataType:
    kind = decoded_type(kind)
    if pa.types.is_null(kind):
        return PrimitiveType("void")
    if pa.types.is_struct(kind):
        return StructType([Field.from_arrow(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return MapType(_from_arrow(kind.key_type), _from_arrow(kind.item_type), kind.item_field.nullable)
    if is_list(kind):
        return ArrayType(_from_arrow(kind.value_type), kind.value_field.nullable)
    try:
        return PrimitiveType(str(to_type(kind, "")))
    except SchemaMismatchError as error:
        message = f"Invalid data type for Delta Lake: {kind}"
        raise SchemaMismatchError(message, hint="no Delta type holds its values without loss") from error


def _shown(value: object) -> object:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError) as error:
        raise OptionError(f"The metadata of a field cannot hold {value!r}", hint="it is written as JSON") from error


def _large_field(field: pa.Field) -> pa.Field:
    return field.with_type(_large(field.type))


def _large(kind: pa.DataType) -> pa.DataType:
    if kind in _LARGE:
        return _LARGE[kind]
    if pa.types.is_list(kind):
        return pa.large_list(_large_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_large_field(kind.key_field), _large_field(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([_large_field(kind.field(index)) for index in range(kind.num_fields)])
    return kind


def _invariants(fields: Sequence[Field], parent: str) -> Iterator[tuple[str, str]]:
    for each in fields:
        place = f"{parent}{each.name}"
        noted = each.metadata.get(Key.INVARIANTS)
        if isinstance(noted, str):
            try:
                yield place, str(_decoded(noted)["expression"]["expression"])
            except (LazyDeltaError, KeyError, TypeError):
                yield place, noted
        if isinstance(each.type, StructType):
            yield from _invariants(each.type.fields, f"{place}.")
