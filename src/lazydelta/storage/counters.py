"""What a scan cost, and who may watch it happen.

Every request of every store passes through :func:`announce` exactly once, before it is made. That makes claims
such as "opening a table lists from the checkpoint only" testable by counting, and lets tests and soak runs inject
faults at the same place for all back ends.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from lazydelta.errors import StreamClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["IoCounters", "Request", "announce", "observe"]


class Request(msgspec.Struct, frozen=True):
    """One request about to be made; ``verb`` is GET, HEAD, LIST, PUT or DELETE."""

    verb: str
    path: str
    start: int | None = None
    length: int | None = None
    root: str = ""


class IoCounters:
    """Thread-safe totals of requests and bytes; one object per scan, or per store by default.

    A retry inside the HTTP client is not seen. ``lists`` counts pages as the store sizes them.
    """

    __slots__ = ("_lock", "bytes_read", "bytes_written", "deletes", "gets", "lists", "puts", "requests", "stopped")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = 0
        self.lists = 0
        self.gets = 0
        self.puts = 0
        self.deletes = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.stopped = False

    def stop(self) -> None:
        """Refuse every further request that would be counted here: the scan that it belonged to has ended."""
        self.stopped = True

    def count(self, verb: str) -> None:
        """Add one request of this verb."""
        with self._lock:
            self.requests += 1
            if verb == "GET":
                self.gets += 1
            elif verb == "LIST":
                self.lists += 1
            elif verb == "PUT":
                self.puts += 1
            elif verb == "DELETE":
                self.deletes += 1

    def count_bytes(self, *, read: int = 0, written: int = 0) -> None:
        """Add bytes that have crossed the wire (or the disk)."""
        with self._lock:
            self.bytes_read += read
            self.bytes_written += written

    def snapshot(self) -> dict[str, int]:
        """Return all totals at one moment."""
        with self._lock:
            return {name: getattr(self, name) for name in self.__slots__ if name not in {"_lock", "stopped"}}

    def __repr__(self) -> str:
        return f"IoCounters({', '.join(f'{name}={value}' for name, value in sorted(self.snapshot().items()))})"

    def __getstate__(self) -> dict[str, int]:
        return self.snapshot()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._lock = threading.Lock()
        self.stopped = False
        for name, value in state.items():
            setattr(self, name, value)


_hooks: tuple[Callable[[Request], None], ...] = ()
_hooks_lock = threading.Lock()


@contextmanager
def observe(hook: Callable[[Request], None]) -> Iterator[None]:
    """Call ``hook`` before every request of any store in this process; what it raises fails that request."""
    global _hooks  # noqa: PLW0603 - one process-wide list is the point: scans make stores of their own
    with _hooks_lock:
        _hooks = (*_hooks, hook)
    try:
        yield
    finally:
        with _hooks_lock:
            kept = list(_hooks)
            kept.remove(hook)
            _hooks = tuple(kept)


def announce(counters: IoCounters, request: Request) -> None:
    """Count a request and tell the observers, who may raise; a scan that has ended makes no request."""
    if counters.stopped:
        raise StreamClosedError("The scan was closed", path=request.path)
    counters.count(request.verb)
    if _hooks:
        for hook in _hooks:
            hook(request)
