"""Replies of the HTTP server: a handler runs in a thread and yields a head, then pieces of the body.

The event loop only moves bytes. It notices when a client disconnects and tells the handler, which then stops its
requests to the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import anyio
import anyio.to_thread
import msgspec
from starlette.types import Receive, Scope, Send

from lazydelta.errors import (
    AccessDeniedError,
    DeadlineError,
    KqlError,
    LazyDeltaError,
    MemoryLimitError,
    OptionError,
    PredicateError,
    QueryError,
    ServeError,
    ServerBusyError,
    StreamClosedError,
    TableNotFoundError,
    UnauthenticatedError,
    VersionNotFoundError,
)
from lazydelta.server.http.queries import Call
from lazydelta.server.tables import Identity

__all__ = ["JSON", "BadRequestError", "Endpoint", "Handler", "Head", "Refused", "error_body", "json_reply", "status_of"]

_log = logging.getLogger(__name__)

JSON = "application/json; charset=utf-8"
_STATUS: tuple[tuple[type[LazyDeltaError], int], ...] = (
    (UnauthenticatedError, 401),
    (AccessDeniedError, 502),
    (TableNotFoundError, 404),
    (VersionNotFoundError, 404),
    (ServerBusyError, 429),
    (DeadlineError, 504),
    (StreamClosedError, 409),
    (MemoryLimitError, 413),
    (PredicateError, 400),
    (OptionError, 400),
)
_LONGEST = 2000
_BODY_SECONDS = 30.0


class Head(NamedTuple):
    """The status of a reply, its media type and further headers."""

    status: int = 200
    media: str = JSON
    headers: Mapping[str, str] = {}


class BadRequestError(ServeError):
    """A request that HTTP refuses before any handler; ``status`` says how."""

    def __init__(self, status: int, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


Handler: TypeAlias = "Callable[[Call], Iterator[Head | bytes]]"
Refused: TypeAlias = "Callable[[Call | None, BaseException], tuple[Head, bytes]]"
"""Converts an exception into a reply."""


def status_of(error: BaseException) -> int:
    """Return the status for an error."""
    if isinstance(error, BadRequestError):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def error_body(error: BaseException, cleaned: Callable[[str], str]) -> dict[str, Any]:
    """Return an error for clients. An unexpected one has no details, which go to the server's log."""
    if not isinstance(error, LazyDeltaError):
        _log.error("an internal error while serving", exc_info=error)
        error = ServeError("The server failed for a reason of its own", hint="see the server's log")
    told: dict[str, Any] = {"error": type(error).__name__, "message": cleaned(str(error.args[0]))[:_LONGEST]}
    if error.hint:
        told["hint"] = cleaned(error.hint)[:_LONGEST]
    if isinstance(error, KqlError | QueryError) and error.line is not None:
        told |= {"line": error.line, "column": error.column}
    return told


def json_reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Iterator[Head | bytes]:
    """Yield a reply with one JSON document."""
    yield Head(status, JSON, headers or {})
    yield msgspec.json.encode(value, enc_hook=str)


@dataclass(frozen=True)
class Endpoint:
    """An ASGI application around a handler. The guard before it has checked the request and its client."""

    handler: Handler
    refused: Refused
    most_body: int = 1 << 20
    common: Callable[[Call], Mapping[str, str]] = field(default=lambda _: {})
    """Headers of every reply, errors included."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        call = _call_of(scope)
        try:
            call.body = await _body(receive, self.most_body, call.headers)
        except BaseException as error:
            if not isinstance(error, LazyDeltaError):
                raise
            await _send_whole(send, *self.refused(call, error), self.common(call))
            return
        async with anyio.create_task_group() as group:
            group.start_soon(_watch, receive, call.left)
            try:
                await self._stream(call, send)
            finally:
                call.left.set()
                group.cancel_scope.cancel()

    async def _stream(self, call: Call, send: Send) -> None:
        pieces: Any = None
        has_begun = False
        try:
            pieces = await anyio.to_thread.run_sync(self.handler, call)
            while True:
                piece = await anyio.to_thread.run_sync(next, pieces, None)
                if piece is None:
                    break
                if isinstance(piece, Head):
                    # The head waits for the first piece, so that an error on the way to it has a status of its own.
                    first = await anyio.to_thread.run_sync(next, pieces, None)
                    await _send_head(send, piece, self.common(call))
                    has_begun = True
                    piece = first if isinstance(first, bytes) else b""
                if piece:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except BaseException as error:
            # A table that is not there is an OSError too.
            if isinstance(error, asyncio.CancelledError | OSError) and not isinstance(error, LazyDeltaError):
                raise
            if has_begun:
                # The client sees a body that breaks off; handlers that can say why have done so.
                error_body(error, str)
                raise
            await _send_whole(send, *self.refused(call, error), self.common(call))
        finally:
            with anyio.CancelScope(shield=True):
                call.left.set()
                await anyio.to_thread.run_sync(_closed, pieces)


def _closed(pieces: Any) -> None:
    if pieces is not None:
        with contextlib.suppress(LazyDeltaError):
            pieces.close()


async def _watch(receive: Receive, left: threading.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    left.set()


def _call_of(scope: Scope) -> Call:
    from starlette.requests import Request  # noqa: PLC0415 - only its parsing

    request = Request(scope)
    peer = "unknown" if request.client is None else request.client.host
    identity: Identity = scope["lazydelta.identity"]
    headers = {name.lower(): value for name, value in request.headers.items()}
    return Call(identity, peer, scope["path"], headers, dict(request.query_params) | scope.get("path_params", {}))


async def _body(receive: Receive, most: int, headers: Mapping[str, str]) -> bytes:
    told = headers.get("content-length", "0")
    if told.isdigit() and int(told) > most:
        raise _too_long(most)
    parts, size = [], 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise BadRequestError(400, "The request ended too early")
                size += len(message.get("body", b""))
                if size > most:
                    raise _too_long(most)
                parts.append(message.get("body", b""))
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise BadRequestError(408, f"The request was not sent within {_BODY_SECONDS:g} s") from None


def _too_long(most: int) -> BadRequestError:
    return BadRequestError(413, f"The request is longer than {most} bytes", "send a shorter query")


async def _send_head(send: Send, head: Head, common: Mapping[str, str]) -> None:
    headers = {"content-type": head.media, **common, **head.headers}
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": head.status, "headers": raw})


async def _send_whole(send: Send, head: Head, body: bytes, common: Mapping[str, str]) -> None:
    length = {"content-length": str(len(body))}
    await _send_head(send, Head(head.status, head.media, {**head.headers, **length}), common)
    await send({"type": "http.response.body", "body": body, "more_body": False})
