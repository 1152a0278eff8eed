"""Tables on a file system.

Reads are plain ``pread`` calls. Writes go to a temporary name in the same folder and become visible by one rename or
hard link, so no reader ever sees a partial object. This module does not need the object-store client, so local tables
also work in forked processes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

from lazydelta.errors import LazyDeltaError, ObjectChangedError, ObjectNotFoundError, StorageError
from lazydelta.storage.atomic_files import (
    READ_FLAGS,
    TEMPORARY,
    opened_folder,
    publish_absent,
    publish_over,
    readable,
    temporaries,
    write_file,
)
from lazydelta.storage.bridge import Pending, in_thread
from lazydelta.storage.input import open_native
from lazydelta.storage.store import (
    READ_AHEAD,
    ByteStream,
    Hides,
    ObjectInfo,
    ObjectWalk,
    Parts,
    Store,
    coalesced,
    walk_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lazydelta.storage.location import Location, Settings
    from lazydelta.storage.store import IoCounters

__all__ = ["DirectReads", "FileReads", "FileStore"]


# Files open for reading: etags, positioned reads and chunks.


_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def check_regular(info: os.stat_result, path: str, file: str) -> None:
    """Raise unless the path is a regular file."""
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(path)
    if not stat.S_ISREG(info.st_mode):
        kind = _KINDS.get(stat.S_IFMT(info.st_mode), "something else")
        message = f"{file} is {kind} and not a regular file"
        raise StorageError(message, path=path, hint="tables consist of regular files; remove it")


def file_etag(info: os.stat_result) -> str:
    """Return an identifier of a file's content, as far as a file system has one: inode, modification time and size."""
    return f"{info.st_ino:x}-{info.st_mtime_ns // 1000:x}-{info.st_size:x}"


def file_info(path: str, info: os.stat_result) -> ObjectInfo:
    """Return the listing entry of a file."""
    return ObjectInfo(path, info.st_size, info.st_mtime_ns // 1_000_000, file_etag(info))


def pread_all(fd: int, start: int, length: int) -> bytes:
    """Read exactly ``length`` bytes unless the file ends before. One ``pread`` returns at most 2 GiB."""
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
    """Chunks of a local file. Nothing is prefetched: the operating system does that."""

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
        """Close the file and end the stream."""
        reads, self._reads = getattr(self, "_reads", None), None
        if reads is not None:
            reads.close()


class FileReads:
    """Positioned reads of one open file. A read in progress finishes before the file is closed."""

    def __init__(self, fd: int, path: str, guard: Callable[[Callable[[], bytes]], bytes]) -> None:
        self._fd: int | None = fd
        self._path = path
        self._guard = guard
        self._lock = threading.Lock()

    def read_at(self, start: int, length: int) -> bytes:
        """Read this many bytes, or as many as there are."""

        def work() -> bytes:
            with self._lock:
                if self._fd is None:
                    message = f"{self._path!r} was closed"
                    raise StorageError(message, path=self._path)
                return pread_all(self._fd, start, length)

        return self._guard(work)

    def close(self) -> None:
        """Close the file once no read is in progress."""
        with self._lock:
            fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # an interrupt has ended __init__
            self.close()


# ruff: noqa: D102 - the contract of each method is documented once, in Store


T = TypeVar("T")
Errors: TypeAlias = list[BaseException]


# A read of this size is cheaper than the handover to a thread, unless the file system is slow.
_SMALL_READ = 64 << 10
_SLOW_SECONDS = 0.002
_MOST_CREDIT = 16
_SLOW_COST = 4


class _ReadPace:
    """Decides whether small files are read at once or in threads, from how long earlier reads took.

    Reads of a local disk take microseconds. On a network file system they wait for a server, and overlap in threads.
    """

    def __init__(self) -> None:
        self._credit = _SLOW_COST

    @property
    def is_fast(self) -> bool:
        """Return whether the file system has answered quickly so far."""
        return self._credit > 0

    def note(self, seconds: float) -> None:
        """Record the duration of a read. Several slow ones in a row settle that this file system is slow."""
        change = 1 if seconds < _SLOW_SECONDS else -_SLOW_COST
        self._credit = min(self._credit + change, _MOST_CREDIT)


class FileStore(Store):
    """A folder of a file system."""

    def __init__(self, location: Location, settings: Settings, counters: IoCounters | None = None) -> None:
        super().__init__(location, settings, counters)
        self._pace = _ReadPace()  # shared by copies

    @property
    def reads_directly(self) -> bool:
        return True

    def _file(self, path: str) -> str:
        return "/" + self._key(path)

    def _announce(self, verb: str, path: str, start: int | None = None, length: int | None = None) -> None:
        self._key(path)  # a rejected path is not a request
        super()._announce(verb, path, start, length)

    def _guard(self, verb: str, path: str, work: Callable[[], T]) -> T:
        """Run ``work``. Any failure is raised as a lazydelta error, without its cause."""
        try:
            return work()
        except BaseException as error:  # noqa: BLE001 - translated, or raised again unchanged
            failure = self._fault(error, verb, path)
        raise failure

    def list(self, folder: str, *, after: str = "") -> Iterator[ObjectInfo]:
        def names() -> Sequence[str]:
            self._announce("LIST", folder)
            try:
                with os.scandir(self._file(folder)) as entries:
                    found = [
                        entry.name
                        for entry in entries
                        if entry.name > after and not entry.name.startswith(TEMPORARY) and not _is_folder(entry)
                    ]
            except (FileNotFoundError, NotADirectoryError):
                return []
            found.sort(key=os.fsencode)
            return found

        prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
        place = self._file(folder)
        for name in self._guard("LIST", folder, names):
            # Skip a file that was deleted after the folder was read.
            with contextlib.suppress(ObjectNotFoundError):
                info = self._guard("LIST", prefix + name, lambda name=name: os.stat(f"{place}/{name}"))  # type: ignore[misc] # noqa: PTH116
                if stat.S_ISREG(info.st_mode):
                    yield file_info(prefix + name, info)

    def walk(self, hides: Hides, *, below: str = "", deep: bool = True) -> ObjectWalk:
        walk = ObjectWalk()

        def found() -> Iterator[ObjectInfo]:
            self._guard("LIST", below, lambda: self._announce("LIST", below))
            objects = walk_folder(self._file(""), hides, file_info, walk, below=below, deep=deep)
            while True:
                info = self._guard("LIST", below, lambda: next(objects, None))
                if info is None:
                    return
                yield info

        return walk.over(found())

    def leftovers(self, folder: str) -> Iterator[ObjectInfo]:
        prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""

        def found() -> Sequence[ObjectInfo]:
            self._announce("LIST", folder)
            return [file_info(prefix + name, info) for name, info in temporaries(self._file(folder))]

        return iter(self._guard("LIST", folder, found))

    def _open(self, path: str, if_match: str | None) -> tuple[int, os.stat_result]:
        fd = os.open(self._file(path), READ_FLAGS)
        info = os.fstat(fd)
        try:
            check_regular(info, path, self._file(path))
        except BaseException:
            os.close(fd)
            raise
        if if_match is not None and if_match != file_etag(info):
            os.close(fd)
            message = f"{self._file(path)} has changed (its etag differs)"
            raise ObjectChangedError(message, path=path, hint="read the table again")
        return fd, info

    def _read(self, path: str, ranges: Sequence[tuple[int, int | None]], if_match: str | None) -> Parts:
        fd, info = self._open(path, if_match)
        try:
            parts = []
            for start, length in ranges:
                if start >= info.st_size and (start > 0 or length):
                    message = f"{self._file(path)} has {info.st_size} bytes; byte {start} is past its end"
                    raise StorageError(message, path=path)
                wanted = info.st_size - start if length is None else min(length, info.st_size - start)
                parts.append(pread_all(fd, start, wanted))
        finally:
            os.close(fd)
        self.counters.count_bytes(read=sum(map(len, parts)))
        return parts

    def get(self, path: str, *, start: int = 0, length: int | None = None, if_match: str | None = None) -> bytes:
        if start < 0 or (length is not None and length < 0):
            self._not_a_range(path, start, length)

        def work() -> bytes:
            self._announce("GET", path, start, length)
            return b"" if length == 0 else self._read(path, [(start, length)], if_match)[0]

        return self._guard("GET", path, work)

    def fetch(
        self, path: str, *, start: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Pending[bytes]:
        if start < 0 or (length is not None and length < 0):
            self._not_a_range(path, start, length)

        def work() -> bytes:
            return b"" if length == 0 else self._read(path, [(start, length)], if_match)[0]

        return self._start(path, [(start, length)], work)

    def fetch_ranges(
        self,
        path: str,
        ranges: Sequence[tuple[int, int]],
        *,
        if_match: str | None = None,
        coalesce: int = 64 << 10,  # noqa: ARG002 - a gap costs nothing here
    ) -> Pending[Parts]:
        for start, length in ranges:
            if start < 0 or length < 0:
                self._not_a_range(path, start, length)
        wanted = [one for one in ranges if one[1] > 0]

        def work() -> Parts:
            parts = iter(self._read(path, wanted, if_match)) if wanted else iter(())
            return [next(parts) if length else b"" for _, length in ranges]

        return self._start(path, wanted, work)

    def _start(self, path: str, ranges: Sequence[tuple[int, int | None]], work: Callable[[], T]) -> Pending[T]:
        """Announce reads now, as every store does. Small ones are done now, others in a thread."""

        def announced() -> bool:
            for start, length in ranges:
                self._announce("GET", path, start, length)
            return self._pace.is_fast and self._is_small(path, ranges)

        try:
            if not self._guard("GET", path, announced):
                return in_thread(lambda: self._guard("GET", path, work))
            began = time.monotonic()
            value = self._guard("GET", path, work)
        except LazyDeltaError as failure:
            return Pending.failed_with(failure)
        self._pace.note(time.monotonic() - began)
        return Pending.done_with(value)

    def _is_small(self, path: str, ranges: Sequence[tuple[int, int | None]]) -> bool:
        lengths = [length for _, length in ranges if length is not None]
        if len(lengths) < len(ranges):
            lengths.append(os.stat(self._file(path)).st_size)  # noqa: PTH116
        return sum(lengths) <= _SMALL_READ

    def stream(self, path: str, *, chunk_size: int = 1 << 20, start: int = 0) -> ByteStream:
        def work() -> int:
            self._announce("GET", path, start, None)
            return self._open(path, None)[0]

        def counted(read: Callable[[], bytes]) -> bytes:
            data = self._guard("GET", path, read)
            self.counters.count_bytes(read=len(data))
            return data

        if start < 0:
            self._not_a_range(path, start, None)
        return FileByteStream(FileReads(self._guard("GET", path, work), path, counted), start, chunk_size)

    def head(self, path: str) -> ObjectInfo:
        def work() -> ObjectInfo:
            self._announce("HEAD", path)
            info = os.stat(self._file(path))  # noqa: PTH116
            check_regular(info, path, self._file(path))
            return file_info(path, info)

        return self._guard("HEAD", path, work)

    def open_input(
        self,
        path: str,
        *,
        size: int,
        if_match: str | None = None,
        read_ahead: int = READ_AHEAD,  # noqa: ARG002 - the operating system reads ahead
    ) -> pa.NativeFile:
        def counted(read: Callable[[], bytes]) -> bytes:
            def work() -> bytes:
                self._announce("GET", path)
                return read()

            data = self._guard("GET", path, work)
            self.counters.count_bytes(read=len(data))
            return data

        fd, _ = self._guard("GET", path, lambda: self._open(path, if_match))
        return open_native(FileReads(fd, path, counted), size, path)

    def open_direct(self, path: str, *, start: int, length: int) -> pa.NativeFile:
        def work() -> pa.NativeFile:
            super(FileStore, self).note_read(path, start, length)
            # Arrow opens by name and would block on a FIFO forever, so it gets the file that was checked.
            fd, _ = self._open(path, None)
            try:
                by_number = f"/dev/fd/{fd}"
                return pa.OSFile(by_number if os.path.exists(by_number) else self._file(path), mode="r")  # noqa: PTH110
            finally:
                os.close(fd)

        return self._guard("GET", path, work)

    def note_read(self, path: str, start: int, length: int) -> None:
        self._guard("GET", path, lambda: super(FileStore, self).note_read(path, start, length))

    def put(self, path: str, data: bytes, *, if_match: str | None = None) -> None:
        def work() -> None:
            self._announce("PUT", path, 0, len(data))
            if if_match is None:
                self._write(path, [data], "over")
            else:
                self._replace_if(path, data, if_match)

        self._guard("PUT", path, work)

    def _replace_if(self, path: str, data: bytes, if_match: str) -> None:
        """Compare and replace under a lock on the folder, which every lazydelta writer takes for this."""
        folder, _, name = path.strip("/").rpartition("/")
        with opened_folder(self._file(""), folder) as fd, readable(fd) as locked:
            fcntl.flock(locked, fcntl.LOCK_EX)
            if file_etag(os.stat(name, dir_fd=fd)) != if_match:
                message = f"{self._file(path)} has changed (its etag differs)"
                raise ObjectChangedError(message, path=path, hint="read it again")
            self._write(path, [data], "over")

    def put_if_absent(self, path: str, data: bytes) -> None:
        def work() -> None:
            self._announce("PUT", path, 0, len(data))
            # A checksum that a power loss tore cannot be parsed, and readers go on without it.
            self._write(path, [data], "absent", durable=not path.endswith(".crc"))

        self._guard("PUT", path, work)

    def put_stream(self, path: str, chunks: Iterable[bytes]) -> int:
        def begin() -> None:
            self._announce("PUT", path)

        self._guard("PUT", path, begin)
        # An error in the caller's own generator must reach the caller unchanged.
        raised: Errors = []

        def watched() -> Iterator[bytes]:
            try:
                yield from chunks
            except BaseException as error:
                raised.append(error)
                raise

        try:
            return self._write(path, watched(), "over", durable=True)
        except BaseException as error:
            if raised:
                raise
            failure = self._fault(error, "PUT", path)
        raise failure

    def _write(self, path: str, chunks: Iterable[bytes], how: str, *, durable: bool = False) -> int:

        publish = publish_absent if how == "absent" else publish_over
        self._key(path)  # a path that leads out of the root is rejected
        size = write_file(self._file(""), path.strip("/"), chunks, publish, durable=durable)
        self.counters.count_bytes(written=size)
        return size

    def delete(self, path: str, *, missing_ok: bool = True) -> None:

        def work() -> None:
            self._announce("DELETE", path)
            folder, _, name = path.strip("/").rpartition("/")
            try:
                with opened_folder(self._file(""), folder) as fd:
                    os.unlink(name, dir_fd=fd)
            except FileNotFoundError:
                if not missing_ok:
                    raise

        self._guard("DELETE", path, work)

    def delete_empty_folder(self, folder: str) -> bool:

        def work() -> bool:
            self._announce("DELETE", folder)
            if not folder.strip("/"):
                return False
            above, _, name = folder.strip("/").rpartition("/")
            try:
                with opened_folder(self._file(""), above) as fd:
                    os.rmdir(name, dir_fd=fd)
            except FileNotFoundError:
                return False
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    return False
                raise
            return True

        return self._guard("DELETE", folder, work)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself; the later stat reports it
        return False


# Local files read by Arrow directly: no copy in Python, and no wait for the interpreter between columns.
#
# Each range is still announced before it is read, like a request, so that scans can be counted, observed and stopped.


_GAP = 64 << 10


class DirectReads:
    """Announces the reads of one open file; has the methods of ``PrefetchedReads`` that readers call.

    Nothing is announced for a file that ``is_held`` in memory.
    """

    def __init__(self, store: Store, path: str, *, is_held: bool = False) -> None:
        self._store = store
        self._path = path
        self._is_held = is_held

    def foresee(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Announce (start, length) ranges that will be read. Adjacent ranges count as one."""
        if not self._is_held:
            for start, length in coalesced(ranges, _GAP):
                self._store.note_read(self._path, start, length)

    def forget(self) -> None:
        """Do nothing: no data is kept."""

    def close(self) -> None:
        """Do nothing: no request is in flight."""
