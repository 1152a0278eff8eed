"""DuckDB: tables registered in a connection, and ``delta('URI')`` in queries.

DuckDB pushes down columns and most filters and pulls rows as needed. ``con.sql(…).to_arrow_reader()`` streams,
``con.execute(…)`` reads to the end. The Python API has neither table functions nor a hook for unknown tables, so
``delta('URI')`` is replaced in the syntax tree that DuckDB's own parser returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

import lazydelta.predicates.expression  # noqa: F401 - imported early: the first query with a filter needs it
from lazydelta.errors import QueryError
from lazydelta.options import Options
from lazydelta.rows.dataset import RowsDataset, engine_dataset
from lazydelta.rows.flow import ReadingPool
from lazydelta.runtime.database import connect, engine
from lazydelta.sidecar.handle import TableOrUri

__all__ = ["connect", "names_of", "query", "register", "tables_of"]

_FUNCTION = "delta"
_KNOWS_NAN = 2


def register(
    con: Any,
    name: str,
    table: TableOrUri,
    *,
    storage_options: Mapping[str, str] | None = None,
    version: int | None = None,
    pool: ReadingPool | None = None,
    opened: Callable[[str, RowsDataset], None] | None = None,
) -> Any:
    """Register a table as ``name`` and return the connection.

    The version is pinned now. ``pool`` holds threads and memory that several tables share. ``opened`` is called with
    the name and the dataset.
    """
    dataset = _dataset(table, storage_options, version, pool)
    con.register(name, dataset)
    if opened is not None:
        opened(name, dataset)
    return con


def query(
    con: Any,
    sql: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    pool: ReadingPool | None = None,
    opened: Callable[[str, RowsDataset], None] | None = None,
) -> Any:
    """Return the relation of a SELECT in which ``delta('URI')`` or ``delta('URI', version := 3)`` refers to a table.

    Nothing is read before rows are requested. All tables of the query share the threads and memory of one pool.
    ``opened`` is called with the URI and the dataset of each table.
    """
    engine("duckdb", "duckdb")
    shared = pool or ReadingPool.for_store(Options().memory_budget, remote=True)
    tree = with_tables(con, parsed(con, sql), storage_options=storage_options, pool=shared, opened=opened)
    return relation(con, tree)


def with_tables(
    con: Any,
    tree: dict[str, Any],
    *,
    storage_options: Mapping[str, str] | None,
    pool: ReadingPool,
    opened: Callable[[str, RowsDataset], None] | None,
    open_table: Callable[[str], Any] | None = None,
) -> dict[str, Any]:
    """Register the tables of the ``delta(…)`` calls in a syntax tree, and return it with their names.

    ``open_table`` opens a table by its URI, for callers with options of their own.
    """
    taken: set[str] = set()
    for node in _table_functions(tree):
        uri, version = _arguments(node["function"])
        table: Any = uri if open_table is None else open_table(uri)
        dataset = _dataset(table, storage_options if open_table is None else None, version, pool)
        name = f"delta:{uri}" if version is None else f"delta:{uri}@{version}"
        con.register(name, dataset)
        if opened is not None:
            opened(name, dataset)
        alias = node["alias"] or (_FUNCTION if _FUNCTION not in taken else "")
        taken.add(alias)
        _become_table(con, node, name, alias)
    return tree


def text_of(con: Any, tree: dict[str, Any]) -> str:
    """Return a syntax tree as SQL."""
    return _answer(con, "SELECT json_deserialize_sql($1::JSON)", msgspec.json.encode(tree).decode())


def relation(con: Any, tree: dict[str, Any]) -> Any:
    """Return the relation of a syntax tree. Nothing is read before rows are requested."""
    duckdb = engine("duckdb", "duckdb")
    try:
        return con.sql(text_of(con, tree))
    except duckdb.Error as error:
        raise QueryError(f"DuckDB refuses the query: {error}", hint="use the SQL dialect of DuckDB") from error


def tables_of(con: Any, sql: str) -> list[str]:
    """Return the URIs of the ``delta(…)`` calls in a query, in order."""
    return [_arguments(node["function"])[0] for node in _table_functions(parsed(con, sql))]


def names_of(con: Any, sql: str) -> set[str]:
    """Return the table names in a query in lower case, including those of its WITH clauses."""
    return names_in(parsed(con, sql))


# What people write by habit from other dialects, and what DuckDB takes.
_ANY_CASE = re.IGNORECASE | re.DOTALL
_HABITS = {
    r"^\s*explain\b": "call explain() of the result",
    r"^\s*(insert|copy)\b": "write_arrow() and write_deltalake() append rows",
    r"^\s*(delete|update|merge)\b": "DeltaTable has delete(), update() and merge()",
    r"^\s*create\b": "lazydelta.create_table() creates a table; write WITH name AS (…) for a query",
    r"^\s*(pivot|unpivot)\b": "write FROM (PIVOT … ON column IN (value, …) USING …)",
    r"^\s*set\b": "SQL works in UTC; settings are options of the call",
    r"^\s*where\b": "write FROM self WHERE …",
    r"\b(version|timestamp)\s+as\s+of\b": "write DeltaTable(uri, version=…), or delta('URI', version := 3)",
    r"\bselect\s+top\b": "write LIMIT at the end",
    r"[=<>(,]\s*:\w": "write $name for a parameter",
    r"=\s*%s|=\s*%\(": "write ? or $name for a parameter",
    r"\bfrom\s+table\b": "the table is called self, or by the name of its folder",
}


def names_in(tree: dict[str, Any]) -> set[str]:
    """Return the table names in a syntax tree in lower case."""
    found: set[str] = set()
    pending: list[Any] = [tree]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
        elif isinstance(each, dict):
            if each.get("type") in ("BASE_TABLE", "SHOW_REF"):  # of a value, the type is a tree of its own
                found.add(str(each.get("table_name", "")).lower())
                found |= {str(part).lower() for part in (each.get("qualified_name") or {}).get("path", [])}
            pending += each.values()
    return found


def _dataset(
    table: TableOrUri, storage_options: Mapping[str, str] | None, version: int | None, pool: ReadingPool | None
) -> RowsDataset:
    # DuckDB 2.0 and later push a float comparison only if PyArrow evaluates it as DuckDB does, including NaN.
    before = int(engine("duckdb", "duckdb").__version__.split(".")[0]) < _KNOWS_NAN
    return engine_dataset(table, storage_options, version=version, pool=pool, nan_is_largest=before)


def _answer(con: Any, sql: str, value: str) -> str:
    # Use a separate cursor, because the connection may still be reading another result.
    with con.cursor() as cursor:
        return str(cursor.execute(sql, [value]).fetchall()[0][0])


def parsed(con: Any, sql: str) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.json.decode(_answer(con, "SELECT json_serialize_sql($1::VARCHAR)", sql))
    if tree.get("error"):
        said = str(tree.get("error_message"))
        habit = next((hint for pattern, hint in _HABITS.items() if re.search(pattern, sql, _ANY_CASE)), None)
        hint = habit or 'a name that is a keyword of SQL has double quotes: "end"'
        if said.startswith("Only SELECT statements"):
            said, hint = "it is not a SELECT", habit or "send one SELECT; statements that change something are not run"
        raise QueryError(f"DuckDB cannot read the query: {said}", hint=hint)
    if len(tree["statements"]) != 1:
        if not tree["statements"]:
            raise QueryError("The query is empty", hint="send one SELECT")
        raise QueryError(f"There are {len(tree['statements'])} statements in the query", hint="send one SELECT")
    return tree


def _table_functions(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a syntax tree in which ``delta(…)`` is used as a table."""
    pending = [node]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += reversed(each)
        elif isinstance(each, dict):
            if each.get("type") == "TABLE_FUNCTION" and _name_of(each.get("function")) == _FUNCTION:
                yield each
            else:
                pending += reversed(list(each.values()))


def _name_of(function: Any) -> str:
    return str(function.get("function_name", "")).lower() if isinstance(function, dict) else ""


def _arguments(function: dict[str, Any]) -> tuple[str, int | None]:
    uri: str | None = None
    version: int | None = None
    for argument in function.get("arguments", function.get("children", [])):
        name, value = argument.get("name", ""), argument.get("expression", argument)
        literal = value.get("literal") or {}
        kind, text = literal.get("kind"), literal.get("text")
        if not name and uri is None and kind == "STRING":
            uri = text
        elif name.lower() == "version" and kind == "INTEGER" and text is not None:
            version = int(text)
        else:
            hint = "write delta('URI') or delta('URI', version := 3), with literal values"
            raise QueryError("delta(…) takes the URI of a table as a string, and a version", hint=hint)
    if uri is None:
        raise QueryError("delta() names no table", hint="write delta('URI')")
    return uri, version


def _become_table(con: Any, node: dict[str, Any], name: str, alias: str) -> None:
    """Turn a node into a reference to the registered table, in the form that this version of DuckDB uses."""
    quoted = name.replace('"', '""')
    table = parsed(con, f'FROM "{quoted}"')["statements"][0]["node"]["from_table"]
    table |= {"alias": alias, "sample": node.get("sample")}
    if node.get("column_name_alias"):
        table["column_name_alias"] = node["column_name_alias"]
    node.clear()
    node.update(table)
