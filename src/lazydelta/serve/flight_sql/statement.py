"""A statement of a client, in either language: checked and described when it arrives, run when its rows are fetched."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from lazydelta.delta_table import DeltaTable
from lazydelta.errors import KqlError, StreamClosedError
from lazydelta.kql.running.kql_database import KqlDatabases
from lazydelta.kql.running.kql_query import StoppableQuery
from lazydelta.kql.running.kql_query import columns as kql_columns
from lazydelta.kql.running.kql_query import run as run_kql
from lazydelta.serve.flight_sql.sql_guard import MOST_TEXT, CheckedQuery
from lazydelta.serve.flight_sql.sql_session import SqlSession

__all__ = ["Attended", "KqlStatement", "Running", "SqlStatement", "Statement", "TablesOfServer", "statement_of"]

Attended: TypeAlias = "Callable[[Callable[[], pa.Schema], Callable[[], None]], pa.Schema]"
"""What runs work for a client that may leave: the work, and what stops it from another thread."""

_KQL = "kql:"
_SQL = "sql:"


class TablesOfServer(Protocol):
    """What this package needs of the tables that a server has."""

    def names_for(self, identity: Any) -> list[str]:
        """Return the names of the tables that a client may read."""

    def open(self, name: str, identity: Any) -> DeltaTable:
        """Return a table at its newest version."""


class Running(Protocol):
    """A statement whose rows are being fetched."""

    cancelled: bool

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""

    def halt(self) -> None:
        """Let it begin no further request, from any thread, and wait for nothing."""

    def cancel(self) -> None:
        """Stop it, from any thread, and wait for requests that are under way."""


class Statement(Protocol):
    """A statement that may run: its columns, its parameters, and the way to run it."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""

    @property
    def parameters(self) -> pa.Schema:
        """The parameters with their types."""

    @property
    def table_names(self) -> tuple[str, ...]:
        """The tables that it reads."""

    def with_values(self, values: pa.RecordBatch | None) -> Statement:
        """Return the statement with values for its parameters, and the columns that it then has."""

    def start(self) -> Running:
        """Return it ready to run."""


@dataclass(frozen=True)
class SqlStatement:
    """A SELECT in DuckDB's dialect. The versions of its tables are those that it was described with."""

    session: SqlSession
    query: CheckedQuery
    tables: dict[str, DeltaTable]
    schema: pa.Schema
    parameters: pa.Schema
    values: pa.RecordBatch | None = None

    @property
    def table_names(self) -> tuple[str, ...]:
        """The tables that it reads."""
        return tuple(sorted(self.tables))

    def with_values(self, values: pa.RecordBatch | None) -> SqlStatement:
        """Return the statement with values for its parameters."""
        schema = self.session.columns(self.query, self.tables, values)
        return SqlStatement(self.session, self.query, self.tables, schema, self.parameters, values)

    def start(self) -> Running:
        """Return it ready to run."""
        return self.session.start(self.query, self.tables, self.values, self.schema)


@dataclass(frozen=True)
class KqlStatement:
    """A query in KQL."""

    text: str
    tables: TablesOfServer
    identity: Hashable
    databases: KqlDatabases
    opened: dict[str, DeltaTable]
    schema: pa.Schema
    parameters: pa.Schema = field(default_factory=lambda: pa.schema([]))

    @property
    def table_names(self) -> tuple[str, ...]:
        """The tables that it reads."""
        return tuple(sorted(self.opened))

    def with_values(self, values: pa.RecordBatch | None) -> KqlStatement:
        """Return the statement itself: KQL as it is here has no parameters."""
        if values is not None and values.num_columns:
            raise KqlError(
                "A query in KQL takes no bound values", hint="write them into the query, or name them with let"
            )
        return self

    def start(self) -> Running:
        """Return it ready to run."""
        return _RunningKql(self)

    def open(self, name: str) -> DeltaTable:
        """Return a table at the version that the statement first saw it at."""
        if name not in self.opened:
            self.opened[name] = self.tables.open(name, self.identity)
        return self.opened[name]


class _StopKql:
    """Stops one query in KQL from any thread, also before it has begun."""

    def __init__(self) -> None:
        self._query: StoppableQuery | None = None
        self._lock = Lock()
        self.cancelled = False

    def begun(self, query: StoppableQuery) -> None:
        with self._lock:
            if not self.cancelled:
                self._query = query
                return
        raise StreamClosedError("The statement was cancelled", hint="run it again")

    def ended(self) -> None:
        with self._lock:
            self._query = None

    def halt(self) -> None:
        with self._lock:
            self.cancelled = True
            if self._query is not None:
                self._query.halt()

    def cancel(self) -> None:
        self.halt()
        with self._lock:
            query = self._query
        if query is not None:
            query.cancel()


class _RunningKql(_StopKql):
    def __init__(self, statement: KqlStatement) -> None:
        super().__init__()
        self._statement = statement

    def batches(self) -> Iterator[pa.RecordBatch]:
        statement = self._statement
        names = {name: name for name in statement.tables.names_for(statement.identity)}
        try:
            with run_kql(
                statement.text, names, open_table=statement.open, begun=self.begun, databases=statement.databases
            ) as result:
                yield from result
        except GeneratorExit:
            raise
        except Exception as error:
            if self.cancelled:
                raise StreamClosedError("The statement was cancelled", hint="run it again") from error
            raise
        finally:
            self.ended()
        if self.cancelled:
            # A stream that was closed under DuckDB looks like one that has ended.
            raise StreamClosedError("The statement was cancelled", hint="run it again")


def statement_of(
    text: str,
    tables: TablesOfServer,
    identity: Hashable,
    session: SqlSession,
    language: str = "sql",
    attended: Attended = lambda work, _stop: work(),
) -> Statement:
    """Check and describe a text; ``kql:`` or ``sql:`` before it counts more than the session's language.

    ``attended`` runs what may read rows: a query in KQL whose ``toscalar`` has to be known before its columns are.
    """
    start = text.lstrip()
    if start[: len(_KQL)].lower() == _KQL:
        language, text = "kql", start[len(_KQL) :]
    elif start[: len(_SQL)].lower() == _SQL:
        language, text = "sql", start[len(_SQL) :]
    served = tables.names_for(identity)
    if language == "kql":
        if len(text) > MOST_TEXT:
            raise KqlError(f"The query is longer than {MOST_TEXT} characters", hint="ask for less at once")
        described = KqlStatement(text, tables, identity, session.kql, {}, pa.schema([]))
        stop = _StopKql()

        def columns() -> pa.Schema:
            names = {name: name for name in served}
            try:
                return kql_columns(
                    text, names, open_table=described.open, begun=stop.begun, databases=described.databases
                )
            finally:
                stop.ended()

        schema = attended(columns, stop.halt)
        return KqlStatement(text, tables, identity, session.kql, described.opened, schema)
    query = session.check(text, served)
    opened = {name: tables.open(name, identity) for name in query.tables}
    columns_of_sql, parameters = session.describe(query, opened)
    return SqlStatement(session, query, opened, columns_of_sql, parameters)
