"""Which type a parameter has: that of what it stands beside.

Clients of JDBC convert a value to the type that the server names before they send it. DuckDB names none: it waits for
the values. So for each parameter we look for an expression beside it (the other side of a comparison, what a list or a
range is compared with) and let DuckDB bind that expression alone over the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from lazydelta.serve.flight_sql.bound_values import with_values

__all__ = ["parameter_types"]

_NUMBER = "CAST(NULL AS BIGINT)"
_TEXT = "CAST(NULL AS VARCHAR)"
_TEXT_OPERATORS = frozenset({"~~", "!~~", "~~*", "!~~*", "~~~", "like_escape", "starts_with", "regexp_matches"})


def parameter_types(
    tree: dict[str, Any],
    parameters: tuple[str, ...],
    expression: Callable[[str], dict[str, Any]],
    bind: Callable[[dict[str, Any]], pa.Schema | None],
) -> dict[str, pa.DataType]:
    """Return a type for each parameter, that of texts where nothing tells: DuckDB casts a text to what it needs.

    ``expression`` parses one, ``bind`` tells the columns of a tree, or None where DuckDB refuses it.
    """
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
    # Arrow's JDBC driver writes milliseconds whatever unit is named; other clients send values of the type they have.
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms", kind.tz)
    return pa.time32("ms") if pa.types.is_time(kind) else kind


def _neighbours(
    node: Any, scope: dict[str, Any] | None, expression: Callable[[str], dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Yield for parameters the SELECT that they stand in and an expression of their type."""
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
    """Return the expressions of a node that have one type."""
    if node.get("class") == "COMPARISON":
        return [node["left"], node["right"]]
    if node.get("class") == "BETWEEN":
        return [node["input"], node["lower"], node["upper"]]
    if node.get("type") in {"COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_COALESCE"}:
        return list(node["children"])
    if node.get("class") == "FUNCTION" and node.get("is_operator"):
        return [each["expression"] for each in node.get("arguments", [])]
    return []


def _is_parameter(node: Any) -> bool:
    return isinstance(node, dict) and node.get("class") == "PARAMETER"
