"""The tables of a query, and how their rows reach DuckDB: the only module that knows how tables are read.

Each reference to a table has its own reader, with the columns in use, the pruning predicate and the row limit. Rows are
produced in a DuckDB thread as DuckDB pulls them. Errors raised there are kept, because DuckDB would replace them with
its own.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import duckdb
import pyarrow as pa

from lazydelta.engines.duckdb import connect
from lazydelta.engines.sql import bound_of_newest
from lazydelta.errors import OptionError
from lazydelta.kql.binding.plan import Scan
from lazydelta.kql.binding.types import quoted
from lazydelta.kql.execution.pushdown import Pushed
from lazydelta.kql.functions.declaration import PythonFunction
from lazydelta.kql.functions.macros import MACROS
from lazydelta.predicates import parse_predicate
from lazydelta.rows.flow import ReadingPool
from lazydelta.rows.request import RowRequest
from lazydelta.rows.scanner import RowScanner
from lazydelta.sidecar.handle import snapshot_of
from lazydelta.table.delta_table import DeltaTable

__all__ = ["OWN_MEMORY", "KqlDatabases", "KqlTables", "LimitedDatabases", "Queryable"]


# Structs, arrays and maps of a table as ``dynamic`` values: JSON with datetimes and numbers as Kusto writes them.


def nested_json(sql: str, kind: pa.DataType) -> str:
    """Return SQL that converts a nested value to JSON."""
    # DuckDB's own conversion is faster, and correct for most types.
    return _json(sql, kind, 0) if _needs_words(kind) else f"to_json({sql})"


def _needs_words(kind: pa.DataType) -> bool:
    """Return whether a type contains, at any depth, values that DuckDB writes differently: NaN, datetimes, bytes."""
    if pa.types.is_nested(kind):
        return any(_needs_words(kind.field(index).type) for index in range(kind.num_fields))
    return any(
        test(kind)
        for test in (pa.types.is_floating, pa.types.is_temporal, pa.types.is_binary, pa.types.is_large_binary)
    )


def _json(sql: str, kind: pa.DataType, depth: int) -> str:
    if pa.types.is_struct(kind):
        return f"CASE WHEN {sql} IS NOT NULL THEN {_object(sql, kind, depth)} END"
    if pa.types.is_map(kind):
        entry = f"e{depth}"
        key, value = f"CAST({entry}.key AS VARCHAR)", _json(f"{entry}.value", kind.item_type, depth + 1)
        pairs = f"list_transform(map_entries({sql}), lambda {entry}: {{'key': {key}, 'value': {value}}})"
        return f"to_json(map_from_entries({pairs}))"
    if pa.types.is_nested(kind):
        element = f"e{depth}"
        return f"to_json(list_transform({sql}, lambda {element}: {_json(element, kind.value_type, depth + 1)}))"
    if pa.types.is_floating(kind):
        return f"kql_real_json({sql})"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return f"CASE WHEN {sql} IS NOT NULL THEN to_json(kql_timestamp_text(CAST({sql} AS TIMESTAMP))) END"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return f"to_json(to_base64({sql}))"
    return f"to_json({sql})"


def _object(sql: str, kind: pa.StructType, depth: int) -> str:
    fields = (kind.field(index) for index in range(kind.num_fields))
    parts = (
        f"{quoted(field.name)}, {_json(f'struct_extract({sql}, {quoted(field.name)})', field.type, depth)}"
        for field in fields
    )
    return f"json_object({', '.join(parts)})"


Queryable: TypeAlias = "DeltaTable | pa.Table | str | os.PathLike[str]"
"""Anything a table name may refer to: a Delta table, its URI or path, or an Arrow table."""

_UTC_MICROSECONDS = pa.timestamp("us")


class KqlTables:
    """Tables by name, opened when a query first refers to them. All of them read with ``pool`` if it is set."""

    def __init__(
        self,
        tables: Mapping[str, Queryable],
        open_table: Callable[[str], DeltaTable] | None = None,
        pool: ReadingPool | None = None,
    ) -> None:
        self._given = dict(tables)
        self._open_table = open_table or DeltaTable
        self._pool = pool
        self._opened: dict[str, DeltaTable | pa.Table] = {}
        self.failure: BaseException | None = None
        self._running: list[Iterator[pa.RecordBatch]] = []
        self.stopped = False

    def names(self) -> list[str]:
        """Return the known names."""
        return sorted(self._given)

    def open(self, name: str) -> DeltaTable | pa.Table | None:
        """Return the table of that name, or None if there is none."""
        if name not in self._given:
            return None
        if name not in self._opened:
            given = self._given[name]
            if isinstance(given, str | os.PathLike):
                self._opened[name] = self._open_table(os.fspath(given))
            elif isinstance(given, DeltaTable | pa.Table):
                self._opened[name] = given
            else:
                message = f"The table {name!r} is a {type(given).__name__}"
                raise OptionError(message, hint="pass a DeltaTable, a URI or a pyarrow.Table")
        return self._opened[name]

    def columns(self, name: str) -> list[tuple[str, str]] | None:
        """Return the columns of a table with Kusto's types."""
        table = self.open(name)
        return None if table is None else [(field.name, _kind(field.type)) for field in _schema(table)]

    def has_bounds(self, scan: Scan, name: str) -> bool:
        """Return whether files can be pruned by a column. Binary is a string in KQL, but not in the log."""
        table = self.open(scan.table)
        if not isinstance(table, DeltaTable):
            return False
        kind = _schema(table).field(name).type
        return not (pa.types.is_binary(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind))

    def column_sql(self, scan: Scan, identity: str) -> str:
        """Return SQL that converts a column of the reader to its Kusto type."""
        table = self.open(scan.table)
        assert table is not None  # noqa: S101 - the plan was made from it
        kind = _schema(table).field(scan.columns[identity]).type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            sql = f"coalesce({identity}, '')"
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            sql = f"coalesce(to_base64({identity}), '')"
        elif pa.types.is_nested(kind) or pa.types.is_null(kind):
            sql = nested_json(identity, kind)
        else:
            types = {"int": "INTEGER", "long": "BIGINT", "real": "DOUBLE", "datetime": "TIMESTAMP", "bool": "BOOLEAN"}
            made = types.get(_kind(kind))
            sql = f"CAST({identity} AS {made})" if made else identity
        return f"{sql} AS {identity}"

    def native_list(self, scan: Scan, identity: str, kind: str) -> str | None:
        """Return SQL, with {} for an array of a table, of its elements as a kind; None if they need JSON."""
        table = self.open(scan.table)
        assert table is not None  # noqa: S101 - the plan was made from it
        found = _schema(table).field(scan.columns[identity]).type
        if not (pa.types.is_list(found) or pa.types.is_large_list(found)):
            return None
        inner = found.value_type
        fits = {
            "long": pa.types.is_signed_integer(inner),
            "real": pa.types.is_float64(inner) or pa.types.is_signed_integer(inner),
            "string": pa.types.is_string(inner) or pa.types.is_large_string(inner),
        }
        targets = {"long": "BIGINT", "real": "DOUBLE", "string": "VARCHAR"}
        return f"CAST({{}} AS {targets[kind]}[])" if fits.get(kind, False) else None

    def reader(self, scan: Scan, identities: list[str], pushed: Pushed) -> pa.RecordBatchReader:
        """Return the rows of one table reference, with the identities as column names."""
        table = self.open(scan.table)
        assert table is not None  # noqa: S101 - the plan was made from it
        names = [scan.columns[each] for each in identities]
        fields = [
            pa.field(each, _delivered(_schema(table).field(name).type))
            for each, name in zip(identities, names, strict=True)
        ]
        schema = pa.schema(fields or [pa.field("nothing", pa.bool_())])
        rows = self._rows(table, names, pushed)
        self._running.append(rows)
        return pa.RecordBatchReader.from_batches(schema, self._delivered_batches(rows, schema, pushed.limit))

    def halt(self) -> None:
        """Start no further requests and return at once."""
        self.stopped = True
        for rows in list(self._running):
            stop: Any = getattr(rows, "stop", None)
            if stop is not None:
                stop()

    def close(self) -> None:
        """Stop reading. A consumer that still pulls gets no more rows."""
        self.stopped = True
        for rows in self._running:
            # A DuckDB thread may be running it; it then ends at the next batch.
            if getattr(rows, "gi_running", False):
                continue
            close: Any = getattr(rows, "close", None)
            if close is not None:
                close()

    def _rows(self, table: DeltaTable | pa.Table, names: list[str], pushed: Pushed) -> Iterator[pa.RecordBatch]:
        if isinstance(table, pa.Table):
            return iter(table.select(names).to_batches() if names else _empty_batches(table.num_rows))
        if self._pool is None and pushed.newest is None and not pushed.by_path:
            return table.rows(columns=names, where=pushed.where, limit=pushed.limit)
        snapshot = snapshot_of(table)
        trust = snapshot.options.float_max == "trust"
        where = parse_predicate(pushed.where, snapshot.schema, trust_float_max=trust)
        newest = None if pushed.newest is None else bound_of_newest(snapshot, pushed.newest[:1], pushed.newest[1])
        request = RowRequest.of(snapshot.schema, columns=names, where=where, limit=pushed.limit, files_where=newest)
        return RowScanner(snapshot, request, pool=self._pool, by_path=pushed.by_path).stream()

    def _delivered_batches(
        self, rows: Iterator[pa.RecordBatch], schema: pa.Schema, limit: int | None
    ) -> Iterator[pa.RecordBatch]:
        left = limit
        try:
            if left == 0:
                return
            for batch in rows:
                if self.stopped:
                    return
                taken = batch if left is None else batch.slice(0, left)
                yield _delivered_batch(taken, schema)
                if left is not None:
                    left -= taken.num_rows
                    if left <= 0:
                        return
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failure = error
            raise
        finally:
            close: Any = getattr(rows, "close", None)
            if close is not None:
                close()


def _schema(table: DeltaTable | pa.Table) -> pa.Schema:
    return table.schema().to_arrow() if isinstance(table, DeltaTable) else table.schema


def _kind(kind: pa.DataType) -> str:
    tests: list[tuple[Callable[[pa.DataType], bool], str]] = [
        (pa.types.is_boolean, "bool"),
        (lambda each: pa.types.is_int8(each) or pa.types.is_int16(each) or pa.types.is_int32(each), "int"),
        (pa.types.is_integer, "long"),
        (pa.types.is_floating, "real"),
        (pa.types.is_decimal, "decimal"),
        (pa.types.is_string, "string"),
        (pa.types.is_large_string, "string"),
        (pa.types.is_binary, "string"),
        (pa.types.is_large_binary, "string"),
        (pa.types.is_timestamp, "datetime"),
        (pa.types.is_date, "datetime"),
    ]
    return next((name for test, name in tests if test(kind)), "dynamic")


def _delivered(kind: pa.DataType) -> pa.DataType:
    # Datetimes are UTC whatever zone the schema has, and DuckDB's have microseconds.
    return _UTC_MICROSECONDS if pa.types.is_timestamp(kind) else kind


def _delivered_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if not batch.num_columns:
        return pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, pa.bool_())], schema=schema)
    columns = [
        column if column.type == field.type else column.cast(field.type, safe=False)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _empty_batches(count: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))]


# Databases in which queries run: one shared by the program, or a locked one per untrusted query.
#
# DuckDB limits memory per database, so bounding the memory of a single query takes a database of its own.


_SETTINGS = (
    "SET GLOBAL error_on_division_by_zero = false",
    "SET GLOBAL ieee_floating_point_ops = true",
    "SET GLOBAL preserve_insertion_order = true",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
)
# The default is ten megabytes, as much as dozens of files that a preview does not need.
_READ_AHEAD = "SET streaming_buffer_size = '64KB'"
# A query can read only the tables that it was given.
_SHUT = "SET enable_external_access = false"
_LOCKED = (
    "SET allow_community_extensions = false",
    "SET allow_persistent_secrets = false",
    # Running out of memory is an error: an untrusted query must not write files.
    "SET temp_directory = ''",
)


class KqlDatabases(Protocol):
    """Databases in which queries run."""

    @property
    def is_limited(self) -> bool:
        """Whether exceeding the memory limit raises a dedicated error."""

    def connection(self) -> Any:
        """Return a connection for one query. The query closes it."""

    def define(self, connection: Any, function: PythonFunction) -> None:
        """Register a Python function in the database of a connection."""

    def pool(self) -> ReadingPool | None:
        """Return the threads and memory that all scans of one query share, or None if each scan has its own."""


class _OwnMemory:
    """The database shared by all queries of this process, because creating one takes longer than most queries."""

    is_limited = False

    def connection(self) -> Any:
        # Readers and temporary tables belong to a cursor, so queries do not see those of other queries.
        cursor = _shared(os.getpid()).cursor()
        cursor.execute(_READ_AHEAD)
        return cursor

    def define(self, _connection: Any, function: PythonFunction) -> None:
        # Not on the query's cursor: DuckDB forgets the Python side of a function with the connection that made it, and
        # other queries that use it would crash.
        _define(_shared(os.getpid()), function)

    def pool(self) -> ReadingPool | None:
        return None


OWN_MEMORY: KqlDatabases = _OwnMemory()
"""One database for all queries of a program, with the program's own memory limit."""


class LimitedDatabases:
    """A locked database for each query, with ``memory`` bytes in DuckDB.

    ``reading_memory`` limits the prefetched rows of all scans of a query together.
    """

    is_limited = True

    def __init__(self, *, memory: int, reading_memory: int, threads: int) -> None:
        self._config = {"threads": threads, "memory_limit": f"{memory}B"}
        self._reading_memory = reading_memory

    def connection(self) -> Any:
        """Return a connection to a new database that no other query uses."""
        return _made(self._config, _READ_AHEAD, *_LOCKED, _SHUT, "SET lock_configuration = true")

    def define(self, connection: Any, function: PythonFunction) -> None:
        """Register a Python function in the query's own database."""
        _define(connection, function)

    def pool(self) -> ReadingPool:
        """Return the threads and memory that all scans of one query share."""
        return ReadingPool.for_store(self._reading_memory, remote=True)


def _made(config: dict[str, Any], *further: str) -> Any:
    database = connect(extra="kql", **config)
    # In one transaction, because each of the many statements would otherwise be one of its own.
    macros = "; ".join(f"CREATE MACRO {head} AS {body}" for head, body in MACROS.items())
    database.execute(f"BEGIN; {macros}; COMMIT")
    for setting in (*_SETTINGS, *further):
        database.execute(setting)
    return database


def _define(database: Any, function: PythonFunction) -> None:
    with _DEFINING:
        try:
            database.create_function(
                function.name,
                # Without a fixed number of parameters DuckDB passes the arguments as they are.
                lambda *arrays: function.compute(*arrays),  # noqa: PLW0108 - DuckDB counts the parameters of others
                None,
                function.result,
                type="arrow",
                null_handling="special",
            )
        except (duckdb.CatalogException, duckdb.NotImplementedException):
            return  # an earlier query has defined it


_DEFINING = threading.Lock()


def _shared(process: int) -> Any:
    """Return the database of a process. A forked child needs its own, because it cannot use its parent's threads."""
    with _OPENING:
        return _opened(process)


_OPENING = threading.Lock()


@functools.lru_cache(maxsize=1)
def _opened(_process: int) -> Any:
    database = _made({}, _SHUT)
    # A database with Python functions must be closed before the interpreter ends, or DuckDB reports leaks.
    atexit.register(database.close)
    return database
