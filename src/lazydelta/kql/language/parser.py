"""Parse a query into a syntax tree with Lark. Syntax errors show their position."""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from lark import Lark
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken, VisitError

from lazydelta.errors import KqlError
from lazydelta.kql.language import syntax
from lazydelta.kql.language.builder import TreeBuilder
from lazydelta.kql.language.literals import KINDS, BadLiteral, typed, unquoted
from lazydelta.kql.language.syntax import QueryText

__all__ = ["OPERATORS", "parse", "with_parameters"]


OPERATORS = (
    "where",
    "filter",
    "project",
    "project-away",
    "project-by-names",
    "project-keep",
    "project-rename",
    "project-reorder",
    "extend",
    "summarize",
    "sort",
    "order",
    "top",
    "top-hitters",
    "top-nested",
    "take",
    "limit",
    "sample",
    "sample-distinct",
    "distinct",
    "count",
    "getschema",
    "union",
    "join",
    "lookup",
    "render",
    "mv-expand",
    "mv-apply",
    "make-series",
    "parse",
    "parse-kv",
    "parse-where",
    "serialize",
    "scan",
    "search",
    "as",
    "partition",
    "reduce",
    "consume",
    "invoke",
    "evaluate",
    "assert-schema",
    "make-graph",
    "graph-match",
    "graph-shortest-paths",
    "graph-to-table",
    "graph-mark-components",
    "graph-where-nodes",
    "graph-where-edges",
)
"""Operators that may follow a pipe."""

_LONGEST = 1 << 20
_WORD = re.compile(r"[\w-]+|!?\w+~?|[^\w\s]+|\S")
# Words that start a statement or a query without a table in Kusto. Here each would be taken for a table name.
_STATEMENT = re.compile(
    r"(?:\A|;)\s*(?://[^\n]*\n\s*)*(set|declare|alias|restrict|pattern|search|find|evaluate)\s+(?:\(\s*)?\Z"
    r"|\b(externaldata|external_data|inline_external_table)\s*(?:\(\s*\w*\s*)?\Z|(?:\A|;)\s*(macro-expand)\s[^;|]*\Z"
)
_ELSEWHERE = "read the files as tables with tables={…} or --table NAME=URI"
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
    "group": "write summarize … by",
    "select": "write project",
    "having": "write where after summarize",
    "not": "write !in, or not(…)",
    "as": "write name = expression",
}
"""Common mistakes of users who know other query languages."""
_FEW = 4
_QUOTED = re.compile(r"""[hH]?@?(?:"[^"]*"|'[^']*')""")
_DYNAMIC = re.compile(r"\s*dynamic\s*\(")
_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)


def parse(text: str) -> syntax.Program:
    """Return the syntax tree of a query."""
    try:
        return _parsed(text)
    except KqlError as error:
        error.is_syntax = True
        raise


def _parsed(text: str) -> syntax.Program:
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
        raise query.error(0, "the query is nested too deeply", hint="move parts of it to let statements") from error
    assert isinstance(program, syntax.Program)  # noqa: S101 - the grammar's start
    return program


def with_parameters(text: str, program: syntax.Program, given: Mapping[str, Any]) -> syntax.Program:
    """Return a program whose declared query parameters are ``let`` values: those given, or the defaults.

    A value is the text of a literal, such as ``datetime(2026-02-10)``; a string needs no quotes. Values of parameters
    that the query does not declare are ignored, as in Kusto.
    """
    query = QueryText(text)
    statements: list[Any] = []
    for statement in program.lets:
        if not isinstance(statement, syntax.QueryParameters):
            statements.append(statement)
            continue
        for each in statement.parameters:
            value = _given(query, each, given[each.name]) if each.name in given else each.default
            if value is None:
                hint = "pass one in the request, or a default in the declaration"
                raise query.error(each.at, f"the query parameter {each.name!r} has no value", hint=hint)
            statements.append(syntax.Let(each.at, each.name, value))
    return replace(program, lets=tuple(statements))


def results(program: syntax.Program) -> list[tuple[str | None, syntax.Program]]:
    """Return a program for each result of another, with the name of the result.

    A query has several results if it has several queries, or ends with ``fork``, ``facet``, ``funnel_sequence`` or
    ``graph-to-table`` of several tables. What a query names with ``as`` is known to those that follow.
    """
    lets = list(program.lets)
    found: list[tuple[str | None, syntax.Program]] = []
    bodies = (program.body, *program.more)
    for place, body in enumerate(bodies):
        pipeline = body if isinstance(body, syntax.Pipeline) else syntax.Pipeline(body.at, body, ())
        ends = _ends(pipeline)
        if place == len(bodies) - 1 or not (len(ends) > 1 and isinstance(pipeline.operators[-1], syntax.GraphToTable)):
            made = [(name, body if steps is None else _piped(pipeline, steps)) for name, steps in ends]
            found += [(name, replace(program, lets=tuple(lets), body=each, more=())) for name, each in made]
        else:
            lets += [
                syntax.Let(body.at, name, _piped(pipeline, steps or ())) for name, steps in ends if name is not None
            ]
        for index, each in enumerate(pipeline.operators):
            if isinstance(each, syntax.As):
                lets.append(syntax.Let(each.at, each.name, _piped(pipeline, pipeline.operators[:index])))
    return found


def _piped(pipeline: syntax.Pipeline, operators: tuple[syntax.Operator, ...]) -> syntax.Expression:
    return replace(pipeline, operators=operators) if operators else pipeline.source


def _ends(pipeline: syntax.Pipeline) -> list[tuple[str | None, tuple[syntax.Operator, ...] | None]]:
    """Return the name and the operators of each result of a pipeline; None for the pipeline as it is."""
    if not pipeline.operators:
        return [(None, None)]
    *before, last = pipeline.operators
    match last:
        case syntax.Fork(branches=branches):
            return [(name, (*before, *steps)) for name, steps in branches]
        case syntax.Facet(columns=columns, steps=steps):
            first = [] if steps is None else [(None, (*before, *steps))]
            return [*first, *((name, (*before, _counted(name, at))) for name, at in columns)]
        case syntax.GraphToTable(outputs=outputs) if len(outputs) > 1:
            return [(each[1], (*before, replace(last, outputs=(each,)))) for each in outputs]
        case syntax.Evaluate(call=syntax.Call(name="funnel_sequence") as call):
            calls = [
                replace(call, arguments=(*call.arguments, syntax.NamedArgument(call.at, "$table", index)))
                for index in (syntax.Literal(call.at, "long", number) for number in range(3))
            ]
            return [(None, (*before, replace(last, call=each))) for each in calls]
        case _:
            return [(None, None)]


def _counted(name: str, at: int) -> syntax.Summarize:
    group = syntax.Named(at, None, syntax.Column(at, name))
    return syntax.Summarize(at, (syntax.Named(at, None, syntax.Call(at, "count", ())),), (group,))


def _given(query: QueryText, declared: syntax.Parameter, value: Any) -> Any:
    kind = str(declared.kind)
    written = value if isinstance(value, str) else json.dumps(value)
    try:
        if kind == "string":
            return syntax.Literal(declared.at, kind, unquoted(written) if _QUOTED.fullmatch(written) else written)
        if kind == "dynamic":
            inner = written if _DYNAMIC.match(written) else f"dynamic({written})"
            printed: Any = parse(f"print {inner}").body
            return replace(printed.items[0].expression, at=declared.at)
        call = _CALL.fullmatch(written)
        is_call = call is not None and KINDS.get(call[1]) == kind
        found, made = typed(kind, call[2] if call is not None and is_call else written)
        return syntax.Call(declared.at, "now", ()) if found == "now" else syntax.Literal(declared.at, found, made)
    except (BadLiteral, KqlError, ValueError, TypeError) as error:
        message = f"the value of the query parameter {declared.name!r} is not of the type {kind}"
        raise query.error(declared.at, message, hint="write it as a literal of that type") from error


@functools.cache
def _lark() -> Lark:
    grammar = resources.files(__package__ or "").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(
        grammar,
        parser="lalr",
        lexer="contextual",
        propagate_positions=True,
        maybe_placeholders=True,
        cache=_tables_file(grammar),
    )


def _tables_file(grammar: str) -> str | bool:
    """Return where the tables of the parser are kept, or False where the user has no cache of their own.

    Computing the tables takes 0.9 s of CPU time, reading them 0.03 s. Lark computes them again if the file is damaged.
    The file is a pickle, so a folder that another user can write to is not trusted.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lazydelta"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except (OSError, RuntimeError):
        # A user without a home, or one that is read-only.
        return False
    if found.st_mode & 0o022 or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
        return False
    return str(folder / f"kql-{hashlib.sha256(grammar.encode()).hexdigest()[:16]}.lark")


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
        hints = {"external": _ELSEWHERE, "macro": "it needs databases of a cluster; write union of the tables"}
        usual = "a query is let statements, a table, and operators after it"
        hint = next((each for word, each in hints.items() if word in before[found]), usual)
        return query.error(before.start(found), message, hint=hint)
    if query.text.startswith(".", at) and not query.text[:at].strip():
        return query.error(at, "commands that start with a dot are not supported", hint="send a query")
    match = _WORD.match(query.text, at)
    word = match[0] if match else query.text[at : at + 1]
    if expected & {"WHERE", "SUMMARIZE"} and "VBAR" not in expected and word[:1] != "|":
        near = difflib.get_close_matches(word.lower(), OPERATORS, 1, 0.75)
        known = _HABITS.get(word) or (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(OPERATORS)}")
        return query.error(at, f"the operator {word!r} is not supported", hint=known)
    if word[:1] in {"'", '"'} and "STRING" in expected:
        return query.error(at, "a string is not closed on its line", hint="close it, or enclose it in ```")
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
