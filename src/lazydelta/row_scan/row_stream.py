"""``RowStream``: rows as record batches, single use, closed when it is left or dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lazydelta.row_scan.batch_stream import BatchStream
from lazydelta.row_scan.row_flow import RowFlow
from lazydelta.row_scan.row_metrics import RowMetrics

__all__ = ["RowStream"]


class RowStream(BatchStream):
    """The rows of a scan, batch by batch.

    Nothing is read before the first batch is asked for. Closing the stream, leaving its ``with`` block or dropping it
    ends the scan: no request is made after that, and its threads are gone.
    """

    def __init__(
        self,
        schema: pa.Schema,
        limit: int | None,
        flow: Callable[[bool], tuple[RowFlow, Callable[[], None]]],
        *,
        metrics: RowMetrics,
        explained: Callable[[], dict[str, Any]],
        stop: Callable[[], None] | None = None,
    ) -> None:
        self.schema = schema
        self.metrics = metrics
        self._left = limit
        self._make_flow = flow
        # It does not hold the stream, which ends when nobody else does.
        self.explanation = explained
        self._flow: RowFlow | None = None
        self._release: Callable[[], None] = _nothing
        self._whole = False
        self._closed = False
        self._stop = stop
        self._lock = threading.Lock()
        self.files_taken = 0
        """How many files were taken to their end before the one that the last batch is of."""

    def explain(self) -> dict[str, Any]:
        """Return the plan of the scan, and what files and rows have cost so far."""
        return self.explanation()

    def read_all(self) -> pa.Table:
        """Return all rows as a table; as many files as there are threads are read from the beginning."""
        self._whole = self._left is None
        return super().read_all()

    def count(self) -> int:
        """Return the number of rows, without keeping any."""
        self._whole = self._left is None
        return super().count()

    def hurry(self) -> None:
        """Read with all threads from now on, for who knows that all rows are wanted; with a limit they are not."""
        with self._lock:
            self._whole = self._left is None
            flow = self._flow if self._whole else None
        if flow is not None:
            flow.widen()

    def stop(self) -> None:
        """Let no further request begin, and wait for nothing: whoever takes the rows meets the end of the scan."""
        if self._stop is not None:
            self._stop()

    def close(self) -> None:
        """End the scan and its requests; harmless when it has ended."""
        with self._lock:
            self._closed = True
            flow, self._flow = self._flow, None
            release, self._release = self._release, _nothing
        if flow is not None:
            flow.close()
        release()

    def _next(self) -> pa.RecordBatch | None:
        if self._left == 0:
            self.close()
        flow = self._begun()
        if flow is None:
            return None
        try:
            batch = flow.take()
        except BaseException:
            self.close()
            raise
        if batch is None:
            self.close()
            return None
        self.files_taken = flow.files_taken
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
        self.metrics.add(rows_emitted=batch.num_rows)
        if self._left == 0:
            # At once, and not when the next batch is asked for: most who wanted so many rows never ask again.
            self.close()
        return batch

    def _begun(self) -> RowFlow | None:
        with self._lock:
            if self._flow is None and not self._closed:
                self._flow, self._release = self._make_flow(self._whole)
            return self._flow


def _nothing() -> None:
    pass
