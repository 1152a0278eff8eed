"""One OPTIMIZE: from a version of the table to commits that replace many small files by few large ones.

Rows do not change, so the commits say ``dataChange=false``, and readers of the table's changes pass them by. What
others do meanwhile is no hindrance, but for one thing: a file that somebody has removed or given another deletion
vector must not come back as it was. Files are compared by path with all commits since the version that was read; bins
with such a file are given up and their new files deleted, the others are committed. What is left over waits for the
next run, which is also what a run that was killed comes to: its new files are named by no commit, and VACUUM finds
them.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import numpy as np

from lazydelta.arrays import string_array
from lazydelta.errors import CommitConflictError, OptionError, WriteError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Metadata
from lazydelta.log.features.writable import check_writable
from lazydelta.log.properties import TableProperties
from lazydelta.log.remove_set import RemoveSet
from lazydelta.log.reverse_commits import ReverseCommitReader
from lazydelta.log.segment import list_commits
from lazydelta.log.snapshot import Snapshot
from lazydelta.maintenance.optimize.bin_carriers import BinCarrier, in_threads
from lazydelta.maintenance.optimize.bins import Bin, pack
from lazydelta.maintenance.optimize.candidates import Candidates, candidates_of
from lazydelta.maintenance.optimize.rewriting import Rewriter, Rewritten, dated_in_order
from lazydelta.maintenance.optimize.sorted_rows import check_sort_columns
from lazydelta.pruning import Where
from lazydelta.scan.request import ScanRequest, ScanStrategy
from lazydelta.write.commit_note import CommitNote
from lazydelta.write.data_files import MEMORY_BUDGET, TARGET_FILE_SIZE
from lazydelta.write.earlier_attempts import clear_earlier_attempts
from lazydelta.write.file_commit import delete_files
from lazydelta.write.removals import removal_of
from lazydelta.write.selection import PartitionSelection
from lazydelta.write.task_result import TaskResult
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = ["FileSizes", "OptimizeProgress", "OptimizeResult", "OptimizeSettings", "optimize", "target_size_of"]

_log = logging.getLogger(__name__)

OptimizeProgress: TypeAlias = Callable[[str, int, int | None], None]
"""Told what is being done (``considered``, ``packed``), how many files it was done to, and of how many."""

# So much is rewritten before it is committed: what a conflict or a kill can cost at most.
_COMMIT_BYTES = 4 << 30
_COMMIT_FILES = 20_000
_OFFERS = 10
_TARGET = "delta.targetFileSize"
_SIZE = re.compile(r"\s*(\d+)\s*([kmg]?)i?b?\s*", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeSettings:
    """How files are packed.

    Files smaller than ``below`` (the target by default) are packed to ``target_size`` bytes, ``least_files`` at least;
    the target is by default the table's ``delta.targetFileSize``, or 128 MB. ``sort_by`` orders the rows of what is
    packed. ``commit_interval`` commits what was packed at least so often. ``note`` is what the commits say beside.
    """

    target_size: int | None = None
    sort_by: Sequence[str] = ()
    below: int | None = None
    least_files: int = 2
    memory_budget: int = MEMORY_BUDGET
    commit_interval: timedelta | None = None
    auto: bool = False
    note: CommitNote = field(default_factory=CommitNote)

    def __post_init__(self) -> None:
        """Refuse what makes no sense before any work begins."""
        for name in ("target_size", "memory_budget"):
            value = getattr(self, name)
            if value is None and name == "target_size":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name}={value!r} makes no sense", hint="give a number of bytes from 1")


def target_size_of(metadata: Metadata) -> int:
    """Return about how large the table wants its files to be."""
    text = metadata.property(_TARGET)
    match = None if text is None else _SIZE.fullmatch(text)
    size = 0 if match is None else int(match[1]) * _FACTORS[match[2].lower()]
    return size or TARGET_FILE_SIZE


@dataclass(slots=True)
class FileSizes:
    """How many files, and how large."""

    count: int = 0
    total: int = 0
    least: int = 0
    most: int = 0

    def add(self, size: int) -> None:
        """Count a file."""
        self.least = size if not self.count else min(self.least, size)
        self.most = max(self.most, size)
        self.count += 1
        self.total += size


@dataclass(slots=True)
class OptimizeResult:
    """What was done, or would be with ``dry_run``; ``version`` is the last one committed, None if there was none.

    ``conflicts`` counts files that were packed in vain, because others changed one of their bin meanwhile.
    """

    dry_run: bool
    read_version: int
    version: int | None = None
    added: FileSizes = field(default_factory=FileSizes)
    removed: FileSizes = field(default_factory=FileSizes)
    partitions: int = 0
    considered: int = 0
    conflicts: int = 0
    batches: int = 0
    vectors: int = 0
    most_files_in_bin: int = 0
    commits: int = 0


def optimize(
    handle: TableHandle,
    *,
    where: Where = None,
    settings: OptimizeSettings | None = None,
    dry_run: bool = False,
    progress: OptimizeProgress | None = None,
    committed: Callable[[CommitResult], None] | None = None,
    carrier: BinCarrier = in_threads,
) -> OptimizeResult:
    """Pack the small files of each partition; ``where`` may name partition columns only.

    ``committed`` is told of every commit, ``carrier`` has the bins rewritten. Tables with features that we do not write
    (row tracking, clustering, …) are refused by name.
    """
    snapshot = handle.newest()
    check_writable(snapshot.protocol, snapshot.metadata, path=handle.uri)
    settled = settings or OptimizeSettings()
    work = _Optimize(handle, snapshot, settled, where, OptimizeResult(dry_run, snapshot.version), committed)
    tell = progress or (lambda _what, _done, _total: None)
    try:
        work.run(tell, carrier)
    finally:
        work.close()
    return work.result


class _Optimize:
    def __init__(
        self,
        handle: TableHandle,
        snapshot: Snapshot,
        settings: OptimizeSettings,
        where: Where,
        result: OptimizeResult,
        committed: Callable[[CommitResult], None] | None,
    ) -> None:
        self._handle, self._snapshot, self._settings = handle, snapshot, settings
        self._target = settings.target_size or target_size_of(snapshot.metadata)
        self._below = settings.below or self._target
        self._selection = None if where is None else PartitionSelection.of(where, snapshot.schema, what="OPTIMIZE")
        self._where = "" if where is None else str(where)
        self._sort_by = check_sort_columns(settings.sort_by, snapshot.schema)
        self.result = result
        self._committed = committed
        self._candidates = Candidates()
        self._changed = RemoveSet(handle.options.remove_set_memory_limit)  # by others, since the version we read
        self._seen = snapshot.version
        self._ready: list[Rewritten] = []
        self._last_commit = time.monotonic()
        self._touched: set[tuple[str | None, ...]] = set()
        self._latest: dict[tuple[str | None, ...], int] = {}

    def close(self) -> None:
        """Delete what was rewritten and not committed, and give back memory and temporary files."""
        self._discard(self._ready)
        self._ready = []
        self._candidates.close()
        self._changed.close()

    def run(self, progress: OptimizeProgress, carrier: BinCarrier) -> None:
        """Find small files, pack and commit them."""
        self._find(progress)
        if self.result.dry_run:
            for bin_ in self._bins():
                self._count_removed(bin_)
        else:
            self._rewrite(progress, carrier)
        self.result.partitions = len(self._touched)

    def _bins(self) -> Iterator[Bin]:
        settings = self._settings
        for files in self._candidates.partitions():
            yield from pack(files, self._target, below=self._below, least=settings.least_files)

    def _rewrite(self, progress: OptimizeProgress, carrier: BinCarrier) -> None:
        snapshot, done = self._snapshot, 0
        properties, budget = TableProperties.of(snapshot.metadata), self._settings.memory_budget
        rewriter = Rewriter(self._handle, snapshot.schema, properties, self._target, self._sort_by, budget)
        with closing(carrier(rewriter, self._bins())) as rewritten:
            for each in rewritten:
                self._ready.append(each)
                if self._is_time_to_commit():
                    self._commit_ready()
                done += len(each.bin.files)
                progress("packed", done, self._candidates.count)
        if self._ready:
            self._commit_ready()

    def _find(self, progress: OptimizeProgress) -> None:
        snapshot, below = self._snapshot, self._below
        counted = "deletionVectors" in (snapshot.protocol.reader_features or ())
        predicate = None if self._selection is None else self._selection.predicate
        request = ScanRequest(
            predicate=predicate,
            strategy=ScanStrategy.FORWARD,
            stats_columns=() if counted else None,
            extra=True,
        )
        for batch in self._handle.scan(snapshot, request).batches():
            if self._selection is not None:
                self._selection.matches(batch)  # what was let through for want of knowledge is an error there
            logged = snapshot.schema.physical_partition_columns
            self._candidates.add(candidates_of(batch, logged, below, counted=counted))
            self.result.considered += len(batch)
            progress("considered", self.result.considered, None)

    def _is_time_to_commit(self) -> bool:
        interval = self._settings.commit_interval
        if interval is not None and time.monotonic() - self._last_commit >= interval.total_seconds():
            return True
        files = sum(len(each.bin.files) for each in self._ready)
        return files >= _COMMIT_FILES or sum(each.bin.size for each in self._ready) >= _COMMIT_BYTES

    def _commit_ready(self) -> None:
        self._ready = dated_in_order(self._ready, self._latest)
        for remaining in reversed(range(_OFFERS)):
            with Transaction.begin(self._handle, operation="OPTIMIZE", parameters=self._parameters()) as transaction:
                transaction.note = self._settings.note
                self._look_at(transaction)
                self._give_up_changed()
                if not self._ready:
                    return
                self._stage(transaction)
                try:
                    done = transaction.commit()
                except CommitConflictError:
                    if not remaining:
                        raise
                    continue
                except WriteError:
                    raise
                except BaseException:
                    self._ready = []  # it is not known whether the commit arrived, so its files have to stay
                    raise
            self._note(done)
            return

    def _look_at(self, transaction: Transaction) -> None:
        """Take note of what others have committed since the version that we read."""
        found = transaction.snapshot
        if found is None or (found.metadata, found.protocol) != (self._snapshot.metadata, self._snapshot.protocol):
            message = f"Another writer changed the metadata or protocol of {self._handle.uri} meanwhile"
            raise CommitConflictError(message, path=self._handle.uri, hint="run OPTIMIZE again")
        newer = list(list_commits(self._handle.store, self._seen + 1, found.version))
        for commit in ReverseCommitReader(self._handle.store, newer):
            for lines in commit.actions:
                paths = [action.path for line in lines if (action := line.add or line.remove) is not None]
                if paths:
                    self._changed.add(string_array(paths))
        self._seen = found.version

    def _give_up_changed(self) -> None:
        kept: list[Rewritten] = []
        lost: list[Rewritten] = []
        for each in self._ready:
            hit = self._changed.find(string_array([file.path for file in each.bin.files]))
            (lost if np.any(hit) else kept).append(each)
        for each in lost:
            self.result.conflicts += len(each.bin.files)
            _log.info("%s was changed by another writer meanwhile, and is left as it is", each.bin.files[0].path)
        self._ready = kept
        self._discard(lost)

    def _stage(self, transaction: Transaction) -> None:
        now = time.time_ns() // 1_000_000
        sources = [file for each in self._ready for file in each.bin.files]
        transaction.remove(*(removal_of(each.as_add(), now, data_change=False) for each in sources))
        adds = [add for each in self._ready for add in each.adds]
        transaction.add(*adds)
        transaction.metrics = {
            "numAddedFiles": str(len(adds)),
            "numAddedBytes": str(sum(each.size for each in adds)),
            "numRemovedFiles": str(len(sources)),
            "numRemovedBytes": str(sum(each.size for each in sources)),
            "numDeletionVectorsRemoved": str(sum(each.deletion_vector is not None for each in sources)),
        }

    def _note(self, done: CommitResult) -> None:
        ready, self._ready = self._ready, []
        for each in ready:
            clear_earlier_attempts(
                self._handle.store, [TaskResult(adds=each.adds, run_again=each.run_again)], each.adds
            )
            self._count_removed(each.bin)
            self.result.batches += each.batches
            for add in each.adds:
                self.result.added.add(add.size)
        # Our own commit changed just what no other bin has.
        self._seen = max(self._seen, done.version) if done.attempts == 1 else self._seen
        self.result.version = done.version
        self.result.commits += 1
        self._last_commit = time.monotonic()
        if self._committed is not None:
            self._committed(done)

    def _count_removed(self, bin_: Bin) -> None:
        result = self.result
        self._touched.add(bin_.partition)
        result.most_files_in_bin = max(result.most_files_in_bin, len(bin_.files))
        for file in bin_.files:
            result.removed.add(file.size)
            result.vectors += file.deletion_vector is not None

    def _parameters(self) -> dict[str, Any]:
        return {
            "predicate": [self._where] if self._where else [],
            "zOrderBy": [],
            "sortBy": list(self._sort_by),
            "targetSize": self._target,
            "auto": self._settings.auto,
        }

    def _discard(self, rewritten: Sequence[Rewritten]) -> None:
        adds = [add for each in rewritten for add in each.adds]
        if adds:
            delete_files(self._handle.store, adds)
