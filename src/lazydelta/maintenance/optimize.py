"""OPTIMIZE: replace many small files of a table version by few large ones.

Rows do not change, so the commits set ``dataChange=false`` and readers of the change stream skip them. Concurrent
writers are not blocked. One conflict is possible: a file that another writer has removed, or given another deletion
vector, must not come back in its old state. Files are compared by path with all commits since the version that was
read. Bins with a changed file are dropped and their new files deleted; the others are committed. The next run handles
what remains. No commit references the new files of a killed run, and VACUUM deletes them.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeAlias
from urllib.parse import unquote

import numpy as np

from lazydelta.errors import CommitConflictError, LazyDeltaError, OptionError, PredicateError, UnsupportedFeatureError
from lazydelta.log.keys import RemoveSet
from lazydelta.log.replay import ReverseCommitReader
from lazydelta.log.segment import list_commits
from lazydelta.maintenance.curves import CURVES
from lazydelta.maintenance.policy import COMPACTION_INTERVAL
from lazydelta.maintenance.rewrite import (
    Bin,
    BinCarrier,
    Candidates,
    Rewriter,
    Rewritten,
    candidates_of,
    check_sort_columns,
    dated_in_order,
    in_threads,
    pack,
)
from lazydelta.predicates import Where
from lazydelta.protocol.actions import Metadata
from lazydelta.protocol.features import check_writable
from lazydelta.protocol.properties import Key, TableProperties
from lazydelta.protocol.schema import TableSchema
from lazydelta.runtime.arrays import string_array
from lazydelta.runtime.compute import expression_text
from lazydelta.scan.request import ScanRequest, ScanStrategy
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.storage.staged_files import StagedFiles
from lazydelta.write.commit import CommitNote, PartitionSelection, removal_of
from lazydelta.write.conflicts import commits_since
from lazydelta.write.data_files import MEMORY_BUDGET, TARGET_FILE_SIZE
from lazydelta.write.job import TaskResult, clear_earlier_attempts
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = [
    "FileSizes",
    "OptimizeProgress",
    "OptimizeResult",
    "OptimizeSettings",
    "auto_compact",
    "optimize",
    "target_size_of",
]


_log = logging.getLogger(__name__)

OptimizeProgress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the phase (``considered``, ``packed``), the number of files processed, and the total if known."""

# Commit after rewriting this much. It bounds the work that a conflict or a kill can lose.
_COMMIT_BYTES = 4 << 30
_COMMIT_FILES = 20_000
_OFFERS = 10
_SIZE = re.compile(r"\s*(\d+)\s*([kmg]?)i?b?\s*", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeSettings:
    """Settings for compaction.

    Files smaller than ``below`` (default: the target) are packed into files of ``target_size`` bytes, at least
    ``least_files`` at a time. The target defaults to the table's ``delta.targetFileSize``, or 128 MB. ``sort_by`` sorts
    the rows of each bin. ``commit_interval`` is the longest time between commits. ``note`` is added to the commits.

    With a ``curve`` (``z`` or ``hilbert``) all files of a partition are rewritten, with their rows along the curve
    through the columns ``sort_by``. ``purge`` rewrites the files that have deleted rows, and no others.
    """

    target_size: int | None = None
    sort_by: Sequence[str] = ()
    below: int | None = None
    least_files: int = 2
    memory_budget: int = MEMORY_BUDGET
    commit_interval: timedelta | None = None
    auto: bool = False
    curve: str | None = None
    purge: bool = False
    note: CommitNote = field(default_factory=CommitNote)

    def __post_init__(self) -> None:
        """Validate the settings before any work begins."""
        if self.curve is not None and (self.curve not in CURVES or not self.sort_by or self.purge):
            message = f"curve={self.curve!r} with the columns {list(self.sort_by)} is not valid"
            raise OptionError(message, hint=f"use one of {', '.join(CURVES)}, and at least one column")
        for name in ("target_size", "memory_budget"):
            value = getattr(self, name)
            if value is None and name == "target_size":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name}={value!r} is not valid", hint="pass at least 1 byte")


def target_size_of(metadata: Metadata) -> int:
    """Return the target file size of the table."""
    text = metadata.property(Key.TARGET_FILE_SIZE)
    match = None if text is None else _SIZE.fullmatch(text)
    size = 0 if match is None else int(match[1]) * _FACTORS[match[2].lower()]
    return size or TARGET_FILE_SIZE


@dataclass(slots=True)
class FileSizes:
    """Number and sizes of files."""

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
    """Result of an OPTIMIZE, or its preview with ``dry_run``. ``version`` is the last committed version, or None.

    ``conflicts`` counts files that were rewritten in vain, because another writer changed a file of the same bin.
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
    known: Snapshot | None = None,
) -> OptimizeResult:
    """Compact the small files of each partition. ``where`` may reference partition columns only.

    ``known`` is a snapshot of the table, which is used if it is still the newest one.
    ``committed`` is called after every commit. ``carrier`` rewrites the bins. Tables with features that lazydelta
    cannot write (row tracking, clustering, …) are refused by name. An error after a commit reports what was committed:
    in its message, and with the metrics in `LazyDeltaError.committed`.
    """
    snapshot = handle.newest(known)
    check_writable(snapshot.protocol, snapshot.metadata, path=handle.uri)
    settled = settings or OptimizeSettings()
    work = _Optimize(snapshot, settled, where, OptimizeResult(dry_run, snapshot.version), committed)
    tell = progress or (lambda _what, _done, _total: None)
    try:
        work.run(tell, carrier)
    except BaseException as error:
        _say_committed(error, work.result)
        raise
    finally:
        work.close()
    return work.result


def _say_committed(error: BaseException, result: OptimizeResult) -> None:
    """Add the commits that were made to an error."""
    if not result.commits:
        return
    count = "one commit" if result.commits == 1 else f"{result.commits} commits"
    said = f"{count} of this OPTIMIZE remain, the last is version {result.version}: {result.removed.count} files"
    said += f" were replaced by {result.added.count}"
    if isinstance(error, LazyDeltaError):
        error.committed = result
        error.hint = said if error.hint is None else f"{error.hint}; {said}"
    else:
        error.add_note(said)


class _Optimize:
    def __init__(
        self,
        snapshot: Snapshot,
        settings: OptimizeSettings,
        where: Where,
        result: OptimizeResult,
        committed: Callable[[CommitResult], None] | None,
    ) -> None:
        self._snapshot, self._settings = snapshot, settings
        self._target = settings.target_size or target_size_of(snapshot.metadata)
        self._below = settings.below or self._target
        if settings.curve is not None:
            self._below = 1 << 62
        elif settings.purge:
            self._below = 0
        self._selection = None if where is None else PartitionSelection.of(where, snapshot.schema, what="OPTIMIZE")
        self._where = "" if where is None else expression_text(where)
        self._sort_by = check_sort_columns(settings.sort_by, snapshot.schema)
        shared = [name for name in self._sort_by if name in snapshot.schema.partition_columns]
        if settings.curve is not None and shared:
            message = f"Rows cannot be ordered along a curve through the partition column {shared[0]!r}"
            raise OptionError(message, hint="omit it: all rows of a file have the same value")
        self.result = result
        self._committed = committed
        self._candidates = Candidates()
        self._changed = RemoveSet(snapshot.options.remove_set_memory_limit)  # by other writers since the version read
        self._seen = snapshot.version
        self._ready: list[Rewritten] = []
        self._staged = StagedFiles(snapshot.store)  # the files of `_ready`
        self._last_commit = time.monotonic()
        self._touched: set[tuple[str | None, ...]] = set()
        self._latest: dict[tuple[str | None, ...], int] = {}

    def close(self) -> None:
        """Delete rewritten files that were not committed, and release memory and temporary files."""
        self._staged.discard()
        self._candidates.close()
        self._changed.close()

    def run(self, progress: OptimizeProgress, carrier: BinCarrier) -> None:
        """Find, rewrite and commit small files."""
        self._find(progress)
        if self.result.dry_run:
            for bin_ in self._bins():
                self._count_removed(bin_)
        else:
            self._rewrite(progress, carrier)

    def _bins(self) -> Iterator[Bin]:
        settings = self._settings
        for files in self._candidates.partitions():
            if settings.curve is not None:
                yield Bin(tuple(files))
                continue
            if settings.purge:
                yield from (Bin((each,)) for each in files if each.deletion_vector is not None)
                continue
            yield from pack(files, self._target, below=self._below, least=settings.least_files)

    def _rewrite(self, progress: OptimizeProgress, carrier: BinCarrier) -> None:
        snapshot, done = self._snapshot, 0
        properties, budget = TableProperties.of(snapshot.metadata), self._settings.memory_budget
        rewriter = Rewriter(self._snapshot.table, snapshot.schema, properties, self._target, self._sort_by, budget)
        rewriter = replace(rewriter, curve=self._settings.curve)
        with closing(carrier(rewriter, self._bins())) as rewritten:
            for each in rewritten:
                self._staged.stage(_paths(each))
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
        for batch in snapshot.scan(request).batches():
            if self._selection is not None:
                self._selection.matches(batch)  # raises for files that the scan kept because it could not decide
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
            with Transaction.begin(
                self._snapshot.table, operation="OPTIMIZE", parameters=self._parameters(), known=self._snapshot
            ) as transaction:
                transaction.note = self._settings.note
                transaction.read_version = self._snapshot.version
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
            self._note(done)
            return

    def _look_at(self, transaction: Transaction) -> None:
        """Record what other writers have committed since the version that was read."""
        found = transaction.snapshot
        if found is None or (found.metadata, found.protocol) != (self._snapshot.metadata, self._snapshot.protocol):
            message = f"Another writer changed the metadata or protocol of {self._snapshot.uri} meanwhile"
            raise CommitConflictError(message, path=self._snapshot.uri, hint="run OPTIMIZE again")
        newer = commits_since(self._snapshot.store, self._seen, found.version)
        for commit in ReverseCommitReader(self._snapshot.store, newer):
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
            self._staged.discard(_paths(each))
            self.result.conflicts += len(each.bin.files)
            _log.info("%s was changed by another writer meanwhile, and is left as it is", each.bin.files[0].path)
        self._ready = kept

    def _stage(self, transaction: Transaction) -> None:
        now = transaction.deletion_time()
        sources = [file for each in self._ready for file in each.bin.files]
        transaction.remove(*(removal_of(each.as_add(), now, data_change=False) for each in sources))
        adds = [add for each in self._ready for add in each.adds]
        transaction.add_staged(self._staged, adds)
        transaction.metrics = {
            "numAddedFiles": str(len(adds)),
            "numAddedBytes": str(sum(each.size for each in adds)),
            "numRemovedFiles": str(len(sources)),
            "numRemovedBytes": str(sum(each.size for each in sources)),
            "numDeletionVectorsRemoved": str(sum(each.deletion_vector is not None for each in sources)),
        }

    def _note(self, done: CommitResult) -> None:
        ready, self._ready, self._staged = self._ready, [], StagedFiles(self._snapshot.store)
        for each in ready:
            results = [TaskResult(adds=each.adds, run_again=each.run_again)]
            clear_earlier_attempts(self._snapshot.store, results, each.adds, self.result.read_version)
            self._count_removed(each.bin)
            self.result.batches += each.batches
            for add in each.adds:
                self.result.added.add(add.size)
        # Our own commit changed only files that no other bin contains.
        self._seen = max(self._seen, done.version) if done.version == self._seen + 1 else self._seen
        self.result.version = done.version
        self.result.commits += 1
        self._last_commit = time.monotonic()
        if self._committed is not None:
            self._committed(done)

    def _count_removed(self, bin_: Bin) -> None:
        result = self.result
        self._touched.add(bin_.partition)
        result.partitions = len(self._touched)
        result.most_files_in_bin = max(result.most_files_in_bin, len(bin_.files))
        for file in bin_.files:
            result.removed.add(file.size)
            result.vectors += file.deletion_vector is not None

    def _parameters(self) -> dict[str, Any]:
        return {
            "predicate": [self._where] if self._where else [],
            "zOrderBy": list(self._sort_by) if self._settings.curve is not None else [],
            "sortBy": [] if self._settings.curve is not None else list(self._sort_by),
            "targetSize": self._target,
            "auto": self._settings.auto,
        }


def _paths(rewritten: Rewritten) -> list[str]:
    return [unquote(each.path) for each in rewritten.adds]


# Auto-compaction: small files are packed while a stream keeps committing.
#
# Only recently written partitions are considered, and only files well below the target size. A file is therefore
# rewritten a few times until it reaches the target, and not on every run.


# A run may have failed or been skipped: the next one covers its commits too.
_LOOK_BACK = 4 * COMPACTION_INTERVAL
_LEAST_FILES = 3
_SMALL_SHARE = 4


def auto_compact(handle: TableHandle, version: int, memory_budget: int) -> CommitResult | None:
    """Compact the files of recent commits up to ``version``. Return the last commit made, or None."""
    snapshot = handle.newest()
    target = target_size_of(snapshot.metadata)
    settings = OptimizeSettings(
        target_size=target,
        below=max(1, target // _SMALL_SHARE),
        least_files=_LEAST_FILES,
        memory_budget=memory_budget,
        auto=True,
    )
    where = _written_lately(handle, version, snapshot.schema)
    done: list[CommitResult] = []
    try:
        try:
            optimize(handle, where=where, settings=settings, committed=done.append)
        except PredicateError:
            # Some partition values cannot be compared: consider all partitions.
            optimize(handle, settings=settings, committed=done.append)
    except UnsupportedFeatureError as error:
        # Not a failure: a writer that supports these features compacts the table.
        _log.info("The files of %s are left as they are: %s", handle.uri, error)
    except CommitConflictError as error:
        _log.info(
            "The compaction of %s was ruled out by another writer; a later one tries again: %s", handle.uri, error
        )
    return done[-1] if done else None


def _written_lately(handle: TableHandle, version: int, schema: TableSchema) -> Where:
    """Return a predicate on the first partition column. Extra partitions that it matches only cost time."""
    if not schema.partition_columns:
        return None
    name, logged = schema.partition_columns[0], schema.physical_partition_columns[0]
    found: set[str | None] = set()
    commits = list(list_commits(handle.store, max(0, version - _LOOK_BACK + 1), version))
    for commit in ReverseCommitReader(handle.store, commits):
        for lines in commit.actions:
            found |= {line.add.partition_values.get(logged) or None for line in lines if line.add is not None}
    values = sorted(each for each in found if each is not None)
    alternatives: list[list[tuple[object, ...]]] = [[(name, "in", values)]] if values else []
    if None in found:
        alternatives.append([(name, "is null")])
    return alternatives or None
