"""What goes wrong while a query runs, told of the place in its text that is to blame.

DuckDB knows which operation failed and not where it came from. Where the query has one part only that becomes such an
operation, that is the place; where it has several, or none, it is the start of what the query asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from lazydelta.errors import KqlError
from lazydelta.kql.language import kql_syntax as syntax
from lazydelta.kql.language.complaints import QueryText

__all__ = ["failed"]

_SIGNS = {"multiplication": "*", "addition": "+", "subtraction": "-"}
_OVERFLOW = re.compile(r"Overflow in (multiplication|addition|subtraction)")
_TOO_LARGE = re.compile(r"Overflow|out of range")
_REGEX = re.compile(r"^(?:missing|unexpected|invalid|no argument for|bad|trailing|pattern too large)\b")
_PATTERNS = {"extract": 0, "trim": 0, "trim_start": 0, "trim_end": 0}


def failed(text: str, program: syntax.Program, said: str) -> KqlError:
    """Return an error of ours for what DuckDB said while it ran a query."""
    lines = said.strip().splitlines()
    reason = re.sub(r"^[\w ]+ Error: ", "", lines[0]) if lines else "DuckDB gives no reason"
    places = _places(program, reason)
    at = places[0] if len(places) == 1 else program.body.at
    hint = "check the values that it computes with"
    if _TOO_LARGE.search(reason):
        hint = "a number is too large for its type: compute with todouble()"
    elif _REGEX.match(reason):
        hint = "a regular expression that the query computes is not valid"
    return QueryText(text).error(at, f"the query failed: {reason}", hint=hint)


def _places(program: syntax.Program, reason: str) -> list[int]:
    if match := _OVERFLOW.search(reason):
        sign = _SIGNS[match[1]]
        return [node.at for node in _nodes(program) if isinstance(node, syntax.Binary) and node.op == sign]
    if "sum(" in reason:
        return [node.at for node in _calls(program) if node.name in {"sum", "sumif"}]
    if match := re.search(r"Overflow on (\w+)\(", reason):
        return [node.at for node in _calls(program) if node.name == match[1]]
    if _REGEX.match(reason):
        return [*_patterns(program)]
    return []


def _patterns(program: syntax.Program) -> Iterator[int]:
    for node in _nodes(program):
        pattern: syntax.Node | None = None
        if isinstance(node, syntax.Binary) and node.op == "matches regex":
            pattern = node.right
        elif isinstance(node, syntax.Call) and node.name in _PATTERNS and node.arguments:
            pattern = node.arguments[_PATTERNS[node.name]]
        # One that is written in the query was found to be valid before it ran.
        if pattern is not None and not isinstance(pattern, syntax.Literal):
            yield pattern.at


def _calls(program: syntax.Program) -> Iterator[syntax.Call]:
    return (node for node in _nodes(program) if isinstance(node, syntax.Call))


def _nodes(root: Any) -> Iterator[syntax.Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting += node
        elif isinstance(node, syntax.Node):
            yield node
            waiting += [getattr(node, field.name) for field in fields(node)]
