"""Bind SQL conditions to a table: the meaning of names, functions, casts and intervals.

Each leaf becomes nodes of the predicate tree that are true for exactly the same rows, or one opaque node with the
reason why there is no translation.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from decimal import Decimal as PyDecimal
from typing import Any

import pyarrow as pa

from lazydelta.errors import PredicateError
from lazydelta.predicates.binding import (
    MIRRORED,
    compare,
    conjunction,
    disjunction,
    is_null,
    like,
    membership,
    plain_prefix,
    starts_with,
)
from lazydelta.predicates.sql import terms as constants
from lazydelta.predicates.sql.plain_sql import parse_plain
from lazydelta.predicates.sql.sqlglot_sql import QUOTED, in_duckdb, parse_foreign, too_deep
from lazydelta.predicates.sql.syntax import (
    Arithmetic,
    Between,
    Call,
    Cast,
    Comparison,
    Foreign,
    Junction,
    Literal,
    Membership,
    Name,
    Negation,
    Negative,
    NullTest,
    Pattern,
    Syntax,
    TruthTest,
    names_in,
)
from lazydelta.predicates.sql.terms import (
    CONDITION_FUNCTIONS,
    INTEGER,
    CalendarPart,
    Known,
    NoTranslationError,
    StepFunction,
    Term,
    Terms,
)
from lazydelta.predicates.tree import Constant, NanOrder, Opaque, Predicate
from lazydelta.protocol.schema import Column, Primitive, TableSchema
from lazydelta.protocol.time import Timespan, timestamp_text
from lazydelta.protocol.values import Day, Instant, place
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import typed_scalar

__all__ = ["Translator", "parse_sql", "quote_timestamps"]


_MAX_DEPTH = 200
_NANOSECONDS_A_DAY = 86_400 * 10**9
# Functions that DuckDB has with the same name and meaning.
_SAME_IN_DUCKDB = frozenset(
    {"starts_with", "date_trunc", "year", "quarter", "month", "day", "dayofmonth", "dayofyear", "hour", "minute"}
)


class Translator:
    """Translates conditions for one scan."""

    def __init__(
        self,
        schema: TableSchema,
        *,
        now: int,
        nan: NanOrder,
        by_engine: bool = False,
        numbers_as_text: bool | None = None,
    ) -> None:
        self._terms = Terms(schema, now)
        self._nan = nan
        self._by_engine = by_engine
        self._numbers_as_text = numbers_as_text

    def predicate(self, node: Syntax, *, negated: bool = False, depth: int = 0) -> Predicate:
        """Translate ``node``, or its negation."""
        if depth > _MAX_DEPTH:
            raise RecursionError
        while isinstance(node, Negation):
            negated, node = not negated, node.part
        if isinstance(node, Junction):
            join = conjunction if (node.word == "and") is not negated else disjunction
            return join([self.predicate(part, negated=negated, depth=depth + 1) for part in node.parts])
        try:
            return self._leaf(node, negated=negated)
        except NoTranslationError as unknown:
            return self._opaque(node, str(unknown), negated=negated)

    def _leaf(self, node: Syntax, *, negated: bool) -> Predicate:
        match node:
            case Literal(value) if value is None or isinstance(value, bool):
                return Constant(None if value is None else value is not negated)
            case Name():
                return self._flag(self._terms.column(node), negated=negated)
            case Comparison("<=>", left, right):
                return self._null_safe(node, self._terms.term(left), self._terms.term(right), negated=negated)
            case Comparison(op, left, right):
                return self._comparison(node, op, self._terms.term(left), self._terms.term(right), negated=negated)
            case Between(part, low, high):
                term, ends = self._terms.term(part), [self._terms.constant(low), self._terms.constant(high)]
                join = disjunction if negated else conjunction
                bounds = zip((">=", "<="), ends, strict=True)
                return join([self._compare(node, term, op, end, negated=negated) for op, end in bounds])
            case Membership(part, values):
                return self._membership(node, self._terms.term(part), values, negated=negated)
            case NullTest(part):
                return is_null(self._any_column(part), negated=negated)
            case TruthTest(part, value):
                return self._null_safe(node, self._terms.term(part), Known(value), negated=negated)
            case Pattern(part, pattern, escape):
                return self._pattern(part, pattern, escape, negated=negated)
            case Call():
                return self._call(node, negated=negated)
            case Foreign(_, _, reason):
                raise NoTranslationError(reason)
        raise NoTranslationError("lazydelta does not evaluate it")

    def _call(self, node: Call, *, negated: bool) -> Predicate:
        match node:
            case Call("starts_with" | "startswith", (part, prefix)):
                column, text = self._plain_column(part), self._terms.constant(prefix)
                if isinstance(text, str):
                    return starts_with(column, text, negated=negated)
            case Call("isnull" | "isnotnull" as name, (part,)):
                return is_null(self._any_column(part), negated=negated is not (name == "isnotnull"))
        if node.name not in CONDITION_FUNCTIONS:
            message = f"{node} is used as a condition"
            raise PredicateError(message, hint="compare it with a value")
        raise NoTranslationError(f"{node.name}() is supported for a column and a string")

    def _comparison(self, node: Syntax, op: str, left: Term, right: Term, *, negated: bool) -> Predicate:
        if isinstance(left, Known) and isinstance(right, Known):
            truth = constants.holds(op, left.value, right.value)
            return Constant(None if truth is None else truth is not negated)
        if isinstance(right, Known):
            return self._compare(node, left, op, right.value, negated=negated)
        if isinstance(left, Known):
            return self._compare(node, right, MIRRORED[op], left.value, negated=negated)
        reason = "two columns are compared, whose ranges do not decide which rows match"
        filters = None
        if isinstance(left, StepFunction) and isinstance(right, StepFunction) and left.is_plain and right.is_plain:
            filters = self._between_columns(left.column, op, right.column)
        return self._opaque(node, reason, negated=negated, expression=filters)

    def _compare(self, node: Syntax, term: Term, op: str, value: Any, *, negated: bool) -> Predicate:
        """Compare a term that contains a column with a constant."""
        if isinstance(term, CalendarPart):
            return self._of_calendar(node, term, op, value, negated=negated)
        if not isinstance(term, StepFunction):
            raise NoTranslationError("no column is named")
        if term.is_plain:
            if self._numbers_as_text or (op in {"=", "!="} and self._numbers_as_text is None):
                value = _as_text(term.column, value)
            return compare(term.column, op, value, negated=negated, nan=self._nan)
        if value is None:
            return Constant(None)
        if term.as_text and not isinstance(value, str):
            raise NoTranslationError("a string is compared with another type")
        return _joined(term.compare(op, value, negated=negated))

    def _membership(self, node: Syntax, term: Term, values: tuple[Syntax, ...], *, negated: bool) -> Predicate:
        items = [self._terms.constant(value) for value in values]
        if isinstance(term, StepFunction) and term.is_plain:
            if self._numbers_as_text is not False:
                items = [_as_text(term.column, item) for item in items]
            return membership(term.column, items, negated=negated, nan=self._nan)
        join = conjunction if negated else disjunction
        return join([self._compare(node, term, "=", item, negated=negated) for item in items])

    def _null_safe(self, node: Syntax, left: Term, right: Term, *, negated: bool) -> Predicate:
        """Compare with null-safe equality, so that the negation is true for nulls."""
        term, known = (left, right) if isinstance(right, Known) else (right, left)
        if not isinstance(term, StepFunction) or not isinstance(known, Known):
            raise NoTranslationError("<=> is supported for a column and a constant")
        if known.value is None:
            return is_null(term.column, negated=negated)
        result = self._compare(node, term, "=", known.value, negated=negated)
        return disjunction([result, is_null(term.column)]) if negated else result

    def _pattern(self, part: Syntax, pattern: Syntax, escape: Syntax | None, *, negated: bool) -> Predicate:
        term, text = self._terms.term(part), self._terms.constant(pattern)
        mark = "\\" if escape is None else self._terms.constant(escape)
        if not isinstance(term, StepFunction) or not isinstance(mark, str):
            raise NoTranslationError("LIKE is supported for columns")
        if text is None:
            return Constant(None)
        if not isinstance(text, str):
            message = f"The pattern of LIKE is {text!r}, which is not a string"
            raise PredicateError(message, hint="write the pattern in single quotes")
        if term.is_plain:
            return like(term.column, text, escape=mark, negated=negated)
        if term.as_text and not {"%", "_", mark} & set(text):
            return _joined(term.compare("=", text, negated=negated))
        prefix = plain_prefix(term.column, text, mark) if term.as_text else None
        if prefix is None:
            raise NoTranslationError("LIKE of a function has a range only for prefixes of dates")
        return _joined(term.starts_with(prefix, negated=negated))

    def _of_calendar(self, node: Syntax, term: CalendarPart, op: str, value: Any, *, negated: bool) -> Predicate:
        """Compare a part of a date. Filters rows but prunes nothing: the part restarts each day or year."""
        if value is None:
            return Constant(None)
        placed = place(value, Column(term.column.path, term.column.physical_path, INTEGER))
        reason = f"the {term.function.replace('_', ' ')} is periodic and has no range"
        filters = None
        if placed.exact:
            number = pc.scalar(typed_scalar(placed.low, pa.int64()))
            part = getattr(pc, term.function)(pc.field(*term.column.path))
            filters = _ordered(part, op, number)
        return self._opaque(node, reason, negated=negated, expression=filters)

    def _between_columns(self, left: Column, op: str, right: Column) -> pc.Expression | None:
        floats = {Primitive("float"), Primitive("double")}
        if self._nan is not NanOrder.UNORDERED and (left.type in floats or right.type in floats):
            return None  # PyArrow would compare NaN by rules other than SQL's.
        return _ordered(pc.field(*left.path), op, pc.field(*right.path))

    def _flag(self, column: Column, *, negated: bool) -> Predicate:
        """Translate a column used alone as a condition."""
        if column.type != Primitive("boolean"):
            message = f"Column {column.name!r} of type {column.type} is used as a condition"
            raise PredicateError(message, hint="compare it with a value")
        return compare(column, "=", value=True, negated=negated)

    def _plain_column(self, node: Syntax) -> Column:
        term = self._terms.term(node)
        if not isinstance(term, StepFunction) or not term.is_plain:
            raise NoTranslationError("a column was expected")
        return term.column

    def _any_column(self, node: Syntax) -> Column:
        """Return the column of a function that is null exactly where the column is."""
        term = self._terms.term(node)
        if isinstance(term, Known):
            raise NoTranslationError("no column is named")
        return term.column

    def _opaque(
        self, node: Syntax, reason: str, *, negated: bool, expression: pc.Expression | None = None
    ) -> Predicate:
        columns = dict.fromkeys(self._terms.column(name) for name in names_in(node))
        if expression is not None and negated:
            expression = ~expression
        text = f"NOT ({node})" if negated else str(node)
        sql = _EngineText(self._terms).of(node) if self._by_engine and expression is None else None
        if sql is not None and negated:
            sql = f"NOT ({sql})"
        return Opaque(text, tuple(columns), expression, reason, sql=sql)


class _EngineText:
    """Writes conditions in DuckDB's SQL, for rows that only an engine can evaluate."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def of(self, node: Syntax) -> str | None:
        """Return the condition, or None if it would have another meaning in DuckDB."""
        try:
            return self._text(node)
        except (NoTranslationError, PredicateError):
            return None

    def _text(self, node: Syntax) -> str:
        match node:
            case Name():
                head, *rest = self._terms.column(node).path
                return functools.reduce(_field, rest, '"' + head.replace('"', '""') + '"')
            case Foreign(text):
                found = in_duckdb(text)
                if found is None:
                    raise NoTranslationError("its value changes with each call")
                return f"({found})"
            case Literal(value):
                return _constant(value)
        if not any(names_in(node)):
            with contextlib.suppress(NoTranslationError):
                return _constant(self._terms.constant(node))
        return self._value(node) or self._condition(node)

    def _value(self, node: Syntax) -> str | None:
        match node:
            case Arithmetic(op, left, right):
                return f"({self._text(left)} {op} {self._text(right)})"
            case Negative(part):
                return f"(-{self._text(part)})"
            case Cast(part, kind, False):
                return f"CAST({self._text(part)} AS {kind})"
            case Call("extract", (Literal(str(unit)), part)) if unit.isalpha():
                return f"extract({unit} FROM {self._text(part)})"
            case Call(name, arguments) if name in _SAME_IN_DUCKDB:
                return f"{name}({', '.join(map(self._text, arguments))})"
        return None

    def _condition(self, node: Syntax) -> str:
        match node:
            case Comparison(op, left, right):
                word = {"<=>": "IS NOT DISTINCT FROM"}.get(op, op)
                return f"({self._text(left)} {word} {self._text(right)})"
            case Between(part, low, high):
                return f"({self._text(part)} BETWEEN {self._text(low)} AND {self._text(high)})"
            case Membership(part, values):
                return f"({self._text(part)} IN ({', '.join(map(self._text, values))}))"
            case NullTest(part):
                return f"({self._text(part)} IS NULL)"
            case TruthTest(part, value):
                return f"({self._text(part)} IS {value})"
            case Pattern(part, pattern, escape):
                mark = "'\\'" if escape is None else self._text(escape)
                return f"({self._text(part)} LIKE {self._text(pattern)} ESCAPE {mark})"
        raise NoTranslationError("DuckDB may interpret it differently")


def _field(whole: str, name: str) -> str:
    return f"struct_extract({whole}, {_quoted(name)})"


def _constant(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bool() | int() | PyDecimal():
            return str(value)
        case str():
            return _quoted(value)
        case bytes():
            return f"from_hex('{value.hex()}')"
        case Day(nanoseconds):
            return f"DATE '{timestamp_text(nanoseconds // _NANOSECONDS_A_DAY, 'D')}'"
        case Instant(nanoseconds):
            return f"make_timestamptz({nanoseconds // 1_000})"
        case Timespan(months, nanoseconds):
            return f"(to_months({months}) + to_microseconds({nanoseconds // 1_000}))"
    raise NoTranslationError(f"{value!r} has no literal")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _joined(found: tuple[str, tuple[Predicate, ...]] | None) -> Predicate:
    if found is None:
        raise NoTranslationError("days outside the years 1 to 9999 do not sort as strings")
    word, parts = found
    return (conjunction if word == "and" else disjunction)(parts)


def _ordered(left: pc.Expression, op: str, right: pc.Expression) -> pc.Expression:
    comparisons: dict[str, Callable[[pc.Expression], pc.Expression]] = {
        "=": left.__eq__,
        "!=": left.__ne__,
        "<": left.__lt__,
        "<=": left.__le__,
        ">": left.__gt__,
        ">=": left.__ge__,
    }
    return comparisons[op](right)


def _as_text(column: Column, value: Any) -> Any:
    """Return the digits of an integer that is compared for equality with a string column, as in deltalake.

    Order comparisons are rejected later: as strings '12' sorts before '2', which is not what a number means.
    """
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number and column.type == Primitive("string") else value


# SQL strings to predicates: the small parser reads common SQL, sqlglot reads the rest.


_KQL_FUNCTIONS = ("ago", "datetime", "now")
_UNQUOTED_TIMESTAMPS = (
    rf"(?is){QUOTED}|\b(?P<name>{'|'.join(_KQL_FUNCTIONS)})\s*\(\s*(?P<inside>[-+]?[0-9][^()'\"`]*?)\s*\)"
)


def parse_sql(text: str, schema: TableSchema, *, now: int, nan: NanOrder = NanOrder.LARGEST, **how: Any) -> Predicate:
    """Translate a SQL condition. Parts without a translation become opaque, unknown columns raise an error.

    ``now`` is the value of ``now()``, in nanoseconds since 1970. ``how`` is as in `parse_predicate`: with
    ``by_engine``, opaque parts also carry DuckDB SQL.
    """
    if not text.strip():
        message = "The predicate is empty"
        raise PredicateError(message, hint="omit it, or write a condition such as \"date = '2026-02-08'\"")
    text = quote_timestamps(text)
    tree = parse_plain(text)
    try:
        return Translator(schema, now=now, nan=nan, **how).predicate(tree or parse_foreign(text))
    except RecursionError as error:
        raise too_deep(text) from error


def quote_timestamps(text: str) -> str:
    """Quote the arguments that KQL leaves unquoted: ``ago(1h)``, ``datetime(2026-02-08)``."""
    lowered = text.lower()
    if not any(name in lowered for name in _KQL_FUNCTIONS):
        return text
    return re.sub(
        _UNQUOTED_TIMESTAMPS, lambda match: f"{match['name']}('{match['inside']}')" if match["name"] else match[0], text
    )
