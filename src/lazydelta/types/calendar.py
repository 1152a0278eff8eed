"""Delta's calendar: dates and moments as text, in both directions.

It is the proleptic Gregorian one, as Spark and Arrow have it, and it goes on where Python's ends: years above 9999 have
a sign, as in ``+10000-01-01``, years before the year 1 are zero and below.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

__all__ = ["Moment", "has_plain_year", "moment_text", "parse_moment"]

_MOMENT = (
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


class Moment(NamedTuple):
    """What a text says: a day since 1970, and the time of day and the offset of its zone where it has them."""

    days: int
    nanoseconds: int | None  # since midnight; None for a date
    offset: int | None  # of the zone, in nanoseconds; None where no zone is named

    @property
    def wall_clock(self) -> int:
        """Return nanoseconds since 1970 as the clock of its zone shows them."""
        return self.days * 86_400 * _SECOND + (self.nanoseconds or 0)

    @property
    def instant(self) -> int:
        """Return nanoseconds since 1970 in UTC, which it is in if it names no zone."""
        return self.wall_clock - (self.offset or 0)


def parse_moment(text: str) -> Moment | None:
    """Read an ISO date or timestamp; None if it is neither."""
    match = re.fullmatch(_MOMENT, text)
    if match is None:
        return None
    days = _days(int(match[1]), int(match[2]), int(match[3]))
    if days is None or match[4] is None:
        return None if days is None else Moment(days, None, None)
    hour, minute, second = int(match[4]), int(match[5] or 0), int(match[6] or 0)
    if hour > 23 or minute > 59 or second > 59:  # noqa: PLR2004 - the clock
        return None
    time = ((hour * 60 + minute) * 60 + second) * _SECOND + int((match[7] or "").ljust(9, "0"))
    return Moment(days, time, _offset(match[8]))


def moment_text(value: int, unit: str) -> str:
    """Write a count of ``unit`` (D, ms or us) since 1970, with all digits of the unit and ``T`` before the time."""
    days, rest = divmod(value, _PER_DAY[unit])
    # Days through NumPy, whose calendar does not end with Python's; its moments have a hole, the one it calls NaT.
    text = str(np.int64(days).astype("datetime64[D]"))
    if days >= _END_OF_PLAIN:
        text = f"+{text}"
    if unit == "D":
        return text
    seconds, fraction = divmod(rest, _PER_DAY[unit] // 86_400)
    minutes, second = divmod(seconds, 60)
    return f"{text}T{minutes // 60:02}:{minutes % 60:02}:{second:02}.{fraction:0{3 if unit == 'ms' else 6}}"


def has_plain_year(value: int, unit: str) -> bool:
    """Tell whether a moment lies in the years 1 to 9999, which every reader takes."""
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
