"""NaN as SQL engines have it: larger than every number and equal to itself.

Engines hand us comparisons and leave the rows to us, so a pushed ``x > 5`` has to keep NaN as they would. Statistics
leave NaN out, which is why the added part is one that rules nothing out.
"""

from __future__ import annotations

import math

import pyarrow.compute as pc

from lazydelta.errors import PredicateError
from lazydelta.pruning import Predicate, conjunction
from lazydelta.pruning.binding import disjunction
from lazydelta.pruning.tree import (
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Not,
    Opaque,
    Or,
    WithExpression,
    leaves,
)
from lazydelta.types.literals import is_float
from lazydelta.types.schema import Column

__all__ = ["nan_as_largest"]

_WITHOUT_NAN = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def nan_as_largest(predicate: Predicate) -> Predicate:
    """Return the predicate that is true where an engine that orders NaN last finds ``predicate`` true."""
    if isinstance(predicate, WithExpression):
        # Its rows are filtered by the expression as it was given, in which PyArrow compares as IEEE says.
        if any(_compares_floats(leaf) for leaf in leaves(predicate)):
            message = f"The filter {str(predicate)[:200]} compares floats beside a part that lazydelta cannot read"
            hint = "compare floats in a condition of their own, outside of the part that is not understood"
            raise PredicateError(message, hint=hint)
        return predicate
    match predicate:
        case And(parts):
            return conjunction([nan_as_largest(part) for part in parts])
        case Or(parts):
            return disjunction([nan_as_largest(part) for part in parts])
        case Not(Compare(column, op, value)) if not _is_nan(value):
            # NOT (x > 5) is x <= 5 where NaN is larger than 5, and NOT (x < 5) is x >= 5, NaN included.
            return nan_as_largest(Compare(column, _WITHOUT_NAN[op], value))
        case Not(part):
            return _against_nan(part, negated=True)
        case Compare(column, op, value) if is_float(column.type):
            if _is_nan(value):
                return _against_nan(predicate, negated=False)
            return disjunction([predicate, _nan(column)]) if op in {">", ">="} else predicate
        case In(column, values, negated) if is_float(column.type) and any(_is_nan(value) for value in values):
            return disjunction([predicate, _nan(column)]) if not negated else conjunction([predicate, _number(column)])
    return predicate


def _compares_floats(leaf: Predicate) -> bool:
    return isinstance(leaf, Compare | In) and is_float(leaf.column.type)


def _against_nan(part: Compare, *, negated: bool) -> Predicate:
    column, op = part.column, part.op
    if negated:
        op = {"=": "!=", "!=": "=", **_WITHOUT_NAN}[op]
    return {
        "=": _nan(column),
        ">=": _nan(column),
        "!=": _number(column),
        "<": _number(column),
        "<=": IsNull(column, negated=True),
        ">": Constant(value=False),
    }[op]


def _nan(column: Column) -> Predicate:
    return Opaque(f"isnan({column.name})", (column,), pc.is_nan(pc.field(*column.path)))


def _number(column: Column) -> Predicate:
    return Opaque(f"NOT isnan({column.name})", (column,), ~pc.is_nan(pc.field(*column.path)))


def _is_nan(value: object) -> bool:
    number = value.as_py() if hasattr(value, "as_py") else value
    return isinstance(number, float) and math.isnan(number)
