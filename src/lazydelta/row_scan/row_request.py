"""``RowRequest``: which rows and columns somebody wants, checked and bound to the table once for all files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.errors import OptionError
from lazydelta.pruning import Predicate, Where, parse_predicate, referenced_columns, to_arrow_expression
from lazydelta.pruning.tree import Opaque, WithExpression, leaves
from lazydelta.row_scan.projection import pruned_fields, selected_fields
from lazydelta.row_scan.row_mask import can_be_masked
from lazydelta.rows.expression_fields import named_fields
from lazydelta.types.schema import Field, TableSchema

__all__ = ["RowRequest"]

_FEWEST_ROWS = 1024


@dataclass(frozen=True, slots=True)
class RowRequest:
    """Columns, exact filter and limit of a scan of rows.

    ``output`` are the fields of the rows that leave, ``tested`` those that the filter looks at, both without what else
    their structs hold. ``expression`` decides over rows, ``predicate`` over files and row groups. ``files_where``
    leaves out files whose rows cannot match it, and says nothing of single rows.
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
        """Bind what the caller wrote to the table's schema; what makes no sense is an error here.

        ``output`` are the fields to return, for those who have chosen them already, instead of ``columns``.
        """
        if limit is not None and not _is_whole(limit, least=0):
            raise OptionError(f"limit={limit!r} makes no sense", hint="give a number of rows from 0, or None")
        if not _is_whole(batch_size, least=1):
            raise OptionError(f"batch_size={batch_size!r} makes no sense", hint="give a number of rows from 1")
        predicate = parse_predicate(where, table)
        expression = None if predicate is None else to_arrow_expression(predicate, table)
        return cls(
            table,
            selected_fields(table, columns) if output is None else output,
            () if predicate is None else _tested(predicate, expression, table),
            predicate,
            expression,
            limit,
            batch_size,
            strategy,
            files_where,
        )

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the batches, under logical names."""
        return pa.schema([each.to_arrow() for each in self.output])

    @property
    def is_masked(self) -> bool:
        """Tell whether rows are judged condition by condition, and not by the expression."""
        return self.predicate is not None and can_be_masked(self.predicate)

    @property
    def rows_a_batch(self) -> int:
        """Return how many rows to decode at once: whoever wants ten rows need not wait for a whole row group."""
        if self.limit is None or self.expression is not None:
            return self.batch_size
        return min(self.batch_size, max(self.limit, _FEWEST_ROWS))


def _is_whole(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _tested(predicate: Predicate, expression: pc.Expression, table: TableSchema) -> tuple[Field, ...]:
    if isinstance(predicate, WithExpression) or any(isinstance(leaf, Opaque) for leaf in leaves(predicate)):
        return tuple(named_fields(expression, table))
    return pruned_fields(table, referenced_columns(predicate))
