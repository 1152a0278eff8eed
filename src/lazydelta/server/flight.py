"""The Arrow Flight server: turns commands into tickets and tickets into streams, and runs actions."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakSet

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from lazydelta.client.wire import MAX_COMMAND_BYTES, ScanCommand, parse_command
from lazydelta.errors import LazyDeltaError, OptionError, PositionLostError, StreamClosedError
from lazydelta.runtime.threads import Flag, start_thread
from lazydelta.server.actions import ACTIONS, ServerActions, ServingMetrics, table_in
from lazydelta.server.budgets import Budgets
from lazydelta.server.flight_sql.calls import FlightSql, SqlLimits
from lazydelta.server.streams import (
    Answer,
    InvalidStatement,
    Outcome,
    Sent,
    ServedStream,
    answer_to,
    predicate_of,
    refusal,
)
from lazydelta.server.tables import ANYONE, Identity, ServedTables, TableListing
from lazydelta.server.ticket import Part, Position, Ticket, TicketSigner, parts_by_size
from lazydelta.server.tokens import MIDDLEWARE, AccessLog, IdentityFactory, TokenFile, identity_of, peer_of
from lazydelta.sidecar.handle import snapshot_of
from lazydelta.table.delta_table import DeltaTable

__all__ = ["FlightServer", "ServerLimits", "drain", "until_told"]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of one request: bytes of a command, memory and seconds of a stream.

    While other requests wait for room, a client that reads nothing for ``patience`` seconds loses its stream.
    """

    command_bytes: int = MAX_COMMAND_BYTES
    files_memory: int = 64 << 20
    rows_memory: int = 150 << 20
    seconds: float | None = None
    listed_tables: int = 1000
    patience: float = 10.0

    def memory_of(self, command: ScanCommand) -> int:
        """Return the memory that a stream for a command reserves."""
        return self.rows_memory if command.of == "rows" else self.files_memory

    def seconds_of(self, command: ScanCommand) -> float | None:
        """Return the time limit of a command's stream: the smaller of the client's and the server's."""
        given = [each for each in (command.timeout, self.seconds) if each is not None]
        return min(given) if given else None


class FlightServer(fl.FlightServerBase):  # type: ignore[misc]
    """Serves tables. It starts to listen when it is created. ``sql=None`` disables Flight SQL."""

    def __init__(
        self,
        location: str,
        tables: ServedTables,
        signer: TicketSigner,
        *,
        budgets: Budgets | None = None,
        limits: ServerLimits | None = None,
        tokens: TokenFile | None = None,
        access_log: AccessLog | None = None,
        sql: SqlLimits | None = None,
        **tls: Any,
    ) -> None:
        self.tables = tables
        self.budgets = budgets or Budgets()
        self.limits = limits or ServerLimits()
        self.metrics = ServingMetrics(self.budgets, tables.name_of)
        self.sql: FlightSql | None = None
        if sql is not None:
            self.sql = FlightSql(
                tables,
                identity_of=identity_of,
                refused=self._refusal,
                reserve=self._reserve,
                others_wait=lambda: self.budgets.waiting > 0,
                begun=lambda context: self._reporter(context, identity_of(context).name, "sql"),
                limits=sql,
            )
        self._signer = signer
        self._log = access_log or AccessLog(None)
        self._actions = ServerActions(self, command_bytes=self.limits.command_bytes, cleaned=tables.without_places)
        self._streams: WeakSet[ServedStream] = WeakSet()
        self._streams_lock = threading.Lock()
        self._ending = False
        middleware = {MIDDLEWARE: IdentityFactory(tokens), **({} if self.sql is None else self.sql.middleware)}
        super().__init__(location, middleware=middleware, **tls)

    # --- called by Flight

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        """Yield the tables that the client may read and whose names start with ``criteria``."""
        return iter(self._answered(context, "list", lambda who: self._list(context, who, criteria)))

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Return the schema and the tickets of a command."""
        if (sql := self._sql_for(descriptor.command)) is not None:
            return self._answered(context, "sql plan", lambda _: sql.get_flight_info(context, descriptor))
        command = self._parsed(context, "plan", descriptor)
        return self._answered(
            context, "plan", lambda who: self._planned(context, who, command, descriptor), command.table
        )

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Return the schema of a command's result."""
        if (sql := self._sql_for(descriptor.command)) is not None:
            return self._answered(context, "sql schema", lambda _: sql.get_schema(context, descriptor))
        command = self._parsed(context, "schema", descriptor)

        def schema(who: Identity) -> Any:
            table, ticket = self.pin(who, command)
            return fl.SchemaResult(self._answer(table, ticket).schema)

        return self._answered(context, "schema", schema, command.table)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Stream the result of a ticket. The metadata of each batch is the ticket that resumes after it."""
        if (sql := self._sql_for(ticket.ticket)) is not None:
            return self._answered(context, "sql get", lambda _: sql.do_get(context, ticket))
        return self._answered(context, "get", lambda who: self._stream(context, who, ticket.ticket))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Bind parameters of Flight SQL. Refuse all other uploads: tables are read-only."""
        if (sql := self._sql_for(descriptor.command)) is not None:
            self._answered(context, "sql put", lambda _: sql.do_put(context, descriptor, reader, writer))
            return
        self._answered(context, "put", lambda _: _refuse("Tables are served for reading only", "write to the store"))

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:  # noqa: ARG002
        """Refuse: the server has no bidirectional streams."""
        self._answered(context, "exchange", lambda _: _refuse("There is no DoExchange here", "use DoGet"))

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """Return the actions, each with a short description."""
        more = [] if self.sql is None else self.sql.list_actions()
        return self._answered(context, "list_actions", lambda _: [*ACTIONS.items(), *more])

    def do_action(self, context: Any, action: Any) -> Any:
        """Run an action."""
        body = action.body
        if body is not None and len(body) > self.limits.command_bytes:
            # Check the size before copying the body.
            return self._answered(context, "action", lambda _: self._too_long("body of the action", len(body)))
        if (sql := self.sql) is not None and sql.handles_action(action.type):
            return self._answered(context, "sql action", lambda _: sql.do_action(context, action))
        data = b"" if body is None else body.to_pybytes()
        kind = action.type if action.type in ACTIONS else "action"
        run = self._actions.run
        return iter([self._answered(context, kind, lambda who: run(context, who, action.type, data), table_in(data))])

    # --- shutdown

    def refuse_streams(self) -> None:
        """Accept no more streams. Running streams continue."""
        self._ending = True
        self.budgets.close()

    def end_streams(self) -> None:
        """End all running streams with an error that tells their clients to resume on another server."""
        with self._streams_lock:
            running = list(self._streams)
        for stream in running:
            stream.end_now()
        if self.sql is not None:
            self.sql.cancel_all()

    # --- planning and streaming

    def _planned(self, context: Any, who: Identity, command: ScanCommand, descriptor: Any) -> Any:
        table, ticket = self.pin(who, command)
        answer = self._answer(table, ticket)
        if command.endpoints == 1:
            tickets = [ticket]
        else:
            parts = self._parts(context, table, ticket.command, command.endpoints)
            tickets = [msgspec.structs.replace(ticket, part=part) for part in parts]
        endpoints = [fl.FlightEndpoint(self._signer.encode(each), []) for each in tickets]
        told = {"version": ticket.command.version, "at": ticket.command.at, "table_id": ticket.table_id}
        return fl.FlightInfo(answer.schema, descriptor, endpoints, -1, -1, app_metadata=msgspec.json.encode(told))

    def pin(self, who: Identity, command: ScanCommand) -> tuple[DeltaTable, Ticket]:
        """Return the table of a command, and the ticket that pins its version."""
        table = self.opened(who, command)
        snapshot = snapshot_of(table)
        timestamp = time.time_ns() if command.at is None else command.at
        asked = msgspec.structs.replace(command, version=table.version(), at=timestamp, endpoints=1)
        base = snapshot.segment.base_version
        return table, Ticket(asked, table.metadata().id, base, who.name, self._signer.expiry())

    def _answer(self, table: DeltaTable, ticket: Ticket) -> Answer:
        return answer_to(table, ticket, self.limits.memory_of(ticket.command))

    def _parts(self, context: Any, table: DeltaTable, command: ScanCommand, number: int) -> list[Part]:
        give_back = self.room(context)
        try:
            with table.files(predicate_of(table, command), strategy="forward") as files:
                return parts_by_size(_while_there(context, files.batches()), number)
        finally:
            give_back()

    def _stream(self, context: Any, who: Identity, data: bytes) -> Any:
        ticket = self._signer.decode(data, who.name)
        command = ticket.command
        table = self.tables.open(command.table, who, command.version, base=ticket.base)
        if table.metadata().id != ticket.table_id:
            raise _another_table()
        answer = self._answer(table, ticket)
        stream = self._served(context, who, answer, command)
        return fl.GeneratorStream(answer.schema, Sent(stream, self._refusal, lambda item: self._signed(ticket, *item)))

    def _served(self, context: Any, who: Identity, answer: Answer, command: ScanCommand) -> ServedStream:
        give_back = self._reserve(context, self.limits.memory_of(command))
        report = self._reporter(context, who.name, command.of, command.version)
        stream = ServedStream(
            answer,
            cancelled=context.is_cancelled,
            freed=give_back,
            report=lambda outcome: report(command.table, outcome),
            seconds=self.limits.seconds_of(command),
            others_wait=lambda: self.budgets.waiting > 0,
            patience=self.limits.patience,
        )
        with self._streams_lock:
            self._streams.add(stream)
        return stream

    def _reporter(
        self, context: Any, who: str, of: str, version: int | str | None = None
    ) -> Callable[[str, Outcome], None]:
        """Return the callback that counts and logs a stream at its end.

        The peer is read now: an ended call has none.
        """
        began, peer = time.monotonic(), peer_of(context)

        def report(table: str, outcome: Outcome) -> None:
            seconds = time.monotonic() - began
            self.metrics.stream(table, of, outcome.how, rows=outcome.rows, size=outcome.size, seconds=seconds)
            self._log.write(
                "stream",
                client=who,
                peer=peer,
                how=outcome.how,
                table=table,
                of=of,
                version=version,
                rows=outcome.rows,
                bytes=outcome.size,
                seconds=round(seconds, 3),
                error=None if outcome.error is None else type(outcome.error).__name__,
            )

        return report

    def _reserve(self, context: Any, memory: int) -> Callable[[], None]:
        return self.budgets.reserve(_client(context), memory, context.is_cancelled)

    def _signed(self, ticket: Ticket, batch: pa.RecordBatch, position: Position | None) -> tuple[pa.RecordBatch, bytes]:
        """Return a batch with the ticket that resumes after it."""
        rest = msgspec.structs.replace(ticket, position=position, expires=self._signer.expiry())
        return batch, self._signer.encode(rest)

    # --- used by actions

    def health(self) -> dict[str, Any]:
        """Return whether the server accepts streams, how many run and wait, and the memory of statements."""
        told = {"state": "ending" if self._ending else "serving", "streams": self.budgets.streams}
        told["waiting"] = self.budgets.waiting
        if self.sql is not None:
            told |= {"statements": self.sql.running, "statements_memory": self.sql.workers.memory}
        return told

    def metrics_text(self, who: Identity) -> bytes:
        """Return the metrics in the Prometheus text format, limited to the tables that the client may read."""
        return self.metrics.text(who.may_read)

    def opened(self, who: Identity, command: ScanCommand) -> DeltaTable:
        """Open the table of a command."""
        table = self.tables.open(command.table, who, command.version)
        if command.table_id not in {None, table.metadata().id}:
            raise _another_table()
        return table

    def begin(self, context: Any, who: Identity, table: DeltaTable, ticket: Ticket) -> tuple[Answer, ServedStream]:
        """Start the scan of a ticket. The server itself consumes the stream."""
        answer = self._answer(table, ticket)
        return answer, self._served(context, who, answer, ticket.command)

    def room(self, context: Any) -> Callable[[], None]:
        """Reserve the room of a stream of files."""
        return self._reserve(context, self.limits.files_memory)

    # --- listing and error handling

    def _list(self, context: Any, who: Identity, criteria: bytes) -> list[Any]:
        if len(criteria) > self.limits.command_bytes:
            self._too_long("criteria", len(criteria))
        listing = TableListing(self.tables, who, most=self.limits.listed_tables, left=context.is_cancelled)
        names = listing.names(criteria.decode("utf-8", "replace"))
        cut = msgspec.json.encode({"more": True}) if listing.is_cut else b""
        return [self._listed(name, who, cut if name == names[-1] else b"") for name in names]

    def _listed(self, name: str, who: Identity, told: bytes) -> Any:
        schema = pa.schema([])
        if "/" not in name:  # roots can hold thousands of tables
            # A table that cannot be opened must not hide the others.
            with contextlib.suppress(LazyDeltaError):
                schema = self.tables.open(name, who).schema().to_arrow()
        return fl.FlightInfo(schema, fl.FlightDescriptor.for_path(name), [], -1, -1, app_metadata=told)

    def _sql_for(self, command: bytes | None) -> FlightSql | None:
        """Return Flight SQL if it handles a command or ticket. Commands that are too long are not parsed."""
        if self.sql is None or not command or len(command) > self.limits.command_bytes:
            return None
        return self.sql if self.sql.handles(command) else None

    def _parsed(self, context: Any, kind: str, descriptor: Any) -> ScanCommand:
        return self._answered(context, kind, lambda _: self._command(descriptor), counted=False)

    def _command(self, descriptor: Any) -> ScanCommand:
        if descriptor.descriptor_type == fl.DescriptorType.PATH:
            parts = [each.decode("utf-8", "replace") for each in descriptor.path]
            return ScanCommand(table="/".join(parts))
        return parse_command(descriptor.command or b"", most=self.limits.command_bytes)

    def _too_long(self, what: str, size: int) -> Any:
        message = f"The {what} has {size} bytes, more than {self.limits.command_bytes}"
        raise OptionError(message, hint="send a smaller request")

    def _answered(
        self,
        context: Any,
        kind: str,
        work: Callable[[Identity], T],
        table: str | None = None,
        *,
        counted: bool = True,
    ) -> T:
        """Run the work of a request. Every failure is raised as an error that clients may see."""
        who = "unknown"
        try:
            identity = identity_of(context)
            who = identity.name
            result = work(identity)
        except BaseException as error:  # noqa: BLE001 - no other exception may reach the client, see refusals
            told = self._refusal(error)
            # Flight SQL has already wrapped the error. Its context is the original error.
            ours = error.__context__ if isinstance(error, fl.FlightError | InvalidStatement) else None
            self._note(context, kind, who, type(ours if isinstance(ours, LazyDeltaError) else error).__name__, table)
            raise told from None
        if counted:
            self._note(context, kind, who, "ok", table)
        return result

    def _note(self, context: Any, kind: str, who: str, how: str, table: str | None) -> None:
        self.metrics.request(kind, how)
        self._log.write(kind, client=who, peer=peer_of(context), how=how, table=None if table is None else table[:200])

    def _refusal(self, error: BaseException) -> Exception:
        return refusal(error, self.tables.without_places)


def _while_there(context: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if context.is_cancelled():
            raise StreamClosedError("The client has left")
        yield batch


def _client(context: Any) -> str:
    """Return the client whose budget a call uses: the holder of its token, or its connection if there are no tokens."""
    who = identity_of(context)
    return peer_of(context) if who == ANYONE else who.name


def _peer(context: Any) -> str:
    peer = context.peer()
    return peer.decode("utf-8", "replace") if isinstance(peer, bytes) else str(peer)


def _another_table() -> PositionLostError:
    message = "The requested table was replaced by another one"
    return PositionLostError(message, hint="open the table again and start over")


def _refuse(message: str, hint: str) -> Any:
    raise OptionError(message, hint=hint)


# Shutdown: the server accepts no more streams, lets running ones finish, and then ends the rest.
#
# The client of a stream that is ended has the ticket of its last batch, so it can resume on the next server.


_AFTER_NOTICE_SECONDS = 5.0


def drain(server: FlightServer, seconds: float) -> bool:
    """Shut a server down. Return whether gRPC has stopped.

    gRPC waits forever for a client that does not read the data in flight. The scan of such a client has ended, and
    nothing is lost when the process exits.
    """
    server.refuse_streams()
    if not server.budgets.wait_until_idle(seconds):
        server.end_streams()
        server.budgets.wait_until_idle(_AFTER_NOTICE_SECONDS)
    ending = start_thread(server.shutdown, "lazydelta-serve-end")
    ending.join(_AFTER_NOTICE_SECONDS)
    if server.sql is not None:
        server.sql.close()
    return not ending.is_alive()


@contextmanager
def until_told() -> Iterator[Flag]:
    """Yield a flag that SIGTERM and SIGINT set. A second signal has its default effect.

    The system may deliver a signal to any thread, but Python handles it in the main thread, and only once that runs. A
    ``Flag`` wakes up now and then to let it; a thread that waits at a ``threading.Event`` would not.
    """
    told = Flag()
    before: dict[int, Any] = {}

    def tell(number: int, _frame: object) -> None:
        told.set()
        signal.signal(number, before[number])

    for each in (signal.SIGTERM, signal.SIGINT):
        before[each] = signal.signal(each, tell)
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
