"""Parallel uploads of finished files, and their deletion on failure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial

from lazydelta.runtime.threads import Bell, Task, Workers
from lazydelta.storage import Store
from lazydelta.storage.staged_files import delete_paths

__all__ = ["Chunks", "Uploads"]

_CHUNK = 4 << 20


class Chunks:
    """The bytes of a file, collected while it is encoded and released while it is uploaded."""

    closed = False
    mode = "wb"

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Append data written by pyarrow."""
        self._parts.append(bytes(data))
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.size

    def flush(self) -> None:
        """Do nothing: there is no underlying file."""

    def close(self) -> None:
        """Do nothing: the bytes are still to be uploaded."""

    def readable(self) -> bool:
        """Return False: the file is write-only."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False: data is only appended."""
        return False

    def take_back(self, length: int) -> bytes:
        """Remove the last bytes from the file, and return them."""
        taken: deque[bytes] = deque()
        missing = length
        while missing > 0:
            taken.appendleft(self._parts.pop())
            missing -= len(taken[0])
        if missing < 0:
            self._parts.append(taken[0][:-missing])
            taken[0] = taken[0][-missing:]
        self.size -= length
        return b"".join(taken)

    def drain(self) -> Iterator[bytes]:
        """Yield all bytes in chunks of a few megabytes, and release them."""
        while self._parts:
            taken, size = [], 0
            while self._parts and size < _CHUNK:
                taken.append(self._parts.popleft())
                size += len(taken[-1])
            yield b"".join(taken)


class Uploads:
    """Uploads files from worker threads. ``paths`` are all files that may exist, whether complete or not."""

    def __init__(self, store: Store, parallel: int) -> None:
        self._store = store
        self._pool = Workers(parallel, "lazydelta-upload")
        self._flying: dict[Task[int], int] = {}
        self._done: deque[Task[int]] = deque()
        self._arrived = Bell()
        self.bytes_in_flight = 0
        """The number of bytes being uploaded, counted by whole files."""
        self.paths: list[str] = []

    def send(self, path: str, content: Chunks) -> None:
        """Start the upload of a file."""
        self._reap()
        self.paths.append(path)
        size, put = content.size, partial(self._store.put_stream, path, content.drain())
        self._flying[self._pool.submit(put, self._note)] = size
        self.bytes_in_flight += size

    def _note(self, task: Task[int]) -> None:
        self._done.append(task)
        self._arrived.ring()

    def wait_for_one(self) -> None:
        """Wait until an upload has finished. Raise its error if it failed."""
        if self._flying:
            while not self._done:
                self._arrived.wait()
            self._reap()

    def finish(self) -> None:
        """Wait until all uploads have finished."""
        while self._flying:
            self.wait_for_one()
        self._pool.close()

    def undo(self) -> None:
        """Delete the uploaded files as far as the store allows. Remaining files are not part of the table."""
        self._pool.close()
        self._flying.clear()
        self._done.clear()
        self.bytes_in_flight = 0
        delete_paths(self._store, self.paths)
        self.paths.clear()

    def _reap(self) -> None:
        # Tasks report their end: to look at all of them each time is quadratic, and a batch may have 20,000 files.
        while self._done:
            done = self._done[0]
            self.bytes_in_flight -= self._flying.pop(done, 0)
            self._done.popleft()  # last, so that an interrupt loses none
            done.result()
