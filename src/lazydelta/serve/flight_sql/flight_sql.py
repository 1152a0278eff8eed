"""``FlightSql``: the calls of Flight that carry Flight SQL, for a server to hand over.

A server asks ``handles`` about the bytes of a descriptor or ticket, and ``handles_action`` about an action. Only errors
of Flight leave the calls.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import pyarrow as pa
from pyarrow import flight

from lazydelta.errors import OptionError, QueryError, UnsupportedOperationError
from lazydelta.serve.flight_sql.catalog import CATALOG_COMMANDS, catalog_answer, catalog_schema
from lazydelta.serve.flight_sql.client_errors import Refusal, flight_error, told
from lazydelta.serve.flight_sql.fetching import attended, fetched, stop_soon
from lazydelta.serve.flight_sql.messages import MESSAGES, kind_of, packed, parsed, unpacked
from lazydelta.serve.flight_sql.prepared import Handles
from lazydelta.serve.flight_sql.session_options import SESSION_MIDDLEWARE, SessionCookies, SessionOptions
from lazydelta.serve.flight_sql.sql_session import SqlSession
from lazydelta.serve.flight_sql.statement import Running, Statement, TablesOfServer, statement_of
from lazydelta.serve.flight_sql.statement_end import StatementEnd, counted

__all__ = ["FlightSql", "PreparedStatement", "SqlLimits"]

_CANCELLED, _CANCELLING, _NOT_CANCELLABLE = 1, 2, 3
_MOST_BOUND = 1 << 20
_BATCH_ROWS = 8192
_ACTIONS = {
    "CreatePreparedStatement": "Check a statement and describe its columns and parameters.",
    "ClosePreparedStatement": "Forget a prepared statement.",
    "CancelQuery": "Stop a statement (deprecated, as CancelFlightInfo).",
    "CancelFlightInfo": "Stop a statement whose rows are being fetched, or are not yet.",
    "SetSessionOptions": "Set options of the session: language, sql or kql.",
    "GetSessionOptions": "Return the options of the session.",
    "CloseSession": "Forget the session.",
}
_READS_ONLY = {
    "CommandStatementUpdate",
    "CommandPreparedStatementUpdate",
    "CommandStatementIngest",
    "CommandStatementSubstraitPlan",
}


@dataclass(frozen=True, slots=True)
class SqlLimits:
    """What one statement may take, and what one client may leave open.

    ``memory`` is DuckDB's, ``reading_memory`` for rows that were read ahead, both in bytes and for each statement.
    Prepared statements, and statements whose rows nobody fetches, are forgotten after ``seconds``. A statement whose
    rows take longer than ``statement_seconds`` to fetch is stopped; None lets it take any time.
    """

    memory: int = 1 << 30
    reading_memory: int = 150 << 20
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    prepared: int = 200
    statements: int = 1000
    seconds: float = 600.0
    statement_seconds: float | None = None

    def __post_init__(self) -> None:
        if min(self.memory, self.reading_memory, self.threads, self.prepared, self.statements, self.seconds) <= 0:
            raise OptionError("Limits of Flight SQL are above zero", hint="leave them out for the defaults")


class PreparedStatement:
    """A statement and the values that were bound to it last."""

    def __init__(self, statement: Statement) -> None:
        self.statement = statement
        self.values: pa.RecordBatch | None = None


class FlightSql:
    """Flight SQL over the tables of a server.

    ``identity_of`` tells whom a call belongs to, ``refusal`` what a client is told of an error. ``reserve`` is asked
    for the memory of each statement that begins, by its call; it raises where there is none, and returns what gives it
    back. ``begun`` is told of each call whose rows begin, and returns what is told of their end.
    """

    def __init__(
        self,
        tables: TablesOfServer,
        *,
        identity_of: Callable[[Any], Hashable] = lambda _context: "",
        refusal: Refusal = flight_error,
        reserve: Callable[[Any, int], Callable[[], None]] | None = None,
        begun: Callable[[Any], Callable[[StatementEnd], None]] | None = None,
        limits: SqlLimits | None = None,
    ) -> None:
        self._tables = tables
        self._begun = begun
        self._reserve = reserve
        self._identity_of = identity_of
        self._refusal = refusal
        self._limits = limits or SqlLimits()
        self._session = SqlSession(
            memory=self._limits.memory, reading_memory=self._limits.reading_memory, threads=self._limits.threads
        )
        self._prepared: Handles[PreparedStatement] = Handles(
            "prepared statement", most=self._limits.prepared, seconds=self._limits.seconds
        )
        # Every statement that ran leaves one behind for a while: a busy client has no use for an error.
        self._statements: Handles[Statement] = Handles(
            "statement", most=self._limits.statements, seconds=self._limits.seconds, replaces=True
        )
        self.middleware: Mapping[str, Any] = {SESSION_MIDDLEWARE: SessionCookies()}
        """What a server has to have among its middleware, for options of a session."""
        self._options = SessionOptions()
        self._running: dict[bytes, list[Running]] = {}
        self._lock = Lock()

    # --- whose call it is

    @staticmethod
    def handles(command: bytes) -> bool:
        """Tell whether the bytes of a descriptor or a ticket are Flight SQL."""
        return kind_of(command) is not None

    @staticmethod
    def handles_action(kind: str) -> bool:
        """Tell whether an action is one of Flight SQL's or of Flight's sessions."""
        return kind in _ACTIONS

    @staticmethod
    def list_actions() -> list[tuple[str, str]]:
        """Return the actions and what they do."""
        return list(_ACTIONS.items())

    # --- calls

    def get_flight_info(self, context: Any, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """Check and describe what is asked for; no row is read."""
        with told(self._refusal):
            identity = self._identity_of(context)
            name, command = unpacked(descriptor.command)
            if name in CATALOG_COMMANDS:
                ticket = bytes(descriptor.command)
                return _info(catalog_schema(name, command), descriptor, ticket)
            statement = self._statement(context, identity, name, command)
            handle = self._statements.add(identity, statement)
            return _info(statement.schema, descriptor, packed("TicketStatementQuery", statement_handle=handle))

    def get_schema(self, context: Any, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """Return the columns of what is asked for."""
        with told(self._refusal):
            name, command = unpacked(descriptor.command)
            if name in CATALOG_COMMANDS:
                return flight.SchemaResult(catalog_schema(name, command))
            statement = self._statement(context, self._identity_of(context), name, command)
            return flight.SchemaResult(statement.schema)

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Stream an answer."""
        schema, batches = self.stream(context, ticket)
        return flight.GeneratorStream(schema, batches)

    def stream(self, context: Any, ticket: flight.Ticket) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the columns of an answer and its rows, for servers that count what they send."""
        with told(self._refusal):
            identity = self._identity_of(context)
            name, command = unpacked(ticket.ticket)
            if name in CATALOG_COMMANDS:
                answer = catalog_answer(name, command, self._tables, identity)
                return answer.schema, iter(answer.to_batches(_BATCH_ROWS))
            if name != "TicketStatementQuery":
                raise QueryError(f"A {name} is no ticket", hint="ask GetFlightInfo for one")
            statement = self._statements.get(identity, command.statement_handle)
            rows = self._rows(context, command.statement_handle, statement)
            if self._begun is not None:
                rows = counted(rows, statement.table_names, self._begun(context))
            return statement.schema, rows

    def do_put(
        self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: flight.FlightMetadataWriter
    ) -> None:
        """Bind values to a prepared statement."""
        with told(self._refusal):
            name, command = unpacked(descriptor.command)
            if name != "CommandPreparedStatementQuery":
                raise _reads_only(name)
            handle = command.prepared_statement_handle
            prepared = self._prepared.get(self._identity_of(context), handle)
            prepared.values = _one_row(reader)
            answer = MESSAGES["DoPutPreparedStatementResult"](prepared_statement_handle=handle)
            writer.write(pa.py_buffer(answer.SerializeToString()))

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        """Do what an action says; yield its answer."""
        with told(self._refusal):
            identity = self._identity_of(context)
            body = action.body.to_pybytes()
            match action.type:
                case "CreatePreparedStatement":
                    answer = self._prepare(context, identity, _expected("ActionCreatePreparedStatementRequest", body))
                case "ClosePreparedStatement":
                    asked = _expected("ActionClosePreparedStatementRequest", body)
                    self._prepared.pop(identity, asked.prepared_statement_handle)
                    return iter(())
                case "CancelQuery":
                    info = parsed("FlightInfo", _expected("ActionCancelQueryRequest", body).info)
                    answer = packed("ActionCancelQueryResult", result=self._cancel(identity, info))
                case "CancelFlightInfo":
                    status = self._cancel(identity, parsed("CancelFlightInfoRequest", body).info)
                    answer = MESSAGES["CancelFlightInfoResult"](status=status).SerializeToString()
                case "SetSessionOptions":
                    answer = self._options.set(context, identity, parsed("SetSessionOptionsRequest", body))
                case "GetSessionOptions":
                    answer = self._options.get(context, identity)
                case "CloseSession":
                    answer = self._options.close(context, identity)
                case _:
                    raise QueryError(f"There is no action {action.type!r}", hint="list_actions() names them")
            return iter([bytes(answer)])

    def cancel_all(self) -> None:
        """Stop every statement that is running, for a server that shuts down."""
        with self._lock:
            running = [each for group in self._running.values() for each in group]
        for each in running:
            stop_soon(each)

    def close(self) -> None:
        """Stop everything and forget it."""
        self.cancel_all()
        self._prepared.clear()
        self._statements.clear()
        self._session.close()

    @property
    def running(self) -> int:
        """How many statements are running."""
        with self._lock:
            return sum(map(len, self._running.values()))

    # --- inside

    def _statement(self, context: Any, identity: Hashable, name: str, command: Any) -> Statement:
        if name == "CommandStatementQuery":
            _refuse_transaction(command)
            statement = self._described(context, identity, command.query)
            if len(statement.parameters):
                message = f"The statement has {len(statement.parameters)} parameters and no values"
                raise QueryError(message, hint="prepare it and bind them")
            return statement
        if name == "CommandPreparedStatementQuery":
            prepared = self._prepared.get(identity, command.prepared_statement_handle)
            if not len(prepared.statement.parameters):
                return prepared.statement
            return prepared.statement.with_values(prepared.values)
        raise _reads_only(name)

    def _described(self, context: Any, identity: Hashable, text: str) -> Statement:
        def for_the_call(work: Callable[[], pa.Schema], stop: Callable[[], None]) -> pa.Schema:
            # Work that goes on for a moment after its call has left still holds its room.
            give_back = self._room(context)
            return attended(lambda: _then(work, give_back), stop, context.is_cancelled, self._limits.statement_seconds)

        language = self._options.language(context, identity)
        return statement_of(text, self._tables, identity, self._session, language, for_the_call)

    def _room(self, context: Any) -> Callable[[], None]:
        if self._reserve is None:
            return lambda: None
        return self._reserve(context, self._limits.memory + self._limits.reading_memory)

    def _prepare(self, context: Any, identity: Hashable, request: Any) -> bytes:
        _refuse_transaction(request)
        statement = self._described(context, identity, request.query)
        return packed(
            "ActionCreatePreparedStatementResult",
            prepared_statement_handle=self._prepared.add(identity, PreparedStatement(statement)),
            dataset_schema=statement.schema.serialize().to_pybytes(),
            parameter_schema=statement.parameters.serialize().to_pybytes(),
        )

    def _rows(self, context: Any, handle: bytes, statement: Statement) -> Iterator[pa.RecordBatch]:
        with told(self._refusal), contextlib.ExitStack() as given:
            # Here, where its end is met for certain: a stream that nobody pulls has taken nothing.
            given.callback(self._room(context))
            running = statement.start()
            with self._lock:
                self._running.setdefault(handle, []).append(running)
            try:
                yield from fetched(running, context.is_cancelled, self._limits.statement_seconds)
            finally:
                with self._lock:
                    group = self._running[handle]
                    group.remove(running)
                    if not group:
                        del self._running[handle]

    def _cancel(self, identity: Hashable, info: Any) -> int:
        status = _NOT_CANCELLABLE
        for endpoint in info.endpoint:
            if kind_of(endpoint.ticket.ticket) != "TicketStatementQuery":
                continue
            handle = unpacked(endpoint.ticket.ticket)[1].statement_handle
            if self._statements.pop(identity, handle) is None:
                continue
            with self._lock:
                running = list(self._running.get(handle, ()))
            for each in running:
                stop_soon(each)
            status = _CANCELLING if running else _CANCELLED
        return status


def _then(work: Callable[[], pa.Schema], after: Callable[[], None]) -> pa.Schema:
    try:
        return work()
    finally:
        after()


def _info(schema: pa.Schema, descriptor: flight.FlightDescriptor, ticket: bytes) -> flight.FlightInfo:
    # No location: the rows are where the client has asked.
    return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)


def _expected(name: str, body: bytes) -> Any:
    found, message = unpacked(body)
    if found != name:
        raise QueryError(f"The action holds a {found}, not a {name}", hint="use a client of Flight SQL")
    return message


def _refuse_transaction(command: Any) -> None:
    if command.HasField("transaction_id") and command.transaction_id:
        raise UnsupportedOperationError("There are no transactions here", hint="run the statement by itself")


def _reads_only(name: str) -> Exception:
    if name in _READS_ONLY:
        return UnsupportedOperationError(f"This server only reads: no {name}", hint="give a SELECT")
    return QueryError(f"A {name} cannot be asked for like this", hint="use a client of Flight SQL")


def _one_row(reader: Any) -> pa.RecordBatch | None:
    """Return the values that a client binds: one row, and not more than a megabyte of them."""
    found: pa.RecordBatch | None = None
    with contextlib.suppress(StopIteration):
        while True:
            batch = reader.read_chunk().data
            if batch is None or batch.num_rows == 0:
                continue
            if found is not None or batch.num_rows > 1:
                raise QueryError("More than one row of values is bound", hint="bind one row and run it for each")
            if batch.nbytes > _MOST_BOUND:
                raise QueryError(f"The bound values are larger than {_MOST_BOUND} bytes", hint="bind smaller ones")
            found = batch
    return found
