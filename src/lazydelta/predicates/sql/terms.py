"""Meaning of a value in SQL: a constant, a function of one column that has ranges, or a part of its date.

Anything else raises `NoTranslationError`, and its condition prunes nothing.
"""

from __future__ import annotations

import bisect
import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal as PyDecimal
from decimal import InvalidOperation
from typing import Any, TypeAlias

import msgspec

from lazydelta.errors import PredicateError, UnknownColumnError
from lazydelta.predicates.sql.syntax import Arithmetic, Call, Cast, Literal, Name, Negative, Syntax
from lazydelta.predicates.tree import Compare, Constant, IsNull, Predicate
from lazydelta.protocol.schema import Column, DataType, Primitive, TableSchema
from lazydelta.protocol.time import (
    TRUNCATING_UNITS,
    Timespan,
    floor_to_unit,
    next_unit,
    parse_timespan,
    parse_timestamp,
    timestamp_text,
    unit_name,
    year_start,
)
from lazydelta.protocol.values import Day, Instant, parse_instant, place, short_repr
from lazydelta.runtime.arrays import typed_scalar

__all__ = [
    "CONDITION_FUNCTIONS",
    "INTEGER",
    "KNOWN_FUNCTIONS",
    "CalendarPart",
    "Known",
    "NoTranslationError",
    "StepFunction",
    "Term",
    "Terms",
]


# Constants in SQL, evaluated once when a scan is planned: casts, sums, timestamps.
#
# Values are Python values, with `Instant` for timestamps, `Day` for dates and `Timespan` for intervals. Each function
# raises `NoTranslationError` where engines differ or the meaning is ambiguous.


INTEGER_KINDS = {"TINYINT": "byte", "SMALLINT": "short", "INT": "integer", "BIGINT": "long"}
_MOST_DAYS = 3_652_425_000  # ten million years, more than any calendar here covers
_LARGEST_DOUBLE = PyDecimal("1e300")
_FORMAT = re.compile(r"([A-Za-z])\1*|'([^']*)'|[^A-Za-z']")
# The position of each part in 2026-02-08T10:11:12.000000.
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
    """Marks a part of the predicate as opaque. The message is the reason."""


def cast(value: Any, kind: str, *, sized: bool) -> Any:
    """Cast a constant as SQL does, if the result is unambiguous."""
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
        raise NoTranslationError(f"a cast of {short_repr(value)} to {kind} is not supported")
    if isinstance(number, int) and (kind in INTEGER_KINDS or kind == "DECIMAL"):
        return number
    # DECIMAL(p, s) rounds other numbers to its scale, and a double out of range becomes infinite.
    if kind == "DOUBLE" and -_LARGEST_DOUBLE < number < _LARGEST_DOUBLE:
        return float(number)
    raise NoTranslationError(f"a cast of {short_repr(value)} to {kind} is not supported")


def as_day(value: Any) -> Day | None:
    """Return the date of a timestamp, given as a value or a string."""
    instant = as_instant(value, word="date")
    return None if instant is None else Day(instant.nanoseconds // _DAY * _DAY)


def as_instant(value: Any, *, word: str = "timestamp") -> Instant | None:
    """Parse a timestamp. An invalid string raises an error."""
    if value is None:
        return None
    if isinstance(value, Instant):
        return Instant(value.nanoseconds)
    if not isinstance(value, str):
        raise NoTranslationError(f"{short_repr(value)} is not a {word}")
    nanoseconds = parse_instant(value)
    if nanoseconds is None:
        message = f"{short_repr(value)} is not a {word}"
        raise PredicateError(message, hint="write it as 'YYYY-MM-DD' or 'YYYY-MM-DD HH:MM:SS'")
    return Instant(nanoseconds)


def negative(value: Any) -> Any:
    """Return the negative of a number or interval."""
    if value is None:
        return None
    if isinstance(value, PyDecimal):
        return value.copy_negate()  # Unary minus would round it to the 28 digits of Python's decimal context.
    if isinstance(value, int | float | Timespan) and not isinstance(value, bool):
        return -value
    raise NoTranslationError(f"{short_repr(value)} has no sign")


def add(op: str, left: Any, right: Any) -> Any:
    """Return a sum, difference or product: timestamps with intervals, dates with days, or integers."""
    if left is None or right is None:
        return None
    if op == "*":
        if _is_integer(left) and _is_integer(right):
            return left * right
        raise NoTranslationError("only products of integers are supported")
    if op == "+" and isinstance(right, Instant):
        left, right = right, left
    if op == "-":
        right = negative(right)
    if isinstance(left, Instant) and isinstance(right, Timespan):
        instant = right.after(left.nanoseconds)
        whole = isinstance(left, Day) and instant % _DAY == 0
        return Day(instant) if whole else Instant(instant)
    if isinstance(left, Day) and _is_integer(right) and abs(right) < _MOST_DAYS:
        return Day(left.nanoseconds + right * _DAY)
    if isinstance(left, Timespan) and isinstance(right, Timespan):
        return left + right
    if _is_integer(left) and _is_integer(right):
        return left + right
    raise NoTranslationError("this sum is not supported")


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


def format_timestamp(value: Any, pattern: Any) -> str | None:
    """Format a timestamp by a pattern of yyyy, MM, dd, HH, mm and ss, like Spark's ``date_format``."""
    if value is None or pattern is None:
        return None
    instant = as_instant(value)
    if instant is None or not isinstance(pattern, str):
        raise NoTranslationError("date_format takes a timestamp and a pattern")
    text = timestamp_text(instant.nanoseconds // 1_000, "us")
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
    # The length of CHAR(n) and VARCHAR(n) would pad or truncate.
    if isinstance(value, Day) and not sized:
        return timestamp_text(value.nanoseconds // _DAY, "D")
    if isinstance(value, str | int) and not isinstance(value, bool) and not sized:
        return str(value)
    raise NoTranslationError(f"engines differ in the string form of {short_repr(value)}")


def _number(text: str) -> Any:
    try:
        return int(text) if text.isdecimal() else PyDecimal(text)
    except (InvalidOperation, ValueError):
        return None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Monotonic functions of a column, inverted into ranges of the column.
#
# ``date(t) = '2026-02-08'`` is exactly ``t >= '2026-02-08' AND t < '2026-02-09'``, so it prunes files and filters rows.
# A `Step` is the inverse on stored integers: the least argument whose image is not below a value. ``f(x) > v`` is
# ``f(x) >= v + 1``, and nested functions chain their inverses.


DATE, TIMESTAMP, INTEGER = Primitive("date"), Primitive("timestamp"), Primitive("integer")
_DAY_MICROSECONDS = 86_400 * 10**6
_LIMITS = {"date": 31, "integer": 31, "timestamp": 63, "timestamp_ntz": 63, "long": 63, "short": 15, "byte": 7}
_OPPOSITE = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_EPOCH = dt.date(1970, 1, 1).toordinal()
# Days in four-digit years. The strings of all others begin with a sign, which sorts before every digit.
_PLAIN_DAYS = range(1, dt.date.max.toordinal() + 1)
_END_OF_PLAIN_DAYS = dt.date.max.toordinal() + 1 - _EPOCH
_FIRST_PLAIN_TEXT = "0001-01-01"
_AFTER_ALL = "\U0010ffff"

Step = Callable[[int], int]
"""Takes a function value, and returns the least argument for which the function is not below it."""


def days_of_timestamps(day: int) -> int:
    """Invert the date of a timestamp."""
    return day * _DAY_MICROSECONDS


def timestamps_of_days(instant: int) -> int:
    """Invert the midnight of a date."""
    return -(-instant // _DAY_MICROSECONDS)


def years_of_days(year: int) -> int:
    """Invert the year of a date."""
    return year_start(year) // (_DAY_MICROSECONDS * 1_000)


def years_of_timestamps(year: int) -> int:
    """Invert the year of a timestamp."""
    return year_start(year) // 1_000


def shifted(by: int) -> Step:
    """Invert an addition."""
    return lambda value: value - by


def truncated(unit: str) -> Step:
    """Invert the truncation of a timestamp to its hour, week, month, …."""

    def least(instant: int) -> int:
        begun = floor_to_unit(instant * 1_000, unit) // 1_000
        return instant if begun == instant else next_unit(instant * 1_000, unit) // 1_000

    return least


class StepFunction(msgspec.Struct, frozen=True):
    """A column behind steps, innermost first. ``kind`` is the type of the result.

    ``as_text`` means that the result is the string of a date, after all steps.
    """

    column: Column
    kind: DataType
    steps: tuple[Step, ...] = ()
    as_text: bool = False

    @property
    def is_plain(self) -> bool:
        """Return whether this is the column itself."""
        return not self.steps and not self.as_text and self.kind == self.column.type

    def then(self, kind: DataType, step: Step | None = None) -> StepFunction:
        """Return this function with another step around it."""
        return msgspec.structs.replace(self, kind=kind, steps=self.steps if step is None else (*self.steps, step))

    def compare(self, op: str, value: object, *, negated: bool) -> tuple[str, tuple[Predicate, ...]] | None:
        """Return a comparison as conditions on the column, and whether all (``and``) or one (``or``) must hold.

        None if there is no such form.
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
        """Return the condition on the column for a prefix of the string of a date; None if there is none."""
        if not self.as_text or not _is_after_all_odd_texts(prefix):
            return None
        return self._between("!=" if negated else "=", _first_day(prefix), _first_day(prefix + _AFTER_ALL))

    def _compare_text(self, op: str, text: str) -> tuple[str, tuple[Predicate, ...]] | None:
        instant = parse_timestamp(text) if len(text) == len(_FIRST_PLAIN_TEXT) else None
        if op in {"=", "!="} and instant is not None and text[0].isdecimal() and text >= _FIRST_PLAIN_TEXT:
            return self._between(op, instant.days, instant.days + 1)
        if not _is_after_all_odd_texts(text):
            return None
        if op in {"=", "!="}:
            return "and", (IsNull(self.column, negated=True) if op == "!=" else Constant(value=False),)
        first = _first_day(text, after=op in {">", "<="})
        if op in {">", ">="}:
            return "and", (self._from(first), self._below(_END_OF_PLAIN_DAYS))
        return "or", (self._below(first), self._from(_END_OF_PLAIN_DAYS))

    def _between(self, op: str, first: int, end: int) -> tuple[str, tuple[Predicate, ...]]:
        """Compare with values from ``first`` up to but excluding ``end``."""
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
        assert isinstance(self.column.type, Primitive)  # noqa: S101 - only such columns have steps
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
    """Return whether a string sorts after those of all days outside the four-digit years."""
    return text >= _FIRST_PLAIN_TEXT


def _first_day(text: str, *, after: bool = False) -> int:
    """Return the first day in a four-digit year whose string is not before ``text``, or is after it."""
    find = bisect.bisect_right if after else bisect.bisect_left
    index = find(_PLAIN_DAYS, text, key=lambda ordinal: dt.date.fromordinal(ordinal).isoformat())
    return _PLAIN_DAYS.start + index - _EPOCH


_DAY = 86_400 * 10**9
_PAIR = 2
_TIMESTAMP_KINDS = frozenset({"timestamp", "timestamp_ntz"})
_INTEGER_WIDTHS = {"byte": 1, "short": 2, "integer": 4, "long": 8}
# Parts of a timestamp that restart each year, day or hour: they have no range, but filter rows.
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
    """A part of a column's date that has no range. ``function`` is PyArrow's."""

    column: Column
    function: str


Term: TypeAlias = Known | StepFunction | CalendarPart


class Terms:
    """Evaluates values for one scan: one schema, and one ``now`` in nanoseconds since 1970, UTC."""

    def __init__(self, schema: TableSchema, now: int) -> None:
        self._schema = schema
        # In the precision of columns, so that now() is the same timestamp at both ends of a range.
        self._now = now // 1_000 * 1_000

    def column(self, name: Name) -> Column:
        """Find a column. An unknown column raises an error."""
        if len(name.parts) > 1 and not name.quoted:
            return self._schema.column(".".join(name.parts))
        try:
            return self._schema.column(name.parts)
        except UnknownColumnError as error:
            if not name.quoted or len(name.parts) > 1:
                raise
            hint = f"a string has single quotes: {name.parts[0]!r}; {error.hint}"
            message = f"The table has no column {name.parts[0]!r}"
            raise UnknownColumnError(message, column=name.parts[0], hint=hint) from None

    def term(self, node: Syntax) -> Term:
        """Return the meaning of ``node``."""
        match node:
            case Literal(value):
                return Known(value)
            case Name():
                column = self.column(node)
                return StepFunction(column, column.type)
            case Negative(part):
                return Known(negative(self.constant(part)))
            case Arithmetic(op, left, right):
                return self._sum(op, self.term(left), self.term(right))
            case Cast(part, kind, sized):
                return _cast(self.term(part), kind, sized=sized)
            case Call(name, arguments) if name in _FUNCTIONS:
                return _FUNCTIONS[name](self, arguments)
        raise NoTranslationError(getattr(node, "reason", "lazydelta does not evaluate it"))

    def constant(self, node: Syntax) -> object:
        """Return the value of an expression without columns."""
        term = self.term(node)
        if not isinstance(term, Known):
            raise NoTranslationError("a column is used where ranges need a constant")
        return term.value

    def instant(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return the current timestamp, plus an optional offset (as in KQL)."""
        if not arguments:
            return Known(Instant(self._now))
        span = self._span(arguments)
        return Known(Instant(span.after(self._now)))

    def today(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return the current date."""
        _need(arguments, 0)
        return Known(Day(self._now // _DAY * _DAY))

    def ago(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return the current timestamp minus an interval."""
        _need(arguments, 1)
        return Known(Instant((-self._span(arguments)).after(self._now)))

    def day(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return the date of a timestamp."""
        _need(arguments, 1)
        return _cast(self.term(arguments[0]), "DATE", sized=False)

    def timestamp(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return a timestamp."""
        _need(arguments, 1)
        return _cast(self.term(arguments[0]), "TIMESTAMP", sized=False)

    def cut(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return the start of the hour, day, week, … of a timestamp."""
        _need(arguments, _PAIR)
        word, term = self.constant(arguments[0]), self.term(arguments[1])
        unit = unit_name(word) if isinstance(word, str) else None
        if unit not in TRUNCATING_UNITS or unit is None:
            raise NoTranslationError(f"date_trunc does not know the unit {word!r}")
        if isinstance(term, Known):
            instant = as_instant(term.value)
            return Known(None if instant is None else Instant(floor_to_unit(instant.nanoseconds, unit)))
        timestamps = _cast(term, "TIMESTAMP", sized=False)
        assert isinstance(timestamps, StepFunction)  # noqa: S101 - the cast of a column is one
        return timestamps.then(timestamps.kind, truncated(unit))

    def later(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return a date plus some days."""
        _need(arguments, _PAIR)
        return self._sum("+", self.term(arguments[0]), self.term(arguments[1]))

    def earlier(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return a date minus some days."""
        _need(arguments, _PAIR)
        return self._sum("-", self.term(arguments[0]), self.term(arguments[1]))

    def formatted(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return a timestamp formatted by a pattern."""
        _need(arguments, _PAIR)
        return Known(format_timestamp(self.constant(arguments[0]), self.constant(arguments[1])))

    def extract(self, arguments: tuple[Syntax, ...]) -> Term:
        """Return a part of a timestamp by its name."""
        _need(arguments, _PAIR)
        word = self.constant(arguments[0])
        part = word.lower() if isinstance(word, str) else ""
        if part == "second":
            raise NoTranslationError("engines differ in whether extract(second …) has a fraction; write second(…)")
        if part != "year" and part not in _CALENDAR_PARTS:
            raise NoTranslationError(f"the part {word!r} of a timestamp has no range")
        return self.part(part, arguments[1:])

    def part(self, name: str, arguments: tuple[Syntax, ...]) -> Term:
        """Return the year of a timestamp, or a part that has no range."""
        _need(arguments, 1)
        term = self.term(arguments[0])
        if isinstance(term, Known):
            raise NoTranslationError(f"{name}() is supported for columns only")
        if isinstance(term, CalendarPart) or term.as_text or not isinstance(term.kind, Primitive):
            raise NoTranslationError(f"{name}() takes a date or a timestamp")
        kind = term.kind.name
        if kind != "date" and kind not in _TIMESTAMP_KINDS:
            raise NoTranslationError(f"{name}() takes a date or a timestamp, and this is of type {term.kind}")
        if name == "year":
            return term.then(INTEGER, years_of_days if kind == "date" else years_of_timestamps)
        if term.steps or (kind == "date" and name in _CLOCK_PARTS):
            raise NoTranslationError(f"{name}() is periodic and has no range")
        return CalendarPart(term.column, _CALENDAR_PARTS[name])

    def _span(self, arguments: tuple[Syntax, ...]) -> Timespan:
        _need(arguments, 1)
        value = self.constant(arguments[0])
        span = parse_timespan(value) if isinstance(value, str) else value
        if not isinstance(span, Timespan):
            raise NoTranslationError(f"{value!r} is not a duration such as 1h or 30m")
        return span

    @staticmethod
    def _sum(op: str, left: Term, right: Term) -> Term:
        if isinstance(left, Known) and isinstance(right, Known):
            return Known(add(op, left.value, right.value))
        if op == "+" and isinstance(left, Known):
            left, right = right, left
        if op == "*" or not isinstance(left, StepFunction) or not isinstance(right, Known):
            raise NoTranslationError("this sum has no range")
        by = right.value if op == "+" else negative(right.value)
        kind = left.kind.name if isinstance(left.kind, Primitive) and not left.as_text else ""
        if kind == "date" and isinstance(by, int):
            return left.then(DATE, shifted(by))
        if kind in {"date", *_TIMESTAMP_KINDS} and isinstance(by, Timespan):
            if by.months or by.nanoseconds % 1_000:
                raise NoTranslationError("months differ in length, so a column plus months has no range")
            if kind == "date" and by.nanoseconds % _DAY == 0:
                return left.then(DATE, shifted(by.nanoseconds // _DAY))
            timestamps = left if kind != "date" else left.then(TIMESTAMP, timestamps_of_days)
            return timestamps.then(timestamps.kind, shifted(by.nanoseconds // 1_000))
        raise NoTranslationError("only sums of dates and timestamps have ranges")


def _cast(term: Term, kind: str, *, sized: bool) -> Term:
    if isinstance(term, Known):
        return Known(cast(term.value, kind, sized=sized))
    source = term.kind.name if isinstance(term, StepFunction) and isinstance(term.kind, Primitive) else ""
    if not source or not isinstance(term, StepFunction) or term.as_text:
        raise NoTranslationError("this cast has no range")
    target = INTEGER_KINDS.get(kind, "")
    if kind == "DATE" and source in {"date", *_TIMESTAMP_KINDS}:
        return term if source == "date" else term.then(DATE, days_of_timestamps)
    if kind == "TIMESTAMP" and source in {"date", *_TIMESTAMP_KINDS}:
        return term if source != "date" else term.then(TIMESTAMP, timestamps_of_days)
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
    "now": Terms.instant,
    "current_timestamp": Terms.instant,
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
"""Functions that return a boolean."""

KNOWN_FUNCTIONS = frozenset({*_FUNCTIONS, *CONDITION_FUNCTIONS})
"""The functions that SQL conditions may call and that are evaluated. Any other prunes nothing."""
