"""Translate PyArrow expressions to predicates.

An expression has no public tree, but its pickled form does: a record batch whose columns are the literals and options,
and whose schema metadata lists the calls in prefix order, unbound and without implicit casts. (Substrait, the
alternative, rejects every expression that needs a cast, such as a long compared with 1.5, and ``starts_with``.) That
form is not guaranteed, so anything unexpected in it makes the expression opaque: slower, never wrong.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import PredicateError, UnknownColumnError
from lazydelta.predicates.binding import (
    MIRRORED,
    compare,
    conjunction,
    disjunction,
    fold,
    is_null,
    like,
    membership,
    starts_with,
)
from lazydelta.predicates.tree import Constant, NanOrder, Opaque, Predicate, WithExpression, leaves
from lazydelta.protocol.schema import Column, Decimal, Primitive, TableSchema
from lazydelta.protocol.values import is_float
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import typed_scalar

__all__ = ["parse_expression"]

_COMPARISONS = {
    "equal": "=",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_EXACT_INTEGERS = 2**53
_EXACT_DIGITS = 15
_MAX_DEPTH = 200
_UNKNOWN = typed_scalar(None, pa.bool_())
_MATCH_NULL, _SKIP_NULL = 0, 1
_UNREAD = "PyArrow's form of the expression is another than the one lazydelta reads"


def parse_expression(
    expression: pc.Expression, schema: TableSchema, *, nan: NanOrder = NanOrder.UNORDERED
) -> Predicate:
    """Translate ``expression`` as far as possible. Only unknown columns raise an error.

    In PyArrow NaN is unordered. SQL engines that pass their filters as expressions treat it as the largest value, and
    for them ``IN`` is unknown for a null. Parts that PyArrow has to evaluate are rewritten to that meaning.
    """
    try:
        root = _decode(expression)
        predicate = _translate(root, schema, nan, negated=False, depth=0)
    except UnknownColumnError:
        raise
    except (
        _UntranslatableError,
        PredicateError,
        pa.ArrowException,
        struct.error,
        RecursionError,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
    ):
        # Includes the decoder's errors for a pickled form of an unknown shape.
        shown = pc.expression_text(expression)
        return Opaque(shown, (), expression if nan is NanOrder.UNORDERED else None, reason=_UNREAD)
    opaque = [leaf for leaf in leaves(predicate) if isinstance(leaf, Opaque)]
    if nan is not NanOrder.UNORDERED and all(leaf.expression is not None for leaf in opaque):
        return predicate
    if opaque:
        floats = nan is not NanOrder.UNORDERED and any(is_float(column.type) for column in _columns(root, schema))
        return predicate if floats else WithExpression(predicate, expression)
    return predicate


class _UntranslatableError(Exception):
    """Internal to this module: the current node has no translation."""


class _Call(msgspec.Struct):
    name: str
    arguments: list[Any] = msgspec.field(default_factory=list)
    options: Any = None


class _Reference(msgspec.Struct, frozen=True):
    path: tuple[str, ...]


class _Value(msgspec.Struct, frozen=True):
    scalar: pa.Scalar


def _decode(expression: pc.Expression) -> Any:
    _, (buffer,) = expression.__reduce__()
    batch = pa.ipc.open_file(buffer).get_batch(0)
    pairs = _metadata(batch.schema)
    root = _Call("")
    stack = [root]
    for key, text in pairs:
        if key == "call":
            call = _Call(text)
            stack[-1].arguments.append(call)
            stack.append(call)
        elif key == "end":
            stack.pop()
        elif key == "options":
            stack[-1].options = batch.column(int(text))[0]
        elif key == "literal":
            stack[-1].arguments.append(_Value(batch.column(int(text))[0]))
        elif key == "field_ref":
            stack[-1].arguments.append(_Reference((text,)))
        elif key == "nested_field_ref":
            path = [next(pairs) for _ in range(int(text))]
            stack[-1].arguments.append(_Reference(tuple(name for _, name in path)))
        else:
            raise _UntranslatableError
    if stack != [root] or len(root.arguments) != 1:
        raise _UntranslatableError
    return root.arguments[0]


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a schema's metadata in order. ``schema.metadata`` is a dict and loses repeated keys.

    Reads the schema's IPC message, a flatbuffer: Message.header is field 2, Schema.custom_metadata field 2.
    """
    data = schema.serialize().to_pybytes()
    base = 8 if data[:4] == b"\xff\xff\xff\xff" else 4

    def number(position: int) -> int:
        return int(struct.unpack_from("<i", data, position)[0])

    def slot(table: int, index: int) -> int:
        entries = table - number(table)
        offset = 4 + 2 * index
        if offset >= struct.unpack_from("<H", data, entries)[0]:
            return 0
        relative = struct.unpack_from("<H", data, entries + offset)[0]
        return table + int(relative) if relative else 0

    def follow(position: int) -> int:
        return position + number(position)

    def text(position: int) -> str:
        start = follow(position)
        return str(data[start + 4 : start + 4 + number(start)], "utf-8")

    header = slot(follow(base), 2)
    pairs = slot(follow(header), 2) if header else 0
    if not pairs:
        raise _UntranslatableError
    vector = follow(pairs)
    for index in range(number(vector)):
        pair = follow(vector + 4 + 4 * index)
        key, value = slot(pair, 0), slot(pair, 1)
        yield text(key), text(value) if value else ""


def _translate(node: Any, schema: TableSchema, nan: NanOrder, *, negated: bool, depth: int) -> Predicate:
    if depth > _MAX_DEPTH:
        raise _UntranslatableError
    while isinstance(node, _Call) and node.name == "invert":
        negated, node = not negated, node.arguments[0]
    if isinstance(node, _Call) and node.name in {"and_kleene", "or_kleene"}:
        join = conjunction if (node.name == "and_kleene") is not negated else disjunction
        return join([_translate(part, schema, nan, negated=negated, depth=depth + 1) for part in _chain(node)])
    columns = tuple(_columns(node, schema))
    try:
        return _leaf(node, schema, nan, negated=negated)
    except UnknownColumnError:
        raise
    except (_UntranslatableError, PredicateError):
        name = node.name if isinstance(node, _Call) else "value"
        shown = f"{name}({', '.join(column.name for column in columns)})"
        reason = f"lazydelta has no range for {name}() as it stands here"
        meant = None if nan is NanOrder.UNORDERED else _as_in_sql(node, schema)
        if negated and meant is not None:
            meant = ~meant
        return Opaque(f"NOT {shown}" if negated else shown, columns, meant, reason)


def _as_in_sql(node: Any, schema: TableSchema) -> pc.Expression | None:
    """Return an expression with the meaning that a SQL engine gives to the node; None if there is none."""
    match node:
        case _Value(scalar):
            return pc.scalar(scalar)
        case _Reference(path):
            return pc.field(*schema.column(path).path)
        case _Call("is_in", [argument], options):
            return _sql_is_in(argument, options, schema)
        case _Call("is_null", [argument]):
            inner = _as_in_sql(argument, schema)
            return None if inner is None else inner.is_null()
        case _Call(name, arguments, None):
            parts = [_as_in_sql(each, schema) for each in arguments]
            if any(part is None for part in parts):
                return None
            if name not in _COMPARISONS:
                return getattr(pc, name)(*parts)
            return _sql_comparison(name, parts, [_is_float(each, schema) for each in arguments])
    return None


def _sql_is_in(argument: Any, options: Any, schema: TableSchema) -> pc.Expression | None:
    tested = _as_in_sql(argument, schema)
    if tested is None:
        return None
    kinds = [_is_float(argument, schema), True]
    if kinds[0]:
        # PyArrow's hash table treats -0.0 and 0.0 as different numbers.
        same = [_sql_comparison("equal", [tested, pc.scalar(each)], kinds) for each in options["value_set"].values]
        return fold(same, "or_kleene")
    known = options["value_set"].values
    found = tested.isin(known.drop_null())
    return pc.if_else(
        tested.is_valid(), found | pc.scalar(_UNKNOWN) if known.null_count else found, pc.scalar(_UNKNOWN)
    )


def _sql_comparison(name: str, parts: list[Any], floats: list[bool]) -> pc.Expression:
    """Compare values with NaN as the largest, and equal to itself."""
    plain = getattr(pc, name)(*parts)
    if not any(floats):
        return plain
    never = pc.scalar(typed_scalar(value=False, kind=pa.bool_()))
    left, right = (pc.is_nan(part) if is_nan else never for part, is_nan in zip(parts, floats, strict=True))
    found = {
        "equal": plain | (left & right),
        "not_equal": plain & ~(left & right),
        "less": plain | (~left & right),
        "less_equal": plain | right,
        "greater": plain | (left & ~right),
        "greater_equal": plain | left,
    }[name]
    return pc.if_else(plain.is_valid(), found, pc.scalar(_UNKNOWN))


def _is_float(node: Any, schema: TableSchema) -> bool:
    if isinstance(node, _Reference):
        return is_float(schema.column(node.path).type)
    return isinstance(node, _Value) and pa.types.is_floating(node.scalar.type)


def _chain(node: _Call) -> list[Any]:
    """Flatten a chain of one connective without recursion: filters often have thousands of ORs."""
    parts: list[Any] = []
    pending: list[Any] = [node]
    while pending:
        each = pending.pop()
        if isinstance(each, _Call) and each.name == node.name:
            pending.extend(reversed(each.arguments))
        else:
            parts.append(each)
    return parts


def _columns(node: Any, schema: TableSchema) -> Iterator[Column]:
    pending = [node]
    while pending:
        each = pending.pop()
        if isinstance(each, _Call):
            pending.extend(reversed(each.arguments))
        elif isinstance(each, _Reference):
            yield schema.column(each.path)


def _leaf(node: Any, schema: TableSchema, nan: NanOrder, *, negated: bool) -> Predicate:
    match node:
        case _Value(scalar):
            if not scalar.is_valid:
                return Constant(None)
            if pa.types.is_boolean(scalar.type):
                return Constant(scalar.as_py() is not negated)
        case _Reference(path):
            column = schema.column(path)
            if column.type == Primitive("boolean"):
                return compare(column, "=", value=True, negated=negated)
        case _Call(name, [_Reference(path), _Value(scalar)]) if name in _COMPARISONS:
            return _compare(schema.column(path), _COMPARISONS[name], scalar, nan, negated=negated)
        case _Call(name, [_Value(scalar), _Reference(path)]) if name in _COMPARISONS:
            return _compare(schema.column(path), MIRRORED[_COMPARISONS[name]], scalar, nan, negated=negated)
        case _Call(name, [_Reference(path)], options):
            return _unary(name, schema.column(path), options, nan, negated=negated)
        case _Call("if_else", [_Call("is_valid", [_Reference(path)]), inner, _Value(other)]) if not other.is_valid:
            # DuckDB's way to express that IN is null where the column is.
            valid = is_null(schema.column(path), negated=True)
            return conjunction([valid, _translate(inner, schema, nan, negated=negated, depth=0)])
    raise _UntranslatableError


def _unary(name: str, column: Column, options: Any, nan: NanOrder, *, negated: bool) -> Predicate:
    if name == "is_valid":
        return is_null(column, negated=not negated)
    if name == "is_null" and (options is None or not options["nan_is_null"].as_py() or not is_float(column.type)):
        return is_null(column, negated=negated)
    if name == "is_in":
        return _is_in(column, options, nan, negated=negated)
    if name in {"starts_with", "match_like"} and not options["ignore_case"].as_py():
        pattern = options["pattern"].as_py()
        text = pattern.decode() if isinstance(pattern, bytes) else pattern
        return (starts_with if name == "starts_with" else like)(column, text, negated=negated)
    raise _UntranslatableError


def _is_in(column: Column, options: Any, nan: NanOrder, *, negated: bool) -> Predicate:
    """Translate ``is_in``. In PyArrow a null is in the set or not; in SQL that is unknown."""
    behaviour = options["null_matching_behavior"].as_py()
    if behaviour not in {_MATCH_NULL, _SKIP_NULL}:
        raise _UntranslatableError
    values, has_null = [], False
    for scalar in options["value_set"].values:
        if not scalar.is_valid:
            has_null = True
            continue
        _check_same_comparison(column, scalar)
        if nan is NanOrder.UNORDERED and pa.types.is_floating(scalar.type) and math.isnan(scalar.as_py()):
            raise _UntranslatableError  # is_in matches NaN, = does not.
        values.append(scalar)
    matches_null = has_null and behaviour == _MATCH_NULL
    found = membership(column, values, negated=negated, nan=nan)
    if nan is not NanOrder.UNORDERED:
        return Constant(None) if has_null and negated else found
    return disjunction([found, is_null(column)]) if matches_null is not negated else found


def _compare(column: Column, op: str, scalar: pa.Scalar, nan: NanOrder, *, negated: bool) -> Predicate:
    if not scalar.is_valid:
        return Constant(None)
    _check_same_comparison(column, scalar)
    return compare(column, op, scalar, negated=negated, nan=nan)


def _check_same_comparison(column: Column, scalar: pa.Scalar) -> None:
    """Raise unless both agree: PyArrow compares integers and decimals with floats as floats, lazydelta exactly."""
    if not pa.types.is_floating(scalar.type) or is_float(column.type):
        return
    value = scalar.as_py()
    if not math.isfinite(value) or abs(value) >= _EXACT_INTEGERS:
        raise _UntranslatableError
    if isinstance(column.type, Decimal) and column.type.precision > _EXACT_DIGITS:
        raise _UntranslatableError
