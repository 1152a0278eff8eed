"""``lazydelta.sql``: a SELECT over named tables or ``delta('URI')``, run by DuckDB, with its result as a stream.

DuckDB pushes comparisons of columns with constants into a scan. `_Pruning` adds what people write as well and DuckDB
keeps to itself: ``LIKE 'x%'``, casts to dates and functions of time in WHERE, and ORDER BY … DESC LIMIT.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow.dataset import Dataset

from lazydelta.engines import duckdb as engine
from lazydelta.errors import LazyDeltaError, OptionError, QueryError
from lazydelta.options import Options
from lazydelta.predicates import Predicate, conjunction, parse_predicate
from lazydelta.predicates.binding import compare
from lazydelta.protocol.schema import Primitive
from lazydelta.rows.dataset import RowsDataset
from lazydelta.rows.flow import ReadingPool
from lazydelta.rows.stream import BatchStream
from lazydelta.runtime.database import engine as load
from lazydelta.runtime.database import is_interrupt, run_interruptibly
from lazydelta.scan.request import ScanRequest, ScanStrategy
from lazydelta.sidecar.handle import PinnedVersion, Snapshot, snapshot_of

__all__ = ["SqlResult", "bound_of_newest", "nodes_of", "sql"]

_ABOUT = re.compile(r"^\s*(describe|desc|summarize|show)\s+(.+?)\s*;?\s*$", re.IGNORECASE | re.DOTALL)
_NO_TABLE = re.compile(r"Table with name (\S+) does not exist")


def sql(
    query: str,
    tables: Mapping[str, Any] | None = None,
    *,
    params: Sequence[Any] | Mapping[str, Any] | None = None,
    storage_options: Mapping[str, str] | None = None,
    **named: Any,
) -> SqlResult:
    """Return the result of a SELECT in DuckDB's dialect as a stream of record batches.

    ``tables`` maps the table names in the query to URIs, ``DeltaTable`` objects or anything with an Arrow stream, such
    as a ``pyarrow.Table`` or a data frame; ``named`` are further ones by keyword. Columns in a dictionary and rows in a
    list of dictionaries are tables as well, and so is ``delta('URI')`` in the query. ``params`` are the values of
    ``$name`` or of ``?`` and ``$1``. ``storage_options`` apply to tables given by URI. ``SHOW TABLES``, ``DESCRIBE t``
    and ``SUMMARIZE t`` work as in DuckDB. Statements that change something are refused.

    Args:
        query: One SELECT.
        tables: Tables by the names that the query gives them.
        params: Values of parameters.
        storage_options: Credentials and settings for tables given by URI.
        **named: Further tables by name.

    Returns:
        The result, computed while it is read.

    Raises:
        QueryError: If DuckDB refuses the query, or it fails.
        TableNotFoundError: If there is no table.

    Example:
        >>> lazydelta.sql("SELECT max(value) AS highest FROM t", t="telemetry").to_list()
        [{'highest': 239.0}]

    """
    given: Any = tables
    if given is not None and not isinstance(given, Mapping):
        write = "params=[…]" if isinstance(given, list | tuple) else "t=table, by the name in the query"
        raise OptionError(f"tables cannot be a {type(given).__name__}", hint=f"write {write}")
    return SqlResult(query, {**(tables or {}), **named}, params=params, storage_options=storage_options)


class SqlResult(BatchStream):
    """The result of a query, computed while it is read. Closing it stops the query and all reading."""

    _closed = True  # until there is something to close

    def __init__(
        self,
        query: str,
        tables: Mapping[str, Any],
        *,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        storage_options: Mapping[str, str] | None = None,
        open_table: Callable[[str], Any] | None = None,
        begun: Callable[[SqlResult], None] | None = None,
    ) -> None:
        """Start a query; ``open_table`` opens tables given by URI, ``begun`` is called before anything is read."""
        self._open = open_table
        self._duckdb = load("duckdb", "duckdb")
        self._query = query
        self._known = {name.lower(): name for name in tables}
        self._tables: list[tuple[str, RowsDataset]] = []
        self._con = engine.connect()
        self._pool = ReadingPool.for_store(Options.load().memory_budget, remote=True)
        self._reader: pa.RecordBatchReader | None = None
        self._peeked: pa.RecordBatch | None = None
        self._closed = False
        if begun is not None:
            begun(self)
        try:
            self._reader = self._start(tables, params, storage_options)
        except (self._duckdb.Error, QueryError, RuntimeError) as error:
            self.close()
            raise self._refused(error) from error
        except BaseException:
            self.close()
            raise
        found = self._reader.schema
        self.schema = pa.schema(
            [each.with_name(name) for each, name in zip(found, _distinct(found.names), strict=True)]
        )

    def explain(self) -> dict[str, Any]:
        """Return the query, and of each scan of a table what was pushed down, pruned and read so far."""
        scans = [
            {"table": name.removeprefix("delta:"), **scan()}
            for name, dataset in self._tables
            for scan in dataset.scans or ()
        ]
        return {"query": self._query, "scans": scans}

    def halt(self) -> None:
        """Stop the query from another thread and return at once. The consumer gets an error."""
        self._con.interrupt()

    def close(self) -> None:
        """Stop the query. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._reader is not None:
            self._reader.close()
        self._con.close()
        self._pool.close()

    def peek(self) -> pa.RecordBatch | None:
        """Return the first batch, which iteration returns again; None if there is none."""
        if self._peeked is None:
            self._peeked = self._read()
        return self._peeked

    def _next(self) -> pa.RecordBatch | None:
        batch, self._peeked = self._read() if self._peeked is None else self._peeked, None
        if batch is None:
            self.close()
        return batch

    def _read(self) -> pa.RecordBatch | None:
        if self._closed or self._reader is None:
            return None
        try:
            batch = next(self._reader, None)
        except (self._duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            self.close()
            raise self._refused(error) from error
        return None if batch is None else batch.rename_columns(self.schema.names)

    def _start(
        self, tables: Mapping[str, Any], params: Sequence[Any] | Mapping[str, Any] | None, options: Any
    ) -> pa.RecordBatchReader:
        text = self._query
        if (about := _ABOUT.match(text)) is not None:
            if about[1].lower() == "show" and about[2].lower() in {"tables", "all tables"}:
                names = pa.table({"name": pa.array(sorted(self._known.values()), pa.string())})
                return names.to_reader()
            word = "DESCRIBE" if about[1].lower() in {"desc", "show"} else about[1]
            text = f"SELECT * FROM ({word} {about[2]})"  # noqa: S608 - the user's own query
        tree = engine.parsed(self._con, text)
        _fill_in(self._con, tree, params)
        shared: dict[str, Any] = {"pool": self._pool, "opened": self._remember}
        used = engine.names_in(tree)
        for name, table in tables.items():
            if name.lower() not in used:
                continue
            if not isinstance(table, PinnedVersion | str | os.PathLike):
                self._con.register(name, _arrow(name, table))
                continue
            opened = self._open(table) if self._open is not None and isinstance(table, str) else table
            given = None if isinstance(opened, PinnedVersion) else options
            engine.register(self._con, name, opened, storage_options=given, **shared)
        prepared = engine.with_tables(self._con, tree, storage_options=options, open_table=self._open, **shared)
        _Pruning(self._con, prepared, self._tables).apply()
        relation = engine.relation(self._con, prepared)
        reader: pa.RecordBatchReader = run_interruptibly(self._con, relation.to_arrow_reader)
        return reader

    def _remember(self, name: str, dataset: RowsDataset) -> None:
        dataset.scans = []
        self._tables.append((name, dataset))

    def _refused(self, error: Exception) -> BaseException:
        if is_interrupt(error):
            return KeyboardInterrupt()
        if re.search(r"\bdelta_scan\s*\(", self._query, re.IGNORECASE):
            return QueryError("There is no function delta_scan", hint="write delta('URI')")
        if (missing := _NO_TABLE.search(str(error))) is not None:
            known = ", ".join(sorted(self._known.values()))
            write = f"give {missing[1]}=URI, or write delta('URI')"
            if (location := re.search(r"/[^\s'\"`]*", missing[1])) is not None:
                write = f"write delta('{location[0]}')"
            hint = f"known tables: {known}; or {write}" if known else write
            return QueryError(f"There is no table {missing[1]}", hint=hint)
        if isinstance(error, LazyDeltaError | RuntimeError):
            return error
        return QueryError(f"DuckDB cannot answer the query: {error}", hint="use the SQL dialect of DuckDB")


def _arrow(name: str, table: Any) -> Any:
    """Return something that DuckDB reads as Arrow: the table itself, or one made of it."""
    if isinstance(table, list) and table and all(isinstance(row, Mapping) for row in table):
        return pa.Table.from_pylist(table)
    if isinstance(table, Mapping):
        return pa.table(dict(table))
    if hasattr(table, "__arrow_c_stream__") or isinstance(table, Dataset):
        return table
    if hasattr(table, "collect"):  # a lazy frame
        return table.collect()
    message = f"Table {name} is a {type(table).__name__}, which has no rows"
    raise OptionError(message, hint="pass a URI, a DeltaTable, a data frame, or anything else with an Arrow stream")


def _distinct(names: list[str]) -> list[str]:
    """Return unique names: a join has the columns of both sides."""
    distinct: list[str] = []
    for name in names:
        unique, number = name, 0
        while unique in distinct or (number and unique in names):
            number += 1
            unique = f"{name}_{number}"
        distinct.append(unique)
    return distinct


# Parameters become literals of the syntax tree: DuckDB computes the whole result of a prepared statement at once.


def _fill_in(con: Any, tree: Any, params: Sequence[Any] | Mapping[str, Any] | None) -> None:
    if isinstance(params, str | bytes):
        raise OptionError("params are a list or a dictionary of values, not a string", hint=f"write [{params!r}]")
    if params is None:
        given: dict[str, Any] = {}
    elif isinstance(params, Mapping):
        given = {str(name).removeprefix("$"): value for name, value in params.items()}
    else:
        given = {str(number): value for number, value in enumerate(params, 1)}
    used: set[str] = set()
    for node in list(nodes_of(tree)):
        if node.get("class") != "PARAMETER":
            continue
        name = str(node.get("identifier"))
        if name not in given:
            have = ", ".join(sorted(given)) or "none"
            raise QueryError(f"The query's parameter ${name} has no value", hint=f"pass it in params; given: {have}")
        used.add(name)
        literal = engine.parsed(con, f"SELECT {_literal(given[name])}")["statements"][0]["node"]["select_list"][0]
        literal["alias"] = node.get("alias", "")
        node.clear()
        node.update(literal)
    if unused := sorted(set(given) - used):
        raise QueryError(f"The query has no parameter ${', $'.join(unused)}", hint="write $name, or ? for a list")
    for statement in tree["statements"]:
        statement["named_param_map"] = []


def _literal(value: Any) -> str:
    """Return a Python value as SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dt.datetime):
        kind = "TIMESTAMP" if value.tzinfo is None else "TIMESTAMPTZ"
        return f"CAST('{value.isoformat(sep=' ')}' AS {kind})"
    if isinstance(value, dt.date):
        return f"CAST('{value.isoformat()}' AS DATE)"
    if isinstance(value, dt.timedelta):
        return f"INTERVAL '{value // dt.timedelta(microseconds=1)} microseconds'"
    if isinstance(value, bytes):
        return "CAST('" + "".join(f"\\x{byte:02X}" for byte in value) + "' AS BLOB)"
    if isinstance(value, str):
        quoted = value.replace("'", "''")
        return f"'{quoted}'"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if hasattr(value, "item"):  # a scalar of NumPy
        return _literal(value.item())
    raise OptionError(
        f"A parameter cannot be a {type(value).__name__}", hint="pass a number, string, timestamp, bytes or list"
    )


def nodes_of(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a syntax tree of DuckDB's."""
    pending = [tree]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
        elif isinstance(each, dict):
            yield each
            pending += each.values()


# Pruning beyond DuckDB's own filters. What is added only skips files: DuckDB evaluates the query over all rows it gets.


_PLAIN = frozenset({"COLUMN_REF", "CONSTANT", "CAST", "STAR", "OPERATOR", "COMPARISON", "CONJUNCTION", "CASE", "TYPE"})
_SORTED_BY = frozenset({"timestamp", "timestamp_ntz", "date", "string", "long", "integer", "short", "byte"})
_MOST_ROWS = 1_000_000


class _Pruning:
    """Finds conditions of a query that rule out files, for tables that the query reads once."""

    def __init__(self, con: Any, tree: dict[str, Any], tables: Sequence[tuple[str, RowsDataset]]) -> None:
        self._con = con
        self._tree = tree
        self._datasets = {name.lower(): dataset for name, dataset in tables}

    def apply(self) -> None:
        """Add the conditions to the datasets."""
        nodes = [each for each in nodes_of(self._tree) if each.get("type") == "SELECT_NODE"]
        reads = [each["table_name"].lower() for each in nodes_of(self._tree) if each.get("type") == "BASE_TABLE"]
        top = self._tree["statements"][0]["node"]
        for node in nodes:
            source = node.get("from_table") or {}
            name = str(source.get("table_name", "")).lower()
            dataset = self._datasets.get(name)
            if source.get("type") != "BASE_TABLE" or dataset is None or reads.count(name) != 1 or source.get("sample"):
                continue
            found = [*self._conditions(node, source, dataset)]
            if node is top and (newest := self._newest(node, source, dataset)) is not None:
                found.append(newest)
            if found:
                dataset.skip_files(conjunction(found))

    def _conditions(self, node: dict[str, Any], source: dict[str, Any], dataset: RowsDataset) -> Iterator[Predicate]:
        pending = [node.get("where_clause")]
        while pending:
            each = pending.pop()
            if each is None:
                continue
            if each.get("type") == "CONJUNCTION_AND":
                pending += each["children"]
                continue
            if not any(_is_computed(node) for node in nodes_of(each)):
                continue  # DuckDB pushes down comparisons of columns itself
            text = self._text(each, source, dataset)
            try:
                predicate = None if text is None else parse_predicate(text, dataset.table_schema)
            except LazyDeltaError:
                continue  # DuckDB knows more, and judges the rows in any case
            if predicate is not None:
                yield predicate

    def _text(self, node: dict[str, Any], source: dict[str, Any], dataset: RowsDataset) -> str | None:
        """Return a condition as text over the columns of the table, or None if it has other parts."""
        condition = msgspec.json.decode(msgspec.json.encode(node))
        names = {name.lower() for name in dataset.schema.names}
        called = {str(source.get("alias") or source.get("table_name")).lower()} - names
        for each in nodes_of(condition):
            if each.get("class") in {"SUBQUERY", "WINDOW", "LAMBDA", "PARAMETER"}:
                return None
            columns = each.get("column_names") or []
            if len(columns) > 1 and columns[0].lower() in called:
                each["column_names"] = columns[1:]
            if each.get("class") == "FUNCTION" and each.get("function_name") == "~~" and not _as_prefix(each):
                return None
        tree = engine.parsed(self._con, "SELECT 1 WHERE true")
        tree["statements"][0]["node"]["where_clause"] = condition
        return engine.text_of(self._con, tree).partition(" WHERE ")[2]

    def _newest(self, node: dict[str, Any], source: dict[str, Any], dataset: RowsDataset) -> Predicate | None:
        """Return the bound of ORDER BY column DESC LIMIT n: enough rows are known to lie above it."""
        if (asked := _top_rows(node)) is None:
            return None
        name, number = asked
        called = {str(source.get("alias") or source.get("table_name")).lower()}
        path = name[1:] if len(name) > 1 and name[0].lower() in called else name
        return bound_of_newest(snapshot_of(dataset), path, number)


def _is_computed(node: dict[str, Any]) -> bool:
    """Return whether an expression computes something of a column."""
    return node.get("class") in {"FUNCTION", "CAST"} and any(each.get("column_names") for each in nodes_of(node))


def _as_prefix(like: dict[str, Any]) -> bool:
    """Turn LIKE 'x%' into starts_with, and return whether it was of that form."""
    arguments = like.get("arguments") or like.get("children") or []
    pattern = arguments[1].get("expression", arguments[1]) if len(arguments) > 1 else {}
    literal = pattern.get("literal") or {}
    text = literal.get("text")
    if literal.get("kind") != "STRING" or not isinstance(text, str):
        return False
    prefix = text.removesuffix("%")
    if not text.endswith("%") or not prefix or any(sign in prefix for sign in "%_\\"):
        return False
    literal["text"] = prefix
    like["function_name"] = "starts_with"
    if "qualified_name" in like:
        like["qualified_name"] = {"path": ["starts_with"]}
    like["is_operator"] = False
    return True


def _top_rows(node: dict[str, Any]) -> tuple[list[str], int] | None:
    """Return the column and the number of rows of a plain SELECT with ORDER BY column DESC LIMIT n."""
    modifiers = {each["type"]: each for each in node.get("modifiers", ())}
    if set(modifiers) != {"ORDER_MODIFIER", "LIMIT_MODIFIER"}:
        return None
    if any(node.get(part) for part in ("where_clause", "group_expressions", "having", "qualify", "sample")):
        return None
    selected = list(nodes_of(node["select_list"]))
    if any(
        each.get("class") not in _PLAIN and not (each.get("class") == "FUNCTION" and each.get("is_operator"))
        for each in selected
        if "class" in each
    ):
        return None  # an aggregate would be computed of fewer rows
    first, limit = modifiers["ORDER_MODIFIER"]["orders"][0], modifiers["LIMIT_MODIFIER"]
    columns = first["expression"].get("column_names") or []
    aliases = {str(each.get("alias", "")).lower() for each in node["select_list"]}
    if first["type"] != "DESCENDING" or "FIRST" in first["null_order"].upper() or not columns:
        return None
    if columns[-1].lower() in aliases:
        return None
    counts = [_whole(limit.get("limit")), _whole(limit.get("offset"), missing=0)]
    if limit.get("limit_type", "ROW_COUNT") != "ROW_COUNT" or None in counts:
        return None
    return columns, sum(each for each in counts if each is not None)


def _whole(node: Any, missing: int | None = None) -> int | None:
    if node is None:
        return missing
    literal = node.get("literal") or {}
    text = str(literal.get("text", ""))
    return int(text) if literal.get("kind") == "INTEGER" and text.isdigit() else None


def bound_of_newest(snapshot: Snapshot, path: Sequence[str], number: int) -> Predicate | None:
    """Return a predicate that the ``number`` rows with the greatest values of a column pass; None if there is none.

    The newest files are looked at, as many as hold that many rows. The least value in them is the bound.
    """
    from lazydelta.scan.stream import FileStream  # noqa: PLC0415 - loaded already, and only needed here

    try:
        column = snapshot.schema.column(tuple(path))
    except LazyDeltaError:
        return None
    if not isinstance(column.type, Primitive) or column.type.name not in _SORTED_BY or not 0 < number <= _MOST_ROWS:
        return None
    request = ScanRequest(row_limit=number, strategy=ScanStrategy.REVERSE, stats_columns=(column,))
    known: list[tuple[Any, int]] = []
    with FileStream(snapshot.scan(request)) as files:
        for batch in files.batches():
            least, nulls = batch.column(f"min.{column.name}"), batch.column(f"null_count.{column.name}")
            rows, vectors = batch.column("num_records"), batch.column("deletion_vector")
            for index in range(batch.num_rows):
                empty, vector = nulls[index].as_py(), vectors[index].as_py()
                if not (least[index].is_valid and rows[index].is_valid) or empty is None or (vector and empty):
                    continue
                known.append((least[index], rows[index].as_py() - (vector["cardinality"] if vector else empty)))
    known.sort(key=lambda each: _order(each[0]), reverse=True)
    seen = 0
    for value, rows_there in known:
        seen += rows_there
        if seen >= number:
            return compare(column, ">=", value)
    return None


def _order(value: pa.Scalar) -> Any:
    return value.value if isinstance(value, pa.TimestampScalar | pa.Date32Scalar) else value.as_py()
