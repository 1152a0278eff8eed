"""Work done in threads while the consumer is busy: items made ahead (``ReadAhead``), some at a time (``Workers``).

What threads leave behind: memory that the allocator keeps for each of them (``release_memory``). And what everything
that reads ahead has in common: it ends when it is told to (``ClosesItself``).
"""

from __future__ import annotations

import atexit
import enum
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Condition, Lock, Semaphore, Thread, current_thread, get_ident
from time import sleep
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from weakref import WeakSet

import pyarrow as pa

__all__ = ["ClosesItself", "ReadAhead", "Workers", "give_way", "in_parallel", "release_memory"]

T = TypeVar("T")
Item = TypeVar("Item")

_alive: WeakSet[ReadAhead[Any] | Workers] = WeakSet()
_working: set[int] = set()
_MOMENT = 1e-6
_LIFE_MS = 2_000


class ClosesItself(ABC):
    """A block of ``with`` closes it at its end."""

    @abstractmethod
    def close(self) -> None:
        """End it; a second time does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def give_way() -> None:
    """Let a read-ahead thread have the interpreter's lock, if there is one that may be waiting for it.

    For loops over many small objects, every few hundred microseconds. A thread that comes back from decoding waits for
    the lock until whoever holds it lets go, and that happens after 5 ms unless it is done on purpose: without this the
    two would take turns rather than work side by side.
    """
    if _working:
        sleep(_MOMENT)


def release_memory() -> None:
    """Give the system what Arrow's allocator holds free: it keeps what each thread has freed, and that adds up.

    Not after every batch: each time, the pages of the next ones have to be fetched from the system and cleared again.
    """
    pa.default_memory_pool().release_unused()


def in_parallel(
    work: Callable[[Item], T], source: Iterable[Item], *, threads: int, stop: Callable[[], None]
) -> Generator[T]:
    """Yield ``work(item)`` for each item, in their order, ``threads`` of them at a time; the source is read here.

    Its end waits for what has begun, also after an error; ``stop`` is called first, to end what the work waits for.
    """
    pool = Workers(threads, "lazydelta-worker")
    begun: deque[Future[T]] = deque()
    try:
        for item in source:
            begun.append(pool.submit(partial(work, item)))
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        stop()
        pool.close()


def _close_all() -> None:
    """End the threads before the interpreter does: one that is inside Arrow then would hang or abort the exit."""
    for each in sorted(_alive, key=lambda each: isinstance(each, Workers)):  # who needs their work goes first
        each.close()


atexit.register(_close_all)


def _start(thread: Thread) -> None:
    """Start a thread; an interrupt in the middle leaves one that can be joined, or none (it has no ``ident`` then)."""
    try:
        thread.start()
    except RuntimeError:
        raise
    except BaseException:
        # Ctrl-C while it comes to life: until Python knows it, nobody could wait for it.
        for _ in range(_LIFE_MS):
            with suppress(RuntimeError):
                thread.join(0)
                break
            sleep(0.001)
        raise


class _Leave(enum.Enum):
    IDLE = "nothing to do"


class Workers:
    """A pool of at most so many threads, which start as work comes.

    Python's own pools take no more work from the moment that the main thread has ended. But a program waits then for
    threads that are at work (maintenance), and they still have to read. These take work until the exit hook above.
    With ``idle_seconds`` a thread ends that had nothing to do for so long; another starts when there is work again.
    Where no thread can be started (from Python 3.12 on, once the main thread has ended), whoever asks does the work.
    """

    def __init__(self, threads: int, name: str, *, idle_seconds: float | None = None) -> None:
        self._most = threads
        self._idle_seconds = idle_seconds
        self._name = name
        self._lock = Lock()
        self._unfinished = 0
        self._settled = Condition(self._lock)
        self._threads: list[Thread] = []
        self._idle = Semaphore(0)
        self._closed = False
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        _alive.add(self)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have ``work`` done as soon as a thread is free."""
        future: Future[T] = Future()
        alone = False
        with self._lock:
            self._waiting.put((future, work))
            self._unfinished += 1
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
                thread = Thread(target=self._run, name=f"{self._name}_{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                try:
                    _start(thread)
                except RuntimeError:
                    self._threads.remove(thread)
                    alone = not self._threads
                except BaseException:
                    if thread.ident is None:
                        self._threads.remove(thread)
                    raise
        if alone and not self._closed:
            self._do(self._waiting.get())
        if self._closed:
            future.cancel()  # nobody else may come to see it
        return future

    def close(self) -> None:
        """Give up what has not begun, and wait for what has."""
        self._closed = True
        while True:
            try:
                item = self._waiting.get_nowait()
            except Empty:
                break
            if item is not None:
                item[0].cancel()
                self._finish()
        self._waiting.put(None)
        for thread in list(self._threads):
            thread.join()

    def _run(self) -> None:
        while (item := self._take()) is not _Leave.IDLE:
            if item is None:
                self._waiting.put(None)  # for the next one
                return
            self._do(item)
            del item  # or the result would stay for as long as nothing else is to do
            self._idle.release()

    def _do(self, item: tuple[Future[Any], Callable[[], Any]] | None) -> None:
        if item is None:
            return
        future, work = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits for it
                future.set_exception(error)
        self._finish()

    def _finish(self) -> None:
        with self._lock:
            self._unfinished -= 1
            if not self._unfinished:
                self._settled.notify_all()

    def hold(self, seconds: float) -> bool:
        """Wait, at most so long, until all work is done; if True, none begins until `let_go` is called.

        For a process that is about to fork: the child has no thread that would finish what is under way, nor let go of
        the locks that it holds.
        """
        if current_thread() in self._threads or not self._lock.acquire(timeout=seconds):
            return False
        self._settled.wait_for(lambda: not self._unfinished, seconds)
        return True

    def let_go(self) -> None:
        """Take work again, in either process."""
        self._lock.release()

    def _take(self) -> tuple[Future[Any], Callable[[], Any]] | _Leave | None:
        """Return the next work, None where all is over, or that this thread has waited long enough."""
        while True:
            try:
                return self._waiting.get(timeout=self._idle_seconds)
            except Empty:
                with self._lock:
                    # Whoever has counted on an idle thread has work for it, which is on its way.
                    if self._waiting.empty() and self._idle.acquire(blocking=False):
                        self._threads.remove(current_thread())
                        return _Leave.IDLE


class ReadAhead(Generic[T]):
    """Runs ``source`` in a thread, at most ``depth`` items ahead of the consumer; an error arrives in its place.

    Decoding Parquet releases the interpreter's lock, so on two cores the base is decoded while the consumer hashes
    and prunes. ``close`` ends the thread; ``stop`` is called first, to end what the source waits for. Where no thread
    can be started (see `Workers`), the consumer pulls the source itself.
    """

    def __init__(self, source: Iterator[T], *, depth: int, stop: Callable[[], None]) -> None:
        self._source = source
        self._depth = depth
        self._stop = stop
        self._ready: deque[T] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._changed = Condition()
        self._thread = Thread(target=self._run, name="lazydelta-read-ahead", daemon=True)
        # Known before it starts: an interrupt may come in between, and nobody but the exit hook would close it then.
        _alive.add(self)
        self._alone = False
        try:
            _start(self._thread)
        except RuntimeError:
            self._alone = True

    def __iter__(self) -> ReadAhead[T]:
        return self

    def __next__(self) -> T:
        if self._alone:
            return next(self._source)
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended)
            if self._ready:
                item = self._ready.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                error, self._error = self._error, None
                raise error
        raise StopIteration

    def close(self) -> None:
        """Stop the source and wait for its thread."""
        with self._changed:
            self._closed = True
            ended = self._ended
            self._changed.notify_all()
        if not ended:
            self._stop()
        if self._alone:
            _close(self._source)
        elif self._thread.ident is not None:
            self._thread.join()
        self._ready.clear()

    def _run(self) -> None:
        error: BaseException | None = None
        _working.add(get_ident())
        try:
            for item in self._source:
                _working.discard(get_ident())
                with self._changed:
                    self._ready.append(item)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: len(self._ready) < self._depth or self._closed)
                    if self._closed:
                        break
                _working.add(get_ident())
        except BaseException as raised:  # noqa: BLE001 - handed to the consumer, where it belongs
            error = raised
        finally:
            _working.discard(get_ident())
            _close(self._source)
            with self._changed:
                self._error, self._ended = error, True
                self._changed.notify_all()


def _close(source: object) -> None:
    close = getattr(source, "close", None)
    if close is not None:
        close()
