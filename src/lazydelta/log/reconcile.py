"""Newest wins: the tail's actions become the files that are still active, and the keys that mask the base."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from lazydelta.arrays import boolean_array, string_array
from lazydelta.log.actions import Remove
from lazydelta.log.file_batch import FileBatch, deletion_vector_array
from lazydelta.log.keys import Hashes
from lazydelta.log.remove_set import RemoveSet
from lazydelta.log.reverse_commits import TailCommit
from lazydelta.metrics import ScanMetrics

__all__ = ["active_tail_files", "unmasked"]


def active_tail_files(
    commits: Iterable[TailCommit], seen: RemoveSet, metrics: ScanMetrics, *, extra: bool = False
) -> Iterator[FileBatch]:
    """Yield the active files of the tail, given its commits newest first; every key met is recorded in ``seen``.

    Keys are recorded before anybody prunes: a pruned newer add still hides the older one. Within a commit an add wins
    over a remove of the same key, so a commit's removes count only from the next older commit on. ``extra`` keeps
    whatever else an ``add`` carries, for those who copy it.
    """
    for commit in commits:
        version = commit.file.version if commit.file.version == commit.file.end else None
        removed: list[tuple[pa.Array, pa.Array | None]] = []
        for lines in commit.actions:
            adds = [line.add for line in lines if line.add is not None]
            removes = [line.remove for line in lines if line.remove is not None]
            if len(adds) + len(removes) < len(lines):
                metrics.unknown_actions += sum(line.is_unknown() for line in lines)
            if removes:
                removed.append(_paths_of(removes))
            if adds:
                batch = FileBatch.from_adds(adds, version=version, extra=extra)
                replaced = seen.find(batch.path, batch.deletion_vector)
                fresh = ~replaced & _first_occurrence(seen.add(batch.path, batch.deletion_vector))
                if fresh.any():
                    yield batch if fresh.all() else batch.filter(boolean_array(fresh))
        for path, vector in removed:
            seen.add(path, vector)
        metrics.commits_scanned += 1 + commit.file.end - commit.file.version
        metrics.remove_set_size = len(seen)


def unmasked(batch: FileBatch, seen: RemoveSet) -> FileBatch:
    """Return the base rows that the tail neither removed nor replaced."""
    if len(batch) == 0:
        return batch
    masked = seen.find(batch.path, batch.deletion_vector)
    return batch.filter(boolean_array(~masked)) if masked.any() else batch


def _paths_of(removes: list[Remove]) -> tuple[pa.Array, pa.Array | None]:
    vectors = [each.deletion_vector for each in removes]
    column = deletion_vector_array(vectors) if any(vector is not None for vector in vectors) else None
    return string_array([each.path for each in removes]), column


def _first_occurrence(hashes: Hashes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    first = np.zeros(hashes.shape[1], np.bool_)
    _, indices = np.unique(np.ascontiguousarray(hashes.T).view("V16").ravel(), return_index=True)
    first[indices] = True
    return first
