"""The object-store client, as few calls as we need of it.

Each call is asynchronous. In a forked child the client's asynchronous worker threads do not exist and its pooled
connections belong to the parent: there the client is built anew and its synchronous calls run on threads of ours.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from lazydelta.storage import bridge
from lazydelta.storage.faults import option_fault
from lazydelta.storage.options import EMULATOR_ACCOUNT, EMULATOR_KEY, sort_options

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

    from lazydelta.storage.location import Location
    from lazydelta.storage.store import Settings

__all__ = ["Client", "Upload", "client_for"]

T = TypeVar("T")

_CONNECT_SECONDS = 5.0
_WHOLE_REQUEST_FACTOR = 20
_MAX_BACKOFF = timedelta(seconds=5)
_LOOPBACK_URLS = ("http://127.0.0.1", "http://localhost", "http://[::1]")

_memory: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def _memory_store(name: str) -> MemoryStore:
    """Return the process's one in-memory store of this name, so that what one part writes another can open."""
    with _memory_lock:
        return _memory.setdefault(name, MemoryStore())


class Client:
    """One container of one store."""

    def __init__(self, location: Location, settings: Settings) -> None:
        self._location = location
        self._settings = settings
        self._generation = bridge.generation()
        self._lock = threading.Lock()
        self._left_behind: list[ObjectStore] = []
        self._store = self._build()

    @property
    def store(self) -> ObjectStore:
        """The client of this process; a forked child gets one with connections of its own."""
        if self._generation != bridge.generation():
            with self._lock:
                if self._generation != bridge.generation():
                    # Kept, not dropped: closing it would talk over the parent's connections.
                    self._left_behind.append(self._store)
                    self._store = self._build()
                    self._generation = bridge.generation()
        return self._store

    def _build(self) -> ObjectStore:
        location, settings = self._location, self._settings
        if location.kind == "memory":
            return _memory_store(location.container)
        try:
            return self._build_remote()
        except BaseException as error:  # noqa: BLE001 - translated, or raised again as it was
            failure = option_fault(error, uri=location.uri, secrets=settings.secrets)
        raise failure

    def _build_remote(self) -> ObjectStore:
        location, settings = self._location, self._settings
        options = sort_options(location.kind, settings.options)
        config: dict[str, Any] = {**options.config, **dict(location.implied)}
        client: dict[str, Any] = self._client_options(options.client)
        retry = self._retry(options.retry)
        for name in ("bucket", "container_name", "connection_string"):
            config.pop(name, None)
        if location.kind == "azure":
            _settle_emulator(config)
        endpoint = str(config.get("endpoint", ""))
        if endpoint.startswith(_LOOPBACK_URLS):
            client.setdefault("allow_http", "true")
        build: Callable[..., ObjectStore] = {"azure": AzureStore, "s3": S3Store, "gcs": GCSStore}[location.kind]
        return build(location.container, config=config, client_options=client, retry_config=retry)

    def _client_options(self, given: dict[str, str]) -> ClientConfig:
        """Time-outs: silence for ``request_timeout`` ends an attempt; a long answer that keeps coming does not."""
        seconds = self._settings.request_timeout
        return {  # type: ignore[return-value]
            "read_timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=min(_CONNECT_SECONDS, seconds)),
            "timeout": timedelta(seconds=seconds * _WHOLE_REQUEST_FACTOR),
            **given,
        }

    def _retry(self, given: dict[str, str]) -> RetryConfig:
        """Retry with jittered back-off, and give up in about twice the time one attempt may take."""
        total = timedelta(seconds=max(2 * self._settings.request_timeout, 10.0))
        retries = self._settings.retries
        if given.get("max_retries", "").isdigit():
            retries = int(given["max_retries"])
        return {
            "max_retries": retries,
            "retry_timeout": total,
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": _MAX_BACKOFF, "base": 2},
        }

    async def get(self, key: str, options: GetOptions) -> bytes:
        """Read an object or a range of it."""
        store = self.store
        if bridge.client_runtime_lost():
            return await asyncio.to_thread(lambda: obstore.get(store, key, options=options).bytes().to_bytes())
        result = await obstore.get_async(store, key, options=options)
        return (await result.bytes_async()).to_bytes()

    async def chunks(self, key: str, options: GetOptions, chunk_size: int) -> Chunks:
        """Begin to read an object in chunks."""
        store = self.store
        if bridge.client_runtime_lost():
            return Chunks(await asyncio.to_thread(lambda: obstore.get(store, key, options=options).stream(chunk_size)))
        return Chunks((await obstore.get_async(store, key, options=options)).stream(chunk_size))

    async def head(self, key: str) -> ObjectMeta:
        """Return an object's metadata."""
        store = self.store
        if bridge.client_runtime_lost():
            return await asyncio.to_thread(obstore.head, store, key)
        return await obstore.head_async(store, key)

    async def put(self, key: str, data: bytes, mode: PutMode) -> None:
        """Write an object in one request."""
        store = self.store
        if bridge.client_runtime_lost():
            await asyncio.to_thread(lambda: obstore.put(store, key, data, mode=mode, use_multipart=False))
        else:
            await obstore.put_async(store, key, data, mode=mode, use_multipart=False)

    async def delete(self, key: str) -> None:
        """Delete an object."""
        store = self.store
        if bridge.client_runtime_lost():
            await asyncio.to_thread(obstore.delete, store, key)
        else:
            await obstore.delete_async(store, key)

    def pages(self, prefix: str, offset: str | None, size: int) -> Chunks:
        """Begin a recursive listing below a folder."""
        return Chunks(obstore.list(self.store, prefix or None, offset=offset, chunk_size=size))

    def upload(self, key: str, part_size: int, concurrency: int) -> Upload:
        """Begin a multipart upload."""
        if bridge.client_runtime_lost():
            opened: Any = obstore.open_writer(self.store, key, buffer_size=part_size, max_concurrency=concurrency)
        else:
            opened = obstore.open_writer_async(self.store, key, buffer_size=part_size, max_concurrency=concurrency)
        return Upload(opened)


def _settle_emulator(config: dict[str, Any]) -> None:
    """Make the emulator switch and an endpoint work together: the client alone ignores the endpoint then."""
    if str(config.get("use_emulator", "")).lower() not in ("true", "1") or "endpoint" not in config:
        return
    del config["use_emulator"]
    account = config.setdefault("account_name", EMULATOR_ACCOUNT)
    endpoint = str(config["endpoint"]).rstrip("/")
    if not endpoint.endswith(f"/{account}"):
        endpoint = f"{endpoint}/{account}"
    config["endpoint"] = endpoint
    if account == EMULATOR_ACCOUNT and not {"account_key", "sas_key", "token", "skip_signature"} & config.keys():
        config["account_key"] = EMULATOR_KEY


class Chunks:
    """What the client gives bit by bit: pages of a listing, or chunks of an object."""

    def __init__(self, source: Any) -> None:
        self._source = source

    async def next(self) -> Any | None:
        """Return the next bit, or None at the end."""
        source = self._source
        if bridge.client_runtime_lost():
            return await asyncio.to_thread(next, iter(source), None)
        try:
            return await anext(source)
        except StopAsyncIteration:
            return None


class Upload:
    """A multipart upload: nothing is visible before ``close``."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    async def write(self, data: bytes) -> None:
        """Add bytes; waits while too many parts are in flight."""
        if bridge.client_runtime_lost():
            await asyncio.to_thread(self._writer.write, data)
        else:
            await self._writer.write(data)

    async def close(self) -> None:
        """Complete the object."""
        if bridge.client_runtime_lost():
            await asyncio.to_thread(self._writer.close)
        else:
            await self._writer.close()


_clients: dict[tuple[object, ...], Client] = {}
_clients_lock = threading.Lock()


def client_for(location: Location, settings: Settings) -> Client:
    """Return a client for the location's container."""
    return Client(location, settings)
