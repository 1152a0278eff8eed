"""The event loop on which the object-store client works; `storage.bridge` starts it with the first request."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, TypeVar

import obstore

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["EventLoop"]

T = TypeVar("T")

_JOIN_SECONDS = 2.0
_POLL_SECONDS = 0.002


class _CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that knows which futures are still held somewhere, by the client's threads for instance."""

    def __init__(self) -> None:
        super().__init__()
        self.held: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future and remember it for as long as anyone holds it."""
        future = super().create_future()
        self.held.add(future)
        return future


class EventLoop:
    """An event loop on a daemon thread of its own, from now until ``stop()``."""

    def __init__(self) -> None:
        self.loop = _CountingLoop()
        self.thread = threading.Thread(target=self._run, name="lazydelta-io", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start ``work`` now."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self) -> None:
        """Cancel what is in flight, let the client's threads see that, then stop.

        A client thread that turns to an interpreter which is being torn down aborts the process. It holds its
        request's future until it has done so for the last time.
        """

        async def wind_down() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=_JOIN_SECONDS / 2)

        with contextlib.suppress(RuntimeError, FutureTimeoutError, CancelledError):
            asyncio.run_coroutine_threadsafe(wind_down(), self.loop).result(_JOIN_SECONDS)
        deadline = time.monotonic() + _JOIN_SECONDS
        while self.loop.held and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            # What the client's threads let go of without holding the interpreter, any call into the client frees.
            obstore.parse_scheme("memory:///")
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(_JOIN_SECONDS)
        if not self.thread.is_alive():
            self.loop.close()
