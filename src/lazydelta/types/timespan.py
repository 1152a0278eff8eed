"""Spans of time and units of the calendar: ``1h``, ``30 days``, the hour or the month that a moment lies in.

All of it is UTC and in whole nanoseconds since 1970, in the calendar of `lazydelta.types.calendar`, so that nothing
ends where Python's dates do. A month has no length of its own and is counted apart.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

import msgspec
import numpy as np

__all__ = [
    "TRUNCATING_UNITS",
    "Timespan",
    "floor_to_unit",
    "next_unit",
    "parse_timespan",
    "timespan_of",
    "unit_name",
    "year_start",
]

_SECOND = 10**9
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
"""The units that a moment of a column can be cut to."""


class Timespan(msgspec.Struct, frozen=True):
    """A length of time: so many months, and so many nanoseconds."""

    months: int = 0
    nanoseconds: int = 0

    def __add__(self, other: Timespan) -> Timespan:
        """Return both, one after the other."""
        return Timespan(self.months + other.months, self.nanoseconds + other.nanoseconds)

    def __neg__(self) -> Timespan:
        """Return as much in the other direction."""
        return Timespan(-self.months, -self.nanoseconds)

    def after(self, instant: int) -> int:
        """Return the moment that lies this span after ``instant``; the last day of a month ends a shorter one too."""
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
    """Return the unit that a word or an abbreviation stands for; None if it is none."""
    word = text.strip().lower()
    word = _SHORT.get(word, word)
    if word not in _LENGTHS and word not in _MONTHS:
        word = word.removesuffix("s")
    return word if word in _LENGTHS or word in _MONTHS else None


def timespan_of(amount: int | Decimal, unit: str) -> Timespan | None:
    """Return ``amount`` units; None if the unit is none, does not divide so finely, or it takes ten million years."""
    name = unit_name(unit)
    if name is None:
        return None
    exact = Decimal(amount) * (_MONTHS[name] if name in _MONTHS else _LENGTHS[name])
    if exact != exact.to_integral_value() or abs(exact) > (_MOST_MONTHS if name in _MONTHS else _MOST_NANOSECONDS):
        return None
    return Timespan(months=int(exact)) if name in _MONTHS else Timespan(nanoseconds=int(exact))


def parse_timespan(text: str | dt.timedelta) -> Timespan | None:
    """Read ``1h``, ``1h30m``, ``90 minutes`` or ``1 day 2 hours``, or take a ``timedelta``; None if it is none."""
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
    """Return when the hour, week, month, … that ``instant`` lies in began."""
    if unit in _MONTHS:
        size = _MONTHS[unit]
        return _first_day(_month(instant // _DAY) // size * size) * _DAY
    length = _LENGTHS[unit]
    start = -_MONDAY * _DAY if unit == "week" else 0
    return (instant - start) // length * length + start


def next_unit(instant: int, unit: str) -> int:
    """Return when the next one begins."""
    begun = floor_to_unit(instant, unit)
    return Timespan(months=_MONTHS[unit]).after(begun) if unit in _MONTHS else begun + _LENGTHS[unit]


def year_start(year: int) -> int:
    """Return when a year begins, in nanoseconds since 1970."""
    return _first_day((year - 1970) * 12) * _DAY


def _month(days: int) -> int:
    return int(np.int64(days).astype("datetime64[D]").astype("datetime64[M]").astype(np.int64))


def _first_day(month: int) -> int:
    return int(np.int64(month).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64))
