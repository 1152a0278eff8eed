"""One DELETE: rows that match a predicate leave the table, in one commit.

Files of which the log proves that every row matches are removed without being read, those that cannot hold one are left
alone, and the rest is copied without the rows that match. What others do meanwhile is no hindrance unless they changed
a file that was judged here, or added rows that match and rest on the table: then the deletion begins again, on the
version that they made. What was written for an attempt that came to nothing is deleted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lazydelta.errors import CommitConflictError, TableNotFoundError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Metadata
from lazydelta.log.features.writable import check_removable, check_writable
from lazydelta.pruning import Where
from lazydelta.write.commit_note import CommitNote
from lazydelta.write.row_changes.row_choice import RowChoice
from lazydelta.write.row_changes.row_rewriter import FileRecipe
from lazydelta.write.row_changes.staged_deletion import RowsDeleted, stage_deletion
from lazydelta.write.row_changes.touched_files import touched_files
from lazydelta.write.transaction import Transaction

__all__ = ["DeleteResult", "DeleteSettings", "delete_rows"]

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
    settled, begun = settings or DeleteSettings(), time.monotonic()
    if dry_run:
        return _counted(handle, where, begun)
    now = time.time_ns()  # one moment for all attempts
    # Who records how far an application has come must look at the table himself when another was faster.
    most = 1 if settled.note.transactions else min(_MOST_BEGINNINGS, settled.max_attempts)
    for remaining in reversed(range(most)):
        try:
            return _attempt(handle, where, settled, now, begun)
        except CommitConflictError as error:
            if not remaining:
                raise
            _log.info("the deletion begins again: %s", error)
    raise AssertionError("the last attempt returns or raises")  # pragma: no cover


def _attempt(handle: TableHandle, where: Where, settings: DeleteSettings, now: int, begun: float) -> DeleteResult:
    with Transaction.begin(handle, operation="DELETE", parameters=_parameters(where)) as transaction:
        snapshot = transaction.snapshot
        if snapshot is None:
            message = f"There is no Delta table at {handle.uri} to delete rows of"
            raise TableNotFoundError(message, path=handle.uri, hint="check the place")
        transaction.note = settings.note
        settings.note.check_seen(snapshot.transaction_version, handle.uri)
        choice = RowChoice.of(where, snapshot.schema, now=now)
        deleted = stage_deletion(transaction, choice, settings.recipe)
        version = None
        if deleted.removed_files:
            transaction.metrics = _metrics(deleted)
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


def _metrics(deleted: RowsDeleted) -> dict[str, str]:
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
        found["numDeletedRows"] = deleted.rows
    return {key: str(value) for key, value in found.items()}
