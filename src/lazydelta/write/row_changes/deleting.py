"""One DELETE: rows that match a predicate leave the table, in one commit.

Files of which the log proves that every row matches are removed without being read, those that cannot hold one are left
alone, and the rest is copied without the rows that match. What others do meanwhile is no hindrance unless they changed
a file that was judged here, or added rows that match and rest on the table: then the deletion begins again, on the
version that they made. What was written for an attempt that came to nothing is deleted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lazydelta.errors import CommitConflictError, TableNotFoundError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Metadata
from lazydelta.log.features.writable import check_removable, check_writable
from lazydelta.log.snapshot import Snapshot
from lazydelta.pruning import Where
from lazydelta.write.commit_note import CommitNote
from lazydelta.write.row_changes.row_choice import RowChoice
from lazydelta.write.row_changes.row_rewriter import FileRecipe, NewRows
from lazydelta.write.row_changes.staged_deletion import RowsDeleted, stage_deletion
from lazydelta.write.row_changes.touched_files import touched_files
from lazydelta.write.transaction import Transaction

__all__ = ["DeleteResult", "DeleteSettings", "change_rows", "delete_rows"]

_log = logging.getLogger(__name__)

_MOST_BEGINNINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSettings:
    """How files are written, what the commit says beside, and how often it is tried while others are faster."""

    recipe: FileRecipe = field(default_factory=FileRecipe)
    note: CommitNote = field(default_factory=CommitNote)
    max_attempts: int = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResult:
    """What was deleted, or would be with ``dry_run``; ``version`` is the one committed, None if no row matched.

    ``seconds`` is how long it took in all.
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
    """Delete the rows for which ``where`` is true; without it, all rows.

    A row for which the predicate is null stays, as in SQL. Append-only tables and those with features that we do not
    write are refused by name. What follows a commit (maintenance) is the caller's to start.
    """
    if dry_run:
        return _counted(handle, where, time.monotonic())
    return change_rows(handle, where, settings or DeleteSettings())


def change_rows(
    handle: TableHandle,
    where: Where,
    settings: DeleteSettings,
    new: Callable[[Snapshot], NewRows] | None = None,
) -> DeleteResult:
    """Delete rows, or replace them by what ``new`` makes of them in the table as it is found."""
    begun, now = time.monotonic(), time.time_ns()  # one moment for all attempts
    # Who records how far an application has come must look at the table himself when another was faster.
    most = 1 if settings.note.transactions else min(_MOST_BEGINNINGS, settings.max_attempts)
    for remaining in reversed(range(most)):
        try:
            return _attempt(handle, where, settings, new, now, begun)
        except CommitConflictError as error:
            if not remaining:
                raise
            _log.info("the change of rows begins again: %s", error)
    raise AssertionError("the last attempt returns or raises")  # pragma: no cover


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
            raise TableNotFoundError(message, path=handle.uri, hint="check the place")
        transaction.note = settings.note
        settings.note.check_seen(snapshot.transaction_version, handle.uri)
        choice = RowChoice.of(where, snapshot.schema, now=now)
        made = None if new is None else new(snapshot)
        deleted = stage_deletion(transaction, choice, settings.recipe, new=made)
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


def _counted(handle: TableHandle, where: Where, begun: float) -> DeleteResult:
    snapshot, deleted = handle.newest(), RowsDeleted()
    check_writable(snapshot.protocol, snapshot.metadata, path=handle.uri)
    check_removable(snapshot.protocol, snapshot.metadata, path=handle.uri)
    for file in touched_files(handle, snapshot, RowChoice.of(where, snapshot.schema), counted=True):
        deleted.count(file, file.chosen)
    seconds = time.monotonic() - begun
    return DeleteResult(
        dry_run=True, read_version=snapshot.version, deleted=deleted, seconds=seconds, metadata=snapshot.metadata
    )


def _parameters(where: Where) -> Mapping[str, Any]:
    return {"predicate": [] if where is None else [str(where)]}


def _metrics(deleted: RowsDeleted, rows: str) -> dict[str, str]:
    """Return what the commit says of itself, under Delta-Spark's names."""
    found = {
        "numAddedFiles": deleted.added_files,
        "numAddedBytes": deleted.added_bytes,
        "numRemovedFiles": deleted.removed_files,
        "numRemovedBytes": deleted.removed_bytes,
        "numAddedChangeFiles": deleted.change_files,
        "numCopiedRows": deleted.copied_rows,
        "scanTimeMs": round(deleted.scan_seconds * 1000),
        "rewriteTimeMs": round(deleted.rewrite_seconds * 1000),
    }
    if deleted.rows is not None:
        found[rows] = deleted.rows
    return {key: str(value) for key, value in found.items()}
