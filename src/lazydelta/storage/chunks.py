"""A remote object read in chunks, at most one of them ahead of the caller."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from lazydelta.storage.bridge import Pending, submit
from lazydelta.storage.byte_stream import ByteStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from obstore import BytesStream

    from lazydelta.storage.counters import IoCounters

__all__ = ["ChunkStream", "next_of"]

T = TypeVar("T")


async def next_of(source: AsyncIterator[T]) -> T | None:
    """Return the next page or chunk, or None at the end."""
    return await anext(source, None)


class _Source:
    """The response under way. It does not know the stream, so a stream that is dropped in mid-request can go."""

    def __init__(self, begin: Callable[[], Awaitable[BytesStream]], counters: IoCounters) -> None:
        self._begin = begin
        self._counters = counters
        self._chunks: BytesStream | None = None

    async def read(self) -> bytes | None:
        if self._chunks is None:
            self._chunks = await self._begin()
        chunk = await next_of(self._chunks)
        if not chunk:
            return None
        self._counters.count_bytes(read=len(chunk))
        return chunk


class ChunkStream(ByteStream):
    """Chunks of a remote object; the next one is requested when the previous one is handed out."""

    def __init__(
        self,
        begin: Callable[[], Awaitable[BytesStream]],
        guard: Callable[[Awaitable[bytes | None]], Coroutine[Any, Any, bytes | None]],
        counters: IoCounters,
        chunk_size: int,
    ) -> None:
        self._lock = threading.Lock()
        self._guard = guard
        self._chunk_size = chunk_size
        self._rest = memoryview(b"")
        self._source = _Source(begin, counters)
        self._pending: Pending[bytes | None] | None = self._ask()

    def _ask(self) -> Pending[bytes | None]:
        return submit(self._guard(self._source.read()))

    def __next__(self) -> bytes:
        # The client's chunks have a least size only: a store in memory gives a whole object at once.
        if not self._rest.nbytes:
            self._rest = memoryview(self._wait())
        size = self._rest.nbytes if self._rest.nbytes <= 2 * self._chunk_size else self._chunk_size
        chunk, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return chunk

    def _wait(self) -> bytes:
        with self._lock:
            pending = self._pending
        if pending is None:
            raise StopIteration
        try:
            chunk = pending.result()
        except BaseException:
            with self._lock:
                closed = self._pending is None
            self.close()
            if closed:
                raise StopIteration from None
            raise
        with self._lock:
            if chunk is None or self._pending is None:
                self._pending = None
                raise StopIteration
            self._pending = self._ask()
        return chunk

    def close(self) -> None:
        """Abort the request in flight; harmless when repeated."""
        lock = getattr(self, "_lock", None)
        if lock is None:  # an interrupted constructor
            return
        with lock:
            pending, self._pending = getattr(self, "_pending", None), None
            self._rest = memoryview(b"")
        if pending is not None:
            pending.cancel()
