"""What follows a commit: a checkpoint now and then, the hint, the sidecar, the clean-up of the log.

The order is safe to interrupt anywhere: each step only makes faster what already works without it, and the next one
that is due finds and completes what an interrupted one left out. The commit is acknowledged before any of it, so a
failure is logged and goes no further.

Several processes may do it at once. Each object is put where there is none, or only ever moved forward, so that the
slower one does work in vain and no harm.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from lazydelta.errors import OptionError, UnsupportedFeatureError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Metadata
from lazydelta.log.properties import TableProperties
from lazydelta.maintenance.log_cleanup import clean_log
from lazydelta.sidecar.building.refresher import refresh_at
from lazydelta.storage import Store
from lazydelta.write.checkpoint import MEMORY_BUDGET, write_checkpoint
from lazydelta.write.last_checkpoint import write_last_checkpoint

__all__ = ["BackgroundMaintenance", "MaintenanceStatus", "after_commit", "is_due"]

logger = logging.getLogger(__name__)


def is_due(version: int, metadata: Metadata) -> bool:
    """Tell whether the table's properties ask for a checkpoint of this version."""
    return _is_due(version, version - 1, TableProperties.of(metadata))


def _is_due(version: int, before: int, properties: TableProperties) -> bool:
    """Tell whether a checkpoint fell due after ``before`` and up to ``version``."""
    return version // properties.checkpoint_interval > max(before, 0) // properties.checkpoint_interval


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
    properties = _properties(store, metadata)
    if properties is not None and _is_due(version, version - 1, properties):
        _tables.run(_Job(store, version, version, properties.expired_log_cleanup, sidecar, memory_budget))


def _properties(store: Store, metadata: Metadata) -> TableProperties | None:
    found: TableProperties | None = _attempt("read the properties", store, lambda: TableProperties.of(metadata), [])
    return found


# --- one run


@dataclass(frozen=True, slots=True)
class _Job:
    """One run to do; any checkpoint from ``enough`` on will do."""

    store: Store
    version: int
    enough: int
    cleans: bool
    sidecar: bool
    memory_budget: int


@dataclass(slots=True)
class _Outcome:
    checkpoint: int | None = None
    sidecar: int | None = None
    errors: list[str] = field(default_factory=list)


def _maintain(job: _Job) -> _Outcome:
    store, done = job.store, _Outcome()
    written = _attempt(
        f"write the checkpoint {job.version}",
        store,
        lambda: write_checkpoint(store, job.version, enough=job.enough, memory_budget=job.memory_budget),
        done.errors,
    )
    if written is None:
        return done
    done.checkpoint = written.version
    _attempt("move _last_checkpoint", store, lambda: write_last_checkpoint(store, written), done.errors)
    if job.sidecar:
        built = _attempt(
            "refresh the sidecar",
            store,
            lambda: refresh_at(TableHandle.of(store), memory_budget=job.memory_budget),
            done.errors,
        )
        done.sidecar = None if built is None else built.version
    if job.cleans:
        _attempt("clean the log", store, lambda: _clean(store), done.errors)
    return done


def _clean(store: Store) -> None:
    try:
        clean_log(store)
    except UnsupportedFeatureError as error:
        # A fact of the table and no failure: whoever writes such tables cleans their log.
        logger.info("The log of %s is left as it is: %s", store.uri, error)


def _attempt(what: str, store: Store, work: Callable[[], Any], errors: list[str]) -> Any:
    """Return what ``work`` returns; a failure is logged and noted, and None."""
    try:
        return work()
    except Exception as error:
        # Whatever it is: the commit stands, and its writer must not be told that it failed.
        logger.exception("Could not %s of %s; its commits are unharmed, and a later one tries again", what, store.uri)
        errors.append(f"{what}: {error}")
        return None


# --- one run at a time


@dataclass(slots=True)
class _Tables:
    """The tables that are being worked on in this process, each with the job that waits for it."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: dict[str, _Job | None] = field(default_factory=dict)

    def run(self, job: _Job, report: Callable[[_Outcome], None] | None = None, *, patient: bool = False) -> None:
        """Do a job now, or after the run that is under way; who is not ``patient`` leaves it to that run."""
        table = job.store.uri
        with self.changed:
            if table in self.waiting and not patient:
                other = self.waiting[table]
                if other is None or other.version < job.version:
                    self.waiting[table] = job
                return
            self.changed.wait_for(lambda: table not in self.waiting)
            self.waiting[table] = None
        following: _Job | None = job
        try:
            while following is not None:
                done = _maintain(following)
                if report is not None:
                    report(done)
                with self.changed:
                    following, self.waiting[table] = self.waiting[table], None
                    if following is None:
                        self._leave(table)
        except BaseException:
            with self.changed:
                self._leave(table)
            raise

    def _leave(self, table: str) -> None:
        self.waiting.pop(table, None)
        self.changed.notify_all()


_tables = _Tables()


# --- behind the writer's back


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """How far maintenance is.

    ``running`` and ``waiting`` are versions. ``runs`` counts those that are over, ``failures`` those of them in which a
    step failed. ``last_checkpoint`` and ``last_sidecar`` are the newest that were written or found there.
    ``last_error`` is that of the latest run, None if it went well.
    """

    running: int | None = None
    waiting: int | None = None
    runs: int = 0
    failures: int = 0
    last_checkpoint: int | None = None
    last_sidecar: int | None = None
    last_error: str | None = None


class BackgroundMaintenance:
    """Maintenance of one table in a thread of its own, for a writer that goes on committing meanwhile.

    At most one run is under way and one waits, the newest that fell due. The program waits at its end for the run that
    is under way. A forked child has none of it and starts anew.
    """

    def __init__(
        self,
        table: Store | str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        sidecar: bool = True,
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        """Make no request and start no thread; ``table`` is a URI, or a store that is open."""
        if isinstance(table, Store):
            if storage_options is not None:
                raise OptionError("storage_options belong to a URI", hint="a store that is open has its own")
            self._store = table
        else:
            self._store = TableHandle.open(table, storage_options).store
        self._sidecar = sidecar
        self._memory_budget = memory_budget
        self._begin()
        _watch(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._next: _Job | None = None
        self._seen: int | None = None
        self._closed = False
        self._status = MaintenanceStatus()

    def offer(self, version: int, metadata: Metadata, *, force: bool = False) -> bool:
        """Tell of a commit; return at once whether that makes maintenance due, which the thread then does.

        It falls due with each multiple of ``delta.checkpointInterval``, also where another writer made that very
        commit, or with ``force``. Every commit should be offered.
        """
        properties = _properties(self._store, metadata)
        if properties is None:
            return False
        with self._changed:
            if self._closed:
                return False
            before = version - 1 if self._seen is None else self._seen
            self._seen = max(before, version)
            if not (force or _is_due(version, before, properties)):
                return False
            enough = version if force else version - version % properties.checkpoint_interval
            if self._next is None or self._next.version < version:
                # An older version that still waits is not worth a checkpoint of its own.
                self._next = _Job(
                    self._store, version, enough, properties.expired_log_cleanup, self._sidecar, self._memory_budget
                )
                self._status = replace(self._status, waiting=version)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lazydelta-maintenance", daemon=True)
                self._thread.start()
        return True

    @property
    def status(self) -> MaintenanceStatus:
        """How far it is."""
        with self._changed:
            return self._status

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is under way nor waits; False if that took longer than ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def close(self, *, wait: bool = True, timeout: float | None = None) -> bool:
        """Take no more offers; finish what was offered, or without ``wait`` drop what has not begun.

        False if ``timeout`` seconds were not enough, or if, without ``wait``, a run is still under way.
        """
        with self._changed:
            self._closed = True
            if not wait:
                self._next = None
                self._status = replace(self._status, waiting=None)
        return self.wait(timeout if wait else 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                job, self._next = self._next, None
                self._status = replace(self._status, running=None if job is None else job.version, waiting=None)
                if job is None:
                    self._end()
                    return
            try:
                _tables.run(job, self._note, patient=True)
            except BaseException:
                with self._changed:
                    self._end()  # else whoever waits would wait for ever
                raise

    def _end(self) -> None:
        self._thread = None
        self._status = replace(self._status, running=None)
        self._changed.notify_all()

    def _note(self, done: _Outcome) -> None:
        with self._changed:
            before = self._status
            self._status = replace(
                before,
                runs=before.runs + 1,
                failures=before.failures + bool(done.errors),
                last_checkpoint=before.last_checkpoint if done.checkpoint is None else done.checkpoint,
                last_sidecar=before.last_sidecar if done.sidecar is None else done.sidecar,
                last_error="; ".join(done.errors) or None,
            )


_living: weakref.WeakSet[BackgroundMaintenance] = weakref.WeakSet()
_living_lock = threading.Lock()
_hooked = False


def _watch(maintenance: BackgroundMaintenance) -> None:
    global _hooked  # noqa: PLW0603 - one hook for a process
    with _living_lock:
        _living.add(maintenance)
        if not _hooked:
            # Python stops its thread pools, which local reads need, before it calls what `atexit` knows; this hook
            # runs before that.
            getattr(threading, "_register_atexit", atexit.register)(_finish)
            _hooked = True


def _finish() -> None:
    with _living_lock:
        left = list(_living)
    for each in left:
        each.close()


def _forget_after_fork() -> None:
    """Start anew in a forked child: it has neither the threads nor the work of its parent."""
    global _tables, _living_lock
    _tables, _living_lock = _Tables(), threading.Lock()
    for each in list(_living):
        each._begin()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_forget_after_fork)
