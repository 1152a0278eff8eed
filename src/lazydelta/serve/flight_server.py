"""The Arrow Flight server: commands to tickets, tickets to streams, and a few actions."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakSet

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from lazydelta.delta_table import DeltaTable
from lazydelta.engines.table_source import pinned
from lazydelta.errors import LazyDeltaError, OptionError, StreamClosedError
from lazydelta.serve.access_log import AccessLog
from lazydelta.serve.answers import Answer, answer_to, predicate_of
from lazydelta.serve.authentication import MIDDLEWARE, IdentityFactory, identity_of
from lazydelta.serve.budgets import Budgets
from lazydelta.serve.flight_sql.flight_sql import FlightSql, SqlLimits
from lazydelta.serve.flight_sql.statement_end import StatementEnd
from lazydelta.serve.parts import parts_by_size
from lazydelta.serve.refusals import refusal
from lazydelta.serve.served_tables import ANYONE, Identity, ServedTables
from lazydelta.serve.server_actions import ACTIONS, ServerActions, table_in
from lazydelta.serve.serving_metrics import ServingMetrics
from lazydelta.serve.streams import Outcome, ServedStream
from lazydelta.serve.table_listing import TableListing
from lazydelta.serve.ticket import Part, Ticket, TicketSigner
from lazydelta.serve.tokens import TokenFile
from lazydelta.wire import MAX_COMMAND_BYTES, ScanCommand, parse_command

__all__ = ["FlightServer", "ServerLimits"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a single request may take: bytes of a command, memory of a stream, seconds."""

    command_bytes: int = MAX_COMMAND_BYTES
    files_memory: int = 64 << 20
    rows_memory: int = 150 << 20
    seconds: float | None = None
    listed_tables: int = 1000

    def memory_of(self, command: ScanCommand) -> int:
        """Return the memory that a stream for a command reserves."""
        return self.rows_memory if command.of == "rows" else self.files_memory

    def seconds_of(self, command: ScanCommand) -> float | None:
        """Return when a stream for a command has to be at its end: the sooner of what both sides want."""
        given = [each for each in (command.timeout, self.seconds) if each is not None]
        return min(given) if given else None


class FlightServer(fl.FlightServerBase):  # type: ignore[misc]
    """Serves tables; it listens from the moment it is made. ``sql`` None leaves Flight SQL out."""

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
        self.metrics = ServingMetrics(self.budgets)
        self.sql: FlightSql | None = None
        if sql is not None:
            self.sql = FlightSql(
                tables,
                identity_of=identity_of,
                refusal=self._refusal,
                reserve=lambda context, memory: self.budgets.reserve(_client(context), memory),
                begun=self._statement_begun,
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

    # --- what Flight calls

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        """Yield the tables that the client may read and whose names begin with ``criteria``."""
        return iter(self._answered(context, "list", lambda who: self._list(context, who, criteria)))

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Return schema and tickets of a command."""
        if (sql := self._sql_for(descriptor.command)) is not None:
            return self._answered(context, "sql plan", lambda _: sql.get_flight_info(context, descriptor))
        command = self._parsed(context, "plan", descriptor)
        return self._answered(
            context, "plan", lambda who: self._planned(context, who, command, descriptor), command.table
        )

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Return the schema of a command's answer."""
        if (sql := self._sql_for(descriptor.command)) is not None:
            return self._answered(context, "sql schema", lambda _: sql.get_schema(context, descriptor))
        command = self._parsed(context, "schema", descriptor)

        def schema(who: Identity) -> Any:
            table, ticket = self.pin(who, command)
            return fl.SchemaResult(self._answer(table, ticket).schema)

        return self._answered(context, "schema", schema, command.table)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Stream what a ticket stands for; each batch has the ticket for what follows it as its metadata."""
        if (sql := self._sql_for(ticket.ticket)) is not None:
            return self._answered(context, "sql get", lambda _: sql.do_get(context, ticket))
        return self._answered(context, "get", lambda who: self._stream(context, who, ticket.ticket))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Refuse: tables are served for reading. Flight SQL sends parameters this way."""
        if (sql := self._sql_for(descriptor.command)) is not None:
            self._answered(context, "sql put", lambda _: sql.do_put(context, descriptor, reader, writer))
            return
        self._answered(context, "put", lambda _: _refuse("Tables are served for reading only", "write to the store"))

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:  # noqa: ARG002
        """Refuse: there is nothing that clients and server exchange."""
        self._answered(context, "exchange", lambda _: _refuse("There is no DoExchange here", "use DoGet"))

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """Return the actions with a word on each."""
        more = [] if self.sql is None else self.sql.list_actions()
        return self._answered(context, "list_actions", lambda _: [*ACTIONS.items(), *more])

    def do_action(self, context: Any, action: Any) -> Any:
        """Run an action."""
        body = action.body
        if body is not None and len(body) > self.limits.command_bytes:
            # Not copied before it is known to be small.
            return self._answered(context, "action", lambda _: self._too_long("body of the action", len(body)))
        if (sql := self.sql) is not None and sql.handles_action(action.type):
            return self._answered(context, "sql action", lambda _: sql.do_action(context, action))
        data = b"" if body is None else body.to_pybytes()
        kind = action.type if action.type in ACTIONS else "action"
        run = self._actions.run
        return iter([self._answered(context, kind, lambda who: run(context, who, action.type, data), table_in(data))])

    # --- shutting down

    def refuse_streams(self) -> None:
        """Take no more streams; those that run go on."""
        self._ending = True
        self.budgets.close()

    def end_streams(self) -> None:
        """Have every stream that is still running end with an error that tells its client to resume elsewhere."""
        with self._streams_lock:
            running = list(self._streams)
        for stream in running:
            stream.end_now()
        if self.sql is not None:
            self.sql.cancel_all()

    # --- how it is done

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
        """Return the table of a command, and the ticket that pins it."""
        table = self.opened(who, command)
        snapshot = pinned(table)[1]
        moment = time.time_ns() if command.at is None else command.at
        asked = msgspec.structs.replace(command, version=table.version(), at=moment, endpoints=1)
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
            _refuse("Another table is in the place of the one that the ticket was made for", "ask for a new ticket")
        answer = self._answer(table, ticket)
        return fl.GeneratorStream(answer.schema, self._signed(self._served(context, who, answer, command), ticket))

    def _served(self, context: Any, who: Identity, answer: Answer, command: ScanCommand) -> ServedStream:
        give_back = self.budgets.reserve(_client(context), self.limits.memory_of(command))
        report = self._reporter(context, who.name, command.of, command.version)
        stream = ServedStream(
            answer,
            cancelled=context.is_cancelled,
            freed=give_back,
            report=lambda outcome: report(command.table, outcome),
            seconds=self.limits.seconds_of(command),
        )
        with self._streams_lock:
            self._streams.add(stream)
        return stream

    def _reporter(
        self, context: Any, who: str, of: str, version: int | str | None = None
    ) -> Callable[[str, Outcome | StatementEnd], None]:
        """Return what counts a stream and writes it down when it has ended; a call that has ended tells nothing."""
        began, peer = time.monotonic(), _peer(context)

        def report(table: str, outcome: Outcome | StatementEnd) -> None:
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

    def _statement_begun(self, context: Any) -> Callable[[StatementEnd], None]:
        report = self._reporter(context, identity_of(context).name, "sql")
        return lambda end: report(",".join(end.tables), end)

    def _signed(self, stream: ServedStream, ticket: Ticket) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        return _Signed(stream, ticket, self._signer, self._refusal)

    # --- what actions need

    def health(self) -> dict[str, Any]:
        """Return whether streams are taken, and how many are running."""
        return {"state": "ending" if self._ending else "serving", "streams": self.budgets.streams}

    def metrics_text(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        return self.metrics.text()

    def opened(self, who: Identity, command: ScanCommand) -> DeltaTable:
        """Return the table of a command."""
        return self.tables.open(command.table, who, command.version)

    def begin(self, context: Any, who: Identity, table: DeltaTable, ticket: Ticket) -> tuple[Answer, ServedStream]:
        """Begin what a ticket stands for, for the server to take."""
        answer = self._answer(table, ticket)
        return answer, self._served(context, who, answer, ticket.command)

    def room(self, context: Any) -> Callable[[], None]:
        """Take the room of a stream of files."""
        return self.budgets.reserve(_client(context), self.limits.files_memory)

    # --- how it is done

    def _list(self, context: Any, who: Identity, criteria: bytes) -> list[Any]:
        if len(criteria) > self.limits.command_bytes:
            self._too_long("criteria", len(criteria))
        listing = TableListing(self.tables, who, most=self.limits.listed_tables, left=context.is_cancelled)
        names = listing.names(criteria.decode("utf-8", "replace"))
        cut = msgspec.json.encode({"more": True}) if listing.is_cut else b""
        return [self._listed(name, who, cut if name == names[-1] else b"") for name in names]

    def _listed(self, name: str, who: Identity, told: bytes) -> Any:
        schema = pa.schema([])
        if "/" not in name:  # below roots there may be thousands
            # One table that cannot be opened must not hide all others.
            with contextlib.suppress(LazyDeltaError):
                schema = self.tables.open(name, who).schema().to_arrow()
        return fl.FlightInfo(schema, fl.FlightDescriptor.for_path(name), [], -1, -1, app_metadata=told)

    def _sql_for(self, command: bytes | None) -> FlightSql | None:
        """Return Flight SQL for a command or a ticket that is its own; what is too long is not looked at."""
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
        raise OptionError(message, hint="ask for less at once")

    def _answered(
        self,
        context: Any,
        kind: str,
        work: Callable[[Identity], T],
        table: str | None = None,
        *,
        counted: bool = True,
    ) -> T:
        """Do what a request asks for; whatever goes wrong leaves as an error that clients may see."""
        who = "unknown"
        try:
            identity = identity_of(context)
            who = identity.name
            result = work(identity)
        except BaseException as error:  # noqa: BLE001 - nothing else may leave, see refusals
            told = self._refusal(error)
            # Flight SQL has made an error of Flight of it by now; why it did is ours.
            ours = error.__context__ if isinstance(error, fl.FlightError) else None
            self._note(context, kind, who, type(ours if isinstance(ours, LazyDeltaError) else error).__name__, table)
            raise told from None
        if counted:
            self._note(context, kind, who, "ok", table)
        return result

    def _note(self, context: Any, kind: str, who: str, how: str, table: str | None) -> None:
        self.metrics.request(kind, how)
        self._log.write(kind, client=who, peer=_peer(context), how=how, table=None if table is None else table[:200])

    def _refusal(self, error: BaseException) -> Exception:
        return refusal(error, self.tables.without_places)


class _Signed:
    """The batches of a stream with the tickets behind them; errors leave as Flight has them."""

    def __init__(
        self, stream: ServedStream, ticket: Ticket, signer: TicketSigner, refused: Callable[[BaseException], Exception]
    ) -> None:
        self._stream = stream
        self._ticket = ticket
        self._signer = signer
        self._refused = refused

    def __iter__(self) -> _Signed:
        return self

    def __next__(self) -> tuple[pa.RecordBatch, bytes]:
        try:
            batch, position = next(self._stream)
        except StopIteration:
            raise
        except BaseException as error:  # noqa: BLE001 - nothing else may leave, see refusals
            raise self._refused(error) from None
        rest = msgspec.structs.replace(self._ticket, position=position, expires=self._signer.expiry())
        return batch, self._signer.encode(rest)


def _while_there(context: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if context.is_cancelled():
            raise StreamClosedError("The client has left")
        yield batch


def _client(context: Any) -> str:
    """Return whose budget a call takes of: that of its token, or of its connection where nobody has one."""
    who = identity_of(context)
    return _peer(context) if who == ANYONE else who.name


def _peer(context: Any) -> str:
    peer = context.peer()
    return peer.decode("utf-8", "replace") if isinstance(peer, bytes) else str(peer)


def _refuse(message: str, hint: str) -> Any:
    raise OptionError(message, hint=hint)
