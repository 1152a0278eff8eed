"""From files that are in place to a commit that names them, or away with them: the one way of every write.

The files may come from one process or from many tasks, at once or a while after the table was looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from lazydelta.errors import CommitConflictError, SchemaMismatchError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Add, Metadata, Txn
from lazydelta.log.segment import list_commits
from lazydelta.storage import Store
from lazydelta.write.batch_record import BatchRecord
from lazydelta.write.plan import Creation, WritePlan, schema_of
from lazydelta.write.row_changes.replacing import stage_inserted
from lazydelta.write.transaction import CommitResult, Transaction
from lazydelta.write.uploads import delete_paths

__all__ = ["commit_files", "delete_files", "unnamed_files"]

_log = logging.getLogger(__name__)

# How often files are offered to a table whose metadata others change all the while.
_MAX_OFFERS = 5


def commit_files(  # noqa: PLR0913 - a commit is all of these
    handle: TableHandle,
    plan: WritePlan,
    incoming: pa.Schema,
    written_for: Metadata,
    adds: Sequence[Add],
    *,
    operation: str = "WRITE",
    parameters: Mapping[str, Any] | None = None,
    txn: Txn | None = None,
    batch: BatchRecord | None = None,
    max_attempts: int = 15,
    begun: Transaction | None = None,
) -> CommitResult:
    """Commit files that were written for the metadata of an earlier moment, maybe by other processes.

    The table is looked at anew. What has happened to it since then is no hindrance to an append, as long as it still
    has the columns that the files were written for. ``batch`` says what is committed under ``txn``.

    Who has written the files in one go has a transaction ``begun`` and staged, and commits that: what others did to an
    existing table rules it out by the transaction's own rules, and the table is looked at anew only if there was none.
    """
    store = handle.store
    for remaining in reversed(range(_MAX_OFFERS)):
        mine, begun = begun, None
        told = parameters or plan.parameters
        with mine or Transaction.begin(handle, operation=operation, parameters=told, txn=txn) as offer:
            offer.batch = batch
            if offer.already_committed:
                return offer.commit()
            if mine is None:
                _check_columns(_staged(plan, offer, incoming), written_for, store)
            offer.add(*adds)
            stage_inserted(offer, adds, schema_of(written_for))
            try:
                return offer.commit(max_attempts=max_attempts)
            except CommitConflictError:
                is_ruled_out = mine is not None and mine.snapshot is not None
                if plan.mode != "append" or plan.creates_only or is_ruled_out or not remaining:
                    raise
            if offer.snapshot is None:
                # Somebody else created the table. If it has our columns, what we have to add is an append.
                _log.info("%s was created by another writer meanwhile; appending to it", store.uri)
                plan = replace(plan, creation=Creation())
    raise AssertionError("the last offer returns or raises")  # pragma: no cover


def unnamed_files(store: Store, adds: Sequence[Add], first: int) -> list[Add]:
    """Return the files that no commit from ``first`` on names: the same ones may be asked for twice, and then stay."""
    named: set[str] = set()
    for commit in list_commits(store, first) if adds else ():
        text = store.get(commit.path)
        named |= {each.path for each in adds if each.path.rpartition("/")[2].encode() in text}
    return [each for each in adds if each.path not in named]


def delete_files(store: Store, adds: Iterable[Add]) -> None:
    """Delete files that no commit names, as far as the store lets us."""
    delete_paths(store, [unquote(each.path) for each in adds])


def _staged(plan: WritePlan, offer: Transaction, incoming: pa.Schema) -> Metadata:
    try:
        return plan.stage(offer, incoming)
    except SchemaMismatchError as error:  # it did fit when the files were written
        raise _changed(offer.store, f": {error}") from error


def _check_columns(found: Metadata, ours: Metadata, store: Store) -> None:
    columns = {each.name: each for each in schema_of(found).fields}
    lost = [each.name for each in schema_of(ours).fields if columns.get(each.name) != each]
    if not lost and found.partition_columns == ours.partition_columns:
        return
    raise _changed(store, f": {', '.join(lost)}" if lost else "")


def _changed(store: Store, detail: str) -> CommitConflictError:
    message = f"Another writer gave the table at {store.uri} other columns meanwhile{detail}"
    return CommitConflictError(message, path=store.uri, hint="look at the table and write again")
