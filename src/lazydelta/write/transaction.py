"""``Transaction``: optimistic concurrency over a store that can put an object unless it exists.

Data files are in place before the commit names them. The commit itself is one put-if-absent: it is there as a whole or
not at all, and of several writers of one version exactly one succeeds. The others look at what the winners did, and go
behind them where that changes nothing for what they do; their data files are used again.

After a ``WriteError`` nothing was committed. After a ``StorageError`` from ``commit`` it is not known whether the
commit arrived, so its data files must stay where they are.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote

import msgspec

from lazydelta.errors import CommitConflictError, OptionError, TableNotFoundError, WriteError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Add, Metadata, Protocol, Remove, Txn
from lazydelta.log.checksum.checksum_totals import Change, State, state_at
from lazydelta.log.checksum.checksum_writer import write_checksum
from lazydelta.log.features.writable import check_removable, check_writable, uses_in_commit_timestamps
from lazydelta.log.properties import TableProperties
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.travel import commit_info
from lazydelta.pruning import Where
from lazydelta.write.batch_record import BATCH_FIELD, BatchRecord, check_repeat
from lazydelta.write.commit_lines import CommitInfo, CommitLines, header_lines
from lazydelta.write.commit_note import CommitNote
from lazydelta.write.conflicts import Footprint, commits_since, judge
from lazydelta.write.publish import commit_path, publish
from lazydelta.write.removals import removals
from lazydelta.write.row_changes.row_choice import RowChoice
from lazydelta.write.selection import PartitionSelection
from lazydelta.write.uploads import delete_paths

__all__ = ["CommitResult", "Transaction"]

logger = logging.getLogger(__name__)

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 2.0


@dataclass(frozen=True, slots=True)
class CommitResult:
    """How a commit went.

    ``version`` is the one committed. With ``already_committed`` nothing was written, because the application's
    transaction is part of the table already; ``version`` is then one that has it. ``protocol`` and ``metadata`` are
    those in force, ``attempts`` counts the versions tried, ``timestamp`` is in epoch milliseconds.
    """

    version: int
    attempts: int
    protocol: Protocol
    metadata: Metadata
    timestamp: int | None = None
    already_committed: bool = False
    has_checksum: bool = False


class Transaction:
    """One attempt-loop of optimistic concurrency; files first, then one put-if-absent commit.

    ``snapshot`` is the version that the transaction was begun at, None where there is no table yet. Files that are
    added must be new to the table, and files that are removed must be active in ``snapshot``. ``batch`` says what is
    committed under the application's transaction; where that is part of the table already, it must be the same.
    """

    def __init__(
        self,
        handle: TableHandle,
        snapshot: Snapshot | None,
        *,
        operation: str,
        parameters: Mapping[str, Any] | None = None,
        txn: Txn | None = None,
    ) -> None:
        self.handle = handle
        self.store = handle.store
        self.snapshot = snapshot
        self.txn_id = str(uuid.uuid4())
        self._operation = operation
        self.parameters = dict(parameters or {})
        self._txn = txn
        self.batch: BatchRecord | None = None
        self.note = CommitNote()
        self.metrics: Mapping[str, str] | None = None  # of the operation; None counts the files
        self._lines = CommitLines()
        self._protocol: Protocol | None = None
        self._metadata: Metadata | None = None
        self._read: list[str] = []
        self._removed: set[str] = set()
        self._overwrites_all = False
        self._selections: list[PartitionSelection] = []
        self._rows: tuple[RowChoice, bool] | None = None
        self._own: list[str] = []  # files that nobody needs unless this is committed
        self.notes_changes = False
        self._may_be_published = False
        self._since = Change()  # what the winners did that this transaction went behind
        self._version = -1 if snapshot is None else snapshot.version
        self._over = False
        self._footprint: Footprint | None = None
        self.already_committed = self._is_committed()

    @classmethod
    def begin(
        cls,
        handle: TableHandle,
        *,
        operation: str,
        parameters: Mapping[str, Any] | None = None,
        txn: Txn | None = None,
    ) -> Transaction:
        """Pin the newest version, and refuse a table that we may not write to before anything is written.

        ``txn`` makes the transaction idempotent: if the table has this version of the application already,
        ``already_committed`` is true at once and ``commit`` writes nothing.
        """
        try:
            snapshot = handle.newest()
        except TableNotFoundError:
            return cls(handle, None, operation=operation, parameters=parameters, txn=txn)
        check_writable(snapshot.protocol, snapshot.metadata, path=handle.uri)
        TableProperties.of(snapshot.metadata)
        return cls(handle, snapshot, operation=operation, parameters=parameters, txn=txn)

    @property
    def protocol(self) -> Protocol | None:
        """The protocol that is in force once the transaction is committed; None where none was set yet."""
        return self._protocol or (None if self.snapshot is None else self.snapshot.protocol)

    @property
    def metadata(self) -> Metadata | None:
        """The metadata that is in force once the transaction is committed; None where none was set yet."""
        return self._metadata or (None if self.snapshot is None else self.snapshot.metadata)

    # --- what to do

    def add(self, *adds: Add) -> None:
        """Add files, which are in place and new to the table."""
        self._check_open()
        self._lines.add(adds)

    def remove(self, *removes: Remove) -> None:
        """Remove files that are active in ``snapshot``; times of deletion are filled in."""
        self._check_open()
        if self._overwrites_all or self._selections:
            message = "A transaction that overwrites removes its files by itself"
            raise WriteError(message, path=self.store.uri, hint="remove single files in a transaction of their own")
        if any(each.data_change for each in removes):
            self._check_removable()
        now = _now()
        ready: list[Remove] = []
        for each in removes:
            key = f"{each.path}\0{each.deletion_vector.unique_id if each.deletion_vector else ''}"
            if key in self._removed:
                raise WriteError(f"The file {each.path} is removed twice in one transaction", path=each.path)
            self._removed.add(key)
            ready.append(_complete(each, now))
        self._lines.remove(ready)

    def remove_found(self, remove: Remove) -> None:
        """Remove a file that a scan of ``snapshot`` has found; it finds each once, and there may be very many."""
        self._lines.remove([remove])

    def add_own(self, adds: Sequence[Add], changes: Sequence[Add] = ()) -> None:
        """Add files that were written for this transaction alone, ``changes`` with what it changed.

        They are deleted if it ends and is not committed.
        """
        self._check_open()
        self._own.extend(unquote(each.path) for each in (*adds, *changes))
        self._lines.add(adds)
        self._lines.note_changes(changes)
        self.notes_changes |= bool(changes)

    def rest_on_rows(self, choice: RowChoice, *, any_append: bool) -> None:
        """Rest the transaction on which rows are chosen: a file that another writer adds and may hold one rules it out.

        Without ``any_append`` one that was added blindly does not.
        """
        self._check_open()
        self._check_removable()
        self._rows = (choice, any_append)

    def remove_all(self) -> None:
        """Remove every file: an overwrite of the whole table, ruled out by any file that another writer adds."""
        self._remove_selected(None)

    def remove_partitions(self, where: Where) -> None:
        """Remove the files of some partitions; ``where`` may name partition columns only.

        It is ruled out by any file that another writer adds to these partitions.
        """
        if self.snapshot is None:
            raise WriteError(
                "There is no table to overwrite partitions of", path=self.store.uri, hint="create it first"
            )
        self._remove_selected(PartitionSelection.of(where, self.snapshot.schema))

    def _remove_selected(self, selection: PartitionSelection | None) -> None:
        self._check_open()
        if self._removed or self._overwrites_all or self._selections:
            message = "An overwrite must be the only one of its transaction, and without removes of single files"
            raise WriteError(message, path=self.store.uri, hint="join the predicates with OR")
        self._check_removable()
        if selection is None:
            self._overwrites_all = True
        else:
            self._selections.append(selection)
        if self.snapshot is not None:
            for batch in removals(self.handle, self.snapshot, _now(), selection):
                self._lines.remove(batch)

    def read(self, *paths: str) -> None:
        """Rest the transaction on files as they are: a writer that changes one of them rules it out."""
        self._check_open()
        self._read.extend(paths)

    def set_metadata(self, metadata: Metadata) -> None:
        """Change the table's metadata with this commit."""
        self._check_open()
        if self.protocol is not None:
            check_writable(self.protocol, metadata, path=self.store.uri)
        TableProperties.of(metadata)
        self._metadata = metadata

    def set_protocol(self, protocol: Protocol) -> None:
        """Change the table's protocol with this commit."""
        self._check_open()
        if self.metadata is not None:
            check_writable(protocol, self.metadata, path=self.store.uri)
        self._protocol = protocol

    # --- doing it

    def commit(self, *, max_attempts: int = 15) -> CommitResult:
        """Publish the transaction as the next version, behind whatever other writers committed meanwhile."""
        self._check_open()
        if max_attempts < 1:
            raise OptionError(f"max_attempts={max_attempts} makes no sense", hint="give a number from 1")
        protocol, metadata = self._in_force()
        self._over = True
        try:
            if self.already_committed:
                self._check_repeat()
                return CommitResult(self._version, 0, protocol, metadata, already_committed=True)
            for attempt in range(1, max_attempts + 1):
                version = self._version + 1
                info = self._info(protocol, metadata)
                self._may_be_published = True
                if publish(self.store, version, self._encoded(info), self.txn_id):
                    written = self._write_checksum(version, info, protocol, metadata)
                    return CommitResult(version, attempt, protocol, metadata, info.timestamp, has_checksum=written)
                self._may_be_published = False
                if self._go_behind():
                    self._check_repeat()
                    return CommitResult(self._version, attempt, protocol, metadata, already_committed=True)
                if attempt < max_attempts:
                    time.sleep(_pause(attempt))
        finally:
            self.close()
        message = f"Other writers of {self.store.uri} were faster {max_attempts} times in a row, last with version"
        raise CommitConflictError(
            f"{message} {self._version}",
            path=commit_path(self._version),
            version=self._version,
            hint="try again when there is less going on, or raise max_attempts",
        )

    def close(self) -> None:
        """Give up the transaction; harmless when it is over."""
        self._over = True
        self._lines.close()
        if self._own and not self._may_be_published:
            delete_paths(self.store, self._own)
        self._own = []
        if self._footprint is not None:
            self._footprint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._over:
            raise WriteError("This transaction is over", path=self.store.uri, hint="begin another one")

    def _check_removable(self) -> None:
        if self.snapshot is not None:
            check_removable(self.snapshot.protocol, self.snapshot.metadata, path=self.store.uri)

    def _in_force(self) -> tuple[Protocol, Metadata]:
        protocol, metadata = self.protocol, self.metadata
        if protocol is None or metadata is None:
            message = f"There is no Delta table at {self.store.uri} to commit to"
            raise WriteError(message, path=self.store.uri, hint="create it, or set protocol and metadata first")
        if self.snapshot is not None and uses_in_commit_timestamps(protocol, metadata):
            before = uses_in_commit_timestamps(self.snapshot.protocol, self.snapshot.metadata)
            if not before:
                message = "In-commit timestamps cannot be switched on for a table that exists"
                raise WriteError(
                    message, path=self.store.uri, hint="set delta.enableInCommitTimestamps at its creation"
                )
        return protocol, metadata

    def _is_committed(self) -> bool:
        if self._txn is None or self.snapshot is None:
            return False
        known = self.snapshot.transaction_version(self._txn.app_id)
        return known is not None and known >= self._txn.version

    def _check_repeat(self) -> None:
        if self._txn is not None and self.batch is not None:
            check_repeat(self.store, self._txn, self.batch, self._version)

    def _info(self, protocol: Protocol, metadata: Metadata) -> CommitInfo:
        now, stamp = _now(), None
        if uses_in_commit_timestamps(protocol, metadata):
            now = stamp = max(now, self._previous_timestamp() + 1)
        totals = self._lines.totals
        rests_on_nothing = not (self._read or totals.removed or self._overwrites_all or self._selections)
        batch = {} if self._txn is None or self.batch is None else {BATCH_FIELD: self.batch.body()}
        return CommitInfo(
            txn_id=self.txn_id,
            operation=self._operation,
            parameters={**self.note.parameters, **self.parameters},
            timestamp=now,
            in_commit_timestamp=stamp,
            is_blind_append=rests_on_nothing and totals.added > 0,
            read_version=None if self._version < 0 else self._version,
            metrics=totals.metrics() if self.metrics is None else self.metrics,
            more=self.note.more | batch,
        )

    def _previous_timestamp(self) -> int:
        if self._since.in_commit_timestamp is not None:
            return self._since.in_commit_timestamp
        if self.snapshot is None:
            return -1
        checksum = self.snapshot.checksum
        if checksum is not None and checksum.in_commit_timestamp_opt is not None:
            return checksum.in_commit_timestamp_opt
        segment = self.snapshot.segment
        file = segment.commits[-1] if segment.commits else segment.checkpoint_commit
        stamp = None if file is None else commit_info(self.store, file).get("inCommitTimestamp")
        # Only a commit that breaks the protocol has none; what the store says is the next best then.
        return stamp if isinstance(stamp, int) else -1 if file is None else file.info.last_modified

    def _encoded(self, info: CommitInfo) -> bytes:
        txn = self._txn
        if txn is not None and txn.last_updated is None:
            txn = msgspec.structs.replace(txn, last_updated=info.timestamp)
        self._txn = txn
        noted = () if txn is None else (txn,)
        txns = (*noted, *self.note.transactions)
        header = header_lines(info, protocol=self._protocol, metadata=self._metadata, txns=txns)
        return self._lines.below(header)

    def _go_behind(self) -> bool:
        """Take the commits of others since our version as given, or raise; tell whether one of them was our txn."""
        winners = commits_since(self.store, self._version)
        change, conflict = judge(self.store, winners, self._rests_on())
        self._since.then(change)
        self._version = winners[-1].version
        # The other writer may have been this very application, one attempt earlier: that is no conflict but success.
        mine = None if self._txn is None else self._since.transactions.get(self._txn.app_id)
        if mine is not None and self._txn is not None and mine.version >= self._txn.version:
            return True
        if conflict is not None:
            raise conflict
        self.note.check_winners(change.transactions, self.store.uri)
        return False

    def _rests_on(self) -> Footprint:
        # Made when the first race is lost, and kept: most transactions lose none.
        if self._footprint is None:
            self._footprint = Footprint(
                overwrites_all=self._overwrites_all, selections=self._selections, rows=self._rows
            )
            self._footprint.rest_on(self._read)
            self._footprint.rest_on_lines(self._lines.chunks())
        return self._footprint

    def _write_checksum(self, version: int, info: CommitInfo, protocol: Protocol, metadata: Metadata) -> bool:
        try:
            state = self._state()
            if state is None:
                return False
            return write_checksum(
                self.store,
                version,
                state,
                protocol=protocol,
                metadata=metadata,
                txn_id=self.txn_id,
                in_commit_timestamp=info.in_commit_timestamp,
            )
        except Exception:
            # The commit is there and will be acknowledged; nothing that goes wrong now may make it look failed.
            logger.exception("the checksum of version %d was not written", version)
            return False

    def _state(self) -> State | None:
        """Return the totals of the version just committed."""
        totals = self._lines.totals
        own = Change(
            files=totals.added - totals.removed,
            size=totals.added_bytes - totals.removed_bytes,
            exact=totals.sizes_known,
            transactions={each.app_id: each for each in (*self.note.transactions, self._txn) if each is not None},
        )
        before = State() if self.snapshot is None else state_at(self.snapshot)
        before = None if before is None else before.after(self._since)
        if self._overwrites_all and self.snapshot is not None:
            # Whatever was there is gone, so the totals are known even where those before were not.
            own = Change(files=totals.added, size=totals.added_bytes, transactions=own.transactions)
            lists = (None, None) if before is None else (before.transactions, before.domains)
            before = State(0, 0, *lists)
        return None if before is None else before.after(own)


def _complete(remove: Remove, now: int) -> Remove:
    extended = remove.size is not None and remove.partition_values is not None
    return msgspec.structs.replace(
        remove,
        deletion_timestamp=now if remove.deletion_timestamp is None else remove.deletion_timestamp,
        extended_file_metadata=True if extended else remove.extended_file_metadata,
    )


def _now() -> int:
    return time.time_ns() // 1_000_000


def _pause(attempt: int) -> float:
    # Full jitter: writers that met once should not meet again.
    return random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt))  # noqa: S311 - no secret
