"""A service between a writer and Azurite that loses one request, or its answer, as networks do."""

from __future__ import annotations

import http.client
import http.server
import threading
from typing import Any, Literal, Self

__all__ = ["Loss", "LossyService"]

Loss = Literal["request lost", "answer lost", "no answer", "busy"]
"""The connection ends before or after the service did its work; it did it and nothing comes back; it has no time."""


class LossyService:
    """Hands requests on to a port of this machine, except for the n-th from now."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._lock = threading.Lock()
        self._left: int | None = None
        self._loss: Loss = "request lost"
        self._over = threading.Event()
        self.lost: str | None = None
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def lose(self, number: int, loss: Loss) -> None:
        """Lose the request that comes after so many others."""
        with self._lock:
            self._left, self._loss, self.lost = number, loss, None

    def fate(self, request: str) -> Loss | None:
        """Return what becomes of a request; None if nothing happens to it."""
        with self._lock:
            if self._left is None:
                return None
            self._left -= 1
            if self._left >= 0:
                return None
            self._left, self.lost = None, request
            return self._loss

    def hang(self) -> None:
        """Wait until the test is over."""
        self._over.wait(60)

    def ask(
        self, verb: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Let the real service answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=30)
        try:
            connection.request(verb, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


def _handler(service: LossyService) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def _relay(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fate = service.fate(f"{self.command} {self.path}")
            if fate == "request lost":
                self.close_connection = True
                return
            if fate == "busy":
                status, headers, content = 503, list[tuple[str, str]](), b""
            else:
                status, headers, content = service.ask(self.command, self.path, dict(self.headers), body)
            if fate == "no answer":
                service.hang()
            if fate in {"answer lost", "no answer"}:
                self.close_connection = True
                return
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in {"connection", "keep-alive", "transfer-encoding", "content-length"}:
                    self.send_header(name, value)
            length = {name.lower(): value for name, value in headers}.get("content-length")
            # The answer to HEAD tells the length of what it does not bring.
            self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _relay  # noqa: N815 - the names that the base class calls

    return Handler
