"""Conversion of incoming batches to the schema of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from lazydelta.errors import SchemaMismatchError, WriteError
from lazydelta.predicates import parse_predicate, to_arrow_expression
from lazydelta.protocol.actions import Metadata
from lazydelta.protocol.schema import TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.write.alignment import Alignment, UntoldAlignment, find_column, in_range
from lazydelta.write.computed_columns import ComputedColumns
from lazydelta.write.evolution import Conformer
from lazydelta.write.plan import RowConstraints, WritePlan, schema_of

__all__ = ["RejectedRows", "TableRows", "Timestamps", "timestamp_texts"]

RejectedRows = Callable[[pa.RecordBatch, str], None]
"""Receives rows that are not written to the table, and the reason."""

Timestamps = tuple[int, int, int]
"""The minimum, the maximum and the sum of a time column, in the stored unit: microseconds, or days for dates.

The sum wraps at 64 bits and does not depend on the order of the rows.
"""


_TIME_TYPES = frozenset({pa.date32().id, pa.date64().id, pa.timestamp("us").id})


class TableRows:
    """Converts incoming batches to rows of the table, including the column derived from the timestamps.

    ``rejected`` receives the rows that the plan rejects; without it, a rejected row is an error. ``timestamps`` covers
    the rows so far, and is None if there were none. ``task`` is the index of a task among others.
    """

    def __init__(
        self, plan: WritePlan, metadata: Metadata, rejected: RejectedRows | None = None, task: int | None = None
    ) -> None:
        self.timestamps: Timestamps | None = None
        self._plan = plan
        self._schema = schema_of(metadata)
        self._table = self._schema.to_arrow()
        self._alignment = plan.alignment
        self._made = None if self._alignment is None else _position(self._table, self._alignment.partition_column)
        self._timed = _timed(plan, self._table)
        # The columns that the batches supply.
        self._given = self._table if self._made is None else self._table.remove(self._made)
        self._untold = UntoldAlignment.of(metadata) if self._alignment is None else None
        self._selects = _selector(plan, self._schema)
        self._constraints = RowConstraints(metadata, self._schema)
        self._computed = ComputedColumns(self._schema, plan.made_columns, task)
        self._conform: Conformer | None = None
        self._rejected = rejected

    @property
    def last_identity(self) -> int:
        """Return the highest number used of the sequences of identity columns, or -1."""
        return -1 if self._computed.sequence is None else self._computed.sequence.last

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the table rows of a batch. The derived column is dictionary-encoded."""
        made: pa.Array | None = None
        if self._alignment is not None:
            batch, made = self._with_boundary(batch, self._alignment)
        if self._conform is None or not batch.schema.equals(self._conform.source):
            given = self._computed.given(self._given, batch.schema.names) if self._computed else self._given
            self._conform = Conformer(given, batch.schema, casts=self._plan.casts)
        rows = self._conform(batch)
        if self._computed:
            rows = self._computed.added(rows, self._given)
        if made is not None and self._made is not None:
            rows = self._with_made(rows, made, self._made)
        if self._timed is not None:
            self._note_timestamps(rows.column(self._timed))
        if self._untold is not None:
            self._untold.check(rows)
        _check_empty_texts(rows, self._schema)
        self._selects(rows)
        self._constraints.check(rows)
        return rows

    def _with_boundary(self, batch: pa.RecordBatch, alignment: Alignment) -> tuple[pa.RecordBatch, pa.Array]:
        """Return the batch without the derived column, and the values of that column."""
        index = alignment.position(batch.schema)
        if self._rejected is not None and self._plan.null_timestamps == "reject":
            batch = self._only_timed(batch, index, self._rejected)
        nulls, column = self._plan.null_timestamps, alignment.timestamp_column
        values = alignment.boundary.values(batch.column(index), nulls=nulls, column=column)
        given = find_column(batch.schema, alignment.partition_column)
        if given is None:
            return batch, values
        own = batch.schema.names.index(given)
        alignment.check(values, batch.column(own))
        return batch.remove_column(own), values

    def _with_made(self, rows: pa.RecordBatch, values: pa.Array, index: int) -> pa.RecordBatch:
        """Insert the derived column at its position. Cast it to the table's type only if its values are checked."""
        field = self._table.field(index)
        if self._plan.overwrite_where is not None or not field.nullable or not pa.types.is_string(field.type):
            found = pa.RecordBatch.from_arrays([values], [field.name])
            values = Conformer(pa.schema([field]), found.schema)(found).column(0)
        return rows.add_column(index, field.with_type(values.type), values)

    def _only_timed(self, batch: pa.RecordBatch, index: int, rejected: RejectedRows) -> pa.RecordBatch:
        """Pass the rows without a valid timestamp to ``rejected``, and return the others."""
        column = self._plan.timestamp_column
        for reason, kept in (
            (f"no value in the timestamp column {column!r}", pc.is_valid),
            (f"the timestamp column {column!r} is outside the years 0 to 9999", in_range),
        ):
            mask = kept(batch.column(index))
            if not pc.all(mask).as_py():
                rejected(batch.filter(pc.invert(mask)), reason)
                batch = batch.filter(mask)
        return batch

    def _note_timestamps(self, column: pa.Array) -> None:
        found = pc.min_max(column)
        if not found["min"].is_valid:
            return
        stored = column.view(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
        total = pc.sum(stored).as_py()
        self.timestamps = _together([self.timestamps, (found["min"].value, found["max"].value, total)])


def timestamp_texts(
    plan: WritePlan, metadata: Metadata, found: Iterable[Timestamps | None]
) -> tuple[str, str, str] | None:
    """Return the merged minimum, maximum and sum of several tasks as strings, or None if there are none."""
    timestamps, schema = _together(found), schema_of(metadata).to_arrow()
    index = _timed(plan, schema)
    if timestamps is None or index is None:
        return None
    kind = schema.field(index).type
    bounds = np.array(timestamps[:2], np.int64).view("datetime64[D]" if pa.types.is_date(kind) else "datetime64[us]")
    first, last = np.datetime_as_string(bounds)
    return str(first), str(last), f"{timestamps[2]:016x}"


def _together(found: Iterable[Timestamps | None]) -> Timestamps | None:
    known = [each for each in found if each is not None]
    if not known:
        return None
    first, last, sums = zip(*known, strict=True)
    return min(first), max(last), sum(sums) % (1 << 64)


def _timed(plan: WritePlan, schema: pa.Schema) -> int | None:
    """Return the index of the time column that identifies a batch: the alignment's, else the first time column."""
    if plan.alignment is not None:
        return _position(schema, plan.alignment.timestamp_column)
    return next((index for index, kind in enumerate(schema.types) if kind.id in _TIME_TYPES), None)


def _position(schema: pa.Schema, name: str) -> int | None:
    found = find_column(schema, name)
    return None if found is None else schema.get_field_index(found)


def _selector(plan: WritePlan, schema: TableSchema) -> Callable[[pa.RecordBatch], None]:
    """Return a check that an overwrite by predicate writes only rows that match the predicate."""
    predicate = parse_predicate(plan.overwrite_where, schema)
    if predicate is None:
        return lambda _: None
    expression = to_arrow_expression(predicate, schema)

    def check(rows: pa.RecordBatch) -> None:
        outside = rows.num_rows - rows.filter(expression).num_rows
        if outside:
            message = f"Invalid data found: {outside} rows failed validation check, as they are not selected by"
            message += f" overwrite_where={plan.overwrite_where}"
            raise WriteError(message, hint="they would duplicate rows that are kept; drop them, or append them")

    return check


def _check_empty_texts(rows: pa.RecordBatch, schema: TableSchema) -> None:
    # The log does not distinguish an empty partition value from null.
    for name in schema.partition_columns:
        field = rows.schema.field(name)
        if field.nullable or not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
            continue
        lengths = pc.binary_length(rows.column(name))
        if rows.num_rows and pc.min(lengths).as_py() == 0:
            message = (
                f"Partition column {name!r} has empty values, which are nulls in Delta, but the column is not nullable"
            )
            raise SchemaMismatchError(message, hint="change the value of these rows")
