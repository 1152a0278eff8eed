"""`TableWatch`: periodic maintenance of a table that other writers commit to.

A look costs one listing from the known checkpoint and one request for its manifest. The sidecar follows every published
checkpoint, regardless of its writer. Optionally, a look also writes a checkpoint if the writers write none, and the
version checksum at the head, without which opening the table reads all commits of the tail. If checkpoints are far
apart, delta sidecars cover the commits in between.

One process per machine looks at a table at a time. Two machines may duplicate work without harm: each object is
written with put-if-absent, or only ever moved forward.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import msgspec
import numpy as np

from lazydelta.errors import LazyDeltaError, ObjectNotFoundError, OptionError, UnsupportedFeatureError
from lazydelta.log.checksum.writer import start_checksums
from lazydelta.log.hint import CheckpointHint, read_hint
from lazydelta.log.segment import Checkpoint, LogSegment, load_segment
from lazydelta.maintenance.after_commit import MaintenanceRun, Outcome, run_once
from lazydelta.maintenance.policy import MaintenancePolicy, table_lock
from lazydelta.protocol.features import check_writable
from lazydelta.runtime.arrays import numpy_of
from lazydelta.runtime.metrics import WatchMetrics, export_watch
from lazydelta.runtime.threads import Bell, start_thread
from lazydelta.scan.request import ScanRequest, ScanStrategy
from lazydelta.sidecar.building.build import MEMORY_BUDGET, Progress
from lazydelta.sidecar.building.deltas import write_deltas
from lazydelta.sidecar.building.publish import BuildResult
from lazydelta.sidecar.format.columns import manifest_path
from lazydelta.sidecar.handle import TableHandle
from lazydelta.sidecar.reading.delta_spans import LONG_TAIL
from lazydelta.storage import ObjectInfo

__all__ = ["BackgroundWatch", "Foreseen", "Look", "TableWatch", "WatchSettings", "watch_tables"]


_log = logging.getLogger(__name__)

# After failures a table is skipped for one look, three, seven, …, so that a permanent failure costs less and less.
_LONGEST_REST = 63


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Settings for what a watch does in addition to the sidecar.

    ``checkpoint_every`` is the number of commits without a checkpoint after which the watch writes one, None for never.
    ``checksum`` writes the version checksum at the head. ``delta_every`` is the number of commits since the checkpoint
    after which a delta sidecar is written, None for never.
    """

    checkpoint_every: int | None = None
    checksum: bool = False
    memory_budget: int = MEMORY_BUDGET
    delta_every: int | None = LONG_TAIL

    def __post_init__(self) -> None:
        every, delta = self.checkpoint_every, self.delta_every
        if delta is not None and delta < 1:
            raise OptionError(
                f"A delta sidecar every {delta} commits is not valid", hint="use 1 or more, or None for none"
            )
        if every is not None and every < 1:
            raise OptionError(
                f"A checkpoint every {every} commits is not valid", hint="use 1 or more, or None for never"
            )


class Look(msgspec.Struct, kw_only=True, frozen=True):
    """Result of one look at a table.

    ``state`` is done, unchanged, waiting (no checkpoint for a sidecar yet), busy (another process of this machine
    maintains the table), resting (after failures) or failed, with ``error``. ``deltas`` is the number of delta sidecars
    written.
    """

    table: str
    state: str
    built: BuildResult | None = None
    checkpoint: int | None = None
    checksum: int | None = None
    deltas: int = 0
    error: str | None = None
    metrics: WatchMetrics


class Foreseen(msgspec.Struct, kw_only=True, frozen=True):
    """Preview of a look at a table whose newest version is ``version``."""

    table: str
    version: int
    checkpoint: bool
    sidecar: bool
    checksum: bool
    deltas: bool = False


@dataclass(slots=True)
class _Done:
    """Work done so far in a look."""

    built: BuildResult | None = None
    checkpoint: int | None = None
    checksum: int | None = None
    deltas: int = 0
    waiting: bool = False

    @property
    def state(self) -> str:
        is_new = self.built is not None and self.built.action != "already-valid"
        if is_new or self.checkpoint is not None or self.checksum is not None or self.deltas:
            return "done"
        return "waiting" if self.waiting else "unchanged"


class _FailedError(Exception):
    """A step failed. The failure is already logged."""


class TableWatch:
    """A watch over one table. Not thread-safe."""

    def __init__(
        self, handle: TableHandle, settings: WatchSettings | None = None, *, progress: Progress | None = None
    ) -> None:
        """Create without any request."""
        self.handle = handle
        self.metrics = WatchMetrics()
        self._settings = WatchSettings() if settings is None else settings
        self._progress = progress
        self._hint: CheckpointHint | None = None
        self._served: tuple[tuple[str, int, str | None], ...] | None = None
        self._made: int | None = None
        self._unwritable = False
        self._counted: int | None = None
        self._in_deltas = -1
        self._failures = self._rest = 0

    def look(self, *, patient: bool = True) -> Look:
        """Look once, and do the work that is due. Failures are logged, counted, returned and retried later.

        Without ``patient``, a table that failed is retried immediately.
        """
        before = msgspec.structs.replace(self.metrics)
        if patient and self._rest > 0:
            self._rest -= 1
            return self._told("resting")
        self.metrics.looks += 1
        done, error = _Done(), None
        try:
            with table_lock(self.handle) as lock:
                if lock is None:
                    self.metrics.busy += 1
                else:
                    self._look(done)
        except _FailedError as failed:
            error = str(failed)
        except (LazyDeltaError, OSError) as failed:
            _log.warning("Could not look after %s; it is tried again: %s", self.handle.uri, failed)
            error = str(failed)
        else:
            if lock is None:
                export_watch(before, self.metrics, self.handle.uri)
                return self._told("busy")
        if error is None:
            self._failures = self._rest = 0
        else:
            self.metrics.failures += 1
            self._failures += 1
            self._rest = min(2 ** (self._failures - 1), _LONGEST_REST + 1) - 1
        export_watch(before, self.metrics, self.handle.uri)
        return self._told(done.state if error is None else "failed", done, error)

    def foresee(self) -> Foreseen:
        """Return what a look would do now, without doing it. Failures are raised."""
        segment, manifest = self._found()
        lacks_checkpoint = self._lacks_checkpoint(segment)
        return Foreseen(
            table=self.handle.uri,
            version=segment.version,
            checkpoint=lacks_checkpoint,
            # An existing manifest is validated only by the refresh, which reads it.
            sidecar=lacks_checkpoint or (segment.checkpoint is not None and manifest is None),
            checksum=self._settings.checksum and _lacks_checksum(segment),
            deltas=not lacks_checkpoint and self._lacks_deltas(segment),
        )

    def _told(self, state: str, done: _Done | None = None, error: str | None = None) -> Look:
        done = _Done() if done is None else done
        return Look(
            table=self.handle.uri,
            state=state,
            built=done.built,
            checkpoint=done.checkpoint,
            checksum=done.checksum,
            deltas=done.deltas,
            error=error,
            metrics=msgspec.structs.replace(self.metrics),
        )

    def _look(self, done: _Done) -> None:
        segment, manifest = self._found()
        lacks_checkpoint = self._lacks_checkpoint(segment)
        if lacks_checkpoint or self._is_stale(segment.checkpoint, manifest):
            self._maintain(segment, done, lacks_checkpoint=lacks_checkpoint)
            segment, manifest = self._found()
        done.waiting = segment.checkpoint is None
        if self._lacks_deltas(segment):
            self._write_deltas(done)
        if self._settings.checksum and not self._unwritable:
            self._write_checksum(segment, done)

    def _lacks_checkpoint(self, segment: LogSegment) -> bool:
        every = self._settings.checkpoint_every
        return every is not None and segment.version - segment.base_version >= every

    def _lacks_deltas(self, segment: LogSegment) -> bool:
        every = self._settings.delta_every
        return every is not None and segment.version - max(segment.base_version, self._in_deltas) >= every

    def _write_deltas(self, done: _Done) -> None:
        settings = self._settings
        every = LONG_TAIL if settings.delta_every is None else settings.delta_every
        result = write_deltas(
            self.handle, at_least=every, memory_budget=settings.memory_budget, progress=self._progress
        )
        # Regardless of the result: commits that stayed JSON would stay JSON again.
        self._in_deltas = result.version
        done.deltas = len(result.written)
        self.metrics.deltas_written += done.deltas

    def _found(self) -> tuple[LogSegment, ObjectInfo | None]:
        """Return the current log segment and the manifest of its newest checkpoint, and update the metrics."""
        store, metrics = self.handle.store, self.metrics
        hint = read_hint(store) if self._hint is None else self._hint
        segment = load_segment(store, hint=hint)
        checkpoint, manifest = segment.checkpoint, None
        metrics.version, metrics.checkpoint_version = segment.version, None
        metrics.lag_commits = segment.version - (-1 if metrics.sidecar_version is None else metrics.sidecar_version)
        if checkpoint is None:
            self._hint = None
            return segment, None
        self._hint = CheckpointHint(version=checkpoint.version)
        metrics.checkpoint_version = checkpoint.version
        try:
            manifest = store.head(manifest_path(checkpoint.version))
        except ObjectNotFoundError:
            self._served = None
        now, published = time.time() * 1000, max(file.info.last_modified for file in checkpoint.files)
        metrics.lag_ms = max(0.0, round((now if manifest is None else manifest.last_modified) - published, 3))
        self._made = self._made if manifest is None else manifest.last_modified
        metrics.sidecar_age_ms = None if self._made is None else max(0.0, round(now - self._made, 3))
        return segment, manifest

    def _is_stale(self, checkpoint: Checkpoint | None, manifest: ObjectInfo | None) -> bool:
        # An existing manifest may belong to another checkpoint of the same version, which the refresh detects.
        return checkpoint is not None and (manifest is None or self._served != _identity(checkpoint))

    def _maintain(self, segment: LogSegment, done: _Done, *, lacks_checkpoint: bool) -> None:
        enough = segment.base_version + 1 if lacks_checkpoint else None
        due = MaintenancePolicy(segment.version, enough, cleans_log=False, follows=True)
        outcomes: list[Outcome] = []
        run_once(MaintenanceRun(self.handle, due, True, self._settings.memory_budget, self._progress), outcomes.append)  # noqa: FBT003
        for outcome in outcomes:
            if outcome.checkpoint_written:
                done.checkpoint = outcome.checkpoint
                self.metrics.checkpoints_written += 1
            if outcome.built is not None:
                done.built = outcome.built
                self.metrics.builds += outcome.built.action != "already-valid"
                self.metrics.build_ms = outcome.build_ms
        if failed := [error for outcome in outcomes for error in outcome.errors]:
            raise _FailedError("; ".join(failed))
        if done.built is not None:
            self.metrics.sidecar_version = done.built.version
            # A checkpoint published after the listing is checked again, because it may have been replaced since.
            seen = segment.checkpoint
            self._served = None if seen is None or seen.version != done.built.version else _identity(seen)

    def _write_checksum(self, segment: LogSegment, done: _Done) -> None:
        """Write the checksum at the head from a full replay of the checkpoint and all later commits.

        Delta-Spark treats a wrong checksum as a broken table, and the counts in other writers' commits may be wrong.
        """
        if not _lacks_checksum(segment) or segment.version == self._counted:
            return
        handle = self.handle
        snapshot = handle.newest()
        self._counted = snapshot.version  # regardless of the result: counting again would give the same one
        try:
            check_writable(snapshot.protocol, snapshot.metadata, path=handle.uri)
        except UnsupportedFeatureError as error:
            # Not a failure: a writer that supports these features can write the checksums.
            _log.info("%s gets no checksums from its watch: %s", handle.uri, error)
            self._unwritable = True
            return
        exact = snapshot.with_settings(sidecar_enabled=False)
        num_files = size = 0
        for batch in exact.scan(ScanRequest(strategy=ScanStrategy.FORWARD)).batches():
            num_files += len(batch)
            size += int(np.sum(numpy_of(batch.size)))
        if start_checksums(snapshot, num_files=num_files, size=size):
            done.checksum = snapshot.version
            self.metrics.checksums_written += 1


def _lacks_checksum(segment: LogSegment) -> bool:
    return segment.checksum is None or segment.checksum.version < segment.version


def _identity(checkpoint: Checkpoint) -> tuple[tuple[str, int, str | None], ...]:
    return tuple((file.path, file.info.size, file.info.etag) for file in checkpoint.files)


def watch_tables(
    watches: Sequence[TableWatch], report: Callable[[Look], None], *, interval: float, stop: threading.Event
) -> None:
    """Look at the tables one after the other, every ``interval`` seconds, until ``stop`` is set."""
    while not stop.is_set():
        began = time.monotonic()
        for watch in watches:
            report(watch.look())
            if stop.is_set():
                return
        stop.wait(max(0.0, interval - (time.monotonic() - began)))


# ``BackgroundWatch``: looks at a table in a background thread whenever the caller reports a possible change.


class BackgroundWatch:
    """A watch for programs that are notified of table changes and must not block.

    At most one look is active and one is waiting, regardless of the number of notifications. At exit the program waits
    for a look that has started.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        checkpoint_every: int | None = None,
        checksum: bool = False,
    ) -> None:
        """Create without any request or thread.

        ``checkpoint_every`` writes a checkpoint after that many commits without one. ``checksum`` writes the version
        checksum at the head if the writer did not. By default both are left to the writers.
        """
        settings = WatchSettings(checkpoint_every=checkpoint_every, checksum=checksum)
        self._watch = TableWatch(TableHandle.open(table, storage_options), settings)
        self._lock = threading.RLock()
        self._ended = Bell()
        self._thread: threading.Thread | None = None
        self._asked = self._closed = False
        self._last: Look | None = None

    def nudge(self) -> None:
        """Report that the table may have changed. Returns immediately."""
        with self._lock:
            if self._closed:
                return
            self._asked = True
            if self._thread is None:
                self._thread = start_thread(self._run, "lazydelta-watch", daemon=False)

    @property
    def last(self) -> Look | None:
        """The result of the last look, or None before the first one has finished."""
        with self._lock:
            return self._last

    @property
    def metrics(self) -> WatchMetrics:
        """The metrics of the last look."""
        with self._lock:
            return WatchMetrics() if self._last is None else self._last.metrics

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no look is active or waiting. Return False if that takes longer than ``timeout`` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._thread is not None and (until is None or time.monotonic() < until):
            self._ended.wait()
        return self._thread is None

    def close(self) -> None:
        """Accept no more nudges, and wait for the requested look."""
        with self._lock:
            self._closed = True
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._asked:
                    self._thread = None
                    self._ended.ring()
                    return
                self._asked = False
            try:
                look = self._watch.look()
            except BaseException:
                with self._lock:
                    self._asked, self._thread = False, None  # otherwise `wait` would block forever
                    self._ended.ring()
                raise
            with self._lock:
                self._last = look
