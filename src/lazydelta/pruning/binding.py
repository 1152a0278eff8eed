"""Bind columns, operators and literals into nodes of the tree; every input form ends here.

Each function takes ``negated``, so that a NOT above never survives as a node: the caller hands it down. ``nan`` says
where NaN stands, which is the input form's to decide.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lazydelta.arrays import Stored, typed_array, typed_scalar
from lazydelta.errors import PredicateError
from lazydelta.pruning.tree import And, Compare, Constant, In, IsNan, IsNull, NanOrder, Not, Or, Predicate, Prefix
from lazydelta.types.literals import Placed, is_float, place
from lazydelta.types.schema import Array, Column, Map, Primitive, Struct, Variant

__all__ = ["MIRRORED", "OPERATORS", "compare", "conjunction", "disjunction", "is_null", "membership", "starts_with"]

OPERATORS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
"""What people write for the six comparisons, and what the tree calls them."""

MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The comparison that says the same with its sides exchanged."""

_OPPOSITE = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def compare(
    column: Column, op: str, value: object, *, negated: bool = False, nan: NanOrder = NanOrder.UNORDERED
) -> Predicate:
    """Compare ``column`` with a literal of any Python type; None is SQL's NULL, with which nothing compares."""
    _need_comparable(column)
    if value is None or column.type == Primitive("void"):
        return Constant(None)
    placed = place(value, column)
    if is_float(column.type) and nan is not NanOrder.UNORDERED:
        return _with_nan_as_largest(column, _OPPOSITE[op] if negated else op, placed, nan)
    if not negated:
        return _placed(column, op, placed)
    if is_float(column.type) and op not in {"=", "!="}:
        positive = _placed(column, op, placed)
        return Not(positive) if isinstance(positive, Compare) else IsNull(column, negated=True)
    return _placed(column, _OPPOSITE[op], placed)


def membership(
    column: Column, values: Iterable[object], *, negated: bool = False, nan: NanOrder = NanOrder.UNORDERED
) -> Predicate:
    """Test ``column`` against a set, with SQL's rules: a NULL in the set makes NOT IN true for no row."""
    _need_comparable(column)
    literals = list(values)
    if not literals:
        return Constant(negated)
    if column.type == Primitive("void"):
        return Constant(None)
    stored: set[Stored] = set()
    has_null = has_nan = False
    for literal in literals:
        if literal is None or getattr(literal, "is_valid", True) is False:
            has_null = True
            continue
        placed = place(literal, column)
        if placed.exact and placed.low is not None:
            stored.add(placed.low)
        has_nan |= placed.low is None and placed.high is None
    if negated and has_null:
        return Constant(None)
    if has_nan and is_float(column.type) and nan is not NanOrder.UNORDERED:
        numbers = _member(column, stored, negated=negated)
        return (conjunction if negated else disjunction)([numbers, IsNan(column, negated)])
    return _member(column, stored, negated=negated)


def _member(column: Column, stored: set[Stored], *, negated: bool) -> Predicate:
    if not stored:  # Nothing in the set can be stored in the column.
        return IsNull(column, negated=True) if negated else Constant(value=False)
    kind = column.type.to_arrow()
    if len(stored) == 1:
        return Compare(column, "!=" if negated else "=", typed_scalar(stored.pop(), kind))
    return In(column, typed_array(sorted(stored), kind), negated)


def is_null(column: Column, *, negated: bool = False) -> Predicate:
    """Test for null; any column has an answer, structs and lists too."""
    return IsNull(column, negated)


def starts_with(column: Column, prefix: str, *, negated: bool = False) -> Predicate:
    """Test for a prefix; every string starts with the empty one."""
    if column.type != Primitive("string"):
        message = f"LIKE needs a string column, and {column.name!r} is of type {column.type}"
        raise PredicateError(message, hint="compare it with =, <, <=, > or >=")
    place(prefix, column)
    if not prefix:
        return Constant(None) if negated else IsNull(column, negated=True)
    return Prefix(column, prefix, negated)


def conjunction(parts: Iterable[Predicate]) -> Predicate:
    """AND, flattened; a part that no row passes decides alone."""
    flat: list[Predicate] = []
    for part in parts:
        if isinstance(part, Constant):
            if part.value is not True:
                return Constant(value=False)
        elif isinstance(part, And):
            flat.extend(part.parts)
        else:
            flat.append(part)
    if not flat:
        return Constant(value=True)
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def disjunction(parts: Iterable[Predicate]) -> Predicate:
    """OR, flattened; parts that no row passes are left out."""
    flat: list[Predicate] = []
    for part in parts:
        if isinstance(part, Constant):
            if part.value is True:
                return part
        elif isinstance(part, Or):
            flat.extend(part.parts)
        else:
            flat.append(part)
    if not flat:
        return Constant(value=False)
    return flat[0] if len(flat) == 1 else Or(tuple(flat))


def _placed(column: Column, op: str, placed: Placed) -> Predicate:
    kind = column.type.to_arrow()
    if placed.exact:
        return Compare(column, op, typed_scalar(placed.low, kind))
    if op == "=":
        return Constant(value=False)
    if op == "!=":
        return IsNull(column, negated=True)
    side, op = (placed.low, "<=") if op in {"<", "<="} else (placed.high, ">=")
    return Constant(value=False) if side is None else Compare(column, op, typed_scalar(side, kind))


def _with_nan_as_largest(column: Column, op: str, placed: Placed, nan: NanOrder) -> Predicate:
    if placed.low is None and placed.high is None:  # The literal is NaN.
        if op in {"<=", ">"}:
            return IsNull(column, negated=True) if op == "<=" else Constant(value=False)
        return IsNan(column, negated=op in {"!=", "<"})
    found = _placed(column, op, placed)
    return msgspec.structs.replace(found, nan=nan) if isinstance(found, Compare) and found.op in {">", ">="} else found


def _need_comparable(column: Column) -> None:
    if isinstance(column.type, Struct | Array | Map | Variant):
        message = f"Column {column.name!r} of type {column.type} cannot be compared with a value"
        raise PredicateError(message, hint="compare one of its fields, or test it with IS NULL")
