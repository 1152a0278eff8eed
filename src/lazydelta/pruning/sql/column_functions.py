"""Functions of a column that never fall while the column rises, turned around into ranges of the column.

``date(t) = '2026-02-08'`` says ``t >= '2026-02-08' AND t < '2026-02-09'``, exactly: both are true for the same rows,
so the range prunes files and filters rows alike. A `Step` is such a function on values as they are stored (days,
microseconds, integers), given by its inverse: the least value whose image is not below the one asked for. All that
a comparison needs follows from that, because between integers ``f(x) > v`` is ``f(x) >= v + 1``, and steps follow
each other by asking one inverse after the other.
"""

from __future__ import annotations

import bisect
import datetime as dt
from collections.abc import Callable

import msgspec

from lazydelta.arrays import typed_scalar
from lazydelta.pruning.tree import Compare, Constant, IsNull, Predicate
from lazydelta.types.calendar import parse_moment
from lazydelta.types.literals import place
from lazydelta.types.schema import Column, DataType, Primitive
from lazydelta.types.timespan import floor_to_unit, next_unit, year_start

__all__ = [
    "DATE",
    "INTEGER",
    "TIMESTAMP",
    "Step",
    "StepFunction",
    "days_of_moments",
    "moments_of_days",
    "shifted",
    "truncated",
    "years_of_days",
    "years_of_moments",
]

DATE, TIMESTAMP, INTEGER = Primitive("date"), Primitive("timestamp"), Primitive("integer")
_DAY = 86_400 * 10**6
_LIMITS = {"date": 31, "integer": 31, "timestamp": 63, "timestamp_ntz": 63, "long": 63, "short": 15, "byte": 7}
_OPPOSITE = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_EPOCH = dt.date(1970, 1, 1).toordinal()
# Days in years of four digits; the texts of all others begin with a sign, which sorts before every digit.
_PLAIN_DAYS = range(1, dt.date.max.toordinal() + 1)
_END_OF_PLAIN_DAYS = dt.date.max.toordinal() + 1 - _EPOCH
_FIRST_PLAIN_TEXT = "0001-01-01"
_AFTER_ALL = "\U0010ffff"

Step = Callable[[int], int]
"""Takes a value of the function, returns the least value of its argument from which the function is not below it."""


def days_of_moments(day: int) -> int:
    """Turn around the day of a timestamp."""
    return day * _DAY


def moments_of_days(moment: int) -> int:
    """Turn around the midnight of a date."""
    return -(-moment // _DAY)


def years_of_days(year: int) -> int:
    """Turn around the year of a date."""
    return year_start(year) // (_DAY * 1_000)


def years_of_moments(year: int) -> int:
    """Turn around the year of a timestamp."""
    return year_start(year) // 1_000


def shifted(by: int) -> Step:
    """Turn around an addition."""
    return lambda value: value - by


def truncated(unit: str) -> Step:
    """Turn around the cut of a timestamp to its hour, week, month, …."""

    def least(moment: int) -> int:
        begun = floor_to_unit(moment * 1_000, unit) // 1_000
        return moment if begun == moment else next_unit(moment * 1_000, unit) // 1_000

    return least


class StepFunction(msgspec.Struct, frozen=True):
    """A column behind some steps, the innermost first; ``kind`` is the type of what comes out.

    ``as_text`` stands for the text of a date, after all steps.
    """

    column: Column
    kind: DataType
    steps: tuple[Step, ...] = ()
    as_text: bool = False

    @property
    def is_plain(self) -> bool:
        """Tell whether this is the column itself."""
        return not self.steps and not self.as_text and self.kind == self.column.type

    def then(self, kind: DataType, step: Step | None = None) -> StepFunction:
        """Return this with another step around it."""
        return msgspec.structs.replace(self, kind=kind, steps=self.steps if step is None else (*self.steps, step))

    def compare(self, op: str, value: object, *, negated: bool) -> tuple[str, tuple[Predicate, ...]] | None:
        """Return what a comparison says of the column: parts, and whether all (``and``) or one (``or``) must hold.

        None where that cannot be said.
        """
        op = _OPPOSITE[op] if negated else op
        if self.as_text:
            return self._compare_text(op, value) if isinstance(value, str) else None
        placed = place(value, msgspec.structs.replace(self.column, type=self.kind))
        low, high = placed.low, placed.high
        if placed.exact and isinstance(low, int):
            return self._between(op, low, low + 1)
        if op in {"=", "!="}:
            return "and", (IsNull(self.column, negated=True) if op == "!=" else Constant(value=False),)
        if op in {"<", "<="}:
            return "and", (self._below(low + 1) if isinstance(low, int) else Constant(value=False),)
        return "and", (self._from(high) if isinstance(high, int) else Constant(value=False),)

    def starts_with(self, prefix: str, *, negated: bool) -> tuple[str, tuple[Predicate, ...]] | None:
        """Return what a prefix of the text of a date says of the column; None where that cannot be said."""
        if not self.as_text or not _is_after_all_odd_texts(prefix):
            return None
        return self._between("!=" if negated else "=", _first_day(prefix), _first_day(prefix + _AFTER_ALL))

    def _compare_text(self, op: str, text: str) -> tuple[str, tuple[Predicate, ...]] | None:
        moment = parse_moment(text) if len(text) == len(_FIRST_PLAIN_TEXT) else None
        if op in {"=", "!="} and moment is not None and text[0].isdecimal() and text >= _FIRST_PLAIN_TEXT:
            return self._between(op, moment.days, moment.days + 1)
        if not _is_after_all_odd_texts(text):
            return None
        if op in {"=", "!="}:
            return "and", (IsNull(self.column, negated=True) if op == "!=" else Constant(value=False),)
        first = _first_day(text, after=op in {">", "<="})
        if op in {">", ">="}:
            return "and", (self._from(first), self._below(_END_OF_PLAIN_DAYS))
        return "or", (self._below(first), self._from(_END_OF_PLAIN_DAYS))

    def _between(self, op: str, first: int, end: int) -> tuple[str, tuple[Predicate, ...]]:
        """Compare with values from ``first`` up to and without ``end``."""
        match op:
            case "=":
                low, high = self._least(first), self._least(end)
                if low >= high:
                    return "and", (Constant(value=False),)
                only = high == low + 1 and self._holds(low)
                return "and", (self._stored("=", low),) if only else (self._from(first), self._below(end))
            case "!=":
                low, high = self._least(first), self._least(end)
                if low >= high:
                    return "and", (IsNull(self.column, negated=True),)
                only = high == low + 1 and self._holds(low)
                return "or", (self._stored("!=", low),) if only else (self._below(first), self._from(end))
            case "<":
                return "and", (self._below(first),)
            case "<=":
                return "and", (self._below(end),)
            case ">":
                return "and", (self._from(end),)
        return "and", (self._from(first),)

    def _least(self, value: int) -> int:
        for step in reversed(self.steps):
            value = step(value)
        return value

    def _holds(self, stored: int) -> bool:
        limit = 1 << self._bits
        return -limit <= stored < limit

    @property
    def _bits(self) -> int:
        assert isinstance(self.column.type, Primitive)  # noqa: S101 - steps are taken of such columns only
        return _LIMITS[self.column.type.name]

    def _from(self, value: int) -> Predicate:
        least = self._least(value)
        if least <= -(1 << self._bits):
            return IsNull(self.column, negated=True)
        return self._stored(">=", least) if self._holds(least) else Constant(value=False)

    def _below(self, value: int) -> Predicate:
        least = self._least(value)
        if least <= -(1 << self._bits):
            return Constant(value=False)
        return self._stored("<", least) if self._holds(least) else IsNull(self.column, negated=True)

    def _stored(self, op: str, value: int) -> Predicate:
        return Compare(self.column, op, typed_scalar(value, self.column.type.to_arrow()))


def _is_after_all_odd_texts(text: str) -> bool:
    """Tell whether a text sorts after those of all days whose years have no four digits."""
    return text >= _FIRST_PLAIN_TEXT


def _first_day(text: str, *, after: bool = False) -> int:
    """Return the first day, of those with four digits, whose text is not before ``text``, or is after it."""
    find = bisect.bisect_right if after else bisect.bisect_left
    index = find(_PLAIN_DAYS, text, key=lambda ordinal: dt.date.fromordinal(ordinal).isoformat())
    return _PLAIN_DAYS.start + index - _EPOCH
