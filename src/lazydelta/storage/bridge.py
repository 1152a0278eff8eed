"""Bridge from synchronous code to the asynchronous HTTP client: one event loop on one daemon thread.

Only the asynchronous calls of the object-store client can be aborted in flight, so that closing a stream stops its I/O
at once. All code above is written once, synchronously. Asynchronous callers use ``asyncio.to_thread(pending.result)``.

The thread starts with the first request. A child process forked after that has neither this thread nor the client's
worker threads, and the client cannot restart them. A request in such a child fails at once with a hint, where the
client itself would hang. Local tables do not use the client, so they also work in forked children.
"""

from __future__ import annotations

import atexit
import os
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lazydelta.errors import StorageError, StorageTimeoutError
from lazydelta.runtime.threads import Task, Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lazydelta.storage.event_loop import EventLoop

__all__ = ["Pending", "in_thread", "run", "submit"]

T = TypeVar("T")

_FILE_THREADS = 8
# A fork does not wait longer than this for local reads, in case a file system hangs.
_SETTLING_SECONDS = 5.0


class Pending(Generic[T]):
    """A request in flight. ``result()`` waits for it, ``cancel()`` aborts it."""

    __slots__ = ("_task",)

    def __init__(self, task: Task[T]) -> None:
        self._task = task

    @classmethod
    def done_with(cls, value: T) -> Pending[T]:
        """Return a request that has already succeeded."""
        task: Task[T] = Task()
        task.succeed(value)
        return cls(task)

    @classmethod
    def failed_with(cls, error: BaseException) -> Pending[T]:
        """Return a request that has already failed. Waiting for it raises ``error``."""
        task: Task[T] = Task()
        task.fail(error)
        return cls(task)

    def result(self, timeout: float | None = None) -> T:
        """Wait for the response. Interrupting the wait aborts the request too."""
        try:
            return self._task.result(timeout)
        except CancelledError:
            message = "the request was cancelled before it was answered"
        except TimeoutError:
            if self._task.done():
                raise
            message = f"no answer within {timeout} s"
            raise StorageTimeoutError(message) from None
        except (KeyboardInterrupt, SystemExit):
            self._task.cancel()
            raise
        raise StorageError(message)

    def cancel(self) -> None:
        """Abort the request in flight. Does nothing if it has ended."""
        self._task.cancel()

    def done(self) -> bool:
        """Return whether `result` would return at once."""
        return self._task.done()


class _LoopState:
    """State of this process that a forked child must create anew."""

    def __init__(self, *, client_lost: bool = False) -> None:
        self.lock = threading.Lock()
        self.loop: EventLoop | None = None
        self.pool: Workers | None = None
        self.held: Workers | None = None
        self.client_lost = client_lost


_state = _LoopState()
_left_behind: list[_LoopState] = []
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
    """Let local reads finish first: the child would wait forever for their results and for the locks that they hold."""
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
    # Kept alive: collecting the parent's loop would close descriptors that both processes share.
    _left_behind.append(_state)
    _state = _LoopState(client_lost=_state.client_lost or _state.loop is not None)


def _shut_down() -> None:
    state = _state
    if state.loop is not None:
        state.loop.stop()
        state.loop = None


def _the_loop() -> EventLoop:
    state = _state
    if state.client_lost:
        message = "this process was forked from one that had used an object store already, and cannot use one"
        raise StorageError(
            message, hint="start the process with 'spawn' or 'forkserver', or open stores only in the child"
        )
    if state.loop is None:
        with state.lock:
            if state.loop is None:
                # asyncio and the client account for a third of the package's import time. Local tables need neither.
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
    """Start blocking ``work`` (a local file read) on a small thread pool, because mounted file systems can be slow."""
    state = _state
    if state.pool is None:
        with state.lock:
            if state.pool is None:
                _hook_process()
                state.pool = Workers(_FILE_THREADS, "lazydelta-file")
    return Pending(state.pool.submit(work))
