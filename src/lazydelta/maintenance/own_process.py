"""Checkpoint and sidecar of a streamed table, in a process of their own.

A micro-batch is committed in a worker that Spark may end as soon as it is idle, so the work cannot live there; and it
would hold up the next micro-batch. The process outlives the worker, and the query too if need be: whatever it leaves
half done is safe to leave.

What goes wrong stands in a file on the driver's machine, and whoever starts the next run warns of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from lazydelta.errors import LazyDeltaError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Metadata
from lazydelta.log.snapshot_opening import open_snapshot
from lazydelta.maintenance.due import is_due
from lazydelta.maintenance.once import after_commit
from lazydelta.maintenance.own_thread import BackgroundMaintenance
from lazydelta.storage import redact

__all__ = ["last_failure", "maintain_later", "maintain_now", "start_maintenance", "wait_for_maintenance"]

_log = logging.getLogger(__name__)

# Whoever only looks whether the lock is free has it for a moment.
_PAUSES = (0.001, 0.002, 0.004, 0)


def start_maintenance(uri: str, storage_options: Mapping[str, str]) -> None:
    """Begin to maintain a table; if that is under way on this machine, the one at work sees to what is new.

    Never raises: the commit that made it due stands.
    """
    try:
        with _lock(uri, storage_options) as lock:
            if lock is None:
                return
            failure = last_failure(uri, storage_options)
            if failure is not None:
                _log.warning("The last maintenance of %s failed, and is tried again: %s", redact(uri), failure)
            _start(uri, storage_options, lock.fileno())
    except (LazyDeltaError, OSError) as error:
        _log.warning("Could not start the maintenance of %s; a later commit tries again: %s", redact(uri), error)


def _start(uri: str, storage_options: Mapping[str, str], lock: int) -> None:
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
        text=True,
    )
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            json.dump({"uri": uri, "storage_options": dict(storage_options)}, process.stdin)
            process.stdin.close()
    _started.append(process)
    _started[:] = [each for each in _started if each.poll() is None]  # or they would stay as zombies


_started: list[subprocess.Popen[str]] = []


def maintain_now(uri: str, storage_options: Mapping[str, str], version: int, metadata: Metadata) -> None:
    """Do what is due after a commit, before it returns; if that is under way on this machine, leave it to that run.

    Never raises: the commit stands.
    """
    try:
        if not is_due(version, metadata):
            return
        with _lock(uri, storage_options) as lock:
            if lock is None:
                return
            after_commit(TableHandle.open(uri, storage_options).store, version, metadata)
        if _fell_due(uri, storage_options, version):
            start_maintenance(uri, storage_options)
    except (LazyDeltaError, OSError) as error:
        _log.warning("Could not maintain %s; a later commit tries again: %s", redact(uri), error)


def maintain_later(uri: str, storage_options: Mapping[str, str], version: int, metadata: Metadata) -> None:
    """Begin to do what is due after a commit, in a process of its own; never raises either."""
    try:
        due = is_due(version, metadata)
    except LazyDeltaError as error:
        _log.warning("Could not maintain %s; a later commit tries again: %s", redact(uri), error)
    else:
        if due:
            start_maintenance(uri, storage_options)


def last_failure(uri: str, storage_options: Mapping[str, str] | None = None) -> str | None:
    """Return what went wrong when this machine last maintained the table; None if all went well, or it never did."""
    try:
        return _file(uri, storage_options, "failure").read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def wait_for_maintenance(uri: str, timeout: float, storage_options: Mapping[str, str] | None = None) -> bool:
    """Wait until nobody on this machine maintains the table; False if that takes longer."""
    deadline = time.monotonic() + timeout
    while True:
        with _lock(uri, storage_options) as lock:
            if lock is not None:
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)


@contextlib.contextmanager
def _lock(uri: str, storage_options: Mapping[str, str] | None) -> Iterator[TextIO | None]:
    """Hold what only one process of this machine may hold for a table; None if another has it."""
    with _file(uri, storage_options, "lock").open("w") as file:
        for pause in _PAUSES:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(pause)
            else:
                yield file
                return
        yield None


def _file(uri: str, storage_options: Mapping[str, str] | None, kind: str) -> Path:
    """Return a file of this user and machine for a table, by its one canonical name."""
    folder = Path(tempfile.gettempdir()) / f"lazydelta-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    table = TableHandle.open(uri, storage_options).uri
    return folder / f"maintenance-{hashlib.sha256(table.encode()).hexdigest()[:32]}.{kind}"


def run() -> None:
    """Maintain the table that standard input names, under the lock whose file is open as the first argument says."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    request = json.load(sys.stdin)
    uri, storage_options = request["uri"], request["storage_options"]
    inherited = os.fdopen(int(sys.argv[1]), "w")
    with inherited:
        done, failure = _run(uri, storage_options)
    while failure is None and _fell_due(uri, storage_options, done):
        with _lock(uri, storage_options) as lock:
            if lock is None:
                return
            done, failure = _run(uri, storage_options)


def _fell_due(uri: str, storage_options: Mapping[str, str], done: int) -> bool:
    """Tell whether more fell due while ``done`` was seen to: others were refused by the lock, and rely on us."""
    newest = TableHandle.open(uri, storage_options).newest()
    return is_due(newest.version, newest.metadata, since=done)


def _run(uri: str, storage_options: Mapping[str, str]) -> tuple[int, str | None]:
    """Maintain the newest version; return it, and what went wrong, which is noted for others too."""
    version, failure = -1, None
    try:
        store = TableHandle.open(uri, storage_options).store
        snapshot = open_snapshot(store)
        version = snapshot.version
        with BackgroundMaintenance(store) as maintenance:
            maintenance.offer(version, snapshot.metadata, force=True)
        failure = maintenance.status.last_error
    except LazyDeltaError as error:
        _log.exception("Could not maintain %s; its commits are unharmed, and a later one tries again", redact(uri))
        failure = str(error)
    note = _file(uri, storage_options, "failure")
    if failure is None:
        note.unlink(missing_ok=True)
    else:
        moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        note.write_text(f"{moment}: {failure}\n", encoding="utf-8")
    return version, failure
