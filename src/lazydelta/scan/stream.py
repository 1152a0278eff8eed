"""``FileStream``: a lazy stream of files for synchronous and asynchronous iteration."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, Generic, Literal, TypeVar, overload

import pyarrow as pa

from lazydelta.errors import OptionError, StreamClosedError, StreamSharedError
from lazydelta.log.file_batch import FileBatch
from lazydelta.runtime.metrics import ScanMetrics
from lazydelta.runtime.results import ArrowStream
from lazydelta.scan.file import DataFile, data_files, files_schema, to_record_batch
from lazydelta.scan.scanner import Explanation, LazyDeltaScanner

__all__ = ["FileResults", "FileStream"]

T = TypeVar("T")


class FileResults(ArrowStream):
    """What streams of files offer, of this process or of a server."""

    @abstractmethod
    def __iter__(self) -> Iterator[DataFile]: ...

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the files as Arrow record batches, without a Python object per file."""

    def _export(self) -> Iterator[pa.RecordBatch]:
        yield from self.batches()

    def collect(self) -> list[DataFile]:
        """Return all files as a list."""
        return list(self)

    def to_list(self) -> list[DataFile]:
        """Return all files as a list."""
        return list(self)

    def first(self) -> DataFile | None:
        """Return the first file, or None if there is none, and close the stream."""
        with self:
            return next(iter(self), None)


class FileStream(FileResults):
    """The files of a scan. Iterate it once, as objects or as record batches.

    Nothing is read before the first file is requested. Closing the stream, leaving its ``with`` block or dropping it
    ends the scan and its requests. Only one thread may iterate a stream at a time; any thread may close it.
    """

    def __init__(self, scanner: LazyDeltaScanner) -> None:
        self._scanner = scanner
        self._batches: Generator[Any] | None = None
        self._closed = False
        self._is_cut = False
        self._objects: Iterator[DataFile] = iter(())

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of ``batches()``."""
        return files_schema(self._scanner.request.stats_columns)

    @property
    def metrics(self) -> ScanMetrics:
        """The metrics of the scan so far."""
        return self._scanner.metrics

    def __repr__(self) -> str:
        snapshot, request = self._scanner.snapshot, self._scanner.request
        where = None if request.predicate is None else str(request.predicate)
        given = {"where": where, "limit": request.limit, "row_limit": request.row_limit}
        shown = "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)
        return f"FileStream({snapshot.store.uri!r}, version={snapshot.version}{shown})"

    @overload
    def explain(self, format: None = None) -> Explanation: ...

    @overload
    def explain(self, format: Literal["svg"], *, title: str | None = None) -> str: ...

    def explain(
        self,
        format: Literal["svg"] | None = None,  # noqa: A002 - as in other libraries
        *,
        title: str | None = None,
    ) -> Explanation | str:
        """Return the plan with its reason, and the cost of the scan so far.

        ``format="svg"`` is a picture of both, under the title or the name of the table's folder.
        """
        if format is None:
            return Explanation.of(self._scanner)
        if format != "svg":
            raise OptionError(f"explain(format={format!r}) is not known", hint="omit it, or pass 'svg'")
        from lazydelta.scan.picture import draw  # noqa: PLC0415 - only for pictures

        told, segment = Explanation.of(self._scanner), self._scanner.snapshot.segment
        eager = segment.base_bytes + sum(max(0, file.info.size) for file in segment.tail())
        groups = self._scanner.shown_groups()
        return draw(told.plan, told.metrics, groups=groups, eager_bytes=eager, title=title)

    def __iter__(self) -> Iterator[DataFile]:
        self._begin()
        return _OneThread(self._files())

    def _files(self) -> Generator[DataFile]:
        # A separate iterator: it can be passed to another loop, and breaking a loop drops and so closes it.
        try:
            while (batch := self._next_batch()) is not None:
                self._fill(batch)
                for file in self._objects:
                    if self._closed:  # by its owner or another thread
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
        except KeyboardInterrupt:
            self._is_cut = True  # a file that was taken but not returned is lost
            raise
        return file

    def __aiter__(self) -> AsyncIterator[DataFile]:
        self._begin()
        return self

    async def __anext__(self) -> DataFile:
        import asyncio  # noqa: PLC0415 - callers that await have loaded it; others need not

        while True:
            file = next(self._objects, None)
            if file is not None:
                return file
            try:
                batch = await asyncio.to_thread(self._next_batch)
            except asyncio.CancelledError:
                self.close()  # the thread finds its requests ended and unwinds
                raise
            if batch is None:
                raise StopAsyncIteration
            self._fill(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the files as Arrow record batches, without a Python object per file."""
        schema, reported = self._scanner.snapshot.schema, self._scanner.request.stats_columns
        self._begin(lambda batch: to_record_batch(batch, schema, reported))
        return _OneThread(self._record_batches())

    def count(self) -> int:
        """Return the number of files without keeping any."""
        return super().count()

    def stop(self) -> None:
        """Prevent further requests without waiting. The consumer then finds the scan ended."""
        self._scanner.io.stop()

    def close(self) -> None:
        """End the scan and its requests. Does nothing if it has ended."""
        self._closed = True
        self._objects = iter(())
        batches, self._batches = self._batches, None
        if batches is None:
            return
        self._scanner.io.stop()
        try:
            batches.close()  # its finally blocks cancel the requests in flight
        except ValueError:
            # Another thread is inside the scan. Its next request is rejected, and it unwinds there.
            return

    def __del__(self) -> None:
        self.close()

    def _begin(self, convert: Callable[[FileBatch], pa.RecordBatch] | None = None) -> None:
        if self._closed or self._batches is not None:
            raise StreamClosedError(
                "This stream of files was already used", hint="call files() again to start another scan"
            )
        self._batches = self._scanner.batches() if convert is None else self._scanner.converted(convert)

    def _record_batches(self) -> Generator[pa.RecordBatch]:
        try:
            while (batch := self._next_batch()) is not None:
                yield batch
        finally:
            self.close()

    def _next_batch(self) -> Any:
        if self._is_cut:
            raise StreamClosedError("This stream of files ended with an error", hint="call files() again")
        if self._batches is None:
            if self._closed:
                return None
            self._begin()
        try:
            batch = None if self._batches is None else next(self._batches, None)
        except ValueError as error:
            _tell_if_shared(error)
            self._is_cut = True
            raise
        except BaseException:
            # Python ends a generator that raises. Further iteration must not look like the end of the files.
            self._is_cut = True
            raise
        if batch is None:
            self.close()
        return batch

    def _fill(self, batch: FileBatch) -> None:
        snapshot = self._scanner.snapshot
        self._objects = data_files(batch, snapshot.store, snapshot.schema)


def _tell_if_shared(error: ValueError) -> None:
    """Raise a clear error when two threads iterate the same generator. Ignore other errors."""
    if str(error) == "generator already executing":
        message = "Another thread is reading this stream of files at the same time"
        hint = "read it in one thread and pass the files on, or call files() once per thread"
        raise StreamSharedError(message, hint=hint) from None


class _OneThread(Generic[T]):
    """A generator that raises when a second thread iterates it. The first thread continues."""

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
