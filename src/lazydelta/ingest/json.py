"""JSON lines: one object per line, with each field parsed as the type of its column."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from pyarrow import json

from lazydelta.errors import SchemaMismatchError
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import one_array
from lazydelta.write.evolution import Conformer

__all__ = ["DATE", "TIMESTAMP", "JsonLines", "Rows", "read_type"]


# Conversion from JSON and CSV values to the types of a table.
#
# Arrow's fast readers handle numbers, booleans and strings. Timestamps, dates and binary values are read as strings and
# converted here by column; a map is read as a list of entries. A failed conversion raises `ArrowInvalid`, and the
# caller finds the rows that caused it.


# Patterns of valid strings. Whether a year has a 29 February is checked by the conversion.
_DAY = r"\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|[12]\d))"
_TIME = r"(?:[01]\d|2[0-3])(?::[0-5]\d(?::[0-5]\d(?:\.\d+)?)?)?"
DATE = rf"^{_DAY}$"
TIMESTAMP = rf"^{_DAY}(?:[T ]{_TIME}(?:Z|[+-]\d{{2}}(?::?\d{{2}})?)?)?$"
_ZONE = r"[T ]\d{2}.*(Z|[+-]\d{2}(:?\d{2})?)$"
_FINER = r"(\.\d{6})\d+"


def read_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow's readers read a column."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_binary(kind):
        return pa.string()
    if types.is_struct(kind):
        return pa.struct([pa.field(each.name, read_type(each.type)) for each in kind])
    if types.is_map(kind):
        return pa.list_(pa.struct([("key", read_type(kind.key_type)), ("value", read_type(kind.item_type))]))
    if types.is_list(kind):
        return pa.list_(read_type(kind.value_type))
    return kind


def has_map(kind: pa.DataType) -> bool:
    """Return whether the type contains a map, at any depth."""
    if pa.types.is_map(kind):
        return True
    return any(has_map(kind.field(index).type) for index in range(kind.num_fields))


class Rows:
    """Converts a block read by an Arrow reader to rows of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        # Nested fields may be non-nullable too, which can only be checked on the values.
        self._check = Conformer(schema, schema)

    def __call__(self, read: pa.Table) -> pa.RecordBatch:
        """Return the rows. Columns that were not read are null."""
        count = read.num_rows
        columns = []
        for field in self._schema:
            index = read.schema.get_field_index(field.name)
            whole = pa.nulls(count, field.type) if index < 0 else converted(one_array(read.column(index)), field.type)
            columns.append(whole)
        try:
            return self._check(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        except SchemaMismatchError as error:
            raise pa.ArrowInvalid(str(error.args[0])) from error

    def none(self) -> pa.RecordBatch:
        """Return an empty batch."""
        return self(self._schema.empty_table())


def converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert values from the type that ``read_type`` returns to the target type."""
    types = pa.types
    if values.type.equals(kind):
        return values
    if types.is_timestamp(kind):
        return _instants(values) if kind.tz is not None else _truncated(values).cast(kind)
    if types.is_date(kind):
        return values.cast(kind)
    if types.is_binary(kind):
        return pa.array([None if each is None else _bytes(each) for each in values.to_pylist()], kind)
    if types.is_struct(kind):
        return _struct(values, kind)
    if types.is_map(kind):
        keys, items = values.values.field(0), values.values.field(1)
        if keys.null_count:
            raise pa.ArrowInvalid("a key of a map is null")
        found = converted(keys, kind.key_type), converted(items, kind.item_type)
        return pa.MapArray.from_arrays(values.offsets, *found, type=kind, mask=_nulls(values))
    if types.is_list(kind):
        items = converted(values.values, kind.value_type)
        return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=_nulls(values))
    return values.cast(kind)


def _struct(values: pa.Array, kind: pa.DataType) -> pa.Array:
    fields: Sequence[Any] = list(kind)
    parts = [converted(values.field(index), field.type) for index, field in enumerate(fields)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=_nulls(values))


def _nulls(values: pa.Array) -> pa.Array | None:
    return pc.is_null(values) if values.null_count else None


def _instants(texts: pa.Array) -> pa.Array:
    """Parse strings as UTC timestamps. Strings without a time zone are read as UTC."""
    kind = pa.timestamp("us", "UTC")
    try:  # the most common format
        return texts.cast(kind)
    except pa.ArrowInvalid:
        texts = _truncated(texts)
    zoned = pc.match_substring_regex(texts, _ZONE)
    none = pa.scalar(None, pa.string())
    clocks = pc.if_else(zoned, none, texts).cast(pa.timestamp("us")).view(kind)
    return pc.coalesce(pc.if_else(zoned, texts, none).cast(kind), clocks)


def _truncated(texts: pa.Array) -> pa.Array:
    # Delta stores microseconds. .NET writes seven digits and Go nine; Spark truncates them too.
    return pc.replace_substring_regex(texts, _FINER, r"\1")


def _bytes(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode(), strict_mode=True)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{text[:40]!r} is not base64: {error}") from error


_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_WHITE = b" \t\r\n"
_PLACE = re.compile(r" - at `\$\.(.*)`$", re.DOTALL)


class _Object(msgspec.Struct):
    """Any object. Its contents are not checked."""


class JsonLines:
    """Reads lines that hold one object each. A line with a field that is not in the schema is invalid."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows = Rows(schema)
        self._has_map = any(has_map(field.type) for field in schema)
        self._options = json.ParseOptions(
            explicit_schema=pa.schema([(field.name, read_type(field.type)) for field in schema]),
            unexpected_field_behavior="error",
        )
        self._objects = msgspec.json.Decoder(_Object)
        self._checked = msgspec.json.Decoder(_structure("Row", list(schema)))
        self._exact = msgspec.json.Decoder(float_hook=Decimal)
        self._encoder = msgspec.json.Encoder(decimal_format="number")

    def parse(self, lines: bytes) -> pa.RecordBatch:
        """Parse lines to rows."""
        if not lines.isascii():
            lines.decode()  # Arrow accepts invalid UTF-8 as strings
        # Arrow crashes on a line that is `null`, and accepts several objects in a line. Pass it only objects.
        try:
            count = len(self._objects.decode_lines(lines))
        except RecursionError as error:
            raise pa.ArrowInvalid("it is nested too deeply") from error
        if not count:
            return self._rows.none()
        if self._has_map:
            lines = b"\n".join(self._without_maps(line) for _, line in self.records(lines))
        options = json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        return self._rows(json.read_json(pa.BufferReader(lines), options, self._options))

    def fault(self, line: bytes) -> str | None:
        """Return what is wrong with the structure of a line, or None."""
        try:
            line.decode()
            self._checked.decode(line)
        except UnicodeDecodeError as error:
            return f"the line is not UTF-8: {error}"
        except RecursionError:
            return "it is nested too deeply"
        except msgspec.ValidationError as error:
            return self._in_words(str(error))
        except msgspec.DecodeError as error:
            return str(error)
        return None

    def records(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not blank, each with its number from 0."""
        return ((number, line) for number, line in enumerate(data.split(b"\n")) if line.strip(_WHITE))

    def _in_words(self, message: str) -> str:
        place = _PLACE.search(message)
        if place is None:
            return message
        column = next((each for each in self._schema if re.match(re.escape(each.name) + r"(?![^.\[])", place[1])), None)
        if column is None or not pa.types.is_timestamp(column.type):
            return message
        return f"column {column.name!r} is a timestamp and takes ISO 8601 text (2026-02-10T14:00:00Z): {message}"

    def _without_maps(self, line: bytes) -> bytes:
        row = self._exact.decode(line)
        return self._encoder.encode(
            {
                key: _entries(value, self._schema.field(key).type) if key in self._schema.names else value
                for key, value in row.items()
            }
        )


def _entries(value: Any, kind: pa.DataType) -> Any:
    """Return a value with its maps as lists of entries, which Arrow's reader accepts."""
    if pa.types.is_map(kind) and isinstance(value, dict):
        return [{"key": key, "value": _entries(item, kind.item_type)} for key, item in value.items()]
    if pa.types.is_struct(kind) and isinstance(value, dict):
        known = {each.name: each.type for each in kind}
        return {key: _entries(item, known[key]) if key in known else item for key, item in value.items()}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_entries(item, kind.value_type) for item in value]
    return value


def _structure(name: str, fields: list[pa.Field]) -> type[msgspec.Struct]:
    """Return a struct type that validates a line. It is never stricter than Arrow, which decides."""
    members = [
        (
            f"field_{index}",
            _python_type(field.type, f"{name}_{index}") | None,
            msgspec.field(default=None, name=field.name),
        )
        for index, field in enumerate(fields)
    ]
    return msgspec.defstruct(name, members, forbid_unknown_fields=True)


def _python_type(kind: pa.DataType, name: str) -> Any:
    types = pa.types
    if kind in _INTEGERS:
        limit = 1 << (_INTEGERS[kind] - 1)
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    if types.is_floating(kind):
        return float
    if types.is_boolean(kind):
        return bool
    if types.is_decimal(kind):
        return int | float | str
    if types.is_timestamp(kind):
        return Annotated[str, msgspec.Meta(pattern=TIMESTAMP)]
    if types.is_date(kind):
        return Annotated[str, msgspec.Meta(pattern=DATE)]
    if types.is_struct(kind):
        return _structure(name, list(kind))
    if types.is_map(kind):
        return dict[str, _python_type(kind.item_type, f"{name}_v") | None]  # type: ignore[misc] # built at run time
    if types.is_list(kind):
        return list[_python_type(kind.value_type, f"{name}_e") | None]  # type: ignore[misc]
    return str
