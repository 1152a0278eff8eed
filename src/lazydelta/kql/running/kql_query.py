"""A query run: text to plan, plan to SQL, rows as DuckDB makes them."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, Self

import duckdb
import pyarrow as pa

from lazydelta.delta_table import DeltaTable
from lazydelta.errors import LazyDeltaError, MemoryLimitError, StreamClosedError
from lazydelta.kql.language import kql_syntax as syntax
from lazydelta.kql.language.kql_parser import parse
from lazydelta.kql.meaning.query_plan import Relation, Scan
from lazydelta.kql.meaning.query_session import Scope, Session
from lazydelta.kql.meaning.tabular import Tabular
from lazydelta.kql.meaning.typed import Typed, literal
from lazydelta.kql.running.kql_database import OWN_MEMORY, KqlDatabases
from lazydelta.kql.running.kql_tables import KqlTables, Queryable
from lazydelta.kql.running.plan_sql import PlanSql
from lazydelta.kql.running.pushdown import Pushed, push_down
from lazydelta.kql.running.run_failures import failed

__all__ = ["KqlResult", "StoppableQuery", "columns", "reached", "run"]

_BATCH_ROWS = 8192
_FEW_VALUES = 1000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_OUT_OF_MEMORY = "Out of Memory Error"
_ARROW = {
    "bool": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "real": pa.float64(),
    "string": pa.string(),
    "dynamic": pa.string(),
    "guid": pa.string(),
    "datetime": pa.timestamp("us", "UTC"),
    "timespan": pa.duration("us"),
}


class StoppableQuery(Protocol):
    """A query that runs, for other threads."""

    def halt(self) -> None:
        """Let it begin no further request, and wait for nothing; whoever waits for rows gets an error."""

    def cancel(self) -> None:
        """Stop it, and wait for requests that are under way."""


class KqlResult:
    """The rows of a query, made while they are read; iterate over it for record batches, once.

    ``kinds`` are Kusto's types by column; ``render`` is how the query wants to be shown, with its properties, or None.
    A dynamic column holds JSON text. It reads as an Arrow stream (``pyarrow.table(result)``), and closing it stops all
    reading.
    """

    def __init__(self, run: _Run, relation: Relation, render: syntax.Render | None) -> None:
        self._run = run
        self._relation = relation
        self.kinds: dict[str, str] = {each.name: each.kind for each in relation.columns}
        self.render = None if render is None else (render.visualization, dict(render.properties))
        self._sql, self._pushed = run.prepare(relation)
        self._reader = run.start(self._sql)
        self.schema: pa.Schema = _shown_schema(self._reader.schema, relation)
        self._closed = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._closed:
            raise StreamClosedError("The rows of this query have been read, or it was closed", hint="run it again")
        try:
            while True:
                try:
                    batch = self._reader.read_next_batch()
                except StopIteration:
                    return
                except Exception as error:
                    raise self._run.translated(error) from error
                yield pa.RecordBatch.from_arrays(
                    [
                        column if column.type == field.type else column.cast(field.type)
                        for column, field in zip(batch.columns, self.schema, strict=True)
                    ],
                    schema=self.schema,
                )
        finally:
            self.close()

    def read_all(self) -> pa.Table:
        """Return all rows as a table."""
        return pa.Table.from_batches(iter(self), schema=self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a PyArrow reader."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def explain(self) -> dict[str, Any]:
        """Return what reached each table, what did not and why, and the SQL that DuckDB runs."""
        tables = [
            {
                "table": scan.table,
                "columns": [scan.columns[each] for each in columns],
                "where": _shown(pushed.where),
                "row_limit": pushed.limit,
                "conditions": [
                    {"text": each.text, "reached": each.reached, "why": each.why or None} for each in pushed.notes
                ],
            }
            for scan, columns, pushed in self._pushed
        ]
        return {"tables": tables, "sql": self._sql}

    def close(self) -> None:
        """Stop reading."""
        if not self._closed:
            self._closed = True
            self._run.close(self._reader)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run(
    text: str,
    tables: Mapping[str, Queryable],
    *,
    now: dt.datetime | None = None,
    pushdown: bool = True,
    open_table: Callable[[str], DeltaTable] | None = None,
    begun: Callable[[StoppableQuery], None] | None = None,
    databases: KqlDatabases = OWN_MEMORY,
) -> KqlResult:
    """Bind a query and start it; ``pushdown=False`` reads every row of every table, for comparison.

    ``begun`` is given, before anything is read, what stops the query from another thread. ``databases`` is where it
    runs, and what it may take there.
    """
    known = KqlTables(tables, open_table, databases.pool())
    running, relation, bound = _bound(text, known, now, pushdown=pushdown, begun=begun, databases=databases)
    try:
        return KqlResult(running, relation, bound.render)
    except BaseException:
        running.close(None)
        raise


def columns(
    text: str,
    tables: Mapping[str, Queryable],
    *,
    open_table: Callable[[str], DeltaTable] | None = None,
    begun: Callable[[StoppableQuery], None] | None = None,
    databases: KqlDatabases = OWN_MEMORY,
) -> pa.Schema:
    """Return the columns of a query, without running more of it than ``toscalar`` and ``in`` need; see ``run``."""
    known = KqlTables(tables, open_table, databases.pool())
    running, relation, _ = _bound(text, known, None, pushdown=True, begun=begun, databases=databases)
    try:
        sql, _ = running.prepare(relation)
        return _shown_schema(running.start(f"SELECT * FROM ({sql}) LIMIT 0").schema, relation)
    finally:
        running.close(None)


class Reached(NamedTuple):
    """What of a query reaches its tables, and where it compares the order of texts."""

    scans: dict[Scan, Pushed]
    text_orders: list[syntax.Binary | syntax.Between]


def reached(text: str, tables: KqlTables, now: dt.datetime | None = None) -> Reached:
    """Return what of a query reaches its tables, without running more of it than ``toscalar`` and ``in`` need."""
    running, relation, bound = _bound(text, tables, now, pushdown=True)
    try:
        scans: dict[Scan, Pushed] = {}
        for each in (relation, *running.ran_first):
            scans |= running.pushed(each)
        return Reached(scans, bound.session.text_orders)
    finally:
        running.close(None)


def _bound(
    text: str,
    tables: KqlTables,
    now: dt.datetime | None,
    *,
    pushdown: bool,
    begun: Callable[[StoppableQuery], None] | None = None,
    databases: KqlDatabases = OWN_MEMORY,
) -> tuple[_Run, Relation, Tabular]:
    program = parse(text)
    moment = dt.datetime.now(dt.UTC) if now is None else now
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    ticks = (moment - _EPOCH) // dt.timedelta(microseconds=1) * 10
    running = _Run(text, program, tables, databases, pushdown=pushdown)
    try:
        if begun is not None:
            begun(running)
        session = Session(text, ticks, running.tables, running)
        tabular = Tabular(session)
        try:
            relation = tabular.program(program, Scope())
        except RecursionError as error:
            raise session.error(0, "the query is nested too deeply", "name parts of it with let") from error
    except BaseException:
        running.close(None)
        raise
    return running, relation, tabular


class _Run:
    """The connection of one query, and what must run before the rest."""

    def __init__(
        self, text: str, program: syntax.Program, tables: KqlTables, databases: KqlDatabases, *, pushdown: bool
    ) -> None:
        self._text = text
        self._program = program
        self.tables = tables
        self._pushdown = pushdown
        self._views = 0
        self.ran_first: list[Relation] = []
        self._is_limited = databases.is_limited
        self._connection = databases.connection()

    def prepare(self, relation: Relation) -> tuple[str, list[tuple[Scan, list[str], Pushed]]]:
        """Return the SQL of a relation, with its scans registered for one run."""
        writer = PlanSql(self.tables.column_sql)
        return writer.relation(relation), self._register(relation, writer)

    def _register(self, relation: Relation, writer: PlanSql) -> list[tuple[Scan, list[str], Pushed]]:
        pushed = self.pushed(relation) if self._pushdown else {}
        registered = []
        for scan, columns in writer.scans.items():
            asked = pushed.get(scan, Pushed())
            self._connection.register(scan.view, self.tables.reader(scan, columns, asked))
            registered.append((scan, columns, asked))
        return registered

    def pushed(self, relation: Relation) -> dict[Scan, Pushed]:
        """Return what reaches each scan."""
        return push_down(relation, self._known, self.tables.has_bounds)

    def start(self, sql: str) -> pa.RecordBatchReader:
        """Return the rows of SQL as they are made."""
        try:
            # Not execute(), which makes every row before the first is seen.
            return self._connection.sql(sql).to_arrow_reader(_BATCH_ROWS)
        except Exception as error:
            raise self.translated(error) from error

    def values(self, relation: Relation) -> tuple[str, list[Any] | str]:
        """Run a relation whose values the rest of the query is made of."""
        self.ran_first.append(relation)
        (column,) = relation.columns[:1]
        writer = PlanSql(self.tables.column_sql)
        as_text = f"CAST({column.identity} AS VARCHAR)"
        expression = {"datetime": f"epoch_us({column.identity}) * 10", "dynamic": as_text, "guid": as_text}
        inner = writer.inner(
            relation, [f"{column.identity} AS x", f"{expression.get(column.kind, column.identity)} AS v"]
        )
        self._register(relation, writer)
        self._views += 1
        name = f"values_{self._views}"
        try:
            self._connection.execute(f"CREATE TEMP TABLE {name} AS {inner}")
            found = self._connection.execute(f"SELECT v FROM {name} LIMIT {_FEW_VALUES + 1}").fetchall()
        except Exception as error:
            raise self.translated(error) from error
        if len(found) > _FEW_VALUES:
            return column.kind, f"SELECT x FROM {name}"
        return column.kind, [
            json.loads(value) if column.kind == "dynamic" and value is not None else value for (value,) in found
        ]

    def check_regex(self, pattern: str) -> str | None:
        """Ask DuckDB about a regular expression."""
        try:
            self._connection.execute("SELECT regexp_matches('', ?)", [pattern]).fetchall()
        except duckdb.Error as error:
            return re.sub(r"^[\w ]+ Error: ", "", str(error).splitlines()[0])
        return None

    def _known(self, expression: Typed) -> Typed | None:
        value = expression.sql if expression.kind != "datetime" else f"epoch_us({expression.sql}) * 10"
        if expression.kind == "dynamic" or "values_" in value:
            return None
        try:
            # All of it: DuckDB starts nothing new on a connection before a result is read to its end.
            ((found,),) = self._connection.execute(f"SELECT {value}").fetchall()
        except duckdb.Error:
            return None
        return literal(expression.kind, found)

    def translated(self, error: Exception) -> LazyDeltaError:
        """Return an error of ours: that of the table if reading one failed, else what DuckDB says."""
        if isinstance(self.tables.failure, LazyDeltaError):
            return self.tables.failure
        if isinstance(error, LazyDeltaError):
            return error
        if self._is_limited and _OUT_OF_MEMORY in str(error):
            message = f"The query needs more memory than a statement has here: {str(error).strip().splitlines()[0]}"
            return MemoryLimitError(message, hint="narrow it")
        return failed(self._text, self._program, str(self.tables.failure or error))

    def halt(self) -> None:
        """See ``StoppableQuery``."""
        with contextlib.suppress(duckdb.Error):  # it has ended by itself
            self._connection.interrupt()
        self.tables.halt()

    def cancel(self) -> None:
        """See ``StoppableQuery``."""
        self.halt()
        self.tables.close()

    def close(self, reader: pa.RecordBatchReader | None) -> None:
        """Stop everything; the reader first, because it holds the connection's threads."""
        self.tables.stopped = True
        if reader is not None:
            reader.close()
        self._connection.close()
        self.tables.close()


def _shown_schema(made: pa.Schema, relation: Relation) -> pa.Schema:
    fields = zip(made, relation.columns, strict=True)
    return pa.schema([pa.field(column.name, _ARROW.get(column.kind, field.type)) for field, column in fields])


def _shown(where: Any) -> Any:
    """Return a predicate as JSON can hold it."""
    if isinstance(where, dict):
        return {key: _shown(value) for key, value in where.items()}
    if isinstance(where, list):
        return [_shown(each) for each in where]
    nanoseconds = getattr(where, "nanoseconds", None)
    if nanoseconds is not None:
        return (_EPOCH + dt.timedelta(microseconds=nanoseconds // 1000)).isoformat()
    return where if where is None or isinstance(where, str | int | float | bool) else str(where)
