"""Checkpoint and sidecar of a streamed table, in a process of their own.

A micro-batch is committed in a worker that Spark may end as soon as it is idle, so the work cannot live there; and it
would hold up the next micro-batch. The process outlives the worker, and the query too if need be: whatever it leaves
half done is safe to leave.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from lazydelta.log.opening import open_snapshot
from lazydelta.storage import open_store
from lazydelta.write.maintenance import BackgroundMaintenance

__all__ = ["start_maintenance", "wait_for_maintenance"]


def start_maintenance(uri: str, storage_options: Mapping[str, str]) -> None:
    """Begin to maintain a table; if that is under way on this machine, the one at work sees to what is new."""
    request = json.dumps({"uri": uri, "storage_options": dict(storage_options)})
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,  # not arguments: others could read credentials there
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    if process.stdin is not None:
        process.stdin.write(request)
        process.stdin.close()
    _started.append(process)
    _started[:] = [each for each in _started if each.poll() is None]  # or they would stay as zombies


_started: list[subprocess.Popen[str]] = []


def wait_for_maintenance(uri: str, timeout: float) -> bool:
    """Wait until nobody on this machine maintains the table; False if that takes longer."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with _only_one(uri) as mine:
            if mine:
                return True
        time.sleep(0.1)
    return False


@contextlib.contextmanager
def _only_one(uri: str) -> Iterator[bool]:
    """Tell whether this process is the only one of this machine that maintains the table."""
    name = f"lazydelta-maintenance-{hashlib.sha256(uri.encode()).hexdigest()[:32]}.lock"
    with (Path(tempfile.gettempdir()) / name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _main() -> None:
    request = json.load(sys.stdin)
    uri, storage_options = request["uri"], request["storage_options"]
    store = open_store(uri, storage_options)
    done = -1
    while True:
        with _only_one(uri) as mine:
            if not mine:
                return
            snapshot = open_snapshot(store)
            with BackgroundMaintenance(store) as maintenance:
                maintenance.offer(snapshot.version, snapshot.metadata, force=True)
            done = snapshot.version
        # What fell due meanwhile was refused by the lock, and is seen to here.
        newest = open_snapshot(store)
        interval = max(1, _interval(newest.metadata.property("delta.checkpointInterval")))
        if newest.version // interval <= done // interval:
            return


def _interval(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 10


if __name__ == "__main__":
    _main()
