"""``RowStream``: a single-use stream of record batches, closed at its end, on exit or when dropped."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lazydelta.errors import StreamClosedError
from lazydelta.rows.flow import RowFlow
from lazydelta.rows.request import RowMetrics
from lazydelta.runtime.results import ArrowStream

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BatchStream", "IteratorStream", "RowStream"]


# ``BatchStream``: the common base of row streams, whatever produces their batches.


class BatchStream(ArrowStream):
    """Single-use batches of one schema. The stream closes after the last batch, or when iteration stops."""

    schema: pa.Schema
    _closed = False

    @abstractmethod
    def _next(self) -> pa.RecordBatch | None:
        """Return the next batch, or None at the end."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._closed:
            raise StreamClosedError("This stream of rows was already used", hint="create a new stream from the table")
        return self._batches()

    def __next__(self) -> pa.RecordBatch:
        batch = self._next()
        if batch is None:
            raise StopIteration
        return batch

    def _export(self) -> Iterator[pa.RecordBatch]:
        yield from iter(self)

    def collect(self) -> pa.Table:
        """Return everything as a PyArrow table."""
        return self.read_all()

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next batch, as PyArrow's readers do; StopIteration is raised at the end."""
        return next(self)

    def read_pandas(self, **options: Any) -> pd.DataFrame:
        """Return everything as a pandas data frame, as PyArrow's readers do."""
        return self.to_pandas(**options)

    def __del__(self) -> None:
        self.close()

    def _batches(self) -> Generator[pa.RecordBatch]:
        try:
            while (batch := self._next()) is not None:
                yield batch
        finally:
            self.close()


class IteratorStream(BatchStream):
    """The batches of an iterator, which is closed with the stream."""

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> None:
        self.schema = schema
        self._source = batches

    def _next(self) -> pa.RecordBatch | None:
        return None if self._closed else next(self._source, None)

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._closed = True
        self._source.close()


class RowStream(BatchStream):
    """The rows of a scan, batch by batch.

    Nothing is read before the first batch is requested. Closing the stream, leaving its ``with`` block or dropping it
    stops the scan: no further requests are made, and its threads end.
    """

    def __init__(
        self,
        schema: pa.Schema,
        limit: int | None,
        flow: Callable[[bool], RowFlow],
        *,
        metrics: RowMetrics,
        explained: Callable[[], dict[str, Any]],
        stop: Callable[[], None] | None = None,
    ) -> None:
        self.schema = schema
        self.metrics = metrics
        self._left = limit
        self._make_flow = flow
        # The callable must not reference the stream, which closes when its last reference is dropped.
        self.explanation = explained
        self._flow: RowFlow | None = None
        self._whole = False
        self._closed = False
        self._is_cut = False
        self._stop = stop
        self.files_taken = 0
        """Number of files fully consumed before the file of the last batch."""
        self._lock = threading.Lock()

    def explain(self) -> dict[str, Any]:
        """Return the plan of the scan, and its file and row metrics so far."""
        return self.explanation()

    def read_all(self) -> pa.Table:
        """Return all rows as a table, reading files with all threads from the start."""
        self._whole = self._left is None
        return super().read_all()

    def count(self) -> int:
        """Return the number of rows without keeping any."""
        self._whole = self._left is None
        return super().count()

    def hurry(self) -> None:
        """Use all threads from now on, because all rows are wanted. No effect with a limit."""
        with self._lock:
            self._whole = self._left is None
            flow = self._flow if self._whole else None
        if flow is not None:
            flow.widen()

    def stop(self) -> None:
        """Start no further requests and return at once. The consumer sees the scan end."""
        if self._stop is not None:
            self._stop()

    def close(self) -> None:
        """Stop the scan and its requests. Idempotent."""
        if not hasattr(self, "_lock"):  # an interrupted constructor
            return
        with self._lock:
            self._closed = True
            flow, self._flow = self._flow, None
        if flow is not None:
            flow.close()

    def _next(self) -> pa.RecordBatch | None:
        if self._is_cut:
            raise StreamClosedError(
                "This stream of rows ended with an error", hint="create a new stream from the table"
            )
        try:
            return self._taken()
        except BaseException:
            # Even an interrupt may lose a batch that was taken but not returned. This must not look like a normal end.
            self._is_cut = True
            self.close()
            raise

    def _taken(self) -> pa.RecordBatch | None:
        if self._left == 0:
            self.close()
        flow = self._begun()
        if flow is None:
            return None
        batch = flow.take()
        if batch is None:
            self.close()
            return None
        self.files_taken = flow.files_taken
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
        self.metrics.add(rows_emitted=batch.num_rows)
        if self._left == 0:
            # Close now rather than on the next call: most callers that set a limit never make one.
            self.close()
        return batch

    def _begun(self) -> RowFlow | None:
        with self._lock:
            if self._flow is None and not self._closed:
                self._flow = self._make_flow(self._whole)
            return self._flow
