"""Random access for pyarrow over ranged reads.

``open_native`` turns anything with positioned reads into a pyarrow file. :class:`AdaptiveReads` are positioned reads
over requests: pyarrow reads a big row group column by column *interleaved*, each column sequentially, so read-ahead
is kept per stream of reads, not per file.
"""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa

from lazydelta.errors import StorageError
from lazydelta.storage.bridge import Pending

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AdaptiveReads", "PositionedReads", "open_native"]

_FIRST_BLOCK = 64 << 10
_BUDGET_BLOCKS = 8
_IDLE_ROUNDS = 8


class PositionedReads(Protocol):
    """Reads at a position, from any thread, and an end to them."""

    def read_at(self, start: int, length: int) -> bytes | memoryview:
        """Return exactly the bytes asked for, or fewer at the end of the object."""

    def close(self) -> None:
        """Stop; no read follows."""


class _Handle(io.RawIOBase):
    """The file object that pyarrow drives: a cursor over positioned reads."""

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
                raise StorageError(message, path=self._path, hint="the object was cut short or replaced")
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
    """Return a pyarrow file over positioned reads of an object of this size."""
    return pa.PythonFile(_Handle(reads, size, path), mode="r")


class _Lane(msgspec.Struct, eq=False):
    """One sequential run of reads: the block it is in, and the block that is on its way."""

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

    A lane begins with what was asked for (64 KiB at least, so that small reads do not become small requests) and
    doubles its block each time it is read past its end, up to ``read_ahead``. From its second block on, the next
    one is requested while the current one is used. A lane never reads into the place where another began: columns
    lie side by side. All lanes together hold at most ``8 * read_ahead`` bytes: lanes share them evenly, and those
    that have fallen out of use make room.
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
        """Return the bytes asked for, from what was read ahead where possible."""
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
                    break  # the object is shorter than announced; the caller says so
                parts.append(part)
                start += part.nbytes
                length -= part.nbytes
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Abort what is in flight and forget what was read."""
        self._closed = True
        # Whoever waits holds the lock: end the wait first.
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
        """Return a lane whose data holds ``start``, reading what it takes."""
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
        """Move a lane to its next block and ask for the one after."""
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
        """Return how far one may read from ``at``: to the next lane's origin or the object's end."""
        origins = [lane.origin for lane in self._lanes if lane.origin > at]
        return min([self._size, *origins]) - at

    def _idle(self, lane: _Lane) -> bool:
        """Tell whether a lane has been passed over for several rounds of all lanes: its column is done."""
        return self._clock - lane.used > _IDLE_ROUNDS * len(self._lanes)

    def _block_limit(self) -> int:
        """Return the block size at which all busy lanes, with one block ahead each, fit the budget."""
        busy = sum(not self._idle(lane) for lane in self._lanes)
        share = self._read_ahead * _BUDGET_BLOCKS // (2 * busy + 2)
        return max(_FIRST_BLOCK, min(self._read_ahead, share))

    def _make_room(self, wanted: int, keep: _Lane | None, *, only_idle: bool = False) -> bool:
        """Forget the least recently used lanes until ``wanted`` more bytes fit the budget; tell whether they do.

        What is read ahead may only push idle lanes out: a busy one would have to be read again.
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
