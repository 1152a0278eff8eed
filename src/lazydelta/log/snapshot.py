"""``Snapshot``: a pinned version with the protocol and metadata that are final for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from lazydelta.errors import CorruptLogError, LazyDeltaError
from lazydelta.log.actions import DomainMetadata, LogLine, Metadata, Protocol, Txn
from lazydelta.log.checkpoint.checkpoint_columns import StatsWanted
from lazydelta.log.checkpoint_mirror import CheckpointMirror, PendingState
from lazydelta.log.checksum import VersionChecksum, read_checksum
from lazydelta.log.commit_cache import CommitCache
from lazydelta.log.compactions import KEY_MEMORY, TailReader
from lazydelta.log.features import check_readable, column_mapping_mode
from lazydelta.log.opening_cost import OpeningCost
from lazydelta.log.replaced import checkpoint_actions, current_checkpoint, is_curable
from lazydelta.log.reverse_commits import TailCommit
from lazydelta.log.segment import LogSegment
from lazydelta.log.tail_spans import TailSpans
from lazydelta.log.tripwire import FeatureTripwire, TailChange
from lazydelta.storage import Store
from lazydelta.types.schema import TableSchema

__all__ = ["Snapshot", "load_snapshot"]


class Snapshot(msgspec.Struct, frozen=True, eq=False):
    """Everything about a version but its files.

    ``checksum`` is the one of exactly this version, if there is one. ``changes`` are the protocol and metadata actions
    that had to be looked for in the tail, newest first; where a checksum settles both there are none. ``mirrored`` says
    that what lies beside the checkpoint was believed in its place.
    """

    store: Store
    segment: LogSegment
    protocol: Protocol
    metadata: Metadata
    schema: TableSchema
    checksum: VersionChecksum | None = None
    changes: tuple[TailChange, ...] = ()
    mirrored: bool = False
    commits: CommitCache = msgspec.field(default_factory=CommitCache)
    parallelism: int | None = None
    opening: OpeningCost = msgspec.field(default_factory=OpeningCost)
    spans: TailSpans = msgspec.field(default_factory=TailSpans)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        # What the process has read and counted of it stays behind. The other process asks for the same objects by the
        # same names, and does not list the log again: it may have another checkpoint by then.
        return (
            _shipped,
            (self.store, self.segment, self.protocol, self.metadata, self.checksum, self.changes, self.parallelism),
        )

    @property
    def version(self) -> int:
        """Return V."""
        return self.segment.version

    def transaction_version(self, app_id: str) -> int | None:
        """Return how far the application has come, None if it never wrote."""
        if self.checksum is not None and self.checksum.set_transactions is not None:
            return next((txn.version for txn in self.checksum.set_transactions if txn.app_id == app_id), None)
        for line in self._newest_first("txn"):
            if line.txn is not None and line.txn.app_id == app_id:
                return line.txn.version
        return None

    def transactions(self) -> list[Txn]:
        """Return how far every application has come."""
        if self.checksum is not None and self.checksum.set_transactions is not None:
            return list(self.checksum.set_transactions)
        found: dict[str, Txn] = {}
        for line in self._newest_first("txn"):
            if line.txn is not None:
                found.setdefault(line.txn.app_id, line.txn)
        return list(found.values())

    def domains(self) -> list[DomainMetadata]:
        """Return the live metadata domains."""
        if self.checksum is not None and self.checksum.domain_metadata is not None:
            return [each for each in self.checksum.domain_metadata if not each.removed]
        found: dict[str, DomainMetadata] = {}
        for line in self._newest_first("domainMetadata"):
            if line.domain_metadata is not None:
                found.setdefault(line.domain_metadata.domain, line.domain_metadata)
        return [each for each in found.values() if not each.removed]

    def with_current_checkpoint(self, error: LazyDeltaError) -> Snapshot:
        """Return the same version over the checkpoint that replaced ours; raise ``error`` if none did."""
        checkpoint = self.segment.checkpoint
        paths = () if checkpoint is None else [file.path for file in checkpoint.files]
        if checkpoint is None or error.path not in paths or not is_curable(error):
            raise error
        current = current_checkpoint(self.store, self.segment, checkpoint, error)
        commits = tuple(each for each in self.segment.commits if each.version > current.version)
        return msgspec.structs.replace(
            self, segment=msgspec.structs.replace(self.segment, checkpoint=current, commits=commits)
        )

    def _newest_first(self, action: str) -> Iterator[LogLine]:
        """Yield the actions of a kind, newest first: the commits of the tail from their ends, then the checkpoint."""
        field = {"txn": "txn", "domainMetadata": "domain_metadata"}[action]
        for commit in self.tail(spans=True):
            lines = [line for lines in commit.actions for line in lines if getattr(line, field) is not None]
            yield from reversed(lines)
        yield from checkpoint_actions(self.store, self.segment, action)

    def tail(
        self,
        store: Store | None = None,
        key_memory: int = KEY_MEMORY,
        *,
        whole: bool = False,
        spans: bool = False,
        wanted: StatsWanted | None = None,
    ) -> TailReader:
        """Return a reader over the tail, newest first; ``store`` counts its requests elsewhere.

        ``key_memory`` bounds what it takes to check a compaction; ``whole`` says that all of it will be wanted.
        ``spans`` lets runs of commits come as rows, with the statistics ``wanted``, for those who need no more of an
        action than a scan does.
        """
        if spans:
            self.spans.found(store or self.store, self.segment, self.commits.ahead)
            self.spans.reject_strangers(self.metadata.id)
        return TailReader(
            store or self.store,
            self.segment,
            parallelism=self.parallelism,
            cache=self.commits,
            key_memory=key_memory,
            whole=whole,
            spans=self.spans if spans else None,
            wanted=wanted,
        )


def _shipped(
    store: Store,
    segment: LogSegment,
    protocol: Protocol,
    metadata: Metadata,
    checksum: VersionChecksum | None,
    changes: tuple[TailChange, ...],
    parallelism: int | None,
) -> Snapshot:
    schema = _schema_of(metadata, protocol, origin="the table's metadata")
    return Snapshot(store, segment, protocol, metadata, schema, checksum, changes, parallelism=parallelism)


def _schema_of(metadata: Metadata, protocol: Protocol, origin: str) -> TableSchema:
    return TableSchema.parse(
        metadata.schema_string,
        partition_columns=metadata.partition_columns,
        column_mapping=column_mapping_mode(metadata, protocol),
        origin=origin,
    )


def load_snapshot(
    store: Store,
    segment: LogSegment,
    *,
    has_log_tail: bool = False,
    parallelism: int | None = None,
    cache: CommitCache | None = None,
    mirror: CheckpointMirror | None = None,
    opening: OpeningCost | None = None,
    spans: TailSpans | None = None,
) -> Snapshot:
    """Settle protocol and metadata: from the checksum, else the commits after it, else the tail and the checkpoint.

    In place of the checkpoint its ``mirror`` serves, where it is proven to be one; it is read beside the tail.
    """
    cache = CommitCache() if cache is None else cache
    opening = OpeningCost() if opening is None else opening
    spans = TailSpans() if spans is None else spans
    tripwire = FeatureTripwire()
    file = segment.checksum
    checksum = None if file is None else read_checksum(store, file, cache)
    mirrored = False
    tail = TailReader(store, segment, parallelism=parallelism, cache=cache, whole=True, spans=spans)
    if file is not None and checksum is not None:
        if file.version < segment.version:
            opening.commits += _watch(tripwire, tail.uncovered(file.version))
        tripwire.fill(checksum.protocol, checksum.metadata, file.path)
    else:
        state: PendingState | None = None
        if mirror is not None and segment.checkpoint is not None:
            state = mirror.begin(store, segment.checkpoint, cache.ahead)
        opening.commits += _watch(tripwire, tail.uncovered(segment.base_version))
        mirrored = _ask_checkpoint(tripwire, store, segment, state)
    protocol, metadata = tripwire.protocol, tripwire.metadata
    if protocol is None or metadata is None:
        raise _absent(segment, "protocol" if protocol is None else "metaData")
    if spans.reject_strangers(metadata.id):
        # What was passed by was no part of this table: look again, at the commits themselves.
        return load_snapshot(
            store,
            segment,
            has_log_tail=has_log_tail,
            parallelism=parallelism,
            cache=cache,
            mirror=mirror,
            opening=opening,
            spans=spans,
        )
    check_readable(protocol, metadata, has_log_tail=has_log_tail, path=tripwire.origin)
    return Snapshot(
        store=store,
        segment=segment,
        protocol=protocol,
        metadata=metadata,
        schema=_schema_of(metadata, protocol, tripwire.origin),
        checksum=checksum if file is not None and file.version == segment.version else None,
        changes=tuple(tripwire.changes),
        mirrored=mirrored,
        commits=cache,
        parallelism=parallelism,
        opening=opening,
        spans=spans,
    )


def _watch(tripwire: FeatureTripwire, commits: Iterable[TailCommit]) -> int:
    """Look at commits until both are known, and return how many it took."""
    count = 0
    for commit in commits:
        count += 1 + commit.file.end - commit.file.version
        # A commit of a million adds streams by; only the rare lines that matter are kept.
        tripwire.watch((line for lines in commit.actions for line in lines if line.describes_table()), commit.file)
        if tripwire.settled():
            break
    return count


def _ask_checkpoint(
    tripwire: FeatureTripwire, store: Store, segment: LogSegment, state: PendingState | None = None
) -> bool:
    """Ask for what the tail has not, and tell whether it came from beside the checkpoint."""
    if segment.checkpoint is None or tripwire.settled():
        return False
    if state is not None and (mirrored := state()) is not None:
        tripwire.fill(mirrored.protocol, mirrored.metadata, mirrored.path)
        return True
    # What the tail has superseded is not asked for: whatever is wrong with it does not matter any more.
    known = {"protocol": tripwire.protocol, "metaData": tripwire.metadata}
    for line in checkpoint_actions(store, segment, *(name for name in known if known[name] is None)):
        tripwire.fill_from(
            line.protocol if line.has("protocol") else None,
            line.meta_data if line.has("meta_data") else None,
            segment.checkpoint.files[0],
        )
        if tripwire.settled():
            break
    return False


def _absent(segment: LogSegment, action: str) -> CorruptLogError:
    message = f"The log has no {action} action up to version {segment.version}"
    file = segment.checkpoint.files[0] if segment.checkpoint is not None else segment.commits[0]
    hint = f"{file.path} should hold one; restore it from a backup"
    return CorruptLogError(message, path=file.path, version=segment.version, hint=hint)
