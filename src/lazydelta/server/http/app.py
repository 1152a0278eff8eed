"""The HTTP application: which paths there are, and the guard that every request passes first.

The guard refuses requests before anything reads their body:

- Without tokens the server is for this machine only, and a web page elsewhere must not reach it. So the ``Host`` must
  be a name of the loopback (a page whose DNS name was rebound sends its own), and a request that a page of another
  origin caused is refused. With tokens, a page that has no token gets nothing.
- There are no cookies and no CORS headers. A token is a header that only the page itself can send.
"""

from __future__ import annotations

import functools
import gzip
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lazydelta.errors import LazyDeltaError, OptionError, UnauthenticatedError
from lazydelta.server.http.kusto import Kusto
from lazydelta.server.http.page import PageApi
from lazydelta.server.http.queries import Call, Queries
from lazydelta.server.http.replies import JSON, BadRequestError, Endpoint, Head, error_body, json_reply, status_of
from lazydelta.server.tables import ANYONE, Identity
from lazydelta.server.tokens import GuessLimit, TokenFile

__all__ = ["HttpApp", "HttpOptions"]

_log = logging.getLogger(__name__)

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
_MOST_HEADERS = 100
_LONGEST_PATH = 8192
_BEARER = "bearer "
_OPEN = frozenset({"/healthz", "/readyz", "/v1/rest/auth/metadata"})
"""Paths that tell nothing about tables. Probes and clients that look for a way to log in ask for them first."""

_ASSETS = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "editor.js": ("editor.js", "text/javascript; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


@dataclass(frozen=True)
class HttpOptions:
    """``hosts`` are the names by which clients may call the server; None is any, for a server with tokens."""

    hosts: frozenset[str] | None = _LOOPBACK
    most_body: int = 2 << 20
    most_tables: int = 1000


class HttpApp:
    """The ASGI application."""

    def __init__(self, queries: Queries, tokens: TokenFile | None, options: HttpOptions | None = None) -> None:
        self.queries = queries
        self._tokens = tokens
        self._limit = GuessLimit()
        self._options = options or HttpOptions()
        self.is_ending = False
        kusto = Kusto(queries, has_tokens=tokens is not None, most_tables=self._options.most_tables)
        page = PageApi(queries, has_tokens=tokens is not None, most_tables=self._options.most_tables)
        routes: list[BaseRoute] = [
            *(self._kusto(path, handler, kusto, "POST") for path, handler in _kusto_paths(kusto)),
            self._kusto("/v1/rest/auth/metadata", kusto.metadata, kusto, "GET"),
            *(self._plain(path, handler, method) for path, handler, method in page.paths()),
            self._plain("/healthz", self._healthy, "GET"),
            self._plain("/readyz", self._ready, "GET"),
            self._plain("/metrics", self._metrics, "GET"),
            *(self._plain(f"/{name}", functools.partial(_asset, name), "GET") for name in _ASSETS),
        ]
        self._app: ASGIApp = Starlette(routes=routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on."""
        if scope["type"] != "http":
            return
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]

        async def safe_send(message: Any) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                extra = [(key.encode(), value.encode()) for key, value in _SAFE.items() if key.encode() not in given]
                message = {**message, "headers": [*message["headers"], *extra]}
                self.queries.metrics.request(_kind(scope["path"]), str(message["status"]))
            await send(message)

        try:
            self._check(scope, headers)
            scope["lazydelta.identity"] = self._identity(scope, headers)
        except LazyDeltaError as error:
            if isinstance(error, UnauthenticatedError):
                self.queries.log.write("http", client="unknown", peer=_address(scope), how=type(error).__name__)
            head, body = self._refused(None, error)
            raw = [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]
            raw += [(key.encode(), value.encode()) for key, value in head.headers.items()]
            raw.append((b"connection", b"close"))
            await safe_send({"type": "http.response.start", "status": head.status, "headers": raw})
            await safe_send({"type": "http.response.body", "body": body})
            return
        await self._app(scope, receive, safe_send)

    # --- the guard

    def _check(self, scope: Scope, headers: list[tuple[str, str]]) -> None:
        names = [name for name, _ in headers]
        if len(headers) > _MOST_HEADERS or len(scope.get("raw_path", b"")) + len(scope["query_string"]) > _LONGEST_PATH:
            raise BadRequestError(431, "The request has too many headers, or too long a path")
        if names.count("host") != 1 or names.count("content-length") > 1 or names.count("authorization") > 1:
            raise BadRequestError(400, "A header that may be there once is missing, or there twice")
        found = dict(headers)
        if "transfer-encoding" in found and "content-length" in found:
            raise BadRequestError(400, "The request has two lengths")
        hosts = self._options.hosts
        if hosts is not None and _name(found["host"]) not in hosts:
            message = "The request names a different host"
            raise BadRequestError(421, message, "call it by the address that it printed")
        self._check_origin(scope, found)
        if scope["method"] == "POST" and not found.get("content-type", "").lower().startswith("application/json"):
            raise BadRequestError(415, "A request has JSON in it", "send the header content-type: application/json")

    @staticmethod
    def _check_origin(scope: Scope, found: Mapping[str, str]) -> None:
        """Refuse what a page of another origin sends. To follow a link to the page itself is allowed."""
        origin = found.get("origin")
        if origin is not None and origin.partition("://")[2] != found["host"]:
            raise BadRequestError(403, "A page of another origin may not use this server")
        site, path = found.get("sec-fetch-site", "none"), scope["path"]
        is_link = scope["method"] == "GET" and path == "/" and found.get("sec-fetch-mode") == "navigate"
        if site not in {"none", "same-origin"} and not is_link:
            raise BadRequestError(403, "A page of another origin may not use this server")

    def _identity(self, scope: Scope, headers: list[tuple[str, str]]) -> Identity:
        path: str = scope["path"]
        if self._tokens is None or path in _OPEN or path.removeprefix("/") in _ASSETS:
            return ANYONE
        given = dict(headers).get("authorization", "")
        if not given.lower().startswith(_BEARER):
            message = "This server requires a token"
            raise UnauthenticatedError(message, hint="send the header authorization: Bearer NAME.SECRET")
        found: Identity | UnauthenticatedError
        try:
            found = self._tokens.identity(given[len(_BEARER) :].strip())
        except UnauthenticatedError as error:
            found = error
        except OptionError as error:
            # If the file cannot be used, every client is refused without the reason.
            _log.error("tokens cannot be checked", exc_info=error)
            raise UnauthenticatedError("The server cannot check tokens", hint="ask the server's operator") from None
        return self._limit.settle(_address(scope), found)

    # --- handlers

    def _healthy(self, _: Call) -> Iterator[Head | bytes]:
        return json_reply({"status": "ok"})

    def _ready(self, _: Call) -> Iterator[Head | bytes]:
        if self.is_ending:
            return json_reply({"status": "ending"}, 503)
        return json_reply({"status": "ready", "streams": self.queries.budgets.streams})

    def _metrics(self, call: Call) -> Iterator[Head | bytes]:
        yield Head(200, "text/plain; version=0.0.4; charset=utf-8")
        yield self.queries.metrics.text(call.identity.may_read)

    # --- routes

    def _kusto(self, path: str, handler: Any, kusto: Kusto, method: str) -> Route:
        endpoint = Endpoint(handler, kusto.refused, self._options.most_body, kusto.common)
        return Route(path, endpoint, methods=[method])

    def _plain(self, path: str, handler: Any, method: str) -> Route:
        return Route(path, Endpoint(handler, self._refused, self._options.most_body), methods=[method])

    def _refused(self, _: Call | None, error: BaseException) -> tuple[Head, bytes]:
        status = status_of(error)
        headers = {"www-authenticate": "Bearer"} if status == 401 else {}  # noqa: PLR2004
        told = error_body(error, self.queries.tables.without_places)
        return Head(status, JSON, headers), msgspec.json.encode(told)


def _kusto_paths(kusto: Kusto) -> list[tuple[str, Any]]:
    return [
        ("/v1/rest/query", kusto.query_v1),
        ("/v2/rest/query", kusto.query_v2),
        ("/v1/rest/mgmt", kusto.command),
    ]


def _kind(path: str) -> str:
    """Return the kind of a request for metrics. What is not known is one kind, because paths can be anything."""
    first = path.split("/")[1] if path.startswith("/") else ""
    return f"http {path}" if first in {"v1", "v2"} and path.count("/") <= 3 and len(path) < 30 else _page_kind(first)  # noqa: PLR2004


def _page_kind(first: str) -> str:
    if first == "api" or first in _ASSETS:
        return "http page"
    return f"http /{first}" if first in {"healthz", "readyz", "metrics"} else "http other"


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return "unknown" if client is None else str(client[0])


def _name(host: str) -> str:
    """Return the host without its port, in lower case."""
    text = host.lower()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0]


@functools.cache
def _read(file: str, *, is_packed: bool) -> bytes:
    data = resources.files("lazydelta.server.http").joinpath("static", file).read_bytes()
    return gzip.compress(data, mtime=0) if is_packed else data


def _asset(name: str, call: Call) -> Iterator[Head | bytes]:
    """Answer a file of the page. No secret is in it, so that compression tells nothing."""
    file, media = _ASSETS[name]
    is_packed = "gzip" in call.headers.get("accept-encoding", "")
    headers = {"cache-control": "no-cache", "vary": "accept-encoding"}
    yield Head(200, media, headers | ({"content-encoding": "gzip"} if is_packed else {}))
    yield _read(file, is_packed=is_packed)
