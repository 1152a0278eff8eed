"""Object-store client: built from a location and options, with the few calls that lazydelta needs."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from lazydelta.errors import AccessDeniedError, OptionError
from lazydelta.storage.address import LOOPBACK, address_of, client_config, fence, from_environment, is_true
from lazydelta.storage.credentials import isolate, lasting_credentials, named_credential, token_provider
from lazydelta.storage.faults import option_fault
from lazydelta.storage.options import CREDENTIAL, is_secret, sort_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from obstore import AsyncWritableFile, BytesStream, GetOptions, ListResult, ListStream, ObjectMeta, PutMode
    from obstore.store import ObjectStore, RetryConfig

    from lazydelta.storage.location import Location, Settings

__all__ = ["Client"]

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
_stores: OrderedDict[str, tuple[Any, ObjectStore]] = OrderedDict()
_stores_lock = threading.Lock()


def _shared_store(key: str, provider: Any, build: Callable[[], ObjectStore]) -> ObjectStore:
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
    def _store(self) -> ObjectStore:
        if self._built is None:
            uri = self._location.uri
            message = f"the credentials for {uri} stayed behind when it was sent to this process"
            hint = "open it here with its storage_options, or send a store that carries them: carrying_credentials()"
            raise AccessDeniedError(message, path=uri, hint=hint)
        return self._built

    def _build(self) -> ObjectStore:
        location, settings = self._location, self._settings
        if location.kind == "memory":
            return _memory_store(location.container)
        try:
            return self._build_remote()
        except BaseException as error:  # noqa: BLE001 - translated, or raised again unchanged
            failure = option_fault(error, uri=location.uri, secrets=settings.secrets)
        raise failure

    def _build_remote(self) -> ObjectStore:
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
        build: Callable[..., ObjectStore] = {"azure": AzureStore, "s3": S3Store, "gcs": GCSStore}[kind]
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
        """Return the retry settings: back off with jitter, and give up after about twice the time of one attempt."""
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
