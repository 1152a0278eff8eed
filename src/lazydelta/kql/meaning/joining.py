"""``join``, ``lookup`` and ``union``."""

from __future__ import annotations

from collections.abc import Callable

from lazydelta.errors import KqlError
from lazydelta.kql.language import kql_syntax as syntax
from lazydelta.kql.meaning.columns_shown import matches_pattern, unused
from lazydelta.kql.meaning.kinds import common_kind
from lazydelta.kql.meaning.query_plan import Match, Merge, OutputColumn, Plan, Relation
from lazydelta.kql.meaning.query_session import Session
from lazydelta.kql.meaning.typed import Typed, column, literal

__all__ = ["JOIN_KINDS", "join", "union"]

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
"""The kinds of join, and the name that each goes by here."""

_SIDES = 2


def join(session: Session, node: syntax.Join, left: Relation, right: Relation) -> Relation:
    """Return two tables joined; rows of the right side are looked up in the left one's order of columns."""
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
                raise session.error(node.at, f"{what} knows no kind {value!r}", f"known are {', '.join(allowed)}")
            kind = allowed[value]
        elif not name.startswith("hint."):
            raise session.error(node.at, f"join knows no option {name!r}", "kind and hints are known")
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
    session: Session, node: syntax.Union, before: Relation | None, bind: Callable[[syntax.Expression], Relation]
) -> Relation:
    """Return the rows of several tables; a column is known by its name and type."""
    options = {name: value for name, value in node.options if not name.startswith("hint.")}
    kind, source = options.pop("kind", "outer"), options.pop("withsource", None)
    if kind not in {"inner", "outer"}:
        raise session.error(node.at, f"union knows no kind {kind!r}", "known are inner and outer")
    fuzzy = options.pop("isfuzzy", "false").lower()
    if options or fuzzy not in {"true", "false"}:
        raise session.error(node.at, f"union does not support {next(iter(options), 'isfuzzy')}", "leave it out")
    legs = [] if before is None else [("union_arg0", before)]
    named = [leg for each in node.legs for leg in _tables_of(session, each)]
    missing: KqlError | None = None
    for index, each in enumerate(named):
        try:
            legs.append((_source_name(each, index), bind(each)))
        except KqlError as error:
            # A fuzzy union leaves out tables that are not there, and no other mistake.
            if fuzzy == "false" or not _names_no_table(session, each):
                raise
            missing = error
    if not legs and missing is not None:
        raise missing
    shown, made = _merged_columns(session, [relation for _, relation in legs], inner=kind == "inner")
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


def _tables_of(session: Session, leg: syntax.Expression | syntax.Pattern) -> list[syntax.Expression]:
    if not isinstance(leg, syntax.Pattern):
        return [leg]
    names = [each for each in session.tables.names() if matches_pattern(leg.text, each)]
    if not names:
        known = ", ".join(session.tables.names())
        raise session.error(leg.at, f"no table is called {leg.text}", f"known are {known}" if known else None)
    return [syntax.Column(leg.at, name) for name in names]


def _names_no_table(session: Session, leg: syntax.Expression) -> bool:
    match leg:
        case syntax.Column(name=name):
            return session.tables.columns(name) is None
        case syntax.Call(name="external_table" | "table", arguments=(syntax.Literal(value=str() as name),)):
            return session.tables.columns(name) is None
        case syntax.Pipeline(source=source):
            return _names_no_table(session, source)
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
    # A name that stays as it is goes before one that gets its type as a suffix.
    plain = {name for name, _ in found if kinds[name] == 1}
    shown: list[OutputColumn] = []
    made: dict[tuple[str, str], str] = {}
    for name, kind in found:
        made[name, kind] = session.identity()
        taken = plain | {each.name for each in shown}
        title = name if name in plain else unused(f"{name}_{kind}", taken)
        shown.append(OutputColumn(title, kind, made[name, kind]))
    return shown, made


def _source_name(node: syntax.Expression, index: int) -> str:
    match node:
        case syntax.Column(name=name):
            return name
        case syntax.Call(arguments=(syntax.Literal(value=str() as name),)):
            return name
        case _:
            return f"union_arg{index}"
