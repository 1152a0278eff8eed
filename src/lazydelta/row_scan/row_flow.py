"""``RowFlow``: files found, opened and decoded by threads, a little ahead of the one who takes the rows.

Files leave in the order in which they were found and rows in the order of their file. How many files are open at once
begins with one and grows with the files that were taken: who stops early has caused little work, who goes on soon has
all threads at work. Finding files is a piece of work like any other, so that it goes on while rows are decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Condition, RLock, get_ident

import pyarrow as pa

from lazydelta.errors import LazyDeltaError, StreamClosedError
from lazydelta.row_scan.file_rows import FileRows
from lazydelta.row_scan.reading_pool import ReadingPool
from lazydelta.row_scan.row_metrics import RowMetrics
from lazydelta.rows.opened_file import FileToRead

__all__ = ["RowFlow"]

_FILES_A_STEP = 6
# Whoever has taken so many files will rather take the rest: most limits are filled by one or two.
_FILES_THAT_TELL = 3
# Files that are decoded and wait to be taken count as open: with no more files than threads, a thread that is done with
# its file would wait for the one before it to be taken.
_FILES_A_THREAD = 2
_READY = 2
_GUESS_FACTOR, _MOST_GUESSED = 4, 32 << 20


@dataclass(slots=True, eq=False)
class _Reading:
    """One open file: what is ready, and what the next batch may take."""

    rows: FileRows
    batches: Iterator[pa.RecordBatch]
    expected: int
    ready: deque[tuple[pa.RecordBatch, int]] = field(default_factory=deque)
    is_running: bool = False
    is_done: bool = False
    error: BaseException | None = None


class RowFlow:
    """The moving parts of a stream of rows; ``found`` are batches of files, ``stop`` ends the requests of all."""

    def __init__(
        self,
        found: Generator[Sequence[FileToRead]],
        open_file: Callable[[FileToRead], FileRows],
        pool: ReadingPool,
        metrics: RowMetrics,
        *,
        stop: Callable[[], None],
        whole: bool,
    ) -> None:
        self._found = found
        self._open_file = open_file
        self._pool = pool
        self._metrics = metrics
        self._stop = stop
        # Entered a dozen times for each file: by itself it is quicker to enter than by way of the condition.
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._known: deque[FileToRead] = deque()
        self._open: deque[_Reading] = deque()
        self._most = _FILES_A_THREAD * pool.threads
        self._window = self._most if whole else 1
        self._goes_on = whole
        self._newest = 0
        self._taken = 0
        self._discovering = False
        self._all_found = False
        self._error: BaseException | None = None
        self._closed = False
        self._abandoned = False
        self._running: set[int] = set()

    def take(self) -> pa.RecordBatch | None:
        """Return the next batch, None after the last; whatever went wrong arrives in its place."""
        with self._lock:
            is_started = False
            while not self._closed:
                head = self._open[0] if self._open else None
                if head is None:
                    if self._all_found and not self._known:
                        self._raise(self._error)
                        return None
                elif head.ready:
                    batch, size = head.ready.popleft()
                    self._pool.correct(-size)
                    self._start_work()
                    return batch
                elif head.is_done:
                    self._raise(head.error)
                    self._open.popleft()
                    self._taken += 1
                    self._goes_on = self._goes_on or self._taken >= _FILES_THAT_TELL
                    self._window = max(self._window, min(self._most, 1 + self._taken // _FILES_A_STEP))
                    continue
                if is_started:
                    self._changed.wait()
                else:
                    # Where no thread can be started the work is done when this returns: it is looked at again.
                    self._start_work()
                if self._abandoned:
                    raise StreamClosedError("The threads of this stream were ended", hint="keep its pool open")
                is_started = not is_started
        return None

    def widen(self) -> None:
        """Open as many files at once as there may be, from now on: who takes the rows is known to go on."""
        with self._lock:
            self._window = self._most
            self._goes_on = True
            self._start_work()

    @property
    def files_taken(self) -> int:
        """How many files were taken to their end before the one that the last batch is of."""
        return self._taken

    def close(self) -> None:
        """Stop all requests, wait for the work under way, close what is open; harmless when it is closed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._stop()
        for reading in list(self._open):
            reading.rows.close()
        # A collection of garbage may bring us here in any thread: one that is at work for this very stream cannot wait
        # for itself, and work that has not begun may be waiting for this thread. It will find the stream closed.
        inside = get_ident() in self._running
        with self._lock:
            self._changed.wait_for(lambda: self._running <= {get_ident()})
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
        # The next file is looked for while others are read, once it is likely to be wanted.
        wanted = self._window + (self._taken >= _FILES_A_STEP or self._window > 1)
        if ahead < wanted:
            self._look_for_files()
        for index, reading in enumerate(self._open):
            if not reading.is_running and not reading.is_done and self._may_read(reading, is_head=index == 0):
                reading.is_running = True
                self._submit(lambda reading=reading: self._read(reading))  # type: ignore[misc]
        # Many files may have come at once, and to find the next may take longer than to read all of these.
        if self._goes_on and self._pool.threads > 1 and 0 < len(self._known) < self._newest:
            self._look_for_files()

    def _look_for_files(self) -> None:
        if not self._discovering and not self._all_found:
            self._discovering = True
            self._submit(self._discover)

    def _begin_file(self, file: FileToRead) -> None:
        rows = self._open_file(file)
        guess = min(max(file.size, 0) * _GUESS_FACTOR, _MOST_GUESSED)
        self._open.append(_Reading(rows, rows.batches(), guess))
        if len(self._open) > self._metrics.most_files_at_once:
            self._metrics.most(most_files_at_once=len(self._open))
        if not self._all_found:
            self._metrics.add(files_while_discovering=1)

    def _may_read(self, reading: _Reading, *, is_head: bool) -> bool:
        """Tell whether the next batch of a file may be decoded, and reserve its memory."""
        if len(reading.ready) >= _READY:
            return False
        return self._pool.reserve(reading.expected, at_any_rate=is_head and not reading.ready)

    def _submit(self, work: Callable[[], None]) -> None:
        future = self._pool.submit(lambda: self._step(work))
        future.add_done_callback(lambda done: self._give_up() if done.cancelled() else None)

    def _give_up(self) -> None:
        """End a stream whose pool was closed under it: what it waits for never comes."""
        with self._lock:
            self._abandoned = True
            self._changed.notify_all()

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
            if self._closed:  # and somebody waits for the last thread to leave
                self._changed.notify_all()

    def _discover(self) -> None:
        files: Sequence[FileToRead] | None = None
        error: BaseException | None = None
        try:
            files = None if self._closed else next(self._found, None)
        except BaseException as raised:  # noqa: BLE001 - handed to the consumer, where it belongs
            error = raised
        with self._lock:
            self._discovering = False
            if files is None:
                self._all_found, self._error = True, error
            else:
                self._known += files
                self._newest = len(files)
            self._start_work()
            self._changed.notify_all()

    def _read(self, reading: _Reading) -> None:
        while self._read_one(reading):
            pass

    def _read_one(self, reading: _Reading) -> bool:
        """Decode the next batch of a file; tell whether the one after it may be decoded as well."""
        batch: pa.RecordBatch | None = None
        error: BaseException | None = None
        try:
            batch = None if self._closed else next(reading.batches, None)
            if reading.rows.is_last:
                # Known with its last batch, so that nobody has to come back for the end of it.
                _close(reading.batches)
        except BaseException as raised:  # noqa: BLE001 - handed to the consumer, where it belongs
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
                # Whoever waits, waits for this file: to wake it for another one takes the interpreter from us.
                self._changed.notify_all()
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
