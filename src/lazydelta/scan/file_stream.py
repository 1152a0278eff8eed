"""``FileStream``: a lazy stream of files as an object, iterable with and without ``async``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

import pyarrow as pa

from lazydelta.errors import StreamClosedError, StreamSharedError
from lazydelta.execution import ClosesItself
from lazydelta.log.file_batch import FileBatch
from lazydelta.metrics import ScanMetrics
from lazydelta.scan.data_file import DataFile, data_files
from lazydelta.scan.explanation import Explanation
from lazydelta.scan.files_schema import to_record_batch
from lazydelta.scan.scanner import LazyDeltaScanner

__all__ = ["FileStream"]

T = TypeVar("T")


class FileStream(ClosesItself):
    """The files of a scan, single use: iterate it once, as objects or as record batches.

    Nothing is read before the first file is asked for. Closing the stream, leaving its ``with`` block or dropping it
    ends the scan and its requests. A stream belongs to one thread at a time; any thread may close it.
    """

    def __init__(self, scanner: LazyDeltaScanner) -> None:
        self._scanner = scanner
        self._batches: Generator[Any] | None = None
        self._closed = False
        self._objects: Iterator[DataFile] = iter(())

    @property
    def metrics(self) -> ScanMetrics:
        """What the scan has done so far."""
        return self._scanner.metrics

    def explain(self) -> Explanation:
        """Return the plan with its reason, and what the scan has cost so far."""
        return Explanation.of(self._scanner)

    def __iter__(self) -> Iterator[DataFile]:
        self._begin()
        return _OneThread(self._files())

    def _files(self) -> Generator[DataFile]:
        # An iterator of its own: it may be handed on to another loop, and a loop that breaks drops and so closes it.
        try:
            while (batch := self._next_batch()) is not None:
                self._fill(batch)
                for file in self._objects:
                    if self._closed:  # by whoever holds the stream, or by another thread
                        return
                    yield file
        finally:
            self.close()

    def __next__(self) -> DataFile:
        try:
            while (file := next(self._objects, None)) is None:
                batch = self._next_batch()
                if batch is None:
                    raise StopIteration
                self._fill(batch)
        except ValueError as error:
            _tell_if_shared(error)
            raise
        return file

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
        schema, reported = self._scanner.snapshot.schema, self._scanner.request.stats_columns
        self._begin(lambda batch: to_record_batch(batch, schema, reported))
        return _OneThread(self._record_batches())

    def collect(self) -> list[DataFile]:
        """Return all files as a list."""
        return list(self)

    def stop(self) -> None:
        """Let no further request begin, and wait for nothing: whoever takes the files meets the end of the scan."""
        self._scanner.io.stop()

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

    def __del__(self) -> None:
        self.close()

    def _begin(self, convert: Callable[[FileBatch], pa.RecordBatch] | None = None) -> None:
        if self._closed or self._batches is not None:
            raise StreamClosedError("This stream of files was already used", hint="call files() again for another scan")
        self._batches = self._scanner.batches() if convert is None else self._scanner.converted(convert)

    def _record_batches(self) -> Generator[pa.RecordBatch]:
        try:
            while (batch := self._next_batch()) is not None:
                yield batch
        finally:
            self.close()

    def _next_batch(self) -> Any:
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


def _tell_if_shared(error: ValueError) -> None:
    """Say in our words what Python says of a generator that two threads pull at; other errors are left alone."""
    if str(error) == "generator already executing":
        message = "Another thread is reading this stream of files at the same time"
        hint = "let one thread read it and hand the files on, or call files() once for each thread"
        raise StreamSharedError(message, hint=hint) from None


class _OneThread(Generic[T]):
    """A generator that says so when a second thread pulls at it; the first one goes on."""

    __slots__ = ("_pulled",)

    def __init__(self, pulled: Generator[T]) -> None:
        self._pulled = pulled

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return next(self._pulled)
        except ValueError as error:
            _tell_if_shared(error)
            raise

    def close(self) -> None:
        """End the scan."""
        self._pulled.close()
