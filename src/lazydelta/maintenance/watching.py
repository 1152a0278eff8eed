"""``TableWatch``: a table that others write, looked at now and then, so that its sidecar keeps up with its checkpoints.

A look costs one listing from the checkpoint that is known and one question after its manifest. Whoever published a
checkpoint, the sidecar follows it. Where it is asked for, a look also writes the checkpoint that nobody else writes and
the version checksum at the head, without which opening reads all commits of the tail. Where checkpoints are far apart,
delta sidecars keep up with the commits in between.

One process of a machine looks at a table at a time. Two machines may do work in vain, and no harm: each object is put
where there is none, or only ever moved forward.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from lazydelta.arrays import numpy_of
from lazydelta.errors import LazyDeltaError, ObjectNotFoundError, OptionError, UnsupportedFeatureError
from lazydelta.handle import TableHandle
from lazydelta.log.checksum.checksum_writer import start_checksums
from lazydelta.log.features.writable import check_writable
from lazydelta.log.hint import CheckpointHint, read_hint
from lazydelta.log.segment import Checkpoint, LogSegment, load_segment
from lazydelta.maintenance.due import Due
from lazydelta.maintenance.once import Outcome, Run, run_once
from lazydelta.maintenance.table_lock import table_lock
from lazydelta.metrics import WatchMetrics
from lazydelta.scan.request import ScanRequest, ScanStrategy
from lazydelta.sidecar.building.builder import MEMORY_BUDGET, Progress
from lazydelta.sidecar.building.delta_builder import write_deltas
from lazydelta.sidecar.building.publication import BuildResult
from lazydelta.sidecar.layout.sidecar_columns import manifest_path
from lazydelta.sidecar.reading.delta_spans import LONG_TAIL
from lazydelta.storage import ObjectInfo
from lazydelta.telemetry import export_watch

__all__ = ["Foreseen", "Look", "TableWatch", "WatchSettings", "watch_tables"]

_log = logging.getLogger(__name__)

# After failures a table is passed by for one look, three, seven, …, so that what cannot succeed costs ever less.
_LONGEST_REST = 63


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """What a watch does beyond keeping the sidecar.

    ``checkpoint_every`` is after how many commits without a checkpoint it writes one, None for never; ``checksum`` is
    whether it writes the version checksum at the head; ``delta_every`` is how many commits since the checkpoint make a
    delta sidecar, None for none.
    """

    checkpoint_every: int | None = None
    checksum: bool = False
    memory_budget: int = MEMORY_BUDGET
    delta_every: int | None = LONG_TAIL

    def __post_init__(self) -> None:
        every, delta = self.checkpoint_every, self.delta_every
        if delta is not None and delta < 1:
            raise OptionError(
                f"A delta sidecar every {delta} commits makes no sense", hint="1 or more, or None for none"
            )
        if every is not None and every < 1:
            raise OptionError(f"A checkpoint every {every} commits makes no sense", hint="1 or more, or None for never")


class Look(msgspec.Struct, kw_only=True, frozen=True):
    """What one look at a table found and did.

    ``state`` is done, unchanged, waiting (there is no checkpoint that a sidecar could mirror), busy (another process
    of this machine is at the table), resting (after failures) or failed, with ``error``. ``deltas`` is how many delta
    sidecars it wrote.
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
    """What a look would do to a table whose newest version is ``version``."""

    table: str
    version: int
    checkpoint: bool
    sidecar: bool
    checksum: bool
    deltas: bool = False


@dataclass(slots=True)
class _Done:
    """What a look has done so far."""

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
    """A step failed, which has been logged."""


class TableWatch:
    """A watch over one table; not to be shared between threads."""

    def __init__(
        self, handle: TableHandle, settings: WatchSettings | None = None, *, progress: Progress | None = None
    ) -> None:
        """Make no request."""
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
        """Look once, and do what is to be done; what fails is logged, counted and told, and tried again later.

        Without ``patient`` a table that failed is looked at again at once.
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
        """Tell what a look would do now, and do nothing; what fails is raised."""
        segment, manifest = self._found()
        lacks_checkpoint = self._lacks_checkpoint(segment)
        return Foreseen(
            table=self.handle.uri,
            version=segment.version,
            checkpoint=lacks_checkpoint,
            # A manifest that is there is judged by the refresh, which would read it.
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
        # Whatever came of it: what stayed JSON would stay so again.
        self._in_deltas = result.version
        done.deltas = len(result.written)
        self.metrics.deltas_written += done.deltas

    def _found(self) -> tuple[LogSegment, ObjectInfo | None]:
        """Return the log as it is now, and the manifest of its newest checkpoint; both are measured."""
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
        # A manifest that is there may be of another checkpoint of the same version, which the refresh finds out.
        return checkpoint is not None and (manifest is None or self._served != _identity(checkpoint))

    def _maintain(self, segment: LogSegment, done: _Done, *, lacks_checkpoint: bool) -> None:
        enough = segment.base_version + 1 if lacks_checkpoint else None
        due = Due(segment.version, enough, cleans_log=False, follows=True)
        outcomes: list[Outcome] = []
        run_once(Run(self.handle, due, True, self._settings.memory_budget, self._progress), outcomes.append)  # noqa: FBT003
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
            # What was published since the log was listed is looked at again: it may have been replaced by now.
            seen = segment.checkpoint
            self._served = None if seen is None or seen.version != done.built.version else _identity(seen)

    def _write_checksum(self, segment: LogSegment, done: _Done) -> None:
        """Write the checksum at the head from a replay of the checkpoint and every commit since: no shorter way.

        Delta-Spark takes a wrong one for a broken table, and other writers' commits need not add up.
        """
        if not _lacks_checksum(segment) or segment.version == self._counted:
            return
        handle = self.handle
        snapshot = handle.newest()
        self._counted = snapshot.version  # whatever comes of it: to count again would come to the same
        try:
            check_writable(snapshot.protocol, snapshot.metadata, path=handle.uri)
        except UnsupportedFeatureError as error:
            # A fact of the table and no failure: whoever knows its features may write its checksums.
            _log.info("%s gets no checksums from its watch: %s", handle.uri, error)
            self._unwritable = True
            return
        exact = msgspec.structs.replace(handle, options=msgspec.structs.replace(handle.options, sidecar_enabled=False))
        num_files = size = 0
        for batch in exact.scan(snapshot, ScanRequest(strategy=ScanStrategy.FORWARD)).batches():
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
    """Look at tables one after the other, and again when ``interval`` seconds are over, until ``stop`` is set."""
    while not stop.is_set():
        began = time.monotonic()
        for watch in watches:
            report(watch.look())
            if stop.is_set():
                return
        stop.wait(max(0.0, interval - (time.monotonic() - began)))
