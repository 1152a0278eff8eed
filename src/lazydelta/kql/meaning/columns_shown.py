"""Which columns are shown, under which names and in which order; no row is touched."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from lazydelta.kql.language import kql_syntax as syntax
from lazydelta.kql.meaning.query_plan import OutputColumn, Relation
from lazydelta.kql.meaning.query_session import Session

__all__ = ["Made", "choose", "matches_pattern", "one_name", "unused", "without_repeats"]


class Made(NamedTuple):
    """A column that an item of a list makes; ``written`` says that the query gives it its name."""

    column: OutputColumn
    item: syntax.Named
    written: bool


def unused(name: str, taken: Iterable[str]) -> str:
    """Return the name, or the name with the first number behind it that nobody has."""
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
    """Tell whether a name fits a pattern, in which ``*`` stands for any characters."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name, re.DOTALL) is not None


def without_repeats(session: Session, made: list[Made], *, first_come: bool = False) -> tuple[OutputColumn, ...]:
    """Return the columns with different names; a name that was written twice is an error.

    Where two columns would have one name, the second gets a number, and that is the one whose name was not written;
    with ``first_come``, which is how ``summarize`` does it, it is whichever comes later.
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
    """Return the relation with its columns chosen, renamed or reordered."""
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
        # As .NET orders names whatever their case, which puts _ behind the letters.
        return [(0, 0, name.upper())]
    parts = (part for part in re.split(r"(\d+)", name) if part)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part.upper()) for part in parts]
