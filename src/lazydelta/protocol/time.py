"""Delta's calendar: parse and format dates and timestamps.

It is the proleptic Gregorian calendar, as in Spark and Arrow, and extends beyond Python's range. Years above 9999 have
a sign, as in ``+10000-01-01``; years before the year 1 are zero and negative.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import NamedTuple

import msgspec
import numpy as np

__all__ = [
    "TRUNCATING_UNITS",
    "Timespan",
    "floor_to_unit",
    "has_plain_year",
    "next_unit",
    "parse_timespan",
    "parse_timestamp",
    "timespan_of",
    "timestamp_text",
    "unit_name",
    "year_start",
]


_TIMESTAMP = (
    r"(?a)([+-]?[0-9]{4,7})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,9}))?)?)?"
    r"\s*(Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
_DAYS_BEFORE_MONTH = (0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_DAYS_IN_MONTH = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_EPOCH_DAY = 719_162  # days from 0001-01-01 to 1970-01-01
_PER_DAY = {"D": 1, "ms": 86_400_000, "us": 86_400_000_000}
_FIRST_PLAIN, _END_OF_PLAIN = -719_162, 2_932_897  # 0001-01-01 and 10000-01-01
_SECOND = 10**9


class Timestamp(NamedTuple):
    """A parsed date or timestamp: a day since 1970, with the time of day and the zone offset if present."""

    days: int
    nanoseconds: int | None  # since midnight; None for a date
    offset: int | None  # of the zone, in nanoseconds; None without a zone

    @property
    def wall_clock(self) -> int:
        """Return nanoseconds since 1970 in the local time of its zone."""
        return self.days * 86_400 * _SECOND + (self.nanoseconds or 0)

    @property
    def instant(self) -> int:
        """Return nanoseconds since 1970 in UTC, which is also assumed without a zone."""
        return self.wall_clock - (self.offset or 0)


def parse_timestamp(text: str) -> Timestamp | None:
    """Parse an ISO date or timestamp; None if it is neither."""
    match = re.fullmatch(_TIMESTAMP, text)
    if match is None:
        return None
    days = _days(int(match[1]), int(match[2]), int(match[3]))
    if days is None or match[4] is None:
        return None if days is None else Timestamp(days, None, None)
    hour, minute, second = int(match[4]), int(match[5] or 0), int(match[6] or 0)
    if hour > 23 or minute > 59 or second > 59:  # noqa: PLR2004 - the clock
        return None
    time = ((hour * 60 + minute) * 60 + second) * _SECOND + int((match[7] or "").ljust(9, "0"))
    return Timestamp(days, time, _offset(match[8]))


def timestamp_text(value: int, unit: str) -> str:
    """Format a count of ``unit`` (D, ms or us) since 1970, with all digits of the unit and ``T`` before the time."""
    days, rest = divmod(value, _PER_DAY[unit])
    # NumPy formats only the day. Its calendar extends beyond Python's, but one of its timestamps is reserved for NaT.
    text = str(np.int64(days).astype("datetime64[D]"))
    if days >= _END_OF_PLAIN:
        text = f"+{text}"
    if unit == "D":
        return text
    seconds, fraction = divmod(rest, _PER_DAY[unit] // 86_400)
    minutes, second = divmod(seconds, 60)
    return f"{text}T{minutes // 60:02}:{minutes % 60:02}:{second:02}.{fraction:0{3 if unit == 'ms' else 6}}"


def has_plain_year(value: int, unit: str) -> bool:
    """Return whether a timestamp lies in the years 1 to 9999, which every reader accepts."""
    return _FIRST_PLAIN * _PER_DAY[unit] <= value < _END_OF_PLAIN * _PER_DAY[unit]


def _days(year: int, month: int, day: int) -> int | None:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= _DAYS_IN_MONTH[month] + (leap and month == 2):  # noqa: PLR2004
        return None
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 - _EPOCH_DAY
    return days + _DAYS_BEFORE_MONTH[month] + (leap and month > 2) + day - 1  # noqa: PLR2004 - after February


def _offset(zone: str | None) -> int | None:
    if zone is None:
        return None
    if zone[0] not in "+-":
        return 0
    figures = zone[1:].replace(":", "").ljust(4, "0")
    return (int(figures[:2]) * 60 + int(figures[2:])) * 60 * _SECOND * (-1 if zone[0] == "-" else 1)


# Time spans and calendar units: ``1h``, ``30 days``, the hour or month that contains a timestamp.
#
# All values are UTC and in whole nanoseconds since 1970, so they are not limited to the range of Python's dates. A
# month has no fixed length and is counted separately.


_DAY = 86_400 * _SECOND
_LENGTHS = {
    "nanosecond": 1,
    "microsecond": 1_000,
    "millisecond": 10**6,
    "second": _SECOND,
    "minute": 60 * _SECOND,
    "hour": 3_600 * _SECOND,
    "day": _DAY,
    "week": 7 * _DAY,
}
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_SHORT = {
    "us": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "hr": "hour",
    "d": "day",
    "w": "week",
    "mon": "month",
    "y": "year",
}
_AMOUNT = r"(?a)([+-]?\s*[0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*"
_MOST_MONTHS = 120_000_000
_MOST_NANOSECONDS = 3_652_425_000 * _DAY
_MONDAY = 3  # 1970 began on a Thursday, three days after a Monday

TRUNCATING_UNITS = frozenset({*_LENGTHS, *_MONTHS} - {"nanosecond"})
"""The units that a timestamp column can be truncated to."""


class Timespan(msgspec.Struct, frozen=True):
    """A length of time: a number of months and a number of nanoseconds."""

    months: int = 0
    nanoseconds: int = 0

    def __add__(self, other: Timespan) -> Timespan:
        """Return the sum of both spans."""
        return Timespan(self.months + other.months, self.nanoseconds + other.nanoseconds)

    def __neg__(self) -> Timespan:
        """Return the span in the opposite direction."""
        return Timespan(-self.months, -self.nanoseconds)

    def after(self, instant: int) -> int:
        """Return the timestamp one span after ``instant``; the day is clamped to the end of a shorter month."""
        if self.months:
            days, time = divmod(instant, _DAY)
            month = _month(days) + self.months
            day = min(days - _first_day(_month(days)), _first_day(month + 1) - _first_day(month) - 1)
            instant = (_first_day(month) + day) * _DAY + time
        return instant + self.nanoseconds

    def __str__(self) -> str:
        parts = [f"{self.months} months"] if self.months else []
        seconds = Decimal(self.nanoseconds) / _SECOND
        if self.nanoseconds or not parts:
            parts.append(f"{seconds.normalize():f} seconds")
        return "INTERVAL '" + " ".join(parts) + "'"


def unit_name(text: str) -> str | None:
    """Return the unit that a word or an abbreviation stands for; None if it is unknown."""
    word = text.strip().lower()
    word = _SHORT.get(word, word)
    if word not in _LENGTHS and word not in _MONTHS:
        word = word.removesuffix("s")
    return word if word in _LENGTHS or word in _MONTHS else None


def timespan_of(amount: int | Decimal, unit: str) -> Timespan | None:
    """Return ``amount`` units; None if the unit is unknown, the amount is too fine, or it exceeds ten million years."""
    name = unit_name(unit)
    if name is None:
        return None
    exact = Decimal(amount) * (_MONTHS[name] if name in _MONTHS else _LENGTHS[name])
    if exact != exact.to_integral_value() or abs(exact) > (_MOST_MONTHS if name in _MONTHS else _MOST_NANOSECONDS):
        return None
    return Timespan(months=int(exact)) if name in _MONTHS else Timespan(nanoseconds=int(exact))


def parse_timespan(text: str | dt.timedelta) -> Timespan | None:
    """Parse ``1h``, ``1h30m``, ``90 minutes`` or ``1 day 2 hours``, or convert a ``timedelta``; None if invalid."""
    if isinstance(text, dt.timedelta):
        return Timespan(nanoseconds=((text.days * 86_400 + text.seconds) * 10**6 + text.microseconds) * 1_000)
    rest, total = text.strip().lower(), Timespan()
    if not rest:
        return None
    while rest:
        match = re.match(_AMOUNT, rest)
        found = None if match is None else timespan_of(Decimal(match[1].replace(" ", "")), match[2])
        if match is None or found is None:
            return None
        total, rest = total + found, rest[match.end() :]
    return total


def floor_to_unit(instant: int, unit: str) -> int:
    """Return the start of the hour, week, month, … that contains ``instant``."""
    if unit in _MONTHS:
        size = _MONTHS[unit]
        return _first_day(_month(instant // _DAY) // size * size) * _DAY
    length = _LENGTHS[unit]
    start = -_MONDAY * _DAY if unit == "week" else 0
    return (instant - start) // length * length + start


def next_unit(instant: int, unit: str) -> int:
    """Return the start of the unit after the one that contains ``instant``."""
    begun = floor_to_unit(instant, unit)
    return Timespan(months=_MONTHS[unit]).after(begun) if unit in _MONTHS else begun + _LENGTHS[unit]


def year_start(year: int) -> int:
    """Return the start of a year, in nanoseconds since 1970."""
    return _first_day((year - 1970) * 12) * _DAY


def _month(days: int) -> int:
    return int(np.int64(days).astype("datetime64[D]").astype("datetime64[M]").astype(np.int64))


def _first_day(month: int) -> int:
    return int(np.int64(month).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64))
