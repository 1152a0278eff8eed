"""Positioned reads over byte ranges that were asked for together, before anybody reads them.

Who knows from a footer which ranges it will need asks for all of them at once: on a remote store that is one round
trip, where reading column by column takes one for each. Whatever was not foreseen is fetched when it is read.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lazydelta.errors import StreamClosedError
from lazydelta.storage.byte_ranges import coalesced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazydelta.storage.bridge import Pending
    from lazydelta.storage.store import Store

__all__ = ["PrefetchedReads"]

_GAP = 64 << 10


class PrefetchedReads:
    """Reads of one object of known size; ``close`` may be called from another thread and ends what is waited for."""

    def __init__(self, store: Store, path: str, size: int) -> None:
        self._store = store
        self._path = path
        self._size = size
        self._blocks: list[tuple[int, bytes]] = []
        self._kept: tuple[int, bytes] | None = None
        self._under_way: list[tuple[list[tuple[int, int]], Pending[list[bytes]]]] = []
        self._lock = threading.Lock()
        self._closed = False

    @property
    def held(self) -> int:
        """Return how many bytes are in memory."""
        return sum(len(data) for _, data in self._blocks)

    def foresee(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Ask for (start, length) ranges that will be read; those next to each other become one request."""
        missing = [each for each in ranges if each[1] > 0 and self._find(*each) is None]
        runs = coalesced(missing, _GAP)
        if not runs:
            return
        if self._store.is_remote:
            self._begin(runs, self._store.fetch_ranges(self._path, runs, coalesce=0))
            return
        # A thread of its own would take longer to wake than the disk to answer.
        self._blocks += [(start, self._store.get(self._path, start=start, length=length)) for start, length in runs]

    def keep_tail(self, length: int) -> None:
        """Read the end of the object, where footers are, and keep it until the object is closed."""
        start = max(0, self._size - length)
        self.foresee([(start, self._size - start)])
        self._arrive()
        self._kept = self._blocks.pop() if self._blocks else None

    def forget(self) -> None:
        """Drop what was foreseen: it has been read."""
        self._arrive()
        self._blocks.clear()

    def read_at(self, start: int, length: int) -> bytes | memoryview:
        """Return the bytes asked for, from what was foreseen where possible."""
        self._arrive()
        length = min(length, max(0, self._size - start))
        found = self._find(start, length)
        if found is not None:
            return found
        if not self._store.is_remote:
            return self._store.get(self._path, start=start, length=length)
        run = [(start, length)]
        pending = self._store.fetch_ranges(self._path, run, coalesce=0)
        self._begin(run, pending)
        data = pending.result()[0]
        with self._lock:
            self._under_way = [each for each in self._under_way if each[1] is not pending]
        return data

    def close(self) -> None:
        """Abort what is under way and forget what was read."""
        with self._lock:
            self._closed = True
            under_way, self._under_way = self._under_way, []
        for _, pending in under_way:
            pending.cancel()

    def _begin(self, runs: list[tuple[int, int]], pending: Pending[list[bytes]]) -> None:
        with self._lock:
            closed = self._closed
            if not closed:
                self._under_way.append((runs, pending))
        if closed:
            pending.cancel()
            raise StreamClosedError("The file was closed", path=self._path)

    def _arrive(self) -> None:
        while self._under_way:
            with self._lock:
                first = self._under_way[0] if self._under_way else None
            if first is None:
                return
            runs, pending = first
            found = pending.result()
            self._blocks += [(start, data) for (start, _), data in zip(runs, found, strict=True)]
            with self._lock:
                self._under_way = [each for each in self._under_way if each is not first]

    def _find(self, start: int, length: int) -> memoryview | None:
        for at, data in (*self._blocks, *((self._kept,) if self._kept else ())):
            if at <= start and start + length <= at + len(data):
                return memoryview(data)[start - at : start - at + length]
        return None
