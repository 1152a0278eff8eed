"""Log replay: reduce the tail to its active files, and to the keys that mask the checkpoint."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from threading import Lock

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.errors import CorruptLogError, LogError, MissingCommitError, ObjectNotFoundError, StorageError
from lazydelta.log.checkpoint.columns import StatsWanted
from lazydelta.log.commits import CHUNK_SIZE, CommitCache, decode_whole, read_actions
from lazydelta.log.file_batch import FileBatch, deletion_vector_array
from lazydelta.log.keys import Hashes, RemoveSet, first_occurrence, hash_bytes, hash_keys
from lazydelta.log.segment import LogSegment
from lazydelta.log.tail_spans import SpanError, SpanReader, SpanRows, TailSpan, TailSpans
from lazydelta.protocol.actions import Add, LogLine, Remove
from lazydelta.protocol.file_names import FileKind, LogFile
from lazydelta.runtime.arrays import boolean_array, string_array
from lazydelta.runtime.metrics import ScanMetrics
from lazydelta.runtime.threads import check_complete
from lazydelta.storage import ObjectInfo, Pending, Store

__all__ = [
    "KEY_MEMORY",
    "LEAST_PARALLELISM",
    "ReplayedTails",
    "ReverseCommitReader",
    "TailCommit",
    "TailReader",
    "action_keys",
    "active_tail_files",
    "is_small",
    "read_in_order",
    "unmasked",
    "unmasked_stretches",
]


# ``ReverseCommitReader``: fetch the commits since the checkpoint in parallel, newest first.


LEAST_PARALLELISM = 10
MOST_PARALLELISM = 192
_BYTES_UNDER_WAY = 8 << 20
_LISTED_AHEAD = 128
_OTHERS_KEPT = 64


class TailCommit(msgspec.Struct, frozen=True):
    """A commit (or compaction) whose actions are decoded lazily.

    For a span of commits read from an external copy, ``rows`` are the file actions and ``actions`` are all others.
    """

    file: LogFile
    actions: Iterator[list[LogLine]]
    rows: Iterator[SpanRows] | None = None


class ReverseCommitReader:
    """Reads the given log files from the last to the first.

    At most ``parallelism`` requests are in flight or waiting to be consumed. No request starts before the consumer asks
    for a commit, so a consumer that stops after the newest commit pays for one round. Commits larger than a chunk are
    streamed in turn, so memory is bounded whatever the size of the commits. Set ``whole`` if all commits will be read.
    Without ``files_too``, their actions on files are left out.

    More requests in flight mean fewer round trips for a long tail, but more wasted requests if the consumer stops
    early. With ``parallelism`` None, the window therefore starts at ten and grows by one per consumed commit, which
    doubles it every round; with ``whole`` it starts at its largest size. Above ten, bytes in flight are bounded as
    well.
    """

    def __init__(
        self,
        store: Store,
        files: Sequence[LogFile],
        *,
        parallelism: int | None = None,
        cache: CommitCache | None = None,
        whole: bool = False,
        files_too: bool = True,
    ) -> None:
        self._store = store
        self._files_too = files_too
        self._promised = len(files)
        self._waiting = deque(reversed(files))
        self._started: deque[tuple[LogFile, Pending[bytes] | bytes | None]] = deque()
        self._least = LEAST_PARALLELISM if parallelism is None else parallelism
        self._most = MOST_PARALLELISM if parallelism is None else parallelism
        self._width = self._most if whole else self._least
        self._under_way = 0
        self._cache = cache

    def __iter__(self) -> Iterator[TailCommit]:
        delivered = 0
        try:
            while self._waiting or self._started:
                while self._waiting and self._has_room(self._waiting[0]):
                    self._start(self._waiting.popleft())
                file, fetched = self._started.popleft()
                self._under_way -= _held(file)
                self._width = min(self._width + 1, self._most)
                yield TailCommit(file, self._decode(file, fetched))
                delivered += 1
            check_complete("commits", promised=self._promised, delivered=delivered)
        finally:
            self.close()

    def close(self) -> None:
        """Cancel the requests that are still in flight."""
        self._waiting.clear()
        while self._started:
            _, fetched = self._started.popleft()
            if fetched is not None and not isinstance(fetched, bytes):
                fetched.cancel()

    def _has_room(self, file: LogFile) -> bool:
        count = len(self._started)
        return count < self._least or (count < self._width and self._under_way + _held(file) <= _BYTES_UNDER_WAY)

    def _start(self, file: LogFile) -> None:
        self._under_way += _held(file)
        fetched: Pending[bytes] | bytes | None = None
        if is_small(file):
            fetched = self._cache.get(file.path, file.info.etag) if self._cache is not None else None
            if fetched is None:
                fetched = self._store.fetch(file.path)
        self._started.append((file, fetched))

    def _decode(self, file: LogFile, fetched: Pending[bytes] | bytes | None) -> Iterator[list[LogLine]]:
        if fetched is None:
            # A compaction is checked before it is used, which takes all of its lines.
            if self._files_too or file.kind is FileKind.COMPACTION:
                yield from read_actions(self._store, file)
            else:
                yield self._others(file)
            return
        if not isinstance(fetched, bytes):
            try:
                fetched = bytes(fetched.result())
            except ObjectNotFoundError as error:
                message = f"{file.path} was listed and is gone: the log was cleaned up or the table replaced meanwhile"
                hint = "open the table again"
                raise MissingCommitError(message, path=file.path, version=file.version, hint=hint) from error
            except StorageError as error:
                error.version = file.version
                raise
            if self._cache is not None:
                self._cache.put(file.path, fetched, file.info.etag)
        yield from decode_whole(fetched, file.path, file.version)

    def _others(self, file: LogFile) -> list[LogLine]:
        """Return what a large commit has besides files. Opening a table and reading its transactions need the same."""
        known = None if self._cache is None else self._cache.others.get(file.info)
        if known is None:
            known = [line for lines in read_actions(self._store, file, files=False) for line in lines]
            if self._cache is not None and len(known) <= _OTHERS_KEPT:
                self._cache.others[file.info] = known
        return known


def read_in_order(store: Store, files: Iterator[LogFile], *, parallelism: int | None = None) -> Iterator[TailCommit]:
    """Yield commits in the order of ``files`` with their actions, fetching the next ones in the background."""
    while some := list(islice(files, _LISTED_AHEAD)):
        reader = ReverseCommitReader(store, some[::-1], parallelism=parallelism)
        try:
            yield from reader
        finally:
            reader.close()


def is_small(file: LogFile) -> bool:
    """Return whether a commit is fetched in one request, which allows prefetching it."""
    return 0 <= file.info.size <= CHUNK_SIZE


def _held(file: LogFile) -> int:
    return file.info.size if is_small(file) else 0


_MOST_ACTIONS = 4096
_SHARE = 1 / 4
_LONG_STRETCH = 2048  # average rows between two hidden ones; slicing shorter stretches costs more than a copy
_UNKNOWN_SIZE = 64 << 10  # assumed size of a commit that a catalog named without one


def active_tail_files(
    commits: Iterable[TailCommit],
    seen: RemoveSet,
    metrics: ScanMetrics,
    *,
    extra: bool = False,
    whole: bool = False,
) -> Iterator[FileBatch]:
    """Yield the active files of the tail from its commits, newest first, and record every key in ``seen``.

    Keys are recorded before pruning, because a pruned newer add still hides the older one. Within a commit an add wins
    over a remove of the same key, so a commit's removes apply only to older commits. ``extra`` keeps all other fields
    of an ``add``, for callers that copy it.

    Building an Arrow batch, hashing it and probing ``seen`` costs half a millisecond, however few files there are.
    Small commits are therefore merged. The first one is emitted alone to keep latency low. After that, each batch holds
    up to ``_SHARE`` of the actions before it, so a consumer that stops early pays for little more than it took. A bound
    in bytes limits commits with long statistics. With ``whole`` the consumer takes all, and only these bounds apply.
    """
    joined, target, taken, held = _JoinedCommits(extra=extra), _MOST_ACTIONS if whole else 1, 0, 0
    for commit in commits:
        if commit.rows is not None:
            taken += len(joined)
            yield from joined.active(seen)
            yield from _span(commit, seen, metrics)
            metrics.remove_set_size = len(seen)
            held = 0
            continue
        metrics.count_commits(1 + commit.file.end - commit.file.version)
        lines = next(commit.actions, [])
        more = next(commit.actions, None)
        if more is None and len(lines) <= _MOST_ACTIONS:
            joined.add(lines, _version_of(commit.file), metrics)
        else:
            yield from joined.active(seen)
            yield from _large_commit(commit, [lines, *([] if more is None else [more])], seen, metrics, extra=extra)
            taken += len(lines)
        held += commit.file.info.size if commit.file.info.size >= 0 else _UNKNOWN_SIZE
        if len(joined) >= target or held >= CHUNK_SIZE:
            taken += len(joined)
            yield from joined.active(seen)
            target, held = _MOST_ACTIONS if whole else max(1, min(_MOST_ACTIONS, int(taken * _SHARE))), 0
        metrics.remove_set_size = len(seen)
    yield from joined.active(seen)
    metrics.remove_set_size = len(seen)


class _JoinedCommits:
    """The file actions of small commits in order of precedence: newest commit first, adds before removes.

    The first action for a key wins, so one pass over the keys gives the same result as processing each commit alone.
    """

    def __init__(self, *, extra: bool) -> None:
        self._extra = extra
        self.keys: list[tuple[pa.Array, Hashes]] = []  # of the files that were emitted or removed last
        self._clear()

    def _clear(self) -> None:
        self._adds: list[Add] = []
        self._removes: list[Remove] = []
        self._versions: list[int | None] = []
        self._is_add: list[bool] = []

    def __len__(self) -> int:
        return len(self._is_add)

    def add(self, lines: Sequence[LogLine], version: int | None, metrics: ScanMetrics) -> None:
        """Append the actions of the next older commit."""
        adds = [line.add for line in lines if line.add is not None]
        removes = [line.remove for line in lines if line.remove is not None]
        if len(adds) + len(removes) < len(lines):
            metrics.unknown_actions += _unknown_among(lines)
        self._adds += adds
        self._removes += removes
        self._versions += [version] * len(adds)
        self._is_add += [True] * len(adds) + [False] * len(removes)

    def active(self, seen: RemoveSet) -> Iterator[FileBatch]:
        """Yield the files that are still active, record all keys, and reset."""
        if not self._is_add:
            return
        adds, removes, versions, is_add = self._adds, self._removes, self._versions, np.array(self._is_add, np.bool_)
        self._clear()
        batch = FileBatch.from_adds(adds, extra=self._extra)
        added = hash_keys(batch.path, batch.deletion_vector)
        ranked = np.empty((2, len(is_add)), np.uint64)
        ranked[:, is_add] = added
        removed: tuple[pa.Array, Hashes] | None = None
        if removes:
            path, vector = _paths_of(removes)
            removed = path, hash_keys(path, vector)
            ranked[:, ~is_add] = removed[1]
        fresh = first_occurrence(ranked)[is_add] & ~seen.contains(added)
        self.keys = [(batch.path, added)] if removed is None else [(batch.path, added), removed]
        for each in self.keys:
            seen.add_hashed(*each)
        if fresh.any():
            known = set(versions)
            batch = (
                msgspec.structs.replace(batch, version=versions[0])
                if len(known) == 1
                else batch.with_versions(versions)
            )
            yield batch if fresh.all() else batch.filter(boolean_array(fresh))


class _ReplayedTail(msgspec.Struct, frozen=True):
    """The active files of a short tail, and the keys of all of its actions."""

    files: tuple[FileBatch, ...]
    keys: Sequence[tuple[pa.Array, Hashes]]
    commits: int
    unknown: int

    @classmethod
    def of(cls, commits: Iterable[TailCommit]) -> _ReplayedTail | None:
        """Replay the commits; None if they do not fit one batch."""
        joined, metrics = _JoinedCommits(extra=False), ScanMetrics()
        for commit in commits:
            lines = next(commit.actions, [])
            if commit.rows is not None or len(joined) + len(lines) > _MOST_ACTIONS:
                return None
            metrics.count_commits(1 + commit.file.end - commit.file.version)
            joined.add(lines, _version_of(commit.file), metrics)
        with closing(RemoveSet()) as seen:
            files = tuple(joined.active(seen))
        return cls(files, joined.keys, metrics.commits_scanned, metrics.unknown_actions)

    def replay(self, seen: RemoveSet, metrics: ScanMetrics) -> Iterator[FileBatch]:
        """Do what ``active_tail_files`` does with the commits."""
        metrics.count_commits(self.commits)
        metrics.unknown_actions += self.unknown
        for each in self.keys:
            seen.add_hashed(*each)
        metrics.remove_set_size = len(seen)
        yield from self.files


class ReplayedTails:
    """The outcome of the short tails of a snapshot, for scans that find all of their commits in memory.

    Replaying twenty commits takes ten times as long as everything else in a scan that finds its row groups by a cached
    manifest. The first scan leaves nothing here, because most snapshots are scanned once.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _ReplayedTail | None] = {}
        self._scanned: set[tuple[int, int]] = set()
        self._lock = Lock()

    def of(
        self, segment: LogSegment, cache: CommitCache, commits: Callable[[], Iterable[TailCommit]]
    ) -> _ReplayedTail | None:
        """Return the outcome of the tail of a segment, from its second scan on; None if the commits are to be read."""
        key = segment.base_version, segment.version
        with self._lock:
            if key not in self._known and key in self._scanned:
                known = [cache.known(file.path, file.info.etag) for file in islice(segment.tail(), _MOST_ACTIONS)]
                held = sum(len(each) for each in known if each is not None)
                is_short = all(known) and held <= CHUNK_SIZE
                self._known[key] = _ReplayedTail.of(commits()) if is_short else None
            self._scanned.add(key)
            return self._known.get(key)


def _large_commit(
    commit: TailCommit, begun: list[list[LogLine]], seen: RemoveSet, metrics: ScanMetrics, *, extra: bool
) -> Iterator[FileBatch]:
    """Yield the active files of a commit that is not held in memory; ``begun`` is the part already read."""
    version = _version_of(commit.file)
    removed: list[tuple[pa.Array, pa.Array | None]] = []
    begun.reverse()
    while (lines := begun.pop() if begun else next(commit.actions, None)) is not None:
        adds = [line.add for line in lines if line.add is not None]
        removes = [line.remove for line in lines if line.remove is not None]
        if len(adds) + len(removes) < len(lines):
            metrics.unknown_actions += _unknown_among(lines)
        if removes:
            removed.append(_paths_of(removes))
        if adds:
            batch = FileBatch.from_adds(adds, version=version, extra=extra)
            replaced = seen.find(batch.path, batch.deletion_vector)
            fresh = ~replaced & first_occurrence(seen.add(batch.path, batch.deletion_vector))
            if fresh.any():
                yield batch if fresh.all() else batch.filter(boolean_array(fresh))
    for path, vector in removed:
        seen.add(path, vector)


def _span(commit: TailCommit, seen: RemoveSet, metrics: ScanMetrics) -> Iterator[FileBatch]:
    """Yield the active files of commits that come as rows, in order of precedence."""
    for lines in commit.actions:
        metrics.unknown_actions += _unknown_among(lines)
    newest = commit.file.end
    for rows in commit.rows or ():
        files = rows.files
        hashes = hash_keys(files.path, files.deletion_vector)
        fresh = rows.is_add & ~seen.contains(hashes)
        fresh &= first_occurrence(hashes)
        seen.add_hashed(files.path, hashes)
        metrics.delta_commits += newest - rows.rest
        newest = rows.rest
        if fresh.any():
            yield files if fresh.all() else files.filter(boolean_array(fresh))


def _unknown_among(lines: Sequence[LogLine]) -> int:
    """Count the unknown actions; nearly all lines hold a file, which is a cheap test."""
    return sum(line.is_unknown() for line in lines if line.add is None and line.remove is None)


def _version_of(file: LogFile) -> int | None:
    """Return the version that added a commit's files; None for a compaction, which does not record it."""
    return file.version if file.version == file.end else None


def unmasked(batch: FileBatch, seen: RemoveSet) -> FileBatch:
    """Return the checkpoint rows that the tail neither removed nor replaced."""
    if len(batch) == 0:
        return batch
    masked = seen.find(batch.path, batch.deletion_vector)
    return batch.filter(boolean_array(~masked)) if masked.any() else batch


def unmasked_stretches(batch: FileBatch, seen: RemoveSet) -> list[FileBatch]:
    """Return the checkpoint rows that the tail neither removed nor replaced, as slices where that is cheap.

    A tail hides few rows of a large checkpoint. Copying the other rows, column by column, would cost half as much as
    decoding them. Slices between the hidden rows need no copy.
    """
    if len(batch) == 0:
        return []
    hidden = np.flatnonzero(seen.find(batch.path, batch.deletion_vector))
    if not len(hidden):
        return [batch]
    if len(hidden) * _LONG_STRETCH > len(batch):
        keep = np.ones(len(batch), np.bool_)
        keep[hidden] = False
        return [batch.filter(boolean_array(keep))]
    ends = [*hidden.tolist(), len(batch)]
    starts = [0, *(row + 1 for row in ends[:-1])]
    return [batch.slice(start, end - start) for start, end in zip(starts, ends, strict=True) if end > start]


def _paths_of(removes: list[Remove]) -> tuple[pa.Array, pa.Array | None]:
    vectors = [each.deletion_vector for each in removes]
    column = deletion_vector_array(vectors) if any(vector is not None for vector in vectors) else None
    return string_array([each.path for each in removes]), column


# ``TailReader``: the tail, newest first, with spans and compactions in place of single commits where they are valid.


logger = logging.getLogger(__name__)

KEY_MEMORY = 64 << 20


class TailReader:
    """Reads the commits of a segment's tail from the last to the first, like ``ReverseCommitReader``.

    A compaction holds one action per file, application and domain, and at most one protocol and metadata. Some writers
    got that wrong (one wrote all actions, newest first, so a file appears as added and as removed), and others were
    killed mid-write. Such a file does not say which action is newer or what is missing. Each compaction is therefore
    read to its end before it is used, and twice if it is too large to hold. If it is invalid, its commits are read
    instead.

    A span (see ``tail_spans``) records the version of each action, newest first. If it fails midway, the commits from
    its last row on are read instead; rows already emitted are recognized by their keys.
    """

    def __init__(  # noqa: PLR0913 - keyword-only but for the log
        self,
        store: Store,
        segment: LogSegment,
        *,
        parallelism: int | None = None,
        cache: CommitCache | None = None,
        key_memory: int = KEY_MEMORY,
        whole: bool = False,
        spans: TailSpans | None = None,
        wanted: StatsWanted | None = None,
        files_too: bool = True,
    ) -> None:
        self._store = store
        self._files_too = files_too
        self._segment = segment
        self._parallelism = parallelism
        self._cache = CommitCache() if cache is None else cache
        self._key_memory = key_memory
        self._whole = whole
        self._spans = TailSpans() if spans is None else spans
        self._wanted = wanted

    def __iter__(self) -> Iterator[TailCommit]:
        found = self._spans.found(self._store, self._segment, self._cache.prefetch)
        commits = self._read(self._uncovered(found, self._segment.base_version + 1))
        return self._with_spans(found, commits) if found else commits

    def uncovered(self, after: int) -> Iterator[TailCommit]:
        """Yield the commits above a version that no span covers: only these can hold protocol or metadata."""
        found = self._spans.found(self._store, self._segment, self._cache.prefetch)
        return self._read(self._uncovered(found, after + 1))

    def _uncovered(self, spans: Sequence[TailSpan], first: int) -> list[LogFile]:
        """Return the files of the versions from ``first`` on that no span covers, ascending."""
        files: list[LogFile] = []
        for span in spans:
            files += self._segment.cover(first, span.file.version - 1, self._cache.rejected)
            first = max(first, span.file.end + 1)
        return files + self._segment.cover(first, self._segment.version, self._cache.rejected)

    def _with_spans(self, spans: Sequence[TailSpan], commits: Iterator[TailCommit]) -> Iterator[TailCommit]:
        """Yield commits and spans in order; the next span is fetched while the commits before it are read."""
        waiting = list(spans)
        ahead: list[SpanReader] = [waiting[-1].read(self._store, self._wanted)]

        def next_span() -> Iterator[TailCommit]:
            span, reading = waiting.pop(), ahead.pop()
            if waiting:
                ahead.append(waiting[-1].read(self._store, self._wanted))
            return self._span(span, reading)

        try:
            for commit in commits:
                while waiting and waiting[-1].file.version > commit.file.end:
                    yield from next_span()
                yield commit
            while waiting:
                yield from next_span()
        finally:
            for reading in ahead:
                reading.close()

    def _span(self, span: TailSpan, reading: SpanReader) -> Iterator[TailCommit]:
        progress = _Progress(span.file.end)
        try:
            yield TailCommit(span.file, iter([reading.lines()]), _rows(reading, progress))
        except (SpanError, StorageError) as error:
            progress.failed = error
        finally:
            reading.close()
        if progress.failed is None:
            return
        logger.warning("%s is not used, its commits are read instead: %s", span.file.path, progress.failed)
        self._spans.reject(span.file.path, progress.failed)
        # Some actions of the last version read may have been used already: their keys are recorded.
        yield from self._read(self._segment.cover(span.file.version, progress.reached, self._cache.rejected))

    def _read(self, files: Sequence[LogFile]) -> Iterator[TailCommit]:
        reader = ReverseCommitReader(
            self._store,
            files,
            parallelism=self._parallelism,
            cache=self._cache,
            whole=self._whole,
            files_too=self._files_too,
        )
        for commit in reader:
            if commit.file.kind is not FileKind.COMPACTION:
                yield commit
                continue
            try:
                checked = self._checked(commit)
            except (LogError, StorageError) as error:
                logger.warning("%s is not used, its commits are read instead: %s", commit.file.path, error)
                self._cache.rejected.add(commit.file.path)
                yield from self._commits_of(commit.file, error)
            else:
                yield checked

    def _commits_of(self, compaction: LogFile, reason: Exception) -> Iterator[TailCommit]:
        for commit in self._read(self._segment.cover(compaction.version, compaction.end, self._cache.rejected)):
            yield TailCommit(commit.file, _needed(commit.actions, compaction, reason))

    def _checked(self, commit: TailCommit) -> TailCommit:
        """Return a compaction that holds exactly one action per key; raise if it does not."""
        file = commit.file
        if 0 <= file.info.size <= CHUNK_SIZE:
            held = list(commit.actions)
            check_reconciled(held, file, self._key_memory)
            return TailCommit(file, iter(held))
        checked = self._cache.sound.get(file.path)
        if checked is None:
            checked = self._store.head(file.path)
            check_reconciled(commit.actions, file, self._key_memory)
            self._cache.sound[file.path] = checked
        return TailCommit(file, self._again(file, checked))

    def _again(self, file: LogFile, checked: ObjectInfo) -> Iterator[list[LogLine]]:
        yield from read_actions(self._store, file)
        if self._store.head(file.path) != checked:
            message = f"{file.path} was replaced while it was read"
            raise CorruptLogError(message, path=file.path, version=file.version, hint="open the table again")


class _Progress(msgspec.Struct):
    """The version down to which a span was read, and the error that ended it early."""

    reached: int
    failed: Exception | None = None


def _rows(reading: SpanReader, progress: _Progress) -> Iterator[SpanRows]:
    try:
        for rows in reading.rows():
            progress.reached = rows.rest
            yield rows
    except (SpanError, StorageError) as error:
        progress.failed = error


def _needed(actions: Iterator[list[LogLine]], compaction: LogFile, reason: Exception) -> Iterator[list[LogLine]]:
    """Yield the actions of a commit; if it is missing, report that the compaction covering it was invalid."""
    try:
        yield from actions
    except MissingCommitError as error:
        message = f"{compaction.path} cannot be trusted and {error.path}, which it stands for, is missing: {reason}"
        hint = "restore the commit from a backup, or open the table again if its log was cleaned up"
        raise CorruptLogError(message, path=compaction.path, version=compaction.version, hint=hint) from error


def check_reconciled(actions: Iterable[list[LogLine]], file: LogFile, key_memory: int = KEY_MEMORY) -> None:
    """Raise if two actions of a compaction have the same key."""
    seen = RemoveSet(key_memory)
    try:
        for lines in actions:
            names, hashes = action_keys(lines)
            if not names:
                continue
            again = seen.contains(hashes)
            again |= ~first_occurrence(hashes)
            if again.any():
                name = names[int(np.argmax(again))]
                message = f"{file.path} holds more than one action for {name}, and which of them counts is unknown"
                hint = "delete the file: the commits that it stands for are complete without it"
                raise CorruptLogError(message, path=file.path, version=file.version, hint=hint)
            seen.add_hashes(hashes)
    finally:
        seen.close()


def action_keys(lines: Sequence[LogLine]) -> tuple[list[str], Hashes]:
    """Return the key of each action, as a readable name and as a hash."""
    files = [file for line in lines if (file := line.add or line.remove) is not None]
    others = [name for line in lines if (name := _other(line)) is not None]
    vectors = [file.deletion_vector for file in files]
    column = deletion_vector_array(vectors) if any(vector is not None for vector in vectors) else None
    hashes = [hash_keys(string_array([file.path for file in files]), column)] if files else []
    # No path is hashed with a leading zero byte, so these keys cannot collide with those of files.
    hashes += [hash_bytes(string_array([f"\0{name}" for name in others]))] if others else []
    names = [
        repr(file.path) if vector is None else f"{file.path!r} with the deletion vector {vector.unique_id!r}"
        for file, vector in zip(files, vectors, strict=True)
    ]
    joined = np.concatenate(hashes, axis=1) if hashes else np.empty((2, 0), np.uint64)
    return [*names, *others], joined


def _other(line: LogLine) -> str | None:
    if line.txn is not None:
        return f"the application {line.txn.app_id!r}"
    if line.domain_metadata is not None:
        return f"the domain {line.domain_metadata.domain!r}"
    if line.describes_table():
        return "the protocol" if line.has("protocol") else "the metadata"
    return None
