"""What only one process of this machine does to a table at a time, and the small files that say so."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from lazydelta.handle import TableHandle

__all__ = ["machine_file", "table_lock"]

# Whoever only looks whether the lock is free has it for a moment.
_PAUSES = (0.001, 0.002, 0.004, 0)


@contextlib.contextmanager
def table_lock(handle: TableHandle) -> Iterator[TextIO | None]:
    """Hold what only one process of this machine may hold for a table; None if another has it.

    The kernel takes it back from a process that dies.
    """
    with machine_file(handle, "lock").open("w") as file:
        for pause in _PAUSES:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(pause)
            else:
                yield file
                return
        yield None


def machine_file(handle: TableHandle, kind: str) -> Path:
    """Return a file of this user and machine for a table, by its one canonical name."""
    folder = Path(tempfile.gettempdir()) / f"lazydelta-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"maintenance-{hashlib.sha256(handle.uri.encode()).hexdigest()[:32]}.{kind}"
