"""``Queries``: statements in SQL and KQL that arrive over HTTP, and which of them run for which client.

A statement is described and run in a worker process, within the budgets that Flight has too. Each client sees and
cancels its own statements only.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lazydelta.errors import LazyDeltaError, StreamClosedError
from lazydelta.server.actions import ServingMetrics
from lazydelta.server.budgets import Budgets
from lazydelta.server.flight_sql.calls import SqlLimits
from lazydelta.server.flight_sql.statement import Spill, Statement, StatementAnswer, check_text, described
from lazydelta.server.streams import Outcome, ServedStream
from lazydelta.server.tables import ANYONE, Identity, ServedTables
from lazydelta.server.tokens import AccessLog
from lazydelta.server.worker_pool import KqlSettings, WorkerPool
from lazydelta.table.delta_table import DeltaTable

__all__ = ["Call", "Queries", "RunningQuery", "ShownQuery"]

_KEPT = 100
_LONGEST_ID = 200


@dataclass
class Call:
    """One HTTP request: who sent it and what. ``left`` is set when the client disconnects."""

    identity: Identity
    peer: str
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    left: threading.Event = field(default_factory=threading.Event)

    @property
    def client(self) -> str:
        """The client whose budgets the call uses: the holder of its token, or its address if there are no tokens."""
        return self.peer if self.identity == ANYONE else self.identity.name


@dataclass
class ShownQuery:
    """A statement that runs or has ended, as its client may see it."""

    id: str
    user: str
    language: str
    text: str
    began: dt.datetime
    state: str = "InProgress"
    rows: int = 0
    seconds: float = 0.0
    failure: str | None = None
    is_listed: bool = True


class RunningQuery:
    """The result of a statement: its columns, and its batches as they are produced."""

    def __init__(self, shown: ShownQuery) -> None:
        self.shown = shown
        self.schema: pa.Schema = pa.schema([])
        self.tables: dict[str, DeltaTable] = {}
        self.is_cancelled = threading.Event()
        self._stream: ServedStream | None = None

    def cancel(self) -> None:
        """Stop the statement. Its client gets an error."""
        self.is_cancelled.set()
        if self._stream is not None:
            self._stream.cancel()

    def begin(self, stream: ServedStream) -> None:
        """Take the stream of a statement that was described."""
        self._stream = stream
        if self.is_cancelled.is_set():
            stream.cancel()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        assert self._stream is not None  # noqa: S101 - see Queries.run
        for batch, _ in self._stream:
            self.shown.rows += batch.num_rows
            yield batch

    def close(self) -> None:
        """Stop the statement if it still runs."""
        if self._stream is not None:
            self._stream.close()


class Queries:
    """Runs statements. ``workers`` and ``budgets`` may be those of a Flight server beside it."""

    def __init__(
        self,
        tables: ServedTables,
        workers: WorkerPool,
        limits: SqlLimits,
        *,
        budgets: Budgets,
        metrics: ServingMetrics,
        access_log: AccessLog,
    ) -> None:
        self.tables = tables
        self.workers = workers
        self.limits = limits
        self.budgets = budgets
        self.metrics = metrics
        self.log = access_log
        self._spill = Spill(limits.spill_bytes)
        self._lock = threading.Lock()
        self._running: dict[str, list[RunningQuery]] = {}
        self._ended: dict[str, deque[ShownQuery]] = {}

    @contextlib.contextmanager
    def run(
        self,
        call: Call,
        language: str,
        text: str,
        *,
        identifier: str,
        settings: KqlSettings | None = None,
        seconds: float | None = None,
        is_listed: bool = True,
    ) -> Iterator[RunningQuery]:
        """Describe a statement and start it. It is stopped at the end of the block."""
        began = time.monotonic()
        shown = ShownQuery(identifier[:_LONGEST_ID], call.identity.name, language, text, dt.datetime.now(dt.UTC))
        shown.is_listed = is_listed
        query = RunningQuery(shown)
        self._enter(call, query)
        try:
            self._start(call, query, settings, seconds)
            yield query
            shown.state = "Completed"
        except GeneratorExit:
            shown.state = "Cancelled"
            raise
        except BaseException as error:
            shown.state = "Cancelled" if isinstance(error, StreamClosedError) else "Failed"
            shown.failure = str(error.args[0])[:500] if isinstance(error, LazyDeltaError) else "an internal error"
            raise
        finally:
            query.close()
            shown.seconds = time.monotonic() - began
            self._leave(call, query)

    def shown(self, identity: Identity) -> list[ShownQuery]:
        """Return the statements of a client, newest first: those that run and the last that ended."""
        with self._lock:
            running = [each.shown for each in self._running.get(identity.name, ()) if each.shown.is_listed]
            return [*reversed(running), *reversed(self._ended.get(identity.name, ()))]

    def cancel(self, identity: Identity, identifier: str) -> int:
        """Cancel the running statements of a client with this identifier. Return how many there were."""
        with self._lock:
            found = [each for each in self._running.get(identity.name, ()) if each.shown.id == identifier]
        for each in found:
            each.cancel()
        return len(found)

    def cancel_all(self) -> None:
        """Cancel everything, for a server that shuts down."""
        with self._lock:
            found = [each for running in self._running.values() for each in running]
        for each in found:
            each.cancel()

    def room(self, call: Call, memory: int) -> Callable[[], None]:
        """Reserve memory for other work of a client. Return the function that releases it."""
        return self.budgets.reserve(call.client, memory, call.left.is_set)

    def _start(self, call: Call, query: RunningQuery, settings: KqlSettings | None, seconds: float | None) -> None:
        shown, identity = query.shown, call.identity
        check_text(shown.text, shown.language)
        given = [each for each in (seconds, self.limits.statement_seconds) if each is not None]
        most = min(given) if given else None

        def opened(name: str) -> DeltaTable:
            return self.tables.open(name, identity)

        def is_unwanted() -> bool:
            return call.left.is_set() or query.is_cancelled.is_set()

        give_back = self.budgets.reserve(call.client, self.limits.memory + self.limits.reading_memory, is_unwanted)
        try:
            names = tuple(self.tables.names_for(identity))
            statement = Statement(shown.language, shown.text, names, {}, settings=settings)
            statement = described(self.workers, statement, opened, cancelled=is_unwanted, seconds=most)
            query.schema = statement.schema
            query.tables = statement.tables
            # The described schema has metadata for clients; rows are read without it.
            plain = replace(statement, schema=statement.schema.remove_metadata())
            answer = StatementAnswer(plain, self.workers, opened, spill=self._spill, freed=give_back)
            began = time.monotonic()
            stream = ServedStream(
                answer,
                cancelled=call.left.is_set,
                freed=give_back,
                report=lambda outcome: self._report(call, statement, outcome, time.monotonic() - began),
                seconds=most,
                others_wait=lambda: self.budgets.waiting > 0,
                patience=self.limits.patience,
            )
        except BaseException:
            give_back()
            raise
        query.begin(stream)

    def _report(self, call: Call, statement: Statement, outcome: Outcome, seconds: float) -> None:
        names = ",".join(statement.table_names)
        self.metrics.stream(names, "http", outcome.how, rows=outcome.rows, size=outcome.size, seconds=seconds)
        facts: dict[str, Any] = {"table": names, "of": "http", "rows": outcome.rows, "bytes": outcome.size}
        failure = None if outcome.error is None else type(outcome.error).__name__
        who = call.identity.name
        self.log.write("stream", client=who, peer=call.peer, how=outcome.how, error=failure, **facts)

    def _enter(self, call: Call, query: RunningQuery) -> None:
        with self._lock:
            self._running.setdefault(call.identity.name, []).append(query)

    def _leave(self, call: Call, query: RunningQuery) -> None:
        with self._lock:
            running = self._running[call.identity.name]
            running.remove(query)
            if not running:
                del self._running[call.identity.name]
            if query.shown.is_listed:
                self._ended.setdefault(call.identity.name, deque(maxlen=_KEPT)).append(query.shown)
