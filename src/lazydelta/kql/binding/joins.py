"""``join``, ``lookup`` and ``union``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from lazydelta.errors import KqlError
from lazydelta.kql.binding.plan import Match, Merge, OutputColumn, Plan, Relation, Scope, Session, TableFunction
from lazydelta.kql.binding.types import Typed, column, common_kind, literal
from lazydelta.kql.language import syntax

__all__ = ["Made", "one_name", "unused"]


# Select, rename and reorder columns. None of this changes rows.


class Made(NamedTuple):
    """A column produced by an item of a list; ``written`` is set if the query names it explicitly."""

    column: OutputColumn
    item: syntax.Named
    written: bool


def unused(name: str, taken: Iterable[str]) -> str:
    """Return the name, or the name with the lowest number that makes it unused."""
    known = set(taken)
    if name not in known:
        return name
    number = 1
    while f"{name}{number}" in known:
        number += 1
    return f"{name}{number}"


def one_name(session: Session, item: syntax.Named) -> str | None:
    """Return the name that an item gives to its only column."""
    if item.more:
        hint = "percentiles(), arg_max(), arg_min() and take_any() in summarize make several"
        raise session.error(item.at, "several names are for what makes several columns, and this makes one", hint)
    return item.name


def matches_pattern(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern, in which ``*`` stands for any characters."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name, re.DOTALL) is not None


def without_repeats(session: Session, made: list[Made], *, first_come: bool = False) -> tuple[OutputColumn, ...]:
    """Return the columns with unique names. Raises if the query writes the same name twice.

    If two columns have the same name, a number is appended to the one whose name was not written. With ``first_come``,
    as in ``summarize``, it is appended to the later one.
    """
    taken = set() if first_come else {each.name for each, _, chosen in made if chosen}
    written: set[str] = set()
    shown: list[OutputColumn] = []
    used: set[str] = set()
    for each, item, chosen in made:
        if chosen:
            if each.name in written:
                raise session.error(item.at, f"there are two columns {each.name!r}", "give one another name")
            written.add(each.name)
            name = unused(each.name, used) if first_come else each.name
        else:
            if isinstance(item.expression, syntax.Column) and item.expression.name == each.name:
                if each.name in written:
                    raise session.error(item.at, f"there are two columns {each.name!r}", "give one another name")
                written.add(each.name)
            name = unused(each.name, taken | used)
        used.add(name)
        shown.append(OutputColumn(name, each.kind, each.identity))
    return tuple(shown)


def choose(
    session: Session,
    relation: Relation,
    operator: syntax.ProjectAway | syntax.ProjectKeep | syntax.ProjectRename | syntax.ProjectReorder,
) -> Relation:
    """Return the relation with its columns selected, renamed or reordered."""
    columns = relation.columns
    match operator:
        case syntax.ProjectAway(patterns=patterns):
            named = {each.identity for pattern in patterns for each in _matching(session, columns, pattern)}
            columns = tuple(each for each in columns if each.identity not in named)
            if not columns:
                raise session.error(operator.at, "no column is left", "keep one")
        case syntax.ProjectKeep(patterns=patterns):
            named = {each.identity for pattern in patterns for each in _matching(session, columns, pattern)}
            columns = tuple(each for each in columns if each.identity in named)
            if not columns:
                raise session.error(operator.at, "no column is left", "keep one")
        case syntax.ProjectRename(renamings=renamings):
            columns = _renamed(session, relation, renamings)
        case syntax.ProjectReorder(items=items):
            first: dict[str, OutputColumn] = {}
            exact = {item.pattern.text for item in items if not item.pattern.wild}
            for item in items:
                found = _matching(session, columns, item.pattern)
                if item.pattern.wild:
                    found = _sorted([each for each in found if each.name not in exact], item.direction)
                first |= {each.identity: each for each in found if each.identity not in first}
            columns = (*first.values(), *(each for each in columns if each.identity not in first))
    return Relation(relation.plan, columns)


def _renamed(
    session: Session, relation: Relation, renamings: tuple[tuple[str, str, int], ...]
) -> tuple[OutputColumn, ...]:
    columns = list(relation.columns)
    for new, old, at in renamings:
        found = relation.find(old)
        if found is None:
            known = ", ".join(each.name for each in relation.columns)
            raise session.error(at, f"there is no column {old!r}", f"there are {known}")
        position = relation.columns.index(found)
        columns[position] = OutputColumn(new, found.kind, found.identity)
    names = [each.name for each in columns]
    for new, _, at in renamings:
        if names.count(new) > 1:
            raise session.error(at, f"there would be two columns {new!r}", "choose another name")
    return tuple(columns)


def _matching(session: Session, columns: tuple[OutputColumn, ...], pattern: syntax.Pattern) -> list[OutputColumn]:
    if pattern.wild:
        matching = [each for each in columns if matches_pattern(pattern.text, each.name)]
        if not matching:
            known = ", ".join(each.name for each in columns)
            raise session.error(pattern.at, f"no column is called {pattern.text}", f"there are {known}")
        return matching
    found = [each for each in columns if each.name == pattern.text]
    if not found:
        known = ", ".join(each.name for each in columns)
        raise session.error(pattern.at, f"there is no column {pattern.text!r}", f"there are {known}")
    return found


def _sorted(columns: list[OutputColumn], direction: str | None) -> list[OutputColumn]:
    if direction is None:
        return columns
    natural = direction.startswith("granny")
    return sorted(columns, key=lambda each: _order(each.name, natural=natural), reverse=direction.endswith("desc"))


def _order(name: str, *, natural: bool) -> list[tuple[int, int, str]]:
    if not natural:
        # The case-insensitive order of .NET, which sorts _ after the letters.
        return [(0, 0, name.upper())]
    parts = (part for part in re.split(r"(\d+)", name) if part)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part.upper()) for part in parts]


JOIN_KINDS = {
    "innerunique": "innerunique",
    "inner": "inner",
    "leftouter": "leftouter",
    "rightouter": "rightouter",
    "fullouter": "fullouter",
    "leftsemi": "leftsemi",
    "leftanti": "leftanti",
    "anti": "leftanti",
    "leftantisemi": "leftanti",
    "rightsemi": "rightsemi",
    "rightanti": "rightanti",
    "rightantisemi": "rightanti",
}
"""Kinds of join by the names that KQL accepts."""

_SIDES = 2


def join(session: Session, node: syntax.Join, left: Relation, right: Relation) -> Relation:
    """Return the join of two tables. The columns of the left side come first."""
    kind = _kind(session, node)
    pairs = [pair for condition in node.conditions for pair in _pairs(session, condition, left, right)]
    matched = tuple(
        (column(one.identity, one.kind, one.name), column(other.identity, other.kind, other.name))
        for one, other in pairs
    )
    plan = Match(
        kind,
        left.plan,
        right.plan,
        matched,
        {each.identity: each.kind for each in left.columns},
        {each.identity: each.kind for each in right.columns},
    )
    if kind in {"leftsemi", "leftanti"}:
        return Relation(plan, left.columns)
    if kind in {"rightsemi", "rightanti"}:
        return Relation(plan, right.columns)
    keys = {other.identity for _, other in pairs} if node.lookup else set()
    shown = list(left.columns)
    for each in right.columns:
        if each.identity not in keys:
            name = unused(each.name, (other.name for other in shown))
            shown.append(OutputColumn(name, each.kind, each.identity))
    return Relation(plan, tuple(shown))


def _kind(session: Session, node: syntax.Join) -> str:
    allowed = {"leftouter": "leftouter", "inner": "inner"} if node.lookup else JOIN_KINDS
    kind = "leftouter" if node.lookup else "innerunique"
    for name, value in node.options:
        if name == "kind":
            if value not in allowed:
                what = "lookup" if node.lookup else "join"
                raise session.error(node.at, f"{what} has no kind {value!r}", f"known: {', '.join(allowed)}")
            kind = allowed[value]
        elif not name.startswith("hint."):
            raise session.error(node.at, f"join has no option {name!r}", "kind and hints are known")
    return kind


def _pairs(
    session: Session, condition: syntax.Expression, left: Relation, right: Relation
) -> list[tuple[OutputColumn, OutputColumn]]:
    match condition:
        case syntax.Logical(op="and", parts=parts):
            return [pair for part in parts for pair in _pairs(session, part, left, right)]
        case syntax.Column(name=name):
            one, other = left.find(name), right.find(name)
            missing = "left" if one is None else "right"
            if one is None or other is None:
                raise session.error(condition.at, f"the {missing} side has no column {name!r}")
            return [_checked(session, condition, one, other)]
        case syntax.Binary(op="==", left=first, right=second):
            sides = dict(_side(session, each, left, right) for each in (first, second))
            if len(sides) < _SIDES:
                raise session.error(condition.at, "both sides of == are of one table", "write $left.a == $right.b")
            return [_checked(session, condition, sides["$left"], sides["$right"])]
        case _:
            hint = "write a column that both have, or $left.a == $right.b"
            raise session.error(condition.at, "tables are joined by equal columns only", hint)


def _side(session: Session, node: syntax.Expression, left: Relation, right: Relation) -> tuple[str, OutputColumn]:
    match node:
        case syntax.Member(base=syntax.Column(name="$left" | "$right" as side), name=name):
            pass
        case syntax.Index(
            base=syntax.Column(name="$left" | "$right" as side), index=syntax.Literal(value=str() as name)
        ):
            pass
        case _:
            raise session.error(node.at, "$left. or $right. and a column are expected", "write $left.a == $right.b")
    found = (left if side == "$left" else right).find(name)
    if found is None:
        raise session.error(node.at, f"the {side[1:]} side has no column {name!r}")
    return side, found


def _checked(
    session: Session, node: syntax.Node, one: OutputColumn, other: OutputColumn
) -> tuple[OutputColumn, OutputColumn]:
    if common_kind((one.kind, other.kind)) is None or one.kind == "dynamic":
        hint = "convert one of them with extend before the join"
        raise session.error(node.at, f"{one.kind} {one.name!r} and {other.kind} {other.name!r} are never equal", hint)
    return one, other


def union(
    session: Session,
    node: syntax.Union,
    before: Relation | None,
    bind: Callable[[syntax.Expression], Relation],
    scope: Scope,
) -> Relation:
    """Return the union of several tables. Columns match by name and type."""
    options = {name: value for name, value in node.options if not name.startswith("hint.")}
    kind, source = options.pop("kind", "outer"), options.pop("withsource", None)
    if kind not in {"inner", "outer"}:
        raise session.error(node.at, f"union has no kind {kind!r}", "known: inner and outer")
    fuzzy = options.pop("isfuzzy", "false").lower()
    if options or fuzzy not in {"true", "false"}:
        raise session.error(node.at, f"union does not support {next(iter(options), 'isfuzzy')}", "omit it")
    legs = [] if before is None else [("union_arg0", before)]
    missing: KqlError | None = None
    named: list[syntax.Expression] = []
    for each in node.legs:
        try:
            named += tables_of(session, each, scope)
        except KqlError as error:
            if fuzzy == "false":
                raise
            missing = error
    for index, each in enumerate(named):
        try:
            legs.append((source_name(each, index), bind(each)))
        except KqlError as error:
            # A fuzzy union skips missing tables, but no other error.
            if fuzzy == "false" or not _names_no_table(session, each, scope):
                raise
            missing = error
    if not legs and missing is not None:
        raise missing
    return unioned(session, legs, source, inner=kind == "inner")


def unioned(session: Session, legs: list[tuple[str, Relation]], source: str | None, *, inner: bool) -> Relation:
    """Return the rows of named tables; ``source`` is the column with the name, if any."""
    shown, made = _merged_columns(session, [relation for _, relation in legs], inner=inner)
    parts: list[tuple[Plan, dict[str, Typed]]] = []
    marker = session.identity()
    for index, (name, relation) in enumerate(legs):
        chosen: dict[str, Typed] = {}
        if source is not None:
            chosen[marker] = literal("string", name if not name.startswith("union_arg") else f"union_arg{index}")
        for (column_name, column_kind), identity in made.items():
            found = relation.find(column_name)
            fits = found is not None and found.kind == column_kind
            chosen[identity] = (
                column(found.identity, found.kind, found.name)
                if found is not None and fits
                else literal(column_kind, None)
            )
        parts.append((relation.plan, chosen))
    if source is not None:
        shown = [OutputColumn(source, "string", marker), *shown]
    return Relation(Merge(tuple(parts)), tuple(shown))


def tables_of(session: Session, leg: syntax.Expression | syntax.Pattern, scope: Scope) -> list[syntax.Expression]:
    """Return the tables and views that a leg names."""
    if not isinstance(leg, syntax.Pattern):
        return [leg]
    views = (name for name, each in scope.names.items() if isinstance(each, TableFunction) and each.is_view)
    names = [each for each in (*views, *session.tables.names()) if matches_pattern(leg.text, each)]
    if not names:
        known = ", ".join(session.tables.names())
        raise session.error(leg.at, f"no table is called {leg.text}", f"known: {known}" if known else None)
    return [syntax.Column(leg.at, name) for name in names]


def _names_no_table(session: Session, leg: syntax.Expression, scope: Scope) -> bool:
    match leg:
        case syntax.Column(name=name):
            return name not in scope and session.tables.columns(name) is None
        case syntax.Call(name="external_table" | "table", arguments=(syntax.Literal(value=str() as name),)):
            return session.tables.columns(name) is None
        case syntax.Pipeline(source=source):
            return _names_no_table(session, source, scope)
        case _:
            return False


def _merged_columns(
    session: Session, relations: list[Relation], *, inner: bool
) -> tuple[list[OutputColumn], dict[tuple[str, str], str]]:
    found: dict[tuple[str, str], None] = {}
    for relation in relations:
        found |= dict.fromkeys((each.name, each.kind) for each in relation.columns)
    if inner:
        found = {
            key: None for key in found if all((each := one.find(key[0])) and each.kind == key[1] for one in relations)
        }
    kinds: dict[str, int] = {}
    for name, _ in found:
        kinds[name] = kinds.get(name, 0) + 1
    # Names that stay unchanged take precedence over names that get their type as a suffix.
    plain = {name for name, _ in found if kinds[name] == 1}
    shown: list[OutputColumn] = []
    made: dict[tuple[str, str], str] = {}
    for name, kind in found:
        made[name, kind] = session.identity()
        taken = plain | {each.name for each in shown}
        title = name if name in plain else unused(f"{name}_{kind}", taken)
        shown.append(OutputColumn(title, kind, made[name, kind]))
    return shown, made


def source_name(node: syntax.Expression, index: int) -> str:
    """Return the name of a table for the column that says where a row comes from."""
    match node:
        case syntax.Pipeline(operators=(*_, syntax.As(name=name))):
            return name
        case syntax.Column(name=name):
            return name
        case syntax.Call(arguments=(syntax.Literal(value=str() as name),)):
            return name
        case _:
            return f"union_arg{index}"
