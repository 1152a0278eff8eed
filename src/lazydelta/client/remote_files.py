"""``RemoteFileStream``: files that a server finds, with the API of ``FileStream``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, NoReturn

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import numpy_of
from lazydelta.client.resuming import ResumedStream
from lazydelta.errors import StreamClosedError, UnsupportedOperationError
from lazydelta.execution import ClosesItself
from lazydelta.log.file_batch import FileBatch
from lazydelta.scan.data_file import DataFile, data_files
from lazydelta.types.schema import TableSchema

__all__ = ["RemoteFileStream"]


class RemoteFileStream(ClosesItself):
    """The files of a scan that a server runs, single use; closing or dropping it ends the scan there.

    A file's ``path`` is as logged, ``uri`` is not told by servers; of its statistics it has those that were asked for.
    """

    def __init__(self, begin: Callable[[], ResumedStream], explain: Callable[[], dict[str, Any]]) -> None:
        self._begin = begin
        self._explain = explain
        self._stream: ResumedStream | None = None
        self._batches: Generator[pa.RecordBatch] | None = None
        self._objects: Iterator[DataFile] = iter(())
        self._closed = False

    @property
    def resumed(self) -> int:
        """How often the stream went on after a broken connection, or was begun again."""
        return 0 if self._stream is None else self._stream.resumed + self._stream.begun_again

    def explain(self) -> dict[str, Any]:
        """Return how the server would run this scan, which it does for it."""
        return self._explain()

    def __iter__(self) -> Iterator[DataFile]:
        self._start()
        return self

    def __next__(self) -> DataFile:
        while (file := next(self._objects, None)) is None:
            batch = self._next_batch()
            if batch is None:
                raise StopIteration
            self._objects = _objects(batch)
        return file

    def __aiter__(self) -> AsyncIterator[DataFile]:
        self._start()
        return self

    async def __anext__(self) -> DataFile:
        import asyncio  # noqa: PLC0415 - whoever awaits has it; others are spared it

        while (file := next(self._objects, None)) is None:
            try:
                batch = await asyncio.to_thread(self._next_batch)
            except asyncio.CancelledError:
                self.close()
                raise
            if batch is None:
                raise StopAsyncIteration
            self._objects = _objects(batch)
        return file

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the files as Arrow record batches: no Python object per file."""
        self._start()
        return self._all()

    def collect(self) -> list[DataFile]:
        """Return all files as a list."""
        return list(self)

    def close(self) -> None:
        """End the scan, here and at the server; harmless when it has ended."""
        self._closed = True
        self._objects = iter(())
        if self._stream is not None:
            self._stream.close()

    def __del__(self) -> None:
        self.close()

    def _start(self) -> None:
        if self._closed or self._batches is not None:
            raise StreamClosedError("This stream of files was already used", hint="call files() again for another scan")
        self._stream = self._begin()
        self._batches = self._stream.batches()

    def _all(self) -> Generator[pa.RecordBatch]:
        try:
            while (batch := self._next_batch()) is not None:
                yield batch
        finally:
            self.close()

    def _next_batch(self) -> pa.RecordBatch | None:
        if self._batches is None:
            if self._closed:
                return None
            self._start()
        batch = None if self._batches is None else next(self._batches, None)
        if batch is None:
            self.close()
        return batch


class _NoStore:
    """Where the files of a remote table are is the server's business."""

    @staticmethod
    def uri_of(path: str) -> NoReturn:
        message = f"Where {path} is stored is not told by servers"
        raise UnsupportedOperationError(message, path=path, hint="ask for its rows, or open the table yourself")


_SCHEMA = TableSchema((), ())  # partition values arrive under logical names


def _objects(batch: pa.RecordBatch) -> Iterator[DataFile]:
    stats = pa.StructArray.from_arrays([batch.column("num_records")], names=["numRecords"])
    vectors = batch.column("deletion_vector")
    files = FileBatch(
        path=batch.column("path"),
        size=batch.column("size"),
        modification_time=batch.column("modification_time"),
        partition_values=batch.column("partition_values"),
        deletion_vector=None if vectors.null_count == len(vectors) else vectors,
        parsed_stats=stats,
        versions=batch.column("version"),
        tier=int(numpy_of(pc.cast(batch.column("tier"), pa.int64()))[0]) if batch.num_rows else 0,
    )
    return data_files(files, _NoStore(), _SCHEMA)  # type: ignore[arg-type]
