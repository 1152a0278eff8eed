"""The object-store client: how it is built from a location and options, and the few calls we need of it."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from lazydelta.errors import AccessDeniedError, OptionError
from lazydelta.storage.address import LOOPBACK, address_of, client_config, from_environment, is_true
from lazydelta.storage.credentials import isolate, lasting_credentials
from lazydelta.storage.faults import option_fault
from lazydelta.storage.redirects import fence
from lazydelta.storage.storage_options import is_secret, sort_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from obstore import AsyncWritableFile, BytesStream, GetOptions, ListResult, ListStream, ObjectMeta, PutMode
    from obstore.store import ObjectStore, RetryConfig

    from lazydelta.storage.location import Location
    from lazydelta.storage.settings import Settings

__all__ = ["Client"]

_CONNECT_SECONDS = 5.0
_WHOLE_REQUEST_FACTOR = 20
_MAX_BACKOFF = timedelta(seconds=5)

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
        except BaseException as error:  # noqa: BLE001 - translated, or raised again as it was
            failure = option_fault(error, uri=location.uri, secrets=settings.secrets)
        raise failure

    def _build_remote(self) -> ObjectStore:
        location, settings = self._location, self._settings
        kind = location.kind
        options = sort_options(kind, settings.options)
        config = client_config(location, settings.options, settings.environment)
        address = address_of(location, settings.options, settings.environment)
        client = self._client_options(options.client)
        if address is None:  # no kind without an address comes here
            message = f"{location.uri} is not in an object store"
            raise OptionError(message, path=location.uri)
        # The emulator's address is nobody's but the user's, and the client knows that it is not encrypted.
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
            # The client would let a token of the environment win over a key that the table was given.
            mixed = any(is_secret(name, value) and name not in config for name, (_, value) in around.items())
            provider = lasting_credentials(kind, config) if mixed else None
        if "proxy_url" not in client:
            client |= fence(kind, address, config, {name: value for name, (_, value) in around.items()})
        build: Callable[..., ObjectStore] = {"azure": AzureStore, "s3": S3Store, "gcs": GCSStore}[kind]
        more = {} if provider is None else {"credential_provider": provider}
        retry = self._retry(options.retry)
        return build(location.container, config=config, client_options=client, retry_config=retry, **more)

    def _client_options(self, given: dict[str, str]) -> dict[str, Any]:
        """Time-outs: silence for ``request_timeout`` ends an attempt; a long answer that keeps coming does not."""
        seconds = self._settings.request_timeout
        return {
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
        bounds = options.get("range")
        if isinstance(bounds, tuple) and "if_match" not in options:
            # One crossing between the languages instead of two: half the cost of a small read.
            return (await obstore.get_range_async(self._store, key, start=bounds[0], end=bounds[1])).to_bytes()
        result = await obstore.get_async(self._store, key, options=options)
        return (await result.bytes_async()).to_bytes()

    async def chunks(self, key: str, options: GetOptions, chunk_size: int) -> BytesStream:
        """Begin to read an object in chunks."""
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
        """Begin a recursive listing below a folder."""
        return obstore.list(self._store, prefix or None, offset=offset, chunk_size=size)

    async def level(self, prefix: str) -> ListResult[Sequence[ObjectMeta]]:
        """List what is directly in a folder, sub-folders included."""
        return await obstore.list_with_delimiter_async(self._store, prefix or None)

    def upload(self, key: str, part_size: int, concurrency: int) -> AsyncWritableFile:
        """Begin a multipart upload: nothing is visible before it is closed."""
        return obstore.open_writer_async(self._store, key, buffer_size=part_size, max_concurrency=concurrency)
