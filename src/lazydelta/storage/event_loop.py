"""The event loop of the object-store client, on its own thread; ``storage.bridge`` starts it with the first request."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, TypeVar

import obstore

from lazydelta.runtime.threads import Task, start_thread

if TYPE_CHECKING:
    from collections.abc import Coroutine


__all__ = ["EventLoop"]

T = TypeVar("T")
_JOIN_SECONDS = 2.0
_POLL_SECONDS = 0.002


class _CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that tracks the futures still held, for instance by the client's threads."""

    def __init__(self) -> None:
        super().__init__()
        self.held: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()

    def create_future(self) -> asyncio.Future[Any]:
        """Create a future and track it for as long as it is referenced."""
        future = super().create_future()
        self.held.add(future)
        return future


class _Request(Task[T]):
    """A coroutine on the loop. Unlike other tasks, it can be cancelled while it runs."""

    __slots__ = ("_coroutine", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._coroutine: asyncio.Task[T] | None = None

    def begin(self, work: Coroutine[Any, Any, T]) -> None:
        self._coroutine = self._loop.create_task(work)
        self._coroutine.add_done_callback(self._settle)
        if self.done():
            self._abort()

    def cancel(self) -> bool:
        if not self.done():
            self.fail(CancelledError())
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._abort)
        return self.cancelled()

    def _abort(self) -> None:
        # After its first step: a coroutine that never started could not close its resources.
        if self._coroutine is not None:
            self._loop.call_soon(self._coroutine.cancel)

    def _settle(self, coroutine: asyncio.Task[T]) -> None:
        self._coroutine = None
        if coroutine.cancelled():
            self.fail(CancelledError())
        elif (error := coroutine.exception()) is not None:
            self.fail(error)
        elif not self.done():
            self.succeed(coroutine.result())


class EventLoop:
    """An event loop on its own daemon thread. Runs until ``stop()``."""

    def __init__(self) -> None:
        self.loop = _CountingLoop()
        self.thread = start_thread(self._run, "lazydelta-io")

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> Task[T]:
        """Start ``work`` now."""
        request: _Request[T] = _Request(self.loop)
        self.loop.call_soon_threadsafe(request.begin, work)
        return request

    def stop(self) -> None:
        """Cancel the requests in flight, let the client's threads notice, then stop.

        A client thread that calls into an interpreter during its shutdown aborts the process. It holds the future of
        its request until its last such call.
        """

        async def wind_down() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=_JOIN_SECONDS / 2)

        with contextlib.suppress(RuntimeError, TimeoutError, CancelledError):
            self.submit(wind_down()).result(_JOIN_SECONDS)
        deadline = time.monotonic() + _JOIN_SECONDS
        while self.loop.held and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            # Any call into the client frees the objects that its threads dropped without holding the GIL.
            obstore.parse_scheme("memory:///")
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(_JOIN_SECONDS)
        if not self.thread.is_alive():
            self.loop.close()
