"""Tables on an object store: Azure, S3, Google Cloud Storage and the in-memory store."""

from __future__ import annotations

import asyncio
import threading
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from lazydelta.errors import StorageError
from lazydelta.storage.bridge import Pending, run, submit
from lazydelta.storage.client import Client
from lazydelta.storage.input import AdaptiveReads, open_native
from lazydelta.storage.store import (
    READ_AHEAD,
    ByteStream,
    Hides,
    ObjectInfo,
    Parts,
    Store,
    Walk,
    coalesced,
    cut_out,
    get_options,
    is_hidden,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence

    import pyarrow as pa
    from obstore import AsyncWritableFile, BytesStream, ListStream, ObjectMeta

    from lazydelta.storage.location import Location, Settings
    from lazydelta.storage.store import IoCounters

__all__ = ["ObjectStore"]


# Remote objects read in chunks, with at most one chunk prefetched.


async def next_of(source: AsyncIterator[T]) -> T | None:
    """Return the next page or chunk, or None at the end."""
    return await anext(source, None)


class _ChunkSource:
    """The response in flight. It does not reference the stream, so a stream dropped in mid-request is collected."""

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
    """Chunks of a remote object. The next chunk is requested when the previous one is handed out."""

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
        self._source = _ChunkSource(begin, counters)
        self._pending: Pending[bytes | None] | None = self._ask()

    def _ask(self) -> Pending[bytes | None]:
        return submit(self._guard(self._source.read()))

    def __next__(self) -> bytes:
        # The client only guarantees a minimum chunk size: the in-memory store returns a whole object at once.
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
        """Abort the request in flight. Repeated calls do nothing."""
        lock = getattr(self, "_lock", None)
        if lock is None:  # the constructor was interrupted
            return
        with lock:
            pending, self._pending = getattr(self, "_pending", None), None
            self._rest = memoryview(b"")
        if pending is not None:
            pending.cancel()


# ruff: noqa: D102 - the contract of each method is documented once, in Store


T = TypeVar("T")

_PAGE = 1000
_PAGE_OF = {"azure": 5000}
_PARALLEL_RANGES = 10
_PART_SIZE = 8 << 20
_PARALLEL_PARTS = 4
# Sorts after every name that a folder can hold.
_LAST_NAME = "\U0010ffff"


class ObjectStore(Store):
    """A folder in a container of an object store."""

    def __init__(self, location: Location, settings: Settings) -> None:
        super().__init__(location, settings)
        self._client = Client(location, settings)
        # S3 Express buckets do not sort their listings.
        self._sorts = not location.container.endswith("--x-s3")
        # Only where keys are compared byte by byte. An Azure account may order them by folder.
        self._jumps = location.kind in ("s3", "gcs")

    # --- helpers

    async def _guarded(self, verb: str, path: str, work: Awaitable[T]) -> T:
        """Await ``work``. Any failure is raised as a lazydelta error, without its cause."""
        try:
            return await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - translated, or raised again unchanged
            failure = self._fault(error, verb, path)
        raise failure

    def _begin(self, verb: str, path: str, start: int | None = None, length: int | None = None) -> BaseException | None:
        """Announce a request. If an observer raises, the request fails with that error."""
        try:
            self._announce(verb, path, start, length)
        except BaseException as error:  # noqa: BLE001 - translated, or raised again unchanged
            return self._fault(error, verb, path)
        return None

    def _run(self, verb: str, path: str, work: Callable[[], Coroutine[Any, Any, T]], size: int | None = None) -> T:
        failure = self._begin(verb, path, None if size is None else 0, size)
        if failure is not None:
            raise failure
        return run(self._guarded(verb, path, work()))

    def _info(self, path: str, meta: ObjectMeta) -> ObjectInfo:
        timestamp = meta["last_modified"]
        etag = meta["e_tag"]
        # Azure omits the quotes in listings that it sends in headers; requests need them.
        if etag and self._location.kind == "azure" and not etag.startswith(('"', "W/")):
            etag = f'"{etag}"'
        return ObjectInfo(path, meta["size"], round(timestamp.timestamp() * 1000), etag)

    # --- reading

    def list(self, folder: str, *, after: str = "") -> Iterator[ObjectInfo]:
        found = self._walk(folder, after)
        if self._sorts:
            return found
        return self._sorted(found)

    def _sorted(self, found: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        yield from sorted(found, key=lambda info: info.path)

    def _walk(self, folder: str, after: str) -> Iterator[ObjectInfo]:
        """Yield the objects directly in the folder, page by page."""
        folder = folder.strip("/")
        prefix = self._key(folder)
        below = f"{prefix}/" if prefix else ""
        shown = f"{folder}/" if folder else ""
        page_size = _PAGE_OF.get(self._location.kind, _PAGE)
        floor, previous, seen = after, "", 0
        offset = below + after if after else None
        pages = self._pages(folder, prefix, offset)
        while True:
            if seen % page_size == 0 and (failure := self._begin("LIST", folder)) is not None:
                raise failure
            page = run(self._guarded("LIST", folder, next_of(pages)))
            if page is None:
                return
            seen += len(page)
            for name, meta in _directly_in(below, page):
                # Some stores ignore the start key and return the names that were to be skipped.
                if name <= floor:
                    continue
                if self._sorts and name < previous and name.isascii() and previous.isascii():
                    message = f"{self.uri} lists {name!r} after {previous!r}: the store does not sort its listings"
                    raise StorageError(message, path=shown + name)
                previous = name
                yield self._info(shown + name, meta)
            jump = self._past_subfolder(page, below, offset)
            if jump is not None:
                offset, floor, seen = jump, max(floor, previous), 0
                pages = self._pages(folder, prefix, offset)

    def walk(self, hides: Hides, *, below: str = "", deep: bool = True) -> Walk:
        walk = Walk()
        return walk.over(self._everything_below(below, hides) if deep else self._level(below, hides, walk))

    def _level(self, folder: str, hides: Hides, walk: Walk) -> Iterator[ObjectInfo]:
        prefix, root = self._key(folder), self._key("")
        above = len(root) + 1 if root else 0
        found = self._run("LIST", folder, lambda: self._client.level(prefix))
        for each in found["common_prefixes"]:
            path = each.rstrip("/")[above:]
            if _is_below(path) and is_hidden(path, hides) is None:
                walk.folders.append(path)
        for meta in found["objects"]:
            path = meta["path"][above:]
            if _is_below(path) and is_hidden(path, hides) is None:
                yield self._info(path, meta)

    def _everything_below(self, folder: str, hides: Hides) -> Iterator[ObjectInfo]:
        prefix, root = self._key(folder), self._key("")
        below = f"{root}/" if root else ""
        page_size = _PAGE_OF.get(self._location.kind, _PAGE)
        seen, offset = 0, ""
        pages = self._pages(folder, prefix, None)
        while True:
            if seen % page_size == 0 and (failure := self._begin("LIST", folder)) is not None:
                raise failure
            page = run(self._guarded("LIST", folder, next_of(pages)))
            if page is None:
                return
            seen += len(page)
            passed: str | None = None
            for meta in page:
                path = meta["path"][len(below) :]
                if not meta["path"].startswith(below) or not _is_below(path) or meta["path"] <= offset:
                    continue
                passed = is_hidden(path, hides)
                if passed is None:
                    yield self._info(path, meta)
            # If the store supports start keys, skip a log of many thousand objects instead of paging through it.
            last = page[-1]["path"]
            if passed is not None and self._jumps and len(page) >= _PAGE and last.startswith(f"{below}{passed}/"):
                offset, seen = f"{below}{passed}/{_LAST_NAME}", 0
                pages = self._pages(folder, prefix, offset)

    def _past_subfolder(self, page: Sequence[ObjectMeta], below: str, offset: str | None) -> str | None:
        """Return a start key past the sub-folder in which a full page ended, if restarting there is worthwhile."""
        if not self._jumps or len(page) < _PAGE:
            return None
        if offset is not None and page[0]["path"] <= offset:
            self._jumps = False  # this store ignores start keys: it would start from the beginning again
            return None
        inside, slash, _ = page[-1]["path"][len(below) :].partition("/")
        return f"{below}{inside}/{_LAST_NAME}" if slash else None

    def _pages(self, folder: str, prefix: str, offset: str | None) -> ListStream[Sequence[ObjectMeta]]:
        try:
            return self._client.pages(prefix, offset, _PAGE)
        except BaseException as error:  # noqa: BLE001 - translated, or raised again unchanged
            failure = self._fault(error, "LIST", folder)
        raise failure

    def fetch(
        self, path: str, *, start: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Pending[bytes]:
        if start < 0 or (length is not None and length < 0):
            self._not_a_range(path, start, length)
        key = self._key(path)
        failure = self._begin("GET", path, start, length)
        if failure is not None:
            return Pending.failed_with(failure)
        if length == 0:
            return Pending.done_with(b"")
        return submit(self._guarded("GET", path, self._read(key, start, length, if_match)))

    async def _read(self, key: str, start: int, length: int | None, if_match: str | None) -> bytes:
        data = await self._client.get(key, get_options(start, length, if_match))
        self.counters.count_bytes(read=len(data))
        return data

    def fetch_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], *, if_match: str | None = None, coalesce: int = 64 << 10
    ) -> Pending[Parts]:
        for start, length in ranges:
            if start < 0 or length < 0:
                self._not_a_range(path, start, length)
        key = self._key(path)
        runs = coalesced(ranges, coalesce)
        for start, length in runs:
            failure = self._begin("GET", path, start, length)
            if failure is not None:
                return Pending.failed_with(failure)

        async def work() -> Parts:
            gate = asyncio.Semaphore(_PARALLEL_RANGES)

            async def one(start: int, length: int) -> bytes:
                async with gate:
                    return await self._read(key, start, length, if_match)

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(start, length)) for start, length in runs]
            return cut_out(ranges, runs, [task.result() for task in tasks])

        async def unwrapped() -> Parts:
            try:
                return await work()
            except BaseExceptionGroup as group:
                first = group.exceptions[0]
            raise first

        return submit(self._guarded("GET", path, unwrapped()))

    def stream(self, path: str, *, chunk_size: int = 1 << 20, start: int = 0) -> ByteStream:
        if start < 0:
            self._not_a_range(path, start, None)
        key = self._key(path)
        failure = self._begin("GET", path, start, None)
        if failure is not None:
            raise failure
        client, options, size = self._client, get_options(start, None, None), max(1, chunk_size)
        return ChunkStream(
            lambda: client.chunks(key, options, size),
            lambda work: self._guarded("GET", path, work),
            self.counters,
            size,
        )

    def head(self, path: str) -> ObjectInfo:
        key = self._key(path)
        return self._info(path, self._run("HEAD", path, lambda: self._client.head(key)))

    def open_input(
        self, path: str, *, size: int, if_match: str | None = None, read_ahead: int = READ_AHEAD
    ) -> pa.NativeFile:
        def fetch(start: int, length: int) -> Pending[bytes]:
            return self.fetch(path, start=start, length=length, if_match=if_match)

        return open_native(AdaptiveReads(fetch, size, read_ahead), size, path)

    # --- writing

    def put(self, path: str, data: bytes, *, if_match: str | None = None) -> None:
        key = self._key(path)
        if if_match is None:
            self._run("PUT", path, lambda: self._client.put(key, data, "overwrite"), len(data))
        else:
            self._run("PUT", path, lambda: self._client.put(key, data, {"e_tag": if_match}), len(data))
        self.counters.count_bytes(written=len(data))

    def put_if_absent(self, path: str, data: bytes) -> None:
        key = self._key(path)
        self._run("PUT", path, lambda: self._client.put(key, data, "create"), len(data))
        self.counters.count_bytes(written=len(data))

    def put_stream(self, path: str, chunks: Iterable[bytes]) -> int:
        key = self._key(path)
        failure = self._begin("PUT", path)
        if failure is not None:
            raise failure

        async def begin() -> AsyncWritableFile:
            return self._client.upload(key, _PART_SIZE, _PARALLEL_PARTS)

        async def write(chunk: bytes) -> None:
            await upload.write(chunk)

        async def complete() -> None:
            await upload.close()

        upload = run(self._guarded("PUT", path, begin()))
        size = 0
        for chunk in chunks:
            run(self._guarded("PUT", path, write(chunk)))
            size += len(chunk)
        run(self._guarded("PUT", path, complete()))
        self.counters.count_bytes(written=size)
        return size

    def delete(self, path: str, *, missing_ok: bool = True) -> None:
        key = self._key(path)
        if not missing_ok and self._location.kind in ("s3", "memory"):
            self.head(path)  # these stores do not report that there was nothing to delete

        async def work() -> None:
            try:
                await self._client.delete(key)
            except FileNotFoundError:
                if not missing_ok:
                    raise

        self._run("DELETE", path, work)


def _is_below(path: str) -> bool:
    """Return whether a key is a plain path. Anyone with write access to a store can create unusual keys."""
    return all(name not in {"", ".", ".."} for name in path.split("/")) and "\0" not in path


def _directly_in(below: str, page: Sequence[ObjectMeta]) -> Sequence[tuple[str, ObjectMeta]]:
    """Return (name, object) for the objects directly in the folder, sorted: not every service sorts by UTF-8 bytes."""
    found = []
    for meta in page:
        name = meta["path"][len(below) :]
        if name and "/" not in name and meta["path"].startswith(below):
            found.append((name, meta))
    found.sort(key=itemgetter(0))
    return found
