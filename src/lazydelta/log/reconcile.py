"""Newest wins: the tail's actions become the files that are still active, and the keys that mask the base."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.arrays import boolean_array, string_array
from lazydelta.log.actions import Add, LogLine, Remove
from lazydelta.log.commits import CHUNK_SIZE
from lazydelta.log.file_batch import FileBatch, deletion_vector_array
from lazydelta.log.keys import Hashes, first_occurrence, hash_keys
from lazydelta.log.names import LogFile
from lazydelta.log.remove_set import RemoveSet
from lazydelta.log.reverse_commits import TailCommit
from lazydelta.metrics import ScanMetrics

__all__ = ["active_tail_files", "unmasked", "unmasked_stretches"]

_MOST_ACTIONS = 4096
_SHARE = 1 / 4
_LONG_STRETCH = 2048  # rows between two hidden ones, on average: shorter stretches cost more than a copy
_UNKNOWN_SIZE = 64 << 10  # what a commit counts as that a catalog named without its size


def active_tail_files(
    commits: Iterable[TailCommit], seen: RemoveSet, metrics: ScanMetrics, *, extra: bool = False
) -> Iterator[FileBatch]:
    """Yield the active files of the tail, given its commits newest first; every key met is recorded in ``seen``.

    Keys are recorded before anybody prunes: a pruned newer add still hides the older one. Within a commit an add wins
    over a remove of the same key, so a commit's removes count only from the next older commit on. ``extra`` keeps
    whatever else an ``add`` carries, for those who copy it.

    An Arrow batch, its hashes and a look into ``seen`` cost half a millisecond, however few files there are. So small
    commits are joined: the first one leaves alone, because somebody waits for it, and then as many together as hold
    ``_SHARE`` of the actions before them, so that whoever stops has paid for little more than was taken. A bound in
    bytes keeps those with long statistics from piling up.
    """
    joined, target, taken, held = _JoinedCommits(extra=extra), 1, 0, 0
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
            target, held = max(1, min(_MOST_ACTIONS, int(taken * _SHARE))), 0
        metrics.remove_set_size = len(seen)
    yield from joined.active(seen)
    metrics.remove_set_size = len(seen)


class _JoinedCommits:
    """The file actions of small commits, in the order in which they count: newest commit first, adds before removes.

    Of all actions about one key the first one counts. So one pass over the keys decides as if every commit had been
    looked at by itself.
    """

    def __init__(self, *, extra: bool) -> None:
        self._extra = extra
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
        """Yield the files that are still active, record all keys, and begin anew."""
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
        seen.add_hashed(batch.path, added)
        if removed is not None:
            seen.add_hashed(*removed)
        if fresh.any():
            known = set(versions)
            batch = (
                msgspec.structs.replace(batch, version=versions[0])
                if len(known) == 1
                else batch.with_versions(versions)
            )
            yield batch if fresh.all() else batch.filter(boolean_array(fresh))


def _large_commit(
    commit: TailCommit, begun: list[list[LogLine]], seen: RemoveSet, metrics: ScanMetrics, *, extra: bool
) -> Iterator[FileBatch]:
    """Yield the active files of a commit that is not held whole; ``begun`` is what was read of it already."""
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
    """Yield the active files of commits that come as rows, in the order in which they count."""
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
    """Count the actions that we do not know; nearly all lines hold a file, which is seen at a glance."""
    return sum(line.is_unknown() for line in lines if line.add is None and line.remove is None)


def _version_of(file: LogFile) -> int | None:
    """Return the version that a commit's files were added in; of a compaction's files nobody knows it."""
    return file.version if file.version == file.end else None


def unmasked(batch: FileBatch, seen: RemoveSet) -> FileBatch:
    """Return the base rows that the tail neither removed nor replaced."""
    if len(batch) == 0:
        return batch
    masked = seen.find(batch.path, batch.deletion_vector)
    return batch.filter(boolean_array(~masked)) if masked.any() else batch


def unmasked_stretches(batch: FileBatch, seen: RemoveSet) -> list[FileBatch]:
    """Return the base rows that the tail neither removed nor replaced, in pieces of the batch where that is cheap.

    A tail hides few rows of a large base. To copy all others, column by column, would cost as much as half of decoding
    them; the stretches between the hidden ones are there already.
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
