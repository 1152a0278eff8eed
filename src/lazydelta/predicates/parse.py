"""Parse predicates: the input forms, and the parsers of tuples and JSON.

=====================  ================================================================================
SQL string             ``"date >= '2026-02-08' AND device LIKE 'a%'"``
tuples                 ``[("date", ">=", "2026-02-08"), ("n", "in", [1, 2])]``: all must hold
tuples, DNF            ``[[("n", "=", 1)], [("n", "=", 2), ("m", ">", 3)]]``: one of the lists must hold
JSON, string or dict   ``{"date": "2026-02-08", "n": {">=": 1, "<": 9}, "or": [{"m": null}, {"m": {"in": [3]}}]}``
PyArrow expression     ``pc.field("n") >= 1``
Polars expression      ``pl.col("n") >= 1``
=====================  ================================================================================

SQL and JSON follow SQL's three-valued logic: a comparison with null is unknown and keeps no row, so ``n NOT IN (1)``
keeps no null either. JSON has no keyword for IS NULL, so ``{"n": null}`` means that. Tuples and expressions follow
PyArrow, whose ``in`` is never unknown: ``("n", "not in", [1])`` keeps nulls, ``("n", "in", [1, None])`` matches them.
NaN is the largest value in SQL and follows IEEE 754 in the other forms (`NanOrder`).
"""

from __future__ import annotations

import datetime as dt
import inspect
import json
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal as PyDecimal
from typing import Any, TypeAlias

import msgspec

from lazydelta.errors import PredicateError
from lazydelta.predicates.binding import (
    OPERATORS,
    compare,
    conjunction,
    disjunction,
    is_null,
    like,
    membership,
    starts_with,
)
from lazydelta.predicates.tree import (
    And,
    Compare,
    Constant,
    NanOrder,
    Opaque,
    Or,
    Predicate,
    WithExpression,
    leaves,
    partition_columns,
    stats_columns,
)
from lazydelta.protocol.schema import Column, Primitive, TableSchema
from lazydelta.protocol.values import short_repr
from lazydelta.runtime import compute as pc
from lazydelta.warned import PredicateWarning

__all__ = [
    "Conjunct",
    "Where",
    "check_conjuncts",
    "conjuncts",
    "parse_predicate",
]


Where: TypeAlias = "str | Predicate | pc.Expression | Mapping[str, Any] | Sequence[Any] | None"
"""All supported input forms of a predicate."""

_MAX_DEPTH = 200
_PAIR, _TRIPLE = 2, 3


def parse_predicate(
    where: Where,
    schema: TableSchema,
    *,
    now: int | None = None,
    nan: NanOrder | None = None,
    trust_float_max: bool = False,
    by_engine: bool = False,
    numbers_as_text: bool | None = None,
) -> Predicate | None:
    """Bind ``where`` to the columns of ``schema``; None if there is no predicate.

    ``now`` is the value of ``now()`` in SQL, in nanoseconds since 1970, UTC; by default the time of the call. ``nan``
    sets the order of NaN, for callers whose comparisons differ from those of the input form; by default NaN is the
    largest value in SQL and follows IEEE 754 in all other forms. Tuples and JSON ignore it. ``trust_float_max`` is for
    tables whose writers log no maximum for a column with a NaN: if NaN is the largest value, a maximum prunes only
    then. ``by_engine`` lets an engine filter rows by SQL that lazydelta does not evaluate: the author of the SQL can
    then call any DuckDB function. ``numbers_as_text`` says whether SQL compares a string column with an integer by its
    digits: True for every comparison, None for ``=``, ``!=`` and ``IN`` only, False for none. What is left is an error.
    """
    if where is None or isinstance(where, Predicate):
        return where
    if type(where).__module__.lstrip("_").startswith("duckdb"):  # an expression of DuckDB's, whose str() is SQL
        where = str(where)
    if isinstance(where, str):
        if where.lstrip()[:1] in {"{", "["}:
            return parse_predicate(_json(where), schema)
        from lazydelta.predicates.sql.translation import parse_sql  # noqa: PLC0415 - each form is loaded when used

        order = _nan_order(nan or NanOrder.LARGEST, trust=trust_float_max)
        timestamp = time.time_ns() if now is None else now
        how = {"by_engine": by_engine, "numbers_as_text": numbers_as_text}
        return parse_sql(where, schema, now=timestamp, nan=order, **how)
    if isinstance(where, Mapping):
        return _mapping(where, schema, negated=False, depth=0) if where else None
    if isinstance(where, Sequence) and not isinstance(where, bytes | bytearray):
        return _filters(where, schema) if where else None
    if isinstance(where, pc.Expression):
        from lazydelta.predicates.expression import parse_expression  # noqa: PLC0415 - as above

        return parse_expression(where, schema, nan=_nan_order(nan or NanOrder.UNORDERED, trust=trust_float_max))
    if type(where).__module__.startswith("polars."):
        from lazydelta.predicates.polars_expression import parse_polars  # noqa: PLC0415 - as above

        return parse_polars(where, schema)
    message = f"A predicate cannot be a {type(where).__name__}: {short_repr(where)}"
    raise PredicateError(
        message, hint="pass a SQL string, a list of (column, operator, value), a dict or an expression"
    )


def _nan_order(nan: NanOrder, *, trust: bool) -> NanOrder:
    return NanOrder.LARGEST_AND_IN_NO_MAXIMUM if trust and nan is NanOrder.LARGEST else nan


def _filters(filters: Sequence[Any], schema: TableSchema) -> Predicate:
    if _is_condition(filters) and isinstance(filters, tuple):
        return _condition(filters, schema)
    if all(isinstance(each, Mapping) for each in filters):
        return conjunction([_mapping(each, schema, negated=False, depth=0) for each in filters])
    if all(_is_condition(each) for each in filters):
        return conjunction([_condition(each, schema) for each in filters])
    alternatives: list[Predicate] = []
    for each in filters:
        if not _is_list(each) or not each or not all(_is_condition(condition) for condition in each):
            raise _no_filters(filters, each)
        alternatives.append(conjunction([_condition(condition, schema) for condition in each]))
    return disjunction(alternatives)


def _no_filters(filters: Sequence[Any], wrong: object) -> PredicateError:
    message = f"A list of filters holds {short_repr(wrong)}"
    hint = "write [(column, operator, value), …], or a list of such lists for OR"
    if _is_list(wrong) and not wrong:
        return PredicateError(f"{message}, an empty conjunction", hint=hint)
    if isinstance(wrong, str) and all(isinstance(each, str) for each in filters):
        return PredicateError(message, hint=f"write {short_repr(' AND '.join(filters))}")
    conditions = [_is_condition(each) for each in filters]
    if any(conditions) and all(_is_list(each) for each in filters):
        return PredicateError(f"{message} beside others of another form", hint=f"{hint}, not a mix")
    return PredicateError(message, hint=hint)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _is_condition(value: Any) -> bool:
    return _is_list(value) and len(value) in {_PAIR, _TRIPLE} and all(isinstance(part, str) for part in value[:2])


def _condition(condition: Sequence[Any], schema: TableSchema) -> Predicate:
    column, op = schema.column(condition[0]), condition[1]
    word = " ".join(op.lower().split())
    if len(condition) == _PAIR and word not in {"is null", "is not null"}:
        message = f"The filter {short_repr(tuple(condition))} has no value"
        raise PredicateError(message, hint="write (column, operator, value)")
    value = condition[2] if len(condition) == _TRIPLE else None
    if word in {"in", "not in"}:
        return _pyarrow_membership(
            column, [_partition_text(column, each) for each in _values(column, word, value)], word
        )
    return _operation(column, word, _partition_text(column, value) if word in OPERATORS else value)


def _pyarrow_membership(column: Column, values: Sequence[object], op: str) -> Predicate:
    """Test for membership as PyArrow does, without unknowns: null matches None, and NaN matches NaN."""
    negated = op == "not in"
    present = [value for value in values if value is not None and getattr(value, "is_valid", True) is not False]
    found = membership(column, present, negated=negated, nan=NanOrder.LARGEST)
    has_null = len(present) < len(values)
    if has_null and negated:
        return conjunction([found, is_null(column, negated=True)]) if not present else found
    return disjunction([found, is_null(column)]) if has_null or negated else found


def _partition_text(column: Column, value: Any) -> Any:
    """Return a value as deltalake writes it to a string partition column, so that 3 finds the partition '3'."""
    if not column.is_partition or column.type != Primitive("string"):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, Mapping) or _is_list(value):
        message = f"Could not encode partition value for type {type(value).__name__}: {short_repr(value)}"
        raise PredicateError(message, hint=f"compare the partition column {column.name!r} with a text or a number")
    return str(value) if isinstance(value, int | float | PyDecimal) else value


def _operation(column: Column, op: str, value: Any, *, negated: bool = False) -> Predicate:
    if op in OPERATORS:
        return compare(column, OPERATORS[op], value, negated=negated)
    if op in {"in", "not in"}:
        return membership(column, _values(column, op, value), negated=negated is (op == "in"))
    if op in {"is null", "is not null"} or (op in {"is", "is not"} and value is None):
        # A JSON operator needs a value: {"is null": false} means the opposite.
        flipped = negated is not (value is False)
        return is_null(column, negated=flipped is not op.startswith("is not"))
    if op in {"like", "not like"}:
        return like(column, _text(column, op, value), negated=negated is (op == "like"))
    if op in {"starts with", "starts_with", "prefix"}:
        return starts_with(column, _text(column, op, value), negated=negated)
    if op == "between":
        bounds = list(_values(column, op, value))
        if len(bounds) != _PAIR:
            message = f"BETWEEN on column {column.name!r} takes two values, not {len(bounds)}"
            raise PredicateError(message, hint="write [low, high]")
        join = disjunction if negated else conjunction
        return join(
            [compare(column, ">=", bounds[0], negated=negated), compare(column, "<=", bounds[1], negated=negated)]
        )
    message = f"The operator {op!r} on column {column.name!r} is not known"
    raise PredicateError(message, hint="use =, !=, <, <=, >, >=, in, not in, like, between, is null or is not null")


def _values(column: Column, op: str, value: Any) -> Iterable[object]:
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        message = f"The operator {op!r} on column {column.name!r} takes a list, not {short_repr(value)}"
        raise PredicateError(message, hint="write it as [value, …]")
    return value


def _text(column: Column, op: str, value: Any) -> str:
    if not isinstance(value, str):
        message = f"The operator {op!r} on column {column.name!r} takes a string, not {short_repr(value)}"
        raise PredicateError(message, hint="write the pattern in quotes")
    return value


def _json(text: str) -> Any:
    try:
        # Decimals keep their digits, and integers are not limited to 64 bits.
        return json.loads(text, parse_float=PyDecimal)
    except (ValueError, RecursionError) as error:
        message = f"The predicate starts as JSON and is not: {error}"
        raise PredicateError(message, hint='write {"column": value} or SQL text') from error


def _mapping(where: Mapping[Any, Any], schema: TableSchema, *, negated: bool, depth: int) -> Predicate:
    if depth > _MAX_DEPTH:
        message = f"The predicate is nested more than {_MAX_DEPTH} levels deep"
        raise PredicateError(message, hint="flatten nested and, or and not")
    join = disjunction if negated else conjunction
    return join([_entry(key, value, schema, negated=negated, depth=depth) for key, value in where.items()])


def _entry(key: object, value: Any, schema: TableSchema, *, negated: bool, depth: int) -> Predicate:
    if not isinstance(key, str):
        message = f"A predicate has {short_repr(key)} where a column's name should be"
        raise PredicateError(message, hint='write {"column": value}')
    word = key.lower()
    if word in {"and", "or"} and _is_list(value):
        join = conjunction if (word == "and") is not negated else disjunction
        return join([_inner(key, each, schema, negated=negated, depth=depth) for each in value])
    if word == "not" and isinstance(value, Mapping):
        return _inner(key, value, schema, negated=not negated, depth=depth)
    column = schema.column(key)
    if value is None:
        return is_null(column, negated=negated)
    if isinstance(value, Mapping):
        if not value:
            message = f"The predicate on column {column.name!r} has no operator"
            raise PredicateError(message, hint='write {"column": {">=": value}}')
        join = disjunction if negated else conjunction
        return join([_json_operation(column, op, each, negated=negated) for op, each in value.items()])
    if _is_list(value):
        message = f"Column {column.name!r} cannot equal the list {short_repr(value)}"
        raise PredicateError(message, hint='write {"column": {"in": […]}}')
    return compare(column, "=", value, negated=negated)


def _inner(key: str, value: Any, schema: TableSchema, *, negated: bool, depth: int) -> Predicate:
    if not isinstance(value, Mapping):
        message = f"{key!r} holds {short_repr(value)} where a predicate should be"
        raise PredicateError(message, hint='write {"and": [{"column": value}, …]}')
    return _mapping(value, schema, negated=negated, depth=depth + 1)


def _json_operation(column: Column, op: object, value: Any, *, negated: bool) -> Predicate:
    word = " ".join(str(op).lower().split())
    symbol = OPERATORS.get(word)
    if value is None and symbol in {"=", "!="}:
        return is_null(column, negated=negated is (symbol == "="))
    if word == "not" and isinstance(value, Mapping):
        join = conjunction if negated else disjunction
        return join([_json_operation(column, each, inner, negated=not negated) for each, inner in value.items()])
    return _operation(column, word, value, negated=negated)


# Find the conditions of a predicate that prune, and report those that cannot.


class Conjunct(msgspec.Struct, frozen=True):
    """One of the conditions that must all hold: whether it can prune files, and how or why not."""

    text: str
    prunes: bool
    how: str

    def __str__(self) -> str:
        return f"{self.text}: {self.how}"


def conjuncts(predicate: Predicate | None) -> tuple[Conjunct, ...]:
    """Return each condition and whether it prunes."""
    return tuple(_conjunct(part) for part in _parts(predicate))


def check_conjuncts(predicate: Predicate | None, *, strict: bool) -> None:
    """Warn about conditions that cannot prune, once per predicate. With ``strict``, raise an error."""
    # Only the reported conditions are formatted: PyArrow loads pandas to format a timestamp.
    idle = [part for part in _parts(predicate) if not isinstance(part, Constant) and _why_not(part) is not None]
    if not idle:
        return
    message = "No file can be left out by " + "; nor by ".join(str(_conjunct(part)) for part in idle)
    if strict:
        hint = "compare a column, or a function of it that has ranges, with constants; or omit strict"
        raise PredicateError(message, hint=hint)
    warnings.warn(PredicateWarning(message), stacklevel=_level_of_caller())


def _parts(predicate: Predicate | None) -> tuple[Predicate, ...]:
    if predicate is None:
        return ()
    if isinstance(predicate, WithExpression):
        return _parts(predicate.part)
    return predicate.parts if isinstance(predicate, And) else (predicate,)


def _conjunct(part: Predicate) -> Conjunct:
    if isinstance(part, Constant):
        return Conjunct(str(part), prunes=True, how="holds for all rows" if part.value else "holds for no row")
    reason = _why_not(part)
    if reason is not None:
        return Conjunct(str(part), prunes=False, how=f"cannot prune, because {reason}")
    if isinstance(part, Opaque):
        return Conjunct(str(part), prunes=True, how="prunes in part, by what stands before its first wildcard")
    if isinstance(part, Compare) and part.nan is NanOrder.LARGEST and not part.column.is_partition:
        how = "prunes files of lazydelta by statistics, and those of other writers by null counts alone, because a NaN"
        how += " may be above their maximum (see the option float_max)"
        return Conjunct(str(part), prunes=True, how=how)
    sources = ["partition values"] * bool(partition_columns(part)) + ["statistics"] * bool(stats_columns(part))
    return Conjunct(str(part), prunes=True, how=f"prunes by {' and '.join(sources)}")


def _why_not(part: Predicate) -> str | None:
    """Return why a condition cannot prune any file, or None if it can."""
    match part:
        case Opaque(reason=reason, narrowed=narrowed):
            return None if narrowed else reason
        case And(parts):
            reasons = [_why_not(each) for each in parts]
            return None if None in reasons else reasons[0]
        case Or(parts):
            return next((why for each in parts if (why := _why_not(each)) is not None), None)
    return next((leaf.reason for leaf in leaves(part) if isinstance(leaf, Opaque)), None)


def _level_of_caller() -> int:
    """Return the number of frames up to the first one outside lazydelta, so that the warning shows the user's line."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "lazydelta":
        level, frame = level + 1, frame.f_back
    # The frame of this function no longer exists when the warning is raised.
    return max(level, 1)
