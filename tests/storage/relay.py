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
_BLOCK = 1 << 16


class Relay:
    """Relays TCP connections to ``port`` of this machine; ``delay`` holds back each block of an answer."""

    def __init__(self, port: int, *, delay: float = 0.0) -> None:
        self.requests: list[tuple[str, str]] = []
        self.bytes_back = 0
        self._upstream = port
        self._delay = delay
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def lists(self) -> int:
        """Count the LIST requests of S3 and Azure."""
        return sum("list-type=2" in target or "comp=list" in target for _, target in self.requests)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream))
                self._open += [client, server]
                threading.Thread(target=self._forth, args=(client, server), daemon=True).start()
                threading.Thread(target=self._back, args=(server, client), daemon=True).start()

    def _forth(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(_BLOCK):
                with self._lock:
                    self.requests += [(verb.decode(), target.decode()) for verb, target in _REQUEST_LINE.findall(data)]
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(_BLOCK):
                if self._delay:
                    time.sleep(self._delay)
                client.sendall(data)
                with self._lock:
                    self.bytes_back += len(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
