"""``RowRequest``: requested rows and columns, validated and bound to the table once for all files."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from numbers import Integral
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.data_files.columns import named_fields
from lazydelta.data_files.reader import rows_without_columns
from lazydelta.errors import OptionError, PredicateError
from lazydelta.predicates import Where, parse_predicate, referenced_columns, to_arrow_expression
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
    leaves,
)
from lazydelta.protocol.schema import Column, Field, Struct, TableSchema
from lazydelta.protocol.values import is_float
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import from_numpy
from lazydelta.runtime.database import connect

__all__ = [
    "RowMetrics",
    "RowRequest",
    "can_be_masked",
    "filter_expression",
    "pruned_fields",
    "row_mask",
    "selected_fields",
]


# Projection of nested fields: only the requested fields of a struct are read and returned.


def selected_fields(schema: TableSchema, columns: Sequence[str] | None) -> tuple[Field, ...]:
    """Return the fields that ``columns`` name, in that order; ``a.b`` is the struct ``a`` with only the field ``b``."""
    if columns is None:
        return schema.fields
    if isinstance(columns, str):
        raise OptionError("columns is a list of names, not a string", hint=f"write [{columns!r}]")
    found = [schema.column(name) for name in columns]
    if len({each.path for each in found}) != len(found):
        raise OptionError(f"A column is named twice in {list(columns)}", hint="name each column once")
    return pruned_fields(schema, found)


def pruned_fields(schema: TableSchema, columns: Iterable[Column]) -> tuple[Field, ...]:
    """Return the top-level fields that contain ``columns``, without the other fields of their structs."""
    return _pruned(schema.fields, [each.path for each in columns])


def _pruned(fields: tuple[Field, ...], paths: Sequence[tuple[str, ...]]) -> tuple[Field, ...]:
    below: dict[str, list[tuple[str, ...]]] = {}
    for head, *rest in paths:
        below.setdefault(head, []).append(tuple(rest))
    by_name = {each.name: each for each in fields}
    return tuple(_with_only(by_name[name], rests) for name, rests in below.items())


def _with_only(field: Field, paths: Sequence[tuple[str, ...]]) -> Field:
    if not isinstance(field.type, Struct) or () in paths:
        return field
    # Struct fields keep the table's order, so that two readers of the same fields get the same type.
    wanted = {each.name: each for each in _pruned(field.type.fields, paths)}
    return msgspec.structs.replace(
        field, type=Struct(tuple(wanted[each.name] for each in field.type.fields if each.name in wanted))
    )


# Row masks: evaluate a predicate on a batch with one Arrow kernel call per condition.
#
# PyArrow filters by expression through an execution plan with threads and queues, which takes milliseconds per batch,
# as long as reading a column. Predicates that are fully understood are evaluated here, others by PyArrow. SQL
# conditions that neither can evaluate go to DuckDB, batch by batch.


_ROWS, _POSITION = "rows", "lazydelta position"
_OPERATORS: dict[str, str] = {
    "=": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}


def can_be_masked(predicate: Predicate) -> bool:
    """Return whether `row_mask` can evaluate the predicate, possibly with DuckDB; if not, PyArrow evaluates it."""
    if isinstance(predicate, WithExpression):
        return False
    return needs_engine(predicate) or not any(isinstance(leaf, Opaque) for leaf in leaves(predicate))


def needs_engine(predicate: Predicate) -> bool:
    """Return whether DuckDB has to evaluate at least part of the predicate."""
    return any(isinstance(leaf, Opaque) and leaf.sql is not None for leaf in leaves(predicate))


def filter_expression(predicate: Predicate, table: TableSchema) -> pc.Expression:
    """Return the expression of a row filter, or one that cannot be evaluated if the filter needs DuckDB.

    Conditions that DuckDB does not accept raise here, before anything is read.
    """
    if not needs_engine(predicate):
        return to_arrow_expression(predicate, table)
    for leaf in leaves(predicate):
        if isinstance(leaf, Opaque):
            if leaf.sql is None:
                to_arrow_expression(leaf, table)
            fields = [table.field(name).to_arrow() for name in _top_names(leaf)]
            empty = pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in fields], schema=pa.schema(fields))
            _judged(leaf, empty)
    return pc.field("\0judged by an engine")


def row_mask(predicate: Predicate, value: Callable[[Column], pa.Array], number: int) -> pa.BooleanArray:
    """Return for each of ``number`` rows whether it matches. Null counts as false. ``value`` returns a column.

    A column may be dictionary-encoded: each dictionary value is evaluated once.
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
        case Opaque():
            names = _top_names(predicate)
            arrays = [_plain(value(Column((name,), (name,), Struct(())))) for name in names]
            rows = pa.RecordBatch.from_arrays(arrays, names=names) if names else rows_without_columns(number)
            return _judged(predicate, rows)
    raise AssertionError(predicate)  # see can_be_masked


def _top_names(leaf: Opaque) -> list[str]:
    return list(dict.fromkeys(column.path[0] for column in leaf.columns))


def _plain(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _judged(leaf: Opaque, rows: pa.RecordBatch) -> pa.BooleanArray:
    """Evaluate a condition that only PyArrow or DuckDB understands."""
    positions = from_numpy(np.arange(rows.num_rows, dtype=np.int64))
    if leaf.sql is None:
        numbered = rows.append_column(_POSITION, positions)
        return pc.is_in(positions, value_set=numbered.filter(leaf.expression).column(rows.num_columns))
    try:
        import duckdb  # noqa: PLC0415 - optional, and slow to import
    except ImportError as error:
        message = f"Rows can be filtered by {leaf.text!r} only with DuckDB, which is not installed"
        raise PredicateError(message, hint="pip install 'lazydelta[duckdb]'") from error
    try:
        # Each thread has its own cursor. It sees only these rows and has no access to the machine.
        with _engine().cursor() as cursor:
            cursor.register(_ROWS, pa.Table.from_batches([rows.append_column(_POSITION, positions)]))
            # The newline after the condition ends a trailing SQL comment.
            asked = f'SELECT "{_POSITION}" FROM {_ROWS} WHERE {leaf.sql}\n'  # noqa: S608 - the caller's own condition
            passed = cursor.sql(asked).to_arrow_table().column(0).combine_chunks()
    except duckdb.Error as error:
        message = f"DuckDB cannot filter rows by {leaf.text!r}: {error}"
        raise PredicateError(message, hint="check the column types and the names of DuckDB's functions") from error
    return pc.is_in(positions, value_set=passed)


@functools.cache
def _engine_of(_: int) -> Any:
    return connect(enable_external_access="false", threads="1")


def _engine() -> Any:
    # One connection per process: after a fork, the threads of an older connection exist only in the parent.
    return _engine_of(os.getpid())


def _by_code(passes: pa.BooleanArray, codes: pa.Array) -> pa.BooleanArray:
    # Many conditions match a single value. Comparing codes takes a quarter of the time of looking each one up.
    if passes.null_count or passes.true_count != 1:
        return pc.take(passes, codes)
    return pc.equal(codes, pc.cast(pc.indices_nonzero(passes)[0], codes.type))


def _is_in(array: pa.Array, values: pa.Array, *, by_value: bool) -> pa.BooleanArray:
    if not by_value:
        return pc.is_in(array, value_set=values)
    # Arrow's hash table treats -0.0 and 0.0 as different values.
    return reduce(pc.or_kleene, (pc.equal(array, each) for each in values))


_FEWEST_ROWS = 1024
# PyArrow binds and simplifies an expression in time quadratic in the number of its conditions: 5,000 take half a minute
# per batch. Chunks of this size cost no more than single conditions.
_MOST_CONDITIONS = 64


@dataclass(frozen=True, slots=True)
class RowRequest:
    """Columns, exact filter and limit of a row scan.

    ``output`` are the returned fields and ``tested`` the fields of the filter, both without unused struct fields.
    ``expression`` filters rows, ``predicate`` files and row groups. ``files_where`` only skips files whose rows cannot
    match it. ``alternatives`` replace an ``expression`` that joins too many conditions by OR: a row matches if one of
    them does.
    """

    table: TableSchema
    output: tuple[Field, ...]
    tested: tuple[Field, ...] = ()
    predicate: Predicate | None = None
    expression: pc.Expression | None = None
    limit: int | None = None
    batch_size: int = 65536
    strategy: str = "auto"
    files_where: Predicate | None = None
    alternatives: tuple[pc.Expression, ...] = ()

    @classmethod
    def of(
        cls,
        table: TableSchema,
        *,
        columns: Sequence[str] | None = None,
        where: Where = None,
        limit: int | None = None,
        batch_size: int = 65536,
        strategy: str = "auto",
        output: tuple[Field, ...] | None = None,
        files_where: Predicate | None = None,
    ) -> RowRequest:
        """Bind the caller's arguments to the table's schema, and raise if they are invalid.

        ``output`` are the fields to return if they are already selected; it replaces ``columns``.
        """
        if limit is not None and not _is_whole(limit, least=0):
            raise OptionError(f"limit={limit!r} is not valid", hint="pass at least 0 rows, or None")
        if not _is_whole(batch_size, least=1):
            raise OptionError(f"batch_size={batch_size!r} is not valid", hint="pass at least 1 row")
        predicate = parse_predicate(where, table, by_engine=True)
        expression = None if predicate is None else filter_expression(predicate, table)
        return cls(
            table,
            selected_fields(table, columns) if output is None else output,
            () if predicate is None else _tested(predicate, expression, table),
            predicate,
            expression,
            None if limit is None else int(limit),  # NumPy's integers are taken too
            batch_size,
            strategy,
            files_where,
            _alternatives(predicate, table),
        )

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the batches, with logical names."""
        return pa.schema([each.to_arrow() for each in self.output])

    @property
    def is_masked(self) -> bool:
        """Return whether rows are filtered by `row_mask` rather than by the expression."""
        return self.predicate is not None and can_be_masked(self.predicate)

    @property
    def rows_a_batch(self) -> int:
        """Return how many rows to decode at once: ten rows should not wait for a whole row group."""
        if self.limit is None or self.expression is not None:
            return self.batch_size
        return min(self.batch_size, max(self.limit, _FEWEST_ROWS))


def _alternatives(predicate: Predicate | None, table: TableSchema) -> tuple[pc.Expression, ...]:
    if not isinstance(predicate, Or) or len(predicate.parts) <= _MOST_CONDITIONS:
        return ()
    if can_be_masked(predicate) or needs_engine(predicate):
        return ()
    starts = range(0, len(predicate.parts), _MOST_CONDITIONS)
    return tuple(to_arrow_expression(Or(predicate.parts[each : each + _MOST_CONDITIONS]), table) for each in starts)


def _is_whole(value: object, *, least: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def _tested(predicate: Predicate, expression: pc.Expression, table: TableSchema) -> tuple[Field, ...]:
    if needs_engine(predicate):
        named = {each.path[0] for leaf in leaves(predicate) if isinstance(leaf, Opaque) for each in leaf.columns}
        others = pruned_fields(table, referenced_columns(predicate))
        # DuckDB gets whole columns, whichever struct fields its condition uses.
        return (*(table.field(each) for each in named), *(each for each in others if each.name not in named))
    if isinstance(predicate, WithExpression) or any(isinstance(leaf, Opaque) for leaf in leaves(predicate)):
        return tuple(named_fields(expression, table))
    return pruned_fields(table, referenced_columns(predicate))


# Counters of a row scan, in addition to those of the file scan.


class RowMetrics(msgspec.Struct, dict=True):
    """Counters of one row stream, updated by several threads.

    ``files_while_discovering`` counts files whose reading began before discovery ended, which shows how much the two
    overlapped. ``columns_skipped`` counts row groups whose other columns were never decoded, because no row matched.
    """

    files_opened: int = 0
    files_while_discovering: int = 0
    files_looked_for_again: int = 0
    files_without_match: int = 0
    most_files_at_once: int = 0
    row_groups_read: int = 0
    row_groups_pruned: int = 0
    row_groups_proven: int = 0
    columns_skipped: int = 0
    rows_read: int = 0
    rows_emitted: int = 0
    peak_bytes: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, **counts: int) -> None:
        """Add to several counters atomically."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def most(self, **sizes: int) -> None:
        """Raise counters to the given values if these are higher."""
        with self._lock:
            for name, size in sizes.items():
                setattr(self, name, max(getattr(self, name), size))

    def as_dict(self) -> dict[str, Any]:
        """Return the counters by name."""
        return {name: getattr(self, name) for name in self.__struct_fields__}
