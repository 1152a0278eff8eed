"""JSON lines with the columns of a schema: one object a line, each field of the type that its column has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from pyarrow import json

from lazydelta.sources.convert import DATE, MOMENT, Rows, has_map, read_type

__all__ = ["JsonLines"]

_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_WHITE = b" \t\r\n"
_PLACE = re.compile(r" - at `\$\.(.*)`$", re.DOTALL)


class _Object(msgspec.Struct):
    """Any object; what is in it is not looked at."""


class JsonLines:
    """Reads lines that hold one object each; a field that the schema lacks is a fault of its line."""

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
        """Return the rows of lines."""
        if not lines.isascii():
            lines.decode()  # Arrow takes any bytes for text
        # Arrow dies of a line that is `null`, and takes several objects in a line; it gets nothing but objects.
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
        """Return what is wrong with a line, as far as its fields and their kinds are concerned."""
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
        """Yield the lines in which there is more than the white space of JSON, each with its number from 0."""
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
    """Return a value with its maps as lists of entries, which Arrow's reader takes."""
    if pa.types.is_map(kind) and isinstance(value, dict):
        return [{"key": key, "value": _entries(item, kind.item_type)} for key, item in value.items()]
    if pa.types.is_struct(kind) and isinstance(value, dict):
        known = {each.name: each.type for each in kind}
        return {key: _entries(item, known[key]) if key in known else item for key, item in value.items()}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_entries(item, kind.value_type) for item in value]
    return value


def _structure(name: str, fields: list[pa.Field]) -> type[msgspec.Struct]:
    """Return what a line must look like; it is never stricter than Arrow, which has the last word."""
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
        return Annotated[str, msgspec.Meta(pattern=MOMENT)]
    if types.is_date(kind):
        return Annotated[str, msgspec.Meta(pattern=DATE)]
    if types.is_struct(kind):
        return _structure(name, list(kind))
    if types.is_map(kind):
        return dict[str, _python_type(kind.item_type, f"{name}_v") | None]  # type: ignore[misc] # built while it runs
    if types.is_list(kind):
        return list[_python_type(kind.value_type, f"{name}_e") | None]  # type: ignore[misc]
    return str
