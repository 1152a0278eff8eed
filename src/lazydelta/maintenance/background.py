"""Checkpoint and sidecar maintenance of a streamed table in a separate process.

A micro-batch is committed in a worker that Spark may stop as soon as it is idle, so maintenance cannot run there. It
would also delay the next micro-batch. The process outlives the worker and, if needed, the query. It can be interrupted
safely at any point.

Failures are recorded in a file on the driver's machine, and the next run logs them as a warning.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401
import contextlib
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from lazydelta.errors import LazyDeltaError, OptionError
from lazydelta.maintenance.after_commit import MaintenanceRun, Outcome, after_commit, find_due, run_once
from lazydelta.maintenance.policy import is_due, machine_file, table_lock
from lazydelta.protocol.actions import Metadata
from lazydelta.runtime.threads import Bell, start_thread
from lazydelta.sidecar.handle import TableHandle
from lazydelta.write.checkpoint.writer import MEMORY_BUDGET

__all__ = [
    "BackgroundMaintenance",
    "MaintenanceStatus",
    "last_failure",
    "maintain_later",
    "maintain_now",
    "start_maintenance",
    "wait_for_maintenance",
]


# Maintenance in a background thread of a writer that keeps committing.


# With pandas installed, pyarrow imports `concurrent.futures.thread` when it first builds an array of Python objects.
# Python does not allow that import during interpreter shutdown, which a run may reach. Hence the import above.


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """Progress of maintenance.

    ``running`` and ``waiting`` are versions. ``runs`` counts finished runs, and ``failures`` the runs with a failed
    step. ``last_checkpoint`` and ``last_sidecar`` are the newest versions written or found. ``last_error`` is the error
    of the latest run, or None if it succeeded.
    """

    running: int | None = None
    waiting: int | None = None
    runs: int = 0
    failures: int = 0
    last_checkpoint: int | None = None
    last_sidecar: int | None = None
    last_error: str | None = None


class BackgroundMaintenance:
    """Maintenance of one table in a background thread, for a writer that keeps committing.

    At most one run is active and one is waiting, the newest that is due. At exit the program waits for offered work. A
    forked child starts with an empty state.
    """

    def __init__(
        self,
        table: TableHandle | str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        sidecar: bool = True,
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        """Create without any request or thread. ``table`` is a URI, or the handle of an open table."""
        if isinstance(table, TableHandle):
            if storage_options is not None:
                raise OptionError("storage_options belong to a URI", hint="an open table already has its own")
            self._handle = table
        else:
            self._handle = TableHandle.open(table, storage_options)
        self._sidecar = sidecar
        self._memory_budget = memory_budget
        self._begin()
        _living.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._ended = Bell()
        self._thread: threading.Thread | None = None
        self._next: MaintenanceRun | None = None
        self._seen: int | None = None
        self._closed = False
        self._status = MaintenanceStatus()

    def offer(self, version: int, metadata: Metadata, *, force: bool = False) -> bool:
        """Report a commit, and return immediately whether maintenance is due. The thread then performs it.

        Maintenance is due at each multiple of ``delta.checkpointInterval``, even if another writer made that commit, or
        with ``force``. Offer every commit.
        """
        with self._lock:
            if self._closed:
                return False
            due = find_due(self._handle, version, metadata, since=self._seen, force=force)
            self._seen = version if self._seen is None else max(self._seen, version)
            if due is None:
                return False
            if self._next is None or self._next.due.version < version:
                # An older version that is still waiting does not need its own checkpoint.
                due = due.after(None if self._next is None else self._next.due)
                self._next = MaintenanceRun(self._handle, due, self._sidecar, self._memory_budget)
                self._status = replace(self._status, waiting=version)
            if self._thread is None:
                # Not a daemon thread: at exit Python waits for it before it tears down what the run needs.
                self._thread = start_thread(self._run, "lazydelta-maintenance", daemon=False)
        return True

    @property
    def status(self) -> MaintenanceStatus:
        """The current progress."""
        with self._lock:
            return self._status

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no run is active or waiting. Return False if that takes longer than ``timeout`` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._thread is not None and (until is None or time.monotonic() < until):
            self._ended.wait()
        return self._thread is None

    def close(self, *, wait: bool = True, timeout: float | None = None) -> bool:
        """Accept no more offers, and finish the offered work. Without ``wait``, drop the run that has not started.

        Return False if ``timeout`` seconds were not enough or, without ``wait``, if a run is still active.
        """
        with self._lock:
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
            with self._lock:
                run, self._next = self._next, None
                self._status = replace(self._status, running=None if run is None else run.due.version, waiting=None)
                if run is None:
                    self._end()
                    return
            try:
                run_once(run, self._note)
            except BaseException:
                with self._lock:
                    self._end()  # otherwise `wait` would block forever
                raise

    def _end(self) -> None:
        self._thread = None
        self._status = replace(self._status, running=None)
        self._ended.ring()

    def _note(self, done: Outcome) -> None:
        with self._lock:
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


def _forget_after_fork() -> None:
    """Reset the state in a forked child, which has neither the threads nor the work of its parent."""
    for each in list(_living):
        each._begin()  # noqa: SLF001 - same module


os.register_at_fork(after_in_child=_forget_after_fork)


_log = logging.getLogger(__name__)


def start_maintenance(handle: TableHandle) -> None:
    """Start maintenance of a table. If it is already running on this machine, that run picks up the new work.

    Never raises: the commit that made maintenance due is valid.
    """
    try:
        with table_lock(handle) as lock:
            if lock is None:
                return
            failure = _noted_failure(handle)
            if failure is not None:
                _log.warning("The last maintenance of %s failed, and is tried again: %s", handle.uri, failure)
            _start(handle, lock.fileno())
    except (LazyDeltaError, OSError) as error:
        _log.warning("Could not start the maintenance of %s; a later commit tries again: %s", handle.uri, error)


def _start(handle: TableHandle, lock: int) -> None:
    # Spark adds files sent to the cluster to the search path of this process, but not to its environment.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-c", f"from {__name__} import run; run()", str(lock)],
        stdin=subprocess.PIPE,  # not arguments: other users could read the credentials there
        stdout=subprocess.DEVNULL,
        stderr=None,  # Spark shows the stderr of its workers, and keeps it in the driver's log
        pass_fds=[lock],  # the lock belongs to the processes that have the file open, from now on the new process
        start_new_session=True,
        env=environment,
    )
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            pickle.dump(handle.carrying_credentials(), process.stdin)
            process.stdin.close()
    _started.append(process)
    _started[:] = [each for each in _started if each.poll() is None]  # reap finished processes


_started: list[subprocess.Popen[bytes]] = []


def maintain_now(handle: TableHandle, version: int, metadata: Metadata) -> None:
    """Run the maintenance that is due after a commit before returning, unless it is already running on this machine.

    Never raises: the commit is valid.
    """
    try:
        if not is_due(version, metadata):
            return
        with table_lock(handle) as lock:
            if lock is None:
                return
            after_commit(handle, version, metadata)
        if _fell_due(handle, version):
            start_maintenance(handle)
    except (LazyDeltaError, OSError) as error:
        _log.warning("Could not maintain %s; a later commit tries again: %s", handle.uri, error)


def maintain_later(handle: TableHandle, version: int, metadata: Metadata) -> None:
    """Start the maintenance that is due after a commit in a separate process. Never raises."""
    try:
        due = is_due(version, metadata)
    except LazyDeltaError as error:
        _log.warning("Could not maintain %s; a later commit tries again: %s", handle.uri, error)
    else:
        if due:
            start_maintenance(handle)


def last_failure(uri: str, storage_options: Mapping[str, str] | None = None) -> str | None:
    """Return the error of the last maintenance on this machine, or None if it succeeded or never ran."""
    return _noted_failure(TableHandle.open(uri, storage_options))


def _noted_failure(handle: TableHandle) -> str | None:
    try:
        return machine_file(handle, "failure").read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def wait_for_maintenance(uri: str, timeout: float, storage_options: Mapping[str, str] | None = None) -> bool:
    """Wait until no process on this machine maintains the table. Return False if that takes longer than ``timeout``."""
    handle = TableHandle.open(uri, storage_options)
    deadline = time.monotonic() + timeout
    while True:
        with table_lock(handle) as lock:
            if lock is not None:
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)


def run() -> None:
    """Maintain the table pickled on standard input. The first argument is the file descriptor of the lock."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    handle: TableHandle = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
    inherited = os.fdopen(int(sys.argv[1]), "w")
    with inherited:
        done, failure = _run(handle)
    while failure is None and _fell_due(handle, done):
        with table_lock(handle) as lock:
            if lock is None:
                return
            done, failure = _run(handle)


def _fell_due(handle: TableHandle, done: int) -> bool:
    """Return whether more became due while ``done`` was processed: processes that found the lock taken rely on it."""
    newest = handle.newest()
    return is_due(newest.version, newest.metadata, since=done)


def _run(handle: TableHandle) -> tuple[int, str | None]:
    """Maintain the newest version. Return the version and the error, which is also recorded for other processes."""
    version, failure = -1, None
    try:
        snapshot = handle.newest()
        version = snapshot.version
        with BackgroundMaintenance(handle) as maintenance:
            maintenance.offer(version, snapshot.metadata, force=True)
        failure = maintenance.status.last_error
    except LazyDeltaError as error:
        _log.exception("Could not maintain %s; its commits are unharmed, and a later one tries again", handle.uri)
        failure = str(error)
    note = machine_file(handle, "failure")
    if failure is None:
        note.unlink(missing_ok=True)
    else:
        timestamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        note.write_text(f"{timestamp}: {failure}\n", encoding="utf-8")
    return version, failure
