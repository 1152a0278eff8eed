"""PyArrow expressions to predicates.

An expression has no public tree. Its pickled form does: a record batch whose columns are the literals and options, and
whose schema metadata spells the calls in prefix order, unbound and without implicit casts. (Substrait, the other way
out, refuses every expression that needs a cast, a long compared with 1.5 among them, and ``starts_with``.) That form
is not promised, so anything unexpected in it makes the expression opaque: slower, never wrong.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.errors import PredicateError, UnknownColumnError
from lazydelta.pruning.binding import MIRRORED, compare, conjunction, disjunction, is_null, membership, starts_with
from lazydelta.pruning.like import like
from lazydelta.pruning.tree import Constant, NanOrder, Opaque, Predicate, WithExpression, leaves
from lazydelta.types.literals import is_float
from lazydelta.types.schema import Column, Decimal, Primitive, TableSchema

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
_MATCH_NULL, _SKIP_NULL = 0, 1
_UNREAD = "PyArrow's form of the expression is another than the one lazydelta reads"


def parse_expression(
    expression: pc.Expression, schema: TableSchema, *, nan: NanOrder = NanOrder.UNORDERED
) -> Predicate:
    """Translate ``expression`` as far as possible; columns that do not exist are errors, nothing else is.

    PyArrow itself has NaN unordered. Engines that hand their filters over as expressions have it as the largest value:
    for them a part that PyArrow would have to evaluate prunes nothing and filters no rows.
    """
    whole = Opaque(str(expression), (), expression if nan is NanOrder.UNORDERED else None, reason=_UNREAD)
    try:
        root = _decode(expression)
        predicate = _translate(root, schema, nan, negated=False, depth=0)
    except UnknownColumnError:
        raise
    except (_UntranslatableError, PredicateError, pa.ArrowException, struct.error, RecursionError):
        return whole
    except (LookupError, ValueError, TypeError, AttributeError):
        # What a pickled form of another shape than the one we know would make of the decoder.
        return whole
    if any(isinstance(leaf, Opaque) for leaf in leaves(predicate)):
        floats = nan is not NanOrder.UNORDERED and any(is_float(column.type) for column in _columns(root, schema))
        return predicate if floats else WithExpression(predicate, expression)
    return predicate


class _UntranslatableError(Exception):
    """Never leaves this module: the node at hand has no translation."""


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
    """Yield the pairs of a schema's metadata in order; ``schema.metadata`` is a dict and loses repeated keys.

    Read from the schema's IPC message, a flatbuffer: Message.header is field 2, Schema.custom_metadata field 2.
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
        return Opaque(f"NOT {shown}" if negated else shown, columns, reason=reason)


def _chain(node: _Call) -> list[Any]:
    """Take a chain of one connective apart without recursion: filters are often thousands of ORs."""
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
            # This is how DuckDB says that IN is null where the column is.
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
    """Translate ``is_in``, which is never null: a null is in the set or it is not."""
    behaviour = options["null_matching_behavior"].as_py()
    if behaviour not in {_MATCH_NULL, _SKIP_NULL}:
        raise _UntranslatableError
    values, has_null = [], False
    for scalar in options["value_set"].values:
        if not scalar.is_valid:
            has_null = True
            continue
        _need_same_meaning(column, scalar)
        if nan is NanOrder.UNORDERED and pa.types.is_floating(scalar.type) and math.isnan(scalar.as_py()):
            raise _UntranslatableError  # is_in finds NaN, which = does not.
        values.append(scalar)
    matches_null = has_null and behaviour == _MATCH_NULL
    found = membership(column, values, negated=negated, nan=nan)
    return disjunction([found, is_null(column)]) if matches_null is not negated else found


def _compare(column: Column, op: str, scalar: pa.Scalar, nan: NanOrder, *, negated: bool) -> Predicate:
    if not scalar.is_valid:
        return Constant(None)
    _need_same_meaning(column, scalar)
    return compare(column, op, scalar, negated=negated, nan=nan)


def _need_same_meaning(column: Column, scalar: pa.Scalar) -> None:
    """PyArrow compares integers and decimals with floats as floats; ours is exact: keep to where both agree."""
    if not pa.types.is_floating(scalar.type) or is_float(column.type):
        return
    value = scalar.as_py()
    if not math.isfinite(value) or abs(value) >= _EXACT_INTEGERS:
        raise _UntranslatableError
    if isinstance(column.type, Decimal) and column.type.precision > _EXACT_DIGITS:
        raise _UntranslatableError
