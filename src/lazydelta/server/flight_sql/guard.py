"""Checks untrusted SQL: one SELECT over tables that the server names, with functions that only compute.

``EXPLAIN`` of such a query, ``SHOW TABLES`` and the views of ``information_schema`` are allowed as well. They show only
the client's tables.

DuckDB's own parser parses the SQL. The guard walks the whole tree and allows only listed kinds of nodes, tables and
functions. Syntax that a later DuckDB adds is refused until it has been reviewed. The connection that runs the query is
also locked, so a gap in these checks opens no file and no network connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from lazydelta.engines.sql import nodes_of
from lazydelta.errors import QueryError

__all__ = ["CATALOG", "MOST_TEXT", "SCHEMA", "CatalogView", "CheckedQuery", "SqlGuard"]

CATALOG = "lazydelta"
SCHEMA = "main"
"""The only catalog and schema."""

MOST_TEXT = 1 << 18
"""The maximum length of a query in bytes. A tree is a hundred times as large as its SQL string."""

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

# Functions that DuckDB marks as consistent are deterministic and see nothing outside. These volatile ones are safe too.
_COMPUTING = """
SELECT DISTINCT lower(function_name) FROM duckdb_functions()
WHERE schema_name = 'main' AND internal AND NOT starts_with(function_name, '__internal')
  AND (function_type IN ('aggregate', 'window', 'macro') OR (function_type = 'scalar' AND stability <> 'VOLATILE'))
"""
_ALSO_COMPUTING = frozenset({"random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "error"})
# These reveal facts about the process or other queries, run SQL strings, or accept raw aggregate state.
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
# DuckDB's memory limit does not count memory within one value, and these create a value of a given size. The size must
# therefore be a small literal. As a table function, `range` produces rows one by one and may be long.
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
_EXPLAIN = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*EXPLAIN\b\s*(ANALY[SZ]E\b)?\s*(?:\(\s*FORMAT\s+(\w+)\s*\))?",
    re.IGNORECASE | re.DOTALL,
)
_EXPLAINED_AS = frozenset({"text", "json"})
# A row limit above DuckDB's maximum means no limit.
_MOST_ROWS = (1 << 63) - 1
_MOST_PARAMETERS = 1000
_FEW_EXPRESSIONS = 100
_HINT = "send one SELECT over the tables of this server; the catalog lists them"


def allowed_functions(con: Any) -> set[str]:
    """Return the functions that queries may call."""
    return {name for (name,) in con.execute(_COMPUTING).fetchall()} - _LOOKING_AROUND | _ALSO_COMPUTING


class CatalogView(NamedTuple):
    """A catalog view: its registered name, and the SQL that builds it from empty tables."""

    name: str
    sql: str
    needs_columns: bool


def _catalog_views() -> dict[str, CatalogView]:
    shown = {
        '"tables"': ("SHOW TABLES", False),
        "__show_tables_expanded": ("SHOW ALL TABLES", True),
        '"databases"': (f"SELECT '{CATALOG}' AS database_name", False),
        '"schemas"': (f"SELECT '{CATALOG}' AS database_name, '{SCHEMA}' AS schema_name", False),
    }
    columns = {"schemata": "catalog_name", "referential_constraints": "constraint_catalog"}
    columns |= dict.fromkeys(("tables", "columns", "views", "table_constraints", "key_column_usage"), "table_catalog")
    for name, column in columns.items():
        sql = f"SELECT * FROM information_schema.{name} WHERE {column} = '{CATALOG}'"  # noqa: S608 - our own names
        shown[f"information_schema.{name}"] = (sql, name == "columns")
    # No table name starts with a space.
    return {name: CatalogView(f" {name}", sql, needs) for name, (sql, needs) in shown.items()}


_VIEWS = _catalog_views()


@dataclass(frozen=True)
class CheckedQuery:
    """A query that may run: its tree, the tables that it reads, and its parameters in positional order.

    ``views`` are the catalog views that it reads. ``explain`` is the prefix of a query whose plan is requested.
    """

    tree: dict[str, Any]
    tables: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    views: tuple[CatalogView, ...] = ()
    explain: str = ""


class SqlGuard:
    """Checks queries on a connection that parses client SQL and never runs it."""

    def __init__(self, con: Any) -> None:
        self._con = con
        self._functions = allowed_functions(con)
        self._expressions: dict[str, dict[str, Any]] = {}
        self._internal = {name for (name,) in con.execute(_INTERNAL).fetchall()}

    def check(self, text: str, served: Iterable[str]) -> CheckedQuery:
        """Return the query with canonical table names. Raise ``QueryError`` if it may not run."""
        text, explain = _explained(text)
        try:
            tree = self._parsed(text)
        except QueryError as error:
            error.line = None if explain else error.line  # counted without EXPLAIN
            raise
        names = _by_small_letters(served)
        own = {
            str(each["key"]).lower() for node in nodes_of(tree) for each in (node.get("cte_map") or {}).get("map", [])
        }
        if hidden := own & self._internal:
            raise QueryError(f"WITH gives {min(hidden)!r} a name that DuckDB reserves", hint="rename it")
        used: dict[str, None] = {}
        views: dict[CatalogView, None] = {}
        as_tables = {id(node["function"]) for node in nodes_of(tree) if node.get("type") == "TABLE_FUNCTION"}
        for node in nodes_of(tree):
            self._check_node(node)
            if node.get("class") == "FUNCTION" and id(node) not in as_tables:
                _check_growth(node)
            if node.get("type") == "SHOW_REF" and not node.get("query"):
                self._show(node, views)
            elif node.get("type") == "LIMIT_MODIFIER":
                _count_rows(node)
            elif node.get("type") == "BASE_TABLE" and not _name_view(node, views):
                _name_table(node, names, own, used)
        parameters = sorted(tree["statements"][0].get("named_param_map") or [], key=lambda each: each["value"])
        if len(parameters) > _MOST_PARAMETERS:
            message = f"The query has {len(parameters)} parameters, more than {_MOST_PARAMETERS}"
            raise QueryError(message, hint="bind fewer, or write them into the query")
        if parameters:
            self._name_columns(tree["statements"][0])
        keys = tuple(str(each["key"]) for each in parameters)
        return CheckedQuery(tree, tuple(used), keys, tuple(views), explain)

    def _show(self, node: dict[str, Any], views: dict[CatalogView, None]) -> None:
        """Replace SHOW TABLES and similar with a catalog view, and SHOW of a table with its description."""
        asked, kind = str(node.get("table_name", "")), node.get("show_type")
        place = tuple(str(node[part]).lower() for part in ("catalog_name", "schema_name") if node.get(part))
        if kind == "SHOW_FROM" and place in _PLACES:
            asked = '"tables"'
        elif kind == "SHOW":
            path = (node.get("qualified_name") or {}).get("path") or [*place, asked]
            quoted = ".".join('"' + str(each).replace('"', '""') + '"' for each in path)
            node |= self._parsed(f"DESCRIBE {quoted}")["statements"][0]["node"]["from_table"]
            return
        view = _VIEWS.get(asked)
        if view is None or asked.startswith("information_schema."):
            shown = asked.strip('"')[:200]
            raise QueryError(f"SHOW {shown} is not run here", hint="use SHOW TABLES, or DESCRIBE of a table")
        _become_view(node, view, views)

    def expression(self, sql: str) -> dict[str, Any]:
        """Return the tree of a trusted expression. Results are cached, because many parameters share one."""
        if sql not in self._expressions:
            if len(self._expressions) > _FEW_EXPRESSIONS:
                self._expressions.clear()
            self._expressions[sql] = self._parsed(f"SELECT {sql}")["statements"][0]["node"]["select_list"][0]
        return self._expressions[sql]

    def text_of(self, tree: dict[str, Any]) -> str:
        """Return the SQL of a tree, as DuckDB writes it."""
        with self._con.cursor() as cursor:
            asked = msgspec.json.encode(tree).decode()
            return str(cursor.execute("SELECT json_deserialize_sql($1::JSON)", [asked]).fetchall()[0][0])

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            with self._con.cursor() as cursor:
                found = cursor.execute("SELECT json_serialize_sql($1::VARCHAR)", [text]).fetchall()[0][0]
            tree: dict[str, Any] = msgspec.json.decode(found)
        except Exception as error:  # nested too deeply for DuckDB or JSON, or not a valid string
            raise QueryError(f"DuckDB cannot read the query: {_first_line(error)}", hint=_HINT) from error
        if tree.get("error"):
            refused = QueryError(f"DuckDB cannot read the query: {tree.get('error_message')}", hint=_HINT)
            if str(tree.get("position", "")).isdigit():
                before = text.encode()[: int(tree["position"])].decode(errors="ignore")
                refused.line, refused.column = before.count("\n") + 1, len(before) - before.rfind("\n")
            raise refused
        if len(tree["statements"]) != 1:
            raise QueryError(f"There are {len(tree['statements'])} statements in the query", hint=_HINT)
        return tree

    def _name_columns(self, statement: dict[str, Any]) -> None:
        """Name columns with parameters after their SQL, like DuckDB. Otherwise they would be named after a value."""
        alone = self._parsed("SELECT 1")
        for item in statement["node"].get("select_list", []):
            if not item.get("alias") and any(each.get("class") == "PARAMETER" for each in nodes_of(item)):
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
        if kind == "TABLE_FUNCTION":
            self._check_function(node["function"], _TABLE_FUNCTIONS)
        elif expression in {"FUNCTION", "WINDOW"} and "function_name" in node:
            self._check_function(node, self._functions | _TABLE_FUNCTIONS)

    def _check_function(self, node: dict[str, Any], allowed: Iterable[str]) -> None:
        name = str(node.get("function_name", "")).lower()
        if name not in allowed:
            message = f"The function {name}() is not available here"
            raise QueryError(
                message, hint="only functions that compute are allowed, not those that read files or settings"
            )


def _explained(text: str) -> tuple[str, str]:
    """Split EXPLAIN from a query, because DuckDB's tree has no node for it. Return the rest and the prefix."""
    found = _EXPLAIN.match(text)
    if found is None:
        return text, ""
    form = (found[2] or "text").lower()
    if found[1] or form not in _EXPLAINED_AS:
        message = f"{' '.join(found[0].split())[:60]} is not run here"
        raise QueryError(message, hint="use EXPLAIN or EXPLAIN (FORMAT json) with a SELECT")
    return text[found.end() :], "EXPLAIN (FORMAT json) " if form == "json" else "EXPLAIN "


def _count_rows(node: dict[str, Any]) -> None:
    for part in ("limit", "offset"):
        literal = (node.get(part) or {}).get("literal") or {}
        if literal.get("kind") == "INTEGER" and _number(literal) > _MOST_ROWS:
            literal["text"] = str(_MOST_ROWS)


def _number(literal: dict[str, Any]) -> int:
    # Python refuses to convert thousands of digits, and the first forty are enough.
    return int(str(literal["text"])[:40])


def _name_view(node: dict[str, Any], views: dict[CatalogView, None]) -> bool:
    """Replace a view of ``information_schema`` with the client's version. Return whether it is one."""
    place = [str(node[part]).lower() for part in ("catalog_name", "schema_name") if node.get(part)]
    if place[-1:] != ["information_schema"] or place[:-1] not in ([], [CATALOG]):
        return False
    view = _VIEWS.get(".".join(["information_schema", str(node.get("table_name", "")).lower()]))
    if view is None:
        return False
    _become_view(node, view, views)
    return True


def _become_view(node: dict[str, Any], view: CatalogView, views: dict[CatalogView, None]) -> None:
    views[view] = None
    kept = ("alias", "sample", "query_location", "column_name_alias")
    keep: dict[str, Any] = {name: node[name] for name in kept if name in node}
    alias = keep.get("alias") or view.name.rpartition(".")[2].strip('" ')
    node.clear()
    node |= {"type": "BASE_TABLE", "column_name_alias": [], "at_clause": None, **keep, "alias": alias}
    node |= {"catalog_name": "", "schema_name": "", "table_name": view.name, "qualified_name": {"path": [view.name]}}


def _check_growth(node: dict[str, Any]) -> None:
    name = str(node.get("function_name", "")).lower()
    for argument in node.get("arguments", [])[_GROWING.get(name, slice(0))]:
        literal = argument["expression"].get("literal") or {}
        if literal.get("kind") != "INTEGER" or abs(_number(literal)) > _MOST_GROWN:
            message = f"{name}() needs a literal size of at most {_MOST_GROWN}"
            raise QueryError(message, hint="pass a literal number; use FROM range(…) to produce many rows")


def _by_small_letters(served: Iterable[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name in served:
        if names.setdefault(name.lower(), name) != name:
            # SQL cannot distinguish these names, and a guess could return the wrong table.
            names[name.lower()] = ""
    return names


def _name_table(node: dict[str, Any], names: dict[str, str], own: set[str], used: dict[str, None]) -> None:
    place = tuple(str(node[part]).lower() for part in ("catalog_name", "schema_name") if node.get(part))
    asked = str(node.get("table_name", ""))
    shown = ".".join([*place, asked])[:200]
    if node.get("at_clause"):
        raise QueryError(f"The table {shown} is requested at another version", hint="omit AT")
    if not place and asked.lower() in own:
        if asked.lower() in names:
            # The scope of the WITH may not include this reference.
            used[names[asked.lower()]] = None
        return
    if place not in _PLACES or asked.lower() not in names:
        raise QueryError(f"There is no table {shown!r} here", hint=_HINT)
    name = names[asked.lower()]
    if not name:
        raise QueryError(
            f"The names of several tables differ from {shown!r} only in case",
            hint="rename one of them in the server's configuration",
        )
    used[name] = None
    node |= {"catalog_name": "", "schema_name": "", "table_name": name}
    if "qualified_name" in node:
        node["qualified_name"] = {"path": [name]}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
