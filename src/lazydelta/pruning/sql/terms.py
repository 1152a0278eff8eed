"""What a value in SQL text stands for: a constant, a function of one column that has ranges, or a part of its date.

Anything else raises `NoTranslationError`, and the condition around it prunes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from lazydelta.pruning.sql import constants
from lazydelta.pruning.sql.column_functions import (
    DATE,
    INTEGER,
    TIMESTAMP,
    StepFunction,
    days_of_moments,
    moments_of_days,
    shifted,
    truncated,
    years_of_days,
    years_of_moments,
)
from lazydelta.pruning.sql.constants import INTEGER_KINDS, NoTranslationError
from lazydelta.pruning.sql.syntax import Arithmetic, Call, Cast, Literal, Name, Negative, Syntax
from lazydelta.types.literals import Day, Instant
from lazydelta.types.schema import Column, Primitive, TableSchema
from lazydelta.types.timespan import TRUNCATING_UNITS, Timespan, floor_to_unit, parse_timespan, unit_name

__all__ = ["CONDITION_FUNCTIONS", "KNOWN_FUNCTIONS", "CalendarPart", "Known", "Term", "Terms"]

_DAY = 86_400 * 10**9
_PAIR = 2
_MOMENT_KINDS = frozenset({"timestamp", "timestamp_ntz"})
_INTEGER_WIDTHS = {"byte": 1, "short": 2, "integer": 4, "long": 8}
# Parts of a moment that begin again with each year, day or hour: no range has them, but a row filter does.
_CALENDAR_PARTS = {
    "quarter": "quarter",
    "month": "month",
    "day": "day",
    "dayofmonth": "day",
    "dayofyear": "day_of_year",
    "hour": "hour",
    "minute": "minute",
    "second": "second",
}
_CLOCK_PARTS = frozenset({"hour", "minute", "second"})


class Known(msgspec.Struct, frozen=True):
    """A constant."""

    value: object


class CalendarPart(msgspec.Struct, frozen=True):
    """A part of a column's date that has no range; ``function`` is PyArrow's."""

    column: Column
    function: str


Term: TypeAlias = Known | StepFunction | CalendarPart


class Terms:
    """Works out values for one scan: one schema, and one ``now`` in nanoseconds since 1970, UTC."""

    def __init__(self, schema: TableSchema, now: int) -> None:
        self._schema = schema
        # As fine as columns are, so that now() is one moment on both sides of a range.
        self._now = now // 1_000 * 1_000

    def column(self, name: Name) -> Column:
        """Find a column; one that does not exist is an error."""
        if len(name.parts) > 1 and not name.quoted:
            return self._schema.column(".".join(name.parts))
        return self._schema.column(name.parts)

    def term(self, node: Syntax) -> Term:
        """Return what ``node`` stands for."""
        match node:
            case Literal(value):
                return Known(value)
            case Name():
                column = self.column(node)
                return StepFunction(column, column.type)
            case Negative(part):
                return Known(constants.negative(self.constant(part)))
            case Arithmetic(op, left, right):
                return self._sum(op, self.term(left), self.term(right))
            case Cast(part, kind, sized):
                return _cast(self.term(part), kind, sized=sized)
            case Call(name, arguments) if name in _FUNCTIONS:
                return _FUNCTIONS[name](self, arguments)
        raise NoTranslationError(getattr(node, "reason", "lazydelta does not evaluate it"))

    def constant(self, node: Syntax) -> object:
        """Return the value of something that names no column."""
        term = self.term(node)
        if not isinstance(term, Known):
            raise NoTranslationError("a column stands where ranges need a constant")
        return term.value

    def moment(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return now; with an argument, so much later (as KQL has it)."""
        if not arguments:
            return Known(Instant(self._now))
        span = self._span(arguments)
        return Known(Instant(span.after(self._now)))

    def today(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return the day that it is."""
        _need(arguments, 0)
        return Known(Day(self._now // _DAY * _DAY))

    def ago(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return the moment so long ago."""
        _need(arguments, 1)
        return Known(Instant((-self._span(arguments)).after(self._now)))

    def day(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return the day of a moment."""
        _need(arguments, 1)
        return _cast(self.term(arguments[0]), "DATE", sized=False)

    def timestamp(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return a moment."""
        _need(arguments, 1)
        return _cast(self.term(arguments[0]), "TIMESTAMP", sized=False)

    def cut(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return when the hour, day, week, … of a moment began."""
        _need(arguments, _PAIR)
        word, term = self.constant(arguments[0]), self.term(arguments[1])
        unit = unit_name(word) if isinstance(word, str) else None
        if unit not in TRUNCATING_UNITS or unit is None:
            raise NoTranslationError(f"date_trunc does not know the unit {word!r}")
        if isinstance(term, Known):
            moment = constants.as_instant(term.value)
            return Known(None if moment is None else Instant(floor_to_unit(moment.nanoseconds, unit)))
        moments = _cast(term, "TIMESTAMP", sized=False)
        assert isinstance(moments, StepFunction)  # noqa: S101 - a cast of a column is one
        return moments.then(moments.kind, truncated(unit))

    def later(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return a date some days later."""
        _need(arguments, _PAIR)
        return self._sum("+", self.term(arguments[0]), self.term(arguments[1]))

    def earlier(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return a date some days earlier."""
        _need(arguments, _PAIR)
        return self._sum("-", self.term(arguments[0]), self.term(arguments[1]))

    def formatted(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return a moment as text by a pattern."""
        _need(arguments, _PAIR)
        return Known(constants.format_moment(self.constant(arguments[0]), self.constant(arguments[1])))

    def extract(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return a part of a moment by the name of the part."""
        _need(arguments, _PAIR)
        word = self.constant(arguments[0])
        part = word.lower() if isinstance(word, str) else ""
        if part == "second":
            raise NoTranslationError("engines differ in whether extract(second …) has a fraction; write second(…)")
        if part != "year" and part not in _CALENDAR_PARTS:
            raise NoTranslationError(f"the part {word!r} of a moment has no range")
        return self.part(part, arguments[1:])

    def part(self, name: str, arguments: tuple[Syntax, ...]) -> Term:
        """Return the year of a moment, or a part that has no range."""
        _need(arguments, 1)
        term = self.term(arguments[0])
        if isinstance(term, Known):
            raise NoTranslationError(f"{name}() is worked out of columns alone")
        if isinstance(term, CalendarPart) or term.as_text or not isinstance(term.kind, Primitive):
            raise NoTranslationError(f"{name}() takes a date or a timestamp")
        kind = term.kind.name
        if kind != "date" and kind not in _MOMENT_KINDS:
            raise NoTranslationError(f"{name}() takes a date or a timestamp, and this is of type {term.kind}")
        if name == "year":
            return term.then(INTEGER, years_of_days if kind == "date" else years_of_moments)
        if term.steps or (kind == "date" and name in _CLOCK_PARTS):
            raise NoTranslationError(f"{name}() begins again and again and so has no range")
        return CalendarPart(term.column, _CALENDAR_PARTS[name])

    def _span(self, arguments: tuple[Syntax, ...]) -> Timespan:
        _need(arguments, 1)
        value = self.constant(arguments[0])
        span = parse_timespan(value) if isinstance(value, str) else value
        if not isinstance(span, Timespan):
            raise NoTranslationError(f"{value!r} is no span of time such as 1h or 30m")
        return span

    @staticmethod
    def _sum(op: str, left: Term, right: Term) -> Term:
        if isinstance(left, Known) and isinstance(right, Known):
            return Known(constants.add(op, left.value, right.value))
        if op == "+" and isinstance(left, Known):
            left, right = right, left
        if op == "*" or not isinstance(left, StepFunction) or not isinstance(right, Known):
            raise NoTranslationError("this sum has no range")
        by = right.value if op == "+" else constants.negative(right.value)
        kind = left.kind.name if isinstance(left.kind, Primitive) and not left.as_text else ""
        if kind == "date" and isinstance(by, int):
            return left.then(DATE, shifted(by))
        if kind in {"date", *_MOMENT_KINDS} and isinstance(by, Timespan):
            if by.months or by.nanoseconds % 1_000:
                raise NoTranslationError("months differ in length, so a column plus months has no range")
            if kind == "date" and by.nanoseconds % _DAY == 0:
                return left.then(DATE, shifted(by.nanoseconds // _DAY))
            moments = left if kind != "date" else left.then(TIMESTAMP, moments_of_days)
            return moments.then(moments.kind, shifted(by.nanoseconds // 1_000))
        raise NoTranslationError("sums of a column have ranges for dates and timestamps alone")


def _cast(term: Term, kind: str, *, sized: bool) -> Term:
    if isinstance(term, Known):
        return Known(constants.cast(term.value, kind, sized=sized))
    source = term.kind.name if isinstance(term, StepFunction) and isinstance(term.kind, Primitive) else ""
    if not source or not isinstance(term, StepFunction) or term.as_text:
        raise NoTranslationError("this cast has no range")
    target = INTEGER_KINDS.get(kind, "")
    if kind == "DATE" and source in {"date", *_MOMENT_KINDS}:
        return term if source == "date" else term.then(DATE, days_of_moments)
    if kind == "TIMESTAMP" and source in {"date", *_MOMENT_KINDS}:
        return term if source != "date" else term.then(TIMESTAMP, moments_of_days)
    if kind == "STRING" and not sized and source == "string":
        return term
    if kind == "STRING" and not sized and source == "date":
        return StepFunction(term.column, Primitive("string"), term.steps, as_text=True)
    if source in _INTEGER_WIDTHS and _INTEGER_WIDTHS.get(target, 0) >= _INTEGER_WIDTHS[source]:
        return term.then(Primitive(target))
    if kind == "BOOLEAN" and source == "boolean":
        return term
    raise NoTranslationError(f"a cast of type {source} to {kind} has no range")


def _need(arguments: tuple[Syntax, ...], count: int) -> None:
    if len(arguments) != count:
        raise NoTranslationError(f"it is known with {count} arguments, not with {len(arguments)}")


def _part_function(name: str) -> Callable[[Terms, tuple[Syntax, ...]], Term]:
    return lambda terms, arguments: terms.part(name, arguments)


_FUNCTIONS: dict[str, Callable[[Terms, tuple[Syntax, ...]], Term]] = {
    "now": Terms.moment,
    "current_timestamp": Terms.moment,
    "current_date": Terms.today,
    "today": Terms.today,
    "ago": Terms.ago,
    "datetime": Terms.timestamp,
    "timestamp": Terms.timestamp,
    "to_timestamp": Terms.timestamp,
    "date": Terms.day,
    "to_date": Terms.day,
    "date_trunc": Terms.cut,
    "date_add": Terms.later,
    "date_sub": Terms.earlier,
    "date_format": Terms.formatted,
    "extract": Terms.extract,
    "date_part": Terms.extract,
    **{name: _part_function(name) for name in ("year", *_CALENDAR_PARTS)},
}

CONDITION_FUNCTIONS = frozenset({"starts_with", "startswith", "isnull", "isnotnull"})
"""Those that are true or false."""

KNOWN_FUNCTIONS = frozenset({*_FUNCTIONS, *CONDITION_FUNCTIONS})
"""The functions that SQL text may call and that are worked out; any other prunes nothing."""
