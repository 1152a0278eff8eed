"""What a version amounts to, and what commits change of it: files, bytes, applications, domains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lazydelta.arrays import numpy_of
from lazydelta.log.actions import DomainMetadata, LogLine, Txn
from lazydelta.log.checksum.version_checksum import VersionChecksum, read_checksum
from lazydelta.log.compactions import KEY_MEMORY
from lazydelta.log.reconcile import active_tail_files
from lazydelta.log.remove_set import RemoveSet
from lazydelta.log.reverse_commits import ReverseCommitReader, TailCommit
from lazydelta.log.snapshot import Snapshot
from lazydelta.metrics import ScanMetrics

__all__ = ["Change", "State", "read_changes", "state_at", "state_from_replay"]

# Opening a table reads its tail anyway, but a commit should not wait for a very long one to be added up.
_MAX_GAP = 100
# Operations of Delta-Spark whose actions do not add up: files that are there already, or anything at all.
_UNCOUNTABLE = frozenset({"COMPUTE STATS", "MANUAL UPDATE", "ADD DELETION VECTORS TOMBSTONES"})


@dataclass(slots=True)
class Change:
    """What one commit, or several in a row, did to the totals; ``exact`` is False where that cannot be told."""

    files: int = 0
    size: int = 0
    exact: bool = True
    transactions: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)
    in_commit_timestamp: int | None = None
    info: dict[str, Any] | None = None

    @classmethod
    def of(cls, newest_first: Sequence[Change]) -> Change:
        """Return what commits did together, given the newest first."""
        total = cls()
        for change in reversed(newest_first):
            total.then(change)
        return total

    def note(self, lines: Iterable[LogLine]) -> None:
        """Count the actions of a commit."""
        for line in lines:
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
        """Add what came after."""
        self.files += later.files
        self.size += later.size
        self.exact &= later.exact
        self.transactions |= later.transactions
        self.domains |= later.domains
        self.in_commit_timestamp, self.info = later.in_commit_timestamp, later.info

    def _note_info(self, info: dict[str, Any]) -> None:
        self.info = info
        self.exact &= str(info.get("operation", "")).upper() not in _UNCOUNTABLE
        stamp = info.get("inCommitTimestamp")
        self.in_commit_timestamp = stamp if isinstance(stamp, int) else None


@dataclass(frozen=True, slots=True)
class State:
    """The totals of a version; the lists are None where they are not known."""

    num_files: int = 0
    size: int = 0
    transactions: tuple[Txn, ...] | None = ()
    domains: tuple[DomainMetadata, ...] | None = ()

    def after(self, change: Change) -> State | None:
        """Return the totals after a change; None where they cannot be told, or make no sense."""
        num_files, size = self.num_files + change.files, self.size + change.size
        if not change.exact or num_files < 0 or size < 0:
            return None
        transactions, domains = self.transactions, self.domains
        if transactions is not None:
            transactions = tuple(({each.app_id: each for each in transactions} | change.transactions).values())
        if domains is not None:
            merged = {each.domain: each for each in domains} | change.domains
            domains = tuple(each for each in merged.values() if not each.removed)
        return State(num_files, size, transactions, domains)


def read_changes(commits: Iterable[TailCommit]) -> Change:
    """Add up commits that come newest first."""
    found: list[Change] = []
    for commit in commits:
        change = Change()
        for lines in commit.actions:
            change.note(lines)
        found.append(change)
    return Change.of(found)


def state_at(snapshot: Snapshot) -> State | None:
    """Return the totals of a snapshot as far as they come without reading its files; None where they do not.

    A table that has no checkpoint yet was read whole when it was opened, so that one is replayed.
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
        return _stated(checksum).after(read_changes(reader))
    if segment.checkpoint is None and len(segment.commits) <= _MAX_GAP:
        return _replayed(snapshot)
    return None


def state_from_replay(snapshot: Snapshot, *, num_files: int, size: int) -> State:
    """Return the totals of a snapshot whose files somebody has just counted."""
    return State(num_files, size, tuple(snapshot.transactions()), tuple(snapshot.domains()))


def _stated(checksum: VersionChecksum) -> State:
    return State(checksum.num_files, checksum.table_size_bytes, checksum.set_transactions, checksum.domain_metadata)


def _replayed(snapshot: Snapshot) -> State:
    num_files = size = 0
    with closing(RemoveSet(KEY_MEMORY)) as seen:
        for batch in active_tail_files(snapshot.tail(), seen, ScanMetrics()):
            num_files += len(batch)
            size += int(np.sum(numpy_of(batch.size)))
    return state_from_replay(snapshot, num_files=num_files, size=size)
