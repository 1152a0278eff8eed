"""Threads: started only here, unaffected by Ctrl-C, and reused.

Python runs signal handlers in the main thread, between two instructions of Python code. So an interrupt inside
``Thread.start()`` or ``Condition.wait()``, which are written in Python, can leave a running thread that counts as not
started, or a lock that is held forever. Here the main thread only makes single C calls: ``start_new_thread`` starts a
thread or raises, and a `Bell` is one lock that is acquired or not. Bookkeeping that must not be interrupted is done by
the threads themselves, which receive no signals.

`Workers` runs a bounded number of tasks at a time, `in_parallel` does so in order, `ReadAhead` prefetches the items of
an iterator, and `start_thread` is for work that lasts as long as its owner. They share the threads of the process
(`_Crew`), which do not end when idle.
"""

from __future__ import annotations

import atexit
import ctypes
import os
from _thread import start_new_thread
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import closing, suppress
from functools import partial
from queue import SimpleQueue
from threading import Lock, RLock, Thread, current_thread, get_ident
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast
from weakref import WeakSet

import pyarrow as pa

from lazydelta.errors import IncompleteScanError

__all__ = [
    "Bell",
    "ClosesItself",
    "Flag",
    "ReadAhead",
    "Task",
    "Workers",
    "all_in_parallel",
    "check_complete",
    "give_way",
    "in_parallel",
    "release_heap",
    "release_memory",
    "start_thread",
]

T = TypeVar("T")
Item = TypeVar("Item")

_alive: WeakSet[ReadAhead[Any] | Workers] = WeakSet()
_working: set[int] = set()
_GIVE_WAY_SECONDS = 1e-6
# A bell wakes one thread. If two wait for the same bell, the other checks again after this time.
_LOOK_SECONDS = 0.1
_IDLE_NAME = "lazydelta-idle"


class ClosesItself(ABC):
    """Context manager that closes itself at the end of the ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Close it. Repeated calls do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def give_way() -> None:
    """Release the interpreter lock if a read-ahead thread may be waiting for it.

    For loops over many small objects, every few hundred microseconds. A thread that returns from decoding waits until
    the holder releases the lock, which takes 5 ms unless done explicitly. Without this call the two threads would take
    turns instead of running in parallel.
    """
    if _working:
        sleep(_GIVE_WAY_SECONDS)


def release_memory() -> None:
    """Return free memory of Arrow's allocator to the system. It keeps what each thread has freed, and that adds up.

    Do not call this after every batch: the next ones would have to get their pages from the system and clear them
    again.
    """
    pa.default_memory_pool().release_unused()


def release_heap() -> None:
    """Return free memory of the C library to the system too, where a stage has left hundreds of megabytes of it.

    Threads that parse leave their parts of the heap as large as they were. This looks at all of it.
    """
    release_memory()
    with suppress(AttributeError, OSError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def check_complete(what: str, *, promised: int, delivered: int) -> None:
    """Raise if a stage of a scan ended with more or fewer items than expected."""
    if promised != delivered:
        message = f"A scan ended with {delivered} of {promised} {what}"
        hint = "the answer is not complete: run it again; if an interrupt did not cause this, please report it"
        raise IncompleteScanError(message, hint=hint)


# --- waiting


class Bell:
    """Wakes a thread that waits for a change. Stays rung until a thread has waited.

    A bell carries no state: a waiting thread checks its condition after each ring, and after a timeout. An interrupted
    wait leaves no lock held.
    """

    __slots__ = ("_silent",)

    def __init__(self) -> None:
        self._silent = Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Wake the waiting thread, or the next one to wait."""
        with suppress(RuntimeError):  # already rung
            self._silent.release()

    def wait(self, seconds: float = _LOOK_SECONDS) -> None:
        """Return at the next ring, or after this many seconds."""
        self._silent.acquire(timeout=seconds)


class Flag:
    """Replacement for ``threading.Event`` in threads that Ctrl-C may interrupt."""

    __slots__ = ("_bell", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._bell = Bell()

    def set(self) -> None:
        """Set the flag."""
        self._is_set = True
        self._bell.ring()

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the flag is set or the timeout ends. Return whether it is set."""
        until = None if seconds is None else monotonic() + seconds
        while not self._is_set:
            left = _LOOK_SECONDS if until is None else min(_LOOK_SECONDS, until - monotonic())
            if left <= 0:
                break
            self._bell.wait(left)
        return self._is_set


class Task(Generic[T]):
    """Work that runs once or is cancelled before it starts, and its result."""

    __slots__ = ("_claim", "_error", "_over", "_then", "_value", "_work")

    def __init__(self, work: Callable[[], T] | None = None, then: Callable[[Task[T]], None] | None = None) -> None:
        """Call ``then`` when the task is done or cancelled, in the thread that did so."""
        self._work = work
        self._then = then
        self._claim = Lock()
        self._over = Flag()
        self._value: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work, unless it is cancelled or already running."""
        if not self._claim.acquire(blocking=False):
            return
        work, self._work = self._work, None
        try:
            value = cast("Callable[[], T]", work)()
        except BaseException as error:  # noqa: BLE001 - raised by result()
            self.fail(error)
        else:
            self.succeed(value)

    def succeed(self, value: T) -> None:
        """Set the result of the work."""
        self._value = value
        self._end()

    def fail(self, error: BaseException) -> None:
        """Set the error of the work."""
        self._error = error
        self._end()

    def _end(self) -> None:
        self._over.set()
        then, self._then = self._then, None
        if then is not None:
            then(self)

    def cancel(self) -> bool:
        """Cancel the work if it has not started. Return whether it was cancelled."""
        if self._claim.acquire(blocking=False):
            self._work = None
            self.fail(CancelledError())
        return self.cancelled()

    def cancelled(self) -> bool:
        """Return whether the task was cancelled."""
        return self.done() and isinstance(self._error, CancelledError)

    def done(self) -> bool:
        """Return whether `result` would return at once."""
        return self._over.is_set()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the work and return its result, or raise its error."""
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        return cast("T", self._value)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the work and return its error, or None on success."""
        if not self._over.wait(timeout):
            raise TimeoutError
        return self._error


# --- threads


def _started(thread: Thread, failed: Callable[[RuntimeError], None]) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        failed(error)


def start_thread(run: Callable[[], object], name: str, *, daemon: bool = True) -> Thread:
    """Start a thread that lives as long as ``run`` takes; it has started when this returns.

    Raises:
        RuntimeError: If the system starts no more threads.

    """
    thread = Thread(target=run, name=name, daemon=daemon)
    begun: Task[None] = Task()

    def start() -> None:
        _started(thread, begun.fail)
        begun.succeed(None)

    # Thread.start() waits in Python code until the thread runs, so call it where no signal arrives.
    start_new_thread(start, ())
    begun.result()
    return thread


class _Crew:
    """The threads of this process. Each runs one job at a time, then waits for the next.

    A thread in ``_idle`` waits at its inbox, or is about to. Taking it out is one atomic call, so no two jobs get the
    same thread. If none is idle, the job starts another.
    """

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []

    def run(self, job: Callable[[], None]) -> None:
        """Run a job, which must not raise, in a thread. Raise RuntimeError if none can be started."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            thread = Thread(target=self._live, args=(inbox,), name=_IDLE_NAME, daemon=True)
            # The starting thread runs the job itself if it has to.
            start_new_thread(_started, (thread, lambda _error: thread.run()))
        inbox.put(job)

    def _live(self, inbox: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            inbox.get()()
            self._idle.append(inbox)


_crew = _Crew()


def _forget_after_fork() -> None:
    """Start over in a forked child, which has none of its parent's threads."""
    global _crew  # noqa: PLW0603 - per process
    _crew = _Crew()
    for each in list(_alive):
        each.forget_threads()


os.register_at_fork(after_in_child=_forget_after_fork)


def _close_all() -> None:
    """End all work before the interpreter exits: a thread inside Arrow would hang or abort the exit."""
    for each in sorted(_alive, key=lambda each: isinstance(each, Workers)):  # dependents first
        each.close()


atexit.register(_close_all)


class _Service:
    """One thread working for `Workers`, from the request for it until no work is left."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread: int | None = None


class Workers:
    """Runs work in threads of the process, with a bounded number at a time.

    A thread joins if there is work and fewer than the maximum are here, and leaves if no work is queued. Both decisions
    are made with the lock held, and work is queued before the lock is taken. So either a thread that is here sees it,
    or another one joins.

    Python's own executors accept no work after the main thread has ended. But a program then still waits for running
    threads (maintenance), which have to read. So these workers accept work until the exit hook above. If no thread can
    be started (since Python 3.12, once the main thread has ended), `submit` does the work itself.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._name = name
        self._closed = False
        self.forget_threads()
        _alive.add(self)

    def forget_threads(self) -> None:
        """Start without threads and without work."""
        # Reentrant: garbage collection may submit or close while the lock is held.
        self._lock = RLock()
        self._here: set[_Service] = set()
        self._left = Bell()
        self._waiting: deque[Task[Any]] = deque()

    @property
    def threads(self) -> int:
        """The number of threads that are here or about to join."""
        return len(self._here)

    def submit(self, work: Callable[[], T], then: Callable[[Task[T]], None] | None = None) -> Task[T]:
        """Run ``work`` as soon as a thread is free. It is cancelled if the workers are closed first."""
        task = Task(work, then)
        self._waiting.append(task)
        service = _Service()
        try:
            with self._lock:
                comes = not self._closed and len(self._here) < self._most
                if comes:
                    self._here.add(service)
            if comes:
                _crew.run(partial(self._serve, service))
        except RuntimeError:
            with self._lock:
                self._here.discard(service)
                is_alone = not self._here
            if is_alone:
                self._serve(_Service())
        except BaseException:
            # On Ctrl-C: the thread may or may not start, and counts only once it runs.
            with self._lock:
                self._here.discard(service)
            raise
        if self._closed:
            task.cancel()
        return task

    def close(self) -> None:
        """Cancel work that has not started, and wait for the rest."""
        self._closed = True
        for task in list(self._waiting):
            task.cancel()
        with self._lock:
            self._waiting.clear()
        self._settle(None)

    def hold(self, seconds: float) -> bool:
        """Wait until all work is done or the timeout ends. If True, no work starts until `let_go` is called.

        For a process that is about to fork: the child has no thread that would finish the running work or release its
        locks.
        """
        if any(each.thread == get_ident() for each in list(self._here)):
            return False
        until = monotonic() + seconds
        while True:
            self._settle(until)
            if not self._lock.acquire(timeout=max(0.0, until - monotonic())):
                return False
            if not self._here or monotonic() >= until:
                return True
            self._lock.release()

    def let_go(self) -> None:
        """Accept work again in the process that has forked. The child starts with its own lock."""
        self._lock.release()

    def _settle(self, until: float | None) -> None:
        """Wait until no other thread is here. Threads leave when no work is queued."""
        me = get_ident()
        while any(each.thread != me for each in list(self._here)) and (until is None or monotonic() < until):
            self._left.wait()

    def _serve(self, service: _Service) -> None:
        thread = current_thread()
        before, thread.name = thread.name, self._name
        with self._lock:
            service.thread = get_ident()
            self._here.add(service)
        while True:
            with self._lock:
                if not self._waiting:
                    thread.name = before
                    self._here.discard(service)
                    break
                task = self._waiting.popleft()
            task.run()
            del task  # otherwise the result would live as long as the next task runs
        self._left.ring()


def in_parallel(
    work: Callable[[Item], T],
    source: Iterable[Item],
    *,
    threads: int,
    stop: Callable[[], None],
    name: str = "lazydelta-worker",
) -> Generator[T]:
    """Yield ``work(item)`` for each item, in order, ``threads`` at a time. The source is read in this thread.

    On exit, also after an error, waits for work that has started. Calls ``stop`` first, to end what the work waits for.
    """
    pool = Workers(threads, name)
    begun: deque[Task[T]] = deque()
    promised = delivered = 0
    try:
        for item in source:
            promised += 1
            begun.append(pool.submit(partial(work, item)))
            if len(begun) > threads:
                delivered += 1
                yield begun.popleft().result()
        while begun:
            delivered += 1
            yield begun.popleft().result()
        check_complete("pieces of work", promised=promised, delivered=delivered)
    finally:
        stop()
        pool.close()


def all_in_parallel(
    work: Callable[[Item], T], source: Iterable[Item], *, threads: int, name: str = "lazydelta-worker"
) -> list[T]:
    """Return ``work(item)`` for each item, in order."""
    with closing(in_parallel(work, source, threads=threads, stop=lambda: None, name=name)) as done:
        return list(done)


class ReadAhead(Generic[T]):
    """Runs ``source`` in a thread, at most ``depth`` items ahead of the consumer. Errors are raised in order.

    Decoding Parquet releases the interpreter lock, so on two cores the base is decoded while the consumer hashes and
    prunes. ``close`` ends the thread's work; it calls ``stop`` first, to end what the source waits for. If no thread
    can be started (see `Workers`), the consumer reads the source itself.
    """

    def __init__(self, source: Iterator[T], *, depth: int, stop: Callable[[], None]) -> None:
        self._source = source
        self._depth = depth
        self._stop = stop
        self._ready: deque[T] = deque()
        self._made = self._given = 0
        self._error: BaseException | None = None
        self._closed = self._is_cut = self._alone = False
        self._over = Flag()
        self._more, self._room = Bell(), Bell()
        # Acquired once, by the only thread that reads the source from then on.
        self._pulls = Lock()
        self._thread: int | None = None
        _alive.add(self)
        try:
            _crew.run(self._run)
        except RuntimeError:
            self._alone = self._pulls.acquire(blocking=False)
        except BaseException:
            self._closed = True  # a thread that starts anyway exits at once
            raise

    def __iter__(self) -> ReadAhead[T]:
        return self

    def __next__(self) -> T:
        if self._alone:
            return next(self._source)
        if self._is_cut:
            check_complete("items before an interrupt", promised=self._made, delivered=self._given - 1)
        # Reset once this call has returned the item: an interrupt before that has lost it.
        self._is_cut = True
        while not self._ready:
            if self._over.is_set() and not self._ready:
                self._is_cut = False
                raise self._end()
            self._more.wait()
        item = self._ready.popleft()
        self._given += 1
        self._room.ring()
        self._is_cut = False
        return item

    def _end(self) -> BaseException:
        error, self._error = self._error, None
        if error is None and not self._closed:
            check_complete("items", promised=self._made, delivered=self._given)
        return error or StopIteration()

    def close(self) -> None:
        """Stop the source and wait until it has ended."""
        self._closed = True
        self._room.ring()
        if not self._over.is_set():
            self._stop()
        if self._alone or self._pulls.acquire(blocking=False):
            _close(self._source)  # no thread has started on it, and none will
            self._over.set()
        elif self._thread != get_ident():
            self._over.wait()
        self._ready.clear()

    def forget_threads(self) -> None:
        """End the iterator in a forked child: the thread that produces the items runs only in the parent."""
        self._is_cut = True
        self._over.set()

    def _run(self) -> None:
        if not self._pulls.acquire(blocking=False):
            return
        self._thread = me = get_ident()
        thread = current_thread()
        before, thread.name = thread.name, "lazydelta-read-ahead"
        try:
            try:
                _working.add(me)
                for item in () if self._closed else self._source:
                    _working.discard(me)
                    self._made += 1
                    self._ready.append(item)
                    self._more.ring()
                    while len(self._ready) >= self._depth and not self._closed:
                        self._room.wait()
                    if self._closed:
                        break
                    _working.add(me)
            finally:
                _working.discard(me)
                _close(self._source)
        except BaseException as raised:  # noqa: BLE001 - raised in the consumer
            self._error = raised
        thread.name = before
        self._over.set()
        self._more.ring()


def _close(source: object) -> None:
    close = getattr(source, "close", None)
    if close is not None:
        close()
