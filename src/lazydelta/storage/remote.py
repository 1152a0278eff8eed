"""Tables on an object store: Azure, S3, Google Cloud Storage, and the in-memory store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from lazydelta.storage.bridge import Pending, run, submit
from lazydelta.errors import StorageError
from lazydelta.storage.client import Chunks, Client
from lazydelta.storage.input import AdaptiveReads, open_native
from lazydelta.storage.store import READ_AHEAD, ObjectInfo, Settings, Store
from lazydelta.storage.stream import ByteStream

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore import GetOptions, ObjectMeta

    from lazydelta.storage.location import Location

__all__ = ["ObjectStore"]

T = TypeVar("T")

_PAGE = 1000
_PAGE_OF = {"azure": 5000}
_PARALLEL_RANGES = 10
_PART_SIZE = 8 << 20
_PARALLEL_PARTS = 4
# Sorts after every name a folder can hold.
_LAST_NAME = "\U0010ffff"


class ObjectStore(Store):
    """A folder of a container of an object store."""

    def __init__(self, location: Location, settings: Settings) -> None:
        super().__init__(location, settings)
        self._client = Client(location, settings)
        # S3 Express buckets do not sort their listings.
        self._sorts = not location.container.endswith("--x-s3")
        self._jumps = location.kind != "memory"

    # --- helpers

    async def _guarded(self, verb: str, path: str, work: Awaitable[T]) -> T:
        """Await ``work``; whatever goes wrong leaves as an error of ours, without its cause."""
        try:
            return await work
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - translated, or raised again as it was
            failure = self._fault(error, verb, path)
        raise failure

    def _begin(
        self, verb: str, path: str, start: int | None = None, length: int | None = None
    ) -> BaseException | None:
        """Announce a request; an observer's fault comes back as the request's failure."""
        try:
            self._announce(verb, path, start, length)
        except BaseException as error:  # noqa: BLE001 - translated, or raised again as it was
            return self._fault(error, verb, path)
        return None

    def _run(self, verb: str, path: str, work: Callable[[], Coroutine[Any, Any, T]], size: int | None = None) -> T:
        failure = self._begin(verb, path, None if size is None else 0, size)
        if failure is not None:
            raise failure
        return run(self._guarded(verb, path, work()))

    def _info(self, path: str, meta: ObjectMeta) -> ObjectInfo:
        moment = meta["last_modified"]
        etag = meta["e_tag"]
        # Azure's listings leave the quotes out that its headers have; a request wants them.
        if etag and self._location.kind == "azure" and not etag.startswith(('"', "W/")):
            etag = f'"{etag}"'
        return ObjectInfo(path, meta["size"], round(moment.timestamp() * 1000), etag)

    # --- reading

    def list(self, folder: str, *, after: str = "") -> Iterator[ObjectInfo]:
        found = self._walk(folder, after)
        if self._sorts:
            return found
        return self._sorted(found)

    def _sorted(self, found: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        yield from sorted(found, key=lambda info: info.path)

    def _walk(self, folder: str, after: str) -> Iterator[ObjectInfo]:
        """Yield what is directly in the folder, page by page."""
        folder = folder.strip("/")
        prefix = self._key(folder)
        below = f"{prefix}/" if prefix else ""
        shown = f"{folder}/" if folder else ""
        page_size = _PAGE_OF.get(self._location.kind, _PAGE)
        last, offset, seen = after, (below + after if after else None), 0
        pages = self._pages(folder, prefix, offset)
        while True:
            if seen % page_size == 0 and (failure := self._begin("LIST", folder)) is not None:
                raise failure
            page: Sequence[ObjectMeta] | None = run(self._guarded("LIST", folder, pages.next()))
            if page is None:
                return
            seen += len(page)
            inside = ""
            for meta in page:
                key = meta["path"]
                name = key[len(below) :]
                if not name or not key.startswith(below):
                    continue
                inside, slash, _ = name.partition("/")
                if slash:
                    continue
                inside = ""
                # Some stores ignore the start key, and all of them may list what we asked them to skip.
                if name <= last:
                    if self._sorts and name > after:
                        message = f"{self.uri} lists {name!r} after {last!r}: the listing is not sorted"
                        raise StorageError(message, path=shown + name)
                    continue
                if self._sorts:
                    last = name
                yield self._info(shown + name, meta)
            if inside and self._jumps and len(page) == _PAGE:
                jump = f"{below}{inside}/{_LAST_NAME}"
                if offset is not None and page[0]["path"] <= offset:
                    self._jumps = False  # this store ignores start keys: jumping would begin the listing again
                elif offset is None or jump > offset:
                    offset, seen = jump, 0
                    last = max(last, inside) if self._sorts else last
                    pages = self._pages(folder, prefix, offset)

    def _pages(self, folder: str, prefix: str, offset: str | None) -> Chunks:
        try:
            return self._client.pages(prefix, offset, _PAGE)
        except BaseException as error:  # noqa: BLE001 - translated, or raised again as it was
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
        data = await self._client.get(key, _get_options(start, length, if_match))
        self.counters.count_bytes(read=len(data))
        return data

    def fetch_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], *, if_match: str | None = None, coalesce: int = 64 << 10
    ) -> Pending[list[bytes]]:  # type: ignore[valid-type]
        for start, length in ranges:
            if start < 0 or length < 0:
                self._not_a_range(path, start, length)
        key = self._key(path)
        runs = _coalesced(ranges, coalesce)
        for start, length in runs:
            failure = self._begin("GET", path, start, length)
            if failure is not None:
                return Pending.failed_with(failure)

        async def work() -> list[bytes]:  # type: ignore[valid-type]
            gate = asyncio.Semaphore(_PARALLEL_RANGES)

            async def one(start: int, length: int) -> bytes:
                async with gate:
                    return await self._read(key, start, length, if_match)

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(start, length)) for start, length in runs]
            return _cut(ranges, runs, [task.result() for task in tasks])

        async def unwrapped() -> list[bytes]:  # type: ignore[valid-type]
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
        return _ObjectStream(self, path, key, start, max(1, chunk_size))

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

        async def begin() -> Any:
            return self._client.upload(key, _PART_SIZE, _PARALLEL_PARTS)

        upload = run(self._guarded("PUT", path, begin()))
        size = 0
        for chunk in chunks:
            run(self._guarded("PUT", path, upload.write(bytes(chunk))))
            size += len(chunk)
        run(self._guarded("PUT", path, upload.close()))
        self.counters.count_bytes(written=size)
        return size

    def delete(self, path: str, *, missing_ok: bool = True) -> None:
        key = self._key(path)
        if not missing_ok and self._location.kind in ("s3", "memory"):
            self.head(path)  # these stores do not say that there was nothing to delete

        async def work() -> None:
            try:
                await self._client.delete(key)
            except FileNotFoundError:
                if not missing_ok:
                    raise

        self._run("DELETE", path, work)


def _get_options(start: int, length: int | None, if_match: str | None) -> GetOptions:
    options: GetOptions = {}
    if length is not None:
        options["range"] = (start, start + length)
    elif start:
        options["range"] = {"offset": start}
    if if_match is not None:
        options["if_match"] = if_match
    return options


def _coalesced(ranges: Sequence[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Return the requests that cover ``ranges``, reading over gaps that are cheaper than a round trip."""
    runs: list[list[int]] = []
    for start, length in sorted(item for item in ranges if item[1] > 0):
        if runs and start <= runs[-1][1] + gap:
            runs[-1][1] = max(runs[-1][1], start + length)
        else:
            runs.append([start, start + length])
    return [(start, end - start) for start, end in runs]


def _cut(
    ranges: Sequence[tuple[int, int]], runs: Sequence[tuple[int, int]], blocks: Sequence[bytes]
) -> list[bytes]:
    """Cut the ranges that were asked for out of the blocks that were read."""
    if list(ranges) == list(runs):
        return list(blocks)
    parts = []
    for start, length in ranges:
        index = next((i for i, (at, size) in enumerate(runs) if at <= start < at + size), None)
        if index is None or length == 0:
            parts.append(b"")
        else:
            offset = start - runs[index][0]
            parts.append(blocks[index][offset : offset + length])
    return parts


class _ObjectStream(ByteStream):
    """Chunks of a remote object; the next one is requested when the previous one is handed out."""

    def __init__(self, store: ObjectStore, path: str, key: str, start: int, chunk_size: int) -> None:
        self._store = store
        self._path = path
        self._lock = threading.Lock()
        self._chunks: Chunks | None = None
        self._next: Pending[bytes | None] | None = submit(
            store._guarded("GET", path, self._first(key, start, chunk_size))
        )

    async def _first(self, key: str, start: int, chunk_size: int) -> bytes | None:
        self._chunks = await self._store._client.chunks(key, _get_options(start, None, None), chunk_size)
        return await self._following()

    async def _following(self) -> bytes | None:
        assert self._chunks is not None  # noqa: S101 - the first request sets it before any other is made
        chunk = await self._chunks.next()
        if chunk is None:
            return None
        self._store.counters.count_bytes(read=len(chunk))
        return bytes(chunk)

    def __next__(self) -> bytes:
        with self._lock:
            pending = self._next
        if pending is None:
            raise StopIteration
        try:
            chunk = pending.result()
        except BaseException:
            closed = self._next is None
            self.close()
            if closed:
                raise StopIteration from None
            raise
        with self._lock:
            if chunk is None or self._next is None:
                self._next = None
                raise StopIteration
            self._next = submit(self._store._guarded("GET", self._path, self._following()))
        return chunk

    def close(self) -> None:
        lock = getattr(self, "_lock", None)
        if lock is None:
            return
        with lock:
            pending, self._next = getattr(self, "_next", None), None
            self._chunks = None
        if pending is not None:
            pending.cancel()
