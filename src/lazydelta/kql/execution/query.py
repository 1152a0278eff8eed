"""Execution of a query: parse it, bind it to a plan, translate the plan to SQL, and stream DuckDB's result."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

import duckdb
import pyarrow as pa

from lazydelta.errors import KqlError, LazyDeltaError, MemoryLimitError, StreamClosedError
from lazydelta.kql.binding.plan import Limit, Relation, Scan, Scope, Session
from lazydelta.kql.binding.tabular import Tabular
from lazydelta.kql.binding.types import SQL_TYPES, Typed, literal
from lazydelta.kql.computing.arrow_functions import ComputedConnection
from lazydelta.kql.computing.steps import stage_batches, staged_type
from lazydelta.kql.execution.pushdown import Pushed, push_down
from lazydelta.kql.execution.sql import PlanSql, Stage
from lazydelta.kql.execution.tables import OWN_MEMORY, KqlDatabases, KqlTables, Queryable
from lazydelta.kql.functions.declaration import PythonFunction
from lazydelta.kql.functions.macros import VOLATILE
from lazydelta.kql.language import syntax
from lazydelta.kql.language.parser import parse, results, with_parameters
from lazydelta.kql.language.syntax import QueryText
from lazydelta.runtime.database import interrupts, is_interrupt, run_interruptibly
from lazydelta.runtime.results import ArrowStream
from lazydelta.table.delta_table import DeltaTable

__all__ = [
    "KIND",
    "RENDER",
    "KqlResult",
    "QuerySettings",
    "StoppableQuery",
    "columns",
    "reached",
    "result_count",
    "run",
]


# Map runtime errors to a position in the query.
#
# DuckDB reports which operation failed, but not where it came from. If exactly one part of the query becomes such an
# operation, that is the position; otherwise it is the start of the query body.


_SIGNS = {"multiplication": "*", "addition": "+", "subtraction": "-"}
_OVERFLOW = re.compile(r"Overflow in (multiplication|addition|subtraction)")
_TOO_LARGE = re.compile(r"Overflow|out of range")
_REGEX = re.compile(r"^(?:missing|unexpected|invalid|no argument for|bad|trailing|pattern too large)\b")
_PATTERNS = {"extract": 0, "trim": 0, "trim_start": 0, "trim_end": 0}


def failed(text: str, program: syntax.Program, said: str) -> KqlError:
    """Return a ``KqlError`` for an error that DuckDB raised while running a query."""
    lines = said.strip().splitlines()
    reason = re.sub(r"^[\w ]+ Error: ", "", lines[0]) if lines else "DuckDB gives no reason"
    places = _places(program, reason)
    at = places[0] if len(places) == 1 else program.body.at
    hint = "check the values that it computes with"
    if _TOO_LARGE.search(reason):
        hint = "a number is too large for its type: compute with todouble()"
    elif _REGEX.match(reason):
        hint = "a regular expression that the query computes is not valid"
    return QueryText(text).error(at, f"the query failed: {reason}", hint=hint)


def _places(program: syntax.Program, reason: str) -> list[int]:
    if match := _OVERFLOW.search(reason):
        sign = _SIGNS[match[1]]
        return [node.at for node in _nodes(program) if isinstance(node, syntax.Binary) and node.op == sign]
    if "sum(" in reason:
        return [node.at for node in _calls(program) if node.name in {"sum", "sumif"}]
    if match := re.search(r"Overflow on (\w+)\(", reason):
        return [node.at for node in _calls(program) if node.name == match[1]]
    if _REGEX.match(reason):
        return [*_patterns(program)]
    return []


def _patterns(program: syntax.Program) -> Iterator[int]:
    for node in _nodes(program):
        pattern: syntax.Node | None = None
        if isinstance(node, syntax.Binary) and node.op == "matches regex":
            pattern = node.right
        elif isinstance(node, syntax.Call) and node.name in _PATTERNS and node.arguments:
            pattern = node.arguments[_PATTERNS[node.name]]
        # Literal patterns were validated before the query ran.
        if pattern is not None and not isinstance(pattern, syntax.Literal):
            yield pattern.at


def _calls(program: syntax.Program) -> Iterator[syntax.Call]:
    return (node for node in _nodes(program) if isinstance(node, syntax.Call))


def _nodes(root: Any) -> Iterator[syntax.Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting += node
        elif isinstance(node, syntax.Node):
            yield node
            waiting += [getattr(node, field.name) for field in fields(node)]


_BATCH_ROWS = 8192
_FEW_VALUES = 1000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
KIND, RENDER = b"kusto.type", b"kusto.render"
"""Keys of metadata in the schema that ``columns`` returns."""
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


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """What a request adds to its query: the time of ``now()``, values of parameters, and a window of time.

    ``window`` is a column with the first and the last timestamp; each may be None. It applies to every table that has a
    datetime column of that name. ``take`` bounds the number of rows. ``result`` is the number of the result of a query
    that has several.
    """

    now: dt.datetime | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    window: tuple[str, dt.datetime | None, dt.datetime | None] | None = None
    take: int | None = None
    result: int | None = None


class StoppableQuery(Protocol):
    """A running query, as seen by other threads."""

    def halt(self) -> None:
        """Start no further requests and return at once. The consumer gets an error."""

    def cancel(self) -> None:
        """Stop the query and wait for running requests."""


class KqlResult(ArrowStream):
    """The result of a query, computed as it is read. Iterate over it once for record batches.

    ``kinds`` maps columns to Kusto types; ``render`` is the requested visualization with its properties, or None. A
    dynamic column holds JSON strings. The result supports the Arrow stream interface (``pyarrow.table(result)``), and
    closing it stops all reading.
    """

    def __init__(self, run: _QueryRun, relation: Relation, render: syntax.Render | None) -> None:
        self._run = run
        self._relation = relation
        self.kinds: dict[str, str] = {each.name: each.kind for each in relation.columns}
        self.render = None if render is None else (render.visualization, dict(render.properties))
        self._sql, self._pushed = run.prepare(relation)
        self._reader = run.start(self._sql)
        self.schema: pa.Schema = _shown_schema(self._reader.schema, relation)
        self._closed = False
        self._ahead: pa.RecordBatch | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._closed:
            raise StreamClosedError("The rows of this query have been read, or it was closed", hint="run it again")
        try:
            while (batch := self._read() if self._ahead is None else self._ahead) is not None:
                self._ahead = None
                yield batch
        finally:
            self.close()

    def _read(self) -> pa.RecordBatch | None:
        try:
            batch = self._reader.read_next_batch()
        except StopIteration:
            return None
        except Exception as error:
            raise self._run.translated(error) from error
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _export(self) -> Iterator[pa.RecordBatch]:
        yield from iter(self)

    def peek(self) -> pa.RecordBatch | None:
        """Return the first batch, which iteration returns again; None if there is none."""
        if self._ahead is None and not self._closed:
            self._ahead = self._read()
        return self._ahead

    def explain(self) -> dict[str, Any]:
        """Return what was pushed to each table, what was not and why, and the SQL that DuckDB runs."""
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


def run(
    text: str,
    tables: Mapping[str, Queryable],
    *,
    now: dt.datetime | None = None,
    settings: QuerySettings | None = None,
    pushdown: bool = True,
    open_table: Callable[[str], DeltaTable] | None = None,
    begun: Callable[[StoppableQuery], None] | None = None,
    databases: KqlDatabases = OWN_MEMORY,
) -> KqlResult:
    """Bind a query and start it; ``pushdown=False`` reads every row of every table, for comparison.

    ``begun`` is called before anything is read, with an object that stops the query from another thread. ``databases``
    sets where the query runs and which resources it may use.
    """
    known = KqlTables(tables, open_table, databases.pool())
    chosen = settings or QuerySettings(now)
    with interrupts():
        running, relation, bound = _bound(text, known, chosen, pushdown=pushdown, begun=begun, databases=databases)
        try:
            return KqlResult(running, relation, bound.render)
        except BaseException:
            running.close(None)
            raise


def columns(
    text: str,
    tables: Mapping[str, Queryable],
    *,
    settings: QuerySettings | None = None,
    open_table: Callable[[str], DeltaTable] | None = None,
    begun: Callable[[StoppableQuery], None] | None = None,
    databases: KqlDatabases = OWN_MEMORY,
) -> pa.Schema:
    """Return the columns of a query, running only what ``toscalar`` and ``in`` need; see ``run``.

    The metadata of each field has its type in Kusto, and that of the schema the visualization, as JSON.
    """
    known = KqlTables(tables, open_table, databases.pool())
    chosen = settings or QuerySettings()
    running, relation, bound = _bound(text, known, chosen, pushdown=True, begun=begun, databases=databases)
    try:
        sql, _ = running.prepare(relation)
        shown = _shown_schema(running.start(f"SELECT * FROM ({sql}) LIMIT 0").schema, relation)
        kinds = [each.kind for each in relation.columns]
        made = [each.with_metadata({KIND: kind}) for each, kind in zip(shown, kinds, strict=True)]
        render = bound.render
        drawn = None if render is None else {"visualization": render.visualization, **dict(render.properties)}
        return pa.schema(made, metadata=None if drawn is None else {RENDER: json.dumps(drawn, default=str)})
    finally:
        running.close(None)


class Reached(NamedTuple):
    """What a query pushes to its tables, and its order comparisons of strings."""

    scans: dict[Scan, Pushed]
    text_orders: list[syntax.Binary | syntax.Between]


def reached(text: str, tables: KqlTables, now: dt.datetime | None = None) -> Reached:
    """Return what a query pushes to its tables, running only what ``toscalar`` and ``in`` need."""
    running, relation, bound = _bound(text, tables, QuerySettings(now=now), pushdown=True)
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
    settings: QuerySettings,
    *,
    pushdown: bool,
    begun: Callable[[StoppableQuery], None] | None = None,
    databases: KqlDatabases = OWN_MEMORY,
) -> tuple[_QueryRun, Relation, Tabular]:
    program = _chosen(text, with_parameters(text, parse(text), settings.parameters), settings.result)
    timestamp = dt.datetime.now(dt.UTC) if settings.now is None else settings.now
    if timestamp.tzinfo is None:
        timestamp = timestamp.replace(tzinfo=dt.UTC)
    ticks = (timestamp - _EPOCH) // dt.timedelta(microseconds=1) * 10
    running = _QueryRun(text, program, tables, databases, pushdown=pushdown)
    try:
        if begun is not None:
            begun(running)
        session = Session(text, ticks, running.tables, running, program.settings)
        session.window = _window(settings)
        tabular = Tabular(session)
        try:
            relation = tabular.program(program, Scope(), is_query=True)
            if settings.take is not None:
                relation = Relation(Limit(relation.plan, settings.take), relation.columns)
        except RecursionError as error:
            raise session.error(0, "the query is nested too deeply", "name parts of it with let") from error
    except BaseException:
        running.close(None)
        raise
    return running, relation, tabular


def result_count(text: str) -> int:
    """Return how many results a query has."""
    return len(results(parse(text)))


def _chosen(text: str, program: syntax.Program, number: int | None) -> syntax.Program:
    found = results(program)
    if number is None and len(found) > 1:
        hint = "read them with lazydelta.kql.query_all or the command `lazydelta kql`"
        raise QueryText(text).error(found[1][1].body.at, f"the query has {len(found)} results", hint=hint)
    return found[number or 0][1]


def _window(settings: QuerySettings) -> tuple[str, syntax.Where] | None:
    if settings.window is None:
        return None
    column, first, last = settings.window
    sides = [(">=", first), ("<=", last)]
    conditions = [f"[{json.dumps(column)}] {op} datetime({each.isoformat()})" for op, each in sides if each is not None]
    pipeline = parse(f"T | where {' and '.join(conditions) or 'true'}").body
    assert isinstance(pipeline, syntax.Pipeline)  # noqa: S101 - written so above
    where = pipeline.operators[0]
    assert isinstance(where, syntax.Where)  # noqa: S101
    return column, where


class _QueryRun:
    """The connection of one query, and the parts that run before the rest."""

    def __init__(
        self, text: str, program: syntax.Program, tables: KqlTables, databases: KqlDatabases, *, pushdown: bool
    ) -> None:
        self._text = text
        self._program = program
        self.tables = tables
        self._pushdown = pushdown
        self._tables: list[str] = []
        self._sources: list[ComputedConnection] = []
        self.ran_first: list[Relation] = []
        self._is_limited = databases.is_limited
        connection = databases.connection()
        self._connection = ComputedConnection(connection, functools.partial(databases.define, connection))

    def prepare(self, relation: Relation) -> tuple[str, list[tuple[Scan, list[str], Pushed]]]:
        """Return the SQL of a relation, with its scans registered for one run."""
        writer = PlanSql(self.tables.column_sql, self.tables.native_list)
        return writer.relation(relation), self._register(relation, writer)

    def _register(self, relation: Relation, writer: PlanSql) -> list[tuple[Scan, list[str], Pushed]]:
        pushed = self.pushed(relation) if self._pushdown else {}
        return self._register_on(self._connection, writer, pushed)

    def _register_on(
        self, connection: ComputedConnection, writer: PlanSql, pushed: dict[Scan, Pushed]
    ) -> list[tuple[Scan, list[str], Pushed]]:
        registered = []
        for scan, columns in writer.scans.items():
            asked = pushed.get(scan, Pushed())
            connection.register(scan.view, self.tables.reader(scan, columns, asked))
            registered.append((scan, columns, asked))
        for stage in writer.stages:
            # A connection streams one result at a time, so the source of a stage has its own.
            source = ComputedConnection(self._connection.cursor(), self._connection.define)
            self._sources.append(source)
            registered += self._register_on(source, stage.writer, pushed)
            connection.register(stage.plan.view, self._staged(source, stage))
        return registered

    def _staged(self, source: ComputedConnection, stage: Stage) -> pa.RecordBatchReader:
        relation = source.sql(stage.sql)
        # The rows can be read only once, so their Arrow types are asked of nulls of the same types.
        nulls = ", ".join(
            f'CAST(NULL AS {kind}) AS "{name}"' for name, kind in zip(relation.columns, relation.types, strict=True)
        )
        empty = source.sql(f"SELECT {nulls}").to_arrow_table().schema
        kept = [empty.field(f"k_{each}") for each in stage.kept]
        made = [pa.field(f"o_{each}", staged_type(kind)) for each, kind in stage.plan.outputs.items()]
        schema = pa.schema([*made, *kept] or [pa.field("nothing", pa.bool_())])

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                rows = source.sql(stage.sql).to_arrow_reader(_BATCH_ROWS)
                yield from stage_batches(stage.plan, rows, schema)
            except GeneratorExit:
                raise
            except BaseException as error:
                self.tables.failure = self.tables.failure or error
                raise

        return pa.RecordBatchReader.from_batches(schema, batches())

    def pushed(self, relation: Relation) -> dict[Scan, Pushed]:
        """Return what is pushed to each scan."""
        return push_down(relation, self._constant, self.tables.has_bounds)

    def _constant(self, expression: Typed) -> Typed | None:
        # Dynamic values have no bounds, so there is no need to compute them.
        return None if expression.kind == "dynamic" else self.known(expression)

    def start(self, sql: str) -> pa.RecordBatchReader:
        """Return the result of an SQL query as a stream."""
        try:
            # Not execute(), which computes all rows before it returns the first.
            relation = self._connection.sql(sql)
            return run_interruptibly(self._connection, lambda: relation.to_arrow_reader(_BATCH_ROWS))
        except Exception as error:
            raise self.translated(error) from error

    def values(self, relation: Relation) -> tuple[str, list[Any] | str]:
        """Run a relation whose values the rest of the query depends on."""
        self.ran_first.append(relation)
        (column,) = relation.columns[:1]
        writer = PlanSql(self.tables.column_sql, self.tables.native_list)
        as_text = f"CAST({column.identity} AS VARCHAR)"
        expression = {"datetime": f"epoch_us({column.identity}) * 10", "dynamic": as_text, "guid": as_text}
        inner = writer.inner(
            relation, [f"{column.identity} AS x", f"{expression.get(column.kind, column.identity)} AS v"]
        )
        self._register(relation, writer)
        name = self._table("values")
        try:
            self._connection.execute(f"CREATE TABLE {name} AS {inner}")
            found = self._connection.execute(f"SELECT v FROM {name} LIMIT {_FEW_VALUES + 1}").fetchall()
        except Exception as error:
            raise self.translated(error) from error
        if len(found) > _FEW_VALUES:
            return column.kind, f"SELECT x FROM {name}"
        return column.kind, [
            json.loads(value) if column.kind == "dynamic" and value is not None else value for (value,) in found
        ]

    def table(self, relation: Relation) -> str:
        """Store the rows of a relation that the query uses more than once."""
        self.ran_first.append(relation)
        writer = PlanSql(self.tables.column_sql, self.tables.native_list)
        inner = writer.inner(relation, dict.fromkeys(each.identity for each in relation.columns))
        self._register(relation, writer)
        name = self._table("rows")
        try:
            self._connection.execute(f"CREATE TABLE {name} AS {inner}")
        except Exception as error:
            raise self.translated(error) from error
        return name

    def _table(self, prefix: str) -> str:
        """Return the name of a new table. It is not temporary, because the sources of stages have other connections."""
        name = f"{prefix}_{uuid.uuid4().hex}"
        self._tables.append(name)
        return name

    def row_function(
        self, expressions: list[Typed], columns: list[tuple[str, str]]
    ) -> Callable[[list[Any]], tuple[Any, ...]]:
        """Return a function that evaluates expressions over one row, on a connection of its own."""
        used = frozenset[str]().union(*(each.refs for each in expressions))
        places = [index for index, (identity, _) in enumerate(columns) if identity in used]
        given = ", ".join(f"CAST(? AS {SQL_TYPES[columns[index][1]]}) AS {columns[index][0]}" for index in places)
        shown = ", ".join(
            f"CAST({each.sql} AS VARCHAR)" if each.kind in {"dynamic", "guid"} else each.sql for each in expressions
        )
        sql = f"SELECT {shown} FROM (SELECT {given or '1'})"
        connection = ComputedConnection(self._connection.cursor(), self._connection.define)
        self._sources.append(connection)

        def evaluate(values: list[Any]) -> tuple[Any, ...]:
            (row,) = connection.execute(sql, [values[index] for index in places]).fetchall()
            found: tuple[Any, ...] = row
            return found

        return evaluate

    def check_regex(self, pattern: str) -> str | None:
        """Return DuckDB's error for a regular expression, or None if it is valid."""
        try:
            self._connection.execute("SELECT regexp_matches('', ?)", [pattern]).fetchall()
        except duckdb.Error as error:
            return re.sub(r"^[\w ]+ Error: ", "", str(error).splitlines()[0])
        return None

    def known(self, expression: Typed) -> Typed | None:
        """Return the value of an expression without columns, or None if it differs from row to row or fails."""
        as_text = f"CAST({expression.sql} AS VARCHAR)"
        value = {"datetime": f"epoch_us({expression.sql}) * 10", "dynamic": as_text, "guid": as_text}.get(
            expression.kind, expression.sql
        )
        if any(word in value for word in ("values_", *VOLATILE)):
            return None
        try:
            # Fetch everything: DuckDB runs nothing new on a connection until a result is fully read.
            ((found,),) = self._connection.execute(f"SELECT {value}").fetchall()
        except duckdb.Error:
            return None
        is_json = expression.kind == "dynamic" and found is not None
        return literal(expression.kind, json.loads(found) if is_json else found)

    def define(self, function: PythonFunction) -> None:
        """Register a Python function, if no query on the database has done so before."""
        self._connection.define(function)

    def translated(self, error: Exception) -> BaseException:
        """Return a lazydelta error: the one of the table if reading failed, else one made from DuckDB's message.

        Ctrl-C stays what it is, also where DuckDB or Arrow met it.
        """
        if isinstance(self.tables.failure, KeyboardInterrupt) or is_interrupt(error):
            return KeyboardInterrupt()
        if isinstance(self.tables.failure, LazyDeltaError):
            return self.tables.failure
        if isinstance(error, LazyDeltaError):
            return error
        if self._is_limited and _OUT_OF_MEMORY in str(error):
            message = f"The query needs more memory than a statement has here: {str(error).strip().splitlines()[0]}"
            return MemoryLimitError(message, hint="narrow the query")
        return failed(self._text, self._program, str(self.tables.failure or error))

    def halt(self) -> None:
        """See ``StoppableQuery``."""
        for each in (self._connection, *self._sources):
            with contextlib.suppress(duckdb.Error):  # it has already ended
                each.interrupt()
        self.tables.halt()

    def cancel(self) -> None:
        """See ``StoppableQuery``."""
        self.halt()
        self.tables.close()

    def close(self, reader: pa.RecordBatchReader | None) -> None:
        """Stop everything. The reader goes first, because it holds the connection's threads."""
        self.tables.stopped = True
        if reader is not None:
            reader.close()
        for each in self._sources:
            each.close()
        with contextlib.suppress(duckdb.Error):  # it was interrupted, or its database is gone
            for name in self._tables:
                self._connection.execute(f"DROP TABLE IF EXISTS {name}")
        self._connection.close()
        self.tables.close()


def _shown_schema(made: pa.Schema, relation: Relation) -> pa.Schema:
    fields = zip(made, relation.columns, strict=True)
    return pa.schema([pa.field(column.name, _ARROW.get(column.kind, field.type)) for field, column in fields])


def _shown(where: Any) -> Any:
    """Return a predicate as JSON values."""
    if isinstance(where, dict):
        return {key: _shown(value) for key, value in where.items()}
    if isinstance(where, list):
        return [_shown(each) for each in where]
    nanoseconds = getattr(where, "nanoseconds", None)
    if nanoseconds is not None:
        return (_EPOCH + dt.timedelta(microseconds=nanoseconds // 1000)).isoformat()
    return where if where is None or isinstance(where, str | int | float | bool) else str(where)
