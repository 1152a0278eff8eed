"""Random access for PyArrow over ranged reads.

``open_native`` turns any positioned reads into a PyArrow file. :class:`AdaptiveReads` implements positioned reads with
requests: PyArrow reads the columns of a big row group *interleaved*, each sequentially, so read-ahead is kept per
sequence of reads, not per file.
"""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa

from lazydelta.errors import StorageError, StreamClosedError
from lazydelta.storage.bridge import Pending
from lazydelta.storage.store import coalesced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lazydelta.storage.store import Store

__all__ = ["AdaptiveReads", "PrefetchedReads", "open_native"]


_FIRST_BLOCK = 64 << 10
_BUDGET_BLOCKS = 8
_IDLE_ROUNDS = 8


class PositionedReads(Protocol):
    """Reads at a position, from any thread, until closed."""

    def read_at(self, start: int, length: int) -> bytes | memoryview:
        """Return exactly the requested bytes, or fewer at the end of the object."""

    def close(self) -> None:
        """Stop. No read follows."""


class _Handle(io.RawIOBase):
    """The file object that PyArrow drives: a cursor over positioned reads."""

    def __init__(self, reads: PositionedReads, size: int, path: str) -> None:
        super().__init__()
        self._reads = reads
        self._size = size
        self._path = path
        self._at = 0
        self._lock = threading.Lock()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._lock:
            base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
            self._at = max(0, base + offset)
            return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        with self._lock:
            left = max(0, self._size - self._at)
            wanted = left if size is None or size < 0 else min(size, left)
            if wanted == 0:
                return b""
            data = self._reads.read_at(self._at, wanted)
            if len(data) != wanted:
                message = f"{self._path!r} ends at byte {self._at + len(data)}, but {self._size} were announced"
                raise StorageError(message, path=self._path, hint="the object was truncated or replaced")
            self._at += wanted
            return data  # type: ignore[return-value] # pyarrow takes any buffer, and a view saves a copy

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._reads.close()
        super().close()


def open_native(reads: PositionedReads, size: int, path: str) -> pa.NativeFile:
    """Return a PyArrow file over positioned reads of an object of this size."""
    return pa.PythonFile(_Handle(reads, size, path), mode="r")


class _Lane(msgspec.Struct, eq=False):
    """One sequential run of reads: its current block, and the block in flight."""

    origin: int
    start: int
    data: bytes
    block: int
    ahead: Pending[bytes] | None = None
    ahead_length: int = 0
    used: int = 0

    @property
    def held(self) -> int:
        return len(self.data) + (self.ahead_length if self.ahead is not None else 0)

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def drop(self) -> None:
        if self.ahead is not None:
            self.ahead.cancel()
            self.ahead = None
        self.data = b""


class AdaptiveReads:
    """Positioned reads over requests, with read-ahead per lane.

    A lane starts with the requested bytes (at least 64 KiB, so that small reads do not become small requests) and
    doubles its block each time it is read past its end, up to ``read_ahead``. From its second block on, the next block
    is requested while the current one is used. A lane never reads past the start of another lane, because columns are
    adjacent. All lanes together hold at most ``8 * read_ahead`` bytes, shared evenly. Idle lanes are dropped to make
    room.
    """

    def __init__(self, fetch: Callable[[int, int], Pending[bytes]], size: int, read_ahead: int) -> None:
        self._fetch = fetch
        self._size = size
        self._read_ahead = max(read_ahead, _FIRST_BLOCK)
        self._lanes: list[_Lane] = []  # least recently used first
        self._lock = threading.Lock()
        self._waiting: Pending[bytes] | None = None
        self._closed = False
        self._clock = 0

    def read_at(self, start: int, length: int) -> bytes | memoryview:
        """Return the requested bytes, from prefetched blocks where possible."""
        with self._lock:
            length = min(length, max(0, self._size - start))
            parts: list[bytes | memoryview] = []
            while length > 0:
                if self._closed:
                    message = "the input was closed"
                    raise StorageError(message)
                lane = self._lane_for(start, length)
                offset = start - lane.start
                part = memoryview(lane.data)[offset : offset + length]
                if not part.nbytes:
                    break  # the object is shorter than announced; the caller reports it
                parts.append(part)
                start += part.nbytes
                length -= part.nbytes
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Abort the requests in flight and drop the data."""
        self._closed = True
        # A waiting reader holds the lock: end its wait first.
        waiting = self._waiting
        if waiting is not None:
            waiting.cancel()
        with self._lock:
            for lane in self._lanes:
                lane.drop()
            self._lanes.clear()

    def _wait(self, pending: Pending[bytes]) -> bytes:
        self._waiting = pending
        try:
            if self._closed:
                pending.cancel()
            return pending.result()
        finally:
            self._waiting = None

    def _lane_for(self, start: int, length: int) -> _Lane:
        """Return a lane whose data contains ``start``, reading if necessary."""
        for lane in reversed(self._lanes):
            if lane.start <= start < lane.end:
                self._touch(lane)
                return lane
        for lane in reversed(self._lanes):
            reach = lane.end + (lane.ahead_length if lane.ahead is not None else 0)
            if start == lane.end or lane.end < start < reach:
                self._advance(lane, start, length)
                return lane
        return self._begin(start, length)

    def _touch(self, lane: _Lane) -> None:
        self._clock += 1
        lane.used = self._clock
        if self._lanes[-1] is not lane:
            self._lanes.remove(lane)
            self._lanes.append(lane)

    def _begin(self, start: int, length: int) -> _Lane:
        wanted = min(self._until(start), max(length, _FIRST_BLOCK))
        self._make_room(wanted, keep=None)
        lane = _Lane(start, start, self._wait(self._fetch(start, wanted)), max(wanted, _FIRST_BLOCK))
        self._lanes.append(lane)
        self._touch(lane)
        return lane

    def _advance(self, lane: _Lane, start: int, length: int) -> None:
        """Move a lane to its next block and request the one after."""
        self._touch(lane)
        lane.block = min(lane.block * 2, self._block_limit())
        ahead, lane.ahead = lane.ahead, None
        at = lane.end
        if ahead is None:
            wanted = max(min(self._until(at), max(length, lane.block)), 1)
            lane.data = b""
            self._make_room(wanted, keep=lane)
            ahead = self._fetch(at, wanted)
        lane.data = self._wait(ahead)
        lane.start = at
        if start < lane.end and all(other.origin != lane.end for other in self._lanes):
            following = min(self._until(lane.end), lane.block)
            if following > 0 and self._make_room(following, keep=lane, only_idle=True):
                lane.ahead, lane.ahead_length = self._fetch(lane.end, following), following

    def _until(self, at: int) -> int:
        """Return how far a read from ``at`` may go: to the next lane's origin or the end of the object."""
        origins = [lane.origin for lane in self._lanes if lane.origin > at]
        return min([self._size, *origins]) - at

    def _idle(self, lane: _Lane) -> bool:
        """Return whether a lane was not used for several rounds of all lanes, which means that its column is done."""
        return self._clock - lane.used > _IDLE_ROUNDS * len(self._lanes)

    def _block_limit(self) -> int:
        """Return the block size at which all busy lanes, each with one block prefetched, fit the budget."""
        busy = sum(not self._idle(lane) for lane in self._lanes)
        share = self._read_ahead * _BUDGET_BLOCKS // (2 * busy + 2)
        return max(_FIRST_BLOCK, min(self._read_ahead, share))

    def _make_room(self, wanted: int, keep: _Lane | None, *, only_idle: bool = False) -> bool:
        """Drop the least recently used lanes until ``wanted`` more bytes fit the budget. Return whether they do.

        Prefetching may only evict idle lanes: a busy one would have to be read again.
        """
        budget = self._read_ahead * _BUDGET_BLOCKS
        held = sum(lane.held for lane in self._lanes)
        for lane in list(self._lanes):
            if held + wanted <= budget:
                return True
            if lane is keep or (only_idle and not self._idle(lane)):
                continue
            held -= lane.held
            lane.drop()
            self._lanes.remove(lane)
        return held + wanted <= budget


# Positioned reads over byte ranges that are prefetched together.
#
# A reader that knows from a footer which ranges it needs requests all of them at once. On a remote store that takes one
# round trip instead of one per column. Other ranges are fetched when they are read.


_GAP = 64 << 10


class PrefetchedReads:
    """Reads of one object of known size. ``close`` may be called from another thread and ends any wait."""

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
        """Return the number of bytes in memory."""
        return sum(len(data) for _, data in self._blocks)

    def foresee(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Request (start, length) ranges that will be read. Adjacent ranges become one request."""
        missing = [each for each in ranges if each[1] > 0 and self._find(*each) is None]
        runs = coalesced(missing, _GAP)
        if not runs:
            return
        if self._store.is_remote:
            self._begin(runs, self._store.fetch_ranges(self._path, runs, coalesce=0))
            return
        # Waking another thread would take longer than the disk read.
        self._blocks += [(start, self._store.get(self._path, start=start, length=length)) for start, length in runs]

    def keep_tail(self, length: int) -> None:
        """Read the end of the object, which contains the footer, and keep it until the object is closed."""
        start = max(0, self._size - length)
        self.foresee([(start, self._size - start)])
        self._arrive()
        self._kept = self._blocks.pop() if self._blocks else None

    def forget(self) -> None:
        """Drop the prefetched data, which has been read."""
        self._arrive()
        self._blocks.clear()

    def read_at(self, start: int, length: int) -> bytes | memoryview:
        """Return the requested bytes, from prefetched data where possible."""
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
        """Abort the requests in flight and drop the data."""
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
