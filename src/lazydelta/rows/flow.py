"""``RowFlow``: threads that discover, open and decode files slightly ahead of the consumer.

Files are emitted in discovery order and rows in file order. One file is open at first, and the number of open files
grows with the number consumed: a consumer that stops early causes little work, and one that continues soon has all
threads busy. Discovery is a task like any other, so it continues while rows are decoded.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock, RLock, get_ident

import pyarrow as pa

from lazydelta.data_files.reader import FileToRead
from lazydelta.errors import LazyDeltaError, StreamClosedError
from lazydelta.rows.file_rows import FileRows
from lazydelta.rows.request import RowMetrics
from lazydelta.runtime.threads import Bell, ClosesItself, Task, Workers, check_complete

__all__ = ["ReadingPool", "RowFlow"]


# ``ReadingPool``: threads and memory shared by the row streams of one scan or one query.


_NAME = "lazydelta-rows"
_REMOTE_FILES = 8


class ReadingPool(ClosesItself):
    """A pool that runs at most ``threads`` tasks and buffers at most ``memory`` bytes of unconsumed rows.

    No task waits for a consumer: it decodes one batch and ends. Streams that share a pool therefore cannot block each
    other, even if one of them is never read. The batch that a consumer is waiting for is always decoded; the memory
    limit applies to batches decoded ahead. Threads exist only while there is work.
    """

    def __init__(self, threads: int, memory: int) -> None:
        self.threads = max(1, threads)
        self.memory = memory
        self._workers = Workers(self.threads, _NAME)
        self._lock = Lock()
        self._held = 0
        self.peak = 0
        self.at_once = 0
        self.most_at_once = 0

    @classmethod
    def for_store(cls, memory: int, *, remote: bool) -> ReadingPool:
        """Return a pool sized for the store: waiting for the network needs no processor."""
        processors = os.cpu_count() or 1
        return cls(max(_REMOTE_FILES, processors) if remote else max(2, min(processors, _REMOTE_FILES)), memory)

    def submit(self, work: Callable[[], None], then: Callable[[Task[None]], None] | None = None) -> Task[None]:
        """Run ``work`` as soon as a thread is free. It is cancelled if the pool closes first."""
        return self._workers.submit(lambda: self._counted(work), then)

    def reserve(self, size: int, *, at_any_rate: bool) -> bool:
        """Reserve ``size`` bytes if available, or always with ``at_any_rate``; return whether they were reserved."""
        with self._lock:
            if not at_any_rate and self._held + size > self.memory:
                return False
            self._held += size
            self.peak = max(self.peak, self._held)
            return True

    def correct(self, change: int) -> None:
        """Adjust the reservation by ``change`` bytes once the actual size is known."""
        with self._lock:
            self._held += change
            self.peak = max(self.peak, self._held)

    @property
    def held(self) -> int:
        """Return the number of reserved bytes."""
        return self._held

    def close(self) -> None:
        """Start no more work and wait for running tasks."""
        self._workers.close()

    def _counted(self, work: Callable[[], None]) -> None:
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            work()
        finally:
            with self._lock:
                self.at_once -= 1


_FILES_A_STEP = 6
# A consumer that took this many files probably takes them all: most limits are satisfied by one or two.
_FILES_THAT_TELL = 3
# Decoded files that wait for the consumer count as open. With only one file per thread, a thread that has finished its
# file would be idle until the file before it is consumed.
_FILES_A_THREAD = 2
_READY = 2
_GUESS_FACTOR, _MOST_GUESSED = 4, 32 << 20


@dataclass(slots=True, eq=False)
class _OpenFile:
    """An open file: its decoded batches, and the expected size of the next one."""

    rows: FileRows
    batches: Iterator[pa.RecordBatch]
    expected: int
    ready: deque[tuple[pa.RecordBatch, int]] = field(default_factory=deque)
    is_running: bool = False
    is_done: bool = False
    error: BaseException | None = None


class RowFlow:
    """The machinery behind a row stream. ``found`` yields batches of files; ``stop`` cancels all requests."""

    def __init__(
        self,
        found: Generator[Sequence[FileToRead]],
        open_file: Callable[[FileToRead], FileRows],
        pool: ReadingPool,
        metrics: RowMetrics,
        *,
        stop: Callable[[], None],
        whole: bool,
        owns_pool: bool = False,
    ) -> None:
        self._found = found
        self._open_file = open_file
        self._pool = pool
        self._metrics = metrics
        self._stop = stop
        self._owns_pool = owns_pool
        self._lock = RLock()
        # The consumer waits on the first bell, and the thread that closes the stream on the second.
        self._changed, self._left = Bell(), Bell()
        self._known: deque[FileToRead] = deque()
        self._open: deque[_OpenFile] = deque()
        self._most = _FILES_A_THREAD * pool.threads
        self._window = self._most if whole else 1
        self._goes_on = whole
        self._newest = 0
        self._promised = 0
        self._taken = 0
        self._discovering = False
        self._all_found = False
        self._error: BaseException | None = None
        self._closed = False
        self._abandoned = False
        self._running: set[int] = set()

    def take(self) -> pa.RecordBatch | None:
        """Return the next batch, or None after the last one. Errors are raised at their position in the stream."""
        while not self._closed:
            with self._lock:
                self._pass_files()
                if self._open and self._open[0].ready:
                    batch, size = self._open[0].ready.popleft()
                    self._pool.correct(-size)
                    self._start_work()
                    return batch
                if not self._open and self._all_found and not self._known:
                    self._raise(self._error)
                    check_complete("files", promised=self._promised, delivered=self._taken)
                    return None
                self._start_work()
                # If no thread could be started, the work was done synchronously.
                is_waiting = not self._is_ready()
                if self._abandoned and is_waiting:
                    raise StreamClosedError(
                        "The threads of this stream were ended",
                        hint="keep the thread pool open while the stream is read",
                    )
            if is_waiting:
                self._changed.wait()
        return None

    def _pass_files(self) -> None:
        """Drop the files that are fully consumed. The lock must be held."""
        while self._open and self._open[0].is_done and not self._open[0].ready:
            self._raise(self._open[0].error)
            self._open.popleft()
            self._taken += 1
            self._goes_on = self._goes_on or self._taken >= _FILES_THAT_TELL
            self._window = max(self._window, min(self._most, 1 + self._taken // _FILES_A_STEP))

    def _is_ready(self) -> bool:
        """Return whether a batch or the end of a file is available. The lock must be held."""
        if self._open:
            return bool(self._open[0].ready) or self._open[0].is_done
        return self._all_found or self._closed

    def widen(self) -> None:
        """Open the maximum number of files from now on, because the consumer will read on."""
        with self._lock:
            self._window = self._most
            self._goes_on = True
            self._start_work()

    @property
    def files_taken(self) -> int:
        """Number of files fully consumed before the file of the last batch."""
        return self._taken

    def close(self) -> None:
        """Cancel all requests, wait for running work and close open files. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._changed.ring()
        self._stop()
        for reading in list(self._open):
            reading.rows.close()
        # Garbage collection can call this from any thread. A thread that works for this stream cannot wait for itself,
        # and queued work may be waiting for this thread. Queued work finds the stream closed.
        inside = get_ident() in self._running
        while self._has_other_workers():
            self._left.wait()
        for reading in self._open:
            held = sum(size for _, size in reading.ready)
            if not inside:
                _close(reading.batches)
                held += reading.expected if reading.is_running else 0
            self._pool.correct(-held)
        if not inside:
            _close(self._found)
        self._open.clear()
        self._known.clear()
        if self._owns_pool:
            self._pool.close()

    def _has_other_workers(self) -> bool:
        with self._lock:
            return not self._running <= {get_ident()}

    def _raise(self, error: BaseException | None) -> None:
        if error is not None:
            raise error

    # --- with the lock held

    def _start_work(self) -> None:
        if self._closed:
            return
        while self._known and len(self._open) < self._window:
            self._begin_file(self._known.popleft())
        ahead = len(self._known) + len(self._open)
        # Discover the next file while others are read, as soon as it is likely to be needed.
        wanted = self._window + (self._taken >= _FILES_A_STEP or self._window > 1)
        if ahead < wanted:
            self._look_for_files()
        for index, reading in enumerate(self._open):
            if not reading.is_running and not reading.is_done and self._may_read(reading, is_head=index == 0):
                reading.is_running = True
                self._submit(lambda reading=reading: self._read(reading))  # type: ignore[misc]
        # Discovery may return many files at once, and finding the next ones may take longer than reading all of these.
        if self._goes_on and self._pool.threads > 1 and 0 < len(self._known) < self._newest:
            self._look_for_files()

    def _look_for_files(self) -> None:
        if not self._discovering and not self._all_found:
            self._discovering = True
            self._submit(self._discover)

    def _begin_file(self, file: FileToRead) -> None:
        rows = self._open_file(file)
        guess = min(max(file.size, 0) * _GUESS_FACTOR, _MOST_GUESSED)
        self._open.append(_OpenFile(rows, rows.batches(), guess))
        if len(self._open) > self._metrics.most_files_at_once:
            self._metrics.most(most_files_at_once=len(self._open))
        if not self._all_found:
            self._metrics.add(files_while_discovering=1)

    def _may_read(self, reading: _OpenFile, *, is_head: bool) -> bool:
        """Return whether the next batch of a file may be decoded, and reserve its memory."""
        if len(reading.ready) >= _READY:
            return False
        return self._pool.reserve(reading.expected, at_any_rate=is_head and not reading.ready)

    def _submit(self, work: Callable[[], None]) -> None:
        self._pool.submit(lambda: self._step(work), self._give_up)

    def _give_up(self, task: Task[None]) -> None:
        """End a stream whose pool was closed: its pending work will never run."""
        if task.cancelled():
            self._abandoned = True
            self._changed.ring()

    # --- in threads of the pool

    def _step(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                return
            self._running.add(get_ident())
        try:
            work()
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._running.discard(get_ident())
        if self._closed:  # and close() waits for the last thread to finish
            self._left.ring()

    def _discover(self) -> None:
        files: Sequence[FileToRead] | None = None
        error: BaseException | None = None
        try:
            files = None if self._closed else next(self._found, None)
        except BaseException as raised:  # noqa: BLE001 - raised in the consumer's thread instead
            error = raised
        with self._lock:
            self._discovering = False
            if files is None:
                self._all_found, self._error = True, error
            else:
                self._known += files
                self._promised += len(files)
                self._newest = len(files)
            self._start_work()
            self._changed.ring()

    def _read(self, reading: _OpenFile) -> None:
        while self._read_one(reading):
            pass

    def _read_one(self, reading: _OpenFile) -> bool:
        """Decode the next batch of a file, and return whether to decode the one after it as well."""
        batch: pa.RecordBatch | None = None
        error: BaseException | None = None
        try:
            batch = None if self._closed else next(reading.batches, None)
            if reading.rows.is_last:
                # The last batch is known to be the last, so no further call is needed to reach the end of the file.
                _close(reading.batches)
        except BaseException as raised:  # noqa: BLE001 - raised in the consumer's thread instead
            error = raised if isinstance(raised, LazyDeltaError) or not self._closed else None
        size = 0 if batch is None else batch.nbytes
        with self._lock:
            self._pool.correct(size - reading.expected)
            reading.is_running = False
            if batch is not None:
                reading.expected = size
                reading.ready.append((batch, size))
                if self._pool.held > self._metrics.peak_bytes:
                    self._metrics.most(peak_bytes=self._pool.held)
            if batch is None or error is not None or reading.rows.is_last:
                reading.is_done, reading.error = True, error
            is_head = bool(self._open) and self._open[0] is reading
            if is_head:
                # The consumer waits for this file. Waking it for any other file would only contend for the interpreter
                # lock.
                self._changed.ring()
            goes_on = not self._closed and not reading.is_done and self._may_read(reading, is_head=is_head)
            if goes_on:
                reading.is_running = True
            else:
                self._start_work()
            return goes_on


def _close(iterator: object) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
