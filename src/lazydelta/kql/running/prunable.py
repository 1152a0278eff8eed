"""Conditions of a query as predicates that tables prune by.

A predicate keeps every row that its condition keeps, and may keep more: DuckDB tests all of them again. It is said in
the JSON form of predicates, which follows SQL's nulls, so Kusto's are spelled out: ``x != 5`` keeps nulls, and a text
that is null is an empty one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from lazydelta.kql.meaning.typed import Typed, call, literal
from lazydelta.types.literals import Instant

__all__ = ["Prunable", "Unprunable", "conjunction", "prunable"]

_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WHOLE_IN_REAL = 2**53
_DAY = 864_000_000_000
_STARTS = {"startofday": _DAY, "startofweek": 7 * _DAY, "startofmonth": 31 * _DAY, "startofyear": 366 * _DAY}
_IGNORE_CASE = frozenset({"=~", "!~", "has", "hasprefix", "hassuffix", "contains", "startswith", "endswith"})


class Unprunable(Exception):  # noqa: N818 - a reason that is shown, not an error
    """Why a condition cannot prune."""


@dataclass(frozen=True, slots=True)
class Prunable:
    """A predicate, None for one that any row may pass; ``exact`` says that it keeps no row too many."""

    where: dict[str, Any] | None
    exact: bool


def prunable(
    condition: Typed, column_of: Callable[[str], str | None], known: Callable[[Typed], Typed | None]
) -> Prunable:
    """Translate a condition; ``column_of`` names the table's column of an identity, ``known`` folds constants.

    Raises ``Unprunable`` where nothing of the condition can prune.
    """
    return _Translation(column_of, known).translate(condition)


class _Translation:
    def __init__(self, column_of: Callable[[str], str | None], known: Callable[[Typed], Typed | None]) -> None:
        self._column_of = column_of
        self._known = known

    def translate(self, node: Typed, *, negated: bool = False, nulls: bool = False) -> Prunable:
        """Return what rows must pass for which the node is true, or false if negated, or else null if nulls will do."""
        if node.op == "not":
            return self.translate(node.arguments[0], negated=not negated, nulls=nulls)
        if node.op in {"and", "or"}:
            return self._connective(node, all_of=(node.op == "and") is not negated, negated=negated)
        if node.op == "literal" and node.kind == "bool":
            passes = nulls if node.value is None else bool(node.value) is not negated
            return Prunable(None if passes else {"or": []}, exact=True)
        if node.op == "column" and node.kind == "bool":
            name = self._name(node)
            wanted = _leaf(name, "=", not negated)
            return Prunable({"or": [wanted, {name: None}]} if nulls else wanted, exact=not nulls)
        if node.op in _OPPOSITE:
            return self._comparison(node, negated=negated, nulls=nulls)
        if node.op in {"in", "!in"}:
            return self._membership(node, negated=negated is not (node.op == "!in"))
        if node.op in {"between", "!between"}:
            return self._between(node, negated=negated is not (node.op == "!between"), nulls=nulls)
        if node.op in {"startswith_cs", "!startswith_cs"}:
            return self._prefix(node, negated=negated is not (node.op == "!startswith_cs"))
        if node.op in {"isnull", "isnotnull", "notnull", "isempty", "isnotempty", "notempty"}:
            return self._null_test(node, negated=negated)
        if node.op in _IGNORE_CASE or node.op.lstrip("!") in _IGNORE_CASE:
            raise Unprunable(f"{node.op} ignores case or looks inside texts, and bounds do not")
        raise Unprunable(f"{node.op} says nothing about the bounds of a column")

    def _connective(self, node: Typed, *, all_of: bool, negated: bool) -> Prunable:
        parts: list[Prunable] = []
        reasons: list[str] = []
        for each in node.arguments:
            try:
                # A connective is never null: it is false as soon as its parts, null or false, do not make it true.
                parts.append(self.translate(each, negated=negated, nulls=negated))
            except Unprunable as reason:
                reasons.append(str(reason))
        if reasons and (not all_of or not parts):
            raise Unprunable(reasons[0])
        exact = not reasons and not negated and all(each.exact for each in parts)
        said = [each.where for each in parts]
        if not all_of:
            if any(each is None for each in said):
                return Prunable(None, exact=exact)
            return Prunable({"or": said}, exact=exact)
        kept = [each for each in said if each is not None]
        return Prunable({"and": kept} if kept else None, exact=exact)

    def _comparison(self, node: Typed, *, negated: bool, nulls: bool) -> Prunable:
        left, right = node.arguments
        op = node.op
        if right.refs and not left.refs:
            left, right, op = right, left, _MIRRORED[op]
        if left.op == "strcmp" and right.is_literal and right.kind in {"int", "long"} and right.value == 0:
            # How two texts are ordered, as Kusto asks for it.
            return self._comparison(call("bool", op, "", left.arguments), negated=negated, nulls=nulls)
        width = None if negated or op == "!=" else self._width(left)
        if width is not None:
            return self._rounded_down(left.arguments[0], op, right, width, nulls=nulls)
        name, value = self._name(left), self._value(left, right)
        return self._compared(left, name, op, value, negated=negated, nulls=nulls)

    def _width(self, expression: Typed) -> int | None:
        """Return by how much an expression may lie below the column that it rounds down, None if it does not."""
        if expression.op in _STARTS and len(expression.arguments) == 1:
            return _STARTS[expression.op]
        if expression.op in {"bin", "floor"} and expression.arguments[0].kind in {"datetime", "long", "int"}:
            size = expression.arguments[1]
            if size.is_literal and size.kind in {"timespan", "long", "int"} and (size.value or 0) > 0:
                return int(size.value)
        return None

    def _rounded_down(self, column: Typed, op: str, bound: Typed, width: int, *, nulls: bool) -> Prunable:
        """Compare a column that was rounded down: it is not below its rounded self, and less than a width above."""
        name = self._name(column)
        low = self._value(column, bound)
        constant = bound if bound.is_literal else self._known(bound)
        if low is None or constant is None or constant.kind == "real":
            raise Unprunable("the bound of a rounded column is not a whole number or a moment")
        high = self._value(column, literal(constant.kind, constant.value + width))
        parts = [_leaf(name, ">" if op == ">" else ">=", low)] if op in {">", ">=", "=="} else []
        parts += [_leaf(name, "<", high)] if op in {"<", "<=", "=="} else []
        said: dict[str, Any] = {"and": parts}
        if _null_passes(column, op, low, nulls=nulls):
            said = {"or": [said, {name: None}]}
        return Prunable(said, exact=False)

    def _compared(self, column: Typed, name: str, op: str, value: Any, *, negated: bool, nulls: bool) -> Prunable:
        if value is None:
            raise Unprunable("a comparison with null prunes nothing")
        said: dict[str, Any] = _leaf(name, _sql_operator(op), value)
        if negated:
            said = {"not": said}
        if _null_passes(column, _OPPOSITE[op] if negated else op, value, nulls=nulls):
            said = {"or": [said, {name: None}]}
        return Prunable(said, exact=not negated and column.kind not in {"real", "decimal"})

    def _membership(self, node: Typed, *, negated: bool) -> Prunable:
        column, *items = node.arguments
        name = self._name(column)
        values = [value for each in items if (value := self._value(column, each)) is not None]
        said: dict[str, Any] = {name: {"in": values}}
        passes = "" in values if column.kind == "string" else False
        if negated:
            said = {"not": said} if values else {"and": []}
            if not values:
                return Prunable(None, exact=True)
        if passes is not negated:
            said = {"or": [said, {name: None}]}
        return Prunable(said, exact=column.kind not in {"real", "decimal"})

    def _between(self, node: Typed, *, negated: bool, nulls: bool) -> Prunable:
        column, low, high = node.arguments
        name = self._name(column)
        bounds = [(">=", self._value(column, low)), ("<=", self._value(column, high))]
        parts = [self._compared(column, name, op, value, negated=negated, nulls=nulls) for op, value in bounds]
        join = "or" if negated else "and"
        return Prunable({join: [each.where for each in parts]}, exact=all(each.exact for each in parts))

    def _prefix(self, node: Typed, *, negated: bool) -> Prunable:
        column, prefix = node.arguments
        name, value = self._name(column), self._value(column, prefix)
        if not isinstance(value, str) or not value:
            raise Unprunable("every text starts with the empty one")
        said: dict[str, Any] = {name: {"starts with": value}}
        if negated:
            return Prunable({"or": [{"not": said}, {name: None}]}, exact=True)
        return Prunable(said, exact=True)

    def _null_test(self, node: Typed, *, negated: bool) -> Prunable:
        (column,) = node.arguments
        name = self._name(column, compared=False)
        is_null = node.op in {"isnull", "isempty"}
        wanted = is_null is not negated
        if column.kind == "string":
            if node.op in {"isnull", "isnotnull", "notnull"}:
                return Prunable({"or": []} if wanted else None, exact=True)
            empty = {"or": [_leaf(name, "=", ""), {name: None}]}
            return Prunable(empty if wanted else {name: {"!=": ""}}, exact=True)
        if column.kind == "dynamic":
            raise Unprunable("a dynamic value has no bounds")
        return Prunable({name: None} if wanted else {"not": {name: None}}, exact=True)

    def _name(self, column: Typed, *, compared: bool = True) -> str:
        if column.op != "column":
            raise Unprunable(f"a column is compared after {column.op}")
        name = self._column_of(str(column.value))
        if name is None:
            raise Unprunable("the column has no bounds in a table")
        if column.kind == "dynamic" and compared:
            raise Unprunable("a dynamic value has no bounds")
        if name.lower() == "not":
            raise Unprunable("a column called not cannot be named in a predicate")
        return name

    def _value(self, column: Typed, expression: Typed) -> Any:
        if expression.refs:
            raise Unprunable("a column is compared with another column")
        constant = expression if expression.is_literal else self._known(expression)
        if constant is None:
            raise Unprunable(f"the value of {expression.op} is not known before the query runs")
        value = constant.value
        if value is None:
            return None
        if (constant.kind == "bool") is not (column.kind == "bool"):
            raise Unprunable("a bool is compared with a number")
        if constant.kind == "real" and column.kind in {"int", "long"} and not abs(value) < _WHOLE_IN_REAL:
            raise Unprunable("the number is too large for an exact comparison")
        if {constant.kind, column.kind} == {"real", "decimal"}:
            raise Unprunable("a decimal is compared with a real, which rounds")
        if constant.kind == "datetime":
            return Instant(value // 10 * 1000)
        if constant.kind == "dynamic":
            raise Unprunable("a dynamic value is compared")
        if column.kind == "real" and isinstance(value, int) and abs(value) >= _WHOLE_IN_REAL:
            raise Unprunable("the number is too large for an exact comparison")
        return float(value) if column.kind == "real" and isinstance(value, int | Decimal) else value


def _null_passes(column: Typed, op: str, value: Any, *, nulls: bool) -> bool:
    if column.kind == "string":
        # Delta's null is the empty text here.
        return _HOLDS[op]("", value)
    # Null is never equal to a value, and an order comparison with it is null itself.
    return op == "!=" or (op != "==" and nulls)


def _leaf(name: str, op: str, value: Any) -> dict[str, Any]:
    return {name: {op: value}}


def _sql_operator(op: str) -> str:
    return "=" if op == "==" else op


def conjunction(parts: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return all parts as one predicate."""
    listed = list(parts)
    return listed[0] if len(listed) == 1 else {"and": listed} if listed else None
