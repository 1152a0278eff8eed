"""Write the version checksum next to its commit.

Delta-Spark treats a wrong checksum as a broken table. A checksum is therefore written only if its totals are known
exactly: from an earlier checksum and every commit since, or from a replay. It is never overwritten. Commits do not
depend on it: a failure to write it is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np

from lazydelta.errors import LazyDeltaError, ObjectExistsError, UnsupportedFeatureError
from lazydelta.log.checkpoint.reader import CheckpointReader
from lazydelta.log.checksum.reader import VersionChecksum, read_checksum
from lazydelta.log.keys import RemoveSet
from lazydelta.log.replay import KEY_MEMORY, ReverseCommitReader, TailCommit, active_tail_files, unmasked
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.log.time_travel import commit_info
from lazydelta.protocol.actions import (
    DomainMetadata,
    LogLine,
    Metadata,
    Protocol,
    Txn,
    domain_body,
    metadata_body,
    protocol_body,
    txn_body,
)
from lazydelta.protocol.features import check_writable, uses_in_commit_timestamps
from lazydelta.protocol.file_names import LOG, checksum_name
from lazydelta.protocol.properties import TableProperties
from lazydelta.runtime.arrays import numpy_of
from lazydelta.runtime.metrics import ScanMetrics
from lazydelta.storage import Store

__all__ = ["Change", "TableTotals", "start_checksums", "state_at", "write_checksum"]


# The totals of a version, and how commits change them: files, bytes, applications, domains.


# Opening a table reads its tail anyway, but a commit should not wait until a very long one is summed up.
_MAX_GAP = 100
# If the sum is not exact, a checkpoint up to this size is counted file by file; a larger one restarts the chain.
_SMALL_BASE = 1 << 20
_OUR_ENGINE = "lazydelta"
# Delta-Spark operations whose actions do not add up: they may add files that are already active, or do anything.
_UNCOUNTABLE = frozenset({"COMPUTE STATS", "MANUAL UPDATE", "ADD DELETION VECTORS TOMBSTONES"})


@dataclass(slots=True)
class Change:
    """The effect of one or more consecutive commits on the totals; ``exact`` is False if it is unknown.

    A sum is correct only if each added file is new and each removed one is active. lazydelta ensures that for its own
    commits. Another writer may add an active file again, for instance with other statistics, or remove a file twice.
    """

    files: int = 0
    size: int = 0
    exact: bool = True
    transactions: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)
    in_commit_timestamp: int | None = None
    info: dict[str, Any] | None = None
    touches_files: bool = False

    @classmethod
    def of(cls, newest_first: Sequence[Change]) -> Change:
        """Return the combined effect of commits, given newest first."""
        total = cls()
        for change in reversed(newest_first):
            total.then(change)
        return total

    def note(self, lines: Iterable[LogLine]) -> None:
        """Count the actions of a commit."""
        for line in lines:
            self.touches_files |= line.add is not None or line.remove is not None
            if line.add is not None:
                self.files += 1
                self.size += line.add.size
            elif line.remove is not None:
                self.files -= 1
                self.size -= line.remove.size or 0
                self.exact &= line.remove.size is not None
            elif line.txn is not None:
                self.transactions[line.txn.app_id] = line.txn
            elif line.domain_metadata is not None:
                self.domains[line.domain_metadata.domain] = line.domain_metadata
            elif line.commit_info is not None:
                self._note_info(line.commit_info)

    def then(self, later: Change) -> None:
        """Add the effect of the next newer commit."""
        self.files += later.files
        self.size += later.size
        self.exact &= later.exact and (later.is_ours or not later.touches_files)
        self.transactions |= later.transactions
        self.domains |= later.domains
        self.in_commit_timestamp, self.info = later.in_commit_timestamp, later.info

    @property
    def is_ours(self) -> bool:
        """Return whether lazydelta made the commit, according to its ``engineInfo``."""
        return str((self.info or {}).get("engineInfo", "")).partition("/")[0] == _OUR_ENGINE

    def _note_info(self, info: dict[str, Any]) -> None:
        self.info = info
        self.exact &= str(info.get("operation", "")).upper() not in _UNCOUNTABLE
        stamp = info.get("inCommitTimestamp")
        self.in_commit_timestamp = stamp if isinstance(stamp, int) else None


@dataclass(frozen=True, slots=True)
class TableTotals:
    """The totals of a version; the lists are None if they are unknown."""

    num_files: int = 0
    size: int = 0
    transactions: tuple[Txn, ...] | None = ()
    domains: tuple[DomainMetadata, ...] | None = ()

    def after(self, change: Change) -> TableTotals | None:
        """Return the totals after a change; None if they are unknown or negative."""
        num_files, size = self.num_files + change.files, self.size + change.size
        if not change.exact or num_files < 0 or size < 0:
            return None
        transactions, domains = self.transactions, self.domains
        if transactions is not None:
            transactions = tuple(({each.app_id: each for each in transactions} | change.transactions).values())
        if domains is not None:
            merged = {each.domain: each for each in domains} | change.domains
            domains = tuple(each for each in merged.values() if not each.removed)
        return TableTotals(num_files, size, transactions, domains)


def read_changes(commits: Iterable[TailCommit]) -> Change:
    """Sum up commits, given newest first."""
    found: list[Change] = []
    for commit in commits:
        change = Change()
        for lines in commit.actions:
            change.note(lines)
        found.append(change)
    return Change.of(found)


def state_at(snapshot: LogSnapshot) -> TableTotals | None:
    """Return the totals of a snapshot if they can be computed without reading a large checkpoint, else None.

    A table without a checkpoint was read completely when it was opened, so it is replayed.
    """
    segment = snapshot.segment
    if snapshot.checksum is not None:
        return _stated(snapshot.checksum)
    if segment.checksum is not None:
        checksum = read_checksum(snapshot.store, segment.checksum, snapshot.commits)
        later = [file for file in segment.commits if file.version > segment.checksum.version]
        if checksum is None or len(later) > _MAX_GAP:
            return None
        reader = ReverseCommitReader(snapshot.store, later, parallelism=snapshot.parallelism, cache=snapshot.commits)
        added_up = _stated(checksum).after(read_changes(reader))
        if added_up is None and segment.base_bytes <= _SMALL_BASE:
            return _replayed(snapshot)
        return added_up
    if segment.checkpoint is None and len(segment.commits) <= _MAX_GAP:
        return _replayed(snapshot)
    return None


def state_from_replay(snapshot: LogSnapshot, *, num_files: int, size: int) -> TableTotals:
    """Return the totals of a snapshot whose files have just been counted."""
    return TableTotals(num_files, size, tuple(snapshot.transactions()), tuple(snapshot.domains()))


def _stated(checksum: VersionChecksum) -> TableTotals:
    return TableTotals(
        checksum.num_files, checksum.table_size_bytes, checksum.set_transactions, checksum.domain_metadata
    )


def _replayed(snapshot: LogSnapshot) -> TableTotals:
    num_files = size = 0
    with closing(RemoveSet(KEY_MEMORY)) as seen:
        for batch in active_tail_files(snapshot.tail(), seen, ScanMetrics(), whole=True):
            num_files += len(batch)
            size += int(np.sum(numpy_of(batch.size)))
        checkpoint = snapshot.segment.checkpoint
        for batch in () if checkpoint is None else CheckpointReader(snapshot.store, checkpoint).files():
            left = unmasked(batch, seen)
            num_files += len(left)
            size += int(np.sum(numpy_of(left.size)))
    return state_from_replay(snapshot, num_files=num_files, size=size)


logger = logging.getLogger(__name__)

T = TypeVar("T")

# Delta-Spark's limit for the lists in a checksum.
_MAX_LISTED = 100


def write_checksum(
    store: Store,
    version: int,
    state: TableTotals,
    *,
    protocol: Protocol,
    metadata: Metadata,
    txn_id: str | None = None,
    in_commit_timestamp: int | None = None,
) -> bool:
    """Write the checksum of a committed version unless it exists; return whether this call wrote it."""
    path = f"{LOG}/{checksum_name(version)}"
    body: dict[str, Any] = {
        "txnId": txn_id,
        "tableSizeBytes": state.size,
        "numFiles": state.num_files,
        "numMetadata": 1,
        "numProtocol": 1,
        "inCommitTimestampOpt": in_commit_timestamp,
        "setTransactions": _listed(_lasting(state.transactions, metadata), txn_body),
        "domainMetadata": _listed(state.domains, domain_body),
        "metadata": metadata_body(metadata),
        "protocol": protocol_body(protocol),
    }
    present = {key: value for key, value in body.items() if value is not None}
    try:
        store.put_if_absent(path, msgspec.json.encode(present) + b"\n")
    except ObjectExistsError:
        return False
    except LazyDeltaError as error:
        logger.warning("the checksum of version %d was not written: %s", version, error)
        return False
    return True


def start_checksums(snapshot: LogSnapshot, *, num_files: int, size: int) -> bool:
    """Write the checksum of a version whose files were just counted, if its writer wrote none; return whether it did.

    Later commits derive their checksums from it. Tables that lazydelta cannot write to are left to writers that support
    their features. The checksum is optional, so any error is only logged.
    """
    file = snapshot.segment.checksum
    if file is not None and file.version == snapshot.version:
        return False
    try:
        check_writable(snapshot.protocol, snapshot.metadata)
        # A checkpoint at this version leaves no tail, and the log may have been cleaned up to it.
        commit = snapshot.segment.commits[-1] if snapshot.segment.commits else snapshot.segment.checkpoint_commit
        if commit is None:
            return False
        info = commit_info(snapshot.store, commit)
        stamp, txn_id = info.get("inCommitTimestamp"), info.get("txnId")
        if uses_in_commit_timestamps(snapshot.protocol, snapshot.metadata) and not isinstance(stamp, int):
            return False
        return write_checksum(
            snapshot.store,
            snapshot.version,
            state_from_replay(snapshot, num_files=num_files, size=size),
            protocol=snapshot.protocol,
            metadata=snapshot.metadata,
            txn_id=txn_id if isinstance(txn_id, str) else None,
            in_commit_timestamp=stamp if isinstance(stamp, int) else None,
        )
    except UnsupportedFeatureError as error:
        logger.debug("version %d gets no checksum from its checkpoint: %s", snapshot.version, error)
    except Exception:
        # The checkpoint exists and is complete.
        logger.exception("the checksum of version %d was not written", snapshot.version)
    return False


def _lasting(transactions: tuple[Txn, ...] | None, metadata: Metadata) -> tuple[Txn, ...] | None:
    # If transactions expire, the valid ones depend on the time of the check, so none are written.
    return None if TableProperties.of(metadata).transaction_retention is not None else transactions


def _listed(actions: Sequence[T] | None, body: Callable[[T], dict[str, Any]]) -> list[dict[str, Any]] | None:
    return None if actions is None or len(actions) > _MAX_LISTED else [body(each) for each in actions]
