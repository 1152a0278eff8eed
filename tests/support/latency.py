"""A proxy that puts a fixed latency before every answer and knows which requests waited for which."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

_REQUEST = re.compile(rb"^(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP/1\.1\r\n")


@dataclass
class Exchange:
    """One request, when it arrived at the proxy and when the last of its answer left it."""

    target: str
    start: float
    end: float = 0.0


class LatencyProxy:
    """Relays to ``port`` of this machine as a delay line: an answer leaves ``latency`` seconds after it came.

    All answers together leave with at most ``bytes_per_second``.
    """

    def __init__(self, port: int, latency: float, bytes_per_second: float | None = None) -> None:
        self._upstream = port
        self._latency = latency
        self._bytes_per_second = bytes_per_second
        self._line_is_free = 0.0
        self.exchanges: list[Exchange] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self.port = 0
        self._server: asyncio.Server
        self._writers: list[asyncio.StreamWriter] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._wind_down(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def round_trips(self, since: float, until: float) -> int:
        """Return the longest chain of requests each of which began after the one before it was answered."""
        depths: list[tuple[Exchange, int]] = []
        for exchange in sorted(self.exchanges, key=lambda each: each.start):
            if since <= exchange.start <= until:
                before = [depth for other, depth in depths if 0 < other.end <= exchange.start]
                depths.append((exchange, 1 + max(before, default=0)))
        return max((depth for _, depth in depths), default=0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    def _due(self, length: int) -> float:
        """Return when the last of so many bytes has left, if they came now."""
        due = time.perf_counter() + self._latency
        if self._bytes_per_second is None:
            return due
        self._line_is_free = max(self._line_is_free, due) + length / self._bytes_per_second
        return self._line_is_free

    async def _wind_down(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)  # before the first await: a shutdown meanwhile has to close it
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        self._writers.append(up_writer)
        current: list[Exchange] = []

        async def forth() -> None:
            while data := await reader.read(1 << 16):
                if match := _REQUEST.match(data):
                    current.append(Exchange(match[2].decode(), time.perf_counter()))
                    self.exchanges.append(current[-1])
                up_writer.write(data)
                await up_writer.drain()
            up_writer.close()

        async def back() -> None:
            late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

            async def deliver() -> None:
                while True:
                    due, data = await late.get()
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
                    if not data:
                        writer.close()
                        return
                    writer.write(data)
                    await writer.drain()
                    if current:
                        current[-1].end = time.perf_counter()

            delivery = asyncio.ensure_future(deliver())
            while data := await up_reader.read(1 << 16):
                late.put_nowait((self._due(len(data)), data))
            late.put_nowait((time.perf_counter() + self._latency, b""))
            await delivery

        with suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(forth(), back())
