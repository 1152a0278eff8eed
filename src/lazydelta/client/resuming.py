"""A stream that goes on after its connection broke: each batch once, none left out.

With every batch the server sends the ticket for what follows it. After a break that ticket is handed in. The server
answers with what follows, or, where it can no longer tell, that the place is lost: then the whole is asked for again,
at the same version, and what was delivered is left out here. So the keys of what was delivered are kept: sixteen bytes
a file, on disk once they are many.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from lazydelta.arrays import boolean_array
from lazydelta.client.connection import Connection, is_passing, our_error
from lazydelta.errors import (
    LazyDeltaError,
    PositionLostError,
    ServerUnreachableError,
    StorageError,
    StorageTimeoutError,
    TicketError,
)
from lazydelta.log.keys import hash_keys
from lazydelta.log.remove_set import RemoveSet

__all__ = ["DeliveredFiles", "DeliveredRows", "ResumedStream"]

# No more particular ones: an object that is not there, or that may not be read, will be so the next time.
_STORE_FAILS = (StorageError, StorageTimeoutError)
_STORE_ATTEMPTS = 3
_IN_MEMORY = 1 << 20
_KEYS_AT_ONCE = 1 << 16
_KEY_BYTES = 16
_KEY_MEMORY = 64 << 20


class _Delivered(ABC):
    """What was delivered, for when everything comes again."""

    @abstractmethod
    def rest(self, batch: pa.RecordBatch, ticket: bytes) -> pa.RecordBatch:
        """Return what of a batch is new, and take note of it."""

    @abstractmethod
    def begin_again(self) -> None:
        """Leave out, from now on, what was delivered so far."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it takes."""


class DeliveredFiles(_Delivered):
    """The keys of files, written down as they come and looked up only after the place was lost."""

    def __init__(self) -> None:
        self._file: tempfile.SpooledTemporaryFile[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        self._known: RemoveSet | None = None

    def rest(self, batch: pa.RecordBatch, ticket: bytes) -> pa.RecordBatch:  # noqa: ARG002 - the keys are in the batch
        """See above."""
        hashes = hash_keys(batch.column("path"), batch.column("deletion_vector"))
        if self._known is not None and (gone := self._known.contains(hashes)).any():
            batch, hashes = batch.filter(boolean_array(~gone)), hashes[:, ~gone]
        self._file.write(np.ascontiguousarray(hashes.T).tobytes())
        return batch

    def begin_again(self) -> None:
        """See above."""
        if self._known is None:
            self._known = RemoveSet(_KEY_MEMORY)
        self._file.seek(0)
        while data := self._file.read(_KEYS_AT_ONCE * _KEY_BYTES):
            self._known.add_hashes(np.ascontiguousarray(np.frombuffer(data, np.uint64).reshape(-1, 2).T))
        self._file.close()
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed with the stream

    def close(self) -> None:
        """See above."""
        self._file.close()
        if self._known is not None:
            self._known.close()


class DeliveredRows(_Delivered):
    """How many rows of which file were delivered; the ticket behind a batch says which file it is of."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}
        self._again = False

    def rest(self, batch: pa.RecordBatch, ticket: bytes) -> pa.RecordBatch:
        """See above."""
        position = msgspec.json.decode(ticket, type=_Signed).ticket.position
        key, end = bytes.fromhex(position.current), position.rows
        if self._again:
            have = self._rows.get(key, 0)
            batch = batch.slice(min(batch.num_rows, max(0, have - (end - batch.num_rows))))
        self._rows[key] = max(end, self._rows.get(key, 0))
        return batch

    def begin_again(self) -> None:
        """See above."""
        self._again = True

    def close(self) -> None:
        """See above."""
        self._rows = {}


class _Position(msgspec.Struct):
    rows: int
    current: str


class _Ticket(msgspec.Struct):
    position: _Position


class _Signed(msgspec.Struct):
    ticket: _Ticket


class ResumedStream:
    """The batches of one ticket. ``plan_again`` asks for the same once more and returns its ticket."""

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
        """Yield every batch once; an error that no further attempt can mend is raised."""
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
                    # Begun again, the server counts from the beginning.
                    batch = batch.slice(0, self._left)
                    self._left -= batch.num_rows
                if batch.num_rows:
                    yield batch
        finally:
            self.close()
            self._delivered.close()

    def close(self) -> None:
        """End the stream; the server notices at once."""
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
        """Make the next attempt possible, or raise."""
        self._drop()
        if self._closed:
            return
        lost = isinstance(error, PositionLostError | TicketError)
        # The server has tried for a while before it told us that its store does not answer.
        of_store = type(error) in _STORE_FAILS
        attempts = min(self._connection.attempts, _STORE_ATTEMPTS) if of_store else self._connection.attempts
        if not (lost or of_store or is_passing(error)) or failed >= attempts:
            if isinstance(error, ServerUnreachableError) and failed > 1:
                message = f"{error.args[0]}, after {failed} attempts"
                raise ServerUnreachableError(message, hint=error.hint) from None
            raise error
        if lost:
            # The ticket is of a server that has ended since, or the order of the files has changed.
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
