"""Parse any other SQL with sqlglot, which is imported only for this, and report invalid SQL."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from decimal import Decimal as PyDecimal
from decimal import InvalidOperation
from typing import TYPE_CHECKING, Any

from lazydelta.errors import PredicateError
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
)
from lazydelta.predicates.sql.terms import KNOWN_FUNCTIONS
from lazydelta.protocol.time import parse_timespan, timespan_of, unit_name
from lazydelta.protocol.values import short_repr

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

__all__ = ["QUOTED", "in_duckdb", "parse_foreign", "sql_of", "syntax_tree", "too_deep"]

_MAX_DEPTH = 200
_HINT = "write a condition as after WHERE; text in single quotes"
# What people write into a condition that belongs elsewhere.
_HABITS = {
    r"^\s*where\b": "omit WHERE",
    r"^\s*select\b": "write the condition alone, or run the query: sql(…)",
    r"\b(order|group)\s+by\b|\blimit\b": "write the condition alone, or sql('FROM self WHERE … ORDER BY … LIMIT …')",
    r"[^<>=]~": "write regexp_matches(column, 'pattern')",
}
_COMPARISONS = {"EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">=", "NullSafeEQ": "<=>"}
_ARITHMETIC = {"Add": "+", "Sub": "-", "Mul": "*"}
_TIMESTAMPS = {"CurrentTimestamp": "current_timestamp", "CurrentDate": "current_date"}
_KINDS = {
    **dict.fromkeys(("TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ", "DATETIME"), "TIMESTAMP"),
    **dict.fromkeys(("TEXT", "VARCHAR", "CHAR", "NCHAR", "NVARCHAR"), "STRING"),
}
# Boolean nodes of sqlglot. Functions and columns may be boolean, too.
_CONDITIONS = frozenset(
    "And Or Not Paren Xor EQ NEQ LT LTE GT GTE NullSafeEQ NullSafeNEQ Is In Between Like ILike "  # noqa: SIM905 - easier to read as words
    "Escape RegexpLike RegexpILike SimilarTo Glob Exists Any All Case If Column Dot Boolean Null Bracket "
    "Placeholder Parameter Cast TryCast Coalesce Overlaps".split()
)
# Quoted strings, names and comments, which are not searched.
QUOTED = r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`|--[^\n]*|/\*.*?\*/"
_SYMBOLS = rf"(?s){QUOTED}|(?P<run>[=<>!~@#?^]{{2,}}|[?@#](?=\s))"
_OPERATORS = frozenset({"==", "!=", "<=", ">=", "<>", "<=>", "<<", ">>", ">>>"})
# Functions whose value may change between batches of rows, or between attempts of a write.
_UNSTEADY = frozenset(
    {"now", "ago", "today", "current_timestamp", "current_date", "localtimestamp", "get_current_timestamp", "random"}
    | {"rand", "uuid", "gen_random_uuid", "nextval", "currval", "getenv", "current_setting", "getvariable"}
)
# Functions whose first argument may be an unquoted unit of time.
_UNIT_FIRST = frozenset({"datediff", "date_diff", "dateadd", "date_add", "timestampdiff", "timestampadd"})


def parse_foreign(text: str) -> Syntax:
    """Parse a condition with sqlglot."""
    tree = _parse(text)
    _refuse_symbols(text)
    try:
        return _Reader(text).condition(tree, depth=0)
    except RecursionError as error:
        raise too_deep(text) from error


def in_duckdb(text: str) -> str | None:
    """Return the DuckDB SQL of a value; None if it calls a function whose value is not stable."""
    tree = _parse(text)
    if any(name in _UNSTEADY for each in tree.walk() if (name := _function_name(each))):
        return None
    return str(tree.sql(dialect="duckdb", normalize_functions=False, identify=True))


def syntax_tree(text: str) -> Expr:
    """Return sqlglot's tree of a value or a condition, for a caller that resolves its names."""
    return _parse(text)


def sql_of(tree: Expr, *, duckdb: bool) -> str:
    """Return a tree as SQL of DuckDB, or as SQL that `parse_predicate` takes."""
    return str(tree.sql(dialect="duckdb" if duckdb else _dialect(), normalize_functions=False, identify=True))


def _function_name(node: Expr) -> str:
    name = type(node).__name__
    return str(node.this).lower() if name == "Anonymous" else _TIMESTAMPS.get(name, "")


def _refuse_symbols(text: str) -> None:
    """Reject operators that some dialects have and that are likely typing errors."""
    for match in re.finditer(_SYMBOLS, text):
        run = match["run"]
        if run and run not in _OPERATORS:
            message = f"The predicate {short_repr(text)} is not valid SQL{_place(text, match.start())}: "
            raise PredicateError(f"{message}there is no operator {run.strip()!r}", hint=_HINT)


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return f" at line {line}, column {column}"


@functools.cache
def _dialect() -> Any:
    from sqlglot.dialects.spark import Spark  # noqa: PLC0415 - 120 ms that only users of rare SQL pay

    base: Any = Spark.Parser

    class LazyDeltaSQL(Spark):
        """Spark's grammar with the quotes of standard SQL, and functions under the names that users wrote."""

        class Tokenizer(Spark.Tokenizer):
            QUOTES = ["'"]  # noqa: RUF012 - sqlglot reads class attributes
            IDENTIFIERS = ["`", '"']  # noqa: RUF012
            STRING_ESCAPES = ["'"]  # noqa: RUF012

        class Parser(base):  # type: ignore[misc]
            FUNCTIONS: dict[str, Any] = {}  # noqa: RUF012

    return LazyDeltaSQL


def _parse(text: str) -> Expr:
    import sqlglot  # noqa: PLC0415 - see _dialect
    from sqlglot import errors, exp  # noqa: PLC0415

    try:
        tree: Expr = sqlglot.parse_one(text, into=exp.Condition, dialect=_dialect())
    except errors.ParseError as error:
        where = next(iter(error.errors), {})
        place = f" at line {where['line']}, column {where['col']}" if where.get("line") else ""
        near = f", near {where['highlight']!r}" if where.get("highlight") else ""
        reason = str(where.get("description") or error).split("<class", maxsplit=1)[0].strip()
        if reason.startswith("Required keyword"):
            reason = "a value or a condition is missing"
        message = f"The predicate {short_repr(text)} is not valid SQL{place}{near}: {reason}"
        hint = next((hint for pattern, hint in _HABITS.items() if re.search(pattern, text, re.IGNORECASE)), _HINT)
        raise PredicateError(message, hint=hint) from error
    except errors.SqlglotError as error:
        message = f"The predicate {short_repr(text)} is not valid SQL: {error}"
        raise PredicateError(message, hint=_HINT) from error
    except RecursionError as error:
        raise too_deep(text) from error
    return tree


def too_deep(text: str) -> PredicateError:
    """Return the error for parentheses nested deeper than Python's stack."""
    message = f"The predicate {short_repr(text)} is nested too deeply"
    return PredicateError(message, hint="flatten it; chains of AND, OR and IN have no length limit")


class _Reader:
    """Converts sqlglot's tree of one condition."""

    def __init__(self, text: str) -> None:
        from sqlglot import exp  # noqa: PLC0415 - see _dialect

        self._exp: Any = exp
        self._text = text

    def condition(self, node: Expr, *, depth: int) -> Syntax:
        """Convert a boolean expression."""
        exp = self._exp
        if depth > _MAX_DEPTH:
            raise RecursionError
        negated = False
        while isinstance(node, exp.Paren | exp.Not):
            negated = negated is not isinstance(node, exp.Not)
            node = node.this
        if isinstance(node, exp.And | exp.Or):
            word = "and" if isinstance(node, exp.And) else "or"
            found: Syntax = Junction(word, tuple(self.condition(part, depth=depth + 1) for part in self._chain(node)))
        else:
            self._need_condition(node)
            found = self._leaf(node)
        return Negation(found) if negated else found

    def _chain(self, node: Expr) -> list[Expr]:
        """Flatten a left-deep chain of one connective without recursion: it may have thousands of parts."""
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

    def _need_condition(self, node: Expr) -> None:
        exp = self._exp
        known = type(node).__name__ in _CONDITIONS or isinstance(node, exp.Func | exp.Query)
        if known and not (isinstance(node, exp.Cast) and node.to.this != exp.DataType.Type.BOOLEAN):
            return
        start = min((part.meta["start"] for part in node.walk() if "start" in part.meta), default=None)
        place = "" if start is None else _place(self._text, start)
        message = f"The predicate {short_repr(self._text)} is not a condition{place}: "
        shown = node.sql(dialect=_dialect(), normalize_functions=False)
        raise PredicateError(f"{message}{short_repr(shown)} is neither true nor false", hint="compare it with a value")

    def _leaf(self, node: Expr) -> Syntax:
        exp, name = self._exp, type(node).__name__
        found: Syntax | None = None
        if name in _COMPARISONS:
            found = Comparison(_COMPARISONS[name], self._value(node.this), self._value(node.expression))
        elif isinstance(node, exp.NullSafeNEQ):
            found = Negation(Comparison("<=>", self._value(node.this), self._value(node.expression)))
        elif isinstance(node, exp.Between) and not node.args.get("symmetric"):
            low, high = node.args["low"], node.args["high"]
            found = Between(self._value(node.this), self._value(low), self._value(high))
        elif isinstance(node, exp.In) and not any(node.args.get(each) for each in ("query", "unnest", "field")):
            found = Membership(self._value(node.this), tuple(self._value(each) for each in node.expressions))
        elif isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            found = NullTest(self._value(node.this))
        elif isinstance(node, exp.Is) and isinstance(node.expression, exp.Boolean):
            found = TruthTest(self._value(node.this), bool(node.expression.this))
        elif isinstance(node, exp.Escape) and isinstance(node.this, exp.Like):
            found = self._like(node.this, self._value(node.expression))
        elif isinstance(node, exp.Like):
            found = self._like(node, None)
        return self._value(node) if found is None else found

    def _like(self, node: Expr, escape: Syntax | None) -> Syntax:
        found = Pattern(self._value(node.this), self._value(node.expression), escape)
        return Negation(found) if node.args.get("negate") else found

    def _value(self, node: Expr) -> Syntax:
        """Convert a value. Anything without a meaning here becomes foreign."""
        exp = self._exp
        node = node.unnest() if isinstance(node, exp.Paren) else node
        name = type(node).__name__
        found: Syntax | None = None
        if name in _ARITHMETIC:
            found = Arithmetic(_ARITHMETIC[name], self._value(node.this), self._value(node.expression))
        elif name in _TIMESTAMPS and not node.args.get("this"):
            found = Call(_TIMESTAMPS[name])
        elif isinstance(node, exp.Neg):
            found = Negative(self._value(node.this))
        elif isinstance(node, exp.Anonymous) and str(node.this).lower() in KNOWN_FUNCTIONS:
            found = Call(str(node.this).lower(), tuple(self._value(each) for each in node.expressions))
        elif isinstance(node, exp.Extract):
            found = Call("extract", (Literal(str(node.this.name).lower()), self._value(node.expression)))
        elif isinstance(node, exp.Interval):
            found = self._interval(node)
        elif isinstance(node, exp.Cast) and not node.args.get("format") and not isinstance(node.to.this, exp.Expr):
            kind = node.to.this.name
            found = Cast(self._value(node.this), _KINDS.get(kind, kind), sized=bool(node.to.expressions))
        elif isinstance(node, exp.Column | exp.Dot):
            found = self._name(node)
        else:
            found = self._literal(node)
        return self._foreign(node) if found is None else found

    def _literal(self, node: Expr) -> Syntax | None:
        exp = self._exp
        if isinstance(node, exp.Null):
            return Literal(None)
        if isinstance(node, exp.Boolean):
            return Literal(bool(node.this))
        if isinstance(node, exp.RawString | exp.National) or (isinstance(node, exp.Literal) and node.is_string):
            return Literal(str(node.this))
        try:
            if isinstance(node, exp.HexString):
                return Literal(bytes.fromhex(str(node.this)))
            if isinstance(node, exp.Literal):
                text = str(node.this)
                return Literal(int(text) if text.isdecimal() else PyDecimal(text))
        except (InvalidOperation, ValueError):
            return None
        return None

    def _interval(self, node: Expr) -> Syntax | None:
        exp, amount, unit = self._exp, node.this, node.args.get("unit")
        if not isinstance(amount, exp.Literal):
            return None
        text = str(amount.this).strip()
        if unit is None:
            span = parse_timespan(text)
        elif re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", text):
            span = timespan_of(PyDecimal(text), unit.name)
        else:
            span = None
        return None if span is None else Literal(span)

    def _name(self, node: Expr) -> Syntax | None:
        exp = self._exp
        names: list[Expr] = []
        while isinstance(node, exp.Dot):
            names.append(node.expression)
            node = node.this
        if not isinstance(node, exp.Column):
            return None
        parts = [*node.parts, *reversed(names)]
        if not all(isinstance(each, exp.Identifier) for each in parts):
            return None  # A method call or a star after the dot.
        return Name(tuple(each.name for each in parts), any(each.args.get("quoted") for each in parts))

    def _foreign(self, node: Expr) -> Syntax:
        exp = self._exp
        text = node.sql(dialect=_dialect(), normalize_functions=False)
        if node.find(exp.Query, exp.Placeholder, exp.Parameter) is not None:
            message = f"The predicate holds {short_repr(text)}, a subquery or a parameter"
            raise PredicateError(message, hint="use literal values instead")
        if isinstance(node, exp.Anonymous):
            reason = f"lazydelta has no range for the function {str(node.this).lower()}()"
        else:
            reason = "lazydelta does not evaluate it"
        return Foreign(text, tuple(self._names(node)), reason)

    def _names(self, node: Expr) -> Iterator[Syntax]:
        exp = self._exp
        for each in node.find_all(exp.Column):
            dotted: Expr = each
            while isinstance(dotted.parent, exp.Dot):
                dotted = dotted.parent
            around, found = dotted.parent, self._name(dotted)
            first = around is not None and around.expressions[:1] == [dotted]
            if first and str(getattr(around, "this", "")).lower() in _UNIT_FIRST and unit_name(dotted.name) is not None:
                continue
            if found is not None:
                yield found
