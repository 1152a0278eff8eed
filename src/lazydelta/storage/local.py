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
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

from lazydelta.errors import LazyDeltaError, ObjectChangedError, StorageError
from lazydelta.storage.bridge import Pending, in_thread
from lazydelta.storage.byte_stream import ByteStream
from lazydelta.storage.input import open_native
from lazydelta.storage.local_reads import READ_FLAGS, FileByteStream, FileReads, file_etag, file_info, pread_all
from lazydelta.storage.store import READ_AHEAD, ObjectInfo, Parts, Store
from lazydelta.storage.temporary import TEMPORARY, temporaries, tidy
from lazydelta.storage.walk import Hides, Walk, walk_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lazydelta.storage.local_writes import Publish

__all__ = ["FileStore"]

T = TypeVar("T")
Errors: TypeAlias = list[BaseException]


class FileStore(Store):
    """A folder of a file system."""

    @property
    def reads_directly(self) -> bool:
        return True

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
                    yield file_info(prefix + name, info)

    def walk(self, hides: Hides, *, below: str = "", deep: bool = True) -> Walk:
        walk = Walk()

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
        if stat.S_ISDIR(info.st_mode):
            os.close(fd)
            raise IsADirectoryError(path)
        if if_match is not None and if_match != file_etag(info):
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
        return FileByteStream(FileReads(self._guard("GET", path, work), path, counted), start, chunk_size)

    def head(self, path: str) -> ObjectInfo:
        def work() -> ObjectInfo:
            self._announce("HEAD", path)
            info = os.stat(self._file(path))  # noqa: PTH116
            if stat.S_ISDIR(info.st_mode):
                raise IsADirectoryError(path)
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
            return pa.OSFile(self._file(path), mode="r")

        return self._guard("GET", path, work)

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
        folder = os.open(os.path.dirname(file), READ_FLAGS)  # noqa: PTH120
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if file_etag(os.stat(file)) != if_match:  # noqa: PTH116
                message = f"{file} is not the file it was (its etag differs)"
                raise ObjectChangedError(message, path=path, hint="read it again")
            self._write(file, [data], os.replace)
        finally:
            os.close(folder)

    def put_if_absent(self, path: str, data: bytes) -> None:
        file = self._file(path)

        def work() -> None:
            self._announce("PUT", path, 0, len(data))
            self._write(file, [data], os.link, durable=True)

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
            return self._write(file, watched(), os.replace, durable=True)
        except BaseException as error:
            if raised:
                raise
            failure = self._fault(error, "PUT", path)
        raise failure

    def _write(self, file: str, chunks: Iterable[bytes], publish: Publish, *, durable: bool = False) -> int:
        from lazydelta.storage.local_writes import durably, write_file  # noqa: PLC0415 - nobody who reads needs it

        size = write_file(file, chunks, durably(file, publish) if durable else publish)
        self.counters.count_bytes(written=size)
        tidy(os.path.dirname(file))  # noqa: PTH120
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
