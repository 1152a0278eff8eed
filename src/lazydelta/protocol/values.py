"""Parse and format the string forms of Delta values: partition values, and dates and timestamps in statistics.

``stored_value`` defines how a string is parsed. ``from_text`` gives the same result for arrays: common forms go through
one Arrow cast, and if a single value is unusual, the distinct values are parsed one by one. Unparsable values become
null there: unknown, never an error and never a guess. Rows cannot be unknown, so ``partition_value`` raises.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal as PyDecimal
from decimal import InvalidOperation
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa

from lazydelta.errors import CorruptLogError, OptionError, PredicateError, WriteError
from lazydelta.protocol.schema import Column, DataType, Decimal, Primitive
from lazydelta.protocol.time import parse_timestamp, timestamp_text
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import Stored, typed_array, typed_scalar

__all__ = [
    "Day",
    "Instant",
    "Placed",
    "can_partition",
    "cast_decimals",
    "encode_partition_value",
    "folder_name",
    "folder_prefix",
    "folder_values",
    "from_text",
    "is_float",
    "logged_path",
    "parse_instant",
    "partition_texts",
    "partition_value",
    "place",
    "plain_text",
    "scaled",
    "short_repr",
    "stored_value",
]


# Place a literal among the values that a column's type can hold.


_INTEGERS = {"long": 63, "integer": 31, "short": 15, "byte": 7}
_NUMBER = r"(?a)[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?"
_SPECIAL_FLOAT = r"(?ai)[+-]?(?:nan|inf|infinity)"
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_SECOND, _DAY = 10**9, 86_400 * 10**9
_ANY_DIGITS = 200
_FLOAT32_MAX = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
_FLOAT64_MAX = math.ldexp(2 - 2**-52, 1023)
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class Instant(msgspec.Struct, frozen=True):
    """A timestamp in nanoseconds since the epoch, UTC. This is finer than any column, so nothing is rounded early."""

    nanoseconds: int


class Day(Instant, frozen=True):
    """The midnight at which a day begins, for a literal that is a date."""


class Placed(msgspec.Struct, frozen=True):
    """The largest storable value ≤ the literal and the smallest ≥ it; None if there is none.

    Both are None for NaN, which is neither below nor above any value.
    """

    low: Stored | None
    high: Stored | None

    @property
    def exact(self) -> bool:
        """Return whether the literal is itself a value of the type."""
        return self.low is not None and self.low == self.high


def is_float(kind: DataType) -> bool:
    """Return whether values of this type can be NaN."""
    return isinstance(kind, Primitive) and kind.name in {"float", "double"}


def place(value: object, column: Column) -> Placed:
    """Place a non-null literal within the type of ``column``; raise PredicateError if they cannot be compared."""
    plain = _plain(value)
    kind = column.type
    placed: Placed | None = None
    if isinstance(kind, Decimal):
        number = _number(plain)
        if number is not None:
            limit = 10**kind.precision - 1
            placed = _clamp(*scaled(number, kind.scale), -limit, limit)
    elif isinstance(kind, Primitive):
        if kind.name in _INTEGERS:
            number = _number(plain, exact_float=True)
            if number is not None:
                limit = 2 ** _INTEGERS[kind.name]
                placed = _clamp(*scaled(number, 0), -limit, limit - 1)
            elif isinstance(plain, float) and math.isinf(plain):
                limit = 2 ** _INTEGERS[kind.name]
                placed = Placed(limit - 1, None) if plain > 0 else Placed(None, -limit)
            elif isinstance(plain, float):
                placed = Placed(None, None)
        elif kind.name in {"float", "double"}:
            placed = _placed_float(plain, single=kind.name == "float")
        elif kind.name in _TIMES:
            placed = _temporal(plain, unit=_DAY if kind.name == "date" else 1_000)
        else:
            placed = _other(plain, kind.name)
    if placed is None:
        message = f"The value {short_repr(value)} cannot be compared with column {column.name!r} of type {kind}"
        unquoted = isinstance(kind, Primitive) and kind.name in _TIMES and isinstance(plain, int)
        raise PredicateError(message, hint=f"{_hint(kind)}{', in single quotes' if unquoted else ''}")
    return placed


def scaled(number: int | PyDecimal, scale: int) -> tuple[int, int]:
    """Return the floor and the ceiling of ``number`` times 10**scale, without building numbers of a billion digits."""
    if isinstance(number, int):
        return number * 10**scale, number * 10**scale
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 - callers pass finite numbers
    if not number:
        return 0, 0
    shift = exponent + scale
    magnitude = len(digits) + shift
    if magnitude > _ANY_DIGITS:  # Beyond every supported type: any number of that size will do.
        far = 10**_ANY_DIGITS
        return (-far, -far) if sign else (far, far)
    if magnitude < 0:  # Between 0 and 1.
        return (-1, 0) if sign else (0, 1)
    unscaled = int("".join(map(str, digits)))
    if shift >= 0:
        whole, rest = unscaled * 10**shift, 0
    else:
        whole, rest = divmod(unscaled, 10**-shift)
    low, high = whole, whole + (1 if rest else 0)
    return (-high, -low) if sign else (low, high)


def parse_instant(text: str) -> int | None:
    """Parse an ISO date or timestamp to nanoseconds since the epoch (UTC without a zone); None if it is neither."""
    timestamp = parse_timestamp(text.strip())
    return None if timestamp is None else timestamp.instant


def short_repr(value: object) -> str:
    """Return a repr that fits into an error message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."  # noqa: PLR2004 - a display cut


def _plain(value: object) -> object:
    """Convert Arrow, NumPy and pandas values to Python's own, without importing those libraries."""
    if isinstance(value, pa.Scalar):
        return _from_arrow(value)
    name = type(value).__name__
    if name == "datetime64":  # Its string form has all its digits, whatever its unit.
        return str(value)
    if isinstance(value, dt.datetime):
        return _from_datetime(value)
    module = type(value).__module__
    if module == "numpy" and callable(getattr(value, "item", None)):
        item: Any = value
        return _plain(item.item())
    return value


def _from_arrow(value: pa.Scalar) -> object:
    kind = value.type
    if pa.types.is_timestamp(kind):
        # as_py() of nanoseconds would import pandas, or fail without it.
        return Instant(value.value * _NANOSECONDS[kind.unit])
    if pa.types.is_dictionary(kind):
        return _from_arrow(value.as_py()) if isinstance(value.as_py(), pa.Scalar) else value.as_py()
    if pa.types.is_date64(kind):
        return Instant(value.value * 10**6)
    return value.as_py()


def _from_datetime(value: dt.datetime) -> Instant:
    if value.tzinfo is None:
        value = value.replace(tzinfo=dt.UTC)
    since = value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    # pandas' Timestamp is a datetime with its own nanoseconds, which the subtraction may or may not keep.
    extra = getattr(value, "nanosecond", 0)
    return Instant((since.days * 86_400 + since.seconds) * _SECOND + since.microseconds * 1_000 + int(extra))


def _number(value: object, *, exact_float: bool = False) -> int | PyDecimal | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, PyDecimal):
        return value if value.is_finite() else None
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        # Compared with a decimal column, a float means the number it prints as: 1.1, not its binary neighbour.
        return PyDecimal(value) if exact_float else PyDecimal(repr(value))
    if isinstance(value, str) and re.fullmatch(_NUMBER, value.strip()):
        try:
            return PyDecimal(value.strip())
        except InvalidOperation:
            return None
    return None


def _clamp(floor: int, ceiling: int, least: int, most: int) -> Placed:
    low = None if floor < least else min(floor, most)
    high = None if ceiling > most else max(ceiling, least)
    return Placed(low, high)


def _placed_float(value: object, *, single: bool) -> Placed | None:
    if isinstance(value, str) and re.fullmatch(_SPECIAL_FLOAT, value.strip()):
        value = float(value)
    if isinstance(value, PyDecimal) and not value.is_finite():
        value = float("nan") if value.is_nan() else float(value)
    if isinstance(value, float):
        nearest = value
    else:
        number = _number(value)
        if number is None:
            return None
        # As in SQL engines, a literal is converted to a double first, so that 0.1 matches the double stored for 0.1.
        try:
            nearest = float(number)
        except OverflowError:
            nearest = math.inf if number > 0 else -math.inf
        if math.isinf(nearest):
            most = _FLOAT32_MAX if single else _FLOAT64_MAX
            return Placed(most, math.inf) if nearest > 0 else Placed(-math.inf, -most)
    if math.isnan(nearest):
        return Placed(None, None)
    if not single or math.isinf(nearest):
        return Placed(nearest, nearest)
    try:
        stored: float = struct.unpack("<f", struct.pack("<f", nearest))[0]
    except OverflowError:
        return Placed(_FLOAT32_MAX, math.inf) if nearest > 0 else Placed(-math.inf, -_FLOAT32_MAX)
    if stored < nearest:
        return Placed(stored, _next_single(stored))
    if stored > nearest:
        return Placed(-_next_single(-stored), stored)
    return Placed(stored, stored)


def _next_single(value: float) -> float:
    """Return the next float32 above a finite one: its bits count up for positive numbers and down for negative ones."""
    if value == 0.0:
        return float(struct.unpack("<f", struct.pack("<i", 1))[0])
    bits: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return float(struct.unpack("<f", struct.pack("<i", bits + 1 if value > 0 else bits - 1))[0])


def _temporal(value: object, *, unit: int) -> Placed | None:
    if isinstance(value, Instant):
        nanoseconds: int | None = value.nanoseconds
    elif isinstance(value, dt.date):
        nanoseconds = (value.toordinal() - _EPOCH_DAY) * _DAY
    elif isinstance(value, str):
        timestamp = parse_timestamp(value.strip())
        # A string compared with a date is a date, as in DuckDB and Spark: a time of day is ignored.
        nanoseconds = None if timestamp is None else timestamp.days * _DAY if unit == _DAY else timestamp.instant
    else:
        nanoseconds = None
    if nanoseconds is None:
        return None
    limit = 2**31 if unit == _DAY else 2**63
    return _clamp(nanoseconds // unit, -(-nanoseconds // unit), -limit, limit - 1)


def _other(value: object, kind: str) -> Placed | None:
    stored: Stored | None = None
    if kind == "string" and isinstance(value, str):
        stored = value
    elif kind == "binary" and isinstance(value, bytes | bytearray | memoryview):
        stored = bytes(value)
    elif kind == "binary" and isinstance(value, str):
        stored = value.encode("utf-8", "surrogatepass")
    elif kind == "boolean" and isinstance(value, bool):
        stored = value
    elif kind == "boolean" and isinstance(value, str) and value.strip().lower() in {"true", "false"}:
        stored = value.strip().lower() == "true"
    if isinstance(stored, str):
        try:
            stored.encode()
        except UnicodeEncodeError:
            return None
    return None if stored is None else Placed(stored, stored)


def _hint(kind: DataType) -> str:
    if isinstance(kind, Decimal):
        return "give a number"
    if not isinstance(kind, Primitive):
        return "compare one of its fields, or test it with IS NULL"
    hints = {
        "string": "write the value as text, in quotes",
        "date": "write it as 'YYYY-MM-DD'",
        "timestamp": "write it as 'YYYY-MM-DDTHH:MM:SS.ffffffZ'",
        "timestamp_ntz": "write it as 'YYYY-MM-DDTHH:MM:SS.ffffff'",
        "boolean": "use true or false",
        "binary": "give bytes",
        "void": "the column holds nothing but nulls",
    }
    return hints.get(kind.name, "give a number")


_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
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
        raise CorruptLogError(message, path=path, hint="the log has a value that its schema does not allow")
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
    raise OptionError(
        f"Could not encode partition value for type: {value!r}", hint="pass a string, number, date or timestamp"
    )


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
            raise WriteError(
                message, hint="the log stores partition values as strings; partition by another column"
            ) from (None)
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
