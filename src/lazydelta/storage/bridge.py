"""From the synchronous code above to the asynchronous HTTP client below: one event loop on one daemon thread.

The object-store client is asynchronous; only its asynchronous calls can be aborted in flight, which is what makes
"closing a stream stops its I/O at once" true. Everything above is written once, synchronously; asynchronous callers
use ``asyncio.wrap_future(pending.future)``.

The thread starts with the first request. A child forked after that finds neither our thread nor the client's worker
threads, and the client cannot start them again: a request in such a child fails at once with advice, where the
client itself would wait for ever. Local tables do not use the client and work in forked children too.
"""

from __future__ import annotations

import atexit
import os
import threading
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lazydelta.errors import StorageError, StorageTimeoutError
from lazydelta.execution import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lazydelta.storage.event_loop import EventLoop

__all__ = ["Pending", "in_thread", "run", "submit"]

T = TypeVar("T")

_FILE_THREADS = 8
# A fork goes on without reads that take longer than this, on a file system that hangs.
_SETTLING_SECONDS = 5.0


class Pending(Generic[T]):
    """A request under way. ``result()`` waits for it, ``cancel()`` aborts it."""

    __slots__ = ("future",)

    def __init__(self, future: Future[T]) -> None:
        self.future = future

    @classmethod
    def done_with(cls, value: T) -> Pending[T]:
        """Return a request that has already succeeded."""
        future: Future[T] = Future()
        future.set_result(value)
        return cls(future)

    @classmethod
    def failed_with(cls, error: BaseException) -> Pending[T]:
        """Return a request that has already failed; waiting for it raises ``error``."""
        future: Future[T] = Future()
        future.set_exception(error)
        return cls(future)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the answer; an interrupt of the wait aborts the request too."""
        try:
            return self.future.result(timeout)
        except CancelledError:
            message = "the request was cancelled before it was answered"
        except FutureTimeoutError:
            if self.future.done():
                raise
            message = f"no answer within {timeout} s"
            raise StorageTimeoutError(message) from None
        except (KeyboardInterrupt, SystemExit):
            self.future.cancel()
            raise
        raise StorageError(message)

    def cancel(self) -> None:
        """Abort the request in flight; harmless when it has ended."""
        self.future.cancel()

    def done(self) -> bool:
        """Tell whether waiting would return at once."""
        return self.future.done()


class _State:
    """What belongs to this process and must be made anew in a forked child."""

    def __init__(self, *, client_lost: bool = False) -> None:
        self.lock = threading.Lock()
        self.loop: EventLoop | None = None
        self.pool: Workers | None = None
        self.held: Workers | None = None
        self.client_lost = client_lost


_state = _State()
_left_behind: list[_State] = []
_hooked = False


def _hook_process() -> None:
    global _hooked  # noqa: PLW0603 - process-wide by nature
    if not _hooked:
        _hooked = True
        os.register_at_fork(
            before=_settle_before_fork, after_in_parent=_go_on_after_fork, after_in_child=_forget_after_fork
        )
        atexit.register(_shut_down)


def _settle_before_fork() -> None:
    """Let local reads end first: the child would wait for ever for their answers, and for locks that they held."""
    state = _state
    state.held = state.pool if state.pool is not None and state.pool.hold(_SETTLING_SECONDS) else None


def _go_on_after_fork() -> None:
    state = _state
    held, state.held = state.held, None
    if held is not None:
        held.let_go()


def _forget_after_fork() -> None:
    """Drop the parent's loop and threads, which do not exist in this child."""
    global _state  # noqa: PLW0603 - process-wide by nature
    _go_on_after_fork()
    # Kept: collecting the parent's loop would close descriptors that both processes share.
    _left_behind.append(_state)
    _state = _State(client_lost=_state.client_lost or _state.loop is not None)


def _shut_down() -> None:
    state = _state
    if state.loop is not None:
        state.loop.stop()
        state.loop = None


def _the_loop() -> EventLoop:
    state = _state
    if state.client_lost:
        message = "this process was forked from one that had used an object store already, and cannot use one"
        raise StorageError(message, hint="start it with the 'spawn' or 'forkserver' method, or open stores only in it")
    if state.loop is None:
        with state.lock:
            if state.loop is None:
                # asyncio and the client are a third of what the package takes to load; local tables need neither.
                from lazydelta.storage.event_loop import EventLoop  # noqa: PLC0415

                _hook_process()
                state.loop = EventLoop()
    return state.loop


def submit(work: Coroutine[Any, Any, T]) -> Pending[T]:
    """Start ``work`` on the event loop now."""
    try:
        loop = _the_loop()
    except StorageError as error:
        work.close()
        return Pending.failed_with(error)
    return Pending(loop.submit(work))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Start ``work`` and wait for it."""
    return submit(work).result()


def in_thread(work: Callable[[], T]) -> Pending[T]:
    """Start blocking ``work`` (a local file read) on a small pool: mounted file systems can be slow."""
    state = _state
    if state.pool is None:
        with state.lock:
            if state.pool is None:
                _hook_process()
                state.pool = Workers(_FILE_THREADS, "lazydelta-file")
    return Pending(state.pool.submit(work))
