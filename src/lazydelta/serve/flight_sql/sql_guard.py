"""What a stranger's SQL may be: one SELECT over tables that the server names, and functions that only compute.

DuckDB's own parser says what a text is. Its tree is walked whole, and everything in it has to be on a list: kinds of
nodes, tables, functions. What is new in a later DuckDB is refused until somebody has looked at it. The connection that
runs the query is locked besides, so that a gap here opens no file and no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lazydelta.errors import QueryError

__all__ = ["CATALOG", "MOST_TEXT", "SCHEMA", "CheckedQuery", "SqlGuard"]

CATALOG = "lazydelta"
SCHEMA = "main"
"""The one catalog and the one schema that all tables are in."""

MOST_TEXT = 1 << 18
"""The longest query, in bytes: a tree is a hundred times as large as its text."""

_PLACES = {(), (SCHEMA,), (CATALOG,), (CATALOG, SCHEMA)}
_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_SOURCES = frozenset(
    {"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EMPTY", "EXPRESSION_LIST", "SHOW_REF", "PIVOT"}
)
_MODIFIERS = frozenset({"LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "ORDER_MODIFIER", "DISTINCT_MODIFIER"})
_ORDERS = frozenset({"ASCENDING", "DESCENDING", "ORDER_DEFAULT"})
_KINDS = _NODES | _SOURCES | _MODIFIERS | _ORDERS
_EXPRESSIONS = frozenset(
    {
        *("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION"),
        *("LAMBDA", "LAMBDA_REF", "OPERATOR", "PARAMETER", "POSITIONAL_REFERENCE", "STAR", "SUBQUERY", "TYPE"),
        "WINDOW",
    }
)
_TABLE_FUNCTIONS = frozenset({"unnest", "range", "generate_series", "repeat", "json_each", "json_tree"})

# Functions that never change and never look around are what DuckDB calls consistent; these few volatile ones are too.
_COMPUTING = """
SELECT DISTINCT lower(function_name) FROM duckdb_functions()
WHERE schema_name = 'main' AND internal AND NOT starts_with(function_name, '__internal')
  AND (function_type IN ('aggregate', 'window', 'macro') OR (function_type = 'scalar' AND stability <> 'VOLATILE'))
"""
_ALSO_COMPUTING = frozenset({"random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "error"})
# They tell of the process or of other queries, run texts, or take bytes for the inner state of an aggregate.
_LOOKING_AROUND = frozenset(
    {
        *("current_setting", "getvariable", "get_block_size", "in_search_path", "txid_current", "current_schemas"),
        *("json_serialize_plan", "json_serialize_sql", "json_deserialize_sql", "parse_duckdb_log_message"),
        *(
            "finalize",
            "combine",
            "to_aggregate_state",
            "invoke",
            "index_key",
            "remap_struct",
            "variant_bytes_to_variant",
        ),
    }
)
# DuckDB's memory limit does not count what lies within one value, and these make a value as large as a number says. So
# the number has to be there to see, and small. As a table, `range` makes rows one after the other, and may be long.
_GROWING: dict[str, slice] = {
    "repeat": slice(1, 2),
    "lpad": slice(1, 2),
    "rpad": slice(1, 2),
    "list_resize": slice(1, 2),
    "array_resize": slice(1, 2),
    "bitstring": slice(1, 2),
    "to_base": slice(2, 3),
    "equi_width_bins": slice(2, 3),
    "range": slice(None),
    "generate_series": slice(None),
}
_MOST_GROWN = 100_000
_INTERNAL = "SELECT lower(view_name) FROM duckdb_views() WHERE internal"
_HINT = "give one SELECT over the tables of this server; the catalog lists them"


@dataclass(frozen=True)
class CheckedQuery:
    """A query that may run: its tree, the tables that it reads and its parameters in the order of their positions."""

    tree: dict[str, Any]
    tables: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    text: str = field(default="", compare=False)


class SqlGuard:
    """Checks queries with a connection that parses and runs nothing of theirs."""

    def __init__(self, con: Any) -> None:
        self._con = con
        self._functions = {name for (name,) in con.execute(_COMPUTING).fetchall()} - _LOOKING_AROUND | _ALSO_COMPUTING
        self._internal = {name for (name,) in con.execute(_INTERNAL).fetchall()}

    def check(self, text: str, served: Iterable[str]) -> CheckedQuery:
        """Return the query with its tables under their own names, or raise ``QueryError`` for what may not be run."""
        if len(text.encode("utf-8", "surrogatepass")) > MOST_TEXT:
            raise QueryError(f"The query is longer than {MOST_TEXT} bytes", hint="bind values as parameters")
        tree = self._parsed(text)
        names = _by_small_letters(served)
        own = {str(each["key"]).lower() for node in _dicts(tree) for each in (node.get("cte_map") or {}).get("map", [])}
        if hidden := own & self._internal:
            raise QueryError(f"WITH gives {min(hidden)!r} a meaning that DuckDB has for itself", hint="rename it")
        used: dict[str, None] = {}
        as_tables = {id(node["function"]) for node in _dicts(tree) if node.get("type") == "TABLE_FUNCTION"}
        for node in _dicts(tree):
            self._check_node(node)
            if node.get("class") == "FUNCTION" and id(node) not in as_tables:
                _check_growth(node)
            if node.get("type") == "BASE_TABLE":
                _name_table(node, names, own, used)
        parameters = sorted(tree["statements"][0].get("named_param_map") or [], key=lambda each: each["value"])
        if parameters:
            self._name_columns(tree["statements"][0])
        return CheckedQuery(tree, tuple(used), tuple(str(each["key"]) for each in parameters), text)

    def expression(self, sql: str) -> dict[str, Any]:
        """Return the tree of one expression of ours."""
        found: dict[str, Any] = self._parsed(f"SELECT {sql}")["statements"][0]["node"]["select_list"][0]
        return found

    def text_of(self, tree: dict[str, Any]) -> str:
        """Return SQL for a tree, as DuckDB writes it."""
        with self._con.cursor() as cursor:
            asked = msgspec.json.encode(tree).decode()
            return str(cursor.execute("SELECT json_deserialize_sql($1::JSON)", [asked]).fetchall()[0][0])

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            with self._con.cursor() as cursor:
                found = cursor.execute("SELECT json_serialize_sql($1::VARCHAR)", [text]).fetchall()[0][0]
            tree: dict[str, Any] = msgspec.json.decode(found)
        except Exception as error:  # nested too deeply for DuckDB or for JSON, or no text at all
            raise QueryError(f"DuckDB cannot read the query: {_first_line(error)}", hint=_HINT) from error
        if tree.get("error"):
            raise QueryError(f"DuckDB cannot read the query: {tree.get('error_message')}", hint=_HINT)
        if len(tree["statements"]) != 1:
            raise QueryError(f"There are {len(tree['statements'])} statements in the query", hint=_HINT)
        return tree

    def _name_columns(self, statement: dict[str, Any]) -> None:
        """Name columns with parameters after their text, as DuckDB does: later they would be named after a value."""
        for item in statement["node"].get("select_list", []):
            if not item.get("alias") and any(each.get("class") == "PARAMETER" for each in _dicts(item)):
                alone = self._parsed("SELECT 1")
                alone["statements"][0]["node"]["select_list"] = [item]
                alone["statements"][0]["named_param_map"] = statement["named_param_map"]
                item["alias"] = self.text_of(alone).removeprefix("SELECT ")

    def _check_node(self, node: dict[str, Any]) -> None:
        kind, expression = node.get("type"), node.get("class")
        if expression is not None:
            if expression not in _EXPRESSIONS:
                raise QueryError(f"The query has a {expression} expression, which is not allowed here", hint=_HINT)
        elif isinstance(kind, str) and kind not in _KINDS:
            raise QueryError(f"The query has a {kind}, which is not allowed here", hint=_HINT)
        if kind == "SHOW_REF" and not node.get("query"):
            shown = str(node.get("table_name", "")).strip('"')
            raise QueryError(f"SHOW {shown} is not run here", hint="ask the catalog for tables, or DESCRIBE a table")
        if kind == "TABLE_FUNCTION":
            self._check_function(node["function"], _TABLE_FUNCTIONS)
        elif expression in {"FUNCTION", "WINDOW"} and "function_name" in node:
            self._check_function(node, self._functions | _TABLE_FUNCTIONS)

    def _check_function(self, node: dict[str, Any], allowed: Iterable[str]) -> None:
        name = str(node.get("function_name", "")).lower()
        if name not in allowed:
            message = f"The function {name}() is not available here"
            raise QueryError(message, hint="functions that compute are; those that read files or settings are not")


def _check_growth(node: dict[str, Any]) -> None:
    name = str(node.get("function_name", "")).lower()
    for argument in node.get("arguments", [])[_GROWING.get(name, slice(0))]:
        literal = argument["expression"].get("literal") or {}
        if literal.get("kind") != "INTEGER" or abs(int(literal["text"])) > _MOST_GROWN:
            message = f"{name}() is given a size that is no number up to {_MOST_GROWN}"
            raise QueryError(message, hint="write it as a number; FROM range(…) makes rows, as many as you like")


def _by_small_letters(served: Iterable[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name in served:
        if names.setdefault(name.lower(), name) != name:
            # SQL cannot tell them apart, and guessing would show somebody the wrong table.
            names[name.lower()] = ""
    return names


def _name_table(node: dict[str, Any], names: dict[str, str], own: set[str], used: dict[str, None]) -> None:
    place = tuple(str(node[part]).lower() for part in ("catalog_name", "schema_name") if node.get(part))
    asked = str(node.get("table_name", ""))
    shown = ".".join([*place, asked])[:200]
    if node.get("at_clause"):
        raise QueryError(f"The table {shown} is asked for at another version", hint="leave AT out")
    if not place and asked.lower() in own:
        if asked.lower() in names:
            # The WITH may not reach as far as this name does.
            used[names[asked.lower()]] = None
        return
    if place not in _PLACES or asked.lower() not in names:
        raise QueryError(f"There is no table {shown!r} here", hint=_HINT)
    name = names[asked.lower()]
    if not name:
        raise QueryError(f"Several tables are called {shown!r} but for capital letters", hint="ask for another name")
    used[name] = None
    node |= {"catalog_name": "", "schema_name": "", "table_name": name}
    if "qualified_name" in node:
        node["qualified_name"] = {"path": [name]}


def _dicts(tree: Any) -> Iterator[dict[str, Any]]:
    pending = [tree]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
        elif isinstance(each, dict):
            yield each
            pending += each.values()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
