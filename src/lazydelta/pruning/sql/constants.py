"""Constants of SQL text, worked out once when a scan is planned: casts, sums, moments.

Values are Python's own, with `Instant` for timestamps, `Day` for dates and `Timespan` for intervals. Each function
raises `NoTranslationError` where engines differ or we would have to guess.
"""

from __future__ import annotations

import re
from decimal import Decimal as PyDecimal
from decimal import InvalidOperation
from typing import Any

from lazydelta.errors import PredicateError
from lazydelta.types.calendar import moment_text
from lazydelta.types.literals import Day, Instant, parse_instant, short_repr
from lazydelta.types.timespan import Timespan

__all__ = [
    "INTEGER_KINDS",
    "NoTranslationError",
    "add",
    "as_day",
    "as_instant",
    "cast",
    "format_moment",
    "holds",
    "negative",
]

INTEGER_KINDS = {"TINYINT": "byte", "SMALLINT": "short", "INT": "integer", "BIGINT": "long"}
_DAY = 86_400 * 10**9
_MOST_DAYS = 3_652_425_000  # ten million years, which no calendar here has
_LARGEST_DOUBLE = PyDecimal("1e300")
_FORMAT = re.compile(r"([A-Za-z])\1*|'([^']*)'|[^A-Za-z']")
# Where in 2026-02-08T10:11:12.000000 each part stands.
_FORMAT_PARTS = {
    "yyyy": slice(0, 4),
    "MM": slice(5, 7),
    "dd": slice(8, 10),
    "HH": slice(11, 13),
    "mm": slice(14, 16),
    "ss": slice(17, 19),
}
_PLAIN_LENGTH = 26


class NoTranslationError(Exception):
    """Becomes an opaque part of the predicate; its text says why."""


def cast(value: Any, kind: str, *, sized: bool) -> Any:
    """Cast a constant as SQL would, where that needs no guess."""
    if value is None:
        return None
    if kind == "DATE":
        return as_day(value)
    if kind == "TIMESTAMP":
        return as_instant(value)
    if kind == "STRING":
        return _text(value, sized=sized)
    if kind == "BOOLEAN" and isinstance(value, str) and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    if isinstance(value, bool) and kind == "BOOLEAN":
        return value
    number = _number(value.strip()) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | PyDecimal) or not PyDecimal(number).is_finite():
        raise NoTranslationError(f"a cast of {short_repr(value)} to {kind} is not worked out")
    if isinstance(number, int) and (kind in INTEGER_KINDS or kind == "DECIMAL"):
        return number
    # Other numbers a DECIMAL(p, s) rounds to its scale, and a double far out becomes infinite.
    if kind == "DOUBLE" and -_LARGEST_DOUBLE < number < _LARGEST_DOUBLE:
        return float(number)
    raise NoTranslationError(f"a cast of {short_repr(value)} to {kind} is not worked out")


def as_day(value: Any) -> Day | None:
    """Return the day of a moment, or of its text."""
    moment = as_instant(value, word="date")
    return None if moment is None else Day(moment.nanoseconds // _DAY * _DAY)


def as_instant(value: Any, *, word: str = "timestamp") -> Instant | None:
    """Return a moment from its text; a text that is none is an error."""
    if value is None:
        return None
    if isinstance(value, Instant):
        return Instant(value.nanoseconds)
    if not isinstance(value, str):
        raise NoTranslationError(f"{short_repr(value)} is no {word}")
    nanoseconds = parse_instant(value)
    if nanoseconds is None:
        message = f"{short_repr(value)} is not a {word}"
        raise PredicateError(message, hint="write it as 'YYYY-MM-DD' or 'YYYY-MM-DD HH:MM:SS'")
    return Instant(nanoseconds)


def negative(value: Any) -> Any:
    """Return a number or a span with the other sign."""
    if value is None:
        return None
    if isinstance(value, PyDecimal):
        return value.copy_negate()  # The minus sign would round it to the 28 digits of Python's context.
    if isinstance(value, int | float | Timespan) and not isinstance(value, bool):
        return -value
    raise NoTranslationError(f"{short_repr(value)} has no sign")


def add(op: str, left: Any, right: Any) -> Any:
    """Return a sum, difference or product: of moments with spans, of dates with days, of integers."""
    if left is None or right is None:
        return None
    if op == "*":
        if _is_integer(left) and _is_integer(right):
            return left * right
        raise NoTranslationError("products are worked out of integers alone")
    if op == "+" and isinstance(right, Instant):
        left, right = right, left
    if op == "-":
        right = negative(right)
    if isinstance(left, Instant) and isinstance(right, Timespan):
        moment = right.after(left.nanoseconds)
        whole = isinstance(left, Day) and moment % _DAY == 0
        return Day(moment) if whole else Instant(moment)
    if isinstance(left, Day) and _is_integer(right) and abs(right) < _MOST_DAYS:
        return Day(left.nanoseconds + right * _DAY)
    if isinstance(left, Timespan) and isinstance(right, Timespan):
        return left + right
    if _is_integer(left) and _is_integer(right):
        return left + right
    raise NoTranslationError("this sum is not worked out")


def holds(op: str, left: Any, right: Any) -> bool | None:
    """Compare two constants; None is unknown."""
    if left is None or right is None:
        return None
    if isinstance(left, Instant) and isinstance(right, str):
        right = as_instant(right)
    elif isinstance(right, Instant) and isinstance(left, str):
        left = as_instant(left)
    if isinstance(left, Instant) and isinstance(right, Instant):
        left, right = left.nanoseconds, right.nanoseconds
    kinds = {str: "text", int: "number", PyDecimal: "number"}
    if kinds.get(type(left), "left") != kinds.get(type(right), "right"):
        raise NoTranslationError(f"{short_repr(left)} is not compared with {short_repr(right)}")
    return bool(
        {
            "=": left == right,
            "!=": left != right,
            "<": left < right,
            "<=": left <= right,
            ">": left > right,
            ">=": left >= right,
        }[op]
    )


def format_moment(value: Any, pattern: Any) -> str | None:
    """Write a moment by a pattern of yyyy, MM, dd, HH, mm and ss, as Spark's ``date_format`` does."""
    if value is None or pattern is None:
        return None
    moment = as_instant(value)
    if moment is None or not isinstance(pattern, str):
        raise NoTranslationError("date_format takes a moment and a pattern")
    text = moment_text(moment.nanoseconds // 1_000, "us")
    if len(text) != _PLAIN_LENGTH:
        raise NoTranslationError("date_format writes years of four digits")
    written = ""
    for match in _FORMAT.finditer(pattern):
        part = match[0]
        if match[1] is not None:
            if part not in _FORMAT_PARTS:
                raise NoTranslationError(f"date_format does not know {part!r}; it knows yyyy, MM, dd, HH, mm and ss")
            part = text[_FORMAT_PARTS[part]]
        elif match[2] is not None:
            part = match[2] or "'"
        written += part
    return written


def _text(value: Any, *, sized: bool) -> str:
    # The length of CHAR(n) and VARCHAR(n) would pad or cut.
    if isinstance(value, Day) and not sized:
        return moment_text(value.nanoseconds // _DAY, "D")
    if isinstance(value, str | int) and not isinstance(value, bool) and not sized:
        return str(value)
    raise NoTranslationError(f"engines differ in what {short_repr(value)} is as text")


def _number(text: str) -> Any:
    try:
        return int(text) if text.isdecimal() else PyDecimal(text)
    except (InvalidOperation, ValueError):
        return None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
