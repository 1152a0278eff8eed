"""Operators on strings: ``parse``, ``parse-kv``, ``reduce``, ``search``, ``find``, and ``*`` in conditions."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lazydelta.kql.binding import joins
from lazydelta.kql.binding.arrays import element
from lazydelta.kql.binding.plan import (
    Attach,
    Filter,
    Merge,
    OutputColumn,
    Plan,
    Relation,
    Scope,
    Staged,
    TableFunction,
)
from lazydelta.kql.binding.types import Typed, call, column, converted, literal, quoted, to_text
from lazydelta.kql.computing.steps import kv_parser, reduced
from lazydelta.kql.language import syntax

if TYPE_CHECKING:
    from lazydelta.kql.binding.tabular import Tabular

__all__ = ["any_column", "find", "operate", "search"]

_NUMBER = {
    "long": r"\s*([-+]?\d+)\s*",
    "int": r"\s*([-+]?\d+)\s*",
    "real": r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*",
    "decimal": r"\s*([-+]?(?:\d+\.?\d*|\.\d+))\s*",
    "bool": r"\s*((?i:true|false)|[01])\s*",
}
_GROUP = re.compile(r"(?<!\\)\((?!\?)")
_KV_OPTIONS = {"pair_delimiter", "kv_delimiter", "quote", "escape", "greedy", "regex"}


def operate(
    tabular: Tabular, relation: Relation, operator: syntax.Parse | syntax.ParseKv | syntax.Reduce, scope: Scope
) -> Relation:
    """Return the relation after ``parse``, ``parse-where``, ``parse-kv`` or ``reduce``."""
    match operator:
        case syntax.Parse():
            return _parsed(tabular, relation, operator, scope)
        case syntax.ParseKv():
            return _pairs(tabular, relation, operator, scope)
        case syntax.Reduce():
            return _reduced(tabular, relation, operator, scope)


# Patterns of texts and columns.


def _parsed(tabular: Tabular, relation: Relation, operator: syntax.Parse, scope: Scope) -> Relation:
    session = tabular.session
    options = dict(operator.options)
    kind = options.get("kind", "simple")
    if kind not in {"simple", "regex", "relaxed"}:
        raise session.error(operator.at, f"parse has no kind {kind!r}", "known: simple, regex and relaxed")
    bound = tabular.scalars(scope, relation.columns).bind(operator.expression)
    text = to_text(bound)
    names = [each for each in operator.parts if each.name is not None]
    pattern, groups = _pattern(operator.parts, kind, options.get("flags", ""))
    wrong = session.evaluator.check_regex(pattern)
    if wrong is not None:
        raise session.error(operator.at, f"the regular expression is not valid: {wrong}")
    matched = session.identity()
    columns: dict[str, Typed] = {
        matched: call("bool", "matches regex", f"regexp_matches({text}, {quoted(pattern)})", [bound])
    }
    raw: list[str] = []
    for index, part in enumerate(names):
        identity = session.identity()
        raw.append(identity)
        columns[identity] = call("string", part.kind, _group(text, pattern, groups[index], part.kind), [bound])
    plan: Plan = Attach(relation.plan, columns)
    flag = column(matched, "bool", matched)
    if kind != "relaxed":
        # A value that is not of its type means that the whole pattern does not match.
        typed = " AND ".join(
            [flag.sql, *(f"{each} IS NOT NULL" for each, part in zip(raw, names, strict=True) if part.kind != "string")]
        )
        every = [flag, *(column(each, part.kind, each) for each, part in zip(raw, names, strict=True))]
        whole = session.identity()
        plan = Attach(plan, {whole: call("bool", "and", f"({typed})", every)})
        flag = column(whole, "bool", whole)
    shown = list(relation.columns)
    last: dict[str, Typed] = {}
    for part, identity in zip(names, raw, strict=True):
        new = session.identity()
        made = column(identity, part.kind, identity)
        none = literal(part.kind, None).sql
        last[new] = call(part.kind, "parse", f"CASE WHEN {flag.sql} THEN {identity} ELSE {none} END", [flag, made])
        _put(shown, OutputColumn(part.name or "", part.kind, new))
    plan = Attach(plan, last)
    if operator.keep_only_matches:
        plan = Filter(plan, flag, ("parse-where",))
    return Relation(plan, tuple(shown))


def _put(shown: list[OutputColumn], new: OutputColumn) -> None:
    at = next((index for index, each in enumerate(shown) if each.name == new.name), None)
    if at is None:
        shown.append(new)
    else:
        shown[at] = new


def _pattern(parts: tuple[syntax.ParsePart, ...], kind: str, flags: str) -> tuple[str, list[int]]:
    """Return a regular expression, and the number of the group of each column."""
    made, groups = [], []
    count = 0
    for index, part in enumerate(parts):
        # Texts of a regular expression are greedy, unless the flag U says otherwise.
        greedy = kind == "regex" or index == len(parts) - 1
        any_text = ".*" if greedy else ".*?"
        if part.text is not None:
            made.append(f"(?:{part.text})" if kind == "regex" else _escaped(part.text))
            count += len(_GROUP.findall(part.text)) if kind == "regex" else 0
            continue
        if part.name is None:
            made.append(any_text)
            continue
        count += 1
        groups.append(count)
        typed = kind != "relaxed" and part.kind in _NUMBER
        made.append(_NUMBER[part.kind] if typed else f"({any_text})")
    letters = "".join(each for each in "imsU" if each in flags)
    letters += "s" if "s" not in letters else ""
    start = "" if kind == "regex" and parts[0].text is not None else "^"
    end = "" if kind == "regex" and parts[-1].text is not None else "$"
    return f"(?{letters}){start}{''.join(made)}{end}", groups


def _escaped(text: str) -> str:
    return re.sub(r"([^\w\s])", r"\\\1", text, flags=re.ASCII)


def _group(text: str, pattern: str, number: int, kind: str) -> str:
    found = f"regexp_extract({text}, {quoted(pattern)}, {number})"
    if kind == "string":
        return found
    if kind == "dynamic":
        return f"kql_parse_json({found})"
    return element(kind, f"to_json(trim({found}))")


# Keys and values.


def _pairs(tabular: Tabular, relation: Relation, operator: syntax.ParseKv, scope: Scope) -> Relation:
    session = tabular.session
    options = dict(operator.properties)
    unknown = options.keys() - _KV_OPTIONS
    if unknown:
        raise session.error(operator.at, f"parse-kv has no option {min(unknown)!r}")
    if isinstance(options.get("regex"), str):
        try:
            groups = re.compile(options["regex"]).groups
        except re.error as error:
            raise session.error(operator.at, f"the regular expression is not valid: {error}") from error
        if groups != 2:  # noqa: PLR2004 - a key and a value
            raise session.error(operator.at, "the regular expression needs two groups: a key and a value")
    bound = tabular.scalars(scope, relation.columns).bind(operator.expression)
    text = session.identity()
    raw = {session.identity(): "dynamic" for _ in operator.columns}
    names = tuple(name for name, _ in operator.columns)
    view = f"v{session.identity()}"
    source = Attach(relation.plan, {text: call("string", "tostring", to_text(bound), [bound])})
    plan: Plan = Staged(
        source,
        view,
        {text: "string"},
        dict.fromkeys(raw, "string"),
        lambda: kv_parser(names, options),
        keeps=True,
        is_rowwise=True,
    )
    shown = list(relation.columns)
    made: dict[str, Typed] = {}
    for (name, kind), identity in zip(operator.columns, raw, strict=True):
        new = session.identity()
        value = column(identity, "string", identity)
        sql = identity if kind == "string" else element(kind, f"to_json({identity})")
        made[new] = call(kind, "parse-kv", f"kql_parse_json({identity})" if kind == "dynamic" else sql, [value])
        _put(shown, OutputColumn(name, kind, new))
    return Relation(Attach(plan, made), tuple(shown))


def _reduced(tabular: Tabular, relation: Relation, operator: syntax.Reduce, scope: Scope) -> Relation:
    session = tabular.session
    scalars = tabular.scalars(scope, relation.columns)
    bound = scalars.bind(operator.expression)
    options: dict[str, Any] = {"threshold": 0.1, "characters": ""}
    for name, node in operator.options:
        if name not in options:
            raise session.error(node.at, f"reduce has no option {name!r}", "known: threshold and characters")
        options[name] = scalars.constant(node, "an option", "real", "long", "string").value
    text = session.identity()
    shown = tuple(
        OutputColumn(name, kind, session.identity())
        for name, kind in (("Pattern", "string"), ("Count", "long"), ("Representative", "string"))
    )
    source = Attach(relation.plan, {text: call("string", "tostring", to_text(bound), [bound])})
    view = f"v{session.identity()}"
    outputs = {each.identity: each.kind for each in shown}
    make = lambda: reduced(float(options["threshold"]), str(options["characters"]))  # noqa: E731
    return Relation(Staged(source, view, {text: "string"}, outputs, make), shown)


# Terms in any column.


def any_column(node: syntax.Expression, relation: Relation) -> syntax.Expression:
    """Return a condition with each test of ``*`` made of all string columns."""
    match node:
        case syntax.Logical(parts=parts):
            return replace(node, parts=tuple(any_column(each, relation) for each in parts))
        case syntax.Call(name="not", arguments=arguments):
            return replace(node, arguments=tuple(any_column(each, relation) for each in arguments))
        case syntax.Binary(left=syntax.Star()):
            columns = [each for each in relation.columns if each.kind in {"string", "dynamic"}]
            tests = tuple(replace(node, left=syntax.Column(node.at, each.name)) for each in columns)
            return _any_of(node, tests)
        case _:
            return node


def _any_of(node: syntax.Expression, tests: tuple[syntax.Expression, ...]) -> syntax.Expression:
    if len(tests) > 1:
        return syntax.Logical(node.at, "or", tests, ((node.at, node.at),) * len(tests))
    return tests[0] if tests else syntax.Literal(node.at, "bool", value=False)


def _term(node: syntax.Expression, relation: Relation, *, cased: bool) -> syntax.Expression:
    """Return the condition of ``search`` as one of ``where``."""
    match node:
        case syntax.Logical(parts=parts):
            return replace(node, parts=tuple(_term(each, relation, cased=cased) for each in parts))
        case syntax.Call(name="not", arguments=arguments):
            return replace(node, arguments=tuple(_term(each, relation, cased=cased) for each in arguments))
        case syntax.Literal(kind="bool"):
            return node
        case syntax.Literal():
            tests = tuple(_holds(_as_text(node, each), node, cased=cased) for each in relation.columns)
            return _any_of(node, tests)
        case syntax.Binary(op=":", left=syntax.Star(), right=right):
            return _term(right, relation, cased=cased)
        case syntax.Binary(op=":", left=syntax.Column(name=name) as left, right=syntax.Literal() as right):
            found = relation.find(name)
            if found is not None and found.kind not in {"string", "dynamic"} and right.kind == found.kind:
                return syntax.Binary(node.at, "==", left, right, (node.at, node.at, node.at))
            return _holds(left if found is None else _as_text(node, found), right, cased=cased)
        case _:
            return any_column(node, relation)


def _as_text(node: syntax.Node, found: OutputColumn) -> syntax.Expression:
    name = syntax.Column(node.at, found.name)
    return name if found.kind == "string" else syntax.Call(node.at, "tostring", (name,))


def _holds(left: syntax.Expression, term: syntax.Literal, *, cased: bool) -> syntax.Expression:
    text = str(term.value)
    plain = text.strip("*")
    if not plain:
        return syntax.Call(term.at, "isnotempty", (left,))
    op = {(False, False): "has", (False, True): "hasprefix", (True, False): "hassuffix"}.get(
        (text.startswith("*"), text.endswith("*")), "contains"
    )
    op += "_cs" if cased else ""
    places = (term.at, term.at, term.at)
    if "*" in plain:
        pattern = ".*".join(re.escape(part) for part in plain.split("*"))
        found = syntax.Literal(term.at, "string", pattern if cased else f"(?i){pattern}")
        return syntax.Binary(term.at, "matches regex", left, found, places)
    return syntax.Binary(term.at, op, left, syntax.Literal(term.at, "string", plain), places)


def _searched(
    tabular: Tabular, nodes: tuple[syntax.Expression | syntax.Pattern, ...], at: syntax.Node, scope: Scope
) -> list[tuple[str, Relation]]:
    """Return the tables to search: the named ones, or all tables and views."""
    session = tabular.session
    if nodes:
        legs = [leg for each in nodes for leg in joins.tables_of(session, each, scope)]
    else:
        views = [name for name, each in scope.names.items() if isinstance(each, TableFunction) and each.is_view]
        legs = [syntax.Column(at.at, name) for name in (*views, *session.tables.names())]
    if not legs:
        raise session.error(at.at, "there is no table to search", "pass one with tables={…} or --table NAME=URI")
    return [(joins.source_name(each, index), tabular.relation(each, scope)) for index, each in enumerate(legs)]


def search(tabular: Tabular, node: syntax.Search, before: Relation | None, scope: Scope) -> Relation:
    """Return the rows in which a term occurs, with the name of their table."""
    options = dict(node.options)
    kind = options.get("kind", "case_insensitive")
    if kind not in {"case_sensitive", "case_insensitive", "default"}:
        raise tabular.session.error(node.at, f"search has no kind {kind!r}", "known: case_sensitive")
    cased = kind == "case_sensitive"
    legs = [("union_arg0", before)] if before is not None else _searched(tabular, node.tables, node, scope)
    found = _matching(tabular, legs, node.condition, scope, cased=cased)
    return joins.unioned(tabular.session, found, "$table", inner=False)


def _matching(
    tabular: Tabular, legs: list[tuple[str, Relation]], condition: syntax.Expression, scope: Scope, *, cased: bool
) -> list[tuple[str, Relation]]:
    """Return the tables that have a column of the condition, filtered by it."""
    used = {name for name in _names(condition) if name not in scope.names}
    having = [(name, one) for name, one in legs if not used or any(one.find(each) for each in used)]
    # A column that no table has is an error, which binding the condition raises.
    wanting = {each for each in used if not any(one.find(each) for _, one in legs)}
    return [
        (name, _where(tabular, one, _term(_present(condition, one, used - wanting), one, cased=cased), scope))
        for name, one in (legs if wanting else having)
    ]


def _present(node: syntax.Expression, relation: Relation, used: set[str]) -> syntax.Expression:
    """Return a condition without the comparisons of columns that a table does not have. Their values are null."""
    match node:
        case syntax.Logical(parts=parts):
            return replace(node, parts=tuple(_present(each, relation, used) for each in parts))
        case syntax.Call(name="not", arguments=arguments):
            return replace(node, arguments=tuple(_present(each, relation, used) for each in arguments))
    if all(relation.find(name) for name in _names(node) if name in used):
        return node
    holds = (isinstance(node, syntax.Call) and node.name in {"isnull", "isempty"}) or (
        isinstance(node, syntax.Binary | syntax.ListTest) and node.op.startswith("!")
    )
    return syntax.Literal(node.at, "bool", value=holds)


def _where(tabular: Tabular, relation: Relation, condition: syntax.Expression, scope: Scope) -> Relation:
    bound = tabular.scalars(scope, relation.columns).condition(condition)
    return Relation(Filter(relation.plan, bound, ("search",)), relation.columns)


def find(tabular: Tabular, node: syntax.Find, scope: Scope) -> Relation:
    """Return the rows of tables that match, with some columns and the rest in a bag."""
    session = tabular.session
    source = dict(node.options).get("withsource", "source_")
    legs = _matching(tabular, _searched(tabular, node.tables, node, scope), node.condition, scope, cased=False)
    wanted = node.columns
    packs = wanted is None or ("*", None) in wanted
    named: list[tuple[str, str]] = []
    if wanted is None:
        every = [{(each.name, each.kind) for each in relation.columns} for _, relation in legs]
        used = set(_names(node.condition))
        for each in (one for _, relation in legs for one in relation.columns):
            pair = each.name, each.kind
            if pair not in named and (each.name in used or all(pair in one for one in every)):
                named.append(pair)
    else:
        for name, kind in wanted:
            if name != "*":
                found = next((each.kind for _, one in legs for each in one.columns if each.name == name), "string")
                named.append((name, kind or found))
    titles = {title for title, _ in named}
    packs = packs and (wanted is not None or any(each.name not in titles for _, one in legs for each in one.columns))
    shown = [OutputColumn(source, "string", session.identity())]
    shown += [OutputColumn(name, kind, session.identity()) for name, kind in named]
    shown += [OutputColumn("pack_", "dynamic", session.identity())] if packs else []
    parts = []
    for name, relation in legs:
        chosen = {shown[0].identity: literal("string", name)}
        for (title, kind), new in zip(named, shown[1:], strict=False):
            old = relation.find(title)
            same = old is not None and old.kind == kind
            value = literal(kind, None)
            if old is not None:
                given = column(old.identity, old.kind, old.name)
                value = given if same else call(kind, "tostring", converted(given, kind), [given])
            chosen[new.identity] = value
        if packs:
            rest = [each for each in relation.columns if each.name not in titles]
            chosen[shown[-1].identity] = _bag(rest)
        parts.append((relation.plan, chosen))
    return Relation(Merge(tuple(parts)), tuple(shown))


def _bag(columns: list[OutputColumn]) -> Typed:
    given = [column(each.identity, each.kind, each.name) for each in columns]
    pairs = ", ".join(
        f"{quoted(each.name)}, {converted(value, 'dynamic')}" for each, value in zip(columns, given, strict=True)
    )
    return call("dynamic", "bag_pack", f"json_object({pairs})", given)


def _names(node: Any) -> list[str]:
    match node:
        case syntax.Column(name=name):
            return [name]
        case syntax.Logical(parts=parts):
            return [name for each in parts for name in _names(each)]
        case syntax.Binary(left=left, right=right):
            return [*_names(left), *_names(right)]
        case syntax.Call(arguments=arguments):
            return [name for each in arguments for name in _names(each)]
        case syntax.ListTest(value=value) | syntax.Between(value=value) | syntax.Member(base=value):
            return _names(value)
        case _:
            return []
