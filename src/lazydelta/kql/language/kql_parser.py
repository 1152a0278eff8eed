"""Text to syntax tree, through Lark; what does not parse is an error that shows where."""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Any

from lark import Lark
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken, VisitError

from lazydelta.errors import KqlError
from lazydelta.kql.language import kql_syntax as syntax
from lazydelta.kql.language.complaints import QueryText
from lazydelta.kql.language.tree_builder import TreeBuilder

__all__ = ["OPERATORS", "parse"]

OPERATORS = (
    "where",
    "filter",
    "project",
    "project-away",
    "project-keep",
    "project-rename",
    "project-reorder",
    "extend",
    "summarize",
    "sort",
    "order",
    "top",
    "take",
    "limit",
    "sample",
    "distinct",
    "count",
    "getschema",
    "union",
    "join",
    "lookup",
    "render",
)
"""The operators that may stand after a pipe."""

_LONGEST = 1 << 20
_WORD = re.compile(r"[\w-]+|!?\w+~?|[^\w\s]+|\S")
# Words that start a statement, or a query without a table, in Kusto; here each would be taken for a table's name.
_STATEMENT = re.compile(
    r"(?:\A|;)\s*(?://[^\n]*\n\s*)*(set|declare|alias|restrict|pattern|search|find|evaluate)\s+(?:\(\s*)?\Z"
    r"|\b(externaldata)\s*\(\s*\w*\s*\Z"
)
_SHOWN = {
    "NAME": "a name",
    "BRACKET_NAME": "['name']",
    "STRING": "a text",
    "LONG": "a number",
    "REAL": "a number",
    "TIMESPAN": "a time span",
    "BOOL": "true or false",
    "TYPED": "a value",
    "SIGN": "a sign",
    "WILDCARD": "a pattern",
    "OPTION": "an option",
    "HINT": "a hint",
    "DOTS": "..",
    "SEMICOLON": ";",
    "EQUAL": "=",
    "LPAR": "(",
    "RPAR": ")",
    "LSQB": "[",
    "RSQB": "]",
    "LBRACE": "{",
    "RBRACE": "}",
    "VBAR": "|",
    "COMMA": ",",
    "COLON": ":",
    "DOT": ".",
    "STAR": "*",
    "$END": "the end of the query",
}
_HABITS = {
    "=": "write == to compare",
    "&&": "write and",
    "!": "write not(…)",
    "like": "write contains, startswith or matches regex",
    "is": "write isnull(…)",
    "not": "write !in, or not(…)",
    "as": "write name = expression",
}
"""What people write who come from other languages."""
_FEW = 4


def parse(text: str) -> syntax.Program:
    """Return the tree of a query."""
    query = QueryText(text)
    if len(text) > _LONGEST:
        message = f"the query has {len(text):,} characters"
        raise query.error(0, message, hint=f"{_LONGEST:,} are the most that are read")
    if not text.strip():
        raise query.error(0, "the query is empty", hint="write a table, and operators after it: T | take 10")
    try:
        tree = _lark().parse(text)
    except UnexpectedEOF as error:
        raise query.error(len(text), "the query ends too early", hint=_expected(error.expected)) from error
    except UnexpectedInput as error:
        raise _unexpected(query, error) from error
    try:
        program = TreeBuilder(query).transform(tree)
    except VisitError as error:
        if isinstance(error.orig_exc, KqlError):
            raise error.orig_exc from None
        raise error.orig_exc from error
    except RecursionError as error:
        raise query.error(0, "the query is nested too deeply", hint="name parts of it with let") from error
    assert isinstance(program, syntax.Program)  # noqa: S101 - the grammar's start
    return program


@functools.cache
def _lark() -> Lark:
    grammar = resources.files(__package__ or "").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", lexer="contextual", propagate_positions=True, maybe_placeholders=True)


def _unexpected(query: QueryText, error: UnexpectedInput) -> KqlError:
    at = getattr(error, "pos_in_stream", None)
    expected: set[str] = set()
    if isinstance(error, UnexpectedToken):
        if error.token.type == "$END":
            return query.error(len(query.text), "the query ends too early", hint=_expected(error.expected))
        at, expected = error.token.start_pos, set(error.expected)
    elif isinstance(error, UnexpectedCharacters):
        expected = set(error.allowed or ())
    at = at or 0
    before = _STATEMENT.search(query.text, 0, at)
    if before is not None:
        found = before.lastindex or 1
        message = f"{before[found]!r} is not supported"
        return query.error(
            before.start(found), message, hint="a query is let statements, a table, and operators after it"
        )
    if query.text.startswith(".", at) and not query.text[:at].strip():
        return query.error(at, "commands that start with a dot are not supported", hint="write a query")
    match = _WORD.match(query.text, at)
    word = match[0] if match else query.text[at : at + 1]
    if expected & {"WHERE", "SUMMARIZE"} and "VBAR" not in expected and word[:1] != "|":
        return query.error(at, f"the operator {word!r} is not supported", hint=f"known are {', '.join(OPERATORS)}")
    if word[:1] in {"'", '"'} and "STRING" in expected:
        return query.error(at, "a text is not closed on its line", hint="close it, or write it between ```")
    return query.error(at, f"{word!r} is not expected here", hint=_HABITS.get(word) or _expected(expected))


def _expected(names: Any) -> str | None:
    given = set(names or ())
    shown = sorted({_SHOWN.get(name, name.lower().replace("_", "-")) for name in given})
    if not shown:
        return None
    if {"WHERE", "SUMMARIZE"} <= given:
        return f"an operator is expected: {', '.join(OPERATORS)}"
    if len(shown) > _FEW and "NAME" in given:
        return "an expression is expected"
    if len(shown) > 2 * _FEW:
        return "an operator, a pipe or the end is expected"
    return f"expected: {', '.join(shown)}"
