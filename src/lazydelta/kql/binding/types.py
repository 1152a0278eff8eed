"""Kusto's types: which of them combine, and how each is written as a string."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeAlias

from lazydelta.errors import KqlError

__all__ = [
    "NUMBERS",
    "SQL_TYPES",
    "Complain",
    "Typed",
    "as_kind",
    "call",
    "column",
    "common_kind",
    "converted",
    "described",
    "element_json",
    "literal",
    "quoted",
    "substituted",
    "to_text",
    "unified",
]


# Typed expressions: each has its Kusto type, its SQL for DuckDB, and its operation, for pushdown.
#
# DuckDB holds a ``timespan`` as a BIGINT of 100 ns ticks, a ``datetime`` as a TIMESTAMP (UTC, microseconds), a
# ``dynamic`` as JSON whose null is SQL's, and a ``string`` as a VARCHAR that is never null. Every function keeps the
# last rule, so string operators need not handle nulls.


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
"""The DuckDB type of each kind."""

NUMBERS = ("int", "long", "decimal", "real")
"""The numeric kinds. Each can hold the values of those before it."""


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression with its type.

    ``op`` is the operation: ``column`` (``value`` is the column's id), ``literal`` (``value`` is a Python value), or
    Kusto's name of the operator or function over ``arguments``. ``name`` is the default name of a column made from it.
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
        """Whether the value is a constant."""
        return self.op == "literal"


def column(identity: str, kind: str, name: str) -> Typed:
    """Return a reference to a column in scope."""
    return Typed(kind, identity, "column", value=identity, refs=frozenset({identity}), name=name)


def literal(kind: str, value: Any) -> Typed:
    """Return a constant. None is null, which a string cannot be."""
    if kind == "string" and value is None:
        value = ""
    return Typed(kind, _literal_sql(kind, value), "literal", value=value)


def call(kind: str, op: str, sql: str, arguments: Iterable[Typed] = (), *, name: str | None = None) -> Typed:
    """Return an operation over expressions whose SQL is given."""
    given = tuple(arguments)
    refs = frozenset[str]().union(*(each.refs for each in given))
    return Typed(kind, sql, op, given, refs=refs, name=name)


def quoted(text: str) -> str:
    """Return a string as an SQL literal."""
    if "\0" in text:
        # DuckDB's parser stops at a null byte.
        return "(" + " || chr(0) || ".join(quoted(each) for each in text.split("\0")) + ")"
    return "'" + text.replace("'", "''") + "'"


def as_kind(expression: Typed, kind: str) -> str:
    """Return SQL that converts a number (or null) to another kind."""
    if expression.kind == kind:
        return expression.sql
    if kind == "decimal" and expression.kind in {"int", "long"}:
        return f"CAST({expression.sql} AS DECIMAL(38,0))"
    return f"CAST({expression.sql} AS {SQL_TYPES[kind]})"


def substituted(expression: Typed, definitions: dict[str, Typed]) -> Typed:
    """Return the expression with columns replaced by their definitions. Its SQL is no longer valid."""
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


Complain: TypeAlias = Callable[[str, str | None], KqlError]
"""Creates an error about the current part of the query from a message and a hint."""


def described(kind: str) -> str:
    """Return a kind with its article."""
    return f"an {kind}" if kind == "int" else f"a {kind}"


def common_kind(kinds: Iterable[str]) -> str | None:
    """Return the kind that can hold all of these, or None if there is none."""
    found = list(dict.fromkeys(kinds))
    if len(found) == 1:
        return found[0]
    if all(each in NUMBERS for each in found):
        if "real" in found:
            return "real"
        return max(found, key=NUMBERS.index)
    return None


def unified(what: str, values: Sequence[Typed], complain: Complain) -> tuple[str, list[str]]:
    """Return the common kind of values, and their SQL in that kind."""
    # A null has no type of its own; with a dynamic value, everything becomes dynamic.
    kinds = [each.kind for each in values if not (each.is_literal and each.value is None)] or [values[0].kind]
    kind = common_kind(kinds)
    if kind is None and "dynamic" in kinds:
        kind = "dynamic"
    if kind is None:
        named = ", ".join(dict.fromkeys(kinds))
        raise complain(f"{what} has values of different types: {named}", "convert them to one type")
    return kind, [converted(each, kind) for each in values]


def converted(value: Typed, kind: str) -> str:
    """Return SQL that converts a value to a kind that can hold it."""
    if value.kind == kind:
        return value.sql
    if kind == "dynamic":
        return element_json(value)
    return to_text(value) if kind == "string" else as_kind(value, kind)


def element_json(value: Typed) -> str:
    """Return SQL that converts a value to JSON. Kinds without a JSON type become strings, null stays null."""
    if value.kind == "dynamic":
        return value.sql
    if value.kind in {"datetime", "timespan"}:
        return f"to_json(nullif({to_text(value)}, ''))"
    return f"kql_real_json({value.sql})" if value.kind == "real" else f"to_json({value.sql})"


def to_text(value: Typed) -> str:
    """Return SQL that converts a value to a string as Kusto writes it. Null is the empty string."""
    if value.kind == "string":
        return value.sql
    if value.kind == "dynamic":
        return f"coalesce(json_extract_string({value.sql}, '$'), '')"
    if value.kind == "datetime":
        return f"kql_timestamp_text({value.sql})"
    if value.kind == "timespan":
        return f"kql_span_text({value.sql})"
    if value.kind == "real":
        return f"kql_real_text({value.sql})"
    return f"coalesce(CAST({value.sql} AS VARCHAR), '')"
