"""``OpeningCost``: what it took to pin a version, charged to the first scan of it."""

from __future__ import annotations

import time
from threading import Lock

import msgspec

from lazydelta.storage import IoCounters

__all__ = ["Charge", "OpeningCost"]


class Charge(msgspec.Struct, frozen=True):
    """Milliseconds, requests, bytes and commits of the tail."""

    ms: float = 0.0
    requests: int = 0
    bytes_read: int = 0
    commits: int = 0


class OpeningCost:
    """Counts while a table is opened; a pinned table is scanned again for nothing, so one scan alone is charged."""

    def __init__(self) -> None:
        self.io = IoCounters()
        self.commits = 0
        self.ms = 0.0
        self._began = time.perf_counter()
        self._charged = False
        self._lock = Lock()

    def opened(self) -> None:
        """Note that the version is pinned."""
        self.ms = round((time.perf_counter() - self._began) * 1000, 3)

    def charge(self) -> Charge:
        """Return what opening took, once; nothing from then on."""
        with self._lock:
            if self._charged:
                return Charge()
            self._charged = True
        return Charge(self.ms, self.io.requests, self.io.bytes_read, self.commits)
