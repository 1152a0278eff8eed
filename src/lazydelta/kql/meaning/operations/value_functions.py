"""Functions of numbers, conversions, choices, tests for null, and dynamic values."""

from __future__ import annotations

from lazydelta.kql.meaning.kinds import unified
from lazydelta.kql.meaning.operations.macros import TICKS_BEFORE_1970
from lazydelta.kql.meaning.operations.signatures import Function, Given
from lazydelta.kql.meaning.typed import Typed, as_kind

__all__ = ["VALUE_FUNCTIONS"]

_MANY = 64
_NUMBERS = {"int", "long", "real", "decimal"}


def _round(given: Given) -> Typed:
    value = given.values[0]
    value.kind in _NUMBERS or given.refuse(0, "a number")
    digits = given.constant(1, "int", "long") if len(given) > 1 else 0
    if value.kind in {"int", "long"}:
        return given.of("long", f"CAST(round({as_kind(value, 'long')}, {min(digits, 0)}) AS BIGINT)")
    return given.of(value.kind, f"round({value.sql}, {digits})")


def _abs(given: Given) -> Typed:
    value = given.values[0]
    value.kind in _NUMBERS | {"timespan"} or given.refuse(0, "a number or a timespan")
    kind = "long" if value.kind == "int" else value.kind
    return given.of(kind, f"abs({as_kind(value, kind) if kind == 'long' else value.sql})")


def _ceiling(given: Given) -> Typed:
    value = given.values[0]
    value.kind in _NUMBERS or given.refuse(0, "a number")
    if value.kind in {"int", "long"}:
        return given.of("long", as_kind(value, "long"))
    return given.of(value.kind, f"ceil({value.sql})")


def _iff(given: Given) -> Typed:
    kind, (yes, no) = unified(f"{given.name}()", given.values[1:], given.complain)
    return given.of(kind, f"(CASE WHEN {given.condition(0)} THEN {yes} ELSE {no} END)")


def _case(given: Given) -> Typed:
    if len(given) % 2 == 0:
        raise given.complain("case() needs pairs of condition and value, and a value for all else", None)
    conditions = [given.condition(index) for index in range(0, len(given) - 1, 2)]
    values = [*given.values[1:-1:2], given.values[-1]]
    kind, sql = unified("case()", values, given.complain)
    whens = " ".join(f"WHEN {when} THEN {then}" for when, then in zip(conditions, sql[:-1], strict=True))
    return given.of(kind, f"(CASE {whens} ELSE {sql[-1]} END)")


def _coalesce(given: Given) -> Typed:
    kind, sql = unified("coalesce()", given.values, given.complain)
    if kind == "string":
        return given.of(kind, "coalesce(" + ", ".join(f"nullif({each}, '')" for each in sql) + ", '')")
    return given.of(kind, f"coalesce({', '.join(sql)})")


def _is_null(given: Given) -> Typed:
    return given.of("bool", "FALSE" if given.values[0].kind == "string" else f"({given.values[0].sql} IS NULL)")


def _is_not_null(given: Given) -> Typed:
    return given.of("bool", "TRUE" if given.values[0].kind == "string" else f"({given.values[0].sql} IS NOT NULL)")


def _is_empty(given: Given) -> Typed:
    negation = "" if given.name == "isempty" else "NOT "
    value = given.values[0]
    sql = f"({given.text(0)} = '')" if value.kind in {"string", "dynamic"} else f"({value.sql} IS NULL)"
    return given.of("bool", f"({negation}{sql})")


def _not(given: Given) -> Typed:
    return given.of("bool", f"(NOT {given.condition(0)})")


def _to_string(given: Given) -> Typed:
    return given.of("string", given.text(0))


def _to_whole(given: Given) -> Typed:
    value, kind = given.values[0], "int" if given.name == "toint" else "long"
    kind_sql = {"int": "INTEGER", "long": "BIGINT"}[kind]
    if value.kind in {"string", "dynamic"}:
        text = given.text(0)
        if value.kind == "dynamic":
            # A number in JSON may have a fraction, and is cut like any other.
            whole = f"coalesce(kql_long({text}), TRY_CAST(trunc(TRY_CAST({text} AS DOUBLE)) AS BIGINT))"
        else:
            whole = f"kql_long({text})"
        return given.of(kind, f"TRY_CAST({whole} AS {kind_sql})")
    if value.kind in {"real", "decimal"}:
        return given.of(kind, f"TRY_CAST(trunc({value.sql}) AS {kind_sql})")
    if value.kind == "datetime":
        return given.of(kind, f"TRY_CAST(epoch_us({value.sql}) * 10 + {TICKS_BEFORE_1970} AS {kind_sql})")
    return given.of(kind, f"TRY_CAST({value.sql} AS {kind_sql})")


def _to_real(given: Given) -> Typed:
    value = given.values[0]
    if value.kind in {"string", "dynamic"}:
        return given.of("real", f"TRY_CAST(nullif(trim({given.text(0)}), '') AS DOUBLE)")
    value.kind != "datetime" or given.refuse(0, "a number, a text, a bool or a timespan")
    return given.of("real", f"CAST({value.sql} AS DOUBLE)")


def _to_bool(given: Given) -> Typed:
    value = given.values[0]
    if value.kind in {"string", "dynamic"}:
        return given.of("bool", f"kql_bool({given.text(0)})")
    value.kind in {"bool", *_NUMBERS} or given.refuse(0, "a number, a text or a bool")
    return given.of("bool", value.sql if value.kind == "bool" else f"({value.sql} <> 0)")


def _to_moment(given: Given) -> Typed:
    value = given.values[0]
    if value.kind == "datetime":
        return given.of("datetime", value.sql)
    if value.kind in {"int", "long"}:
        return given.of("datetime", f"TRY(kql_from_ticks({as_kind(value, 'long')}))")
    value.kind in {"string", "dynamic"} or given.refuse(0, "a text, a datetime or a number of ticks")
    return given.of("datetime", f"kql_moment({given.text(0)})")


def _to_span(given: Given) -> Typed:
    value = given.values[0]
    if value.kind == "timespan":
        return given.of("timespan", value.sql)
    if value.kind in {"int", "long"}:
        return given.of("timespan", as_kind(value, "long"))
    return given.of("timespan", f"kql_span({given.string(0)})")


def _to_decimal(given: Given) -> Typed:
    value = given.values[0]
    if value.kind in {"string", "dynamic"}:
        return given.of("decimal", f"TRY_CAST(nullif(trim({given.text(0)}), '') AS DECIMAL(38,18))")
    value.kind in _NUMBERS or given.refuse(0, "a number or a text")
    return given.of("decimal", value.sql if value.kind == "decimal" else f"TRY_CAST({value.sql} AS DECIMAL(38,18))")


def _to_guid(given: Given) -> Typed:
    value = given.values[0]
    if value.kind == "guid":
        return given.of("guid", value.sql)
    return given.of("guid", f"TRY_CAST({given.string(0)} AS UUID)")


def _parse_json(given: Given) -> Typed:
    value = given.values[0]
    if value.kind == "dynamic":
        return given.of("dynamic", value.sql)
    return given.of("dynamic", f"kql_parse_json({given.text(0)})")


def _array_length(given: Given) -> Typed:
    value = given.values[0]
    value.kind == "dynamic" or given.refuse(0, "a dynamic value")
    sql = f"CASE WHEN json_type({value.sql}) = 'ARRAY' THEN CAST(json_array_length({value.sql}) AS BIGINT) END"
    return given.of("long", f"({sql})")


def _named(least: int, most: int, build: object) -> Function:
    return Function(least, most, build, named_by_first=True)  # type: ignore[arg-type]


VALUE_FUNCTIONS = {
    "abs": _named(1, 1, _abs),
    "array_length": Function(1, 1, _array_length),
    "case": Function(3, _MANY + 1, _case),
    "ceiling": _named(1, 1, _ceiling),
    "coalesce": Function(2, _MANY, _coalesce),
    "iff": Function(3, 3, _iff),
    "iif": Function(3, 3, _iff),
    "isempty": Function(1, 1, _is_empty),
    "isnotempty": Function(1, 1, _is_empty),
    "isnotnull": Function(1, 1, _is_not_null),
    "isnull": Function(1, 1, _is_null),
    "not": Function(1, 1, _not),
    "notempty": Function(1, 1, _is_empty),
    "notnull": Function(1, 1, _is_not_null),
    "parse_json": _named(1, 1, _parse_json),
    "round": _named(1, 2, _round),
    "tobool": _named(1, 1, _to_bool),
    "toboolean": _named(1, 1, _to_bool),
    "todatetime": _named(1, 1, _to_moment),
    "todecimal": _named(1, 1, _to_decimal),
    "todouble": _named(1, 1, _to_real),
    "todynamic": _named(1, 1, _parse_json),
    "toguid": _named(1, 1, _to_guid),
    "toint": _named(1, 1, _to_whole),
    "tolong": _named(1, 1, _to_whole),
    "toreal": _named(1, 1, _to_real),
    "tostring": _named(1, 1, _to_string),
    "totimespan": _named(1, 1, _to_span),
}
"""Each function by its name."""
