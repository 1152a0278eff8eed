"""Numbers: mathematics, binary operations, choices between values, and tests."""

from __future__ import annotations

from collections.abc import Sequence

from lazydelta.kql.binding.types import NUMBERS, Typed, as_kind, common_kind, converted, quoted, unified
from lazydelta.kql.functions.declaration import Function, Given, built, rows, template

__all__ = ["NUMBERS_AND_TESTS"]

_ANY_ORDER = ("int", "long", "real", "decimal", "datetime", "timespan", "string", "bool")
_BITS = 64


def _round(given: Given) -> Typed:
    value = given.values[0]
    digits = given.constant(1, "int", "long") if len(given) > 1 else 0
    if value.kind in {"int", "long"}:
        return given.of("long", f"CAST(round({as_kind(value, 'long')}, {min(digits, 0)}) AS BIGINT)")
    if value.kind == "dynamic":
        return given.of("real", f"round({given.as_kind(0, 'real')}, {digits})")
    return given.of(value.kind, f"round({value.sql}, {digits})")


def _ceiling(given: Given) -> Typed:
    value = given.values[0]
    if value.kind in {"int", "long"}:
        return given.of("long", as_kind(value, "long"))
    if value.kind == "dynamic":
        return given.of("real", f"ceil({given.as_kind(0, 'real')})")
    return given.of(value.kind, f"ceil({value.sql})")


def _any_kind(values: Sequence[Typed], given: Given) -> tuple[str, list[str]]:
    """Return the common kind of values, which is dynamic if they have none, and their SQL in that kind."""
    kinds = [each.kind for each in values if not (each.is_literal and each.value is None)]
    if len(kinds) > 1 and common_kind(kinds) is None:
        return "dynamic", [converted(each, "dynamic") for each in values]
    return unified(f"{given.name}()", values, given.complain)


def _iff(given: Given) -> Typed:
    kind, (yes, no) = _any_kind(given.values[1:], given)
    return given.of(kind, f"(CASE WHEN {given.condition(0)} THEN {yes} ELSE {no} END)")


def _case(given: Given) -> Typed:
    if len(given) % 2 == 0:
        raise given.complain("case() needs pairs of condition and value, and a value for all else", None)
    conditions = [given.condition(index) for index in range(0, len(given) - 1, 2)]
    values = [*given.values[1:-1:2], given.values[-1]]
    kind, sql = _any_kind(values, given)
    whens = " ".join(f"WHEN {when} THEN {then}" for when, then in zip(conditions, sql[:-1], strict=True))
    return given.of(kind, f"(CASE {whens} ELSE {sql[-1]} END)")


def _coalesce(given: Given) -> Typed:
    kind, sql = unified("coalesce()", given.values, given.complain)
    if kind == "string":
        return given.of(kind, "coalesce(" + ", ".join(f"nullif({each}, '')" for each in sql) + ", '')")
    return given.of(kind, f"coalesce({', '.join(sql)})")


def _extreme(given: Given) -> Typed:
    kind, sql = unified(f"{given.name}()", given.values, given.complain)
    if kind not in _ANY_ORDER:
        given.refuse(0, "a value that has an order")
    kind, sql = ("long", [f"CAST({each} AS BIGINT)" for each in sql]) if kind == "int" else (kind, sql)
    return given.of(kind, f"{'greatest' if given.name == 'max_of' else 'least'}({', '.join(sql)})")


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


def _assert(given: Given) -> Typed:
    condition = given.literal(0)
    if condition is None:
        raise given.complain("the condition of assert() must be known before the query runs", "compare constants")
    if not condition.value:
        raise given.complain(f"assert() failed: {given.constant(1, 'string')}", None)
    return given.of("bool", "TRUE")


def _column_if_exists(given: Given) -> Typed:
    name = given.constant(0, "string")
    found = next((each for each in given.columns if each.name == name), None)
    return found or Typed(
        given.values[1].kind, given.values[1].sql, "column_ifexists", (given.values[1],), refs=given.values[1].refs
    )


def _type(given: Given) -> Typed:
    value = given.values[0]
    if value.kind != "dynamic":
        return given.of("string", quoted(value.kind))
    return given.of("string", f"kql_type({value.sql})")


def _random(given: Given) -> Typed:
    if not len(given):
        return given.of("real", "random()")
    return given.of("real", f"floor(random() * {given.whole(0)})")


def _new_guid(given: Given) -> Typed:
    return given.of("guid", "gen_random_uuid()")


def _absolute(given: Given) -> Typed:
    value = given.values[0]
    if value.kind not in {*NUMBERS, "timespan", "dynamic"}:
        given.refuse(0, "a number or a timespan")
    kind = {"int": "long", "dynamic": "real"}.get(value.kind, value.kind)
    return given.of(kind, f"abs({given.as_kind(0, kind)})")


def _around(given: Given) -> Typed:
    value, center, delta = given.values
    if value.kind == "datetime":
        low, high = (
            f"{center.sql} - to_microseconds({delta.sql} // 10)",
            f"{center.sql} + to_microseconds({delta.sql} // 10)",
        )
    else:
        low, high = f"{center.sql} - {delta.sql}", f"{center.sql} + {delta.sql}"
    return given.of("bool", f"({value.sql} BETWEEN {low} AND {high})")


def _shift_left(value: int | None, count: int | None) -> int | None:
    if value is None or count is None or count < 0:
        return None
    shifted: int = (value << (count % _BITS)) & (2**_BITS - 1)
    return shifted - 2**_BITS if shifted >> (_BITS - 1) else shifted


def _real(name: str, about: str, sql: str, *, named: bool = False) -> Function:
    return template(f"{name}(x: real) -> real", about, sql, named=named)


_MATHEMATICS = [
    built("abs(x: number|timespan) -> same", "Returns the absolute value.", _absolute, named=True),
    _real("acos", "Returns the arc cosine.", "CASE WHEN {x} BETWEEN -1 AND 1 THEN acos({x}) END", named=True),
    built(
        "around(value: any, center: any, delta: any) -> bool", "Tests whether a value lies within a distance.", _around
    ),
    _real("asin", "Returns the arc sine.", "CASE WHEN {x} BETWEEN -1 AND 1 THEN asin({x}) END", named=True),
    _real("atan", "Returns the arc tangent.", "atan({x})", named=True),
    template(
        "atan2(y: real, x: real) -> real", "Returns the angle of a point to the x axis.", "atan2({y}, {x})", named=True
    ),
    built("ceiling(x: number) -> same", "Rounds up.", _ceiling, named=True),
    _real("cos", "Returns the cosine.", "cos({x})", named=True),
    _real("cot", "Returns the cotangent.", "1 / tan({x})"),
    _real("degrees", "Converts radians to degrees.", "degrees({x})"),
    _real("exp", "Returns e raised to a power.", "exp({x})", named=True),
    _real("exp10", "Returns 10 raised to a power.", "pow(10, {x})", named=True),
    _real("exp2", "Returns 2 raised to a power.", "pow(2, {x})", named=True),
    _real("log", "Returns the natural logarithm; null for negative numbers.", "kql_log({x}, 1.0)", named=True),
    _real("log10", "Returns the common logarithm; null for negative numbers.", "kql_log({x}, ln(10.0))", named=True),
    _real("log2", "Returns the binary logarithm; null for negative numbers.", "kql_log({x}, ln(2.0))", named=True),
    template("pi() -> real", "Returns π.", "pi()"),
    template(
        "pow(base: real, exponent: real) -> real", "Raises a number to a power.", "pow({base}, {exponent})", named=True
    ),
    _real("radians", "Converts degrees to radians.", "radians({x})"),
    built(
        "rand(n?: whole) -> real", "Returns a random number from 0 to 1, or one of the whole numbers below n.", _random
    ),
    built("round(x: number, digits?: whole) -> same", "Rounds to a number of digits.", _round, named=True),
    template("sign(x: real) -> real", "Returns -1, 0 or 1.", "CAST(sign({x}) AS DOUBLE)"),
    _real("sin", "Returns the sine.", "sin({x})", named=True),
    _real(
        "sqrt",
        "Returns the square root; null for negative numbers.",
        "CASE WHEN {x} >= 0 THEN sqrt({x}) END",
        named=True,
    ),
    _real("tan", "Returns the tangent.", "tan({x})", named=True),
]

_BINARY = [
    template("binary_and(a: long, b: long) -> long", "Returns the bitwise AND.", "{a} & {b}", named=True),
    template("binary_not(a: long) -> long", "Returns the bitwise negation.", "~{a}", named=True),
    template("binary_or(a: long, b: long) -> long", "Returns the bitwise OR.", "{a} | {b}", named=True),
    rows("binary_shift_left(a: long, count: long) -> long", "Shifts left by a number of bits, modulo 64.", _shift_left,
         named=True),
    template("binary_shift_right(a: long, count: long) -> long", "Shifts right by a number of bits, modulo 64.",
             "CASE WHEN {count} >= 0 THEN {a} >> ({count} % 64) END", named=True),
    template("binary_xor(a: long, b: long) -> long", "Returns the bitwise exclusive OR.", "xor({a}, {b})", named=True),
    template("bitset_count_ones(a: long) -> long", "Counts the bits that are set.", "CAST(bit_count({a}) AS BIGINT)",
             named=True),
]  # fmt: skip

_CHOICES = [
    built("assert(condition: bool, message: string) -> bool", "Fails with a message if a constant condition is false.",
          _assert),
    built("case(condition: any...) -> any", "Returns the value of the first condition that is true.", _case),
    built("coalesce(value: any...) -> any", "Returns the first value that is not null or empty.", _coalesce),
    built("column_ifexists(name: string, default: any) -> any", "Returns a column, or a value if it does not exist.",
          _column_if_exists),
    built("columnifexists(name: string, default: any) -> any", "Former name of `column_ifexists`.", _column_if_exists),
    built("gettype(value: any) -> string", "Returns the name of a value's type.", _type, named="type_{}"),
    built("iff(condition: bool, yes: any, no: any) -> any", "Chooses between two values.", _iff),
    built("iif(condition: bool, yes: any, no: any) -> any", "Another name of `iff`.", _iff),
    built("isempty(value: any) -> bool", "Tests for null and the empty string.", _is_empty, prunes=True),
    template("isfinite(x: real) -> bool", "Tests for a number that is neither infinite nor NaN.",
             "coalesce(isfinite({x}), FALSE)"),
    template("isinf(x: real) -> bool", "Tests for infinity.", "coalesce(isinf({x}), FALSE)"),
    template("isnan(x: real) -> bool", "Tests for NaN.", "coalesce(isnan({x}), FALSE)"),
    built("isnotempty(value: any) -> bool", "Tests for neither null nor the empty string.", _is_empty, prunes=True),
    built("isnotnull(value: any) -> bool", "Tests for a value other than null.", _is_not_null, prunes=True),
    built("isnull(value: any) -> bool", "Tests for null.", _is_null, prunes=True),
    built("max_of(value: any...) -> any", "Returns the largest value; nulls are ignored.", _extreme),
    built("min_of(value: any...) -> any", "Returns the smallest value; nulls are ignored.", _extreme),
    built("new_guid() -> guid", "Returns a random guid.", _new_guid),
    built("not(condition: bool) -> bool", "Negates a condition.", _not, prunes=True),
    built("notempty(value: any) -> bool", "Another name of `isnotempty`.", _is_empty, prunes=True),
    built("notnull(value: any) -> bool", "Another name of `isnotnull`.", _is_not_null, prunes=True),
]  # fmt: skip

NUMBERS_AND_TESTS: list[Function] = [*_MATHEMATICS, *_BINARY, *_CHOICES]
"""The functions."""
