"""Polars expressions as predicates, translated from the JSON form in which Polars serialises them.

``parse_polars`` takes an expression that a user passes as a predicate: all of it is translated, or it is an error.
``pruning_predicate`` is for the engine, which filters the rows itself. Unknown parts are dropped where that is safe: a
part of an AND may be missing, a part of an OR may not.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from lazydelta.errors import PredicateError
from lazydelta.predicates.binding import (
    MIRRORED,
    compare,
    conjunction,
    disjunction,
    is_null,
    like,
    membership,
)
from lazydelta.predicates.tree import IsNan, NanOrder, Predicate
from lazydelta.protocol.schema import Column, Decimal, Primitive, TableSchema
from lazydelta.protocol.values import is_float, short_repr

__all__ = ["parse_polars", "pruning_predicate"]

_OPERATORS = {"Eq": "=", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_EXACT = 2**53
_CLOSED = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_REGULAR = frozenset(r"\.+*?()|[]{}^$")  # what stands for something else in a regular expression
_INTEGERS = {"Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Int"}


def parse_polars(expression: Any, schema: TableSchema) -> Predicate:
    """Return a Polars expression as a predicate. Raise if a part of it has no equivalent."""
    try:
        found = _Translation(schema, whole=True).part(
            msgspec.json.decode(expression.meta.serialize(format="json")), negated=False
        )
    except PredicateError:
        raise
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _untranslatable(expression) from error
    if found is None:
        raise _untranslatable(expression)
    return found


def _untranslatable(expression: Any) -> PredicateError:
    message = f"The Polars expression {short_repr(str(expression))} cannot be used as a predicate of a table"
    return PredicateError(message, hint="write SQL text, or filter the frame: table.to_polars().filter(…)")


def pruning_predicate(serialised: str, schema: TableSchema) -> Predicate | None:
    """Return a predicate that holds wherever the Polars expression does, or None if nothing is known."""
    try:
        return _Translation(schema).part(msgspec.json.decode(serialised), negated=False)
    except (msgspec.MsgspecError, RecursionError):
        return None


class _Translation:
    """The translation of one expression. ``whole`` raises ``LookupError`` for parts without an equivalent."""

    def __init__(self, schema: TableSchema, *, whole: bool = False) -> None:
        self._schema = schema
        self._whole = whole

    def part(self, node: Any, *, negated: bool) -> Predicate | None:
        """Return a part of the expression as a predicate, or None if it is unknown and may be."""
        if self._whole:
            found = self._translated(node, negated=negated)
            if found is None:
                raise LookupError
            return found
        try:
            return self._translated(node, negated=negated)
        except (PredicateError, LookupError, TypeError, ValueError, OverflowError):
            return None

    def _translated(self, node: Any, *, negated: bool) -> Predicate | None:  # noqa: PLR0912 - one case an operator
        schema = self._schema
        match node:
            case {"BinaryExpr": {"left": left, "op": "And" | "Or" as op, "right": right}}:
                return _joined([self.part(each, negated=negated) for each in (left, right)], (op == "And") != negated)
            case {"Function": {"input": list(parts), "function": {"Boolean": "AllHorizontal" | "AnyHorizontal" as op}}}:
                found = [self.part(each, negated=negated) for each in parts]
                return _joined(found, (op == "AllHorizontal") != negated)
            case {"BinaryExpr": {"left": left, "op": str(op), "right": {"Literal": literal}}} if op in _OPERATORS:
                return self._comparison(left, _OPERATORS[op], literal, negated=negated)
            case {"BinaryExpr": {"left": {"Literal": literal}, "op": str(op), "right": right}} if op in _OPERATORS:
                return self._comparison(right, MIRRORED[_OPERATORS[op]], literal, negated=negated)
            case {"Function": {"input": [inner], "function": {"Boolean": "Not"}}}:
                return self.part(inner, negated=not negated)
            case {"Function": {"input": [inner], "function": {"Boolean": "IsNull" | "IsNotNull" as name}}}:
                return is_null(_column(inner, schema), negated=negated is (name == "IsNull"))
            case {"Function": {"input": [inner], "function": {"Boolean": "IsNan" | "IsNotNan" as name}}}:
                column = _column(inner, schema)
                return IsNan(column, negated is (name == "IsNan")) if is_float(column.type) else None
            case {"Function": {"input": [inner, low, high], "function": {"Boolean": {"IsBetween": {"closed": end}}}}}:
                ends = zip(_CLOSED[end], (low["Literal"], high["Literal"]), strict=True)
                return _joined([self._comparison(inner, op, each, negated=negated) for op, each in ends], not negated)
            case {"Function": {"input": [inner, {"Literal": literal}], "function": {"Boolean": {"IsIn": how}}}}:
                if not how.get("nulls_equal"):
                    return self._membership(_column(inner, schema), literal, negated=negated)
            case {"Function": {"input": [inner, {"Literal": {"Scalar": {"String": text}}}], "function": function}}:
                pattern = _pattern(function, text, all_kinds=self._whole)
                return None if pattern is None else like(_column(inner, schema), pattern, negated=negated)
            case {"Column": str()}:
                column = _column(node, schema)
                if column.type == Primitive("boolean"):
                    return compare(column, "=", value=True, negated=negated)
        return None

    def _comparison(self, node: Any, op: str, literal: Any, *, negated: bool) -> Predicate | None:
        value = _value(literal)
        if value is None:
            return None
        match node:
            case {"Function": {"input": [inner], "function": {"TemporalExpr": "Date"}}}:
                return _of_day(_column(inner, self._schema), op, value, negated=negated)
        column = _column(node, self._schema)
        # Rows that Polars filters itself must not be pruned by a comparison that rounds differently there.
        if not self._whole and not _means_the_same(column, value):
            return None
        return compare(column, op, value, negated=negated, nan=NanOrder.LARGEST)

    def _membership(self, column: Column, literal: Any, *, negated: bool) -> Predicate | None:
        values = [each for each in _listed(literal) if each is not None]
        if not self._whole and not all(_means_the_same(column, each) for each in values):
            return None
        return membership(column, values, negated=negated, nan=NanOrder.LARGEST)


def _joined(parts: Sequence[Predicate | None], all_hold: bool) -> Predicate | None:  # noqa: FBT001 - AND or OR
    known = [each for each in parts if each is not None]
    if all_hold:
        return conjunction(known) if known else None
    return disjunction(known) if len(known) == len(parts) else None


def _of_day(column: Column, op: str, day: Any, *, negated: bool) -> Predicate | None:
    """Return a comparison of the date of a timestamp, as a range of timestamps."""
    if type(day) is not dt.date or column.type not in (Primitive("timestamp"), Primitive("timestamp_ntz")):
        return None
    zone = dt.UTC if column.type == Primitive("timestamp") else None
    start, end = (dt.datetime.combine(each, dt.time(), zone) for each in (day, day + dt.timedelta(days=1)))
    ranges = {
        ">=": [(">=", start)],
        ">": [(">=", end)],
        "<": [("<", start)],
        "<=": [("<", end)],
        "=": [(">=", start), ("<", end)],
    }
    return _joined([compare(column, each, at, negated=negated) for each, at in ranges.get(op, ())], not negated)


def _pattern(function: Any, text: str, *, all_kinds: bool) -> str | None:
    """Return the LIKE pattern of a function of strings, or None for a regular expression and any other function.

    Unless ``all_kinds``, only for one that can leave out files.
    """
    found = "".join(f"\\{each}" if each in "%_\\" else each for each in text)
    match function:
        case {"StringExpr": "StartsWith"}:
            return f"{found}%"
        case {"StringExpr": "EndsWith"} if all_kinds:
            return f"%{found}"
        case {"StringExpr": {"Contains": {"literal": literal}}} if all_kinds and (literal or _REGULAR.isdisjoint(text)):
            return f"%{found}%"
    return None


def _listed(literal: Any) -> list[Any]:
    """Return the values of a literal list, which Polars stores in a binary format of its own."""
    import polars as pl  # noqa: PLC0415 - the caller has loaded it

    text = msgspec.json.encode({"Literal": literal}).decode()
    found: list[Any] = pl.select(pl.Expr.deserialize(io.StringIO(text), format="json")).to_series().to_list()
    return found[0] if len(found) == 1 and isinstance(found[0], list) else found


def _column(node: Any, schema: TableSchema) -> Column:
    path: list[str] = []
    while True:
        match node:
            case {"Column": str(name)}:
                return schema.column((name, *reversed(path)))
            case {"Function": {"input": [inner], "function": {"StructExpr": {"FieldByName": name}}}}:
                path.append(name)
                node = inner
            case _:
                raise LookupError("not a column")


def _value(literal: Any) -> Any:
    match literal:
        case {"Dyn": {"Int": int(value)}} | {"Scalar": {"Boolean": bool(value)}} | {"Scalar": {"String": str(value)}}:
            return value
        case {"Dyn": {"Float": float(number)}} | {"Scalar": {"Float64": float(number)}}:
            return None if math.isnan(number) else number
        case {"Scalar": {"Date": int(days)}}:
            return dt.date(1970, 1, 1) + dt.timedelta(days=days)
        case {"Scalar": {"Datetime": [int(count), "Microseconds", zone]}}:
            timestamp = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=count)
            return timestamp if zone is not None else timestamp.replace(tzinfo=None)
        case {"Scalar": {"Decimal": [int(unscaled), int(), int(scale)]}}:
            return decimal.Decimal(unscaled).scaleb(-scale)
        case {"Scalar": dict(scalar)} if len(scalar) == 1 and next(iter(scalar)) in _INTEGERS:
            (number,) = scalar.values()
            return number if isinstance(number, int) else None
    return None


def _means_the_same(column: Column, value: Any) -> bool:
    """Return whether Polars compares without rounding either side, as lazydelta does."""
    kind = column.type
    if isinstance(value, bool):
        return kind == Primitive("boolean")
    if isinstance(value, str):
        return kind == Primitive("string")
    if isinstance(value, dt.datetime):
        return kind == Primitive("timestamp" if value.tzinfo is not None else "timestamp_ntz")
    if isinstance(value, dt.date):
        return kind == Primitive("date")
    if isinstance(kind, Decimal) or isinstance(value, decimal.Decimal) or not isinstance(kind, Primitive):
        return False
    if kind.name == "float":
        return bool(float(np.float32(value)) == value)
    if kind.name == "double":
        return abs(value) < _EXACT or isinstance(value, float)
    return kind.name in {"byte", "short", "integer", "long"} and (isinstance(value, int) or abs(value) < _EXACT)
