"""Arithmetic: integers stay integers, remainders are never negative, and datetimes combine with timespans."""

from __future__ import annotations

from collections.abc import Sequence

from lazydelta.kql.binding.types import (
    NUMBERS,
    Complain,
    Typed,
    as_kind,
    call,
    common_kind,
    described,
    literal,
    quoted,
    to_text,
)
from lazydelta.kql.language.literals import FIRST_TICK, LAST_TICK


def operate(op: str, left: Typed, right: Typed, complain: Complain) -> Typed:
    """Return ``left op right`` for + - * / %."""
    if left.kind in NUMBERS and right.kind in NUMBERS:
        return _numbers(op, left, right)
    left, right = _plain(left, right.kind), _plain(right, left.kind)
    if left.kind in NUMBERS and right.kind in NUMBERS:
        return _numbers(op, left, right)
    folded = _timestamp_and_span(op, left, right)
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
        if all(each.is_literal and each.value is not None for each in sides):
            return literal("timespan", left.value - right.value)
        return call("timespan", op, f"((epoch_us({left.sql}) - epoch_us({right.sql})) * 10)", sides)
    if op == "*" and "timespan" in both and both & set(NUMBERS):
        span, number = (left, right) if left.kind == "timespan" else (right, left)
        return call("timespan", op, _scaled(span, "*", number), sides)
    if op == "/" and left.kind == "timespan" and right.kind in NUMBERS:
        return call("timespan", op, _scaled(left, "/", right), sides)
    hint = {"string": "join texts with strcat()"}
    message = f"{op} is not defined for {described(left.kind)} and {described(right.kind)}"
    raise complain(message, next((hint[each] for each in (left.kind, right.kind) if each in hint), None))


def _plain(value: Typed, other: str) -> Typed:
    """Return a dynamic value as one that fits the other side of an arithmetic operator: a number, or a time."""
    if value.kind != "dynamic":
        return value
    kind = {"datetime": "timespan", "timespan": "timespan"}.get(other, "real")
    text = to_text(value)
    sql = f"kql_span({text})" if kind == "timespan" else f"TRY_CAST(nullif({text}, '') AS DOUBLE)"
    return call(kind, "convert", sql, (value,), name=value.name)


def minus(value: Typed, complain: Complain) -> Typed:
    """Return the negated value."""
    value = _plain(value, "real")
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
        sql = f"{'kql_real_mod' if kind == 'real' else 'kql_mod'}({first}, {second})"
    elif op == "/" and kind == "long":
        sql = f"({first} // {second})"
    else:
        sql = f"({first} {op} {second})"
    return call(kind, op, sql, (left, right))


def _timestamp_and_span(op: str, left: Typed, right: Typed) -> Typed | None:
    """Add a timespan to a datetime. Constants are folded, because time bounds are what prunes files."""
    if (left.kind, right.kind) == ("timespan", "datetime") and op == "+":
        left, right = right, left
    if (left.kind, right.kind) != ("datetime", "timespan") or op not in {"+", "-"}:
        return None
    if left.is_literal and right.is_literal and left.value is not None and right.value is not None:
        timestamp = left.value + (right.value if op == "+" else -right.value)
        return literal("datetime", timestamp if FIRST_TICK <= timestamp <= LAST_TICK else None)
    # The sum never leaves DuckDB's range, only Kusto's.
    sql = f"kql_dated(make_timestamp(epoch_us({left.sql}) {op} {right.sql} // 10))"
    return call("datetime", op, sql, (left, right))


def _scaled(span: Typed, op: str, number: Typed) -> str:
    if number.kind in {"int", "long"}:
        return f"({span.sql} {'//' if op == '/' else op} {as_kind(number, 'long')})"
    return f"TRY_CAST(trunc({span.sql} {op} {as_kind(number, 'real')}) AS BIGINT)"


# Comparisons, where Kusto's nulls differ from SQL's.
#
# ``null == value`` is false and ``null != value`` is true; only two nulls give null. Order comparisons with null are
# null. Reals compare as in IEEE 754, whereas DuckDB treats NaN as the largest number. Strings can be ordered as well,
# byte by byte, for which Kusto has only ``strcmp``: partitions by hour are strings.


_ALNUM = "[A-Za-z0-9]"
_EDGE_BEFORE, _EDGE_AFTER = "(?:^|[^A-Za-z0-9])", "(?:$|[^A-Za-z0-9])"


def compare(op: str, left: Typed, right: Typed, complain: Complain) -> Typed:
    """Return ``left op right`` for ==, !=, <, <=, >, >=."""
    kind = _comparable(op, left, right, complain)
    if kind == "guid" and op not in {"==", "!="}:
        raise complain("guids have no order", "compare them with == or !=")
    first, second = _side(left, kind), _side(right, kind)
    if op in {"==", "!="}:
        sql = _equality(first, second, kind, known=_not_null(left) or _not_null(right))
        return call("bool", op, f"(NOT {sql})" if op == "!=" else sql, (left, right))
    sql = f"({first} {op} {second})"
    if kind == "real":
        larger = second if op in {"<", "<="} else first
        known = right if op in {"<", "<="} else left
        if not _not_null(known) or known.value != known.value:
            smaller = first if op in {"<", "<="} else second
            sql = f"(CASE WHEN isnan({larger}) AND {smaller} IS NOT NULL THEN FALSE ELSE {sql} END)"
    return call("bool", op, sql, (left, right))


def _equality(first: str, second: str, kind: str, *, known: bool) -> str:
    same = f"({first} IS NOT DISTINCT FROM {second})"
    if kind == "real":
        same = f"({same} AND NOT coalesce(isnan({first}), FALSE))"
    if kind == "string" or known:
        return f"({first} = {second})" if kind == "string" else same
    return f"(CASE WHEN {first} IS NULL AND {second} IS NULL THEN NULL ELSE {same} END)"


def between(value: Typed, low: Typed, high: Typed, complain: Complain) -> Typed:
    """Return ``value between (low .. high)``, both ends included."""
    first, second = compare(">=", value, low, complain), compare("<=", value, high, complain)
    return call("bool", "between", f"({first.sql} AND {second.sql})", (value, low, high))


def negated(condition: Typed, op: str) -> Typed:
    """Return the negation of a test that is never null, or is null only if its operand is."""
    return call("bool", op, f"(NOT {condition.sql})", condition.arguments)


def list_test(op: str, value: Typed, items: Sequence[Typed], complain: Complain) -> Typed:
    """Return ``value in (items)``, ``in~``, ``has_any`` or ``has_all``. Their negations are built from these."""
    arguments = (value, *items)
    if not items:
        return call("bool", op, "TRUE" if op == "has_all" else "FALSE", arguments)
    if op in {"has_any", "has_all"}:
        tests = [text_test("has", value, item, complain).sql for item in items]
        return call("bool", op, "(" + (" OR " if op == "has_any" else " AND ").join(tests) + ")", arguments)
    if op == "in~":
        text, texts = to_text(value), [to_text(item) for item in items]
        folds = (f"{fold}({text}) IN ({_list(f'{fold}({item})' for item in texts)})" for fold in ("lower", "kql_fold"))
        return call("bool", op, f"({' AND '.join(folds)})", arguments)
    kind = value.kind
    for item in items:
        kind = _comparable("in", Typed(kind, value.sql, value.op), item, complain)
    listed = _list(_side(item, kind) for item in items if not (item.is_literal and item.value is None))
    if not listed:
        return call("bool", op, "FALSE", arguments)
    side = _side(value, kind)
    return call("bool", op, f"coalesce({side} IN ({listed}){_and_no_nan(side, kind)}, FALSE)", arguments)


def subquery_test(op: str, value: Typed, kind: str, sql: str, complain: Complain) -> Typed:
    """Return ``value in (rows)``; ``sql`` selects one column of ``kind``."""
    if op in {"in~", "has_any", "has_all"} and op != "in~":
        raise complain(f"{op} takes a list of strings, not rows", "write in, or a list")
    inner = Typed(kind, "x", "column")
    common = _comparable("in", value, inner, complain)
    left, right = _side(value, common), _side(inner, common)
    if op == "in~":
        left, right = f"kql_fold({left})", f"kql_fold({right})"
    found = f"{left} IN (SELECT {right} FROM ({sql}) AS s(x)){_and_no_nan(left, common)}"
    return call("bool", "in rows", f"coalesce({found}, FALSE)", (value,))


def _and_no_nan(side: str, kind: str) -> str:
    """Return a condition that excludes NaN, which equals itself in DuckDB."""
    return f" AND NOT isnan({side})" if kind == "real" else ""


def text_test(op: str, left: Typed, right: Typed, complain: Complain) -> Typed:
    """Return a string operator, without its negation."""
    for each in (left, right):
        if each.kind not in {"string", "dynamic"}:
            raise complain(
                f"{op} compares strings, and one side is {described(each.kind)}", "convert it with tostring()"
            )
    text, pattern = to_text(left), to_text(right)
    arguments = (left, right)
    plain = op.removesuffix("_cs")
    if plain == "=~":
        sql = f"kql_same({text}, {pattern})"
    elif plain == "matches regex":
        sql = f"regexp_matches({text}, {pattern})"
    elif plain in {"contains", "startswith", "endswith"}:
        exact = {"contains": "contains", "startswith": "starts_with", "endswith": "suffix"}[plain]
        sql = f"{exact if op.endswith('_cs') else f'kql_{plain}'}({text}, {pattern})"
    else:
        if not op.endswith("_cs"):
            text, pattern = f"kql_fold({text})", f"kql_fold({pattern})"
        sql = f"regexp_matches({text}, {_term(plain, right, pattern)})"
    return call("bool", op, sql, arguments)


def _term(op: str, right: Typed, pattern: str) -> str:
    """Return SQL for a regular expression that finds a term: ASCII letters and digits between other characters."""
    before = _EDGE_BEFORE if op != "hassuffix" else ""
    after = _EDGE_AFTER if op != "hasprefix" else ""
    if right.is_literal and isinstance(right.value, str):
        # An edge of the search string that is not alphanumeric is a boundary itself.
        before = before if right.value[:1].isascii() and right.value[:1].isalnum() else ""
        after = after if right.value[-1:].isascii() and right.value[-1:].isalnum() else ""
        return f"({quoted(before)} || regexp_escape({pattern}) || {quoted(after)})"
    first = f"CASE WHEN regexp_matches({pattern}, '^{_ALNUM}') THEN {quoted(before)} ELSE '' END"
    last = f"CASE WHEN regexp_matches({pattern}, '{_ALNUM}$') THEN {quoted(after)} ELSE '' END"
    return f"({first} || regexp_escape({pattern}) || {last})"


def _comparable(op: str, left: Typed, right: Typed, complain: Complain) -> str:
    """Return the kind in which two sides are compared."""
    if left.kind == "dynamic" or right.kind == "dynamic":
        other = right.kind if left.kind == "dynamic" else left.kind
        if other == "dynamic":
            return "string"
        return "real" if other in {"int", "long"} else other
    kind = common_kind((left.kind, right.kind))
    if kind is None and "bool" in {left.kind, right.kind}:
        # Compared with numbers, true is 1 and false is 0.
        kind = common_kind("long" if each == "bool" else each for each in (left.kind, right.kind))
    if kind is None:
        message = f"{op} cannot compare {described(left.kind)} with {described(right.kind)}"
        raise complain(message, "convert one side: tostring(), tolong(), todouble(), todatetime()")
    return kind


def _side(expression: Typed, kind: str) -> str:
    if expression.kind == "dynamic" and kind != "dynamic":
        text = to_text(expression)
        if kind == "string":
            return text
        if kind == "datetime":
            return f"kql_timestamp({text})"
        return f"TRY_CAST({text} AS {'DOUBLE' if kind == 'decimal' else _sql_type(kind)})"
    if kind in {"real", "decimal", "long"}:
        return as_kind(expression, kind)
    return expression.sql


def _sql_type(kind: str) -> str:
    return {"real": "DOUBLE", "bool": "BOOLEAN", "long": "BIGINT", "timespan": "BIGINT"}.get(kind, "VARCHAR")


def _not_null(expression: Typed) -> bool:
    return expression.is_literal and expression.value is not None


def _list(parts: object) -> str:
    return ", ".join(parts)  # type: ignore[arg-type]
