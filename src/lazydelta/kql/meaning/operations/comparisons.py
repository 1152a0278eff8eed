"""Comparisons, where Kusto's nulls differ from SQL's.

``null == value`` is false and ``null != value`` is true; only two nulls give null. Order comparisons with null are
null. A comparison of reals follows IEEE, where DuckDB takes NaN for the largest number. Texts are compared in order
as well, byte by byte, which Kusto leaves to ``strcmp``: partitions by hour are texts.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazydelta.kql.meaning.kinds import Complain, common_kind, described, to_text
from lazydelta.kql.meaning.typed import Typed, as_kind, call, quoted

__all__ = ["between", "compare", "list_test", "negated", "subquery_test", "text_test"]

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
            sql = f"({sql} AND NOT isnan({larger}))"
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
    """Return the negation of a test that is never null, or null where its operand is."""
    return call("bool", op, f"(NOT {condition.sql})", condition.arguments)


def list_test(op: str, value: Typed, items: Sequence[Typed], complain: Complain) -> Typed:
    """Return ``value in (items)``, ``in~``, ``has_any`` or ``has_all``; the negated forms are made of these."""
    arguments = (value, *items)
    if not items:
        return call("bool", op, "TRUE" if op == "has_all" else "FALSE", arguments)
    if op in {"has_any", "has_all"}:
        tests = [text_test("has", value, item, complain).sql for item in items]
        return call("bool", op, "(" + (" OR " if op == "has_any" else " AND ").join(tests) + ")", arguments)
    if op == "in~":
        text = to_text(value)
        return call("bool", op, f"(lower({text}) IN ({_list(f'lower({to_text(item)})' for item in items)}))", arguments)
    kind = value.kind
    for item in items:
        kind = _comparable("in", Typed(kind, value.sql, value.op), item, complain)
    listed = _list(_side(item, kind) for item in items if not (item.is_literal and item.value is None))
    if not listed:
        return call("bool", op, "FALSE", arguments)
    return call("bool", op, f"coalesce({_side(value, kind)} IN ({listed}), FALSE)", arguments)


def subquery_test(op: str, value: Typed, kind: str, sql: str, complain: Complain) -> Typed:
    """Return ``value in (rows)``; ``sql`` selects one column of ``kind``."""
    if op in {"in~", "has_any", "has_all"} and op != "in~":
        raise complain(f"{op} takes a list of texts, not rows", "write in, or a list")
    inner = Typed(kind, "x", "column")
    common = _comparable("in", value, inner, complain)
    left, right = _side(value, common), _side(inner, common)
    if op == "in~":
        left, right = f"lower({left})", f"lower({right})"
    return call("bool", "in rows", f"coalesce({left} IN (SELECT {right} FROM ({sql}) AS s(x)), FALSE)", (value,))


def text_test(op: str, left: Typed, right: Typed, complain: Complain) -> Typed:
    """Return an operator on texts, without its negation."""
    for each in (left, right):
        if each.kind not in {"string", "dynamic"}:
            raise complain(f"{op} compares texts, and one side is {described(each.kind)}", "convert it with tostring()")
    text, pattern = to_text(left), to_text(right)
    arguments = (left, right)
    plain = op.removesuffix("_cs")
    if not op.endswith("_cs") and plain not in {"matches regex", "has", "hasprefix", "hassuffix"}:
        text, pattern = f"lower({text})", f"lower({pattern})"
    if plain == "=~":
        sql = f"({text} = {pattern})"
    elif plain == "matches regex":
        sql = f"regexp_matches({text}, {pattern})"
    elif plain in {"contains", "startswith", "endswith"}:
        function = {"contains": "contains", "startswith": "starts_with", "endswith": "suffix"}[plain]
        sql = f"{function}({text}, {pattern})"
    else:
        flag = "" if op.endswith("_cs") else "(?i)"
        sql = f"regexp_matches({text}, {_term(plain, right, pattern, flag)})"
    return call("bool", op, sql, arguments)


def _term(op: str, right: Typed, pattern: str, flag: str) -> str:
    """Return SQL of a regular expression that finds a term: letters and digits of ASCII up to something else."""
    before = _EDGE_BEFORE if op != "hassuffix" else ""
    after = _EDGE_AFTER if op != "hasprefix" else ""
    if right.is_literal and isinstance(right.value, str):
        # An end of the searched text that is no part of a term is its own edge.
        before = before if right.value[:1].isascii() and right.value[:1].isalnum() else ""
        after = after if right.value[-1:].isascii() and right.value[-1:].isalnum() else ""
        return f"({quoted(flag + before)} || regexp_escape({pattern}) || {quoted(after)})"
    first = f"CASE WHEN regexp_matches({pattern}, '^{_ALNUM}') THEN {quoted(before)} ELSE '' END"
    last = f"CASE WHEN regexp_matches({pattern}, '{_ALNUM}$') THEN {quoted(after)} ELSE '' END"
    return f"({quoted(flag)} || {first} || regexp_escape({pattern}) || {last})"


def _comparable(op: str, left: Typed, right: Typed, complain: Complain) -> str:
    """Return the kind in which two sides are compared."""
    if left.kind == "dynamic" or right.kind == "dynamic":
        other = right.kind if left.kind == "dynamic" else left.kind
        if other == "dynamic":
            return "string"
        return "real" if other in {"int", "long"} else other
    kind = common_kind((left.kind, right.kind))
    if kind is None and "bool" in {left.kind, right.kind}:
        # Among numbers true is 1 and false is 0.
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
            return f"kql_moment({text})"
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
