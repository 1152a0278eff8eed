"""Tables on an object store: Azure, S3, Google Cloud Storage and the in-memory store."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections import OrderedDict
from datetime import timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from lazydelta.errors import AccessDeniedError, OptionError, StorageError
from lazydelta.storage.address import LOOPBACK, address_of, client_config, fence, from_environment, is_true
from lazydelta.storage.bridge import Pending, run, submit
from lazydelta.storage.credentials import isolate, lasting_credentials, named_credential, token_provider
from lazydelta.storage.faults import option_fault
from lazydelta.storage.input import AdaptiveReads, open_native
from lazydelta.storage.options import CREDENTIAL, is_secret, sort_options
from lazydelta.storage.store import (
    READ_AHEAD,
    ByteStream,
    Hides,
    ObjectInfo,
    ObjectWalk,
    Parts,
    Store,
    coalesced,
    cut_out,
    get_options,
    is_hidden,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence

    import pyarrow as pa
    from obstore import AsyncWritableFile, BytesStream, GetOptions, ListResult, ListStream, ObjectMeta, PutMode
    from obstore.store import ObjectStore as ObstoreClient
    from obstore.store import RetryConfig

    from lazydelta.storage.location import Location, Settings
    from lazydelta.storage.store import IoCounters

__all__ = [
    "Client",
    "ObjectStore",
]


# Object-store client: built from a location and options, with the few calls that lazydelta needs.


_CONNECT_SECONDS = 5.0
_WHOLE_REQUEST_FACTOR = 20
_MAX_BACKOFF = timedelta(seconds=5)

_memory: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def _memory_store(name: str) -> MemoryStore:
    """Return the in-memory store of this name, shared by the whole process."""
    with _memory_lock:
        return _memory.setdefault(name, MemoryStore())


# Each client has its own connections. Tables of one container with the same settings share one, so that opening many of
# them does not open as many connections. The provider is kept with the client, so that its identity stays its own.
_MOST_STORES = 32
_stores: OrderedDict[str, tuple[Any, ObstoreClient]] = OrderedDict()
_stores_lock = threading.Lock()


def _shared_store(key: str, provider: Any, build: Callable[[], ObstoreClient]) -> ObstoreClient:
    digest = hashlib.sha256(key.encode()).hexdigest()  # it names credentials, which need not be kept twice
    with _stores_lock:
        if digest in _stores:
            _stores.move_to_end(digest)
            return _stores[digest][1]
    built = build()
    with _stores_lock:
        _stores[digest] = provider, built
        while len(_stores) > _MOST_STORES:
            _stores.popitem(last=False)
    return built


class Client:
    """Client for one container of an object store."""

    def __init__(self, location: Location, settings: Settings) -> None:
        self._location = location
        self._settings = settings
        self._built = None if settings.left_behind and location.kind != "memory" else self._build()

    @property
    def _store(self) -> ObstoreClient:
        if self._built is None:
            uri = self._location.uri
            message = f"the credentials for {uri} were not sent to this process"
            hint = "open it here with its storage_options, or send a store that carries them: carrying_credentials()"
            raise AccessDeniedError(message, path=uri, hint=hint)
        return self._built

    def _build(self) -> ObstoreClient:
        location, settings = self._location, self._settings
        if location.kind == "memory":
            return _memory_store(location.container)
        try:
            return self._build_remote()
        except BaseException as error:  # noqa: BLE001 - translated, or raised again unchanged
            failure = option_fault(error, uri=location.uri, secrets=settings.secrets)
        raise failure

    def _build_remote(self) -> ObstoreClient:
        location, settings = self._location, self._settings
        kind = location.kind
        options = sort_options(kind, settings.options)
        config = client_config(location, settings.options, settings.environment)
        address = address_of(location, settings.options, settings.environment)
        client = self._client_options(options.client)
        if address is None:  # every kind that gets here has an address
            message = f"{location.uri} is not in an object store"
            raise OptionError(message, path=location.uri)
        # Only the user can have set the emulator's address, and the client knows that it is not encrypted.
        if address.service.startswith("http:") and not is_true(config.get("use_emulator")):
            if address.host in LOOPBACK:
                client.setdefault("allow_http", "true")
            elif not is_true(client.get("allow_http")):
                message = f"the endpoint of {location.uri} is not encrypted"
                raise OptionError(message, path=location.uri, hint="use https, or set allow_http to true")
        around = from_environment(kind)
        if settings.environment is not None:
            provider = isolate(location, config, address, around)
            around = {}
        else:
            # The client would prefer a token from the environment to a key that the table was given.
            mixed = any(is_secret(name, value) and name not in config for name, (_, value) in around.items())
            provider = lasting_credentials(kind, config) if mixed else None
        credential = settings.options.get(CREDENTIAL) if settings.credential is None else settings.credential
        if isinstance(credential, str):
            provider = named_credential(kind, credential, config) or provider
        elif credential is not None:
            provider = token_provider(kind, credential)
        if "proxy_url" not in client:
            client |= fence(kind, address, config, {name: value for name, (_, value) in around.items()})
        build: Callable[..., ObstoreClient] = {"azure": AzureStore, "s3": S3Store, "gcs": GCSStore}[kind]
        more = {} if provider is None else {"credential_provider": provider}
        retry = self._retry(options.retry)
        # Credentials of the environment may change between two tables; the client reads them when it is built.
        signed = provider if credential is None else credential
        parts = (os.getpid(), kind, location.container, config, client, retry, id(signed), sorted(around.items()))
        return _shared_store(
            repr(parts),
            signed,
            lambda: build(location.container, config=config, client_options=client, retry_config=retry, **more),
        )

    def _client_options(self, given: dict[str, str]) -> dict[str, Any]:
        """Return the timeouts: ``request_timeout`` limits the time without data, not the length of a response."""
        seconds = self._settings.request_timeout
        return {
            "read_timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, seconds)),
            "timeout": timedelta(seconds=seconds * _WHOLE_REQUEST_FACTOR),
            **given,
        }

    def _retry(self, given: dict[str, str]) -> RetryConfig:
        """Return the retry settings: back off with jitter, and give up after about twice the time of one attempt.

        Each wait is random, from the first one up to ``base`` times the last one. With a base of two, five retries gave
        up on a throttled request after 0.7 s; with four, they last 4 s on average. ``Retry-After`` is not read.
        """
        total = timedelta(seconds=max(2 * self._settings.request_timeout, 10.0))
        retries = self._settings.retries
        if given.get("max_retries", "").isdigit():
            retries = int(given["max_retries"])
        return {
            "max_retries": retries,
            "retry_timeout": total,
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": _MAX_BACKOFF, "base": 4},
        }

    async def get(self, key: str, options: GetOptions) -> bytes:
        """Read an object or a range of it."""
        bounds = options.get("range")
        if isinstance(bounds, tuple) and "if_match" not in options:
            # Crosses the Python/Rust boundary once instead of twice, which halves the cost of a small read.
            return (await obstore.get_range_async(self._store, key, start=bounds[0], end=bounds[1])).to_bytes()
        result = await obstore.get_async(self._store, key, options=options)
        return (await result.bytes_async()).to_bytes()

    async def chunks(self, key: str, options: GetOptions, chunk_size: int) -> BytesStream:
        """Start reading an object in chunks."""
        return (await obstore.get_async(self._store, key, options=options)).stream(chunk_size)

    async def head(self, key: str) -> ObjectMeta:
        """Return an object's metadata."""
        return await obstore.head_async(self._store, key)

    async def put(self, key: str, data: bytes, mode: PutMode) -> None:
        """Write an object in one request."""
        await obstore.put_async(self._store, key, data, mode=mode, use_multipart=False)

    async def delete(self, key: str) -> None:
        """Delete an object."""
        await obstore.delete_async(self._store, key)

    def pages(self, prefix: str, offset: str | None, size: int) -> ListStream[Sequence[ObjectMeta]]:
        """Start a recursive listing below a folder."""
        return obstore.list(self._store, prefix or None, offset=offset, chunk_size=size)

    async def level(self, prefix: str) -> ListResult[Sequence[ObjectMeta]]:
        """List the objects and sub-folders directly in a folder."""
        return await obstore.list_with_delimiter_async(self._store, prefix or None)

    def upload(self, key: str, part_size: int, concurrency: int) -> AsyncWritableFile:
        """Start a multipart upload. Nothing is visible until it is closed."""
        return obstore.open_writer_async(self._store, key, buffer_size=part_size, max_concurrency=concurrency)


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

    def walk(self, hides: Hides, *, below: str = "", deep: bool = True) -> ObjectWalk:
        walk = ObjectWalk()
        return walk.over(self._everything_below(below, hides) if deep else self._level(below, hides, walk))

    def _level(self, folder: str, hides: Hides, walk: ObjectWalk) -> Iterator[ObjectInfo]:
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
