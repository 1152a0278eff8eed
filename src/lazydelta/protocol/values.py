"""Parse and format the string forms of Delta values: partition values, and dates and timestamps in statistics.

``stored_value`` defines how a string is parsed. ``from_text`` gives the same result for arrays: common forms go through
one Arrow cast, and if a single value is unusual, the distinct values are parsed one by one. Unparsable values become
null there: unknown, never an error and never a guess. Rows cannot be unknown, so ``partition_value`` raises.
"""

from __future__ import annotations

import decimal
import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal as PyDecimal
from urllib.parse import quote, unquote

import pyarrow as pa

from lazydelta.errors import CorruptLogError, OptionError, WriteError
from lazydelta.protocol.literals import scaled
from lazydelta.protocol.schema import DataType, Decimal, Primitive
from lazydelta.protocol.time import parse_timestamp, timestamp_text
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import Stored, typed_array, typed_scalar

__all__ = [
    "can_partition",
    "cast_decimals",
    "encode_partition_value",
    "folder_name",
    "folder_prefix",
    "folder_values",
    "from_text",
    "logged_path",
    "partition_texts",
    "partition_value",
    "plain_text",
    "stored_value",
]


_INTEGER = r"[+-]?[0-9]{1,40}"
_FLOAT = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?"
_DECIMAL = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
# The names that Java and Python print for non-finite floats.
_NAMED_FLOATS = {
    "nan": "nan",
    "infinity": "inf",
    "+infinity": "inf",
    "inf": "inf",
    "+inf": "inf",
    "-infinity": "-inf",
    "-inf": "-inf",
}
_DECIMAL_DIGITS = 38
_LOST = "\ufffd"  # replaces bytes that are not UTF-8


def stored_value(text: str, kind: DataType, *, approximate: bool = False) -> Stored | None:
    """Parse a string as a value of ``kind``, in Arrow's storage form; None if it is not such a value.

    ``approximate`` accepts values that lost information: timestamps finer than a microsecond, rounded down, and binary
    values with replacement characters for bytes that are not UTF-8. Rows accept these, as every reader does. A bound
    must not move, so without ``approximate`` they are rejected.
    """
    if isinstance(kind, Decimal):
        return _decimal(text, kind)
    if not isinstance(kind, Primitive):
        return None
    match kind.name:
        case "string" | "binary":
            return _text(text, approximate=approximate or kind.name == "string")
        case "boolean":
            return {"true": True, "false": False}.get(text.lower())
        case "float" | "double":
            return _float(text, single=kind.name == "float")
        case "date" | "timestamp" | "timestamp_ntz":
            return _timestamp(text, kind.name, approximate=approximate)
        case "long" | "integer" | "short" | "byte":
            number = int(text) if re.fullmatch(_INTEGER, text) else None
            return number if number is not None and _fits(number, kind.to_arrow()) else None
    return None


def _fits(number: int, arrow: pa.DataType) -> bool:
    limit: int = 2 ** (arrow.bit_width - 1)
    return -limit <= number < limit


def _text(text: str, *, approximate: bool) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text if approximate or _LOST not in text else None


def _float(text: str, *, single: bool) -> float | None:
    named = _NAMED_FLOATS.get(text.lower())
    if named is None and not re.fullmatch(_FLOAT, text):
        return None
    value = float(named or text)
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0] if single else value
    except OverflowError:
        return None


def _decimal(text: str, kind: Decimal) -> int | None:
    if not re.fullmatch(_DECIMAL, text):
        return None
    low, high = scaled(PyDecimal(text), kind.scale)
    # They differ if there are more digits after the point than the type has.
    return low if low == high and abs(low) < 10**kind.precision else None


def _timestamp(text: str, name: str, *, approximate: bool) -> int | None:
    timestamp = parse_timestamp(text)
    if timestamp is None:
        return None
    if name == "date":
        return timestamp.days if timestamp.nanoseconds is None and _fits(timestamp.days, pa.int32()) else None
    if name == "timestamp_ntz" and timestamp.offset:
        return None  # a wall clock has no zone; only a redundant Z is accepted
    # A date is a valid timestamp: a widened date column keeps its old values in the log.
    microseconds, rest = divmod(timestamp.instant, 1000)
    return microseconds if _fits(microseconds, pa.int64()) and (approximate or not rest) else None


def from_text(strings: pa.Array, kind: DataType) -> pa.Array:
    """Parse each string as a value of ``kind``; null where it is null or not such a value."""
    target = kind.to_arrow()
    if pa.types.is_string(target):
        return strings
    if pa.types.is_binary(target):
        return pc.cast(_null_where(strings, pc.match_substring(strings, _LOST)), target)
    for cast in _casts(target):
        try:
            return cast(strings)
        except pa.ArrowException:
            continue
    encoded = pc.dictionary_encode(strings)
    stored = [None if each is None else stored_value(each, kind) for each in encoded.dictionary.to_pylist()]
    return pc.take(typed_array(stored, target), encoded.indices)


def _casts(target: pa.DataType) -> list[Callable[[pa.Array], pa.Array]]:
    def plain(strings: pa.Array) -> pa.Array:
        return pc.cast(strings, target)

    def naive(strings: pa.Array) -> pa.Array:
        return pc.cast(strings, pa.timestamp("us")).view(target)

    def zoned(strings: pa.Array) -> pa.Array:
        if target.tz is None and pc.all(pc.ends_with(strings, "Z")).as_py() is False:
            raise pa.ArrowInvalid(_ANOTHER_FORM)
        return pc.cast(strings, pa.timestamp("us", "UTC")).view(target)

    if pa.types.is_timestamp(target):
        return [zoned, naive] if target.tz else [naive, zoned]
    if pa.types.is_decimal(target):
        return [lambda strings: cast_decimals(strings, target)]
    return [plain] if pa.types.is_date(target) else [_checked(target)]


_ANOTHER_FORM = "a value of another form"


def cast_decimals(strings: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast strings to decimals; raise ArrowException if one is invalid or Arrow would misread it.

    Arrow does not detect digits beyond its 128 bits, whether written out or implied by an exponent, and returns an
    arbitrary number.
    """
    longest = pc.max(pc.binary_length(strings)).as_py() or 0
    if longest > _DECIMAL_DIGITS or any(pc.any(pc.match_substring(strings, each)).as_py() for each in "eE"):
        raise pa.ArrowInvalid(_ANOTHER_FORM)
    return pc.cast(strings, target)


def _checked(target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    # Arrow reads "0x1F" as an integer, "1" as true and "1e999" as infinity; Delta does not.
    if pa.types.is_boolean(target):
        pattern = "^(?i:true|false)$"
    elif pa.types.is_integer(target):
        pattern = "^-?[0-9]{1,40}$"
    else:
        pattern = r"^-?[0-9]{1,30}(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?$"

    def cast(strings: pa.Array) -> pa.Array:
        if pc.all(pc.match_substring_regex(strings, pattern)).as_py() is False:
            raise pa.ArrowInvalid(_ANOTHER_FORM)
        values = pc.cast(strings, target)
        if pa.types.is_float32(target) and pc.any(pc.is_inf(values)).as_py():
            raise pa.ArrowInvalid(_ANOTHER_FORM)
        return values

    return cast


def _null_where(strings: pa.Array, condition: pa.Array) -> pa.Array:
    return pc.if_else(condition, pa.nulls(1, strings.type)[0], strings)


# Partition values: strings in the log, typed in the table.


def partition_value(text: str | None, data_type: DataType, *, column: str, path: str) -> pa.Scalar:
    """Return the typed value of ``text``, the logged value of partition column ``column`` of file ``path``.

    A missing or empty string is null for every type, as the protocol requires. Timestamps without a zone are UTC.
    """
    arrow = data_type.to_arrow()
    if not text:
        return pa.nulls(1, arrow)[0]
    value = stored_value(text, data_type, approximate=True)
    if value is None:
        message = f"The partition value {text[:200]!r} of column {column!r} of file {path} is not a {data_type}"
        raise CorruptLogError(message, path=path, hint="the log names a value that its schema does not allow")
    return typed_scalar(value, arrow)


# Exact string forms of values, which the parsers above read back.
#
# They are used for partition values in the log and for the keys and ranges of a sidecar's manifest.


def plain_text(value: object) -> str:
    """Format a value that is not a date or timestamp: ``protocol.time`` formats those from Arrow's storage form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float_string(value)
    # Decimal.__str__ can use exponents, which not every reader accepts as an exact number.
    return f"{value:f}" if isinstance(value, decimal.Decimal) else str(value)


def _float_string(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


# Partition values as written in the log and in folder names.
#
# The log holds a string for every type. A folder name is that string with Hive's escapes, as in Spark. The path in the
# log is the folder name percent-encoded once more, because paths in the log are URIs.


_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
# The characters that Spark escapes in folder names, and NUL, which no file system accepts.
_ESCAPED = r'[\x00-\x1f\x7f"#%\'*/:=?\\{\[\]^]'
# The limit of file systems. Names are not truncated, because some readers take partition values from folder names.
_LONGEST = 255
_SAFE = "/=-_.~"


def can_partition(kind: pa.DataType) -> bool:
    """Return whether values of this type can be written as partition values."""
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
    """Return the string of each value; an empty string becomes null, because every reader treats it as null."""
    kind = values.type
    if pa.types.is_temporal(kind):
        texts = _timestamps(values)
    else:
        texts = [None if value is None else _partition_string(value, column) for value in values.to_pylist()]
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
    """Return the prefix of a partition column's folder names."""
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


def _partition_string(value: object, column: str) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            message = f"The binary value {value[:20]!r} of partition column {column!r} is not UTF-8"
            raise WriteError(message, hint="the log holds partition values as text; partition by another column") from (
                None
            )
    return plain_text(0.0 if value == 0 and isinstance(value, float) else value)  # -0.0 is the same partition


def _timestamps(values: pa.Array) -> list[str | None]:
    kind = values.type
    if pa.types.is_date(kind):
        days = values.cast(pa.date32()).view(pa.int32()).to_pylist()
        return [None if value is None else timestamp_text(value, "D") for value in days]
    # An instant is written in UTC with a zone, so that a reader in another session time zone does not read it as local
    # time. A wall clock has the form that every reader knows.
    between, zone = (" ", "") if kind.tz is None else ("T", "Z")
    texts = [None if value is None else timestamp_text(value, "us") for value in values.view(pa.int64()).to_pylist()]
    return [text and text.removesuffix(".000000").replace("T", between) + zone for text in texts]


def folder_values(path: str) -> dict[str, str | None]:
    """Return the partition values in the folder names of a logged path, by column name."""
    # The path is a URI whose names have Hive's escapes: it is encoded twice.
    pairs = (unquote(folder).split("=", 1) for folder in path.split("/")[:-1] if "=" in unquote(folder))
    return {unquote(name): None if value == _NULL_FOLDER else unquote(value) for name, value in pairs}
