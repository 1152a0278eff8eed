"""One UPDATE: rows that match a predicate get other values, in one commit.

It is a deletion that puts something in the place of what it takes: the same files are looked for, copied and committed,
by the same rules. New rows go the way of all rows that are written: they are brought to the table's types, and checked
against its constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.errors import OptionError, SchemaMismatchError
from lazydelta.handle import TableHandle
from lazydelta.log.snapshot import Snapshot
from lazydelta.pruning import Where
from lazydelta.write.plan import WritePlan
from lazydelta.write.row_changes.deleting import DeleteResult, DeleteSettings, change_rows
from lazydelta.write.row_changes.row_rewriter import NewRows
from lazydelta.write.table_rows import TableRows

__all__ = ["ColumnValues", "update_rows"]

ColumnValues: TypeAlias = Callable[[pa.RecordBatch], pa.Array]
"""Gives the new values of a column from rows as they are."""


def update_rows(
    handle: TableHandle,
    values: Mapping[str, ColumnValues],
    where: Where = None,
    settings: DeleteSettings | None = None,
) -> DeleteResult:
    """Give the rows for which ``where`` is true other values in some columns; without it, all rows.

    Values that the type of a column cannot hold are an error, and nothing is committed then. The result counts rows
    that were updated as deleted ones: they left their files.
    """
    if not values:
        raise OptionError("There is no column to update", hint="name columns and their new values")
    return change_rows(handle, where, settings or DeleteSettings(), lambda snapshot: _new_rows(snapshot, values))


def _new_rows(snapshot: Snapshot, values: Mapping[str, ColumnValues]) -> NewRows:
    by_name = {snapshot.schema.field(name).name: made for name, made in values.items()}
    if len(by_name) < len(values):
        raise OptionError(f"A column is named twice in {list(values)}", hint="name each once")
    plan = WritePlan.of().settled(snapshot, snapshot.schema.to_arrow())
    return NewRows(
        _Updated(by_name, TableRows(plan, snapshot.metadata)),
        # The writer may make a partition column from others.
        may_move=plan.alignment is not None or not by_name.keys().isdisjoint(snapshot.schema.partition_columns),
    )


@dataclass(frozen=True, slots=True)
class _Updated:
    values: Mapping[str, ColumnValues]
    as_table: TableRows

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        changed = rows
        for name, made in self.values.items():
            index = rows.schema.get_field_index(name)
            field = rows.schema.field(index)
            found = made(rows)
            if len(found) != rows.num_rows:
                message = f"The new values of column {name!r} are {len(found)} for {rows.num_rows} rows"
                raise OptionError(message, hint="an update gives one value for each row")
            # Nullability is the table's to check, with its own words.
            changed = changed.set_column(index, field.with_nullable(True), _cast(found, field))  # noqa: FBT003
        return self.as_table(changed)


def _cast(found: pa.Array, field: pa.Field) -> Any:
    if found.type == field.type:
        return found
    try:
        return pc.cast(found, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = f"The new values of column {field.name!r} are {found.type}, which its type {field.type} does not hold"
        raise SchemaMismatchError(
            f"{message}: {error}", hint="cast them in the update; nothing was committed"
        ) from error
