"""``RowChoice``: which rows of a table are meant, told of whole files by the log and of the others row by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import flags, from_numpy, typed_scalar
from lazydelta.errors import PredicateError
from lazydelta.log.file_batch import FileBatch
from lazydelta.pruning import (
    Predicate,
    Where,
    all_match,
    may_match,
    parse_predicate,
    partition_columns,
    stats_columns,
    to_arrow_expression,
)
from lazydelta.row_scan.row_mask import can_be_masked, row_mask
from lazydelta.rows.expression_fields import bad_filter
from lazydelta.stats import Ranges, combine, file_partition_ranges, stats_ranges
from lazydelta.types.schema import Column, TableSchema

__all__ = ["RowChoice"]

_POSITION = "\0position"
_FALSE = typed_scalar(value=False, kind=pa.bool_())


@dataclass(frozen=True, slots=True)
class RowChoice:
    """The rows for which ``predicate`` is true: neither those for which it is false nor where it is null.

    Without a predicate all rows are meant.
    """

    table: TableSchema
    predicate: Predicate | None
    expression: pc.Expression | None

    @classmethod
    def of(cls, where: Where, table: TableSchema, *, now: int | None = None) -> RowChoice:
        """Bind ``where``, with ``now`` for its ``now()``; what cannot be decided for each row is refused here."""
        # A file whose maximum leaves NaN out is not trusted to have none: what is overlooked here would stay for good.
        predicate = parse_predicate(where, table, now=now)
        if predicate is None and where is not None:
            message = f"The predicate {where!r} says nothing, and would choose every row"
            raise PredicateError(message, hint="leave the predicate out if all rows are meant")
        try:
            expression = None if predicate is None else to_arrow_expression(predicate, table)
        except PredicateError as error:
            error.hint = "give it as a PyArrow expression, which may be any, or let deltalake do it on the same table"
            raise
        return cls(table, predicate, expression)

    def whole_files(self, batch: FileBatch) -> npt.NDArray[np.bool_]:
        """Tell of which files the log proves that every row is meant."""
        if self.predicate is None:
            return np.ones(len(batch), np.bool_)
        return flags(all_match(self.predicate, self._ranges(self.predicate, batch)))

    def may_hold(self, batch: FileBatch) -> npt.NDArray[np.bool_]:
        """Tell which files may hold a row that is meant."""
        if self.predicate is None:
            return np.ones(len(batch), np.bool_)
        return flags(may_match(self.predicate, self._ranges(self.predicate, batch)))

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Tell for each row whether it is meant; ``rows`` have all columns of the table."""
        if self.predicate is None:
            return pa.repeat(typed_scalar(value=True, kind=pa.bool_()), rows.num_rows)
        if can_be_masked(self.predicate):
            found = row_mask(self.predicate, lambda column: _values(rows, column), rows.num_rows)
            return pc.fill_null(found, _FALSE)
        positions = from_numpy(np.arange(rows.num_rows, dtype=np.int64))
        numbered = pa.RecordBatch.from_arrays([*rows.columns, positions], names=[*rows.schema.names, _POSITION])
        try:
            passed = numbered.filter(self.expression).column(rows.num_columns)
        except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
            raise bad_filter(self.expression, error) from error
        return pc.is_in(positions, value_set=passed)

    @staticmethod
    def _ranges(predicate: Predicate, batch: FileBatch) -> Ranges:
        found = stats_ranges(batch, stats_columns(predicate))
        partitions = partition_columns(predicate)
        return combine([file_partition_ranges(batch, partitions), found]) if partitions else found


def _values(rows: pa.RecordBatch, column: Column) -> pa.Array:
    array = rows.column(column.path[0])
    return pc.struct_field(array, list(column.path[1:])) if len(column.path) > 1 else array
