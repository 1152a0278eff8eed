"""Arithmetic: whole numbers stay whole, remainders are never negative, moments and spans go together as in life."""

from __future__ import annotations

from lazydelta.kql.language.kql_literals import FIRST_TICK, LAST_TICK
from lazydelta.kql.meaning.kinds import Complain, described
from lazydelta.kql.meaning.typed import NUMBERS, Typed, as_kind, call, literal

__all__ = ["minus", "operate"]


def operate(op: str, left: Typed, right: Typed, complain: Complain) -> Typed:
    """Return ``left op right`` for + - * / %."""
    if left.kind in NUMBERS and right.kind in NUMBERS:
        return _numbers(op, left, right)
    folded = _moment_and_span(op, left, right)
    if folded is not None:
        return folded
    both = {left.kind, right.kind}
    sides = (left, right)
    if both == {"timespan"} and op in {"+", "-", "%"}:
        sql = f"kql_mod({left.sql}, {right.sql})" if op == "%" else f"({left.sql} {op} {right.sql})"
        return call("timespan", op, sql, sides)
    if both == {"timespan"} and op == "/":
        return call("real", op, f"(CAST({left.sql} AS DOUBLE) / {right.sql})", sides)
    if op == "-" and both == {"datetime"}:
        return call("timespan", op, f"((epoch_us({left.sql}) - epoch_us({right.sql})) * 10)", sides)
    if op == "*" and "timespan" in both and both & set(NUMBERS):
        span, number = (left, right) if left.kind == "timespan" else (right, left)
        return call("timespan", op, _scaled(span, "*", number), sides)
    if op == "/" and left.kind == "timespan" and right.kind in NUMBERS:
        return call("timespan", op, _scaled(left, "/", right), sides)
    hint = {"string": "join texts with strcat()", "dynamic": "convert it with tolong() or todouble()"}
    message = f"{op} is not defined for {described(left.kind)} and {described(right.kind)}"
    raise complain(message, next((hint[each] for each in (left.kind, right.kind) if each in hint), None))


def minus(value: Typed, complain: Complain) -> Typed:
    """Return the value with the other sign."""
    if value.kind not in {*NUMBERS, "timespan"}:
        raise complain(f"{described(value.kind)} has no sign", None)
    kind = "long" if value.kind == "int" else value.kind
    return call(kind, "-", f"(-{as_kind(value, kind) if kind == 'long' else value.sql})", (value,))


def _numbers(op: str, left: Typed, right: Typed) -> Typed:
    kinds = {left.kind, right.kind}
    if "real" in kinds or ("decimal" in kinds and op in {"/", "%"}):
        first, second = as_kind(left, "real"), as_kind(right, "real")
        kind = "real"
    elif "decimal" in kinds:
        first, second, kind = left.sql, right.sql, "decimal"
    else:
        first, second, kind = as_kind(left, "long"), as_kind(right, "long"), "long"
    if op == "%":
        sql = f"kql_mod({first}, {second})"
    elif op == "/" and kind == "long":
        sql = f"({first} // {second})"
    else:
        sql = f"({first} {op} {second})"
    return call(kind, op, sql, (left, right))


def _moment_and_span(op: str, left: Typed, right: Typed) -> Typed | None:
    """Add a span to a moment, at once if both are known: bounds of time are what prunes files."""
    if (left.kind, right.kind) == ("timespan", "datetime") and op == "+":
        left, right = right, left
    if (left.kind, right.kind) != ("datetime", "timespan") or op not in {"+", "-"}:
        return None
    if left.is_literal and right.is_literal and left.value is not None and right.value is not None:
        moment = left.value + (right.value if op == "+" else -right.value)
        return literal("datetime", moment if FIRST_TICK <= moment <= LAST_TICK else None)
    # No sum of a moment and a span leaves DuckDB's range, only Kusto's.
    sql = f"kql_dated(make_timestamp(epoch_us({left.sql}) {op} {right.sql} // 10))"
    return call("datetime", op, sql, (left, right))


def _scaled(span: Typed, op: str, number: Typed) -> str:
    if number.kind in {"int", "long"}:
        return f"({span.sql} {'//' if op == '/' else op} {as_kind(number, 'long')})"
    return f"TRY_CAST(trunc({span.sql} {op} {as_kind(number, 'real')}) AS BIGINT)"
