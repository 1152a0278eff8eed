"""``RemoteRowStream``: rows that a server reads, with the API of ``RowStream``."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pyarrow as pa

from lazydelta.client.resuming import ResumedStream
from lazydelta.row_scan.batch_stream import BatchStream

__all__ = ["RemoteRowStream"]


class RemoteRowStream(BatchStream):
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

    def close(self) -> None:
        """End the scan, here and at the server; harmless when it has ended."""
        self._closed = True
        if self._stream is not None:
            self._stream.close()

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
