"""DELETE: remove the rows that match a predicate, in one commit.

If the log proves that all rows of a file match, the file is removed without being read. Files that cannot hold a match
are skipped. The others are copied without the matching rows. Concurrent commits conflict only if they changed a file
that was evaluated here, or added matching rows other than by a blind append. The deletion then restarts on the new
version, and the files of the failed attempt are deleted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from lazydelta.errors import CommitConflictError, OptionError, SchemaMismatchError, TableNotFoundError
from lazydelta.predicates import Where
from lazydelta.protocol.actions import Metadata
from lazydelta.protocol.features import check_removable, check_writable
from lazydelta.runtime import compute as pc
from lazydelta.runtime.compute import expression_text
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.write.commit import CommitNote
from lazydelta.write.computed_columns import ComputedColumns, generated_columns
from lazydelta.write.evolution import cast_failure
from lazydelta.write.plan import WritePlan
from lazydelta.write.row_changes.choice import Progress, RowChoice, touched_files
from lazydelta.write.row_changes.rewriter import FileRecipe, NewRows, RowsDeleted, stage_deletion
from lazydelta.write.table_rows import TableRows
from lazydelta.write.transaction import Transaction

__all__ = ["ColumnValues", "DeleteResult", "DeleteSettings", "beginnings", "delete_rows", "update_rows"]


_log = logging.getLogger(__name__)

_MOST_BEGINNINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSettings:
    """How files are written, what is added to the commit, and how often the commit is attempted."""

    recipe: FileRecipe = field(default_factory=FileRecipe)
    note: CommitNote = field(default_factory=CommitNote)
    max_attempts: int = 15
    progress: Progress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResult:
    """Result of a deletion, or its preview with ``dry_run``. ``version`` is the committed version, or None if no match.

    ``seconds`` is the total duration.
    """

    dry_run: bool
    read_version: int
    deleted: RowsDeleted
    seconds: float
    metadata: Metadata = field(repr=False)
    version: int | None = None


def delete_rows(
    handle: TableHandle, where: Where = None, settings: DeleteSettings | None = None, *, dry_run: bool = False
) -> DeleteResult:
    """Delete the rows for which ``where`` is true, or all rows without it.

    Rows for which the predicate is null are kept, as in SQL. Append-only tables are refused, and so are tables with
    features that lazydelta cannot write, by name. The caller starts the maintenance that follows a commit.
    """
    if dry_run:
        return _counted(handle, where, time.monotonic(), None if settings is None else settings.progress)
    return change_rows(handle, where, settings or DeleteSettings())


def change_rows(
    handle: TableHandle,
    where: Where,
    settings: DeleteSettings,
    new: Callable[[Snapshot], NewRows] | None = None,
) -> DeleteResult:
    """Delete rows, or replace them by the rows that ``new`` computes from the current table."""
    begun, now = time.monotonic(), time.time_ns()  # one `now()` for all attempts
    for remaining in beginnings(settings):
        try:
            return _attempt(handle, where, settings, new, now, begun)
        except CommitConflictError as error:
            if not remaining:
                raise
            _log.info("the change of rows begins again: %s", error)
    raise AssertionError("the last attempt returns or raises")  # pragma: no cover


def beginnings(settings: DeleteSettings) -> Iterator[int]:
    """Yield for each attempt on a new version of the table how many may follow."""
    # A caller that records the progress of an application must read the table itself after a conflict.
    most = 1 if settings.note.transactions else min(_MOST_BEGINNINGS, settings.max_attempts)
    return reversed(range(most))


def _attempt(
    handle: TableHandle,
    where: Where,
    settings: DeleteSettings,
    new: Callable[[Snapshot], NewRows] | None,
    now: int,
    begun: float,
) -> DeleteResult:
    operation = "DELETE" if new is None else "UPDATE"
    with Transaction.begin(handle, operation=operation, parameters=_parameters(where)) as transaction:
        snapshot = transaction.snapshot
        if snapshot is None:
            message = f"There is no Delta table at {handle.uri} to change rows of"
            raise TableNotFoundError(message, path=handle.uri, hint="check the path")
        transaction.note = settings.note
        settings.note.check_seen(snapshot.transaction_version, handle.uri)
        choice = RowChoice.of(where, snapshot.schema, now=now)
        made = None if new is None else new(snapshot)
        deleted = stage_deletion(transaction, choice, settings.recipe, new=made, progress=settings.progress)
        version = None
        if deleted.removed_files:
            transaction.metrics = _metrics(deleted, "numDeletedRows" if new is None else "numUpdatedRows")
            version = transaction.commit(max_attempts=settings.max_attempts).version
    seconds = time.monotonic() - begun
    return DeleteResult(
        dry_run=False,
        read_version=snapshot.version,
        version=version,
        deleted=deleted,
        seconds=seconds,
        metadata=snapshot.metadata,
    )


def _counted(handle: TableHandle, where: Where, begun: float, progress: Progress | None) -> DeleteResult:
    snapshot, deleted = handle.newest(), RowsDeleted()
    check_writable(snapshot.protocol, snapshot.metadata, path=handle.uri)
    check_removable(snapshot.protocol, snapshot.metadata, path=handle.uri)
    for file in touched_files(snapshot, RowChoice.of(where, snapshot.schema), counted=True, progress=progress):
        deleted.count(file, file.chosen)
    seconds = time.monotonic() - begun
    return DeleteResult(
        dry_run=True, read_version=snapshot.version, deleted=deleted, seconds=seconds, metadata=snapshot.metadata
    )


def _parameters(where: Where) -> Mapping[str, Any]:
    return {"predicate": [] if where is None else [expression_text(where)]}


def _metrics(deleted: RowsDeleted, rows: str) -> dict[str, str]:
    """Return the operation metrics of the commit, under Delta-Spark's names."""
    found = {
        "numAddedFiles": deleted.added_files,
        "numAddedBytes": deleted.added_bytes,
        "numRemovedFiles": deleted.removed_files,
        "numRemovedBytes": deleted.removed_bytes,
        "numAddedChangeFiles": deleted.change_files,
        "numCopiedRows": deleted.copied_rows,
        "numDeletionVectorsAdded": deleted.vectors,
        "scanTimeMs": round(deleted.scan_seconds * 1000),
        "rewriteTimeMs": round(deleted.rewrite_seconds * 1000),
    }
    if deleted.rows is not None:
        found[rows] = deleted.rows
    return {key: str(value) for key, value in found.items()}


# UPDATE: change values of the rows that match a predicate, in one commit.
#
# An update is a deletion that replaces rows: files are found, copied and committed by the same rules. New rows are
# converted to the table's types and checked against its constraints, like all written rows.


ColumnValues: TypeAlias = Callable[[pa.RecordBatch], pa.Array]
"""Computes the new values of a column from the current rows."""


def update_rows(
    handle: TableHandle,
    values: Mapping[str, ColumnValues],
    where: Where = None,
    settings: DeleteSettings | None = None,
) -> DeleteResult:
    """Update columns of the rows for which ``where`` is true, or of all rows without it.

    Values that do not fit the type of a column are an error, and nothing is committed. The result counts updated rows
    as deleted ones, because they were removed from their files.
    """
    if not values:
        raise OptionError("There is no column to update", hint="pass columns and their new values")
    return change_rows(handle, where, settings or DeleteSettings(), lambda snapshot: _new_rows(snapshot, values))


def _new_rows(snapshot: Snapshot, values: Mapping[str, ColumnValues]) -> NewRows:
    by_name = {snapshot.schema.field(name).name: made for name, made in values.items()}
    if len(by_name) < len(values):
        raise OptionError(f"A column is named twice in {list(values)}", hint="name each once")
    ComputedColumns(snapshot.schema).check_updated(list(by_name))
    plan = WritePlan.of().settled(snapshot, snapshot.schema.to_arrow())
    recomputed = [name for name in generated_columns(snapshot.schema) if name not in by_name]
    changed = by_name.keys() | set(recomputed)
    return NewRows(
        _Updated(by_name, TableRows(plan, snapshot.metadata), recomputed),
        # A partition column may be derived from the updated columns.
        may_move=plan.alignment is not None or not changed.isdisjoint(snapshot.schema.partition_columns),
    )


@dataclass(frozen=True, slots=True)
class _Updated:
    values: Mapping[str, ColumnValues]
    as_table: TableRows
    recomputed: Sequence[str]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        changed = rows
        for name, made in self.values.items():
            index = rows.schema.get_field_index(name)
            field = rows.schema.field(index)
            found = made(rows)
            if len(found) != rows.num_rows:
                message = f"Column {name!r} gets {len(found)} new values for {rows.num_rows} rows"
                raise OptionError(message, hint="an update needs one value per row")
            # The table's own check reports nulls in non-nullable columns.
            changed = changed.set_column(index, field.with_nullable(True), _cast(found, field))  # noqa: FBT003
        return self.as_table(changed.drop_columns(self.recomputed) if self.recomputed else changed)


def _cast(found: pa.Array, field: pa.Field) -> Any:
    if found.type == field.type:
        return found
    try:
        return pc.cast(found, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        message = f"The new values of column {field.name!r} are {found.type}, which its type {field.type} does not hold"
        raise SchemaMismatchError(
            f"{message}: {cast_failure(error, field.type)}", hint="nothing was committed; cast the values in the update"
        ) from error
