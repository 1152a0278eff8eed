"""``Budgets``: limits on concurrent streams and their memory, for the server and for each client."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from lazydelta.errors import OptionError, ServerBusyError, StreamClosedError

__all__ = ["Budgets"]

# Room wakes a waiting request at once. It looks around only for a client that has left, and a look costs the others.
_LOOK_AROUND_SECONDS = 0.25
_NEWEST_SHARE = 0.2


class _Waiting:
    """One request that waits for room."""

    def __init__(self, client: str, memory: int) -> None:
        self.client = client
        self.memory = memory
        self.granted = threading.Event()


class Budgets:
    """Room for streams. A stream reserves its memory before it starts and releases it when its scan has ended.

    A request that finds no room waits up to ``queue_seconds``. Clients take turns, and the requests of one client are
    served in order, so a client with many requests delays only itself. At most ``queue`` requests wait, and at most
    ``queue_per_client`` for one client, because an unbounded queue would serve no request in time. With
    ``queue_seconds=0`` no request waits.
    """

    def __init__(
        self,
        *,
        streams: int = 64,
        streams_per_client: int = 16,
        memory: int = 2 << 30,
        memory_per_client: int = 1 << 30,
        queue: int = 256,
        queue_per_client: int = 64,
        queue_seconds: float = 0.0,
    ) -> None:
        for name, value in (("streams", streams), ("streams_per_client", streams_per_client)):
            if value < 1:
                raise OptionError(f"{name}={value} admits no clientss", hint="pass a number of at least 1")
        self._limits = {
            "streams": streams,
            "streams_per_client": streams_per_client,
            "memory": memory,
            "memory_per_client": memory_per_client,
        }
        self._most_waiting = queue
        self._most_waiting_per_client = queue_per_client
        self._queue_seconds = queue_seconds
        # Garbage collection of a stream releases its room, and it can run in a thread that already holds the lock.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._streams: Counter[str] = Counter()
        self._memory: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        self._held_seconds = 1.0
        self._closed = False
        self.most_streams = 0
        self.most_memory = 0

    @property
    def streams(self) -> int:
        """The number of running streams."""
        with self._lock:
            return self._streams.total()

    @property
    def memory(self) -> int:
        """The number of reserved bytes."""
        with self._lock:
            return self._memory.total()

    @property
    def waiting(self) -> int:
        """The number of requests that wait for room."""
        with self._lock:
            return sum(map(len, self._queues.values()))

    def reserve(self, client: str, memory: int, cancelled: Callable[[], bool] = lambda: False) -> Callable[[], None]:
        """Reserve room for one stream and return the function that releases it.

        The function has an effect only once. If there is no room, the error names the limit. ``cancelled`` returns
        whether the client disconnected while it waited.
        """
        with self._lock:
            self._refuse_if_closed()
            if not self._queues and self._lacking(client, memory) is None:
                return self._taken(client, memory)
            waiting = self._queued(client, memory)
        self._wait(waiting, cancelled)
        return self._giving_back(client, memory)

    def close(self) -> None:
        """Accept no more streams. Requests that wait for room fail."""
        with self._lock:
            self._closed = True

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until no stream is running. Return whether none is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._streams.total(), seconds)

    # --- called with the lock held

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ServerBusyError("The server is shutting down and accepts no more streams", hint="try another port")

    def _lacking(self, client: str, memory: int) -> tuple[str, str] | None:
        """Return the limit that leaves no room for a stream, and its message. Return None if there is room."""
        wanted = (
            ("streams", self._streams.total() + 1, "streams of all clients"),
            ("memory", self._memory.total() + memory, "bytes for all clients"),
            ("streams_per_client", self._streams[client] + 1, "streams of this client"),
            ("memory_per_client", self._memory[client] + memory, "bytes for this client"),
        )
        for name, value, words in wanted:
            if value > self._limits[name]:
                return name, f"The server is full: {value} {words} would be more than {self._limits[name]}"
        return None

    def _queued(self, client: str, memory: int) -> _Waiting:
        lacking = self._lacking(client, memory)
        full = "The server is full, and others wait for room" if lacking is None else lacking[1]
        if not self._queue_seconds or self._can_never_fit(memory):
            raise self._busy(full)
        if sum(map(len, self._queues.values())) >= self._most_waiting:
            raise self._busy(f"{full}, and {self._most_waiting} requests are already waiting")
        if len(self._queues.get(client, ())) >= self._most_waiting_per_client:
            raise self._busy(f"{full}, and {self._most_waiting_per_client} requests of this client are already waiting")
        waiting = _Waiting(client, memory)
        self._queues.setdefault(client, deque()).append(waiting)
        self._grant()
        return waiting

    def _can_never_fit(self, memory: int) -> bool:
        return memory > min(self._limits["memory"], self._limits["memory_per_client"])

    def _busy(self, message: str) -> ServerBusyError:
        ahead = sum(map(len, self._queues.values())) + 1
        seconds = max(1, math.ceil(ahead * self._held_seconds / max(1, self._streams.total())))
        return ServerBusyError(message, hint=f"close a stream, or try again in {seconds} s")

    def _grant(self) -> None:
        """Grant room to waiting requests, client by client. A client at its own limit lets others go first."""
        is_granted = True
        while is_granted:
            is_granted = False
            for client, queue in list(self._queues.items()):
                if not queue:
                    continue
                lacking = self._lacking(client, queue[0].memory)
                if lacking is None:
                    waiting = queue.popleft()
                    self._note_taken(client, waiting.memory)
                    self._queues.move_to_end(client)
                    if not queue:
                        self._queues.pop(client, None)
                    waiting.granted.set()
                    is_granted = True
                elif lacking[0] in {"streams", "memory"}:
                    # The first request in the queue gets the next free room, even if a smaller request would fit now.
                    return

    def _note_taken(self, client: str, memory: int) -> None:
        self._streams[client] += 1
        self._memory[client] += memory
        self.most_streams = max(self.most_streams, self._streams.total())
        self.most_memory = max(self.most_memory, self._memory.total())

    def _taken(self, client: str, memory: int) -> Callable[[], None]:
        self._note_taken(client, memory)
        return self._giving_back(client, memory)

    def _remove(self, waiting: _Waiting) -> None:
        queue = self._queues[waiting.client]
        queue.remove(waiting)
        if not queue:
            del self._queues[waiting.client]
        self._grant()

    # --- called without the lock

    def _wait(self, waiting: _Waiting, cancelled: Callable[[], bool]) -> None:
        until = time.monotonic() + self._queue_seconds
        while not waiting.granted.wait(_LOOK_AROUND_SECONDS):
            has_left = cancelled()
            with self._lock:
                if waiting.granted.is_set():
                    return
                if not (has_left or self._closed or time.monotonic() >= until):
                    continue
                self._remove(waiting)
                self._refuse_if_closed()
                if has_left:
                    raise StreamClosedError("The client has left")
                raise self._busy(f"The server is full: no capacity was free within {self._queue_seconds:g} s")

    def _giving_back(self, client: str, memory: int) -> Callable[[], None]:
        began = time.monotonic()
        given_back = threading.Lock()

        def give_back() -> None:
            if not given_back.acquire(blocking=False):
                return
            with self._changed:
                held = time.monotonic() - began
                self._held_seconds += (held - self._held_seconds) * _NEWEST_SHARE
                self._streams[client] -= 1
                self._memory[client] -= memory
                if not self._streams[client]:
                    del self._streams[client], self._memory[client]
                self._grant()
                self._changed.notify_all()

        return give_back
