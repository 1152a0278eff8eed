"""A listening server that remembers who called it and with what, for tests of who must not."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

if TYPE_CHECKING:
    import socket
    from types import TracebackType


@dataclass(frozen=True)
class Call:
    """A request as it arrived."""

    verb: str
    target: str
    headers: dict[str, str] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.verb} {self.target} {self.headers}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Keep quiet."""

    def _answer(self) -> None:
        listener = self.server.listener
        listener.calls.append(Call(self.command, self.path, dict(self.headers)))
        if listener.redirect is not None:
            status, to = listener.redirect
            self._send(status, b"", {"Location": f"{to}{self.path}"})
            return
        data = listener.objects.get(unquote(self.path.partition("?")[0]))
        if data is None:
            self._send(404, b"", {})
            return
        status, more = 200, {"Last-Modified": formatdate(0, usegmt=True), "ETag": '"1"'}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is not None:
            size, first = len(data), int(asked[1])
            data = data[first : int(asked[2]) + 1]
            status, more["Content-Range"] = 206, f"bytes {first}-{first + len(data) - 1}/{size}"
        self._send(status, data, more)

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - the base class's names


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: Listener) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.listener = listener

    def get_request(self) -> tuple[socket.socket, Any]:
        accepted = super().get_request()
        self.listener.connections += 1  # counted also where nothing that we understand follows, as with TLS
        return accepted


class Listener:
    """A server of a few objects, or of redirects only, that keeps what it was asked."""

    def __init__(self, objects: dict[str, bytes] | None = None, redirect: tuple[int, str] | None = None) -> None:
        self.objects = objects or {}
        self.redirect = redirect
        self.connections = 0
        self.calls: list[Call] = []
        self._server = _Server(self)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        """Return the server's URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def heard(self) -> str:
        """Return all that was said to the server, to be searched for secrets."""
        return "\n".join(map(str, self.calls))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
