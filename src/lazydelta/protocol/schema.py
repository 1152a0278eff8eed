"""The table schema: logical names for users, physical names for files and statistics.

With column mapping, data files, partition values and statistics use physical names. Only the schema maps them to
logical names, so all code that touches stored data looks them up here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from lazydelta.errors import CorruptLogError, UnknownColumnError, UnsupportedFeatureError
from lazydelta.protocol.properties import Key

__all__ = [
    "Array",
    "Column",
    "DataType",
    "Decimal",
    "Field",
    "Map",
    "NameIndex",
    "Primitive",
    "Struct",
    "TableSchema",
    "Variant",
    "parse_type",
    "split_name",
]

TYPE_CHANGES = Key.TYPE_CHANGES
_DECIMAL = r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)"
_CHARACTERS = r"(?:var)?char\(\d+\)"
_MAX_DEPTH = 100

_ARROW: dict[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}


class NameIndex:
    """Looks up names in a list; built once, because a linear search for each name is quadratic."""

    __slots__ = ("_exact", "_folded", "_size")

    def __init__(self, names: Iterable[str]) -> None:
        self._exact: dict[str, list[int]] = {}
        self._folded: dict[str, list[int]] = {}
        self._size = 0
        for name in names:
            self.append(name)

    def append(self, name: str) -> None:
        """Append a name."""
        self._exact.setdefault(name, []).append(self._size)
        self._folded.setdefault(name.lower(), []).append(self._size)
        self._size += 1

    def positions(self, name: str) -> Sequence[int]:
        """Return the positions of a name, or else of the names that differ only in case."""
        return self._exact.get(name) or self._folded.get(name.lower()) or ()


class Primitive(msgspec.Struct, frozen=True):
    """A primitive type by its Delta name."""

    name: str

    def to_arrow(self) -> pa.DataType:
        """Return the Arrow type that holds its values."""
        return _ARROW[self.name]

    def __str__(self) -> str:
        return self.name


_PRIMITIVES = {name: Primitive(name) for name in _ARROW}


class Decimal(msgspec.Struct, frozen=True):
    """An exact decimal."""

    precision: int
    scale: int

    def to_arrow(self) -> pa.DataType:
        """Return the Arrow type that holds its values."""
        return pa.decimal128(self.precision, self.scale)

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


class Array(msgspec.Struct, frozen=True):
    """A list of elements of one type."""

    element: DataType
    contains_null: bool

    def to_arrow(self) -> pa.DataType:
        """Return the Arrow type that holds its values."""
        return pa.list_(pa.field("element", self.element.to_arrow(), nullable=self.contains_null))

    def __str__(self) -> str:
        return f"array<{self.element}>"


class Map(msgspec.Struct, frozen=True):
    """A map from keys to values."""

    key: DataType
    value: DataType
    value_contains_null: bool

    def to_arrow(self) -> pa.DataType:
        """Return the Arrow type that holds its values."""
        return pa.map_(
            pa.field("key", self.key.to_arrow(), nullable=False),
            pa.field("value", self.value.to_arrow(), nullable=self.value_contains_null),
        )

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


class Struct(msgspec.Struct, frozen=True, dict=True):
    """Named fields."""

    fields: tuple[Field, ...]

    @cached_property
    def names(self) -> NameIndex:
        """The index of the field names."""
        return NameIndex(each.name for each in self.fields)

    def pick(self, name: str) -> Field | None:
        """Return the field of this name, or the only one that differs only in case."""
        found = self.names.positions(name)
        if not found or (len(found) > 1 and self.fields[found[0]].name != name):
            return None
        return self.fields[found[0]]

    def to_arrow(self) -> pa.DataType:
        """Return the Arrow type that holds its values, under logical names."""
        return pa.struct([each.to_arrow() for each in self.fields])

    def __str__(self) -> str:
        return "struct<" + ",".join(f"{each.name}:{each.type}" for each in self.fields) + ">"


class Variant(msgspec.Struct, frozen=True):
    """A value of any shape in a binary encoding, returned as the two binaries that files store."""

    def to_arrow(self) -> pa.DataType:
        """Return the Arrow type that holds its values; the protocol allows readers to return them as stored."""
        names = ("metadata", "value")
        return pa.struct([pa.field(name, pa.binary(), nullable=False) for name in names])

    def __str__(self) -> str:
        return "variant"


DataType: TypeAlias = Primitive | Decimal | Array | Map | Struct | Variant


class Field(msgspec.Struct, frozen=True):
    """One field of the schema or of a nested struct; other metadata does not affect equality."""

    name: str
    type: DataType
    nullable: bool
    physical_name: str
    field_id: int | None = None
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return self._compared == other._compared if isinstance(other, Field) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._compared)

    @property
    def _compared(self) -> tuple[object, ...]:
        return self.name, self.type, self.nullable, self.physical_name, self.field_id

    @property
    def was_float(self) -> bool:
        """Return whether this is a double that was widened from a float."""
        changes = self.metadata.get(TYPE_CHANGES)
        return isinstance(changes, list) and any(
            isinstance(each, dict) and each.get("fromType") == "float" and "fieldPath" not in each for each in changes
        )

    def to_arrow(self) -> pa.Field:
        """Return the Arrow field under the logical name."""
        return pa.field(self.name, self.type.to_arrow(), nullable=self.nullable)


class Column(msgspec.Struct, frozen=True):
    """A field found by its path from the root, with its logical and physical path.

    ``was_float`` marks a double whose older files hold single floats, and whose older statistics have their digits.
    """

    path: tuple[str, ...]
    physical_path: tuple[str, ...]
    type: DataType
    is_partition: bool = False
    was_float: bool = False

    @property
    def name(self) -> str:
        """Return the dotted logical name."""
        return ".".join(self.path)


class TableSchema(msgspec.Struct, frozen=True, dict=True):
    """The schema of a table at one version."""

    fields: tuple[Field, ...]
    partition_columns: tuple[str, ...]
    column_mapping: str = "none"

    @cached_property
    def _root(self) -> Struct:
        return Struct(self.fields)

    @cached_property
    def _arrow(self) -> pa.Schema:
        return pa.schema([each.to_arrow() for each in self.fields])

    @classmethod
    def parse(
        cls,
        schema_string: str,
        *,
        partition_columns: tuple[str, ...] = (),
        column_mapping: str = "none",
        origin: str = "the table's metadata",
    ) -> TableSchema:
        """Parse a ``schemaString``; ``origin`` names it in errors."""
        return _parsed(schema_string, tuple(partition_columns), column_mapping, origin)

    def to_arrow(self) -> pa.Schema:
        """Return the Arrow schema of the table's rows, under logical names."""
        return self._arrow

    def field(self, name: str) -> Field:
        """Return the top-level field ``name``; Delta names are case-insensitive, an exact match wins."""
        found = self._root.pick(name)
        if found is None:
            raise self._unknown(name)
        return found

    def column(self, path: str | tuple[str, ...]) -> Column:
        """Find a column by its (dotted) logical name or by the parts of its path."""
        if isinstance(path, str):
            # A top-level name may itself contain dots; such a column is matched literally first.
            parts = (path,) if self._root.pick(path) is not None else split_name(path)
        else:
            parts = path
        among: DataType = self._root
        logical: list[str] = []
        physical: list[str] = []
        found: Field | None = None
        for part in parts:
            found = among.pick(part) if isinstance(among, Struct) else None
            if found is None:
                raise self._unknown(".".join(parts))
            logical.append(found.name)
            physical.append(found.physical_name)
            among = found.type
        if found is None:
            raise self._unknown(".".join(parts))
        is_partition = len(logical) == 1 and logical[0] in self.partition_columns
        return Column(tuple(logical), tuple(physical), found.type, is_partition, found.was_float)

    def leaves(self) -> Iterator[Column]:
        """Yield every column that is not a struct, depth first: those that may have statistics."""
        yield from _leaves(self.fields, (), (), frozenset(self.partition_columns))

    @property
    def physical_partition_columns(self) -> tuple[str, ...]:
        """Return the names under which the log stores partition values, in the order of the partition columns."""
        by_name = {each.name: each.physical_name for each in self.fields}
        return tuple(by_name[name] for name in self.partition_columns)

    def _unknown(self, name: str) -> UnknownColumnError:
        known = ", ".join(each.name for each in self.fields[:20])
        more = "" if len(self.fields) <= 20 else f" and {len(self.fields) - 20} more"  # noqa: PLR2004 - a display cut
        return UnknownColumnError(f"The table has no column {name!r}", column=name, hint=f"it has: {known}{more}")


# One write parses the schema of its table nine times, once in each step.
@lru_cache(maxsize=8)
def _parsed(schema_string: str, partition_columns: tuple[str, ...], column_mapping: str, origin: str) -> TableSchema:
    try:
        raw = msgspec.json.decode(schema_string)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        message = f"The schema in {origin} is not JSON: {error}"
        raise CorruptLogError(message, path=origin) from error
    parser = _Parser(mapped=column_mapping != "none", origin=origin)
    root = parser.data_type(raw, depth=0)
    if not isinstance(root, Struct):
        message = f"The schema in {origin} is not a struct but {root}"
        raise CorruptLogError(message, path=origin)
    names = {each.name for each in root.fields}
    for name in partition_columns:
        if name not in names:
            message = f"The partition column {name!r} in {origin} is not in the schema"
            raise CorruptLogError(message, path=origin)
    return TableSchema(root.fields, partition_columns, column_mapping)


def parse_type(raw: object, *, origin: str) -> DataType:
    """Parse a type from the JSON of a schema; ``origin`` names it in errors."""
    return _Parser(mapped=False, origin=origin).data_type(raw, depth=0)


def split_name(dotted: str) -> tuple[str, ...]:
    """Split a dotted name into its parts; backquotes protect dots, as in Spark: a.`b.c`.d."""
    parts = re.findall(r"`((?:[^`]|``)*)`|([^.`]+)", dotted)
    return tuple(quoted.replace("``", "`") or plain for quoted, plain in parts)


def _leaves(
    fields: tuple[Field, ...], path: tuple[str, ...], physical: tuple[str, ...], partitions: frozenset[str]
) -> Iterator[Column]:
    for each in fields:
        here, stored = (*path, each.name), (*physical, each.physical_name)
        if isinstance(each.type, Struct):
            yield from _leaves(each.type.fields, here, stored, frozenset())
        else:
            yield Column(here, stored, each.type, each.name in partitions, each.was_float)


class _Parser(msgspec.Struct, frozen=True):
    mapped: bool
    origin: str

    def data_type(self, raw: object, *, depth: int) -> DataType:
        if depth > _MAX_DEPTH:
            raise self._corrupt(f"is nested more than {_MAX_DEPTH} levels deep")
        if isinstance(raw, str):
            return self._primitive(raw)
        if not isinstance(raw, dict):
            raise self._corrupt(f"has {type(raw).__name__} instead of a type")
        kind = raw.get("type")
        if kind == "struct":
            fields = raw.get("fields")
            if not isinstance(fields, list):
                raise self._corrupt("has a struct without fields")
            return Struct(tuple(self._field(each, depth=depth + 1) for each in fields))
        if kind == "array":
            element = self.data_type(raw.get("elementType"), depth=depth + 1)
            return Array(element, raw.get("containsNull") is not False)
        if kind == "map":
            key = self.data_type(raw.get("keyType"), depth=depth + 1)
            value = self.data_type(raw.get("valueType"), depth=depth + 1)
            return Map(key, value, raw.get("valueContainsNull") is not False)
        if kind == "udt":
            return self.data_type(raw.get("sqlType"), depth=depth + 1)
        raise self._corrupt(f"has an unknown type {kind!r}")

    def _field(self, raw: object, *, depth: int) -> Field:
        if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
            raise self._corrupt("has a field without a name")
        name: str = raw["name"]
        metadata = raw.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise self._corrupt(f"has metadata of field {name!r} that is not an object")
        physical, field_id = name, None
        if self.mapped:
            physical = metadata.get(Key.PHYSICAL_NAME, name)
            field_id = metadata.get(Key.COLUMN_ID)
            if not isinstance(physical, str) or not (field_id is None or isinstance(field_id, int)):
                raise self._corrupt(f"has a bad column mapping for field {name!r}")
        return Field(
            name,
            self.data_type(raw.get("type"), depth=depth),
            nullable=raw.get("nullable") is not False,
            physical_name=physical,
            field_id=field_id,
            metadata=metadata,
        )

    def _primitive(self, name: str) -> DataType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        if name == "null":
            return Primitive("void")
        if name == "decimal":
            return Decimal(10, 0)
        if name == "variant":
            return Variant()
        if re.fullmatch(_CHARACTERS, name):
            return Primitive("string")
        if match := re.fullmatch(_DECIMAL, name):
            precision, scale = int(match[1]), int(match[2])
            if not (1 <= precision <= 38 and 0 <= scale <= precision):  # noqa: PLR2004 - Delta's largest precision
                raise self._corrupt(f"has an impossible {name}")
            return Decimal(precision, scale)
        message = f"The schema in {self.origin} has the type {name!r}, which lazydelta does not read"
        raise UnsupportedFeatureError(message, features=(name,), path=self.origin)

    def _corrupt(self, what: str) -> CorruptLogError:
        return CorruptLogError(f"The schema in {self.origin} {what}", path=self.origin)
