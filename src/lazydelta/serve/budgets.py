"""``Budgets``: how many streams a server runs at once and how much memory they may hold, in all and for each client."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from lazydelta.errors import OptionError, ServerBusyError

__all__ = ["Budgets"]


class Budgets:
    """Room for streams. A stream reserves its memory before it begins and gives it back when its scan has ended.

    Nobody waits for room: a queue would hold connections, and the client knows best whether to try again.
    """

    def __init__(
        self,
        *,
        streams: int = 64,
        streams_per_client: int = 16,
        memory: int = 2 << 30,
        memory_per_client: int = 1 << 30,
    ) -> None:
        for name, value in (("streams", streams), ("streams_per_client", streams_per_client)):
            if value < 1:
                raise OptionError(f"{name}={value} leaves room for nobody", hint="give a number from 1")
        self._limits = {
            "streams": streams,
            "streams_per_client": streams_per_client,
            "memory": memory,
            "memory_per_client": memory_per_client,
        }
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._streams: Counter[str] = Counter()
        self._memory: Counter[str] = Counter()
        self._closed = False
        self.most_streams = 0
        self.most_memory = 0

    @property
    def streams(self) -> int:
        """How many streams are running."""
        with self._lock:
            return self._streams.total()

    @property
    def memory(self) -> int:
        """How many bytes are reserved."""
        with self._lock:
            return self._memory.total()

    def reserve(self, client: str, memory: int) -> Callable[[], None]:
        """Take room for one stream, and return what gives it back, once; where there is none, the error says whose."""
        with self._lock:
            if self._closed:
                raise ServerBusyError("The server is about to end and takes no more streams", hint="try another one")
            self._check("streams", self._streams.total() + 1, "streams of all clients")
            self._check("streams_per_client", self._streams[client] + 1, "streams of this client")
            self._check("memory", self._memory.total() + memory, "bytes for all clients")
            self._check("memory_per_client", self._memory[client] + memory, "bytes for this client")
            self._streams[client] += 1
            self._memory[client] += memory
            self.most_streams = max(self.most_streams, self._streams.total())
            self.most_memory = max(self.most_memory, self._memory.total())
        given_back = threading.Lock()

        def give_back() -> None:
            if not given_back.acquire(blocking=False):
                return
            with self._changed:
                self._streams[client] -= 1
                self._memory[client] -= memory
                if not self._streams[client]:
                    del self._streams[client], self._memory[client]
                self._changed.notify_all()

        return give_back

    def close(self) -> None:
        """Take no more streams."""
        with self._lock:
            self._closed = True

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until no stream is running, at most so long; tell whether none is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._streams.total(), seconds)

    def _check(self, name: str, wanted: int, words: str) -> None:
        most = self._limits[name]
        if wanted > most:
            message = f"The server is full: {wanted} {words} would be more than {most}"
            raise ServerBusyError(message, hint="close a stream, or try again in a moment")
