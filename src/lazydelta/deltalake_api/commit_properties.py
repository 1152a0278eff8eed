"""What goes with a commit, by deltalake's names: provenance, retries, how far applications have come, what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lazydelta.errors import OptionError, UnsupportedOperationError
from lazydelta.log.actions import Txn
from lazydelta.write.commit_note import CommitNote

__all__ = ["CommitProperties", "PostCommitHookProperties", "Transaction", "attempts_of", "maintains", "note_of"]


@dataclass(frozen=True)
class Transaction:
    """How far an application has come: a commit records it, ``DeltaTable.transaction_version`` reads it."""

    app_id: str
    version: int
    last_updated: int | None = None


@dataclass
class CommitProperties:
    """How a commit is made.

    ``custom_metadata`` joins what the log says of the commit (``history()``). ``max_commit_retries`` is how often it is
    tried again while other writers are faster. ``app_transactions`` are recorded with it; they do not keep a batch from
    being written twice, as ``app_id`` and ``app_version`` of `write_arrow` do. An application that has come further
    since the table was opened which is written to, or while it is written to, is a conflict.
    """

    custom_metadata: dict[str, Any] | None = None
    max_commit_retries: int | None = None
    app_transactions: list[Transaction] | None = None


@dataclass
class PostCommitHookProperties:
    """What follows a commit: a checkpoint (and our sidecar) where one is due, and a clean log where the table asks."""

    create_checkpoint: bool = True
    cleanup_expired_logs: bool | None = None


def note_of(
    properties: CommitProperties | None, transaction_version: Callable[[str], int | None] | None = None
) -> CommitNote:
    """Return what a commit says beside its rows; ``transaction_version`` is that of the table which the caller has."""
    if properties is None:
        return CommitNote()
    info: Any = properties.custom_metadata
    txns = tuple(
        Txn(app_id=each.app_id, version=each.version, last_updated=each.last_updated)
        for each in properties.app_transactions or ()
    )
    seen = {} if transaction_version is None else {each.app_id: transaction_version(each.app_id) for each in txns}
    return CommitNote({} if info is None else info, txns, seen)


def attempts_of(properties: CommitProperties | None, default: int) -> int:
    """Return how often a commit is tried."""
    retries = None if properties is None else properties.max_commit_retries
    if retries is None:
        return default
    if retries < 0:
        raise OptionError(f"max_commit_retries={retries} makes no sense", hint="give a number from 0")
    return retries + 1


def maintains(properties: PostCommitHookProperties | None) -> bool:
    """Tell whether checkpoint, sidecar and a clean log follow a commit where they are due."""
    if properties is None:
        return True
    if properties.create_checkpoint and properties.cleanup_expired_logs is not None:
        message = "lazydelta cleans the log as the table's property delta.enableExpiredLogCleanup says"
        hint = "leave cleanup_expired_logs out, or call cleanup_metadata() yourself"
        raise UnsupportedOperationError(message, hint=hint)
    if not properties.create_checkpoint and properties.cleanup_expired_logs:
        message = "lazydelta cleans the log after a checkpoint, not instead of one"
        raise UnsupportedOperationError(message, hint="call cleanup_metadata() yourself")
    return properties.create_checkpoint
