"""DuckDB as a server runs it: a locked database for each statement, with the tables of that statement alone.

One more database parses and describes. It is locked as well and never reads a row: a schema is asked for with LIMIT 0,
and constants are not worked out, which for a large one would take as long as the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from threading import Lock
from typing import Any, NoReturn
from weakref import WeakSet

import pyarrow as pa

from lazydelta.delta_table import DeltaTable
from lazydelta.engines import duckdb as duckdb_engine
from lazydelta.engines.table_source import engine
from lazydelta.errors import LazyDeltaError, MemoryLimitError, QueryError, StreamClosedError
from lazydelta.kql.running.kql_database import LimitedDatabases
from lazydelta.row_scan.reading_pool import ReadingPool
from lazydelta.row_scan.row_stream import RowStream
from lazydelta.row_scan.rows_dataset import RowsDataset
from lazydelta.serve.flight_sql.bound_values import literal, with_values
from lazydelta.serve.flight_sql.parameter_types import parameter_types
from lazydelta.serve.flight_sql.sql_guard import CheckedQuery, SqlGuard

__all__ = ["RunningSql", "SqlSession"]

_BATCH_ROWS = 8192
_SETTINGS = (
    "SET GLOBAL TimeZone = 'UTC'",
    # A name that DuckDB does not know would be looked for among the variables of this program.
    "SET GLOBAL python_enable_replacements = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET allow_persistent_secrets = false",
    # What does not fit into memory is an error: a stranger's query writes no files.
    "SET temp_directory = ''",
    # Ten megabytes unless told otherwise, which are dozens of files that a LIMIT does not need.
    "SET streaming_buffer_size = '64KB'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


class SqlSession:
    """Checks, describes and runs the SQL of strangers.

    A statement has ``memory`` bytes in DuckDB and ``reading_memory`` for rows that were read ahead.
    """

    def __init__(self, *, memory: int, reading_memory: int, threads: int) -> None:
        self._duckdb = engine("duckdb", "serve")
        self._memory = memory
        self._reading_memory = reading_memory
        self._threads = threads
        self.kql = LimitedDatabases(memory=memory, reading_memory=reading_memory, threads=threads)
        """Where statements in KQL run, within the same limits."""
        self._parser = self.locked("SET GLOBAL disabled_optimizers = 'expression_rewriter'")
        self._guard = SqlGuard(self._parser)

    def locked(self, *further: str) -> Any:
        """Return a connection to a new database that can reach nothing and whose settings cannot be changed."""
        con = self._duckdb.connect(":memory:", config={"threads": self._threads, "memory_limit": f"{self._memory}B"})
        for setting in (*further, *_SETTINGS):
            con.execute(setting)
        return con

    def check(self, text: str, served: list[str]) -> CheckedQuery:
        """Return the query if it may run; no table is looked at."""
        return self._guard.check(text, served)

    def describe(self, query: CheckedQuery, tables: Mapping[str, DeltaTable]) -> tuple[pa.Schema, pa.Schema]:
        """Return the columns of a query and its parameters."""
        kinds = parameter_types(
            query.tree, query.parameters, self._guard.expression, lambda tree: self._columns(tree, tables)
        )
        nulls = {name: pa.scalar(None, kind) for name, kind in kinds.items()}
        schema = self._bound_columns(self.bound(query, nulls), tables)
        return schema, pa.schema([pa.field(name, kinds[name]) for name in query.parameters])

    def columns(
        self, query: CheckedQuery, tables: Mapping[str, DeltaTable], values: pa.RecordBatch | None
    ) -> pa.Schema:
        """Return the columns of a query with its values."""
        return self._bound_columns(self.bound(query, _by_name(query, values)), tables)

    def start(
        self, query: CheckedQuery, tables: Mapping[str, DeltaTable], values: pa.RecordBatch | None, schema: pa.Schema
    ) -> RunningSql:
        """Return a query that is ready to run; nothing is read yet."""
        tree = self.bound(query, _by_name(query, values))
        return RunningSql(self, self._guard.text_of(tree), tables, schema)

    def bound(self, query: CheckedQuery, values: Mapping[str, pa.Scalar]) -> dict[str, Any]:
        """Return the tree of a query with its values in place of parameters."""
        nodes = {name: self._guard.expression(literal(value)) for name, value in values.items()}
        found: dict[str, Any] = with_values(query.tree, nodes)
        return found

    def pool(self) -> ReadingPool:
        """Return the threads and the memory that one statement reads with."""
        return ReadingPool.for_store(self._reading_memory, remote=True)

    def close(self) -> None:
        """Close the database that parses."""
        self._parser.close()

    def _columns(self, tree: dict[str, Any], tables: Mapping[str, DeltaTable]) -> pa.Schema | None:
        try:
            return self._bound_columns(tree, tables)
        except QueryError:
            return None

    def _bound_columns(self, tree: dict[str, Any], tables: Mapping[str, DeltaTable]) -> pa.Schema:
        text = self._guard.text_of(tree)
        # What a cursor registers is its own.
        with closing(self._parser.cursor()) as cursor:
            try:
                for name, table in tables.items():
                    duckdb_engine.register(cursor, name, table)
                return cursor.sql(text).limit(0).to_arrow_table().schema
            except self._duckdb.Error as error:
                raise refusal(error) from error


class RunningSql:
    """One statement over a database of its own. ``batches`` is for one thread, ``cancel`` for any."""

    def __init__(self, session: SqlSession, text: str, tables: Mapping[str, DeltaTable], schema: pa.Schema) -> None:
        self._session = session
        self._text = text
        self._tables = tables
        self._schema = schema
        self._pool = session.pool()
        self._datasets: list[RowsDataset] = []
        self._con: Any = None
        self._lock = Lock()
        self.cancelled = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as they are made; only what is pulled is read."""
        reader = None
        try:
            try:
                reader = self._begin()
                while True:
                    batch = reader.read_next_batch()
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
            except StopIteration:
                if self.cancelled:
                    # A stream that was closed under DuckDB looks like one that has ended.
                    self._fail(None)
            except GeneratorExit:
                raise
            except Exception as error:  # noqa: BLE001 - DuckDB's, Arrow's and those of our own scan
                self._fail(error)
        finally:
            self._end(reader)

    def halt(self) -> None:
        """Let it begin no further request, wherever it is; whoever waits for rows gets an error."""
        with self._lock:
            self.cancelled = True
            if self._con is not None:
                self._con.interrupt()
        for stream in self._streams():
            stream.stop()

    def cancel(self) -> None:
        """Stop it, and wait for requests that are under way."""
        self.halt()
        for stream in self._streams():
            stream.close()
        self._pool.close()

    def _streams(self) -> list[RowStream]:
        return [stream for dataset in list(self._datasets) for stream in list(dataset.running or ())]

    def _begin(self) -> pa.RecordBatchReader:
        con = self._session.locked()
        with self._lock:
            if self.cancelled:
                con.close()
                raise StreamClosedError("The statement was cancelled", hint="run it again")
            self._con = con
        for name, table in self._tables.items():
            duckdb_engine.register(con, name, table, pool=self._pool, opened=self._remember)
        # Not execute(), which makes every row before the first is seen.
        return con.sql(self._text).to_arrow_reader(_BATCH_ROWS)

    def _remember(self, _name: str, dataset: RowsDataset) -> None:
        running: WeakSet[RowStream] = WeakSet()
        dataset.running = running
        self._datasets.append(dataset)

    def _fail(self, error: Exception | None) -> NoReturn:
        if self.cancelled or error is None:
            raise StreamClosedError("The statement was cancelled", hint="run it again") from error
        if isinstance(error, LazyDeltaError):
            raise error
        raise refusal(error) from error

    def _end(self, reader: pa.RecordBatchReader | None) -> None:
        with self._lock:
            con, self._con = self._con, None
        # The reader first: it holds threads of the connection.
        if reader is not None:
            reader.close()
        if con is not None:
            con.close()
        self._datasets.clear()
        if not self.cancelled:
            # Who cancels waits for requests that are under way; whoever wants to be told need not.
            self._pool.close()


def refusal(error: Exception) -> LazyDeltaError:
    """Return an error of ours for one of DuckDB's: its first lines, without the trace of our own code."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = " ".join(line.strip() for line in lines[:3])[:500]
    if type(error).__name__ == "OutOfMemoryException":
        return MemoryLimitError(f"The query needs more memory than a statement has here: {said}", hint="narrow it")
    return QueryError(f"DuckDB cannot answer the query: {said}", hint="mind DuckDB's dialect of SQL")


def _by_name(query: CheckedQuery, values: pa.RecordBatch | None) -> dict[str, pa.Scalar]:
    given = 0 if values is None else values.num_columns
    if given != len(query.parameters):
        message = f"The query has {len(query.parameters)} parameters, and {given} values are bound"
        raise QueryError(message, hint="bind one value for each")
    return {} if values is None else {name: values.column(at)[0] for at, name in enumerate(query.parameters)}
