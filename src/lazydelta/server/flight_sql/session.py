"""DuckDB inside a worker process: a locked database that holds the tables of one statement at a time.

A second database parses and describes. It is locked as well and never reads a row: it gets a schema with LIMIT 0 and
does not fold constants, which could take as long as the query.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.engines import duckdb as duckdb_engine
from lazydelta.errors import LazyDeltaError, MemoryLimitError, QueryError
from lazydelta.kql.execution.tables import LimitedDatabases
from lazydelta.rows.flow import ReadingPool
from lazydelta.runtime.database import engine
from lazydelta.server.flight_sql.guard import CATALOG, CatalogView, CheckedQuery, SqlGuard
from lazydelta.table.delta_table import DeltaTable

__all__ = ["SqlSession", "literal"]

_CULPRIT = re.compile(r"""\b(?:column|table|function|with name|near|alias)\s+["']?([\w.]+)""", re.IGNORECASE)
"""The name that a message of DuckDB or of the guard is about."""
_QUOTED = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)


# Bound parameters as constants of a query.
#
# DuckDB's Python API runs a query with parameters to its end before it returns a row. Constants in the tree are
# streamed like any query, and they prune files. They are inserted as tree nodes, so no value can become SQL.


_PLAIN = (
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_int8, "TINYINT"),
    (pa.types.is_int16, "SMALLINT"),
    (pa.types.is_int32, "INTEGER"),
    (pa.types.is_int64, "BIGINT"),
    (pa.types.is_uint8, "UTINYINT"),
    (pa.types.is_uint16, "USMALLINT"),
    (pa.types.is_uint32, "UINTEGER"),
    (pa.types.is_uint64, "UBIGINT"),
    (pa.types.is_float16, "FLOAT"),
    (pa.types.is_float32, "FLOAT"),
    (pa.types.is_float64, "DOUBLE"),
    (pa.types.is_date, "DATE"),
    (pa.types.is_time, "TIME"),
)
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_TO_MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1}


def literal(value: pa.Scalar) -> str:
    """Return a value as a SQL literal of its type."""
    kind = value.type
    if pa.types.is_null(kind):
        return "NULL"
    if pa.types.is_dictionary(kind):
        return literal(value.value)
    if pa.types.is_union(kind):
        # Clients that do not know a parameter's type send a union of all types.
        return literal(value.value) if value.is_valid else "NULL"
    name = _name(kind)
    if not value.is_valid:
        return f"CAST(NULL AS {name})"
    if pa.types.is_interval(kind):
        months, days, nanoseconds = value.as_py()
        return f"to_months({months}) + to_days({days}) + to_microseconds({_whole_microseconds(nanoseconds)})"
    if pa.types.is_duration(kind):
        return f"to_microseconds(CAST('{_microseconds(value)}' AS BIGINT))"
    text = _text(value)
    quoted = text.replace("'", "''")
    return f"CAST('{quoted}' AS {name})"


def _name(kind: pa.DataType) -> str:
    for test, name in _PLAIN:
        if test(kind):
            return name
    if any(test(kind) for test in _TEXTS):
        return "VARCHAR"
    if any(test(kind) for test in _BYTES):
        return "BLOB"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMPTZ" if kind.tz else "TIMESTAMP_NS" if kind.unit == "ns" else "TIMESTAMP"
    if pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return "INTERVAL"
    if pa.types.is_decimal(kind) and kind.precision <= 38:  # noqa: PLR2004 - DuckDB's widest
        return f"DECIMAL({kind.precision}, {kind.scale})"
    raise QueryError(f"A parameter of the type {kind} cannot be bound", hint="bind plain values")


def _text(value: pa.Scalar) -> str:
    kind = value.type
    if any(test(kind) for test in _TEXTS):
        text = str(value.as_py())
        if "\0" in text:
            raise QueryError(
                "A bound string has a zero byte, which DuckDB does not support", hint="bind it as a binary value"
            )
        return text
    if any(test(kind) for test in _BYTES):
        return "".join(f"\\x{byte:02X}" for byte in value.as_py())
    if pa.types.is_timestamp(kind) and kind.tz:
        # As a string in UTC: the time zone only affects how a client displays the timestamp.
        return f"{_shown(value, pa.timestamp(kind.unit))}+00"
    if pa.types.is_floating(kind):
        return repr(float(value.as_py()))
    return _shown(value, kind)


def _shown(value: pa.Scalar, kind: pa.DataType) -> str:
    array = pa.array([value.as_py()], value.type) if not pa.types.is_timestamp(value.type) else _alone(value)
    return str(pc.cast(pc.cast(array, kind), pa.string())[0].as_py())


def _alone(value: pa.Scalar) -> pa.Array:
    # From the integer, because Python's datetime has no nanoseconds.
    return pa.array([value.value], pa.int64()).cast(value.type)


def _microseconds(value: pa.Scalar) -> int:
    unit = value.type.unit
    return _whole_microseconds(value.value) if unit == "ns" else int(value.value * _TO_MICROSECONDS[unit])


def _whole_microseconds(nanoseconds: int) -> int:
    if nanoseconds % 1000:
        raise QueryError("A bound duration has nanoseconds, which DuckDB does not support", hint="round it")
    return int(nanoseconds // 1000)


def with_values(tree: Any, values: dict[str, dict[str, Any]]) -> Any:
    """Return a tree with every parameter replaced by the node of its value."""
    if isinstance(tree, list):
        return [with_values(each, values) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.get("class") == "PARAMETER":
        return {**values[str(tree["identifier"])], "alias": tree.get("alias", "")}
    return {key: [] if key == "named_param_map" else with_values(value, values) for key, value in tree.items()}


# Parameter types: a parameter has the type of the expression next to it.
#
# JDBC clients convert a value to the type that the server reports before they send it. DuckDB reports none until it has
# the values. For each parameter, find a neighbouring expression (the other side of a comparison, or what a list or
# range is compared with) and let DuckDB bind that expression alone over the same tables.


_NUMBER = "CAST(NULL AS BIGINT)"
_TEXT = "CAST(NULL AS VARCHAR)"
_TEXT_OPERATORS = frozenset({"~~", "!~~", "~~*", "!~~*", "~~~", "like_escape", "starts_with", "regexp_matches"})


def parameter_types(
    tree: dict[str, Any],
    parameters: tuple[str, ...],
    expression: Callable[[str], dict[str, Any]],
    bind: Callable[[dict[str, Any]], pa.Schema | None],
) -> dict[str, pa.DataType]:
    """Return a type for each parameter. The default is string, which DuckDB casts to what it needs.

    ``expression`` parses an expression. ``bind`` returns the columns of a tree, or None if DuckDB refuses it.
    """
    if not parameters:
        return {}
    nulls = {name: expression("NULL") for name in parameters}
    found: dict[str, pa.DataType] = {}
    statement = tree["statements"][0]
    for scope, name, neighbour in _neighbours(statement["node"], None, expression):
        if name in found:
            continue
        asked = {
            **scope,
            "modifiers": [],
            "select_list": [neighbour],
            "where_clause": None,
            "group_expressions": [],
            "group_sets": [],
            "having": None,
            "qualify": None,
            "sample": None,
            "aggregate_handling": "STANDARD_HANDLING",
        }
        schema = bind(with_values({"error": False, "statements": [{**statement, "node": asked}]}, nulls))
        if schema is not None and len(schema) == 1 and not pa.types.is_null(schema[0].type):
            found[name] = schema[0].type
    return {name: _asked_for(found.get(name, pa.string())) for name in parameters}


def _asked_for(kind: pa.DataType) -> pa.DataType:
    # Arrow's JDBC driver sends milliseconds whatever the unit. Other clients send values in their own type.
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms", kind.tz)
    return pa.time32("ms") if pa.types.is_time(kind) else kind


def _neighbours(
    node: Any, scope: dict[str, Any] | None, expression: Callable[[str], dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Yield, for parameters, the enclosing SELECT and an expression of their type."""
    if isinstance(node, list):
        for each in node:
            yield from _neighbours(each, scope, expression)
    if not isinstance(node, dict):
        return
    if node.get("type") == "SELECT_NODE":
        scope = node
    if scope is not None:
        for name, neighbour in _here(node, expression):
            yield scope, name, neighbour
    for each in node.values():
        yield from _neighbours(each, scope, expression)


def _here(node: dict[str, Any], expression: Callable[[str], dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    kind, sort = node.get("class"), node.get("type")
    if kind == "CAST" and _is_parameter(node.get("child")):
        yield node["child"]["identifier"], {**node, "alias": ""}
    elif sort == "LIMIT_MODIFIER":
        for part in ("limit", "offset"):
            if _is_parameter(node.get(part)):
                yield node[part]["identifier"], expression(_NUMBER)
    elif kind == "FUNCTION" and node.get("function_name") in _TEXT_OPERATORS:
        for each in node.get("arguments", []):
            if _is_parameter(each.get("expression")):
                yield each["expression"]["identifier"], expression(_TEXT)
    else:
        together = _together(node)
        others = [each for each in together if not _is_parameter(each)]
        for each in together:
            if _is_parameter(each) and others:
                yield each["identifier"], {**others[0], "alias": ""}


def _together(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the expressions of a node that share one type."""
    if node.get("class") == "COMPARISON":
        return [node["left"], node["right"]]
    if node.get("class") == "BETWEEN":
        return [node["input"], node["lower"], node["upper"]]
    kind = node.get("type")  # for the size of a sample it is a tree
    if isinstance(kind, str) and kind in {"COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_COALESCE"}:
        return list(node["children"])
    if node.get("class") == "FUNCTION" and node.get("is_operator"):
        return [each["expression"] for each in node.get("arguments", [])]
    return []


def _is_parameter(node: Any) -> bool:
    return isinstance(node, dict) and node.get("class") == "PARAMETER"


_BATCH_ROWS = 8192
_SETTINGS = (
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET allow_persistent_secrets = false",
    # Running out of memory is an error: an untrusted query writes no files.
    "SET temp_directory = ''",
    # The default is ten megabytes, which is dozens of files that a LIMIT does not need.
    "SET streaming_buffer_size = '64KB'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


class SqlSession:
    """Checks, describes and runs untrusted SQL.

    A statement has ``memory`` bytes in DuckDB and ``reading_memory`` bytes for prefetched rows.
    """

    def __init__(self, *, memory: int, reading_memory: int, threads: int) -> None:
        self._duckdb = engine("duckdb", "serve")
        self._memory = memory
        self._reading_memory = reading_memory
        self._threads = threads
        self.kql = LimitedDatabases(memory=memory, reading_memory=reading_memory, threads=threads)
        """The databases that run KQL statements, within the same limits."""
        self._parser = self.locked("SET GLOBAL disabled_optimizers = 'expression_rewriter'")
        self._guard = SqlGuard(self._parser)
        self._runner: Any = None

    def locked(self, *further: str) -> Any:
        """Return a connection to a new database without external access and with locked settings."""
        limits = {"threads": self._threads, "memory_limit": f"{self._memory}B"}
        return duckdb_engine.connect(*further, *_SETTINGS, extra="serve", **limits)

    def described(
        self,
        text: str,
        names: tuple[str, ...],
        open_table: Callable[[str], DeltaTable],
        values: pa.RecordBatch | None = None,
    ) -> tuple[pa.Schema, pa.Schema]:
        """Check a query and return its columns and parameters. Bound values are used if there are any."""
        with _placed(text):
            return self._described(text, names, open_table, values)

    def _described(
        self,
        text: str,
        names: tuple[str, ...],
        open_table: Callable[[str], DeltaTable],
        values: pa.RecordBatch | None,
    ) -> tuple[pa.Schema, pa.Schema]:
        query = self._guard.check(text, names)
        # Tables registered on a cursor are private to it.
        with closing(self._parser.cursor()) as cursor, self._as_refusals():
            self._register(cursor, query, names, open_table, None)
            kinds = parameter_types(
                query.tree, query.parameters, self._guard.expression, lambda tree: self._columns(cursor, tree)
            )
            parameters = pa.schema([pa.field(name, kinds[name]) for name in query.parameters])
            if values is None:
                bound = self._bound(query, {name: pa.scalar(None, kind) for name, kind in kinds.items()})
            else:
                bound = self._bound(query, _by_name(query, values))
            if query.explain:
                return cursor.sql(query.explain + "SELECT 1").limit(0).to_arrow_table().schema, parameters
            made = cursor.sql(self._guard.text_of(bound)).limit(0).to_arrow_table().schema
            return pa.schema([field.with_type(_plain(field.type)) for field in made]), parameters

    def rows(
        self,
        text: str,
        names: tuple[str, ...],
        open_table: Callable[[str], DeltaTable],
        values: pa.RecordBatch | None,
        schema: pa.Schema | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query as they are produced, in the columns that it was described with."""
        query = self._guard.check(text, names)
        sql = query.explain + self._guard.text_of(self._bound(query, _by_name(query, values)))
        with contextlib.ExitStack() as ends, self._as_refusals():
            pool = ReadingPool.for_store(self._reading_memory, remote=True)
            ends.callback(pool.close)
            con = ends.enter_context(self._connection(query))
            self._register(con, query, names, open_table, pool)
            # Not execute(), which produces every row before it returns the first.
            reader = con.sql(sql).to_arrow_reader(_BATCH_ROWS)
            ends.callback(reader.close)  # before the connection, whose threads it holds
            for batch in reader:
                shown = batch.schema if schema is None else schema
                columns = [
                    column if column.type == field.type else column.cast(field.type)
                    for column, field in zip(batch.columns, shown, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=shown)

    def close(self) -> None:
        """Close the databases."""
        self._parser.close()
        if self._runner is not None:
            self._runner.close()

    @contextlib.contextmanager
    def _connection(self, query: CheckedQuery) -> Iterator[Any]:
        """Yield the database that runs statements, and remove the tables of this statement afterwards.

        Creating a database takes longer than most statements. A statement cannot create anything in it. After a failed
        statement, the next one gets a new database anyway.
        """
        con, self._runner = self._runner or self.locked(), None
        try:
            yield con
            for name in (*query.tables, *(view.name for view in query.views)):
                con.unregister(name)
        except BaseException:
            con.close()
            raise
        self._runner = con

    def _bound(self, query: CheckedQuery, values: Mapping[str, pa.Scalar]) -> dict[str, Any]:
        """Return the tree of a query with values in place of parameters."""
        nodes = {name: self._guard.expression(literal(value)) for name, value in values.items()}
        found: dict[str, Any] = with_values(query.tree, nodes)
        return found

    def _columns(self, cursor: Any, tree: dict[str, Any]) -> pa.Schema | None:
        try:
            return cursor.sql(self._guard.text_of(tree)).limit(0).to_arrow_table().schema
        except self._duckdb.Error:
            return None

    def _register(
        self,
        con: Any,
        query: CheckedQuery,
        names: tuple[str, ...],
        open_table: Callable[[str], DeltaTable],
        pool: ReadingPool | None,
    ) -> None:
        for name in query.tables:
            duckdb_engine.register(con, name, open_table(name), pool=pool)
        if query.views:
            for view, table in self._catalog(query.views, names, open_table).items():
                con.register(view, table)

    def _catalog(
        self, views: tuple[CatalogView, ...], names: tuple[str, ...], open_table: Callable[[str], DeltaTable]
    ) -> dict[str, pa.Table]:
        """Return DuckDB's catalog views over empty copies of the tables that the client may read."""
        with_columns = any(each.needs_columns for each in views)
        with closing(self.locked(f"ATTACH ':memory:' AS {CATALOG}", f"USE {CATALOG}")) as con:
            for name in names:
                quoted = '"' + name.replace('"', '""') + '"'
                schema = pa.schema([pa.field("unknown", pa.int8())])
                if with_columns:
                    # A table that cannot be opened must not hide the others.
                    with contextlib.suppress(LazyDeltaError):
                        schema = open_table(name).schema().to_arrow()
                con.register("shape", schema.empty_table())
                con.execute(f"CREATE TABLE {quoted} AS FROM shape")
                con.unregister("shape")
            return {each.name: con.sql(each.sql).to_arrow_table() for each in views}

    @contextlib.contextmanager
    def _as_refusals(self) -> Iterator[None]:
        try:
            yield
        except (LazyDeltaError, RecursionError, BrokenPipeError):
            raise
        except (self._duckdb.Error, pa.ArrowException, RuntimeError, OSError) as error:
            raise refusal(error) from error


@contextlib.contextmanager
def _placed(text: str) -> Iterator[None]:
    """Give an error the place of the name that it is about. DuckDB's own place is that in the checked query."""
    try:
        yield
    except QueryError as error:
        culprit = _CULPRIT.search(str(error.args[0]))
        if error.line is None and culprit is not None:
            plain = _QUOTED.sub(lambda each: " " * len(each[0]), text)
            found = re.search(rf"(?<!\w){re.escape(culprit[1])}(?!\w)", plain, re.IGNORECASE)
            if found is not None:
                before = text[: found.start()]
                error.line, error.column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise


def refusal(error: Exception) -> LazyDeltaError:
    """Convert a DuckDB error: keep its first lines, without our stack trace."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    said = " ".join(line.strip() for line in lines[:3])[:500]
    if "Out of Memory Error" in lines[0] or isinstance(error, MemoryError):
        return MemoryLimitError(
            f"The query needs more memory than a statement has here: {said}", hint="narrow the query"
        )
    return QueryError(f"DuckDB cannot answer the query: {said}", hint="use the SQL dialect of DuckDB")


def _by_name(query: CheckedQuery, values: pa.RecordBatch | None) -> dict[str, pa.Scalar]:
    given = 0 if values is None else values.num_columns
    if given != len(query.parameters):
        message = f"The query has {len(query.parameters)} parameters, and {given} values are bound"
        raise QueryError(message, hint="bind one value for each parameter")
    return {} if values is None else {name: values.column(at)[0] for at, name in enumerate(query.parameters)}


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without dictionaries: a stream would need them before its rows, and clients know no ENUM."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field), keys_sorted=kind.keys_sorted)
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(at)) for at in range(kind.num_fields)])
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain(field.type))
