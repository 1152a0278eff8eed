"""The policy that decides which maintenance is due for a table, and when."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from lazydelta.protocol.actions import Metadata
from lazydelta.protocol.properties import TableProperties
from lazydelta.sidecar.handle import TableHandle
from lazydelta.sidecar.reading.delta_spans import WRITTEN_EVERY

__all__ = ["COMPACTION_INTERVAL", "MaintenancePolicy", "due_after", "is_due", "machine_file", "table_lock"]


# Tables with auto-compaction are compacted after this many commits. That is rare enough to be worth a commit, and
# frequent enough that a scan between two runs meets only a handful of small files per partition.
COMPACTION_INTERVAL = 5


@dataclass(frozen=True, slots=True)
class MaintenancePolicy:
    """Due maintenance: a checkpoint of ``version``, its hint and the sidecar. A checkpoint from ``enough`` on suffices.

    No checkpoint is due if ``enough`` is None. ``cleans_log`` also cleans up the log, and ``compacts`` compacts small
    files first. With ``follows``, the sidecar follows the newest checkpoint even if another writer wrote it. With
    ``deltas``, the commits since the checkpoint are also written as delta sidecars.
    """

    version: int
    enough: int | None
    cleans_log: bool
    compacts: bool = False
    follows: bool = False
    deltas: bool = False

    def after(self, older: MaintenancePolicy | None) -> MaintenancePolicy:
        """Return this policy merged with ``older``, a policy that was not carried out."""
        if older is None:
            return self
        return replace(
            self,
            enough=older.enough if self.enough is None else self.enough,
            cleans_log=self.cleans_log or older.cleans_log,
            compacts=self.compacts or older.compacts,
            follows=self.follows or older.follows,
            deltas=self.deltas or older.deltas,
        )


def due_after(
    version: int, metadata: Metadata, *, since: int | None = None, force: bool = False
) -> MaintenancePolicy | None:
    """Return what became due with the versions after ``since`` (default: the previous one) up to ``version``, or None.

    Maintenance is due at each multiple of ``delta.checkpointInterval``, or with ``force``. Compaction is due at every
    fifth version of a table with ``delta.autoOptimize.autoCompact``. Between checkpoints that are far apart, delta
    sidecars are due every fifty versions.
    """
    properties = TableProperties.of(metadata)
    interval = properties.checkpoint_interval
    before = max(version - 1 if since is None else since, 0)
    enough: int | None = None
    if force or version // interval > before // interval:
        enough = version if force else version - version % interval
    passed = force or version // COMPACTION_INTERVAL > before // COMPACTION_INTERVAL
    compacts = properties.auto_compact and passed
    passes = version // WRITTEN_EVERY > before // WRITTEN_EVERY
    deltas = enough is None and passes and interval > WRITTEN_EVERY
    if enough is None and not compacts and not deltas:
        return None
    cleans = properties.expired_log_cleanup and enough is not None
    return MaintenancePolicy(version, enough, cleans, compacts, deltas=deltas)


def is_due(version: int, metadata: Metadata, *, since: int | None = None) -> bool:
    """Return whether anything became due after ``since``, by default the previous version."""
    return due_after(version, metadata, since=since) is not None


# A lock per table and machine, and the small files for it.


# A process that only checks whether the lock is free holds it very briefly.
_PAUSES = (0.001, 0.002, 0.004, 0)


@contextlib.contextmanager
def table_lock(handle: TableHandle) -> Iterator[TextIO | None]:
    """Hold the machine-wide lock of a table. Yield None if another process holds it.

    The kernel releases the lock if the process dies.
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
    """Return the path of a per-user, per-machine file for a table, derived from the canonical URI."""
    folder = Path(tempfile.gettempdir()) / f"lazydelta-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"maintenance-{hashlib.sha256(handle.uri.encode()).hexdigest()[:32]}.{kind}"
