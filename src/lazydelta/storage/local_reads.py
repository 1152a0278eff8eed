"""Files that are open for reading: what tells one content from another, positioned reads, and chunks of them."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from lazydelta.errors import StorageError
from lazydelta.storage.byte_stream import ByteStream
from lazydelta.storage.store import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["READ_FLAGS", "FileByteStream", "FileReads", "file_etag", "file_info", "pread_all"]

READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC


def file_etag(info: os.stat_result) -> str:
    """Identify a file's content as well as a file system can: which file, when written, how long."""
    return f"{info.st_ino:x}-{info.st_mtime_ns // 1000:x}-{info.st_size:x}"


def file_info(path: str, info: os.stat_result) -> ObjectInfo:
    """Return what a listing says of a file."""
    return ObjectInfo(path, info.st_size, info.st_mtime_ns // 1_000_000, file_etag(info))


def pread_all(fd: int, start: int, length: int) -> bytes:
    """Read exactly ``length`` bytes unless the file ends: one ``pread`` returns at most 2 GiB."""
    data = os.pread(fd, length, start)
    if len(data) in (length, 0):
        return data
    parts = [data]
    got = len(data)
    while got < length and (data := os.pread(fd, length - got, start + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


class FileByteStream(ByteStream):
    """Chunks of a local file; nothing is read ahead, the operating system does that."""

    def __init__(self, reads: FileReads, start: int, chunk_size: int) -> None:
        self._reads: FileReads | None = reads
        self._at = start
        self._chunk = max(1, chunk_size)

    def __next__(self) -> bytes:
        if self._reads is None:
            raise StopIteration
        data = self._reads.read_at(self._at, self._chunk)
        self._at += len(data)
        if len(data) < self._chunk:
            self.close()
        if not data:
            raise StopIteration
        return data

    def close(self) -> None:
        """Close the file; what comes next is the end."""
        reads, self._reads = getattr(self, "_reads", None), None
        if reads is not None:
            reads.close()


class FileReads:
    """Positioned reads of one open file; a read under way finishes before the file is closed."""

    def __init__(self, fd: int, path: str, guard: Callable[[Callable[[], bytes]], bytes]) -> None:
        self._fd: int | None = fd
        self._path = path
        self._guard = guard
        self._lock = threading.Lock()

    def read_at(self, start: int, length: int) -> bytes:
        """Read so many bytes, or what there is of them."""

        def work() -> bytes:
            with self._lock:
                if self._fd is None:
                    message = f"{self._path!r} was closed"
                    raise StorageError(message, path=self._path)
                return pread_all(self._fd, start, length)

        return self._guard(work)

    def close(self) -> None:
        """Close the file, once no read is under way."""
        with self._lock:
            fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
