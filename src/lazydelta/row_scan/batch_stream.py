"""``BatchStream``: what streams of rows have in common, wherever their batches come from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator

import pyarrow as pa

from lazydelta.errors import StreamClosedError
from lazydelta.execution import ClosesItself

__all__ = ["BatchStream"]


class BatchStream(ClosesItself):
    """Batches of one schema, single use; whoever takes the last one, or stops taking them, closes it."""

    schema: pa.Schema
    _closed = False

    @abstractmethod
    def _next(self) -> pa.RecordBatch | None:
        """Return the next batch, None at the end."""

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

    def __del__(self) -> None:
        self.close()

    def _batches(self) -> Generator[pa.RecordBatch]:
        try:
            while (batch := self._next()) is not None:
                yield batch
        finally:
            self.close()
