"""What of a Polars predicate rules out files: its tree, as far as it means the same to us.

Polars filters the rows itself, so that whatever is not understood is left out, on the safe side: a part of an AND may
be missing, a part of an OR may not.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import msgspec
import numpy as np

from lazydelta.errors import PredicateError
from lazydelta.pruning import NanOrder, Predicate, conjunction
from lazydelta.pruning.binding import MIRRORED, compare, disjunction, is_null, starts_with
from lazydelta.types.schema import Column, Decimal, Primitive, TableSchema

__all__ = ["pruning_predicate"]

_OPERATORS = {"Eq": "=", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_EXACT = 2**53
_CLOSED = {"Both": (">=", "<="), "Left": (">=", "<"), "Right": (">", "<="), "None": (">", "<")}
_INTEGERS = {"Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Int"}


def pruning_predicate(serialised: str, schema: TableSchema) -> Predicate | None:
    """Return a predicate that is true wherever the Polars expression is; None if nothing is known."""
    try:
        return _part(msgspec.json.decode(serialised), schema, negated=False)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _part(node: Any, schema: TableSchema, *, negated: bool) -> Predicate | None:
    try:
        return _translated(node, schema, negated=negated)
    except (PredicateError, LookupError, TypeError, ValueError, OverflowError):
        return None


def _translated(node: Any, schema: TableSchema, *, negated: bool) -> Predicate | None:
    match node:
        case {"BinaryExpr": {"left": left, "op": "And" | "Or" as op, "right": right}}:
            parts = [_part(each, schema, negated=negated) for each in (left, right)]
            known = [each for each in parts if each is not None]
            if (op == "And") is not negated:
                return conjunction(known) if known else None
            return disjunction(known) if len(known) == len(parts) else None
        case {"BinaryExpr": {"left": left, "op": str(op), "right": {"Literal": literal}}} if op in _OPERATORS:
            return _comparison(left, _OPERATORS[op], literal, schema, negated=negated)
        case {"BinaryExpr": {"left": {"Literal": literal}, "op": str(op), "right": right}} if op in _OPERATORS:
            return _comparison(right, MIRRORED[_OPERATORS[op]], literal, schema, negated=negated)
        case {"Function": {"input": [inner], "function": {"Boolean": "Not"}}}:
            return _translated(inner, schema, negated=not negated)
        case {"Function": {"input": [inner], "function": {"Boolean": "IsNull" | "IsNotNull" as name}}}:
            return is_null(_column(inner, schema), negated=negated is (name == "IsNull"))
        case {"Function": {"input": [inner, low, high], "function": {"Boolean": {"IsBetween": {"closed": closed}}}}}:
            ops = _CLOSED[closed]
            ends = [
                _comparison(inner, op, end["Literal"], schema, negated=negated)
                for op, end in zip(ops, (low, high), strict=True)
            ]
            known = [each for each in ends if each is not None]
            if not negated:
                return conjunction(known) if known else None
            return disjunction(known) if len(known) == len(ends) else None
        case {"Function": {"input": [inner, {"Literal": {"Scalar": {"String": text}}}], "function": function}}:
            if function == {"StringExpr": "StartsWith"}:
                return starts_with(_column(inner, schema), text, negated=negated)
        case {"Column": str()}:
            column = _column(node, schema)
            return compare(column, "=", value=True, negated=negated) if column.type == Primitive("boolean") else None
    return None


def _comparison(node: Any, op: str, literal: Any, schema: TableSchema, *, negated: bool) -> Predicate | None:
    column = _column(node, schema)
    value = _value(literal)
    if value is None or not _means_the_same(column, value):
        return None
    return compare(column, op, value, negated=negated, nan=NanOrder.LARGEST)


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
                raise PredicateError("not a column")


def _value(literal: Any) -> Any:
    match literal:
        case {"Dyn": {"Int": int(value)}} | {"Scalar": {"Boolean": bool(value)}} | {"Scalar": {"String": str(value)}}:
            return value
        case {"Dyn": {"Float": float(number)}} | {"Scalar": {"Float64": float(number)}}:
            return None if math.isnan(number) else number
        case {"Scalar": {"Date": int(days)}}:
            return dt.date(1970, 1, 1) + dt.timedelta(days=days)
        case {"Scalar": {"Datetime": [int(count), "Microseconds", zone]}}:
            moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=count)
            return moment if zone is not None else moment.replace(tzinfo=None)
        case {"Scalar": dict(scalar)} if len(scalar) == 1 and next(iter(scalar)) in _INTEGERS:
            (number,) = scalar.values()
            return number if isinstance(number, int) else None
    return None


def _means_the_same(column: Column, value: Any) -> bool:
    """Tell whether Polars compares without rounding one of the two sides, as we do."""
    kind = column.type
    if isinstance(value, bool):
        return kind == Primitive("boolean")
    if isinstance(value, str):
        return kind == Primitive("string")
    if isinstance(value, dt.datetime):
        return kind == Primitive("timestamp" if value.tzinfo is not None else "timestamp_ntz")
    if isinstance(value, dt.date):
        return kind == Primitive("date")
    if isinstance(kind, Decimal) or not isinstance(kind, Primitive):
        return False
    if kind.name == "float":
        return bool(float(np.float32(value)) == value)
    if kind.name == "double":
        return abs(value) < _EXACT or isinstance(value, float)
    return kind.name in {"byte", "short", "integer", "long"} and (isinstance(value, int) or abs(value) < _EXACT)
