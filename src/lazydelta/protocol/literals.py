"""Place a literal among the values that a column's type can hold.

A literal need not be one of those values: 1.5 lies between two integers, 2**70 above all longs, a timestamp between two
dates. Rounding it would make ``x < 1.5`` lose the 1. A literal is therefore placed between its neighbours, and
comparisons are rewritten to them.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from decimal import Decimal as PyDecimal
from decimal import InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import PredicateError
from lazydelta.protocol.schema import Column, DataType, Decimal, Primitive
from lazydelta.protocol.time import parse_timestamp
from lazydelta.runtime.arrays import Stored

__all__ = ["Day", "Instant", "Placed", "is_float", "parse_instant", "place", "scaled", "short_repr"]

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
            placed = _float(plain, single=kind.name == "float")
        elif kind.name in {"date", "timestamp", "timestamp_ntz"}:
            placed = _temporal(plain, unit=_DAY if kind.name == "date" else 1_000)
        else:
            placed = _other(plain, kind.name)
    if placed is None:
        message = f"The value {short_repr(value)} cannot be compared with column {column.name!r} of type {kind}"
        raise PredicateError(message, hint=_hint(kind))
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


def _float(value: object, *, single: bool) -> Placed | None:
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
