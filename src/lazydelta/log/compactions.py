"""``TailReader``: the tail newest first, with spans and compacted commits in place of single ones that can be trusted.

A compaction is what many commits amount to: one action for each file, application and domain, and at most one protocol
and metadata. Writers have got that wrong (one wrote all actions, the newest first, so that a file is there as added and
as removed), and others were killed while they wrote. Which of two actions is the newer one cannot be told from such a
file, and what a torn one lacks even less. The commits themselves are still there, so they are read instead. To know it
in time, a compaction is read to its end before anything of it counts; one that is too large to hold is read twice.

A span (see ``tail_spans``) says of each action which version it is of, newest first. So one that fails half-way is left
there: the commits from the last row on are read, and what was seen of them before is known by its key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from lazydelta.arrays import string_array
from lazydelta.errors import CorruptLogError, LogError, MissingCommitError, StorageError
from lazydelta.log.actions import LogLine
from lazydelta.log.checkpoint.checkpoint_columns import StatsWanted
from lazydelta.log.commit_cache import CommitCache
from lazydelta.log.commits import CHUNK_SIZE, read_actions
from lazydelta.log.file_batch import deletion_vector_array
from lazydelta.log.keys import Hashes, first_occurrence, hash_bytes, hash_keys
from lazydelta.log.names import FileKind, LogFile
from lazydelta.log.remove_set import RemoveSet
from lazydelta.log.reverse_commits import ReverseCommitReader, TailCommit
from lazydelta.log.segment import LogSegment
from lazydelta.log.tail_spans import SpanError, SpanReading, SpanRows, TailSpan, TailSpans
from lazydelta.storage import ObjectInfo, Store

__all__ = ["KEY_MEMORY", "TailReader", "check_reconciled"]

logger = logging.getLogger(__name__)

KEY_MEMORY = 64 << 20


class TailReader:
    """Yields the commits of a segment's tail from the last to the first, as ``ReverseCommitReader`` does."""

    def __init__(
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
    ) -> None:
        self._store = store
        self._segment = segment
        self._parallelism = parallelism
        self._cache = CommitCache() if cache is None else cache
        self._key_memory = key_memory
        self._whole = whole
        self._spans = TailSpans() if spans is None else spans
        self._wanted = wanted

    def __iter__(self) -> Iterator[TailCommit]:
        found = self._spans.found(self._store, self._segment, self._cache.ahead)
        commits = self._read(self._uncovered(found, self._segment.base_version + 1))
        return self._with_spans(found, commits) if found else commits

    def uncovered(self, after: int) -> Iterator[TailCommit]:
        """Yield the commits above a version that no span stands for: only these can hold protocol or metadata."""
        found = self._spans.found(self._store, self._segment, self._cache.ahead)
        return self._read(self._uncovered(found, after + 1))

    def _uncovered(self, spans: Sequence[TailSpan], first: int) -> list[LogFile]:
        """Return the files of the versions from ``first`` on that are in no span, ascending."""
        files: list[LogFile] = []
        for span in spans:
            files += self._segment.cover(first, span.file.version - 1, self._cache.rejected)
            first = max(first, span.file.end + 1)
        return files + self._segment.cover(first, self._segment.version, self._cache.rejected)

    def _with_spans(self, spans: Sequence[TailSpan], commits: Iterator[TailCommit]) -> Iterator[TailCommit]:
        """Yield commits and spans in their order; the next span is under way while what comes before it is read."""
        waiting = list(spans)
        ahead: list[SpanReading] = [waiting[-1].read(self._store, self._wanted)]

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

    def _span(self, span: TailSpan, reading: SpanReading) -> Iterator[TailCommit]:
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
        # Of the version that it ended in, some actions may have been used: they are known by their keys.
        yield from self._read(self._segment.cover(span.file.version, progress.reached, self._cache.rejected))

    def _read(self, files: Sequence[LogFile]) -> Iterator[TailCommit]:
        reader = ReverseCommitReader(
            self._store, files, parallelism=self._parallelism, cache=self._cache, whole=self._whole
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
        """Return a compaction whose actions are known to be one for each key; raise if they are not."""
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
    """How far down a span was read, and what ended it early."""

    reached: int
    failed: Exception | None = None


def _rows(reading: SpanReading, progress: _Progress) -> Iterator[SpanRows]:
    try:
        for rows in reading.rows():
            progress.reached = rows.rest
            yield rows
    except (SpanError, StorageError) as error:
        progress.failed = error


def _needed(actions: Iterator[list[LogLine]], compaction: LogFile, reason: Exception) -> Iterator[list[LogLine]]:
    """Pass on the actions of a commit, and say what its loss means: there was a compaction, but it was no good."""
    try:
        yield from actions
    except MissingCommitError as error:
        message = f"{compaction.path} cannot be trusted and {error.path}, which it stands for, is gone: {reason}"
        hint = "restore the commit from a backup, or open the table again if its log was cleaned up"
        raise CorruptLogError(message, path=compaction.path, version=compaction.version, hint=hint) from error


def check_reconciled(actions: Iterable[list[LogLine]], file: LogFile, key_memory: int = KEY_MEMORY) -> None:
    """Raise unless no two of a compaction's actions are about the same thing."""
    seen = RemoveSet(key_memory)
    try:
        for lines in actions:
            names, hashes = _keys(lines)
            if not names:
                continue
            again = seen.contains(hashes)
            again |= ~first_occurrence(hashes)
            if again.any():
                name = names[int(np.argmax(again))]
                message = f"{file.path} holds more than one action for {name}, and which of them counts cannot be told"
                hint = "delete the file: the commits that it stands for are complete without it"
                raise CorruptLogError(message, path=file.path, version=file.version, hint=hint)
            seen.add_hashes(hashes)
    finally:
        seen.close()


def _keys(lines: Sequence[LogLine]) -> tuple[list[str], Hashes]:
    """Return what each action is about, in words and hashed."""
    files = [file for line in lines if (file := line.add or line.remove) is not None]
    others = [name for line in lines if (name := _other(line)) is not None]
    vectors = [file.deletion_vector for file in files]
    column = deletion_vector_array(vectors) if any(vector is not None for vector in vectors) else None
    hashes = [hash_keys(string_array([file.path for file in files]), column)] if files else []
    # No path is hashed with a zero byte in front, so these keys are apart from those of files.
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
