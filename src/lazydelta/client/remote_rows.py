"""``RemoteRowStream``: rows that a server reads, with the API of ``RowStream``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pyarrow as pa

from lazydelta.client.resuming import ResumedStream
from lazydelta.errors import StreamClosedError
from lazydelta.execution import ClosesItself

__all__ = ["RemoteRowStream"]


class RemoteRowStream(ClosesItself):
    """The rows of a scan that a server runs, batch by batch, single use; closing or dropping it ends the scan there."""

    def __init__(
        self, schema: pa.Schema, begin: Callable[[], ResumedStream], explain: Callable[[], dict[str, Any]]
    ) -> None:
        self.schema = schema
        self._begin = begin
        self._explain = explain
        self._stream: ResumedStream | None = None
        self._taken: Generator[pa.RecordBatch] | None = None
        self._closed = False

    @property
    def resumed(self) -> int:
        """How often the stream went on after a broken connection, or was begun again."""
        return 0 if self._stream is None else self._stream.resumed + self._stream.begun_again

    def explain(self) -> dict[str, Any]:
        """Return how the server would run this scan, which it does for it."""
        return self._explain()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._closed:
            raise StreamClosedError("This stream of rows was already used", hint="ask the table for another one")
        return self._batches()

    def __next__(self) -> pa.RecordBatch:
        batch = self._next()
        if batch is None:
            raise StopIteration
        return batch

    def read_all(self) -> pa.Table:
        """Return all rows as a table."""
        return pa.Table.from_batches(self, schema=self.schema)

    def count(self) -> int:
        """Return the number of rows, without keeping any."""
        return sum(batch.num_rows for batch in self)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a PyArrow reader, which closes the stream when it is closed or dropped."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hand the rows to another library through Arrow's C interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """End the scan, here and at the server; harmless when it has ended."""
        self._closed = True
        if self._stream is not None:
            self._stream.close()

    def __del__(self) -> None:
        self.close()

    def _batches(self) -> Generator[pa.RecordBatch]:
        try:
            while (batch := self._next()) is not None:
                yield batch
        finally:
            self.close()

    def _next(self) -> pa.RecordBatch | None:
        if self._taken is None:
            if self._closed:
                return None
            self._stream = self._begin()
            self._taken = self._stream.batches()
        batch = None if self._closed else next(self._taken, None)
        if batch is None:
            self.close()
        return batch
