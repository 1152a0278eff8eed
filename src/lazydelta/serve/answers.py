"""From a ticket to its batches: files or rows, each batch with the position behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator
from typing import Any

import pyarrow as pa

from lazydelta.delta_table import DeltaTable
from lazydelta.engines.table_source import pinned
from lazydelta.errors import OptionError, PositionLostError
from lazydelta.log.file_batch import FileBatch
from lazydelta.pruning import Predicate, conjunction, parse_predicate
from lazydelta.row_scan import RowRequest, RowScanner
from lazydelta.scan.files_schema import to_record_batch
from lazydelta.scan.scanner import LazyDeltaScanner
from lazydelta.scan.time_window import last_window, moment_of, time_column
from lazydelta.serve.parts import in_part
from lazydelta.serve.ticket import FileSequence, Position, Ticket, key_of
from lazydelta.wire import ScanCommand

__all__ = ["Answer", "FilesAnswer", "RowsAnswer", "answer_to", "predicate_of"]

_CHECKPOINT = 3
_TRIPLE = 3
_ROWS_A_BATCH = 65536


def predicate_of(table: DeltaTable, command: ScanCommand) -> Predicate | None:
    """Bind the conditions of a command to the table; ``at`` is the moment that they count from."""
    handle, snapshot = pinned(table)
    where: Any = command.where if command.filters is None else _tuples(command.filters)
    ends = command.now is not None
    moment = moment_of(command.now) if ends else command.at
    trust = handle.options.float_max == "trust"
    predicate = parse_predicate(where, snapshot.schema, now=moment, trust_float_max=trust)
    if command.last is None:
        return predicate
    column = time_column(snapshot.metadata, snapshot.schema)
    window = last_window(column, command.last, moment, ends=ends)
    return window if predicate is None else conjunction([predicate, window])


def answer_to(table: DeltaTable, ticket: Ticket, memory: int) -> Answer:
    """Return what a ticket asks for; nothing is read yet, but what makes no sense is an error here."""
    if ticket.command.of == "rows":
        return RowsAnswer(table, ticket, memory)
    return FilesAnswer(table, ticket, memory)


class Answer(ABC):
    """A stream of batches with positions, made by one thread and stopped by any."""

    schema: pa.Schema

    @abstractmethod
    def batches(self) -> Generator[tuple[pa.RecordBatch, Position]]:
        """Yield the batches, each with the position behind it."""

    @abstractmethod
    def stop(self) -> None:
        """Let no further request begin; whoever makes the batches meets the end of them."""

    @abstractmethod
    def explain(self) -> dict[str, Any]:
        """Return the plan, and what it has cost so far."""


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
        _, snapshot = pinned(table)
        names = command.stats_columns
        reported = None if names is None else tuple(snapshot.schema.column(name) for name in names)
        self.schema = to_record_batch(FileBatch.from_adds([]), snapshot.schema, reported).schema

    def batches(self) -> Generator[tuple[pa.RecordBatch, Position]]:
        """Yield the files that are left of the ticket."""
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
        """See ``Answer``."""
        self._stream.stop()

    def explain(self) -> dict[str, Any]:
        """See ``Answer``."""
        return self._stream.explain().as_dict()


class RowsAnswer(Answer):
    """The rows of a scan, file by file."""

    def __init__(self, table: DeltaTable, ticket: Ticket, memory: int) -> None:
        command, position = ticket.command, ticket.position
        handle, pinned_at = pinned(table)
        handle = handle.with_options(_options(ticket, memory))
        snapshot = handle.adopted(pinned_at)
        limit = command.limit
        if limit is not None and position is not None:
            # The rows of the file under way are read once more, and left out here.
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
        self._stream = RowScanner(handle, snapshot, request).stream(self._choose)

    def batches(self) -> Generator[tuple[pa.RecordBatch, Position]]:
        """Yield the rows that are left of the ticket."""
        start = self._ticket.position
        skip, all_rows = (0, 0) if start is None else (start.rows, start.all_rows)
        read, rows, done, sequence, is_first = 0, 0, 0, self._delivered.sequence, True
        try:
            for batch in self._stream:
                while done < self._stream.files_taken:
                    if skip:
                        raise _lost("the file in which it was has fewer rows")
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
                    # Asked for again, so the client takes what it gets: it will hardly stop after a few files.
                    is_first = False
                    self._stream.hurry()
            if self._limit is None or read < self._limit:
                self._delivered.check_all_found()
        finally:
            self._stream.close()

    def stop(self) -> None:
        """See ``Answer``."""
        self._stream.stop()

    def explain(self) -> dict[str, Any]:
        """See ``Answer``."""
        return self._stream.explain()

    def _choose(self, scanner: LazyDeltaScanner, found: FileBatch) -> FileBatch:
        """Take the files that are left; called in a thread of the scan, in the order of the files."""
        self._found = scanner.metrics.strategy, scanner.metrics.tier != _CHECKPOINT
        part = self._ticket.part
        mine = found if part is None else found.filter(in_part(found.path, part))
        batch = mine.slice(self._delivered.leading(mine.path, mine.deletion_vector))
        vectors = [None] * len(batch) if batch.deletion_vector is None else batch.deletion_vector.to_pylist()
        self._pending.extend(zip(batch.path.to_pylist(), vectors, strict=True))
        return batch


class _Delivered:
    """The files that a client has already: recognised when they come again, by number and digest."""

    def __init__(self, position: Position | None) -> None:
        self.sequence = FileSequence()
        self._position = position
        self._left = 0 if position is None else position.files

    def leading(self, path: pa.Array, vectors: pa.Array | None) -> int:
        """Return how many of the files that come next the client has; they count as delivered."""
        number = min(self._left, len(path))
        if not number:
            return 0
        self.sequence.add(path.slice(0, number), None if vectors is None else vectors.slice(0, number))
        self._left -= number
        if not self._left and self._position is not None and self.sequence.digest() != self._position.digest:
            raise _lost("other files come first")
        return number

    def check_all_found(self) -> None:
        """Refuse an end that comes before the position."""
        if self._left:
            raise _lost("there are fewer files")


def _lost(why: str) -> PositionLostError:
    message = f"The ticket's place in the stream is no more: the files come in another order by now, {why}"
    hint = "ask for a new ticket at the same version, and leave out what you have"
    return PositionLostError(message, hint=hint)


def _options(ticket: Ticket, memory: int) -> dict[str, Any]:
    options: dict[str, Any] = {"memory_budget": memory}
    if ticket.position is not None and not ticket.position.sidecar:
        # A sidecar that was built meanwhile would change the order.
        options["delta.sidecar.enabled"] = False
    return options


def _tuples(filters: list[Any]) -> list[Any]:
    """Return conditions as the tuples that they were before JSON made lists of them."""
    if all(isinstance(each, list) and each and isinstance(each[0], list) for each in filters):
        return [_tuples(each) for each in filters]
    if not all(isinstance(each, list) and len(each) == _TRIPLE for each in filters):
        raise OptionError("filters are no conditions", hint='write [["column", ">=", 1]], or lists of such lists')
    return [tuple(each) for each in filters]
