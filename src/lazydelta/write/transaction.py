"""`Transaction`: optimistic concurrency on a store with put-if-absent.

Data files are in place before the commit references them. The commit is one put-if-absent: it exists completely or not
at all, and exactly one of several writers of a version succeeds. The others read the winning commits and are rebased
onto them if there is no conflict. Their data files are reused.

After a ``WriteError`` nothing was committed. After any other error from ``commit`` it is unknown whether the commit
succeeded: `Transaction.is_ruled_out` checks the log, and data files are kept unless it is certain.
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

from lazydelta.errors import (
    CommitConflictError,
    OptionError,
    StorageError,
    TableNotFoundError,
    WriteError,
)
from lazydelta.log.checksum.writer import Change, TableTotals, state_at, write_checksum
from lazydelta.log.time_travel import commit_info
from lazydelta.predicates import Where
from lazydelta.protocol.actions import Add, Metadata, Protocol, Remove, Txn
from lazydelta.protocol.deletion_vectors import VectorFile
from lazydelta.protocol.features import check_removable, check_writable, uses_in_commit_timestamps
from lazydelta.protocol.file_names import FileKind, LogFile
from lazydelta.protocol.properties import TableProperties
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.storage.staged_files import StagedFiles
from lazydelta.write.batch_record import BATCH_FIELD, BatchRecord, check_repeat
from lazydelta.write.commit import CommitInfo, CommitLines, CommitNote, PartitionSelection, header_lines, removals
from lazydelta.write.conflicts import REFUSED, Footprint, commits_since, judge
from lazydelta.write.publication import commit_path, is_part_of_table, is_published, publish, take_back
from lazydelta.write.row_changes.choice import RowChoice

__all__ = ["CommitResult", "Transaction"]


logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 2.0
# Factor on the duration of an attempt: among a dozen writers the next attempt then meets few others.
_PAUSE_SHARE = 12


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Result of a commit.

    ``version`` is the committed version. With ``already_committed`` nothing was written, because the table already has
    the application's transaction; ``version`` is then one that has it. ``protocol`` and ``metadata`` are those in
    force. ``attempts`` counts the versions that were tried. ``timestamp`` is in epoch milliseconds.
    """

    version: int
    attempts: int
    protocol: Protocol
    metadata: Metadata
    timestamp: int | None = None
    already_committed: bool = False
    has_checksum: bool = False


class Transaction:
    """A transaction with optimistic concurrency: files first, then one put-if-absent commit.

    ``snapshot`` is the version at which the transaction began, or None if there is no table. Added files must be new to
    the table, and removed files must be active in ``snapshot``. ``batch`` describes what is committed under the
    application's transaction. If the table already has that transaction, the batch must be the same.
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
        self.metrics: Mapping[str, str | int] | None = None  # of the operation; None uses the file counts
        self._lines = CommitLines()
        self._protocol: Protocol | None = None
        self._metadata: Metadata | None = None
        self._read: list[str] = []
        self._removed: set[str] = set()
        self._overwrites_all = False
        self._selections: list[PartitionSelection] = []
        self._rows: tuple[RowChoice, bool] | None = None
        self._whole_table = False
        self._own = StagedFiles(self.store)  # written only for this transaction
        self._own.offer_to(self)
        self.notes_changes = False
        self._tried: int | None = None  # the version whose commit may be ours
        self._is_published = False
        self._since = Change()  # what the winning commits changed
        self._version = -1 if snapshot is None else snapshot.version
        self._newest = None if snapshot is None else _newest_commit(snapshot)
        self.read_version = None if snapshot is None else snapshot.version  # version that the operation read
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
        known: Snapshot | None = None,
    ) -> Transaction:
        """Pin the newest version, and refuse an unsupported table before anything is written.

        ``known`` is a snapshot of the table, which is used again if it is still the newest one.
        ``txn`` makes the transaction idempotent: if the table already has this version of the application,
        ``already_committed`` is true and ``commit`` writes nothing.
        """
        try:
            snapshot = handle.newest(known)
        except TableNotFoundError:
            return cls(handle, None, operation=operation, parameters=parameters, txn=txn)
        check_writable(snapshot.protocol, snapshot.metadata, path=handle.uri)
        TableProperties.of(snapshot.metadata)
        return cls(handle, snapshot, operation=operation, parameters=parameters, txn=txn)

    @property
    def protocol(self) -> Protocol | None:
        """The protocol in force after the commit, or None if none is set yet."""
        return self._protocol or (None if self.snapshot is None else self.snapshot.protocol)

    @property
    def metadata(self) -> Metadata | None:
        """The metadata in force after the commit, or None if none is set yet."""
        return self._metadata or (None if self.snapshot is None else self.snapshot.metadata)

    # --- staging

    def add(self, *adds: Add) -> None:
        """Add files that are in place and new to the table. They are not deleted if the commit fails."""
        self._check_open()
        self._lines.add(adds)

    def add_staged(self, staged: StagedFiles, adds: Sequence[Add]) -> None:
        """Add files that belong to this transaction, and again to ``staged`` if it is not committed."""
        staged.offer_to(self)
        self.add(*adds)

    def remove(self, *removes: Remove) -> None:
        """Remove files that are active in ``snapshot``. Missing deletion timestamps are filled in."""
        self._check_open()
        if self._overwrites_all or self._selections:
            message = "An overwriting transaction determines the files to remove itself"
            raise WriteError(message, path=self.store.uri, hint="remove single files in a separate transaction")
        if any(each.data_change for each in removes):
            self._check_removable()
        now = self.deletion_time()
        ready: list[Remove] = []
        for each in removes:
            key = f"{each.path}\0{each.deletion_vector.unique_id if each.deletion_vector else ''}"
            if key in self._removed:
                raise WriteError(f"The file {each.path} is removed twice in one transaction", path=each.path)
            self._removed.add(key)
            ready.append(_complete(each, now))
        self._lines.remove(ready)

    def deletion_time(self) -> int:
        """Return the deletion timestamp in epoch milliseconds, which is never earlier than the newest commit.

        VACUUM relies on it. With a clock that is behind, it would delete files that were removed a second ago.
        """
        segment = None if self.snapshot is None else self.snapshot.segment
        return max(_now(), segment.commits[-1].info.last_modified if segment and segment.commits else 0)

    def remove_found(self, remove: Remove) -> None:
        """Remove a file found by a scan of ``snapshot``, without the check for duplicates: there may be very many."""
        self._lines.remove([remove])

    def add_own(self, adds: Sequence[Add], changes: Sequence[Add] = ()) -> None:
        """Add files that were written only for this transaction. ``changes`` are change data files.

        They are deleted if the transaction is not committed.
        """
        self._check_open()
        self._own.stage(unquote(each.path) for each in (*adds, *changes))
        self._lines.add(adds)
        self._lines.note_changes(changes)
        self.notes_changes |= bool(changes)

    def add_vectors(self, file: VectorFile, adds: Sequence[Add]) -> None:
        """Write a file of deletion vectors, and add the data files that have them now.

        Only the file of vectors is deleted if the transaction is not committed: the data files are the table's.
        """
        self._check_open()
        self._own.stage([file.path])
        self.store.put_if_absent(file.path, file.data())
        self._lines.add(adds)

    def rest_on_rows(self, choice: RowChoice, *, any_append: bool, removes: bool = True) -> None:
        """Make the transaction conflict with concurrently added files that may hold selected rows.

        Without ``any_append`` blind appends do not conflict, unless the table requires serializable isolation. If the
        transaction ``removes`` nothing, it may read rows of an append-only table.
        """
        self._check_open()
        if removes:
            self._check_removable()
        if self.snapshot is not None:
            any_append |= TableProperties.of(self.snapshot.metadata).serializable
        self._rows = (choice, any_append)

    def rest_on_table(self) -> None:
        """Make any concurrent change of rows a conflict, whatever files it touches."""
        self._check_open()
        self._check_removable()
        self._whole_table = True

    def remove_all(self) -> None:
        """Remove every file: an overwrite of the whole table. Any concurrently added file is a conflict."""
        self._remove_selected(None)

    def remove_partitions(self, where: Where) -> None:
        """Remove the files of some partitions. ``where`` may reference partition columns only.

        Any file that another writer adds to these partitions is a conflict.
        """
        if self.snapshot is None:
            raise WriteError(
                "There is no table to overwrite partitions of", path=self.store.uri, hint="create it first"
            )
        self._remove_selected(PartitionSelection.of(where, self.snapshot.schema))

    def _remove_selected(self, selection: PartitionSelection | None) -> None:
        self._check_open()
        if self._removed or self._overwrites_all or self._selections:
            message = "A transaction may have only one overwrite, and no removes of single files"
            raise WriteError(message, path=self.store.uri, hint="combine the predicates with OR")
        self._check_removable()
        if selection is None:
            self._overwrites_all = True
        else:
            self._selections.append(selection)
        if self.snapshot is not None:
            for batch in removals(self.snapshot, self.deletion_time(), selection):
                self._lines.remove(batch)

    def read(self, *paths: str) -> None:
        """Make the transaction depend on files: a concurrent change of one of them is a conflict."""
        self._check_open()
        self._read.extend(paths)

    def set_metadata(self, metadata: Metadata) -> None:
        """Change the table's metadata in this commit."""
        self._check_open()
        if self.protocol is not None:
            check_writable(self.protocol, metadata, path=self.store.uri)
        TableProperties.of(metadata)
        self._metadata = metadata

    def set_protocol(self, protocol: Protocol) -> None:
        """Change the table's protocol in this commit."""
        self._check_open()
        if self.metadata is not None:
            check_writable(protocol, self.metadata, path=self.store.uri)
        self._protocol = protocol

    # --- committing

    def commit(self, *, max_attempts: int = 15) -> CommitResult:
        """Publish the transaction as the next version, after all concurrent commits."""
        self._check_open()
        if max_attempts < 1:
            raise OptionError(f"max_attempts={max_attempts} is not valid", hint="pass a number of at least 1")
        protocol, metadata = self._in_force()
        self._over = True
        try:
            if self.already_committed:
                self._check_repeat()
                return CommitResult(self._version, 0, protocol, metadata, already_committed=True)
            for attempt in range(1, max_attempts + 1):
                began = time.monotonic()
                if self._go_behind():
                    self._check_repeat()
                    return CommitResult(self._version, attempt, protocol, metadata, already_committed=True)
                version = self._version + 1
                info = self._info(protocol, metadata)
                data = self._encoded(info)
                self._tried = version
                try:
                    is_ours = publish(self.store, version, data, self.txn_id)
                except StorageError as error:
                    if error.is_full:
                        self._tried = None  # the disk had no room for it, and it is not there
                    raise
                if is_ours:
                    self._check_landed(version, data)
                    self._is_published = True
                    written = self._write_checksum(version, info, protocol, metadata)
                    return CommitResult(version, attempt, protocol, metadata, info.timestamp, has_checksum=written)
                self._tried = None  # the version belongs to another writer for good
                if attempt < max_attempts:
                    time.sleep(_pause(attempt, time.monotonic() - began))
            if self._go_behind():
                self._check_repeat()
                return CommitResult(self._version, max_attempts, protocol, metadata, already_committed=True)
        finally:
            self.close()
        message = f"Other writers of {self.store.uri} committed first {max_attempts} times in a row, last with version"
        raise CommitConflictError(
            f"{message} {self._version}",
            path=commit_path(self._version),
            version=self._version,
            hint="try again when fewer writers are active, or raise max_attempts",
        )

    def is_ruled_out(self) -> bool:
        """Return whether the log certainly has no commit of this transaction, and never will.

        If a commit was tried without an answer, the log is checked. If the version belongs to another writer, ours can
        no longer succeed. If it does not exist, ours may be in flight.
        """
        if self._is_published or self._tried is None:
            return not self._is_published
        found = is_published(self.store, self._tried, self.txn_id)
        if found is None:
            message = "whether version %d of %s was committed is not known, and its files stay; look for %s in its log"
            logger.warning(message, self._tried, self.store.uri, self.txn_id)
        return found is False

    def close(self) -> None:
        """Abandon the transaction. Harmless after a commit."""
        self._over = True
        self._lines.close()
        self._own.discard()
        self._own = StagedFiles(self.store)
        if self._footprint is not None:
            self._footprint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._over:
            raise WriteError("This transaction is over", path=self.store.uri, hint="begin a new transaction")

    def _check_removable(self) -> None:
        if self.snapshot is not None:
            check_removable(self.snapshot.protocol, self.snapshot.metadata, path=self.store.uri)

    def _in_force(self) -> tuple[Protocol, Metadata]:
        protocol, metadata = self.protocol, self.metadata
        if protocol is None or metadata is None:
            message = f"There is no Delta table at {self.store.uri} to commit to"
            raise WriteError(message, path=self.store.uri, hint="create the table, or set protocol and metadata first")
        if self.snapshot is not None and uses_in_commit_timestamps(protocol, metadata):
            before = uses_in_commit_timestamps(self.snapshot.protocol, self.snapshot.metadata)
            if not before:
                message = "In-commit timestamps cannot be enabled for an existing table"
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
        rests_on = self._read or self._rows or self._overwrites_all or self._selections or self._whole_table
        rests_on_nothing = not (rests_on or totals.removed)
        batch = {} if self._txn is None or self.batch is None else {BATCH_FIELD: self.batch.body()}
        return CommitInfo(
            txn_id=self.txn_id,
            operation=self._operation,
            parameters={**self.note.parameters, **self.parameters},
            timestamp=now,
            in_commit_timestamp=stamp,
            is_blind_append=rests_on_nothing and totals.added > 0,
            read_version=self.read_version,
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
        file = _newest_commit(self.snapshot)
        stamp = None if file is None else commit_info(self.store, file).get("inCommitTimestamp")
        # Only a commit that violates the protocol has none. The modification time is the best alternative.
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
        """Rebase onto concurrent commits, or raise on a conflict. Return whether one of them was our transaction.

        The same listing shows that the next version was not taken and freed again by a cleanup.
        """
        before: list[LogFile] = []
        winners = commits_since(self.store, self._version, before=before)
        self._check_table(before)
        if not winners:
            return False
        change, conflict = judge(self.store, winners, self._rests_on())
        self._since.then(change)
        self._version, self._newest = winners[-1].version, winners[-1]
        # The other writer may have been an earlier attempt of this application. That is a success, not a conflict.
        mine = None if self._txn is None else self._since.transactions.get(self._txn.app_id)
        if mine is not None and self._txn is not None and mine.version >= self._txn.version:
            return True
        if conflict is not None:
            raise conflict
        self.note.check_winners(change.transactions, self.store.uri)
        return False

    def _check_table(self, listed: Sequence[LogFile]) -> None:
        """Refuse to commit to another table that was made at the same place since this one was read."""
        now, then = next((each for each in listed if each.kind is FileKind.COMMIT), None), self._newest
        if now is None or then is None or self.snapshot is None or now.info == then.info:
            return
        # The file may have been copied or touched. The id tells.
        if self.handle.snapshot(self._version).metadata.id != self.snapshot.metadata.id:
            message = f"Another table was created at {self.store.uri} since this operation read version {self._version}"
            raise CommitConflictError(message, path=now.path, version=self._version, hint=REFUSED)

    def _check_landed(self, version: int, data: bytes) -> None:
        """Refuse a commit at a version that a log cleanup freed after our listing: no reader would see it."""
        if is_part_of_table(self.store, version, data):
            return
        take_back(self.store, version)
        self._tried = None
        message = (
            f"The log of {self.store.uri} was checkpointed and cleaned up above version {version} while this operation "
            "was committed; its commit was not part of the table and was taken back"
        )
        raise CommitConflictError(message, path=commit_path(version), version=version, hint=REFUSED)

    def _rests_on(self) -> Footprint:
        # Created when the first race is lost, because most transactions lose none.
        if self._footprint is None:
            self._footprint = Footprint(
                overwrites_all=self._overwrites_all,
                selections=self._selections,
                rows=self._rows,
                whole_table=self._whole_table,
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
            # The commit exists and will be acknowledged. An error here must not make it look failed.
            logger.exception("the checksum of version %d was not written", version)
            return False

    def _state(self) -> TableTotals | None:
        """Return the totals of the version just committed."""
        totals = self._lines.totals
        own = Change(
            files=totals.added - totals.removed,
            size=totals.added_bytes - totals.removed_bytes,
            exact=totals.sizes_known,
            transactions={each.app_id: each for each in (*self.note.transactions, self._txn) if each is not None},
        )
        before = TableTotals() if self.snapshot is None else state_at(self.snapshot)
        before = None if before is None else before.after(self._since)
        if self._overwrites_all and self.snapshot is not None:
            # Everything was removed, so the totals are known even if the previous totals were not.
            own = Change(files=totals.added, size=totals.added_bytes, transactions=own.transactions)
            lists = (None, None) if before is None else (before.transactions, before.domains)
            before = TableTotals(0, 0, *lists)
        return None if before is None else before.after(own)


def _newest_commit(snapshot: Snapshot) -> LogFile | None:
    segment = snapshot.segment
    return segment.commits[-1] if segment.commits else segment.checkpoint_commit


def _complete(remove: Remove, now: int) -> Remove:
    extended = remove.size is not None and remove.partition_values is not None
    return msgspec.structs.replace(
        remove,
        deletion_timestamp=now if remove.deletion_timestamp is None else remove.deletion_timestamp,
        extended_file_metadata=True if extended else remove.extended_file_metadata,
    )


def _now() -> int:
    return time.time_ns() // 1_000_000


def _pause(attempt: int, took: float) -> float:
    """Return the pause after an attempt that lost the race and took ``took`` seconds.

    Jitter keeps colliding writers apart. One writer wins every race, so longer pauses do not help the others: a writer
    that lost more often waits less, and does not starve.
    """
    return random.uniform(0, min(_LONGEST_PAUSE, _PAUSE_SHARE * took) / attempt)  # noqa: S311 - not a secret
