"""``TailReader``: the tail newest first, with compacted commits in place of their ranges where these can be trusted.

A compaction is what many commits amount to: one action for each file, application and domain, and at most one protocol
and metadata. Writers have got that wrong (one wrote all actions, the newest first, so that a file is there as added and
as removed), and others were killed while they wrote. Which of two actions is the newer one cannot be told from such a
file, and what a torn one lacks even less. The commits themselves are still there, so they are read instead. To know it
in time, a compaction is read to its end before anything of it counts; one that is too large to hold is read twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lazydelta.arrays import string_array
from lazydelta.errors import CorruptLogError, LogError, MissingCommitError, StorageError
from lazydelta.log.actions import LogLine
from lazydelta.log.commit_cache import CommitCache
from lazydelta.log.commits import CHUNK_SIZE, read_actions
from lazydelta.log.file_batch import deletion_vector_array
from lazydelta.log.keys import Hashes, first_occurrence, hash_bytes, hash_keys
from lazydelta.log.names import FileKind, LogFile
from lazydelta.log.remove_set import RemoveSet
from lazydelta.log.reverse_commits import ReverseCommitReader, TailCommit
from lazydelta.log.segment import LogSegment
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
    ) -> None:
        self._store = store
        self._segment = segment
        self._parallelism = parallelism
        self._cache = CommitCache() if cache is None else cache
        self._key_memory = key_memory
        self._whole = whole

    def __iter__(self) -> Iterator[TailCommit]:
        return self._read(self._segment.base_version + 1, self._segment.version)

    def _read(self, first: int, last: int) -> Iterator[TailCommit]:
        files = self._segment.cover(first, last, self._cache.rejected)
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
        for commit in self._read(compaction.version, compaction.end):
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
