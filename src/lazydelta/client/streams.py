"""Streams that resume after a broken connection and deliver each batch exactly once.

The server sends with every batch the ticket that resumes after it. After a break the client sends that ticket. The
server continues there, or reports that the position is lost. In that case the client requests the whole stream again at
the same version and skips what was delivered. It therefore keeps the keys of delivered files: sixteen bytes per file,
on disk once there are many.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from lazydelta.client.connection import Connection, is_passing, our_error
from lazydelta.errors import (
    LazyDeltaError,
    PositionLostError,
    ServerUnreachableError,
    StorageError,
    StorageTimeoutError,
    StreamClosedError,
    TicketError,
    UnsupportedOperationError,
)
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.keys import RemoveSet, hash_keys
from lazydelta.protocol.schema import TableSchema
from lazydelta.rows.stream import BatchStream
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import boolean_array, numpy_of
from lazydelta.scan.file import DataFile, data_files
from lazydelta.scan.stream import FileResults

__all__ = ["DeliveredFiles", "DeliveredRows", "RemoteFileStream", "RemoteRowStream", "ResumedStream"]


# Exact classes only: a missing object, or one without access, would fail again.
_STORE_FAILS = (StorageError, StorageTimeoutError)
_STORE_ATTEMPTS = 3
_IN_MEMORY = 1 << 20
_KEYS_AT_ONCE = 1 << 16
_KEY_BYTES = 16
_KEY_MEMORY = 64 << 20


class _Delivered(ABC):
    """A record of what was delivered, for when the stream starts over."""

    @abstractmethod
    def rest(self, batch: pa.RecordBatch, ticket: bytes) -> pa.RecordBatch:
        """Return the part of a batch that is new, and record it."""

    @abstractmethod
    def begin_again(self) -> None:
        """Skip from now on what was delivered so far."""

    @abstractmethod
    def close(self) -> None:
        """Release resources."""


class DeliveredFiles(_Delivered):
    """The keys of delivered files, written as they arrive and only looked up after the position was lost."""

    def __init__(self) -> None:
        self._file: tempfile.SpooledTemporaryFile[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        self._known: RemoveSet | None = None

    def rest(self, batch: pa.RecordBatch, ticket: bytes) -> pa.RecordBatch:  # noqa: ARG002 - the keys are in the batch
        """Return the new files. See ``_Delivered``."""
        hashes = hash_keys(batch.column("path"), batch.column("deletion_vector"))
        if self._known is not None and (gone := self._known.contains(hashes)).any():
            batch, hashes = batch.filter(boolean_array(~gone)), hashes[:, ~gone]
        self._file.write(np.ascontiguousarray(hashes.T).tobytes())
        return batch

    def begin_again(self) -> None:
        """Start to skip delivered files. See ``_Delivered``."""
        if self._known is None:
            self._known = RemoveSet(_KEY_MEMORY)
        self._file.seek(0)
        while data := self._file.read(_KEYS_AT_ONCE * _KEY_BYTES):
            self._known.add_hashes(np.ascontiguousarray(np.frombuffer(data, np.uint64).reshape(-1, 2).T))
        self._file.close()
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed with the stream

    def close(self) -> None:
        """Close the files. See ``_Delivered``."""
        self._file.close()
        if self._known is not None:
            self._known.close()


class DeliveredRows(_Delivered):
    """The number of rows delivered per file. The ticket after a batch identifies its file."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}
        self._again = False

    def rest(self, batch: pa.RecordBatch, ticket: bytes) -> pa.RecordBatch:
        """Return the new rows. See ``_Delivered``."""
        position = msgspec.json.decode(ticket, type=_Signed).ticket.position
        key, end = bytes.fromhex(position.current), position.rows
        if self._again:
            have = self._rows.get(key, 0)
            batch = batch.slice(min(batch.num_rows, max(0, have - (end - batch.num_rows))))
        self._rows[key] = max(end, self._rows.get(key, 0))
        return batch

    def begin_again(self) -> None:
        """Start to skip delivered rows. See ``_Delivered``."""
        self._again = True

    def close(self) -> None:
        """Forget the rows. See ``_Delivered``."""
        self._rows = {}


class _Position(msgspec.Struct):
    rows: int
    current: str


class _Ticket(msgspec.Struct):
    position: _Position


class _Signed(msgspec.Struct):
    ticket: _Ticket


class ResumedStream:
    """The batches of one ticket. ``plan_again`` repeats the request and returns its new ticket."""

    def __init__(
        self,
        connection: Connection,
        ticket: bytes,
        delivered: _Delivered,
        plan_again: Callable[[], bytes],
        *,
        limit: int | None = None,
    ) -> None:
        self._connection = connection
        self._ticket = ticket
        self._delivered = delivered
        self._plan_again = plan_again
        self._left = limit
        self._reader: Any = None
        self._closed = False
        self.resumed = 0
        self.begun_again = 0

    def batches(self) -> Generator[pa.RecordBatch]:
        """Yield every batch once. Raise an error that no retry can fix."""
        failed = 0
        try:
            while not self._closed and self._left != 0:
                try:
                    chunk = self._next_chunk()
                except LazyDeltaError as error:
                    failed += 1
                    self._recover(error, failed)
                    continue
                if chunk is None:
                    return
                failed = 0
                ticket = chunk.app_metadata.to_pybytes()
                batch = self._delivered.rest(chunk.data, ticket)
                self._ticket = ticket
                if self._left is not None:
                    # After a restart, the server counts from the beginning.
                    batch = batch.slice(0, self._left)
                    self._left -= batch.num_rows
                if batch.num_rows:
                    yield batch
        finally:
            self.close()
            self._delivered.close()

    def close(self) -> None:
        """End the stream. The server notices at once."""
        self._closed = True
        self._drop()

    def _next_chunk(self) -> Any:
        try:
            if self._reader is None:
                self._reader = self._connection.begin(self._ticket)
            return self._reader.read_chunk()
        except StopIteration:
            return None
        except (fl.FlightError, pa.ArrowException, OSError) as error:
            raise our_error(error, self._connection.location) from None

    def _recover(self, error: LazyDeltaError, failed: int) -> None:
        """Prepare the next attempt, or raise."""
        self._drop()
        if self._closed:
            return
        lost = isinstance(error, PositionLostError | TicketError)
        # The server has already retried before it reported that its store does not respond.
        of_store = type(error) in _STORE_FAILS
        attempts = min(self._connection.attempts, _STORE_ATTEMPTS) if of_store else self._connection.attempts
        if not (lost or of_store or is_passing(error)) or failed >= attempts:
            if isinstance(error, ServerUnreachableError) and failed > 1:
                message = f"{error.args[0]}, after {failed} attempts"
                raise ServerUnreachableError(message, hint=error.hint) from None
            raise error
        if lost:
            # The ticket belongs to a server that has ended, or the order of the files has changed.
            self._delivered.begin_again()
            self._ticket = self._plan_again()
            self.begun_again += 1
            return
        self._connection.pause(failed)
        self.resumed += 1

    def _drop(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()


# ``RemoteFileStream``: files found by a server, with the API of ``FileStream``.


class RemoteFileStream(FileResults):
    """The files of a scan on a server. It can be consumed once, and closing or dropping it ends the scan.

    A file's ``path`` is as logged. Servers do not reveal its ``uri``. It has only the statistics that were requested.
    """

    def __init__(
        self, schema: pa.Schema, begin: Callable[[], ResumedStream], explain: Callable[[], dict[str, Any]]
    ) -> None:
        self.schema: pa.Schema = schema
        self._begin = begin
        self._explain = explain
        self._stream: ResumedStream | None = None
        self._batches: Generator[pa.RecordBatch] | None = None
        self._objects: Iterator[DataFile] = iter(())
        self._closed = False

    @property
    def resumed(self) -> int:
        """The number of times the stream resumed or started over."""
        return 0 if self._stream is None else self._stream.resumed + self._stream.begun_again

    def explain(self) -> dict[str, Any]:
        """Return how the server would run this scan. The server runs it to find out."""
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
        import asyncio  # noqa: PLC0415 - already loaded by async callers, and not needed by others

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
        """Return the files as Arrow record batches, without a Python object per file."""
        self._start()
        return self._all()

    def close(self) -> None:
        """End the scan on the client and the server. It has no effect once the scan has ended."""
        self._closed = True
        self._objects = iter(())
        if self._stream is not None:
            self._stream.close()

    def __del__(self) -> None:
        self.close()

    def _start(self) -> None:
        if self._closed or self._batches is not None:
            raise StreamClosedError(
                "This stream of files was already used", hint="call files() again to start another scan"
            )
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
    """A placeholder store: the server does not reveal where the files are."""

    @staticmethod
    def uri_of(path: str) -> NoReturn:
        message = f"Servers do not reveal where {path} is stored"
        raise UnsupportedOperationError(
            message, path=path, hint="read its rows through the server, or open the table directly"
        )


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


# ``RemoteRowStream``: rows read by a server, with the API of ``RowStream``.


class RemoteRowStream(BatchStream):
    """The rows of a scan on a server, batch by batch.

    It can be consumed once, and closing or dropping it ends the scan.
    """

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
        """The number of times the stream resumed or started over."""
        return 0 if self._stream is None else self._stream.resumed + self._stream.begun_again

    def explain(self) -> dict[str, Any]:
        """Return how the server would run this scan. The server runs it to find out."""
        return self._explain()

    def close(self) -> None:
        """End the scan on the client and the server. It has no effect once the scan has ended."""
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
