"""Bind columns, operators and literals into nodes of the tree. Every input form ends here.

Each function takes ``negated``, so that a NOT above never survives as a node: the caller passes it down. ``nan`` is the
order of NaN, which the input form determines.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
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
from lazydelta.protocol.schema import Array, Column, Map, Primitive, Struct, TableSchema, Variant
from lazydelta.protocol.values import Placed, is_float, place
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import Stored, typed_array, typed_scalar

__all__ = [
    "MIRRORED",
    "OPERATORS",
    "compare",
    "conjunction",
    "disjunction",
    "fold",
    "is_null",
    "like",
    "membership",
    "plain_prefix",
    "starts_with",
    "to_arrow_expression",
]


OPERATORS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
"""Spellings of the six comparisons, and their names in the tree."""

MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The equivalent comparison with its sides exchanged."""

_OPPOSITE = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def compare(
    column: Column, op: str, value: object, *, negated: bool = False, nan: NanOrder = NanOrder.UNORDERED
) -> Predicate:
    """Compare ``column`` with a literal of any Python type. None is SQL's NULL, which makes it unknown."""
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
    """Test ``column`` against a set by SQL's rules: with a NULL in the set, NOT IN is true for no row."""
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
    if not stored:  # No value of the set can be stored in the column.
        return IsNull(column, negated=True) if negated else Constant(value=False)
    kind = column.type.to_arrow()
    if len(stored) == 1:
        return Compare(column, "!=" if negated else "=", typed_scalar(stored.pop(), kind))
    return In(column, typed_array(sorted(stored), kind), negated)


def is_null(column: Column, *, negated: bool = False) -> Predicate:
    """Test for null. Works for any column, including structs and lists."""
    return IsNull(column, negated)


def starts_with(column: Column, prefix: str, *, negated: bool = False) -> Predicate:
    """Test for a prefix. Every string starts with the empty prefix."""
    if column.type != Primitive("string"):
        message = f"LIKE needs a string column, and {column.name!r} is of type {column.type}"
        raise PredicateError(message, hint="compare it with =, <, <=, > or >=")
    place(prefix, column)
    if not prefix:
        return Constant(None) if negated else IsNull(column, negated=True)
    return Prefix(column, prefix, negated)


def conjunction(parts: Iterable[Predicate]) -> Predicate:
    """Return a flattened AND. A part that no row passes decides alone."""
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
    """Return a flattened OR, without parts that no row passes."""
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


# LIKE patterns: the part of a pattern that can prune, and the rest as an exact row filter.


def like(column: Column, pattern: str, *, escape: str = "\\", negated: bool = False) -> Predicate:
    """Match ``pattern``, in which % is any string and _ any character.

    Without wildcards it is an equality, with one % at the end a prefix. Any other pattern still prunes by the part
    before its first wildcard, and is exact only when rows are filtered.
    """
    if len(escape) != 1:
        message = f"The ESCAPE of a LIKE on column {column.name!r} is {escape!r}"
        raise PredicateError(message, hint="pass one character")
    tokens = _tokens(column, pattern, escape)
    prefix = ""
    for position, (character, wild) in enumerate(tokens):
        if wild:
            rest = tokens[position:]
            break
        prefix += character
    else:
        starts_with(column, prefix)  # Only to check that this is a string column.
        return compare(column, "=", prefix, negated=negated)
    exact = all(wild and character == "%" for character, wild in rest)
    if exact:
        return starts_with(column, prefix, negated=negated)
    usable = starts_with(column, prefix)
    expression = pc.match_like(pc.field(*column.path), _arrow_pattern(tokens))
    text = f"{column.name} {'NOT ' if negated else ''}LIKE {pattern!r}"
    if negated:
        # Rows without the prefix pass, and so may those with it.
        return Opaque(text, (column,), ~expression, reason="no range is left out by what a text is not like")
    reason = "the pattern begins with a wildcard"
    return conjunction([usable, Opaque(text, (column,), expression, reason=reason, narrowed=bool(prefix))])


def plain_prefix(column: Column, pattern: str, escape: str = "\\") -> str | None:
    """Return the string before the single % at the end of a pattern; None for any other pattern."""
    tokens = _tokens(column, pattern, escape)
    texts = [character for character, wild in tokens if not wild]
    wild = [character for character, wild in tokens[len(texts) :] if wild]
    return "".join(texts) if wild and set(wild) == {"%"} and len(texts) + len(wild) == len(tokens) else None


def _tokens(column: Column, pattern: str, escape: str) -> list[tuple[str, bool]]:
    tokens: list[tuple[str, bool]] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                message = f"The LIKE pattern {pattern!r} on column {column.name!r} ends with its escape character"
                raise PredicateError(message, hint="double the escape character, or remove it")
            if following in {"%", "_", escape}:
                tokens.append((following, False))
            else:
                tokens += [(character, False), (following, False)]
        else:
            tokens.append((character, character in {"%", "_"}))
    return tokens


def _arrow_pattern(tokens: list[tuple[str, bool]]) -> str:
    # PyArrow only supports the backslash as escape character.
    return "".join("\\" + char if not wild and char in {"%", "_", "\\"} else char for char, wild in tokens)


# Translate predicates to PyArrow expressions that filter rows exactly.


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
    raise PredicateError(message, hint="please report this predicate")


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
