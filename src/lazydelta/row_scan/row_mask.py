"""Which rows of a batch pass a predicate, by one call of Arrow for each of its conditions.

PyArrow filters by an expression through a plan with threads and queues, which takes milliseconds for every batch and as
long as reading a column does. A tree that lacks nothing is evaluated here; others still go that way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.pruning.tree import (
    And,
    Compare,
    Constant,
    In,
    IsNan,
    IsNull,
    NanOrder,
    Not,
    Opaque,
    Or,
    Predicate,
    Prefix,
    WithExpression,
    leaves,
)
from lazydelta.types.literals import is_float
from lazydelta.types.schema import Column

__all__ = ["can_be_masked", "row_mask"]

_OPERATORS: dict[str, str] = {
    "=": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}


def can_be_masked(predicate: Predicate) -> bool:
    """Tell whether every condition is one of ours; whoever filters by an expression has to evaluate it as given."""
    return not isinstance(predicate, WithExpression) and not any(isinstance(leaf, Opaque) for leaf in leaves(predicate))


def row_mask(predicate: Predicate, value: Callable[[Column], pa.Array], number: int) -> pa.BooleanArray:
    """Return for each of ``number`` rows whether it passes; false and null are the same. ``value`` gives columns.

    A column may come as codes of a dictionary: each of its values is judged once.
    """
    if isinstance(predicate, Compare | In | Prefix) and isinstance(
        array := value(predicate.column), pa.DictionaryArray
    ):
        known = array.dictionary
        return _by_code(row_mask(predicate, lambda _: known, len(known)), array.indices)
    match predicate:
        case And(parts):
            return reduce(pc.and_kleene, (row_mask(part, value, number) for part in parts))
        case Or(parts):
            return reduce(pc.or_kleene, (row_mask(part, value, number) for part in parts))
        case Not(part):
            return pc.invert(row_mask(part, value, number))
        case Constant(truth):
            return pa.repeat(pa.scalar(truth is True), number)
        case Compare(column, op, literal, nan):
            array = value(column)
            found = getattr(pc, _OPERATORS[op])(array, literal)
            return found if nan is NanOrder.UNORDERED else pc.or_kleene(found, pc.is_nan(array))
        case IsNan(column, negated):
            found = pc.is_nan(value(column))
            return pc.invert(found) if negated else found
        case In(column, values, negated):
            found = _is_in(value(column), values, by_value=is_float(column.type))
            return pc.and_kleene(pc.invert(found), pc.is_valid(value(column))) if negated else found
        case IsNull(column, negated):
            return pc.is_valid(value(column)) if negated else pc.is_null(value(column))
        case Prefix(column, prefix, negated):
            found = pc.starts_with(value(column), prefix)
            return pc.invert(found) if negated else found
    raise AssertionError(predicate)  # see can_be_masked


def _by_code(passes: pa.BooleanArray, codes: pa.Array) -> pa.BooleanArray:
    # Many conditions pass a single value: to compare codes takes a quarter of the time of looking each of them up.
    if passes.null_count or passes.true_count != 1:
        return pc.take(passes, codes)
    return pc.equal(codes, pc.cast(pc.indices_nonzero(passes)[0], codes.type))


def _is_in(array: pa.Array, values: pa.Array, *, by_value: bool) -> pa.BooleanArray:
    if not by_value:
        return pc.is_in(array, value_set=values)
    # Arrow's hash table takes -0.0 and 0.0 for different numbers.
    return reduce(pc.or_kleene, (pc.equal(array, each) for each in values))
