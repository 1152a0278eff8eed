"""``LogSnapshot``: what the log says about a version, with its final protocol and metadata."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar

import msgspec

from lazydelta.errors import CorruptLogError, LazyDeltaError
from lazydelta.log.checkpoint.columns import StatsWanted
from lazydelta.log.checkpoint.reader import checkpoint_actions, current_checkpoint, is_curable
from lazydelta.log.checksum.reader import VersionChecksum, read_checksum
from lazydelta.log.commits import CommitCache
from lazydelta.log.hint import HINT_PATH, CheckpointHint, read_hint
from lazydelta.log.replay import KEY_MEMORY, LEAST_PARALLELISM, ReplayedTails, TailCommit, TailReader, is_small
from lazydelta.log.segment import WINDOW, LogSegment, load_segment
from lazydelta.log.tail_spans import LogBase, PendingState, TailSpans
from lazydelta.protocol.actions import DomainMetadata, LogLine, Metadata, Protocol, Txn
from lazydelta.protocol.features import check_readable, column_mapping_mode
from lazydelta.protocol.file_names import LOG, LogFile, checksum_name, commit_name
from lazydelta.protocol.schema import TableSchema
from lazydelta.runtime.cache import ByteLru
from lazydelta.runtime.metrics import span
from lazydelta.storage import IoCounters, Store

__all__ = [
    "Charge",
    "LogSnapshot",
    "OpeningCost",
    "ScannedBase",
    "load_snapshot",
    "open_snapshot",
    "shipped",
]


# ``FeatureTripwire``: detect protocol and metadata changes in the tail.


T = TypeVar("T")


class TailChange(msgspec.Struct, frozen=True):
    """A ``protocol`` or ``metaData`` action found in the tail."""

    action: str
    version: int


class FeatureTripwire(msgspec.Struct):
    """The newest protocol and metadata seen so far, where they were found, and the changes seen on the way.

    Without a checksum at V, only the tail shows whether the checkpoint's protocol and metadata still apply. The
    tripwire reads the tail newest first, before any file is emitted, and keeps the newest of each. ``commitInfo``,
    ``txn``, ``cdc`` and ``domainMetadata`` do not affect files and do not trip it.
    """

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    origin: str = ""
    changes: list[TailChange] = msgspec.field(default_factory=list)

    def settled(self) -> bool:
        """Return whether both are known, so that older commits need not be read."""
        return self.protocol is not None and self.metadata is not None

    def watch(self, lines: Iterable[LogLine], file: LogFile) -> None:
        """Process all actions of one commit, in order: the last action of a commit counts."""
        protocol: msgspec.Raw | None = None
        metadata: msgspec.Raw | None = None
        for line in lines:
            # Copy, because a line keeps the whole chunk that it was read from alive.
            protocol = line.protocol.copy() if line.has("protocol") else protocol
            metadata = line.meta_data.copy() if line.has("meta_data") else metadata
        # The actions of version 0 create the table; they are not a change.
        if protocol is not None and file.version > 0:
            self.changes.append(TailChange("protocol", file.end))
        if metadata is not None and file.version > 0:
            self.changes.append(TailChange("metaData", file.end))
        self.fill_from(protocol, metadata, file)

    def fill_from(self, protocol: msgspec.Raw | None, metadata: msgspec.Raw | None, file: LogFile) -> None:
        """Fill in what is still unknown from the actions of a file."""
        self.fill(
            None if protocol is None or self.protocol is not None else _decoded(protocol, Protocol, "protocol", file),
            None if metadata is None or self.metadata is not None else _decoded(metadata, Metadata, "metaData", file),
            file.path,
        )

    def fill(self, protocol: Protocol | None, metadata: Metadata | None, origin: str) -> None:
        """Fill in what is still unknown."""
        self.protocol = self.protocol or protocol
        if self.metadata is None and metadata is not None:
            self.metadata, self.origin = metadata, origin


def _decoded(raw: msgspec.Raw, kind: type[T], name: str, file: LogFile) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        message = f"{file.path} holds a {name} action that cannot be decoded: {error}"
        hint = "the file is damaged or was not written by a Delta writer"
        raise CorruptLogError(message, path=file.path, version=file.version, hint=hint) from error


# ``OpeningCost``: the cost of pinning a version, charged to its first scan.


class Charge(msgspec.Struct, frozen=True):
    """Milliseconds, requests, bytes and commits of the tail."""

    ms: float = 0.0
    requests: int = 0
    bytes_read: int = 0
    commits: int = 0


class OpeningCost:
    """Measures the cost of opening a table; only the first scan is charged, because later ones reuse the version."""

    def __init__(self) -> None:
        self.io = IoCounters()
        self.commits = 0
        self.ms = 0.0
        self._began = time.perf_counter()
        self._charged = False
        self._lock = Lock()

    def opened(self) -> None:
        """Record that the version is pinned."""
        self.ms = round((time.perf_counter() - self._began) * 1000, 3)

    def charge(self) -> Charge:
        """Return the cost of opening on the first call, and zero from then on."""
        with self._lock:
            if self._charged:
                return Charge()
            self._charged = True
        return Charge(self.ms, self.io.requests, self.io.bytes_read, self.commits)


class ScannedBase:
    """What scans read in place of a snapshot's checkpoint; decided by the first one that gets there; thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: tuple[LogSegment, TailSpans] | None = None

    def of(self, snapshot: LogSnapshot, choose: Callable[[LogSnapshot], LogSnapshot | None]) -> LogSnapshot:
        """Return the snapshot with the segment that ``choose`` selected first; None means that it could not choose."""
        with self._lock:
            if self._known is None:
                chosen = choose(snapshot)
                if chosen is None:
                    return snapshot
                self._known = chosen.segment, chosen.spans
            segment, spans = self._known
        return msgspec.structs.replace(snapshot, segment=segment, spans=spans)


class LogSnapshot(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Everything about a version except its files and its table (see ``sidecar.handle.Snapshot``).

    ``checksum`` is the checksum of exactly this version, if it exists. ``changes`` are the protocol and metadata
    actions found in the tail, newest first; there are none if a checksum provides both. ``mirrored`` is true if the
    state came from what mirrors the checkpoint.
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
    scanned_base: ScannedBase = msgspec.field(default_factory=ScannedBase)
    replayed_tails: ReplayedTails = msgspec.field(default_factory=ReplayedTails)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        # Caches and counters are not pickled. The other process reads the same objects by name. It does not list the
        # log again, because a different checkpoint may exist by then.
        return (
            shipped,
            (self.store, self.segment, self.protocol, self.metadata, self.checksum, self.changes, self.parallelism),
        )

    @property
    def version(self) -> int:
        """Return V."""
        return self.segment.version

    def transaction_version(self, app_id: str) -> int | None:
        """Return the last version of the application, None if it never wrote."""
        if self.checksum is not None and self.checksum.set_transactions is not None:
            return next((txn.version for txn in self.checksum.set_transactions if txn.app_id == app_id), None)
        for line in self._newest_first("txn"):
            if line.txn is not None and line.txn.app_id == app_id:
                return line.txn.version
        return None

    def transactions(self) -> list[Txn]:
        """Return the last version of every application."""
        if self.checksum is not None and self.checksum.set_transactions is not None:
            return list(self.checksum.set_transactions)
        return list(self._replayed[0].values())

    def domains(self) -> list[DomainMetadata]:
        """Return the active metadata domains."""
        if self.checksum is not None and self.checksum.domain_metadata is not None:
            return [each for each in self.checksum.domain_metadata if not each.removed]
        return [each for each in self._replayed[1].values() if not each.removed]

    @cached_property
    def _replayed(self) -> tuple[dict[str, Txn], dict[str, DomainMetadata]]:
        """Return the newest action of each application and domain; a checkpoint and its checksum need both."""
        applications: dict[str, Txn] = {}
        domains: dict[str, DomainMetadata] = {}
        for line in self._newest_first("txn", "domainMetadata"):
            if line.txn is not None:
                applications.setdefault(line.txn.app_id, line.txn)
            if line.domain_metadata is not None:
                domains.setdefault(line.domain_metadata.domain, line.domain_metadata)
        return applications, domains

    def with_current_checkpoint(self, error: LazyDeltaError) -> LogSnapshot:
        """Return the same version on top of the checkpoint that replaced this one; raise ``error`` if none did."""
        checkpoint = self.segment.checkpoint
        paths = () if checkpoint is None else [file.path for file in checkpoint.files]
        if checkpoint is None or error.path not in paths or not is_curable(error):
            raise error
        current = current_checkpoint(self.store, self.segment, checkpoint, error)
        commits = tuple(each for each in self.segment.commits if each.version > current.version)
        return msgspec.structs.replace(
            self, segment=msgspec.structs.replace(self.segment, checkpoint=current, commits=commits)
        )

    def _newest_first(self, *kinds: str) -> Iterator[LogLine]:
        """Yield ``txn`` or ``domainMetadata``, newest first: the tail's commits backwards, then the checkpoint."""
        for commit in self.tail(spans=True, files_too=False):
            noted = [
                line
                for lines in commit.actions
                for line in lines
                if line.txn is not None or line.domain_metadata is not None
            ]
            yield from reversed(noted)
        yield from checkpoint_actions(self.store, self.segment, *kinds)

    def tail(
        self,
        store: Store | None = None,
        key_memory: int = KEY_MEMORY,
        *,
        whole: bool = False,
        spans: bool = False,
        wanted: StatsWanted | None = None,
        files_too: bool = True,
    ) -> TailReader:
        """Return a reader over the tail, newest first; ``store`` replaces the snapshot's own, with its own counters.

        ``key_memory`` bounds the memory for checking a compaction. ``whole`` says that all of the tail will be read.
        ``spans`` allows runs of commits to come as rows, with the statistics ``wanted``, for callers that need only the
        fields that a scan uses. Without ``files_too``, actions on files may be left out.
        """
        if spans:
            self.spans.found(store or self.store, self.segment, self.commits.prefetch)
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
            files_too=files_too,
        )


def shipped(
    store: Store,
    segment: LogSegment,
    protocol: Protocol,
    metadata: Metadata,
    checksum: VersionChecksum | None,
    changes: tuple[TailChange, ...],
    parallelism: int | None,
) -> LogSnapshot:
    """Return a snapshot that another process described."""
    schema = _schema_of(metadata, protocol, origin="the table's metadata")
    return LogSnapshot(store, segment, protocol, metadata, schema, checksum, changes, parallelism=parallelism)


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
    opening: OpeningCost | None = None,
    spans: TailSpans | None = None,
) -> LogSnapshot:
    """Resolve protocol and metadata: from the checksum, else the commits after it, else the tail and the checkpoint.

    The base of ``spans`` replaces the checkpoint if it is verified; it is read in parallel with the tail.
    """
    cache = CommitCache() if cache is None else cache
    opening = OpeningCost() if opening is None else opening
    spans = TailSpans() if spans is None else spans
    tripwire = FeatureTripwire()
    file = segment.checksum
    checksum = None if file is None else read_checksum(store, file, cache)
    mirrored = False
    tail = TailReader(store, segment, parallelism=parallelism, cache=cache, whole=True, spans=spans, files_too=False)
    if file is not None and checksum is not None:
        if file.version < segment.version:
            opening.commits += _watch(tripwire, tail.uncovered(file.version))
        tripwire.fill(checksum.protocol, checksum.metadata, file.path)
    else:
        state: PendingState | None = None
        if spans.base is not None and segment.checkpoint is not None:
            state = spans.base.begin_state(store, segment.checkpoint, cache.prefetch)
        opening.commits += _watch(tripwire, tail.uncovered(segment.base_version))
        mirrored = _ask_checkpoint(tripwire, store, segment, state)
    protocol, metadata = tripwire.protocol, tripwire.metadata
    if protocol is None or metadata is None:
        raise _absent(segment, "protocol" if protocol is None else "metaData")
    if spans.reject_strangers(metadata.id):
        # The skipped spans belonged to another table: read the commits themselves.
        return load_snapshot(
            store,
            segment,
            has_log_tail=has_log_tail,
            parallelism=parallelism,
            cache=cache,
            opening=opening,
            spans=spans,
        )
    check_readable(protocol, metadata, has_log_tail=has_log_tail, path=tripwire.origin)
    return LogSnapshot(
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
    """Read commits until both are known, and return how many were read."""
    count = 0
    for commit in commits:
        count += 1 + commit.file.end - commit.file.version
        # A commit of a million adds is streamed; only the few relevant lines are kept.
        tripwire.watch((line for lines in commit.actions for line in lines if line.describes_table()), commit.file)
        if tripwire.settled():
            break
    return count


def _ask_checkpoint(
    tripwire: FeatureTripwire, store: Store, segment: LogSegment, state: PendingState | None = None
) -> bool:
    """Read what the tail does not have, and return whether it came from what mirrors the checkpoint."""
    if segment.checkpoint is None or tripwire.settled():
        return False
    if state is not None and (mirrored := state()) is not None:
        tripwire.fill(mirrored.protocol, mirrored.metadata, mirrored.path)
        return True
    # Actions that the tail has superseded are not read, so they may be invalid.
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


# Open a snapshot in as few round trips as the log allows.


logger = logging.getLogger(__name__)

PREFETCHED_VERSIONS = 10
_HINT_BYTES = 200
_SNAPSHOT_BYTES = 50_000


def open_snapshot(  # noqa: PLR0913 - keyword-only but for the store
    store: Store,
    *,
    version: int | None = None,
    log_tail: Sequence[LogFile] | None = None,
    parallelism: int | None = None,
    window: int = WINDOW,
    remembered: ByteLru | None = None,
    max_staleness: float = 0.0,
    base: LogBase | None = None,
    scan_follows: bool = False,
    prefetched: int = PREFETCHED_VERSIONS,
    known: LogSnapshot | None = None,
) -> LogSnapshot:
    """Pin ``version`` (or the newest) and resolve its protocol and metadata.

    ``log_tail`` holds the commits that a catalog has ratified; it is empty if all of them are published, and None means
    no catalog. ``base`` locates a copy of the checkpoint's state, which is prefetched, and spans that replace commits
    of a long tail. The newest commits are prefetched if ``scan_follows``. ``prefetched`` is how many versions after the
    hint are requested before it is known whether they exist: a commit each, and a checksum if the hint has one.
    Large commits that ``known`` has read are not read again.
    """
    newest = version is None and log_tail is None
    if newest and remembered is not None and max_staleness > 0:
        last: tuple[float, LogSnapshot] | None = remembered.get(("snapshot", store.identity))
        if last is not None and time.monotonic() - last[0] <= max_staleness:
            return msgspec.structs.replace(last[1], store=store)
    with span("open", store.uri):
        snapshot, hint = _opened(
            store,
            version,
            log_tail,
            parallelism=parallelism,
            window=window,
            remembered=remembered,
            base=base,
            scan_follows=scan_follows,
            prefetched=prefetched,
            known=known,
        )
    if newest and remembered is not None:
        _remember(remembered, store, snapshot, hint)
    return snapshot


def _opened(  # noqa: PLR0913 - the arguments of open_snapshot
    store: Store,
    version: int | None,
    log_tail: Sequence[LogFile] | None,
    *,
    parallelism: int | None,
    window: int,
    remembered: ByteLru | None,
    base: LogBase | None,
    scan_follows: bool,
    prefetched: int,
    known: LogSnapshot | None,
) -> tuple[LogSnapshot, CheckpointHint | None]:
    newest = version is None and log_tail is None
    opening = OpeningCost()
    counted = store.with_counters(opening.io)
    hint, is_known = _hint(counted, remembered)
    cache = CommitCache(store.identity, remembered)
    if known is not None:
        cache.others |= known.commits.others
    beside = list(base.state_paths(store, hint.version)) if base is not None and hint is not None else []
    if store.is_remote and hint is not None and newest:
        cache.prefetch.request(counted, beside if is_known else [*_predicted_paths(hint, prefetched), *beside])
    try:
        with span("list", store.uri):
            segment = load_segment(counted, version=version, hint=hint, log_tail=log_tail or (), window=window)
        if newest and not is_known:
            _compare_hint(segment, hint)
        cache.prefetch.keep_only({*_wanted_paths(segment), *(beside if _is_at(segment, hint) else ())})
        if store.is_remote and base is not None:
            base.prefetch_spans(counted, segment, cache.prefetch)
        if store.is_remote and scan_follows:
            _prefetch_newest(counted, segment, cache, parallelism)
        snapshot = load_snapshot(
            counted,
            segment,
            has_log_tail=log_tail is not None,
            parallelism=parallelism,
            cache=cache,
            opening=opening,
            spans=TailSpans(base),
        )
    except BaseException:
        cache.prefetch.keep_only(())
        raise
    opening.opened()
    return msgspec.structs.replace(snapshot, store=store), hint


def _hint(store: Store, remembered: ByteLru | None) -> tuple[CheckpointHint | None, bool]:
    known: CheckpointHint | None = None if remembered is None else remembered.get(("hint", store.identity))
    return (read_hint(store), False) if known is None else (known, True)


def _remember(remembered: ByteLru, store: Store, snapshot: LogSnapshot, hint: CheckpointHint | None) -> None:
    remembered.put(("snapshot", store.identity), (time.monotonic(), snapshot), _SNAPSHOT_BYTES)
    checkpoint = snapshot.segment.checkpoint
    if checkpoint is None:
        remembered.remove(("hint", store.identity))
    elif hint is None or hint.version != checkpoint.version:
        remembered.put(("hint", store.identity), CheckpointHint(version=checkpoint.version), _HINT_BYTES)
    else:
        remembered.put(("hint", store.identity), hint, _HINT_BYTES)


def _is_at(segment: LogSegment, hint: CheckpointHint | None) -> bool:
    return hint is not None and segment.base_version == hint.version


def _compare_hint(segment: LogSegment, hint: CheckpointHint | None) -> None:
    """Log a hint that is out of date: the listing starts there, so an older hint costs more."""
    if segment.checkpoint is None:
        return
    found = segment.base_version
    if hint is None:
        logger.info(
            "%s is missing, and the log was listed from its beginning: the newest checkpoint is %d", HINT_PATH, found
        )
    elif hint.version != found:
        logger.info("%s is out of date: it names checkpoint %d, and the newest is %d", HINT_PATH, hint.version, found)


def _predicted_paths(hint: CheckpointHint, prefetched: int) -> list[str]:
    versions = range(hint.version + 1, hint.version + 1 + prefetched)
    # Writers of version checksums put a checksum into the hint as well; others would only be asked for nothing.
    names = (commit_name,) if hint.checksum is None else (commit_name, checksum_name)
    return [f"{LOG}/{name(version)}" for name in names for version in versions]


def _wanted_paths(segment: LogSegment) -> set[str]:
    files = [*segment.tail(), *segment.commits, *([segment.checksum] if segment.checksum else [])]
    # Larger files are streamed in turn.
    return {file.path for file in files if is_small(file)}


def _prefetch_newest(store: Store, segment: LogSegment, cache: CommitCache, parallelism: int | None) -> None:
    """Prefetch the commits that a scan starts with, in parallel with the checksum that holds the rest."""
    if segment.checksum is None or segment.checksum.version != segment.version:
        return  # they are read next anyway
    newest = segment.tail()[-(parallelism or LEAST_PARALLELISM) :]
    wanted = [file for file in reversed(newest) if is_small(file) and cache.known(file.path, file.info.etag) is None]
    cache.prefetch.request(store, [file.path for file in wanted])
