"""``FileStream``: a lazy stream of files as an object, iterable with and without ``async``."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

import pyarrow as pa

from lazydelta.errors import StreamClosedError, StreamSharedError
from lazydelta.log.file_batch import FileBatch
from lazydelta.metrics import ScanMetrics
from lazydelta.scan.data_file import DataFile, data_files
from lazydelta.scan.explanation import Explanation
from lazydelta.scan.files_schema import to_record_batch
from lazydelta.scan.scanner import LazyDeltaScanner

__all__ = ["FileStream"]

T = TypeVar("T")


class FileStream:
    """The files of a scan, single use: iterate it once, as objects or as record batches.

    Nothing is read before the first file is asked for. Closing the stream, leaving its ``with`` block or dropping it
    ends the scan and its requests. A stream belongs to one thread at a time; any thread may close it.
    """

    def __init__(self, scanner: LazyDeltaScanner) -> None:
        self._scanner = scanner
        self._batches: Generator[FileBatch] | None = None
        self._closed = False
        self._objects: Iterator[DataFile] = iter(())
        self._in_use = threading.Lock()

    @property
    def metrics(self) -> ScanMetrics:
        """What the scan has done so far."""
        return self._scanner.metrics

    def explain(self) -> Explanation:
        """Return the plan with its reason, and what the scan has cost so far."""
        return Explanation.of(self._scanner)

    def __iter__(self) -> Iterator[DataFile]:
        self._begin()
        return _Pulling(self, self._in_use, self._next_file)

    def __next__(self) -> DataFile:
        return _alone(self._in_use, self._next_file)

    def _next_file(self) -> DataFile:
        while True:
            file = next(self._objects, None)
            if file is not None:
                return file
            batch = self._next_batch()
            if batch is None:
                raise StopIteration
            self._fill(batch)

    def __aiter__(self) -> AsyncIterator[DataFile]:
        self._begin()
        return self

    async def __anext__(self) -> DataFile:
        import asyncio  # noqa: PLC0415 - whoever awaits has it; others are spared it

        while True:
            file = next(self._objects, None)
            if file is not None:
                return file
            try:
                batch = await asyncio.to_thread(self._next_batch)
            except asyncio.CancelledError:
                self.close()  # the thread meets the end of its requests and unwinds by itself
                raise
            if batch is None:
                raise StopAsyncIteration
            self._fill(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the files as Arrow record batches: no Python object per file."""
        self._begin()
        return _Pulling(self, self._in_use, self._next_record_batch)

    def collect(self) -> list[DataFile]:
        """Return all files as a list."""
        return list(self)

    def close(self) -> None:
        """End the scan and its requests; harmless when it has ended."""
        self._closed = True
        self._objects = iter(())
        batches, self._batches = self._batches, None
        if batches is None:
            return
        self._scanner.io.stop()
        try:
            batches.close()  # its finally blocks cancel what is in flight
        except ValueError:
            # Another thread is inside the scan just now; its next request is refused, and it unwinds there.
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _begin(self) -> None:
        if self._closed or self._batches is not None:
            raise StreamClosedError("This stream of files was already used", hint="call files() again for another scan")
        self._batches = self._scanner.batches()

    def _next_record_batch(self) -> pa.RecordBatch:
        batch = self._next_batch()
        if batch is None:
            raise StopIteration
        return to_record_batch(batch, self._scanner.snapshot.schema, self._scanner.request.stats_columns)

    def _next_batch(self) -> FileBatch | None:
        if self._batches is None:
            if self._closed:
                return None
            self._begin()
        batch = None if self._batches is None else next(self._batches, None)
        if batch is None:
            self.close()
        return batch

    def _fill(self, batch: FileBatch) -> None:
        snapshot = self._scanner.snapshot
        self._objects = data_files(batch, snapshot.store, snapshot.schema)


def _alone(in_use: threading.Lock, pull: Callable[[], T]) -> T:
    """Pull, and refuse a second thread meanwhile, in words instead of ``generator already executing``."""
    if not in_use.acquire(blocking=False):
        message = "Another thread is reading this stream of files at the same time"
        hint = "let one thread read it and hand the files on, or call files() once for each thread"
        raise StreamSharedError(message, hint=hint)
    try:
        return pull()
    finally:
        in_use.release()


class _Pulling(Generic[T]):
    """An iterator over a stream: it may be handed on to another loop, and a loop that breaks drops and so closes it."""

    def __init__(self, stream: FileStream, in_use: threading.Lock, pull: Callable[[], T]) -> None:
        self._stream = stream
        self._in_use = in_use
        self._pull = pull
        self._over = False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._over:
            raise StopIteration
        try:
            return _alone(self._in_use, self._pull)
        except StreamSharedError:
            raise  # the thread that was here first goes on
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the scan."""
        self._over = True
        self._stream.close()

    def __del__(self) -> None:
        self.close()
