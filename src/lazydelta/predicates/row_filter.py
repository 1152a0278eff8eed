"""Translate predicates to PyArrow expressions that filter rows exactly."""

from __future__ import annotations

import pyarrow as pa

from lazydelta.errors import PredicateError
from lazydelta.predicates.tree import (
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
)
from lazydelta.protocol.literals import is_float
from lazydelta.protocol.schema import Column, TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import typed_scalar

__all__ = ["fold", "to_arrow_expression"]


def to_arrow_expression(predicate: Predicate, schema: TableSchema) -> pc.Expression:
    """Return an expression over logical columns that is true for exactly the rows that pass.

    It may be null where the predicate is false. PyArrow's filters drop both.
    """
    match predicate:
        case WithExpression(_, expression):
            return expression
        case And(parts) | Or(parts):
            word = "and_kleene" if isinstance(predicate, And) else "or_kleene"
            return fold([to_arrow_expression(part, schema) for part in parts], word)
        case Not(part):
            return ~to_arrow_expression(part, schema)
        case Constant(value):
            return pc.scalar(typed_scalar(value is True, pa.bool_()))
        case Compare(column, op, value, nan):
            found = _compare(_field(column, schema), op, value)
            return found if nan is NanOrder.UNORDERED else found | pc.is_nan(_field(column, schema))
        case IsNan(column, negated):
            found = pc.is_nan(_field(column, schema))
            return ~found if negated else found
        case In(column, values, negated):
            found = _field(column, schema).isin(values)
            if is_float(column.type):
                # PyArrow's hash table treats -0.0 and 0.0 as different numbers.
                found = fold([_field(column, schema) == value for value in values], "or_kleene")
            return ~found & _field(column, schema).is_valid() if negated else found
        case IsNull(column, negated):
            return _field(column, schema).is_valid() if negated else _field(column, schema).is_null()
        case Prefix(column, prefix, negated):
            found = pc.starts_with(_field(column, schema), prefix)
            return ~found if negated else found
        case Opaque(text, _, expression) if expression is None:
            message = f"Rows cannot be filtered by {text!r}: lazydelta does not evaluate such a condition"
            raise PredicateError(message, hint="use it to select files, and filter the rows in your engine")
        case Opaque(_, _, expression):
            return expression
    message = f"There is no row filter for {predicate!r}"
    raise PredicateError(message, hint="report this predicate")


def _field(column: Column, schema: TableSchema) -> pc.Expression:
    return pc.field(*schema.column(column.path).path)


def _compare(field: pc.Expression, op: str, value: object) -> pc.Expression:
    literal = pc.scalar(value)
    return {
        "=": field.__eq__,
        "!=": field.__ne__,
        "<": field.__lt__,
        "<=": field.__le__,
        ">": field.__gt__,
        ">=": field.__ge__,
    }[op](literal)


def fold(parts: list[pc.Expression], function: str) -> pc.Expression:
    """Join as a balanced tree: a chain of thousands would overflow PyArrow's stack when it binds the expression."""
    while len(parts) > 1:
        pairs = [parts[start : start + 2] for start in range(0, len(parts), 2)]
        parts = [_join(pair, function) if len(pair) > 1 else pair[0] for pair in pairs]
    return parts[0]


def _join(pair: list[pc.Expression], function: str) -> pc.Expression:
    return pair[0] & pair[1] if function == "and_kleene" else pair[0] | pair[1]
