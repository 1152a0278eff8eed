"""Typed expressions: each has Kusto's type, its SQL for DuckDB, and the operation that it is, for pushdown.

How Kusto's types are held in DuckDB: a ``timespan`` is a BIGINT of ticks of 100 ns, a ``datetime`` a TIMESTAMP (UTC,
microseconds), ``dynamic`` is JSON whose null is SQL's, and a ``string`` is a VARCHAR that is never null. The last is
a promise that every function keeps, so that no operator on strings has to think of nulls.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

__all__ = ["NUMBERS", "SQL_TYPES", "Typed", "as_kind", "call", "column", "literal", "quoted", "substituted"]

SQL_TYPES = {
    "bool": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "real": "DOUBLE",
    "decimal": "DECIMAL(38,18)",
    "string": "VARCHAR",
    "datetime": "TIMESTAMP",
    "timespan": "BIGINT",
    "dynamic": "JSON",
    "guid": "UUID",
}
"""The DuckDB type that holds each kind."""

NUMBERS = ("int", "long", "decimal", "real")
"""The numeric kinds, each after those that it takes in."""


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression with its type.

    ``op`` says what it is: ``column`` (``value`` is the column's id), ``literal`` (``value`` is a Python value), or
    Kusto's name of the operator or function over ``arguments``. ``name`` is what a column made of it is called if
    nobody says so.
    """

    kind: str
    sql: str
    op: str
    arguments: tuple[Typed, ...] = ()
    value: Any = None
    refs: frozenset[str] = frozenset()
    name: str | None = None

    @property
    def is_literal(self) -> bool:
        """Tell whether the value is known."""
        return self.op == "literal"


def column(identity: str, kind: str, name: str) -> Typed:
    """Return a reference to a column of the rows at hand."""
    return Typed(kind, identity, "column", value=identity, refs=frozenset({identity}), name=name)


def literal(kind: str, value: Any) -> Typed:
    """Return a constant; None is null, which a string cannot be."""
    if kind == "string" and value is None:
        value = ""
    return Typed(kind, _literal_sql(kind, value), "literal", value=value)


def call(kind: str, op: str, sql: str, arguments: Iterable[Typed] = (), *, name: str | None = None) -> Typed:
    """Return an operation over expressions, whose SQL has been written already."""
    given = tuple(arguments)
    refs = frozenset[str]().union(*(each.refs for each in given))
    return Typed(kind, sql, op, given, refs=refs, name=name)


def quoted(text: str) -> str:
    """Return SQL for a text."""
    if "\0" in text:
        # The parser of DuckDB ends at a null byte.
        return "(" + " || chr(0) || ".join(quoted(each) for each in text.split("\0")) + ")"
    return "'" + text.replace("'", "''") + "'"


def as_kind(expression: Typed, kind: str) -> str:
    """Return SQL for a number (or null) as a number of another kind."""
    if expression.kind == kind:
        return expression.sql
    if kind == "decimal" and expression.kind in {"int", "long"}:
        return f"CAST({expression.sql} AS DECIMAL(38,0))"
    return f"CAST({expression.sql} AS {SQL_TYPES[kind]})"


def substituted(expression: Typed, definitions: dict[str, Typed]) -> Typed:
    """Return the expression with columns replaced by what they stand for; its SQL is not to be used any more."""
    if expression.op == "column":
        return definitions.get(str(expression.value), expression)
    if not expression.refs & definitions.keys():
        return expression
    arguments = tuple(substituted(each, definitions) for each in expression.arguments)
    refs = frozenset[str]().union(*(each.refs for each in arguments))
    return replace(expression, arguments=arguments, refs=refs)


def _literal_sql(kind: str, value: Any) -> str:
    if value is None:
        return f"CAST(NULL AS {SQL_TYPES[kind]})"
    if kind == "bool":
        return "TRUE" if value else "FALSE"
    if kind in {"int", "long", "timespan"}:
        return f"CAST({value} AS {SQL_TYPES[kind]})"
    if kind == "real":
        number = "nan" if math.isnan(value) else repr(float(value))
        return f"CAST('{number}' AS DOUBLE)"
    if kind == "decimal":
        return _decimal_sql(value)
    if kind == "datetime":
        return f"make_timestamp(CAST({value // 10} AS BIGINT))"
    if kind == "guid":
        return f"CAST('{value}' AS UUID)"
    if kind == "dynamic":
        return f"CAST({quoted(json.dumps(value, ensure_ascii=False, separators=(',', ':')))} AS JSON)"
    return quoted(value)


def _decimal_sql(value: Decimal) -> str:
    _, digits, exponent = value.as_tuple()
    scale = max(0, -int(exponent))
    width = max(len(digits) + max(0, int(exponent)), scale, 1)
    return f"CAST('{value:f}' AS DECIMAL({min(width, 38)},{min(scale, 38)}))"
