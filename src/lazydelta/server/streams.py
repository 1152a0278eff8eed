"""``ServedStream``: a result on its way to a client, produced by a separate thread.

A gRPC thread must never wait for a store, because a disconnected client is only noticed by polling. So the scan runs in
a separate thread, a few batches ahead. The gRPC thread waits for the next batch and checks fifty times a second whether
the client is connected, its time limit has passed, or the server shuts down.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.flight as fl

from lazydelta.client.wire import ScanCommand, error_in_json
from lazydelta.errors import (
    AccessDeniedError,
    DeadlineError,
    KqlError,
    LazyDeltaError,
    OptionError,
    PositionLostError,
    QueryError,
    ServeError,
    ServerBusyError,
    StreamClosedError,
    TicketError,
    UnauthenticatedError,
)
from lazydelta.log.file_batch import FileBatch
from lazydelta.predicates import Predicate, conjunction, parse_predicate
from lazydelta.rows.request import RowRequest
from lazydelta.rows.scanner import RowScanner
from lazydelta.runtime.threads import start_thread
from lazydelta.scan.file import to_record_batch
from lazydelta.scan.request import last_window, time_column, timestamp_of
from lazydelta.scan.scanner import LazyDeltaScanner
from lazydelta.server.ticket import FileSequence, Position, Ticket, in_part, key_of
from lazydelta.sidecar.handle import snapshot_of
from lazydelta.table.delta_table import DeltaTable

__all__ = [
    "Answer",
    "InvalidStatement",
    "Outcome",
    "Refusal",
    "RowsAnswer",
    "Sent",
    "ServedStream",
    "answer_to",
    "predicate_of",
    "refusal",
    "statement_refusal",
    "told",
]


_log = logging.getLogger(__name__)


# From a ticket to its batches of files or rows, each with the position after it.


_CHECKPOINT = 3
_TRIPLE = 3
_ROWS_A_BATCH = 65536


def predicate_of(table: DeltaTable, command: ScanCommand) -> Predicate | None:
    """Bind the predicates of a command to the table. ``at`` is the timestamp that ``now()`` stands for."""
    snapshot = snapshot_of(table)
    where: Any = command.where if command.filters is None else _tuples(command.filters)
    ends = command.now is not None
    timestamp = timestamp_of(command.now) if ends else command.at
    trust = snapshot.options.float_max == "trust"
    predicate = parse_predicate(where, snapshot.schema, now=timestamp, trust_float_max=trust)
    if command.last is None:
        return predicate
    column = time_column(snapshot.metadata, snapshot.schema)
    window = last_window(column, command.last, timestamp, ends=ends)
    return window if predicate is None else conjunction([predicate, window])


def answer_to(table: DeltaTable, ticket: Ticket, memory: int) -> Answer:
    """Return the scan of a ticket. Nothing is read yet, but an invalid request raises here."""
    if ticket.command.of == "rows":
        return RowsAnswer(table, ticket, memory)
    return FilesAnswer(table, ticket, memory)


class Answer(ABC):
    """A stream of batches with positions. One thread produces it, and any thread can stop it."""

    schema: pa.Schema
    again = "resume with the last ticket"
    """Advice for a client whose stream was ended early."""

    @abstractmethod
    def batches(self) -> Generator[tuple[pa.RecordBatch, Position | None]]:
        """Yield the batches, each with the position after it. The position is None for a statement."""

    @abstractmethod
    def stop(self) -> None:
        """Start no further request. The thread that produces the batches reaches the end of the stream."""

    def give_way(self, is_wanted: Callable[[], bool]) -> None:
        """Release resources for waiting requests until ``is_wanted``. Called by the producing thread."""
        if not is_wanted():
            raise ServerBusyError("The client read nothing while others waited", hint=self.again)

    @abstractmethod
    def explain(self) -> dict[str, Any]:
        """Return the plan and its cost so far."""


class FilesAnswer(Answer):
    """The files of a scan."""

    def __init__(self, table: DeltaTable, ticket: Ticket, memory: int) -> None:
        command = ticket.command
        self._ticket = ticket
        self._stream = table.files(
            predicate_of(table, command),
            limit=command.limit,
            row_limit=command.row_limit,
            strategy=command.strategy if ticket.position is None else ticket.position.strategy,
            stats_columns=command.stats_columns,
            batch_size=command.batch_size,
            options=_options(ticket, memory),
            strict=command.strict,
        )
        snapshot = snapshot_of(table)
        names = command.stats_columns
        reported = None if names is None else tuple(snapshot.schema.column(name) for name in names)
        self.schema = to_record_batch(FileBatch.from_adds([]), snapshot.schema, reported).schema

    def batches(self) -> Generator[tuple[pa.RecordBatch, Position]]:
        """Yield the files of the ticket that are not delivered yet."""
        part, metrics = self._ticket.part, self._stream.metrics
        delivered = _Delivered(self._ticket.position)
        try:
            for found in self._stream.batches():
                mine = found if part is None else found.filter(in_part(found.column("path"), part))
                batch = mine.slice(delivered.leading(mine.column("path"), mine.column("deletion_vector")))
                if not batch.num_rows:
                    continue
                delivered.sequence.add(batch.column("path"), batch.column("deletion_vector"))
                sidecar = metrics.tier != _CHECKPOINT
                yield (
                    batch,
                    Position(delivered.sequence.count, delivered.sequence.digest(), metrics.strategy, sidecar),
                )
            delivered.check_all_found()
        finally:
            self._stream.close()

    def stop(self) -> None:
        """Stop the scan. See ``Answer``."""
        self._stream.stop()

    def explain(self) -> dict[str, Any]:
        """Return the plan. See ``Answer``."""
        return self._stream.explain().as_dict()


class RowsAnswer(Answer):
    """The rows of a scan, file by file."""

    def __init__(self, table: DeltaTable, ticket: Ticket, memory: int) -> None:
        command, position = ticket.command, ticket.position
        snapshot = snapshot_of(table).with_options(_options(ticket, memory))
        limit = command.limit
        if limit is not None and position is not None:
            # The rows of the current file are read again and skipped here.
            limit = max(0, limit - position.all_rows) + position.rows
        request = RowRequest.of(
            snapshot.schema,
            columns=command.columns,
            where=predicate_of(table, command),
            limit=limit,
            strategy=command.strategy if position is None else position.strategy,
            batch_size=_ROWS_A_BATCH if command.batch_size is None else command.batch_size,
        )
        self.schema = request.schema
        self._ticket = ticket
        self._delivered = _Delivered(position)
        self._pending: deque[tuple[str, dict[str, object] | None]] = deque()
        self._limit = limit
        self._found = "auto", True
        self._stream = RowScanner(snapshot, request).stream(self._choose)

    def batches(self) -> Generator[tuple[pa.RecordBatch, Position]]:
        """Yield the rows of the ticket that are not delivered yet."""
        start = self._ticket.position
        skip, all_rows = (0, 0) if start is None else (start.rows, start.all_rows)
        read, rows, done, sequence, is_first = 0, 0, 0, self._delivered.sequence, True
        try:
            for batch in self._stream:
                while done < self._stream.files_taken:
                    if skip:
                        raise _lost("its file has fewer rows")
                    sequence.add_one(*self._pending.popleft())
                    done, rows = done + 1, 0
                key = key_of(*self._pending[0])
                if skip and start is not None and start.current != key:
                    raise _lost("another file follows")
                left = batch.slice(min(skip, batch.num_rows))
                read += batch.num_rows
                rows += batch.num_rows
                skip -= batch.num_rows - left.num_rows
                if not left.num_rows:
                    continue
                all_rows += left.num_rows
                strategy, sidecar = self._found
                yield left, Position(sequence.count, sequence.digest(), strategy, sidecar, rows, key, all_rows)
                if is_first:
                    # The client came back for a second batch, so it will probably read more than a few files.
                    is_first = False
                    self._stream.hurry()
            if self._limit is None or read < self._limit:
                self._delivered.check_all_found()
        finally:
            self._stream.close()

    def stop(self) -> None:
        """Stop the scan. See ``Answer``."""
        self._stream.stop()

    def explain(self) -> dict[str, Any]:
        """Return the plan. See ``Answer``."""
        return self._stream.explain()

    def _choose(self, scanner: LazyDeltaScanner, found: FileBatch) -> FileBatch:
        """Keep the files that are not delivered yet. Called in a scan thread, in file order."""
        self._found = scanner.metrics.strategy, scanner.metrics.tier != _CHECKPOINT
        part = self._ticket.part
        mine = found if part is None else found.filter(in_part(found.path, part))
        batch = mine.slice(self._delivered.leading(mine.path, mine.deletion_vector))
        vectors = [None] * len(batch) if batch.deletion_vector is None else batch.deletion_vector.to_pylist()
        self._pending.extend(zip(batch.path.to_pylist(), vectors, strict=True))
        return batch


class _Delivered:
    """The files that a client already has, recognised by their number and digest when they are listed again."""

    def __init__(self, position: Position | None) -> None:
        self.sequence = FileSequence()
        self._position = position
        self._left = 0 if position is None else position.files

    def leading(self, path: pa.Array, vectors: pa.Array | None) -> int:
        """Return how many of the next files the client already has, and count them as delivered."""
        number = min(self._left, len(path))
        if not number:
            return 0
        self.sequence.add(path.slice(0, number), None if vectors is None else vectors.slice(0, number))
        self._left -= number
        if not self._left and self._position is not None and self.sequence.digest() != self._position.digest:
            raise _lost("other files come first")
        return number

    def check_all_found(self) -> None:
        """Raise ``PositionLostError`` if the stream ends before the position."""
        if self._left:
            raise _lost("there are fewer files")


def _lost(why: str) -> PositionLostError:
    message = f"The ticket's position in the stream no longer exists: the order of files has changed, {why}"
    hint = "request a new ticket at the same version, and skip the files that you have"
    return PositionLostError(message, hint=hint)


def _options(ticket: Ticket, memory: int) -> dict[str, Any]:
    # A footer that lies about its pages must not take the memory of other clients.
    options: dict[str, Any] = {"memory_budget": memory, "page_sizes": "pages"}
    if ticket.position is not None and not ticket.position.sidecar:
        # A sidecar that was built meanwhile would change the order.
        options["delta.sidecar.enabled"] = False
    return options


def _tuples(filters: list[Any]) -> list[Any]:
    """Convert predicates from JSON lists back to tuples."""
    if all(isinstance(each, list) and each and isinstance(each[0], list) for each in filters):
        return [_tuples(each) for each in filters]
    if not all(isinstance(each, list) and len(each) == _TRIPLE for each in filters):
        raise OptionError("filters are not conditions", hint='write [["column", ">=", 1]], or lists of such lists')
    return [tuple(each) for each in filters]


_LOOK_AROUND_SECONDS = 0.02
_BATCHES_AHEAD = 2


class Outcome:
    """The result of a stream, reported once its scan has ended and its client has received all or disconnected."""

    def __init__(self, report: Callable[[Outcome], None]) -> None:
        self.rows = 0
        self.size = 0
        self.how = "done"
        self.error: BaseException | None = None
        self._report = report
        self._awaited = {"scan", "client"}
        self._lock = threading.Lock()

    def sent(self, batch: pa.RecordBatch) -> None:
        """Count a batch that was handed to gRPC."""
        self.rows += batch.num_rows
        self.size += batch.nbytes

    def ended(self, side: str, how: str | None = None, error: BaseException | None = None) -> None:
        """Record that the scan or the client has finished. The first reason given counts."""
        with self._lock:
            if how is not None and self.how == "done":
                self.how, self.error = how, error
            if side not in self._awaited:
                return
            self._awaited.discard(side)
            is_over = not self._awaited
        if is_over:
            self._report(self)


class _Making:
    """The state shared by the producing and the sending thread. It holds no reference to the stream."""

    def __init__(
        self,
        answer: Answer,
        outcome: Outcome,
        freed: Callable[[], None],
        others_wait: Callable[[], bool],
        patience: float | None,
    ) -> None:
        self.answer = answer
        self.outcome = outcome
        self.ready: deque[tuple[pa.RecordBatch, Position | None]] = deque()
        self.changed = threading.Condition()
        self.asked = 0
        self.is_done = False
        self.is_closed = False
        self.error: BaseException | None = None
        self._freed = freed
        self._others_wait = others_wait
        self._patience = patience

    def run(self) -> None:
        batches = self.answer.batches()
        error: BaseException | None = None
        try:
            for item in batches:
                with self.changed:
                    self.ready.append(item)
                    self.changed.notify_all()
                self._wait_for_client()
                if self.is_closed:
                    break
        except BaseException as raised:  # noqa: BLE001 - passed on to the sending thread
            error = raised
        finally:
            try:
                batches.close()
            finally:
                with self.changed:
                    self.is_done, self.error = True, error
                    self.changed.notify_all()
                self.end(error)

    def _wait_for_client(self) -> None:
        """Wait until the next batch is wanted.

        A client that reads nothing for a while gives way to waiting requests.
        """
        while True:
            with self.changed:
                if self.changed.wait_for(self._is_wanted, self._patience):
                    return
            if self._others_wait():
                self.answer.give_way(self._is_wanted)

    def _is_wanted(self) -> bool:
        return self.is_closed or self._may_go_on()

    def _may_go_on(self) -> bool:
        # Send the first batch before producing the second: both need the GIL, and the client is waiting.
        return len(self.ready) < _BATCHES_AHEAD and self.asked > 1

    def end(self, error: BaseException | None = None) -> None:
        """Release the resources of the scan."""
        self._freed()
        self.outcome.ended("scan", None if error is None else "failed", error)


class Sent:
    """The sequence that gRPC sends: batches converted by ``made``, and errors converted to Flight errors."""

    def __init__(
        self,
        stream: ServedStream,
        refused: Callable[[BaseException], Exception],
        made: Callable[[tuple[pa.RecordBatch, Position | None]], Any],
    ) -> None:
        self._stream = stream
        self._refused = refused
        self._made = made

    def __iter__(self) -> Sent:
        return self

    def __next__(self) -> Any:
        try:
            return self._made(next(self._stream))
        except StopIteration:
            raise
        except BaseException as error:  # noqa: BLE001 - no other exception may reach the client, see refusals
            raise self._refused(error) from None


_dropped: SimpleQueue[ServedStream] = SimpleQueue()
"""Streams that were garbage collected before they were closed. ``put`` may be interrupted by another ``put``."""


@cache
def _close_dropped_streams() -> None:
    """Start the thread that closes dropped streams, once in a process."""

    def close_them() -> None:
        while True:
            try:
                _dropped.get().close("dropped")
            except Exception:  # noqa: BLE001 - the next stream must be closed all the same
                _log.exception("a dropped stream could not be closed")

    start_thread(close_them, "lazydelta-dropped-streams")


class ServedStream:
    """An iterator of batches, each with the position after it, that ends when its client disconnects.

    ``cancelled`` returns whether the client has disconnected. ``freed`` is called once, when the scan has ended and its
    memory is free. ``report`` is called once, when in addition the client has received everything or disconnected.
    Dropping the stream closes it. If ``others_wait``, a client that reads nothing for ``patience`` seconds gives way.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        cancelled: Callable[[], bool],
        freed: Callable[[], None],
        report: Callable[[Outcome], None],
        seconds: float | None = None,
        others_wait: Callable[[], bool] = lambda: False,
        patience: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _close_dropped_streams()
        self.outcome = Outcome(report)
        self.handle: bytes | None = None
        """The handle in a statement's ticket."""
        self._making = _Making(answer, self.outcome, freed, others_wait, patience)
        self._cancelled = cancelled
        self._clock = clock
        self._seconds = seconds
        self._until = None if seconds is None else clock() + seconds
        self._thread: threading.Thread | None = None
        # The error is created when it is raised. A stored error would hold its frames, and they hold the stream.
        self._why: Callable[[], LazyDeltaError] | None = None

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, Position | None]]:
        return self

    def __next__(self) -> tuple[pa.RecordBatch, Position | None]:
        if self._thread is None:
            self._thread = start_thread(self._making.run, "lazydelta-serve-stream")
        making = self._making
        with making.changed:
            making.asked += 1
            making.changed.notify_all()
            # The client may have disconnected even if its next batch is ready.
            self._look_around()
            while not making.ready and not making.is_done:
                making.changed.wait(_LOOK_AROUND_SECONDS)
                self._look_around()
            if making.ready:
                batch, position = making.ready.popleft()
                making.changed.notify_all()
                self.outcome.sent(batch)
                return batch, position
        self.outcome.ended("client")
        if making.error is not None:
            raise making.error
        raise StopIteration

    @property
    def is_running(self) -> bool:
        """Whether the scan is still running."""
        return not self._making.is_done

    def end_now(self) -> None:
        """End the scan because the server shuts down. The client gets the error after the data in flight."""
        hint = f"{self._making.answer.again}, on this server or another"
        self._end("drained", lambda: ServerBusyError("The server is about to end", hint=hint))

    def cancel(self) -> None:
        """End the scan because its client cancelled it in another call."""
        self._end("cancelled", lambda: StreamClosedError("The statement was cancelled", hint="run it again"))

    def close(self, how: str = "closed") -> None:
        """End the scan without waiting. No further request starts."""
        making = self._making
        with making.changed:
            if making.is_closed:
                return
            making.is_closed = True
            is_cut = not making.is_done or bool(making.ready)
            self._why = self._why or (lambda: StreamClosedError("The stream was closed"))
            making.ready.clear()
            making.changed.notify_all()
        if not making.is_done:
            making.answer.stop()
        self.outcome.ended("client", how if is_cut else None)
        if self._thread is None:
            making.is_done = True
            making.end()

    def __del__(self) -> None:
        # Garbage collection runs in any thread, between any two of its instructions, whatever locks it holds. Closing
        # takes locks and waits for a worker process, so another thread does it.
        if not self._making.is_closed:
            _dropped.put(self)

    def _look_around(self) -> None:
        if self._why is None and self._cancelled():
            self._end("cancelled", lambda: StreamClosedError("The client has left"))
        if self._why is None and self._until is not None and self._clock() > self._until:
            message = f"The stream was not at its end after {self._seconds} s"
            hint = f"{self._making.answer.again} with more time, or request less"
            self._end("deadline", lambda: DeadlineError(message, hint=hint))
        if self._why is not None:
            # A silent end would look like the end of the data.
            raise self._why()

    def _end(self, how: str, why: Callable[[], LazyDeltaError]) -> None:
        with self._making.changed:  # the same thread may acquire it twice
            if self._making.is_done and not self._making.ready:
                return
            self._why = self._why or why
        self.close(how)


# Flight errors: a class that gRPC knows, the message, and the original class and hint as JSON.


Refusal: TypeAlias = "Callable[[BaseException], Exception]"
"""Converts an exception into a Flight error."""

logger = logging.getLogger(__name__)

_KINDS: tuple[tuple[type[LazyDeltaError], type], ...] = (
    (UnauthenticatedError, fl.FlightUnauthenticatedError),
    (TicketError, fl.FlightUnauthorizedError),
    (AccessDeniedError, fl.FlightServerError),
    (ServerBusyError, fl.FlightUnavailableError),
    (DeadlineError, fl.FlightTimedOutError),
    (StreamClosedError, fl.FlightCancelledError),
)
_LONGEST = 2000


class InvalidStatement(pa.ArrowInvalid):  # type: ignore[misc]
    """An invalid statement: gRPC's INVALID_ARGUMENT, which no Flight error maps to.

    PyArrow appends the formatted traceback of such an error, with local paths, unless formatting it fails. In that case
    it appends the name of the class.
    """

    @property
    def __cause__(self) -> BaseException | None:
        raise AttributeError(name="__cause__", obj=self)


def statement_refusal(refused: Refusal, error: BaseException) -> Exception:
    """Return the error for a client of Flight SQL, with the SQLSTATE of an error that the client caused."""
    told = refused(error)
    if not isinstance(error, QueryError | KqlError):
        return told
    return InvalidStatement(f"{told} [SQLSTATE 42000]")


def refusal(error: BaseException, cleaned: Callable[[str], str] = str) -> Exception:
    """Return the error for a client. ``cleaned`` removes from a message what clients may not see."""
    refused: Exception
    if isinstance(error, fl.FlightError | InvalidStatement) and isinstance(error, Exception):
        return error
    if not isinstance(error, LazyDeltaError):
        logger.error("an internal error while serving", exc_info=error)
        told = ServeError("The server failed for a reason of its own", hint="see the server's log")
        refused = fl.FlightInternalError(str(told), error_in_json(told, str(told.args[0])))
        return refused
    message = cleaned(str(error.args[0]))
    message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
    kind = next((flight for ours, flight in _KINDS if isinstance(error, ours)), fl.FlightServerError)
    words = f"{message} ({error.hint})" if error.hint else message
    refused = kind(words, error_in_json(error, message))
    return refused


@contextmanager
def told(refused: Refusal) -> Iterator[None]:
    """Convert exceptions raised in the block into Flight errors."""
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - no exception may pass unconverted
        raise refused(error) from None
