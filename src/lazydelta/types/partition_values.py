"""Partition values: the log writes them as text, the table has them typed.

Values are built from buffers. The obvious ``pa.scalar`` would import pandas on its first use, a second lost in the
middle of a scan.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation

import pyarrow as pa

from lazydelta.errors import CorruptLogError
from lazydelta.types import schema as delta

__all__ = ["partition_value"]

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_DATE = re.compile(r"([+-]?[0-9]{4,7})-([0-9]{1,2})-([0-9]{1,2})", re.ASCII)
_TIME = re.compile(
    r"[ T]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,9}))?)?\s?(Z|UTC|[+-][0-9]{2}:?[0-9]{2})?", re.ASCII
)
# What Java and Python print for the floats that have no digits.
_NAMED_FLOATS = {
    "nan": "nan",
    "infinity": "inf",
    "+infinity": "inf",
    "inf": "inf",
    "-infinity": "-inf",
    "-inf": "-inf",
}
_EXACT = Context(prec=200)
_DAYS_BEFORE_MONTH = (0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_DAYS_IN_MONTH = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_EPOCH_DAY = 719162  # days from 0001-01-01 to 1970-01-01
_DAY_US = 86_400_000_000


def partition_value(text: str | None, data_type: delta.DataType, *, column: str, path: str) -> pa.Scalar:
    """Return the typed value of ``text``, which the log has for partition column ``column`` of file ``path``.

    Absent and empty text are null for every type, as the protocol says. Timestamps without a zone are taken as UTC.
    """
    arrow = data_type.to_arrow()
    if not text:
        return pa.nulls(1, arrow)[0]
    encode = _encoder(data_type)
    try:
        if encode is None:
            raise ValueError  # noqa: TRY301 - one place turns every failure into our error
        buffers = encode(text)
    except (ValueError, OverflowError, InvalidOperation, struct.error) as error:
        message = f"The partition value {text[:200]!r} of column {column!r} of file {path} is not a {data_type}"
        raise CorruptLogError(
            message, path=path, hint="the log names a value that its schema does not allow"
        ) from error
    return pa.Array.from_buffers(arrow, 1, [None, *map(pa.py_buffer, buffers)])[0]


_Encoder = Callable[[str], tuple[bytes, ...]]


def _encoder(data_type: delta.DataType) -> _Encoder | None:
    """Return what turns text into the buffers of an array of one value; None where a type cannot partition."""
    if isinstance(data_type, delta.Decimal):
        precision, scale = data_type.precision, data_type.scale
        return lambda text: (_decimal(text, precision, scale),)
    if isinstance(data_type, delta.Primitive):
        return _PRIMITIVES.get(data_type.name)
    return None


def _integer(layout: str) -> _Encoder:
    def encode(text: str) -> tuple[bytes, ...]:
        if not _INTEGER.fullmatch(text):
            raise ValueError
        return (struct.pack(layout, int(text)),)

    return encode


def _float(layout: str) -> _Encoder:
    def encode(text: str) -> tuple[bytes, ...]:
        named = _NAMED_FLOATS.get(text.lower())
        if named is None and not _FLOAT.fullmatch(text):
            raise ValueError
        return (struct.pack(layout, float(named or text)),)

    return encode


def _boolean(text: str) -> tuple[bytes, ...]:
    value = {"true": b"\x01", "false": b"\x00"}.get(text.lower())
    if value is None:
        raise ValueError
    return (value,)


def _bytes(text: str) -> tuple[bytes, ...]:
    # Binary values went through a UTF-8 string on their way into the log, so they come back the same way.
    raw = text.encode()
    return struct.pack("<ii", 0, len(raw)), raw


def _decimal(text: str, precision: int, scale: int) -> bytes:
    if not _DECIMAL.fullmatch(text):
        raise ValueError
    shifted = _EXACT.scaleb(Decimal(text), scale)
    if shifted.adjusted() >= precision and shifted:
        raise OverflowError
    unscaled = int(shifted)
    if unscaled != shifted:
        raise ValueError  # more digits after the point than the type has
    return unscaled.to_bytes(16, "little", signed=True)


def _date(text: str) -> tuple[bytes, ...]:
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError
    return (struct.pack("<i", _days(match)),)


def _timestamp(text: str) -> tuple[bytes, ...]:
    micros, offset = _instant(text)
    return (struct.pack("<q", micros - offset),)


def _timestamp_ntz(text: str) -> tuple[bytes, ...]:
    micros, offset = _instant(text)
    if offset:
        raise ValueError  # a wall clock has no zone; only a redundant Z is tolerated
    return (struct.pack("<q", micros),)


def _instant(text: str) -> tuple[int, int]:
    """Return the wall clock in microseconds and its zone's offset."""
    date = _DATE.match(text)
    if date is None:
        raise ValueError
    micros = _days(date) * _DAY_US
    if date.end() == len(text):
        return micros, 0  # a date column that was widened keeps its old values in the log
    time = _TIME.fullmatch(text, date.end())
    if time is None:
        raise ValueError
    hour, minute, second = int(time[1]), int(time[2]), int(time[3] or 0)
    if hour > 23 or minute > 59 or second > 59:  # noqa: PLR2004 - the clock
        raise ValueError
    fraction = int((time[4] or "").ljust(6, "0")[:6])
    return micros + ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction, _offset(time[5])


def _offset(zone: str | None) -> int:
    if zone in (None, "Z", "UTC"):
        return 0
    digits = str(zone)[1:].replace(":", "")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    return (-minutes if str(zone)[0] == "-" else minutes) * 60_000_000


def _days(match: re.Match[str]) -> int:
    # datetime.date ends at year 9999; Spark's dates do not.
    year, month, day = int(match[1]), int(match[2]), int(match[3])
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= _DAYS_IN_MONTH[month] + (leap and month == 2):  # noqa: PLR2004
        raise ValueError
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 - _EPOCH_DAY
    return days + _DAYS_BEFORE_MONTH[month] + (leap and month > 2) + day - 1  # noqa: PLR2004 - after February


_PRIMITIVES: dict[str, _Encoder] = {
    "string": _bytes,
    "binary": _bytes,
    "long": _integer("<q"),
    "integer": _integer("<i"),
    "short": _integer("<h"),
    "byte": _integer("<b"),
    "float": _float("<f"),
    "double": _float("<d"),
    "boolean": _boolean,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}
