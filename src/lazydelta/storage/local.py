"""Tables on a file system.

Reads are ``pread`` without any detour. Writes go to a temporary name in the same folder and become visible by one
rename or hard link, so no reader ever sees half an object. Nothing here needs the object-store client, so local
tables also work in forked processes.
"""

# ruff: noqa: D102 - what each method promises is said once, in Store

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import uuid
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

from lazydelta.errors import LazyDeltaError, ObjectChangedError, StorageError
from lazydelta.storage.bridge import Pending, in_thread
from lazydelta.storage.byte_stream import ByteStream
from lazydelta.storage.input import open_native
from lazydelta.storage.store import READ_AHEAD, ObjectInfo, Parts, Store
from lazydelta.storage.temporary import TEMPORARY, temporaries, tidy
from lazydelta.storage.walk import Hides, Walk, walk_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["FileStore"]

T = TypeVar("T")
Errors: TypeAlias = list[BaseException]

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC


def _etag(info: os.stat_result) -> str:
    """Identify a file's content as well as a file system can: which file, when written, how long."""
    return f"{info.st_ino:x}-{info.st_mtime_ns // 1000:x}-{info.st_size:x}"


def _info(path: str, info: os.stat_result) -> ObjectInfo:
    return ObjectInfo(path, info.st_size, info.st_mtime_ns // 1_000_000, _etag(info))


def _pread_all(fd: int, start: int, length: int) -> bytes:
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


def _flush(path: str) -> None:
    """Wait until a file or folder is on the disk, where the file system can promise that at all."""
    fd = os.open(path, _READ_FLAGS)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(fd)


def _durably(file: str, publish: Callable[[str, str], None]) -> Callable[[str, str], None]:
    """Return ``publish`` such that what it made survives the loss of power, content before name.

    Commits and the data files that they name are written this way: an acknowledged commit must not lose its content.
    """
    # A folder that does not exist yet will be an entry of its parent, which has to survive as well.
    folders = [os.path.dirname(file)]  # noqa: PTH120
    while not os.path.exists(folders[-1]):  # noqa: PTH110
        folders.append(os.path.dirname(folders[-1]))  # noqa: PTH120

    def publish_durably(temporary: str, name: str) -> None:
        _flush(temporary)
        publish(temporary, name)
        for folder in folders:
            _flush(folder)

    return publish_durably


class FileStore(Store):
    """A folder of a file system."""

    def _file(self, path: str) -> str:
        return "/" + self._key(path)

    def _announce(self, verb: str, path: str, start: int | None = None, length: int | None = None) -> None:
        self._key(path)  # a path that is refused is no request
        super()._announce(verb, path, start, length)

    def _guard(self, verb: str, path: str, work: Callable[[], T]) -> T:
        """Run ``work``; whatever goes wrong leaves as an error of ours, without its cause."""
        try:
            return work()
        except BaseException as error:  # noqa: BLE001 - translated, or raised again as it was
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
                        if entry.name > after and not entry.name.startswith(TEMPORARY) and not entry.is_dir()
                    ]
            except (FileNotFoundError, NotADirectoryError):
                return []
            found.sort(key=os.fsencode)
            return found

        prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
        place = self._file(folder)
        for name in self._guard("LIST", folder, names):
            # A file deleted since the folder was read is simply not there any more.
            with contextlib.suppress(FileNotFoundError):
                info = os.stat(f"{place}/{name}")  # noqa: PTH116
                if stat.S_ISREG(info.st_mode):
                    yield _info(prefix + name, info)

    def walk(self, hides: Hides, *, below: str = "", deep: bool = True) -> Walk:
        walk = Walk()

        def found() -> Iterator[ObjectInfo]:
            self._guard("LIST", below, lambda: self._announce("LIST", below))
            objects = walk_folder(self._file(""), hides, _info, walk, below=below, deep=deep)
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
            return [_info(prefix + name, info) for name, info in temporaries(self._file(folder))]

        return iter(self._guard("LIST", folder, found))

    def _open(self, path: str, if_match: str | None) -> tuple[int, os.stat_result]:
        fd = os.open(self._file(path), _READ_FLAGS)
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            os.close(fd)
            raise IsADirectoryError(path)
        if if_match is not None and if_match != _etag(info):
            os.close(fd)
            message = f"{self._file(path)} is not the file it was (its etag differs)"
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
                parts.append(_pread_all(fd, start, wanted))
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
        """Announce reads now, as every store does, and let a thread do them."""

        def announced() -> None:
            for start, length in ranges:
                self._announce("GET", path, start, length)

        try:
            self._guard("GET", path, announced)
        except LazyDeltaError as failure:
            return Pending.failed_with(failure)
        return in_thread(lambda: self._guard("GET", path, work))

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
        return _FileStream(_FileReads(self._guard("GET", path, work), path, counted), start, chunk_size)

    def head(self, path: str) -> ObjectInfo:
        def work() -> ObjectInfo:
            self._announce("HEAD", path)
            info = os.stat(self._file(path))  # noqa: PTH116
            if stat.S_ISDIR(info.st_mode):
                raise IsADirectoryError(path)
            return _info(path, info)

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
        return open_native(_FileReads(fd, path, counted), size, path)

    def open_direct(self, path: str, *, start: int, length: int) -> pa.NativeFile:
        self.note_read(path, start, length)
        return self._guard("GET", path, lambda: pa.OSFile(self._file(path), mode="r"))

    def note_read(self, path: str, start: int, length: int) -> None:
        self._guard("GET", path, lambda: super(FileStore, self).note_read(path, start, length))

    def put(self, path: str, data: bytes, *, if_match: str | None = None) -> None:
        def work() -> None:
            self._announce("PUT", path, 0, len(data))
            file = self._file(path)
            if if_match is None:
                self._write(file, [data], os.replace)
            else:
                self._replace_if(file, path, data, if_match)

        self._guard("PUT", path, work)

    def _replace_if(self, file: str, path: str, data: bytes, if_match: str) -> None:
        """Compare and replace under a lock on the folder, which every writer of ours takes for this."""
        folder = os.open(os.path.dirname(file), _READ_FLAGS)  # noqa: PTH120
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if _etag(os.stat(file)) != if_match:  # noqa: PTH116
                message = f"{file} is not the file it was (its etag differs)"
                raise ObjectChangedError(message, path=path, hint="read it again")
            self._write(file, [data], os.replace)
        finally:
            os.close(folder)

    def put_if_absent(self, path: str, data: bytes) -> None:
        file = self._file(path)

        def work() -> None:
            self._announce("PUT", path, 0, len(data))
            self._write(file, [data], _durably(file, os.link))

        self._guard("PUT", path, work)

    def put_stream(self, path: str, chunks: Iterable[bytes]) -> int:
        def begin() -> None:
            self._announce("PUT", path)

        self._guard("PUT", path, begin)
        # What the caller's own generator raises must reach the caller as it is.
        raised: Errors = []

        def watched() -> Iterator[bytes]:
            try:
                yield from chunks
            except BaseException as error:
                raised.append(error)
                raise

        try:
            file = self._file(path)
            return self._write(file, watched(), _durably(file, os.replace))
        except BaseException as error:
            if raised:
                raise
            failure = self._fault(error, "PUT", path)
        raise failure

    def _write(self, file: str, chunks: Iterable[bytes], publish: Callable[[str, str], None]) -> int:
        folder, name = os.path.split(file)
        temporary = os.path.join(folder, f"{TEMPORARY}{uuid.uuid4().hex}-{name[:100]}")  # noqa: PTH118
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            fd = os.open(temporary, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            fd = os.open(temporary, flags, 0o666)
        size = 0
        try:
            with os.fdopen(fd, "wb", buffering=0) as target:
                for chunk in chunks:
                    view = memoryview(chunk)
                    size += view.nbytes
                    while view.nbytes:
                        view = view[target.write(view) :]
            publish(temporary, file)
        finally:
            # Still there after a hard link and after any failure; gone after a rename.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)  # noqa: PTH108
        self.counters.count_bytes(written=size)
        tidy(folder)
        return size

    def delete(self, path: str, *, missing_ok: bool = True) -> None:
        def work() -> None:
            self._announce("DELETE", path)
            try:
                os.unlink(self._file(path))  # noqa: PTH108
            except FileNotFoundError:
                if not missing_ok:
                    raise

        self._guard("DELETE", path, work)

    def delete_empty_folder(self, folder: str) -> bool:
        def work() -> bool:
            self._announce("DELETE", folder)
            if not folder.strip("/"):
                return False
            try:
                os.rmdir(self._file(folder))  # noqa: PTH106
            except FileNotFoundError:
                return False
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    return False
                raise
            return True

        return self._guard("DELETE", folder, work)


class _FileStream(ByteStream):
    """Chunks of a local file; nothing is read ahead, the operating system does that."""

    def __init__(self, reads: _FileReads, start: int, chunk_size: int) -> None:
        self._reads: _FileReads | None = reads
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
        reads, self._reads = getattr(self, "_reads", None), None
        if reads is not None:
            reads.close()


class _FileReads:
    """Positioned reads of one open file; a read under way finishes before the file is closed."""

    def __init__(self, fd: int, path: str, guard: Callable[[Callable[[], bytes]], bytes]) -> None:
        self._fd: int | None = fd
        self._path = path
        self._guard = guard
        self._lock = threading.Lock()

    def read_at(self, start: int, length: int) -> bytes:
        def work() -> bytes:
            with self._lock:
                if self._fd is None:
                    message = f"{self._path!r} was closed"
                    raise StorageError(message, path=self._path)
                return _pread_all(self._fd, start, length)

        return self._guard(work)

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
