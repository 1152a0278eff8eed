"""What follows a commit: a checkpoint now and then, the hint, the sidecar, the clean-up of the log.

The order is safe to interrupt anywhere: each step only makes faster what already works without it, and the next one
that is due finds and completes what an interrupted one left out. The commit is acknowledged before any of it, so a
failure is logged and goes no further.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lazydelta.log.actions import Metadata
from lazydelta.sidecar.refresh import refresh
from lazydelta.storage import Store
from lazydelta.write.checkpoint import MEMORY_BUDGET, CheckpointResult, write_checkpoint
from lazydelta.write.cleanup import clean_log
from lazydelta.write.last_checkpoint import write_last_checkpoint
from lazydelta.write.properties import TableProperties

__all__ = ["MaintenanceRunner", "after_commit", "background", "is_due"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Job:
    store: Store
    version: int
    cleans: bool
    sidecar: bool
    memory_budget: int


def is_due(version: int, metadata: Metadata) -> bool:
    """Tell whether the table's properties ask for a checkpoint of this version."""
    return version > 0 and version % TableProperties.of(metadata).checkpoint_interval == 0


def after_commit(
    store: Store,
    version: int,
    metadata: Metadata,
    *,
    sidecar: bool = True,
    memory_budget: int = MEMORY_BUDGET,
) -> None:
    """Do what is due after the commit of ``version``: every ``delta.checkpointInterval`` commits, else nothing.

    If this process is at it for the same table, the work is left to that run, which goes on with the newest version
    that came meanwhile.
    """
    job = _job(store, version, metadata, sidecar=sidecar, memory_budget=memory_budget)
    if job is not None:
        _tables.run(job)


def _job(store: Store, version: int, metadata: Metadata, *, sidecar: bool, memory_budget: int) -> _Job | None:
    due = _attempt("read the properties", store, lambda: is_due(version, metadata))
    if not due:
        return None
    cleans = TableProperties.of(metadata).expired_log_cleanup
    return _Job(store, version, cleans, sidecar, memory_budget)


@dataclass(slots=True)
class _Tables:
    """The tables that are being worked on, each with the job that waits for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: dict[str, _Job | None] = field(default_factory=dict)

    def run(self, job: _Job) -> None:
        table = job.store.uri
        with self.lock:
            if table in self.waiting:
                other = self.waiting[table]
                if other is None or other.version < job.version:
                    self.waiting[table] = job
                return
            self.waiting[table] = None
        following: _Job | None = job
        try:
            while following is not None:
                _maintain(following)
                with self.lock:
                    following, self.waiting[table] = self.waiting[table], None
                    if following is None:
                        del self.waiting[table]
        except BaseException:
            with self.lock:
                self.waiting.pop(table, None)
            raise


_tables = _Tables()


def _maintain(job: _Job) -> None:
    store = job.store
    written: CheckpointResult | None = _attempt(
        f"write the checkpoint {job.version}",
        store,
        lambda: write_checkpoint(store, job.version, memory_budget=job.memory_budget),
    )
    if written is None:
        return
    _attempt("move _last_checkpoint", store, lambda: write_last_checkpoint(store, written))
    if job.sidecar:
        _attempt("refresh the sidecar", store, lambda: _refresh(store, job.memory_budget))
    if job.cleans:
        _attempt("clean the log", store, lambda: clean_log(store))


def _refresh(store: Store, memory_budget: int) -> object:
    return refresh(store.uri, storage_options=store._settings.options, memory_budget=memory_budget)  # noqa: SLF001


def _attempt(what: str, store: Store, work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns; a failure is logged, and None."""
    try:
        return work()
    except Exception:
        # Whatever it is: the commit stands, and its writer must not be told that it failed.
        logger.exception("Could not %s of %s; its commits are unharmed, and a later one tries again", what, store.uri)
        return None


class MaintenanceRunner:
    """Does maintenance in one thread, behind the writer's back; the program waits for it before it ends."""

    def __init__(self) -> None:
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False

    def after_commit(
        self,
        store: Store,
        version: int,
        metadata: Metadata,
        *,
        sidecar: bool = True,
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        """Leave to the thread what ``after_commit`` would do."""
        job = _job(store, version, metadata, sidecar=sidecar, memory_budget=memory_budget)
        if job is None:
            return
        with self._changed:
            # An older version that still waits is not worth its own checkpoint.
            kept = [each for each in self._jobs if each.store.uri != store.uri]
            self._jobs = deque([*kept, job])
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lazydelta-maintenance", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to do; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._busy, timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._jobs)
                job, self._busy = self._jobs.popleft(), True
            _tables.run(job)


_background: MaintenanceRunner | None = None
_lock = threading.Lock()
_hooked = False


def background() -> MaintenanceRunner:
    """Return the runner of this process."""
    global _background, _hooked  # noqa: PLW0603 - one thread for a process is the point
    with _lock:
        if _background is None:
            _background = MaintenanceRunner()
            if not _hooked:
                # Python stops its thread pools, which local reads need, before it calls what `atexit` knows; this hook
                # runs before that.
                getattr(threading, "_register_atexit", atexit.register)(_finish)
                _hooked = True
        return _background


def _finish() -> None:
    if _background is not None:
        _background.drain()


def _forget_after_fork() -> None:
    """Start anew in a forked child: it has neither the thread nor the work of its parent."""
    global _background, _tables, _lock
    _background, _tables, _lock = None, _Tables(), threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
