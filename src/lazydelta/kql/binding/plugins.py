"""``evaluate``: plugins, whose columns may depend on the rows."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lazydelta.kql.binding import joins
from lazydelta.kql.binding.arrays import element
from lazydelta.kql.binding.plan import (
    Attach,
    Expand,
    Filter,
    Match,
    OutputColumn,
    Plan,
    Relation,
    Rows,
    Scope,
    Session,
    Staged,
    Window,
)
from lazydelta.kql.binding.scalars import Scalars
from lazydelta.kql.binding.types import Typed, call, column, literal, quoted, to_text
from lazydelta.kql.computing.plugins import ip_keys, ip_network, merged_schema
from lazydelta.kql.functions.aggregates import AGGREGATE_NAMES
from lazydelta.kql.functions.table import REFUSED_PLUGINS
from lazydelta.kql.language import syntax

if TYPE_CHECKING:
    from lazydelta.kql.binding.tabular import Tabular

__all__ = ["PLUGINS", "Plugin", "evaluated", "plugin_of", "staged", "stored_sql"]


@dataclass(frozen=True, slots=True)
class Plugin:
    """A call of a plugin: the rows before it, and its arguments."""

    tabular: Tabular
    relation: Relation
    node: syntax.Call
    scope: Scope

    @property
    def session(self) -> Session:
        """The query that is bound."""
        return self.tabular.session

    @property
    def positional(self) -> list[syntax.Expression]:
        """The arguments without a name."""
        return [each for each in self.node.arguments if not isinstance(each, syntax.NamedArgument)]

    @property
    def scalars(self) -> Scalars:
        """What binds expressions over the rows."""
        return self.tabular.scalars(self.scope, self.relation.columns)

    def argument(self, index: int, name: str | None = None) -> syntax.Expression | None:
        """Return an argument by its position or name, or None if it is missing."""
        for each in self.node.arguments:
            if isinstance(each, syntax.NamedArgument) and each.name == name:
                return each.value
        return self.positional[index] if index < len(self.positional) else None

    def column(self, index: int) -> OutputColumn:
        """Return an argument that must be a column. A column of the dynamic list ``['name']`` counts as well."""
        node = self.argument(index)
        if node is None:
            raise self.session.error(self.node.at, f"{self.node.name} needs a column as argument {index + 1}")
        name = node.name if isinstance(node, syntax.Column) else None
        found = None if name is None else self.relation.find(name)
        if found is None:
            known = ", ".join(each.name for each in self.relation.columns)
            raise self.session.error(node.at, f"a column is expected as argument {index + 1}", f"there are {known}")
        return found

    def constant(self, index: int, name: str | None, default: Any = None) -> Any:
        """Return the value of a constant argument."""
        bound = self.typed(index, name)
        return default if bound is None else bound.value

    def typed(self, index: int, name: str | None = None) -> Typed | None:
        """Return a constant argument with its type, or None if it is missing."""
        node = self.argument(index, name)
        if node is None:
            return None
        return self.tabular.scalars(self.scope, ()).constant(node, f"{name or 'an argument'} of {self.node.name}")

    def error(self, message: str) -> Exception:
        """Return an error about the call."""
        return self.session.error(self.node.at, message)


def plugin_of(
    tabular: Tabular, operator: syntax.Evaluate, more: Mapping[str, Callable[[Plugin], Relation]]
) -> Callable[[Plugin], Relation]:
    """Return what builds the rows of a plugin; raise if there is none of that name."""
    node = operator.call
    build = PLUGINS.get(node.name) or more.get(node.name)
    if build is None:
        known = sorted({*PLUGINS, *more})
        near = difflib.get_close_matches(node.name.lower(), known, 1, 0.75)
        other = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise tabular.session.error(
            node.at, f"the plugin {node.name} is not supported", REFUSED_PLUGINS.get(node.name, other)
        )
    return build


def evaluated(
    tabular: Tabular,
    relation: Relation,
    operator: syntax.Evaluate,
    scope: Scope,
    more: Mapping[str, Callable[[Plugin], Relation]],
) -> Relation:
    """Return the rows of a plugin of this module, or of ``more``."""
    made = plugin_of(tabular, operator, more)(Plugin(tabular, relation, operator.call, scope))
    return made if operator.columns is None else _declared(tabular, made, operator, relation)


def _declared(tabular: Tabular, made: Relation, operator: syntax.Evaluate, before: Relation) -> Relation:
    """Return a plugin's columns in the order and with the types that the query declares."""
    shown: list[OutputColumn] = []
    converted: dict[str, Typed] = {}
    for name, kind in operator.columns or ():
        if name == "*":
            known = {each.name for each in before.columns} - {each for each, _ in operator.columns or ()}
            shown += [each for each in made.columns if each.name in known]
            continue
        found = made.find(name)
        identity = tabular.session.identity()
        value = literal(kind, None)
        if found is not None:
            given = column(found.identity, found.kind, found.name)
            sql = given.sql if found.kind == kind else element(kind, f"to_json({to_text(given)})")
            value = call(kind, "convert", sql, [given])
        converted[identity] = value
        shown.append(OutputColumn(name, kind, identity))
    return Relation(Attach(made.plan, converted), tuple(shown))


def stored_sql(plugin: Plugin) -> tuple[Relation, str]:
    """Return the rows, computed once, and SQL that selects them."""
    stored = plugin.tabular.stored(plugin.relation)
    assert isinstance(stored.plan, Rows)  # noqa: S101 - a stored table
    return stored, stored.plan.sql


def staged(
    plugin: Plugin, source: Relation, columns: list[tuple[str, str]], make: Callable[[], Callable[..., Any]]
) -> Relation:
    """Return rows that Python computes from all columns of a relation."""
    shown = tuple(OutputColumn(name, kind, plugin.session.identity()) for name, kind in columns)
    view = f"v{plugin.session.identity()}"
    inputs = {each.identity: each.kind for each in source.columns}
    return Relation(Staged(source.plan, view, inputs, {each.identity: each.kind for each in shown}, make), shown)


# Columns from values.


_JSON_KINDS = {"VARCHAR": "string", "BIGINT": "long", "UBIGINT": "long", "DOUBLE": "real", "BOOLEAN": "bool"}


def _bag_unpack(plugin: Plugin) -> Relation:
    bag = plugin.column(0)
    prefix = plugin.constant(1, "OutputColumnPrefix", "")
    conflict = plugin.constant(2, "columnsConflict", "error")
    ignored = set(plugin.constant(3, "ignoredProperties", []) or [])
    if bag.kind != "dynamic":
        raise plugin.error(f"bag_unpack needs a dynamic column, and {bag.name!r} is a {bag.kind}")
    stored, sql = stored_sql(plugin)
    inside = stored.columns[plugin.relation.columns.index(bag)]
    entries = f"map_entries(CAST({inside.identity} AS MAP(VARCHAR, JSON)))"
    listed = f"SELECT unnest({entries}) AS e FROM ({sql}) WHERE json_type({inside.identity}) = 'OBJECT'"
    found = session_values(plugin, f"SELECT DISTINCT json_type(e.value) || ':' || e.key AS x FROM ({listed})")
    kinds: dict[str, set[str]] = {}
    for each in sorted(found, key=lambda one: one.partition(":")[2]):
        kind, _, key = each.partition(":")
        if key not in ignored:
            kinds.setdefault(key, set()).update({_JSON_KINDS.get(kind, "dynamic")} if kind != "NULL" else ())
    shown = [each for each in stored.columns if each is not inside]
    made: dict[str, Typed] = {}
    for key, several in kinds.items():
        kind = next(iter(several)) if len(several) == 1 else "real" if several == {"long", "real"} else "dynamic"
        path = "/" + key.replace("~", "~0").replace("/", "~1")
        identity = plugin.session.identity()
        given = column(inside.identity, "dynamic", inside.name)
        made[identity] = call(
            kind, "access", element(kind, f"json_extract({inside.identity}, {quoted(path)})"), [given]
        )
        new = OutputColumn(f"{prefix}{key}", kind, identity)
        at = next((index for index, each in enumerate(shown) if each.name == new.name), None)
        if at is None:
            shown.append(new)
        elif conflict == "replace_source":
            shown[at] = new
        elif conflict != "keep_source":
            hint = "write columnsConflict='replace_source' or 'keep_source'"
            raise plugin.session.error(plugin.node.at, f"there is already a column {new.name!r}", hint)
    return Relation(Attach(stored.plan, made) if made else stored.plan, tuple(shown))


def session_values(plugin: Plugin, sql: str) -> list[Any]:
    """Return the values of a query of one string column ``x``."""
    identity = plugin.session.identity()
    relation = Relation(Rows(f"SELECT x AS {identity} FROM ({sql})"), (OutputColumn("x", "string", identity),))
    _, found = plugin.session.evaluator.values(relation)
    if isinstance(found, str):
        raise plugin.error(f"{plugin.node.name} would make more than a thousand columns")
    return [each for each in found if each is not None]


def _pivot(plugin: Plugin) -> Relation:
    key = plugin.column(0)
    rest = plugin.positional[1:]
    aggregate: syntax.Expression = syntax.Call(plugin.node.at, "count", ())
    if rest and isinstance(rest[0], syntax.Call) and rest[0].name in AGGREGATE_NAMES:
        aggregate, rest = rest[0], rest[1:]
    assert isinstance(aggregate, syntax.Call)  # noqa: S101 - as made above
    stored, sql = stored_sql(plugin)
    inside = stored.columns[plugin.relation.columns.index(key)]
    texts = to_text(column(inside.identity, inside.kind, inside.name))
    found = session_values(plugin, f"SELECT DISTINCT {texts} AS x FROM ({sql}) WHERE {inside.identity} IS NOT NULL")
    used = {each.name for each in aggregate.arguments if isinstance(each, syntax.Column)} | {key.name}
    named = [syntax.Named(plugin.node.at, None, each) for each in rest] or [
        syntax.Named(plugin.node.at, None, syntax.Column(plugin.node.at, each.name))
        for each in stored.columns
        if each.name not in used
    ]
    at = plugin.node.at
    text = syntax.Call(at, "tostring", (syntax.Column(at, key.name),))
    items = []
    for value in sorted(found):
        condition = syntax.Binary(at, "==", text, syntax.Literal(at, "string", value), (at, at, at))
        items.append(syntax.Named(at, value, _only(plugin, aggregate, condition)))
    if not items:
        return plugin.tabular.grouped(stored, tuple(named), (), plugin.scope)
    return plugin.tabular.grouped(stored, tuple(named), tuple(items), plugin.scope)


def _only(plugin: Plugin, node: syntax.Call, condition: syntax.Expression) -> syntax.Call:
    """Return an aggregate of the rows that match."""
    name = {"make_list": "make_list_if", "make_set": "make_set_if", "make_bag": "make_bag_if"}.get(
        node.name, f"{node.name}if"
    )
    if name not in AGGREGATE_NAMES:
        raise plugin.session.error(node.at, f"pivot by {node.name}() is not supported", "aggregate before it")
    arguments = node.arguments if name != "countif" else ()
    return syntax.Call(node.at, name, (*arguments[:1], condition, *arguments[1:]))


def _narrow(plugin: Plugin) -> Relation:
    session = plugin.session
    number, pair = session.identity(), session.identity()
    entries = ", ".join(
        f"struct_pack(n := {quoted(each.name)}, v := {to_text(column(each.identity, each.kind, each.name))})"
        for each in plugin.relation.columns
    )
    given = [column(each.identity, each.kind, each.name) for each in plugin.relation.columns]
    numbered = Window(plugin.relation.plan, {number: call("long", "window", "(row_number() OVER () - 1)")})
    expanded = Expand(numbered, {pair: call("dynamic", "elements", f"[{entries}]", given)})
    name, value = session.identity(), session.identity()
    whole = column(pair, "dynamic", pair)
    made = {
        name: call("string", "field", f"{pair}.n", [whole]),
        value: call("string", "field", f"{pair}.v", [whole]),
    }
    shown = (
        OutputColumn("Row", "long", number),
        OutputColumn("Column", "string", name),
        OutputColumn("Value", "string", value),
    )
    return Relation(Attach(expanded, made), shown)


def _schema_merge(plugin: Plugin) -> Relation:
    preserve = bool(plugin.constant(0, "PreserveOrder", default=True))
    wanted = [("ColumnName", "string"), ("ColumnOrdinal", "long"), ("DataType", "string"), ("ColumnType", "string")]
    given = [plugin.relation.find(name) for name, _ in wanted]
    if any(each is None for each in given):
        raise plugin.error("schema_merge needs the rows of getschema")
    source = Relation(plugin.relation.plan, tuple(each for each in given if each is not None))
    return staged(plugin, source, wanted, lambda: merged_schema(preserve=preserve))


def _dcount_intersect(plugin: Plugin) -> Relation:
    """Estimate how many values the first sketches have in common: one, two, three and so on."""
    at = plugin.node.at
    items = []
    for count in range(1, len(plugin.positional) + 1):
        total: syntax.Expression | None = None
        # What sets have in common, by how many values their unions have.
        for size in range(1, count + 1):
            for chosen in itertools.combinations(plugin.positional[:count], size):
                union = syntax.Call(at, "hll_merge", chosen) if size > 1 else chosen[0]
                part: syntax.Expression = syntax.Call(at, "dcount_hll", (union,))
                if total is None:
                    total = part
                else:
                    total = syntax.Binary(at, "+" if size % 2 else "-", total, part, (at, at, at))
        assert total is not None  # noqa: S101 - there is one sketch at least
        items.append(syntax.Named(at, f"s{count - 1}", total))
    if not items:
        raise plugin.error("dcount_intersect needs sketches made by hll()")
    return plugin.tabular.extend(plugin.relation, tuple(items), plugin.scope)


def _preview(plugin: Plugin) -> Relation:
    limited = plugin.tabular.limited(plugin.relation.plan, int(plugin.constant(0, "NumberOfRows", 10)))
    return Relation(limited, plugin.relation.columns)


# Networks of addresses.


def _ip_lookup(plugin: Plugin) -> Relation:
    """Join addresses with the networks of a lookup table: each address with its network at every prefix length."""
    session, bits = plugin.session, 32 if plugin.node.name == "ipv4_lookup" else 128
    table = plugin.argument(0)
    if table is None:
        raise plugin.error(f"{plugin.node.name} needs a lookup table")
    right = plugin.tabular.relation(table, plugin.scope)
    address = plugin.column(1)
    network_node = plugin.argument(2)
    network = right.find(network_node.name) if isinstance(network_node, syntax.Column) else None
    if network is None:
        raise plugin.error("the column of networks is not in the lookup table")
    extra = [each.name for each in plugin.positional[3:] if isinstance(each, syntax.Column)]
    given = [each for each in plugin.positional[3:] if isinstance(each, syntax.Literal)]
    unmatched = bool(given[0].value if given else plugin.constant(99, "return_unmatched", default=False))
    left = plugin.tabular.stored(plugin.relation) if unmatched else plugin.relation
    address = left.columns[plugin.relation.columns.index(address)]
    numbered, keys, key, other = (session.identity() for _ in range(4))
    plan: Plan = (
        Window(left.plan, {numbered: call("long", "window", "row_number() OVER ()")}) if unmatched else left.plan
    )
    view = f"v{session.identity()}"
    plan = Staged(
        plan, view, {address.identity: "string"}, {keys: "dynamic"}, lambda: ip_keys(bits), keeps=True, is_rowwise=True
    )
    listed = call("dynamic", "elements", f"CAST({keys} AS VARCHAR[])", [column(keys, "dynamic", keys)])
    plan = Expand(plan, {key: listed})
    view = f"v{session.identity()}"
    lookup: Plan = Staged(
        right.plan,
        view,
        {network.identity: "string"},
        {other: "string"},
        lambda: ip_network(bits),
        keeps=True,
        is_rowwise=True,
    )
    pairs = [(column(key, "string", key), column(other, "string", other))]
    for name in extra:
        one, two = left.find(name), right.find(name)
        if one is None or two is None:
            raise plugin.error(f"both tables need the column {name!r}")
        pairs.append((column(one.identity, one.kind, name), column(two.identity, two.kind, name)))
    left_kinds = {each.identity: each.kind for each in left.columns} | {key: "string"}
    if unmatched:
        left_kinds[numbered] = "long"
    right_kinds = {each.identity: each.kind for each in right.columns} | {other: "string"}
    matched: Plan = Match("inner", plan, lookup, tuple(pairs), left_kinds, right_kinds)
    shown = list(left.columns)
    for each in right.columns:
        if each.name not in extra:
            shown.append(replace(each, name=joins.unused(each.name, (one.name for one in shown))))
    if not unmatched:
        return Relation(matched, tuple(shown))
    return _with_unmatched(plugin, left, Relation(matched, tuple(shown)), numbered)


# Places.


def _geo_lookup(plugin: Plugin) -> Relation:
    """Join points with the polygons that contain them, or with the shapes within a radius of them."""
    session, polygons = plugin.session, plugin.node.name == "geo_polygon_lookup"
    table = plugin.argument(0)
    if table is None:
        raise plugin.error(f"{plugin.node.name} needs a lookup table")
    right = plugin.tabular.relation(table, plugin.scope)
    longitude, latitude, node = plugin.column(1), plugin.column(2), plugin.argument(3)
    shape = right.find(node.name) if isinstance(node, syntax.Column) else None
    if shape is None:
        raise plugin.error("the column of shapes is not in the lookup table")
    rest = [plugin.tabular.scalars(plugin.scope, ()).constant(each, "an option") for each in plugin.positional[4:]]
    flags = [each.value for each in rest if each.kind == "bool"]
    numbers = [each for each in rest if each.kind != "bool"]
    radius = plugin.typed(99, "radius") or (numbers[0] if numbers else None)
    if radius is None and not polygons:
        raise plugin.error(f"{plugin.node.name} needs a radius in metres")
    unmatched = bool(flags[0] if flags else plugin.constant(99, "return_unmatched", default=False))
    left = plugin.tabular.stored(plugin.relation) if unmatched else plugin.relation
    points = [left.columns[plugin.relation.columns.index(each)] for each in (longitude, latitude)]
    number = session.identity()
    plan: Plan = left.plan
    left_kinds = {each.identity: each.kind for each in left.columns}
    if unmatched:
        plan = Window(plan, {number: call("long", "window", "row_number() OVER ()")})
        left_kinds[number] = "long"
    plan = Match("inner", plan, right.plan, (), left_kinds, {each.identity: each.kind for each in right.columns})
    names = ("$longitude", "$latitude", "$shape")
    hidden = [replace(each, name=name) for each, name in zip((*points, shape), names, strict=True)]
    at = plugin.node.at
    given = tuple(syntax.Column(at, name) for name in names)
    condition: syntax.Expression = syntax.Call(at, "geo_point_in_polygon", given)
    if radius is not None:
        distance = syntax.Call(at, f"geo_distance_point_to_{'polygon' if polygons else 'line'}", given)
        condition = syntax.Binary(at, "<=", distance, syntax.Literal(at, radius.kind, radius.value), (at, at, at))
    near = plugin.tabular.scalars(plugin.scope, hidden).condition(condition)
    shown = list(left.columns)
    for each in right.columns:
        shown.append(replace(each, name=joins.unused(each.name, (one.name for one in shown))))
    matched = Relation(Filter(plan, near, (plugin.node.name,)), tuple(shown))
    return _with_unmatched(plugin, left, matched, number) if unmatched else matched


def _with_unmatched(plugin: Plugin, left: Relation, matched: Relation, number: str) -> Relation:
    """Return matches, and the rows of the left side that have none."""
    session = plugin.session
    hits = plugin.tabular.stored(Relation(matched.plan, (*matched.columns, OutputColumn("", "long", number))))
    again = plugin.tabular.stored(left)
    *columns, hit = hits.columns
    own = session.identity()
    numbered = Window(again.plan, {own: call("long", "window", "row_number() OVER ()")})
    pairs = ((column(own, "long", own), column(hit.identity, "long", "")),)
    plan = Match(
        "leftouter",
        numbered,
        hits.plan,
        pairs,
        {each.identity: each.kind for each in again.columns} | {own: "long"},
        {each.identity: each.kind for each in columns},
    )
    names = [each.name for each in matched.columns]
    shown = (*again.columns, *columns[len(again.columns) :])
    return Relation(plan, tuple(replace(each, name=name) for each, name in zip(shown, names, strict=True)))


PLUGINS: dict[str, Callable[[Plugin], Relation]] = {
    "bag_unpack": _bag_unpack,
    "dcount_intersect": _dcount_intersect,
    "geo_line_lookup": _geo_lookup,
    "geo_polygon_lookup": _geo_lookup,
    "ipv4_lookup": _ip_lookup,
    "ipv6_lookup": _ip_lookup,
    "narrow": _narrow,
    "pivot": _pivot,
    "preview": _preview,
    "schema_merge": _schema_merge,
}
"""Plugins by name."""
