"""SQL text to a predicate, through sqlglot (imported only when SQL is used)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal as PyDecimal
from decimal import InvalidOperation
from typing import TYPE_CHECKING, Any

from lazydelta import compute as pc
from lazydelta.errors import PredicateError
from lazydelta.pruning.binding import MIRRORED, compare, conjunction, disjunction, is_null, membership, starts_with
from lazydelta.pruning.like import like
from lazydelta.pruning.tree import Constant, Opaque, Predicate
from lazydelta.types.literals import Instant, parse_instant, short_repr
from lazydelta.types.schema import Column, Primitive, TableSchema

if TYPE_CHECKING:
    from sqlglot.expressions import DataType, Expr

__all__ = ["parse_sql"]

_MAX_DEPTH = 200
_COMPARISONS = {"EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_UNTRANSLATED = object()
_INTEGERS = {"TINYINT", "SMALLINT", "INT", "BIGINT"}
_TEXT = {"TEXT", "VARCHAR", "CHAR", "NCHAR", "NVARCHAR"}
_DATETIMES = {"TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ", "DATETIME"}


def parse_sql(text: str, schema: TableSchema) -> Predicate:
    """Translate a SQL condition; parts without a translation become opaque, unknown columns are errors."""
    tree = _parse(text)
    try:
        return _Translator(schema).predicate(tree, negated=False, depth=0)
    except RecursionError as error:
        raise _too_deep(text) from error


@functools.cache
def _dialect() -> Any:
    from sqlglot.dialects.spark import Spark  # noqa: PLC0415 - 120 ms that only users of SQL pay

    class LazyDeltaSQL(Spark):
        """Spark's grammar with the quotes of standard SQL: "name", 'text', and '' for a quote in a text."""

        class Tokenizer(Spark.Tokenizer):
            QUOTES = ["'"]  # noqa: RUF012 - sqlglot reads class attributes
            IDENTIFIERS = ["`", '"']  # noqa: RUF012
            STRING_ESCAPES = ["'"]  # noqa: RUF012

    return LazyDeltaSQL


def _parse(text: str) -> Expr:
    import sqlglot  # noqa: PLC0415 - see _dialect
    from sqlglot import errors, exp  # noqa: PLC0415

    if not text.strip():
        message = "The predicate is empty"
        raise PredicateError(message, hint="leave it out, or write a condition such as \"date = '2026-02-08'\"")
    try:
        tree: Expr = sqlglot.parse_one(text, into=exp.Condition, dialect=_dialect())
    except errors.ParseError as error:
        where = next(iter(error.errors), {})
        place = f" at line {where['line']}, column {where['col']}" if where.get("line") else ""
        near = f", near {where['highlight']!r}" if where.get("highlight") else ""
        reason = str(where.get("description") or error).split("<class", maxsplit=1)[0].strip()
        message = f"The predicate {short_repr(text)} is not valid SQL{place}{near}: {reason}"
        raise PredicateError(message, hint="write a condition as after WHERE; text in single quotes") from error
    except errors.SqlglotError as error:
        message = f"The predicate {short_repr(text)} is not valid SQL: {error}"
        raise PredicateError(message, hint="write a condition as after WHERE; text in single quotes") from error
    except RecursionError as error:
        raise _too_deep(text) from error
    return tree


def _too_deep(text: str) -> PredicateError:
    message = f"The predicate {short_repr(text)} is nested too deeply"
    return PredicateError(message, hint="flatten it: chains of AND, OR and IN may be as long as you like")


class _Translator:
    """Walks one parsed condition, bound to one schema."""

    def __init__(self, schema: TableSchema) -> None:
        from sqlglot import exp  # noqa: PLC0415 - see _dialect

        self._exp: Any = exp
        self._schema = schema
        self._handlers: dict[str, Callable[..., Predicate]] = {
            "Boolean": self._boolean,
            "Null": self._null,
            "Column": self._flag,
            "Dot": self._flag,
            "Between": self._between,
            "In": self._in,
            "Is": self._is,
            "NullSafeEQ": self._null_safe,
            "NullSafeNEQ": self._null_safe,
            "Like": self._like,
            "Escape": self._escape,
            "StartsWith": self._starts_with,
        }

    def predicate(self, node: Expr, *, negated: bool, depth: int) -> Predicate:
        """Translate ``node``, or its negation."""
        exp = self._exp
        if depth > _MAX_DEPTH:
            raise RecursionError
        while isinstance(node, exp.Paren | exp.Not):
            negated = negated is not isinstance(node, exp.Not)
            node = node.this
        if isinstance(node, exp.And | exp.Or):
            join = conjunction if isinstance(node, exp.And) is not negated else disjunction
            return join([self.predicate(part, negated=negated, depth=depth + 1) for part in self._chain(node)])
        name = type(node).__name__
        if name in _COMPARISONS:
            return self._comparison(node, _COMPARISONS[name], negated=negated)
        handler = self._handlers.get(name)
        return handler(node, negated=negated) if handler else self._opaque(node, negated=negated)

    def _chain(self, node: Expr) -> list[Expr]:
        """Take a left-deep chain of one connective apart without recursion: it may be thousands long."""
        kind, parts, pending = type(node), [], [node]
        while pending:
            each = pending.pop()
            if type(each) is kind:
                pending += [each.expression, each.this]
            elif isinstance(each, self._exp.Paren) and type(each.unnest()) is kind:
                pending.append(each.unnest())
            else:
                parts.append(each)
        return parts

    def _comparison(self, node: Expr, op: str, *, negated: bool) -> Predicate:
        left, right = self._column(node.this), self._column(node.expression)
        if left is not None and right is not None:
            return self._opaque(node, negated=negated, expression=_between_columns(left, op, right))
        if left is None and right is None:
            return self._literals(node, op, negated=negated)
        column = left or right
        assert column is not None  # noqa: S101 - one of the two is there
        value = self._literal(node.expression if left else node.this)
        if value is _UNTRANSLATED:
            return self._opaque(node, negated=negated)
        return compare(column, op if left else MIRRORED[op], value, negated=negated)

    def _literals(self, node: Expr, op: str, *, negated: bool) -> Predicate:
        left, right = self._literal(node.this), self._literal(node.expression)
        if left is None or right is None:
            return Constant(None)
        known = {str: str, int: int, PyDecimal: int}
        if _UNTRANSLATED in (left, right) or known.get(type(left), 0) is not known.get(type(right), 1):
            return self._opaque(node, negated=negated)
        holds = {
            "=": left == right,
            "!=": left != right,
            "<": left < right,
            "<=": left <= right,
            ">": left > right,
            ">=": left >= right,
        }[op]
        return Constant(holds is not negated)

    def _between(self, node: Expr, *, negated: bool) -> Predicate:
        column = self._column(node.this)
        low, high = self._literal(node.args["low"]), self._literal(node.args["high"])
        if column is None or _UNTRANSLATED in (low, high) or node.args.get("symmetric"):
            return self._opaque(node, negated=negated)
        join = disjunction if negated else conjunction
        return join([compare(column, ">=", low, negated=negated), compare(column, "<=", high, negated=negated)])

    def _in(self, node: Expr, *, negated: bool) -> Predicate:
        column = self._column(node.this)
        values = [self._literal(each) for each in node.expressions]
        others = any(node.args.get(each) for each in ("query", "unnest", "field"))
        if column is None or others or any(value is _UNTRANSLATED for value in values):
            return self._opaque(node, negated=negated)
        return membership(column, values, negated=negated)

    def _is(self, node: Expr, *, negated: bool) -> Predicate:
        column, exp = self._column(node.this), self._exp
        if column is not None and isinstance(node.expression, exp.Null):
            return is_null(column, negated=negated)
        if column is not None and isinstance(node.expression, exp.Boolean):
            return _null_safe(column, node.expression.this, negated=negated)
        return self._opaque(node, negated=negated)

    def _null_safe(self, node: Expr, *, negated: bool) -> Predicate:
        negated = negated is not isinstance(node, self._exp.NullSafeNEQ)
        left, right = self._column(node.this), self._column(node.expression)
        value = self._literal(node.expression if left else node.this)
        column = left or right
        if column is None or (left and right) or value is _UNTRANSLATED:
            return self._opaque(node, negated=negated)
        return _null_safe(column, value, negated=negated)

    def _like(self, node: Expr, *, negated: bool, escape: str = "\\") -> Predicate:
        negated = negated is not bool(node.args.get("negate"))
        column, pattern = self._column(node.this), self._literal(node.expression)
        if column is None or not isinstance(pattern, str):
            return Constant(None) if pattern is None and column else self._opaque(node, negated=negated)
        return like(column, pattern, escape=escape, negated=negated)

    def _escape(self, node: Expr, *, negated: bool) -> Predicate:
        escape = self._literal(node.expression)
        if isinstance(node.this, self._exp.Like) and isinstance(escape, str):
            return self._like(node.this, negated=negated, escape=escape)
        return self._opaque(node, negated=negated)

    def _starts_with(self, node: Expr, *, negated: bool) -> Predicate:
        column, prefix = self._column(node.this), self._literal(node.expression)
        if column is None or not isinstance(prefix, str):
            return self._opaque(node, negated=negated)
        return starts_with(column, prefix, negated=negated)

    def _boolean(self, node: Expr, *, negated: bool) -> Predicate:
        return Constant(bool(node.this) is not negated)

    def _null(self, _node: Expr, *, negated: bool) -> Predicate:  # noqa: ARG002 - NOT NULL is NULL
        return Constant(None)

    def _flag(self, node: Expr, *, negated: bool) -> Predicate:
        """Take a column that stands alone as a condition."""
        column = self._column(node)
        if column is None:
            return self._opaque(node, negated=negated)
        if column.type != Primitive("boolean"):
            message = f"Column {column.name!r} of type {column.type} stands where a condition should be"
            raise PredicateError(message, hint="compare it with a value")
        return compare(column, "=", value=True, negated=negated)

    def _opaque(self, node: Expr, *, negated: bool, expression: pc.Expression | None = None) -> Predicate:
        exp = self._exp
        text = node.sql(dialect=_dialect())
        if node.find(exp.Query, exp.Placeholder, exp.Parameter) is not None:
            message = f"The predicate holds {short_repr(text)}, a subquery or a parameter"
            raise PredicateError(message, hint="write values in its place")
        columns: dict[Column, None] = {}
        for each in node.find_all(exp.Column):
            dotted: Expr = each
            while isinstance(dotted.parent, exp.Dot):
                dotted = dotted.parent
            column = self._column(dotted)
            if column is not None:
                columns[column] = None
        if expression is not None and negated:
            expression = ~expression
        return Opaque(f"NOT ({text})" if negated else text, tuple(columns), expression)

    def _column(self, node: Expr) -> Column | None:
        exp = self._exp
        node = node.unnest() if isinstance(node, exp.Paren) else node
        names: list[Expr] = []
        while isinstance(node, exp.Dot):
            names.append(node.expression)
            node = node.this
        if not isinstance(node, exp.Column):
            return None
        parts = [*node.parts, *reversed(names)]
        if not all(isinstance(each, exp.Identifier) for each in parts):
            return None  # A method call or a star behind the dot.
        if len(parts) > 1 and not any(each.args.get("quoted") for each in parts):
            return self._schema.column(".".join(each.name for each in parts))
        return self._schema.column(tuple(each.name for each in parts))

    def _literal(self, node: Expr | None) -> Any:
        """Return a literal's Python value, None for NULL, or the mark of something else."""
        exp = self._exp
        node = node.unnest() if isinstance(node, exp.Paren) else node
        sign = 1
        while isinstance(node, exp.Neg):
            sign, node = -sign, node.this
            node = node.unnest() if isinstance(node, exp.Paren) else node
        value: Any = _UNTRANSLATED
        if isinstance(node, exp.Literal):
            value = str(node.this) if node.is_string else _number(str(node.this))
        elif isinstance(node, exp.Null):
            value = None
        elif isinstance(node, exp.Boolean):
            value = bool(node.this)
        elif isinstance(node, exp.RawString | exp.National):
            value = str(node.this)
        elif isinstance(node, exp.HexString):
            value = _hexadecimal(str(node.this))
        elif isinstance(node, exp.Cast) and not node.args.get("format"):
            value = _cast(self._literal(node.this), node.to)
        elif isinstance(node, exp.TsOrDsToDate) and not node.args.get("format"):
            value = _cast_instant(self._literal(node.this), days=True)
        if sign < 0 and value is not None:
            is_number = isinstance(value, int | float | PyDecimal) and not isinstance(value, bool)
            # Not the minus sign: that would round a decimal to the 28 digits of Python's context.
            value = (value.copy_negate() if isinstance(value, PyDecimal) else -value) if is_number else _UNTRANSLATED
        return value


def _null_safe(column: Column, value: Any, *, negated: bool) -> Predicate:
    """Compare with <=>, which is never unknown, so that its negation holds for nulls."""
    if value is None:
        return is_null(column, negated=negated)
    result = compare(column, "=", value, negated=negated)
    return disjunction([result, is_null(column)]) if negated else result


def _between_columns(left: Column, op: str, right: Column) -> pc.Expression:
    first, second = pc.field(*left.path), pc.field(*right.path)
    return {
        "=": first == second,
        "!=": first != second,
        "<": first < second,
        "<=": first <= second,
        ">": first > second,
        ">=": first >= second,
    }[op]


def _number(text: str) -> Any:
    try:
        return int(text) if text.isdecimal() else PyDecimal(text)
    except (InvalidOperation, ValueError):
        return _UNTRANSLATED


def _hexadecimal(text: str) -> Any:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return _UNTRANSLATED


def _cast(value: Any, to: DataType) -> Any:
    """Cast a literal as SQL would, where that needs no guess."""
    if value is None or value is _UNTRANSLATED:
        return value
    kind = to.this.name if hasattr(to.this, "name") else str(to.this)
    if kind == "DATE":
        return _cast_instant(value, days=True)
    if kind in _DATETIMES:
        return _cast_instant(value, days=False)
    if kind in _TEXT:
        # The length of CHAR(n) and VARCHAR(n) would pad or cut.
        plain = isinstance(value, str | int) and not isinstance(value, bool) and not to.expressions
        return str(value) if plain else _UNTRANSLATED
    if kind == "BOOLEAN" and isinstance(value, str) and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    if isinstance(value, bool):
        return value if kind == "BOOLEAN" else _UNTRANSLATED
    number = _number(value.strip()) if isinstance(value, str) else value
    if not isinstance(number, int | PyDecimal | float) or (isinstance(number, PyDecimal) and not number.is_finite()):
        return _UNTRANSLATED
    if kind in _INTEGERS and isinstance(number, int):
        return number
    if kind in {"DOUBLE", "FLOAT"} and isinstance(number, int | PyDecimal):
        return (
            float(number) if kind == "DOUBLE" and PyDecimal("-1e300") < number < PyDecimal("1e300") else _UNTRANSLATED
        )
    # DECIMAL(p, s) rounds to its scale; without rounding to do it is the number itself.
    if kind == "DECIMAL" and isinstance(number, int):
        return number
    return _UNTRANSLATED


def _cast_instant(value: Any, *, days: bool) -> Any:
    if isinstance(value, str):
        nanoseconds = parse_instant(value)
    elif isinstance(value, Instant):
        nanoseconds = value.nanoseconds
    else:
        return _UNTRANSLATED if value is not None else None
    if nanoseconds is None:
        message = f"{short_repr(value)} is not a {'date' if days else 'timestamp'}"
        raise PredicateError(message, hint="write it as 'YYYY-MM-DD' or 'YYYY-MM-DD HH:MM:SS'")
    day = 86_400 * 10**9
    return Instant(nanoseconds // day * day if days else nanoseconds)
