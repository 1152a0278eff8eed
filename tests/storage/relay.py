"""A relay between a client and a service that sees what really goes over the wire: requests, and bytes back."""

from __future__ import annotations

import re
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_REQUEST_LINE = re.compile(rb"(?:^|\r\n)(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP/1\.1\r\n")
_LISTS_OF_AZURE = re.compile(rb"(GET \S*comp=list\S*)(?= HTTP/1\.1\r\n)")
_BLOCK = 1 << 16
_PATIENCE = 120


class Relay:
    """Relays TCP connections to ``port`` of this machine.

    When so many bytes came back over a connection, it ``holds`` further ones until it is told to release them. With
    ``page`` it asks Azure for so many names at a time, which takes a client whose requests are not signed one by one.
    """

    def __init__(self, port: int, *, holds: int | None = None, page: int | None = None) -> None:
        self.requests: list[tuple[str, str]] = []
        self.bytes_back = 0
        self._upstream = port
        self._holds = holds
        self._page = page
        self._held, self._released = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._asking: list[threading.Thread] = []
        self._answering: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # All threads end before the sockets are closed: none is left open, and no number of one is used by another.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(_PATIENCE)
        self._listener.close()
        self._released.set()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in (*self._asking, *self._answering):
            thread.join(_PATIENCE)
        for connection in self._open:
            connection.close()

    def lists(self) -> int:
        """Count the LIST requests of S3 and Azure."""
        return sum("list-type=2" in target or "comp=list" in target for _, target in self.requests)

    def wait_until_held(self) -> None:
        """Wait until as many bytes came back as may, and more are there."""
        assert self._held.wait(_PATIENCE)

    def wait_for_request(self, text: str) -> None:
        """Wait until a request whose target holds a text is on its way."""
        deadline = time.monotonic() + _PATIENCE
        while not any(text in target for _, target in list(self.requests)):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def release(self) -> int:
        """Let everything through to clients that still receive, and return the final number of bytes."""
        self._released.set()
        for thread in self._answering:
            thread.join(_PATIENCE)
            assert not thread.is_alive(), "the connection was not closed"
        return self.bytes_back

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                server = socket.create_connection(("127.0.0.1", self._upstream))
                self._open.append(server)
                self._asking.append(threading.Thread(target=self._forth, args=(client, server), daemon=True))
                self._asking[-1].start()
                self._answering.append(threading.Thread(target=self._back, args=(server, client), daemon=True))
                self._answering[-1].start()

    def _forth(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(_BLOCK):
                with self._lock:
                    self.requests += [(verb.decode(), target.decode()) for verb, target in _REQUEST_LINE.findall(data)]
                if self._page is not None:
                    data = _LISTS_OF_AZURE.sub(rb"\1&maxresults=%d" % self._page, data)
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        mine = 0
        with suppress(OSError):
            while data := server.recv(_BLOCK):
                if self._holds is not None and mine >= self._holds:
                    self._held.set()
                    self._released.wait(_PATIENCE)
                client.sendall(data)
                mine += len(data)
                with self._lock:
                    self.bytes_back += len(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
