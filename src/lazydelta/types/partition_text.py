"""Partition values as the log and folder names write them.

The log has text for every type. A folder name is that text with Hive's escapes, as Spark makes it, and the path in the
log is the folder's name once more percent-encoded, because paths in the log are URIs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from urllib.parse import quote, unquote

import pyarrow as pa

from lazydelta.errors import OptionError, WriteError
from lazydelta.types.calendar import moment_text
from lazydelta.types.value_text import plain_text

__all__ = [
    "can_partition",
    "encode_partition_value",
    "folder_name",
    "folder_prefix",
    "folder_values",
    "logged_path",
    "partition_texts",
]

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
# What Spark escapes in folder names, and NUL, which no file system takes.
_ESCAPED = r'[\x00-\x1f\x7f"#%\'*/:=?\\{\[\]^]'
# File systems take no longer names. Cutting them is no way out: some readers take partition values from folder names.
_LONGEST = 255
_SAFE = "/=-_.~"


def can_partition(kind: pa.DataType) -> bool:
    """Tell whether values of this type can be written as partition values."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
        or types.is_binary(kind)
    )


def partition_texts(values: pa.Array, column: str) -> list[str | None]:
    """Return the text of each value; an empty text is null, because every reader takes it for null."""
    kind = values.type
    if pa.types.is_temporal(kind):
        texts = _moments(values)
    else:
        texts = [None if value is None else _text(value, column) for value in values.to_pylist()]
    return [text or None for text in texts]


def encode_partition_value(value: object) -> str:
    """Return a Python value as the log writes a partition value."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("unicode_escape", "backslashreplace")
    raise OptionError(f"Could not encode partition value for type: {value!r}", hint="give a text, number, date or time")


def folder_name(values: Mapping[str, str | None]) -> str:
    """Return the folder of a partition, decoded: ``_event_hour=2026021014/region=a%2Fb``; empty without columns."""
    return "/".join(_segment(name, text) for name, text in values.items())


def folder_prefix(column: str) -> str:
    """Return how the names of a partition column's folders begin."""
    return f"{_escape(column)}="


def logged_path(path: str) -> str:
    """Return a decoded path as the log writes it."""
    return quote(path, safe=_SAFE)


def _segment(name: str, text: str | None) -> str:
    segment = f"{_escape(name)}={_escape(text) if text else _NULL_FOLDER}"
    if len(segment.encode()) > _LONGEST:
        message = (
            f"The value {text[:40] if text else ''!r}… of partition column {name!r} is too long for a folder's name"
        )
        raise WriteError(message, hint=f"a name has {_LONGEST} bytes; partition by another column")
    return segment


def _escape(text: str) -> str:
    return re.sub(_ESCAPED, lambda match: f"%{ord(match[0]):02X}", text)


def _text(value: object, column: str) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            message = f"The binary value {value[:20]!r} of partition column {column!r} is not UTF-8"
            raise WriteError(message, hint="the log holds partition values as text; partition by another column") from (
                None
            )
    return plain_text(0.0 if value == 0 and isinstance(value, float) else value)  # -0.0 is the same partition


def _moments(values: pa.Array) -> list[str | None]:
    kind = values.type
    if pa.types.is_date(kind):
        days = values.cast(pa.date32()).view(pa.int32()).to_pylist()
        return [None if value is None else moment_text(value, "D") for value in days]
    # An instant is in UTC and says so: a reader whose session has another time zone cannot take it for local time. A
    # wall clock has the form that every reader knows.
    between, zone = (" ", "") if kind.tz is None else ("T", "Z")
    texts = [None if value is None else moment_text(value, "us") for value in values.view(pa.int64()).to_pylist()]
    return [text and text.removesuffix(".000000").replace("T", between) + zone for text in texts]


def folder_values(path: str) -> dict[str, str | None]:
    """Return the partition values that the folders of a logged path show, by the column's name there."""
    # The path is a URI, and the names in it have Hive's escapes: encoded twice.
    pairs = (unquote(folder).split("=", 1) for folder in path.split("/")[:-1] if "=" in unquote(folder))
    return {unquote(name): None if value == _NULL_FOLDER else unquote(value) for name, value in pairs}
