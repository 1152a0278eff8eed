"""Random predicates for any table, and every form in which one can be written."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tests.predicates import worlds

if TYPE_CHECKING:
    import random

    from tests.oracle.replay import Snapshot
    from tests.predicates.worlds import Node

_FLOATS = {name for name, kind in worlds.TYPES.items() if kind in {"float", "double"}}
FORMS = ("sql", "dict", "json", "tuples", "expression")
_VALUES: dict[str, list[Any]] = {
    "string": ["", "a", "aä", "b", "m", "z", "zz", "z" * 32, "with space", "50%", "2026021014", "日本", "a'b"],
    "long": [0, -(2**40), 2**40, -1, 5, 2**62],
    "integer": [0, -7, 2147483647, 5, -8],
    "double": [0.0, -10.0, 11.5, 3.25, math.inf, -math.inf],
    "date": [dt.date(1969, 12, 30), dt.date(1969, 12, 31), dt.date(2026, 2, 10), dt.date(2026, 2, 11)],
    "timestamp": [
        dt.datetime(2026, 2, 10, 14, tzinfo=dt.UTC),
        dt.datetime(2026, 2, 10, 14, 0, 0, 123456, tzinfo=dt.UTC),
        dt.datetime(2026, 2, 10, 15, tzinfo=dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    ],
    "boolean": [True, False],
}


def predicate_for(rng: random.Random, snapshot: Snapshot, depth: int = 2) -> Node:
    """Draw a predicate over the columns of a random log's table."""
    kind = rng.random()
    if depth and kind < 0.4:
        parts = [predicate_for(rng, snapshot, depth - 1) for _ in range(rng.randint(2, 3))]
        return (rng.choice(["and", "or"]), parts)
    if depth and kind < 0.5:
        return ("not", predicate_for(rng, snapshot, depth - 1))
    field = rng.choice(snapshot.fields)
    name, values = field["name"], _VALUES[field["type"]]
    if kind < 0.6:
        return ("null", name)
    if kind < 0.7:
        return ("in", name, rng.choices(values, k=rng.choice([1, 2, 3])))
    if kind < 0.8 and field["type"] == "string":
        return ("prefix", name, rng.choice([value for value in values if value]))
    item = rng.choice(values)
    if field["type"] == "long":
        item += rng.randrange(-1000, 1000)
    return ("cmp", name, rng.choice(list(worlds.OPS)), item)


def written(node: Node, form: str) -> Any:
    """Write a predicate in a form; a form that has no words for it gives way to a dict."""
    match form:
        case "sql" if not _has_floats(node):  # SQL has another order for NaN, which the judge does not know
            return worlds.to_sql(node)
        case "json" if _is_json(node):
            return json.dumps(worlds.to_json(node), default=_text)
        case "tuples" if (filters := _tuples(node)) is not None:
            return filters
        case "expression":
            try:
                return worlds.to_expression(node)
            except (ValueError, OverflowError, TypeError):  # pyarrow has no literal of more than 64 bits
                return worlds.to_json(node)
    return worlds.to_json(node)


def is_expression(form: str) -> bool:
    """Tell whether a form is one that may prune less than the others."""
    return form == "expression"


def _text(item: object) -> str:
    return item.isoformat() if isinstance(item, dt.date) else str(item)


def _has_floats(node: Node) -> bool:
    match node:
        case ("and" | "or", parts):
            return any(map(_has_floats, parts))
        case ("not", part):
            return _has_floats(part)
        case ("in", column, items):
            return column in _FLOATS or any(isinstance(item, float) for item in items)
        case ("cmp", column, _, item):
            return column in _FLOATS or isinstance(item, float)
    return False


def _is_json(node: Node) -> bool:
    match node:
        case ("and" | "or", parts):
            return all(map(_is_json, parts))
        case ("not", part):
            return _is_json(part)
        case ("in", _, items):
            return all(map(_is_plain, items))
        case ("cmp", _, _, item):
            return _is_plain(item)
    return True


def _is_plain(item: object) -> bool:
    # A string beside a date column is a date, so a timestamp would mean something else there.
    if isinstance(item, dt.datetime):
        return False
    return not (isinstance(item, Decimal) or (isinstance(item, float) and not math.isfinite(item)))


def _tuples(node: Node) -> list[Any] | None:
    if node[0] == "or":
        lists = [_conjunction(part) for part in node[1]]
        return None if None in lists else lists
    return _conjunction(node)


def _conjunction(node: Node) -> list[Any] | None:
    parts = [_condition(part) for part in (node[1] if node[0] == "and" else [node])]
    return None if None in parts else parts


def _condition(node: Node) -> tuple[Any, ...] | None:
    match node:
        case ("in", _, items) | ("not", ("in", _, items)) if any(item != item for item in items):  # noqa: PLR0124
            return None  # PyArrow finds NaN in a list, and so do tuples
        case ("cmp", column, op, item):
            return (column, op, item)
        case ("in", column, items):
            return (column, "in", items)
        case ("not", ("in", column, items)):
            return (column, "not in", [*items, None])  # or else it would keep nulls, as PyArrow has it
        case ("null", column):
            return (column, "is null")
        case ("not", ("null", column)):
            return (column, "is not null")
        case ("prefix", column, prefix):
            return (column, "starts with", prefix)
    return None
