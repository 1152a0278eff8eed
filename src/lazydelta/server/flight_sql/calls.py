"""``FlightSql``: the Flight calls that carry Flight SQL, to which a server delegates.

A server calls ``handles`` with the bytes of a descriptor or ticket, and ``handles_action`` with the name of an action.
The calls raise Flight errors only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from http.cookies import CookieError, SimpleCookie
from importlib.util import find_spec
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa
from pyarrow import flight

from lazydelta.errors import OptionError, QueryError, UnsupportedOperationError
from lazydelta.server.flight_sql.catalog import CATALOG_COMMANDS, catalog_answer, catalog_schema, with_type_names
from lazydelta.server.flight_sql.guard import CATALOG, SCHEMA
from lazydelta.server.flight_sql.messages import MESSAGES, kind_of, packed, parsed, unpacked
from lazydelta.server.flight_sql.statement import (
    Spill,
    Statement,
    StatementAnswer,
    TablesOfServer,
    check_text,
    described,
    language_of,
)
from lazydelta.server.streams import Outcome, Refusal, Sent, ServedStream, refusal, statement_refusal, told
from lazydelta.server.worker_pool import WorkerPool

__all__ = ["SESSION_MIDDLEWARE", "FlightSql", "Handles", "SessionCookies", "SessionOptions", "SqlLimits"]


# Handles: server-side state between two calls of a client, under unguessable keys.
#
# A handle is 128 random bits, belongs to the identity that created it, and expires. Unknown, expired and foreign
# handles get the same error, so probing reveals nothing.


_BYTES = 16
Kept = TypeVar("Kept")


@dataclass
class _Entry(Generic[Kept]):
    value: Kept
    identity: Hashable
    expires: float
    size: int


class Handles(Generic[Kept]):
    """Values of one kind by handle. ``what`` names the kind in errors.

    Each identity may keep ``most`` values with ``most_bytes`` in total. If ``replaces`` is set, a new value evicts the
    oldest; otherwise it is refused. Using a value renews its lifetime.
    """

    def __init__(
        self,
        what: str,
        *,
        most: int,
        seconds: float,
        most_bytes: int | None = None,
        replaces: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._most = most
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._replaces = replaces
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry[Kept]] = OrderedDict()
        self._lock = Lock()

    def add(self, identity: Hashable, value: Kept, size: int = 0) -> bytes:
        """Store a value of about ``size`` bytes. Return its handle."""
        handle = secrets.token_bytes(_BYTES)
        with self._lock:
            self._forget_expired()
            self._make_room(identity, size)
            self._entries[handle] = _Entry(value, identity, self._clock() + self._seconds, size)
        return handle

    def get(self, identity: Hashable, handle: bytes) -> Kept:
        """Return the value of a handle."""
        with self._lock:
            self._forget_expired()
            entry = self._entries.get(handle)
            if entry is None or entry.identity != identity:
                hint = "create it again; it ends with the connection, when it expires, or when the server stops"
                raise QueryError(f"The {self._what} is not known here, or has expired", hint=hint)
            entry.expires = self._clock() + self._seconds
            self._entries.move_to_end(handle)
            return entry.value

    def grown(self, identity: Hashable, handle: bytes, size: int) -> None:
        """Record that a value has grown to ``size`` bytes. Refuse it if there is no room."""
        with self._lock:
            entry = self._entries.get(handle)
            if entry is not None and entry.identity == identity:
                entry.size = 0
                self._make_room(identity, size, more=0)
                entry.size = size

    def pop(self, identity: Hashable, handle: bytes) -> Kept | None:
        """Remove a handle. Return its value, or None if it is unknown."""
        with self._lock:
            entry = self._entries.get(handle)
            if entry is None or entry.identity != identity:
                return None
            del self._entries[handle]
            return entry.value

    def __len__(self) -> int:
        with self._lock:
            self._forget_expired()
            return len(self._entries)

    def clear(self) -> None:
        """Remove all handles."""
        with self._lock:
            self._entries.clear()

    def _make_room(self, identity: Hashable, size: int, more: int = 1) -> None:
        mine = [each for each, entry in self._entries.items() if entry.identity == identity]
        taken = sum(self._entries[each].size for each in mine) + size
        most = self._most_bytes
        while mine and (len(mine) + more > self._most or (most is not None and taken > most)):
            if not self._replaces:
                message = f"There are {len(mine)} open {self._what}s, the most that a client may have"
                raise QueryError(message, hint="close unused ones, or wait until they expire")
            taken -= self._entries.pop(mine.pop(0)).size

    def _forget_expired(self) -> None:
        # All values have the same lifetime and used ones move to the end, so the search stops at the first live one.
        now = self._clock()
        while self._entries:
            handle, entry = next(iter(self._entries.items()))
            if entry.expires > now:
                return
            del self._entries[handle]


# Session options that a client sets for its connection, such as the language of its statements.
#
# Flight has no connections, so a cookie identifies the session. ``SessionCookies`` is the middleware that carries it; a
# server registers it as ``SESSION_MIDDLEWARE``.


SESSION_MIDDLEWARE = "flight-sql-session"
_COOKIE = "arrow_flight_session_id"
_INVALID_NAME, _INVALID_VALUE, _ERROR = 1, 2, 3
_CLOSED = 1
_ALLOWED = {"language": ("sql", "kql"), "catalog": (CATALOG,), "schema": (SCHEMA,)}
_MOST_SESSIONS = 1000  # per identity
_LONGEST = 64


class _SessionCookie(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, session: str, *, is_new: bool) -> None:
        self.session = session
        self._is_new = is_new

    def sending_headers(self) -> Mapping[str, str]:
        return {"set-cookie": f"{_COOKIE}={self.session}"} if self._is_new else {}


class SessionCookies(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Finds the session of a call in its cookies.

    Headers are sent before a call is handled. A client without a cookie therefore gets one with every action, because
    any of them could set options.
    """

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> _SessionCookie | None:
        """Return the session of the call for its handlers. Return None if there is none."""
        for value in (value for name, values in headers.items() if name.lower() == "cookie" for value in values):
            try:
                cookies = SimpleCookie(str(value))
            except CookieError:
                continue
            if _COOKIE in cookies:
                return _SessionCookie(cookies[_COOKIE].value[:_LONGEST], is_new=False)
        if info.method == flight.FlightMethod.DO_ACTION:
            return _SessionCookie(secrets.token_hex(16), is_new=True)
        return None


class SessionOptions:
    """The options of the most recently used sessions of each identity. No client can evict another's.

    A session belongs to an identity, so a cookie alone gives no access.
    """

    def __init__(self) -> None:
        self._sessions: dict[Hashable, OrderedDict[str, dict[str, str]]] = {}
        self._lock = Lock()

    def language(self, context: Any, identity: Hashable) -> str:
        """Return the language of a call's statements."""
        return self._of(context, identity).get("language", "sql")

    def set(self, context: Any, identity: Hashable, request: Any) -> bytes:
        """Set options. Errors are reported by option name."""
        cookie = context.get_middleware(SESSION_MIDDLEWARE)
        errors: dict[str, int] = {}
        chosen: dict[str, str] = {}
        for entry in request.session_options:
            value = entry.value.string_value if entry.value.HasField("string_value") else ""
            if entry.key not in _ALLOWED:
                errors[entry.key] = _INVALID_NAME
            elif value.lower() not in _ALLOWED[entry.key]:
                errors[entry.key] = _INVALID_VALUE
            elif cookie is None:
                errors[entry.key] = _ERROR
            else:
                chosen[entry.key] = value.lower()
        if chosen:
            with self._lock:
                sessions = self._sessions.setdefault(identity, OrderedDict())
                sessions.setdefault(cookie.session, {}).update(chosen)
                sessions.move_to_end(cookie.session)
                while len(sessions) > _MOST_SESSIONS:
                    sessions.popitem(last=False)
        entries = [
            MESSAGES["SessionErrorEntry"](key=key, value=MESSAGES["SessionOptionError"](value=error))
            for key, error in errors.items()
        ]
        return bytes(MESSAGES["SetSessionOptionsResult"](errors=entries).SerializeToString())

    def get(self, context: Any, identity: Hashable) -> bytes:
        """Return the options of a session."""
        entries = [
            MESSAGES["SessionOptionEntry"](key=key, value=MESSAGES["SessionOptionValue"](string_value=value))
            for key, value in self._of(context, identity).items()
        ]
        return bytes(MESSAGES["GetSessionOptionsResult"](session_options=entries).SerializeToString())

    def close(self, context: Any, identity: Hashable) -> bytes:
        """Remove a session."""
        cookie = context.get_middleware(SESSION_MIDDLEWARE)
        with self._lock:
            sessions = self._sessions.get(identity, OrderedDict())
            sessions.pop("" if cookie is None else cookie.session, None)
            if not sessions:
                self._sessions.pop(identity, None)
        return bytes(MESSAGES["CloseSessionResult"](status=_CLOSED).SerializeToString())

    def _of(self, context: Any, identity: Hashable) -> dict[str, str]:
        cookie = context.get_middleware(SESSION_MIDDLEWARE)
        session = "" if cookie is None else cookie.session
        with self._lock:
            sessions = self._sessions.get(identity, OrderedDict())
            if session not in sessions:
                return {}
            sessions.move_to_end(session)
            return dict(sessions[session])


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
    """Limits for one statement and for the state that one client keeps open.

    ``memory`` is DuckDB's and ``reading_memory`` is for prefetched rows, both in bytes per statement. Prepared
    statements, and statements whose rows are not fetched, expire after ``seconds``. Those of one client hold at most
    ``kept_bytes``. A statement is stopped if describing it or fetching its rows takes longer than
    ``statement_seconds``; None means no limit. While others wait for room, a client that reads no rows for ``patience``
    seconds gives way: up to ``spill_bytes`` of all such results together are kept in temporary files.
    """

    memory: int = 1 << 30
    reading_memory: int = 150 << 20
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    prepared: int = 200
    statements: int = 1000
    seconds: float = 600.0
    statement_seconds: float | None = None
    kept_bytes: int = 32 << 20
    patience: float = 1.0
    spill_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if min(self.memory, self.reading_memory, self.threads, self.prepared, self.statements, self.seconds) <= 0:
            raise OptionError("Limits of Flight SQL must be greater than zero", hint="omit them to use the defaults")


class PreparedStatement:
    """A statement and the values that were last bound to it."""

    def __init__(self, statement: Statement) -> None:
        self.statement = statement
        self.values: pa.RecordBatch | None = None


class FlightSql:
    """Flight SQL over the tables of a server.

    ``identity_of`` returns the identity of a call, and ``refused`` converts an error for the client. A call invokes
    ``reserve`` for the memory of a statement before it describes or runs it. ``reserve`` may wait, raises if there is
    no room, and returns the function that releases the memory. ``others_wait`` returns whether such calls are waiting.
    ``begun`` is invoked for each call whose rows start, and returns the callback for their end. Statements run in the
    processes of a ``WorkerPool``.
    """

    def __init__(
        self,
        tables: TablesOfServer,
        *,
        identity_of: Callable[[Any], Hashable] = lambda _context: "",
        refused: Refusal = refusal,
        reserve: Callable[[Any, int], Callable[[], None]] = lambda _context, _memory: lambda: None,
        others_wait: Callable[[], bool] = lambda: False,
        begun: Callable[[Any], Callable[[str, Outcome], None]] = lambda _context: lambda _tables, _outcome: None,
        limits: SqlLimits | None = None,
    ) -> None:
        if find_spec("duckdb") is None:
            raise OptionError("duckdb is not installed", hint="pip install 'lazydelta[serve]'")
        self._tables = tables
        self._begun = begun
        self._reserve = reserve
        self._others_wait = others_wait
        self._identity_of = identity_of
        self._refused = partial(statement_refusal, refused)
        self._limits = limits or SqlLimits()
        self._spill = Spill(self._limits.spill_bytes)
        self.workers = WorkerPool(
            memory=self._limits.memory, reading_memory=self._limits.reading_memory, threads=self._limits.threads
        )
        self.workers.start()
        kept = self._limits.kept_bytes
        self._prepared: Handles[PreparedStatement] = Handles(
            "prepared statement", most=self._limits.prepared, seconds=self._limits.seconds, most_bytes=kept
        )
        # Every statement that ran keeps a handle for a while. Evict the oldest: an error would not help a busy client.
        self._statements: Handles[Statement] = Handles(
            "statement", most=self._limits.statements, seconds=self._limits.seconds, most_bytes=kept, replaces=True
        )
        self.middleware: Mapping[str, Any] = {SESSION_MIDDLEWARE: SessionCookies()}
        """The middleware that a server must register to support session options."""
        self._options = SessionOptions()
        self._streams: WeakValueDictionary[int, ServedStream] = WeakValueDictionary()
        self._lock = Lock()

    # --- dispatch

    @staticmethod
    def handles(command: bytes) -> bool:
        """Return whether the bytes of a descriptor or ticket are Flight SQL."""
        return kind_of(command) is not None

    @staticmethod
    def handles_action(kind: str) -> bool:
        """Return whether an action belongs to Flight SQL or to Flight sessions."""
        return kind in _ACTIONS

    @staticmethod
    def list_actions() -> list[tuple[str, str]]:
        """Return the actions and their descriptions."""
        return list(_ACTIONS.items())

    # --- calls

    def get_flight_info(self, context: Any, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """Check and describe a command. No row is read."""
        with told(self._refused):
            identity = self._identity_of(context)
            name, command = unpacked(descriptor.command)
            if name in CATALOG_COMMANDS:
                ticket = bytes(descriptor.command)
                return _info(catalog_schema(name, command), descriptor, ticket)
            statement = self._statement(context, identity, name, command)
            handle = self._statements.add(identity, statement, statement.size)
            return _info(
                with_type_names(statement.schema), descriptor, packed("TicketStatementQuery", statement_handle=handle)
            )

    def get_schema(self, context: Any, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """Return the schema of a command's result."""
        with told(self._refused):
            name, command = unpacked(descriptor.command)
            if name in CATALOG_COMMANDS:
                return flight.SchemaResult(catalog_schema(name, command))
            statement = self._statement(context, self._identity_of(context), name, command)
            return flight.SchemaResult(with_type_names(statement.schema))

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Stream the result of a ticket."""
        with told(self._refused):
            identity = self._identity_of(context)
            name, command = unpacked(ticket.ticket)
            if name in CATALOG_COMMANDS:
                answer = catalog_answer(name, command, self._tables, identity)
                return flight.GeneratorStream(answer.schema, iter(answer.to_batches(_BATCH_ROWS)))
            if name != "TicketStatementQuery":
                raise QueryError(f"A {name} is not a ticket", hint="get one from GetFlightInfo")
            statement = self._statements.get(identity, command.statement_handle)
            stream = self._stream(context, identity, command.statement_handle, statement)
            sent = Sent(stream, self._refused, lambda item: item[0])
            return flight.GeneratorStream(with_type_names(statement.schema), sent)

    def do_put(
        self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: flight.FlightMetadataWriter
    ) -> None:
        """Bind values to a prepared statement."""
        with told(self._refused):
            name, command = unpacked(descriptor.command)
            if name != "CommandPreparedStatementQuery":
                raise _reads_only(name)
            handle = command.prepared_statement_handle
            prepared = self._prepared.get(self._identity_of(context), handle)
            values = _one_row(reader)
            bound = 0 if values is None else values.nbytes
            self._prepared.grown(self._identity_of(context), handle, prepared.statement.size + bound)
            prepared.values = values
            answer = MESSAGES["DoPutPreparedStatementResult"](prepared_statement_handle=handle)
            writer.write(pa.py_buffer(answer.SerializeToString()))

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        """Run an action and yield its results."""
        with told(self._refused):
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
                    raise QueryError(f"There is no action {action.type!r}", hint="see list_actions()")
            return iter([bytes(answer)])

    def cancel_all(self) -> None:
        """Stop every statement that is running or being described, for a server that shuts down."""
        for stream in self._running():
            stream.end_now()
        self.workers.kill_busy()

    def close(self) -> None:
        """Stop all statements and drop all state."""
        self.cancel_all()
        self._prepared.clear()
        self._statements.clear()
        self.workers.close()

    @property
    def running(self) -> int:
        """The number of statements that are running or being described."""
        return len(self.workers.busy)

    # --- internals

    def _statement(self, context: Any, identity: Hashable, name: str, command: Any) -> Statement:
        if name == "CommandStatementQuery":
            _refuse_transaction(command)
            statement = self._described(context, identity, self._given(context, identity, command.query))
            if len(statement.parameters):
                message = f"The statement has {len(statement.parameters)} parameters and no values"
                raise QueryError(message, hint="prepare the statement and bind the values")
            return statement
        if name == "CommandPreparedStatementQuery":
            prepared = self._prepared.get(identity, command.prepared_statement_handle)
            if not len(prepared.statement.parameters):
                return prepared.statement
            return self._described(context, identity, prepared.statement, prepared.values)
        raise _reads_only(name)

    def _described(
        self, context: Any, identity: Hashable, statement: Statement, values: pa.RecordBatch | None = None
    ) -> Statement:
        give_back = self._room(context)
        try:
            return described(
                self.workers,
                replace(statement, values=values),
                lambda name: self._tables.open(name, identity),
                cancelled=context.is_cancelled,
                seconds=self._limits.statement_seconds,
            )
        finally:
            give_back()

    def _room(self, context: Any) -> Callable[[], None]:
        return self._reserve(context, self._limits.memory + self._limits.reading_memory)

    def _given(self, context: Any, identity: Hashable, text: str) -> Statement:
        language, text = language_of(text, self._options.language(context, identity))
        check_text(text, language)
        return Statement(language, text, tuple(self._tables.names_for(identity)), {})

    def _prepare(self, context: Any, identity: Hashable, request: Any) -> bytes:
        _refuse_transaction(request)
        statement = self._described(context, identity, self._given(context, identity, request.query))
        handle = self._prepared.add(identity, PreparedStatement(statement), statement.size)
        return packed(
            "ActionCreatePreparedStatementResult",
            prepared_statement_handle=handle,
            dataset_schema=with_type_names(statement.schema).serialize().to_pybytes(),
            parameter_schema=statement.parameters.serialize().to_pybytes(),
        )

    def _stream(self, context: Any, identity: Hashable, handle: bytes, statement: Statement) -> ServedStream:
        give_back = self._room(context)
        report = self._begun(context)
        tables = ",".join(statement.table_names)
        answer = StatementAnswer(
            statement,
            self.workers,
            lambda name: self._tables.open(name, identity),
            spill=self._spill,
            freed=give_back,
        )
        stream = ServedStream(
            answer,
            cancelled=context.is_cancelled,
            freed=give_back,
            report=lambda outcome: report(tables, outcome),
            seconds=self._limits.statement_seconds,
            others_wait=self._others_wait,
            patience=self._limits.patience,
        )
        stream.handle = handle
        with self._lock:
            self._streams[id(stream)] = stream
        return stream

    def _running(self, handle: bytes | None = None) -> list[ServedStream]:
        with self._lock:
            streams = list(self._streams.values())
        return [each for each in streams if each.is_running and handle in {None, each.handle}]

    def _cancel(self, identity: Hashable, info: Any) -> int:
        status = _NOT_CANCELLABLE
        for endpoint in info.endpoint:
            if kind_of(endpoint.ticket.ticket) != "TicketStatementQuery":
                continue
            handle = unpacked(endpoint.ticket.ticket)[1].statement_handle
            if self._statements.pop(identity, handle) is None:
                continue
            running = self._running(handle)
            for each in running:
                each.cancel()
            status = _CANCELLING if running else _CANCELLED
        return status


def _info(schema: pa.Schema, descriptor: flight.FlightDescriptor, ticket: bytes) -> flight.FlightInfo:
    # No location: the client fetches the rows from the same server.
    return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)


def _expected(name: str, body: bytes) -> Any:
    found, message = unpacked(body)
    if found != name:
        raise QueryError(f"The action contains a {found}, not a {name}", hint="use a Flight SQL client")
    return message


def _refuse_transaction(command: Any) -> None:
    if command.HasField("transaction_id") and command.transaction_id:
        raise UnsupportedOperationError("There are no transactions here", hint="run the statement on its own")


def _reads_only(name: str) -> Exception:
    if name in _READS_ONLY:
        return UnsupportedOperationError(f"This server only reads: no {name}", hint="send a SELECT")
    return QueryError(f"A {name} cannot be requested like this", hint="use a Flight SQL client")


def _one_row(reader: Any) -> pa.RecordBatch | None:
    """Return the values that a client binds: a single row of at most one megabyte."""
    found: pa.RecordBatch | None = None
    with contextlib.suppress(StopIteration):
        while True:
            batch = reader.read_chunk().data
            if batch is None or batch.num_rows == 0:
                continue
            if found is not None or batch.num_rows > 1:
                raise QueryError("More than one row of values is bound", hint="bind one row at a time")
            if batch.nbytes > _MOST_BOUND:
                raise QueryError(f"The bound values are larger than {_MOST_BOUND} bytes", hint="bind smaller values")
            found = batch
    return found
