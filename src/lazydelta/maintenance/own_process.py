"""Checkpoint and sidecar of a streamed table, in a process of their own.

A micro-batch is committed in a worker that Spark may end as soon as it is idle, so the work cannot live there; and it
would hold up the next micro-batch. The process outlives the worker, and the query too if need be: whatever it leaves
half done is safe to leave.

What goes wrong stands in a file on the driver's machine, and whoever starts the next run warns of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Mapping

from lazydelta.errors import LazyDeltaError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Metadata
from lazydelta.maintenance.due import is_due
from lazydelta.maintenance.once import after_commit
from lazydelta.maintenance.own_thread import BackgroundMaintenance
from lazydelta.maintenance.table_lock import machine_file, table_lock

__all__ = ["last_failure", "maintain_later", "maintain_now", "start_maintenance", "wait_for_maintenance"]

_log = logging.getLogger(__name__)


def start_maintenance(handle: TableHandle) -> None:
    """Begin to maintain a table; if that is under way on this machine, the one at work sees to what is new.

    Never raises: the commit that made it due stands.
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
    # Spark adds to this process's search path what was sent to the cluster, and not to its environment.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-c", f"from {__name__} import run; run()", str(lock)],
        stdin=subprocess.PIPE,  # not arguments: others could read credentials there
        stdout=subprocess.DEVNULL,
        stderr=None,  # Spark shows what its workers write there, and keeps it in the driver's log
        pass_fds=[lock],  # the lock is that of whoever has the file open, from now on the new process
        start_new_session=True,
        env=environment,
    )
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            pickle.dump(handle.carrying_credentials(), process.stdin)
            process.stdin.close()
    _started.append(process)
    _started[:] = [each for each in _started if each.poll() is None]  # or they would stay as zombies


_started: list[subprocess.Popen[bytes]] = []


def maintain_now(handle: TableHandle, version: int, metadata: Metadata) -> None:
    """Do what is due after a commit, before it returns; if that is under way on this machine, leave it to that run.

    Never raises: the commit stands.
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
    """Begin to do what is due after a commit, in a process of its own; never raises either."""
    try:
        due = is_due(version, metadata)
    except LazyDeltaError as error:
        _log.warning("Could not maintain %s; a later commit tries again: %s", handle.uri, error)
    else:
        if due:
            start_maintenance(handle)


def last_failure(uri: str, storage_options: Mapping[str, str] | None = None) -> str | None:
    """Return what went wrong when this machine last maintained the table; None if all went well, or it never did."""
    return _noted_failure(TableHandle.open(uri, storage_options))


def _noted_failure(handle: TableHandle) -> str | None:
    try:
        return machine_file(handle, "failure").read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def wait_for_maintenance(uri: str, timeout: float, storage_options: Mapping[str, str] | None = None) -> bool:
    """Wait until nobody on this machine maintains the table; False if that takes longer."""
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
    """Maintain the table that standard input describes, under the lock that is open as the first argument says."""
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
    """Tell whether more fell due while ``done`` was seen to: others were refused by the lock, and rely on us."""
    newest = handle.newest()
    return is_due(newest.version, newest.metadata, since=done)


def _run(handle: TableHandle) -> tuple[int, str | None]:
    """Maintain the newest version; return it, and what went wrong, which is noted for others too."""
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
        moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        note.write_text(f"{moment}: {failure}\n", encoding="utf-8")
    return version, failure
