"""Finished files on their way to the store, a few at a time, and back if need be."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from lazydelta.errors import LazyDeltaError
from lazydelta.storage import Store

__all__ = ["Chunks", "Uploads", "delete_paths"]

_log = logging.getLogger(__name__)
_CHUNK = 4 << 20
_PARALLEL_DELETES = 16


class Chunks:
    """The bytes of a file, collected as an encoder writes them and let go of as they are sent."""

    closed = False
    mode = "wb"

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Take what pyarrow writes."""
        self._parts.append(bytes(data))
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        """Return how much was written."""
        return self.size

    def flush(self) -> None:
        """Do nothing: there is nothing below."""

    def close(self) -> None:
        """Do nothing: the bytes are still to be sent."""

    def readable(self) -> bool:
        """Say that pyarrow can only write here."""
        return False

    def writable(self) -> bool:
        """Say that pyarrow can write here."""
        return True

    def seekable(self) -> bool:
        """Say that nothing is ever written twice."""
        return False

    def drain(self) -> Iterator[bytes]:
        """Yield everything in chunks of a few megabytes; what was yielded is forgotten."""
        while self._parts:
            taken, size = [], 0
            while self._parts and size < _CHUNK:
                taken.append(self._parts.popleft())
                size += len(taken[-1])
            yield b"".join(taken)


class Uploads:
    """Sends files from threads of its own; ``paths`` are all that may exist by now, sent or not."""

    def __init__(self, store: Store, parallel: int) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="lazydelta-upload")
        self._flying: dict[Future[int], int] = {}
        self._state = threading.Condition()
        self._sending, self._is_undone = 0, False
        self.paths: list[str] = []

    @property
    def bytes_in_flight(self) -> int:
        """Return how much is being sent, counted by whole files."""
        return sum(self._flying.values())

    def send(self, path: str, content: Chunks) -> None:
        """Begin to send a file."""
        self._reap()
        self.paths.append(path)
        self._flying[self._pool.submit(self._put, path, content)] = content.size

    def _put(self, path: str, content: Chunks) -> int:
        with self._state:
            if self._is_undone:
                return 0
            self._sending += 1
        try:
            return self._store.put_stream(path, content.drain())
        finally:
            with self._state:
                self._sending -= 1
                self._state.notify_all()

    def wait_for_one(self) -> None:
        """Wait until a file has arrived; raises what went wrong with it."""
        if self._flying:
            wait(self._flying, return_when=FIRST_COMPLETED)
            self._reap()

    def finish(self) -> None:
        """Wait until all files have arrived."""
        while self._flying:
            self.wait_for_one()
        self._pool.shutdown()

    def undo(self) -> None:
        """Delete what was sent, as far as the store lets us; what is left over is no part of the table."""
        with self._state:
            self._is_undone = True
        self._pool.shutdown(cancel_futures=True)
        # A thread that was being started when Ctrl-C came is not among those that the pool waits for.
        with self._state:
            self._state.wait_for(lambda: self._sending == 0)
        self._flying.clear()
        delete_paths(self._store, self.paths)
        self.paths.clear()

    def _reap(self) -> None:
        for done in [each for each in self._flying if each.done()]:
            del self._flying[done]
            done.result()


def delete_paths(store: Store, paths: Sequence[str]) -> None:
    """Delete files that no version of the table refers to, as far as the store lets us."""

    def delete(path: str) -> None:
        try:
            store.delete(path)
        except LazyDeltaError as error:
            _log.warning("could not delete %s, which no version of the table refers to: %s", path, error)

    if paths:
        with ThreadPoolExecutor(_PARALLEL_DELETES, thread_name_prefix="lazydelta-delete") as pool:
            list(pool.map(delete, paths))
