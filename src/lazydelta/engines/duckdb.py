"""DuckDB: tables under names of a connection, and ``delta('URI')`` in the text of a query.

DuckDB pushes columns and most filters down to us and pulls rows as it needs them; ``con.sql(…).to_arrow_reader()``
streams, ``con.execute(…)`` reads to the end. Its Python API has neither table functions nor a hook for unknown tables,
so that ``delta('URI')`` is replaced in the tree that DuckDB's own parser makes of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

import lazydelta.pruning.expression  # noqa: F401 - DuckDB hands its filters over as such: the first query is no later
from lazydelta.engines.table_source import TableOrUri, engine, engine_dataset
from lazydelta.errors import QueryError
from lazydelta.options import Options
from lazydelta.row_scan.reading_pool import ReadingPool
from lazydelta.row_scan.rows_dataset import RowsDataset

__all__ = ["names_of", "query", "register", "tables_of"]

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
    """Make a table known to a connection as ``name``; return the connection.

    The version is pinned now. ``pool`` holds the threads and the memory that several tables share. ``opened`` is told
    of the dataset.
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
    """Return the relation of a SELECT in which ``delta('URI')`` or ``delta('URI', version := 3)`` stands for a table.

    Nothing is read before rows are asked for. All tables of the query share the threads and the memory of one pool.
    ``opened`` is told of each table.
    """
    duckdb = engine("duckdb", "duckdb")
    tree = _parsed(con, sql)
    shared = pool or ReadingPool.for_store(Options().memory_budget, remote=True)
    taken: set[str] = set()
    for node in _table_functions(tree):
        uri, version = _arguments(node["function"])
        dataset = _dataset(uri, storage_options, version, shared)
        name = f"delta:{uri}" if version is None else f"delta:{uri}@{version}"
        con.register(name, dataset)
        if opened is not None:
            opened(uri, dataset)
        alias = node["alias"] or (_FUNCTION if _FUNCTION not in taken else "")
        taken.add(alias)
        _become_table(con, node, name, alias)
    text = _answer(con, "SELECT json_deserialize_sql($1::JSON)", msgspec.json.encode(tree).decode())
    try:
        return con.sql(text)
    except duckdb.Error as error:
        raise QueryError(f"DuckDB refuses the query: {error}", hint="mind DuckDB's dialect of SQL") from error


def tables_of(con: Any, sql: str) -> list[str]:
    """Return the URIs that ``delta(…)`` names in a query, in their order."""
    return [_arguments(node["function"])[0] for node in _table_functions(_parsed(con, sql))]


def names_of(con: Any, sql: str) -> set[str]:
    """Return the names of tables in a query, in small letters; those of its own WITH are among them."""
    found: set[str] = set()
    pending: list[Any] = [_parsed(con, sql)]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
        elif isinstance(each, dict):
            if each.get("type") == "BASE_TABLE":
                found.add(str(each.get("table_name", "")).lower())
                found |= {str(part).lower() for part in (each.get("qualified_name") or {}).get("path", [])}
            pending += each.values()
    return found


def _dataset(
    table: TableOrUri, storage_options: Mapping[str, str] | None, version: int | None, pool: ReadingPool | None
) -> RowsDataset:
    # From 2.0 on, DuckDB pushes a comparison of floats only where PyArrow answers as DuckDB itself, NaN included.
    before = int(engine("duckdb", "duckdb").__version__.split(".")[0]) < _KNOWS_NAN
    return engine_dataset(table, storage_options, version=version, pool=pool, nan_is_largest=before)


def _answer(con: Any, sql: str, value: str) -> str:
    # In a cursor of its own: the connection may be in the middle of another result.
    with con.cursor() as cursor:
        return str(cursor.execute(sql, [value]).fetchall()[0][0])


def _parsed(con: Any, sql: str) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.json.decode(_answer(con, "SELECT json_serialize_sql($1::VARCHAR)", sql))
    if tree.get("error"):
        message = f"DuckDB cannot read the query: {tree.get('error_message')}"
        raise QueryError(message, hint="give one SELECT; statements that change something are not run")
    if len(tree["statements"]) != 1:
        raise QueryError(f"There are {len(tree['statements'])} statements in the query", hint="give one SELECT")
    return tree


def _table_functions(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a tree in which ``delta(…)`` stands for a table."""
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
            hint = "write delta('URI') or delta('URI', version := 3), with values in place"
            raise QueryError("delta(…) takes the URI of a table as a text, and a version", hint=hint)
    if uri is None:
        raise QueryError("delta() names no table", hint="write delta('URI')")
    return uri, version


def _become_table(con: Any, node: dict[str, Any], name: str, alias: str) -> None:
    """Turn a node into a reference to the registered table, in the shape that this version of DuckDB has for it."""
    quoted = name.replace('"', '""')
    table = _parsed(con, f'FROM "{quoted}"')["statements"][0]["node"]["from_table"]
    table |= {"alias": alias, "sample": node.get("sample")}
    if node.get("column_name_alias"):
        table["column_name_alias"] = node["column_name_alias"]
    node.clear()
    node.update(table)
