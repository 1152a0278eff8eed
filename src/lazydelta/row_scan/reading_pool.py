"""``ReadingPool``: the threads and the memory that streams of rows work with, one stream or all those of a query."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread, current_thread
from typing import Any

from lazydelta.execution import ClosesItself, Workers

__all__ = ["ReadingPool"]

_NAME = "lazydelta-rows"
_REMOTE_FILES = 8
# Engines in Rust let go of what they dropped only when they are called again; threads do not wait for that.
_IDLE_SECONDS = 0.5


class ReadingPool(ClosesItself):
    """At most ``threads`` pieces of work at a time, and ``memory`` bytes of rows that nobody has taken yet.

    No work waits for a consumer: it decodes one batch and ends. So streams that share a pool cannot block each other,
    even if one of them is not read at all. The batch that a consumer waits for is always decoded; memory bounds what is
    decoded before it is asked for. Threads are there for as long as a stream is.
    """

    def __init__(self, threads: int, memory: int) -> None:
        self.threads = max(1, threads)
        self.memory = memory
        self._workers: Workers | None = None
        self._users = 0
        self._closed = False
        self._lock = Lock()
        self._held = 0
        self.peak = 0
        self.at_once = 0
        self.most_at_once = 0

    @classmethod
    def for_store(cls, memory: int, *, remote: bool) -> ReadingPool:
        """Return a pool of the size that fits where files are: waiting for a network needs no processor."""
        processors = os.cpu_count() or 1
        return cls(max(_REMOTE_FILES, processors) if remote else max(2, min(processors, _REMOTE_FILES)), memory)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Have ``work`` done as soon as a thread is free; cancelled if the pool is closed before."""
        with self._lock:
            workers = self._workers
        if workers is None:
            future: Future[None] = Future()
            future.cancel()
            return future
        return workers.submit(lambda: self._counted(work))

    def join(self) -> None:
        """Count one more stream that works here."""
        with self._lock:
            self._users += 1
            if self._workers is None and not self._closed:
                self._workers = Workers(self.threads, _NAME, idle_seconds=_IDLE_SECONDS)

    def leave(self) -> None:
        """Count one stream less; with the last one the threads end, until another comes."""
        with self._lock:
            self._users -= 1
            idle = self._workers if self._users == 0 else None
            if idle is not None:
                self._workers = None
        if idle is not None and not self._is_mine():
            idle.close()
        elif idle is not None:
            # Garbage was collected in one of these very threads, which cannot wait for itself.
            Thread(target=idle.close, name="lazydelta-rows-end", daemon=True).start()

    def _is_mine(self) -> bool:
        return current_thread().name.startswith(_NAME)

    def reserve(self, size: int, *, at_any_rate: bool) -> bool:
        """Take ``size`` bytes of the memory if they are free, or though they are not; tell whether they were taken."""
        with self._lock:
            if not at_any_rate and self._held + size > self.memory:
                return False
            self._held += size
            self.peak = max(self.peak, self._held)
            return True

    def correct(self, change: int) -> None:
        """Add to what is taken, or give back: what was reserved is known only when it is there."""
        with self._lock:
            self._held += change
            self.peak = max(self.peak, self._held)

    @property
    def held(self) -> int:
        """Return how many bytes are taken."""
        return self._held

    def close(self) -> None:
        """End the threads for good, and wait for what they do just now."""
        with self._lock:
            self._closed = True
            workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    def _counted(self, work: Callable[[], Any]) -> None:
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            work()
        finally:
            with self._lock:
                self.at_once -= 1
