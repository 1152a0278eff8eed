"""Values from the text forms of Delta: partition values, and dates and timestamps in statistics.

There is one reading of a text, ``stored_value``. ``from_text`` gives the same for arrays: the common forms go through
one Arrow cast; if a single value is odd, distinct values are looked at one by one. What cannot be read becomes null
there: unknown, never an error and never a guess. Rows cannot be unknown: ``partition_value`` raises instead.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from decimal import Decimal as PyDecimal

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import Stored, typed_array
from lazydelta.types.calendar import parse_moment
from lazydelta.types.literals import scaled
from lazydelta.types.schema import DataType, Decimal, Primitive

__all__ = ["cast_decimals", "from_text", "stored_value"]

_INTEGER = r"[+-]?[0-9]{1,40}"
_FLOAT = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?"
_DECIMAL = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
# What Java and Python print for the floats that have no digits.
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
_LOST = "\ufffd"  # stands for bytes that are not text


def stored_value(text: str, kind: DataType, *, approximate: bool = False) -> Stored | None:
    """Read a text as a value of ``kind``, in the form that Arrow stores; None if it is no such value.

    ``approximate`` takes what is left of a value that no longer is all there: moments finer than a microsecond, rounded
    down, and binary values with replacement characters for bytes that are not text. Rows take those as every reader
    does; a bound must not move, so without it they are no values.
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
            return _moment(text, kind.name, approximate=approximate)
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
    # Two neighbours where there are more digits after the point than the type has.
    return low if low == high and abs(low) < 10**kind.precision else None


def _moment(text: str, name: str, *, approximate: bool) -> int | None:
    moment = parse_moment(text)
    if moment is None:
        return None
    if name == "date":
        return moment.days if moment.nanoseconds is None and _fits(moment.days, pa.int32()) else None
    if name == "timestamp_ntz" and moment.offset:
        return None  # a wall clock has no zone; only a redundant Z is tolerated
    # A date is a moment too: a date column that was widened keeps its old values in the log.
    microseconds, rest = divmod(moment.instant, 1000)
    return microseconds if _fits(microseconds, pa.int64()) and (approximate or not rest) else None


def from_text(strings: pa.Array, kind: DataType) -> pa.Array:
    """Read each string as a value of ``kind``; null where it is null or is no such value."""
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
    """Cast texts to decimals; ArrowException where one of them cannot be, or cannot be trusted to Arrow.

    It does not notice digits beyond its 128 bits, whether they are written out or an exponent leads there: what comes
    out is any number at all.
    """
    longest = pc.max(pc.binary_length(strings)).as_py() or 0
    if longest > _DECIMAL_DIGITS or any(pc.any(pc.match_substring(strings, each)).as_py() for each in "eE"):
        raise pa.ArrowInvalid(_ANOTHER_FORM)
    return pc.cast(strings, target)


def _checked(target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    # Arrow reads "0x1F" as an integer, "1" as true and "1e999" as infinity, which Delta does not.
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
