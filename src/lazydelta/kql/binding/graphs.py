"""Graphs: ``make-graph`` and the operators on its result.

Nodes and edges are tables of the query's database, in which nodes have numbers and edges those of both ends. Python
finds patterns; conditions and results are SQL again, over columns that hold the properties of each variable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lazydelta.kql.binding.plan import (
    Attach,
    Filter,
    Limit,
    Order,
    OrderKey,
    OutputColumn,
    Plan,
    Relation,
    Rows,
    Scope,
    Staged,
)
from lazydelta.kql.binding.scalars import Scalars, Special
from lazydelta.kql.binding.types import Typed, call, column, converted, literal, to_text
from lazydelta.kql.computing.graph_paths import PatternEdge, components, degrees, matches
from lazydelta.kql.computing.steps import staged_type
from lazydelta.kql.language import syntax

if TYPE_CHECKING:
    from lazydelta.kql.binding.tabular import Tabular

__all__ = ["Graph", "made", "operate"]

_DEGREES = ("node_degree_in", "node_degree_out")


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes and edges as SQL. Columns are ``f0``, ``f1`` … in both; nodes have ``n``, edges ``i`` and ``j``.

    ``key`` is the node column that edges name.
    """

    nodes: str
    edges: str
    node_columns: tuple[tuple[str, str], ...]
    edge_columns: tuple[tuple[str, str], ...]
    key: str


def _table(tabular: Tabular, sql: str, columns: tuple[tuple[str, str], ...], numbers: tuple[str, ...]) -> str:
    """Store rows, and return SQL that selects them with the same names."""
    every = [*numbers, *(f"f{index}" for index in range(len(columns)))]
    kinds = [*("long" for _ in numbers), *(kind for _, kind in columns)]
    shown = tuple(OutputColumn(name, kind, tabular.session.identity()) for name, kind in zip(every, kinds, strict=True))
    chosen = ", ".join(f"{name} AS {each.identity}" for name, each in zip(every, shown, strict=True))
    table = tabular.session.evaluator.table(Relation(Rows(f"SELECT {chosen} FROM ({sql})"), shown))
    back = ", ".join(f"{each.identity} AS {name}" for name, each in zip(every, shown, strict=True))
    return f"SELECT {back} FROM {table}"


def _fields(relation: Relation) -> str:
    return ", ".join(f"{each.identity} AS f{index}" for index, each in enumerate(relation.columns))


def made(tabular: Tabular, edges: Relation, operator: syntax.MakeGraph, scope: Scope) -> Relation | Graph:
    """Return the graph of a table of edges, or what the operators on each of its partitions make."""
    wanted = [operator.source, operator.target, *([] if operator.partition is None else [operator.partition.column])]
    ends = [edges.find(name) for name in wanted]
    if None in ends:
        known = ", ".join(each.name for each in edges.columns)
        missing = wanted[ends.index(None)]
        raise tabular.session.error(operator.at, f"there is no column {missing!r}", f"there are {known}")
    stored = tabular.stored(edges)
    assert isinstance(stored.plan, Rows)  # noqa: S101 - a stored table
    edge_columns = tuple((each.name, each.kind) for each in edges.columns)
    edge_sql = f"SELECT {_fields(stored)} FROM ({stored.plan.sql})"
    source, target, *split = (edges.columns.index(each) for each in ends if each is not None)
    # The nodes of edges come in the order in which edges name them first. A partition is part of a node's key, so that
    # no path leads from one to another.
    part = "".join(f", f{place}" for place in split)
    named = (
        f"SELECT k{part} FROM (SELECT unnest([f{source}, f{target}]) AS k{part}, row_number() OVER () AS o"
        f" FROM ({edge_sql})) WHERE k IS NOT NULL GROUP BY k{part} ORDER BY min(o)"
    )
    if operator.nodes:
        node_sql, node_columns, keys = _node_tables(tabular, operator, scope, named, split)
    else:
        node_columns = tuple(
            (name, edge_columns[place][1])
            for name, place in zip((operator.node_id or "$id", "$partition"), (source, *split), strict=False)
        )
        node_sql = f"SELECT k AS f0{''.join(f', f{place} AS f1' for place in split)} FROM ({named})"
        keys = [0, *(1 for _ in split)]
    numbered = f"SELECT row_number() OVER () - 1 AS n, * FROM ({node_sql})"
    nodes = _table(tabular, numbered, node_columns, ("n",))
    same = [
        " AND ".join(
            f"e.f{own} IS NOT DISTINCT FROM {side}.f{key}" for own, key in zip((end, *split), keys, strict=True)
        )
        for side, end in (("a", source), ("b", target))
    ]
    joined = (
        f"SELECT a.n AS i, b.n AS j, e.* FROM (SELECT * FROM ({edge_sql}) WHERE f{source} IS NOT NULL AND"
        f" f{target} IS NOT NULL) AS e JOIN ({nodes}) AS a ON {same[0]} JOIN ({nodes}) AS b ON {same[1]}"
    )
    made = Graph(nodes, _table(tabular, joined, edge_columns, ("i", "j")), node_columns, edge_columns, f"f{keys[0]}")
    return made if operator.partition is None else tabular.steps(made, operator.partition.steps, scope)


def _node_tables(
    tabular: Tabular, operator: syntax.MakeGraph, scope: Scope, named: str, split: list[int]
) -> tuple[str, tuple[tuple[str, str], ...], list[int]]:
    """Return SQL of given nodes, and of those that only edges name, with their columns and the places of the key.

    Rows of the same key are one node, which has the first value of each property that is not null.
    """
    columns: dict[tuple[str, str], None] = {}
    tables: list[tuple[Relation, str]] = []
    for node, key in operator.nodes:
        relation = tabular.stored(tabular.relation(node, scope))
        for name in (key, *([] if operator.partition is None else [operator.partition.column])):
            if relation.find(name) is None:
                raise tabular.session.error(node.at, f"the table of nodes has no column {name!r}")
        columns |= dict.fromkeys((each.name, each.kind) for each in relation.columns)
        tables.append((relation, key))
    listed = tuple(columns)
    names = [name for name, _ in listed]
    position = names.index(tables[0][1])
    keys = [position, *([] if operator.partition is None else [names.index(operator.partition.column)])]
    parts = []
    for relation, key in tables:
        assert isinstance(relation.plan, Rows)  # noqa: S101 - a stored table
        cells = []
        for index, (name, kind) in enumerate(listed):
            found = relation.find(key) if index == position else relation.find(name)
            fits = found is not None and found.kind == kind
            cells.append(f"{found.identity if found is not None and fits else literal(kind, None).sql} AS f{index}")
        parts.append(f"SELECT {', '.join(cells)} FROM ({relation.plan.sql})")
    given = " UNION ALL ".join(parts)
    # An empty string stands for none.
    some = [
        f"coalesce(any_value(nullif(f{index}, '')), '')" if kind == "string" else f"any_value(f{index})"
        for index, (_, kind) in enumerate(listed)
    ]
    cells = [f"f{index}" if index in keys else f"{each} AS f{index}" for index, each in enumerate(some)]
    grouped = ", ".join(f"f{index}" for index in keys)
    merged = (
        f"SELECT {', '.join(cells)} FROM (SELECT *, row_number() OVER () AS o FROM ({given}))"
        f" GROUP BY {grouped} ORDER BY min(o)"
    )
    ends = dict(zip(keys, ("m.k", *(f"m.f{place}" for place in split)), strict=True))
    cells = [f"{ends.get(index, literal(kind, None).sql)} AS f{index}" for index, (_, kind) in enumerate(listed)]
    known = " AND ".join(f"g.f{index} IS NOT DISTINCT FROM {end}" for index, end in ends.items())
    missing = (
        f"SELECT {', '.join(cells)} FROM ({named}) AS m WHERE NOT EXISTS (SELECT 1 FROM ({given}) AS g WHERE {known})"
    )
    return f"SELECT * FROM ({merged}) UNION ALL {missing}", listed, keys


def operate(tabular: Tabular, graph: Graph, operator: syntax.Operator, scope: Scope) -> Relation | Graph:
    """Return what an operator makes of a graph."""
    match operator:
        case syntax.GraphMatch():
            return _matched(tabular, graph, operator, scope)
        case syntax.GraphToTable(outputs=outputs):
            if len(outputs) > 1:
                raise tabular.session.error(operator.at, "graph-to-table of several tables is the end of a query")
            return _to_table(tabular, graph, outputs[0])
        case syntax.GraphMarkComponents(options=options):
            return _marked(tabular, graph, operator, dict(options))
        case syntax.GraphWhere():
            return _filtered(tabular, graph, operator, scope)
        case _:
            hint = "write graph-match, graph-shortest-paths or graph-to-table before it"
            raise tabular.session.error(operator.at, "a graph is not a table", hint)


def _relation(tabular: Tabular, sql: str, columns: tuple[tuple[str, str], ...]) -> Relation:
    shown = tuple(OutputColumn(name, kind, tabular.session.identity()) for name, kind in columns)
    chosen = ", ".join(f"f{index} AS {each.identity}" for index, each in enumerate(shown))
    return Relation(Rows(f"SELECT {chosen} FROM ({sql})"), shown)


def _to_table(tabular: Tabular, graph: Graph, output: tuple[str, str | None, Any]) -> Relation:
    what, _, options = output
    if what == "nodes":
        sql, columns, keys = graph.nodes, graph.node_columns, {"with_node_id": graph.key}
    else:
        sql, columns, keys = graph.edges, graph.edge_columns, {"with_source_id": "s", "with_target_id": "t"}
        sql = (
            f"SELECT e.*, a.{graph.key} AS s, b.{graph.key} AS t FROM ({sql}) AS e"
            f" JOIN ({graph.nodes}) AS a ON e.i = a.n JOIN ({graph.nodes}) AS b ON e.j = b.n"
        )
    relation = _relation(tabular, sql, columns)
    # The identifier of a node is the hash of its key.
    kind = graph.node_columns[int(graph.key[1:])][1]
    extra = []
    for option, name in options:
        if option not in keys:
            raise tabular.session.error(0, f"graph-to-table {what} has no option {option}")
        given = OutputColumn("key", kind, keys[option])
        hashed = tabular.scalars(Scope(), (given,)).bind(syntax.Call(0, "hash", (syntax.Column(0, "key"),)))
        extra.append((hashed.sql, OutputColumn(name, "long", tabular.session.identity())))
    # A column whose name starts with $ is for our own use.
    own = [(f"f{index}", each) for index, each in enumerate(relation.columns) if not each.name.startswith("$")]
    if not extra and not own:
        raise tabular.session.error(0, "the nodes have no columns", "name them with with_node_id")
    shown = tuple(each for _, each in (*extra, *own))
    chosen = [f"{value} AS {each.identity}" for value, each in (*extra, *own)]
    return Relation(Rows(f"SELECT {', '.join(chosen)} FROM ({sql})"), shown)


def _filtered(tabular: Tabular, graph: Graph, operator: syntax.GraphWhere, scope: Scope) -> Graph:
    sql, columns = (graph.nodes, graph.node_columns) if operator.nodes else (graph.edges, graph.edge_columns)
    shown = [OutputColumn(name, kind, f"f{index}") for index, (name, kind) in enumerate(columns)]
    condition = Scalars(tabular.session, scope, shown, tabular.relation).condition(operator.condition)
    kept = f"SELECT * FROM ({sql}) WHERE {condition.sql}"
    if not operator.nodes:
        return replace(graph, edges=_table(tabular, kept, graph.edge_columns, ("i", "j")))
    # Numbers have no gaps, so nodes are numbered anew, and edges follow.
    numbered = f"SELECT row_number() OVER () - 1 AS m, * FROM ({kept})"
    fields = ", ".join(f"f{index}" for index in range(len(graph.node_columns)))
    nodes = _table(tabular, f"SELECT m AS n, {fields} FROM ({numbered})", graph.node_columns, ("n",))
    edge_fields = ", ".join(f"e.f{index}" for index in range(len(graph.edge_columns)))
    joined = (
        f"SELECT a.m AS i, b.m AS j, {edge_fields} FROM ({graph.edges}) AS e JOIN ({numbered}) AS a ON e.i = a.n"
        f" JOIN ({numbered}) AS b ON e.j = b.n"
    )
    return replace(graph, nodes=nodes, edges=_table(tabular, joined, graph.edge_columns, ("i", "j")))


def _rows(graph: Graph, node_flags: list[str], edge_flags: list[str]) -> str:
    """Return SQL of the graph as Python reads it: is an edge, ends, flags, and the properties of a node or an edge."""
    node, edge = _packed(graph.node_columns), _packed(graph.edge_columns)
    flags = [
        f"CAST([{', '.join(f'coalesce({each}, FALSE)' for each in one)}] AS BOOLEAN[])"
        for one in (node_flags, edge_flags)
    ]
    return (
        f"SELECT FALSE AS x0, n AS x1, NULL AS x2, {flags[0]} AS x3, {node} AS x4, NULL AS x5"
        f" FROM (SELECT * FROM ({graph.nodes}) ORDER BY n)"
        f" UNION ALL SELECT TRUE, i, j, {flags[1]}, NULL, {edge} FROM ({graph.edges})"
    )


def _packed(columns: tuple[tuple[str, str], ...]) -> str:
    # JSON and UUID are texts on the way through Python.
    return (
        "struct_pack("
        + ", ".join(
            f"f{index} := {f'CAST(f{index} AS VARCHAR)' if kind in {'dynamic', 'guid'} else f'f{index}'}"
            for index, (_, kind) in enumerate(columns)
        )
        + ")"
    )


def _field(whole: str, index: int, kind: str) -> str:
    sql = f"struct_extract({whole}, 'f{index}')"
    if kind == "string":
        return f"coalesce({sql}, '')"
    return {"dynamic": f"CAST({sql} AS JSON)", "guid": f"CAST({sql} AS UUID)"}.get(kind, sql)


def _source(tabular: Tabular, sql: str) -> tuple[Plan, dict[str, str]]:
    identities = [tabular.session.identity() for _ in range(6)]
    chosen = ", ".join(f"x{index} AS {each}" for index, each in enumerate(identities))
    return Rows(f"SELECT {chosen} FROM ({sql})"), dict.fromkeys(identities, "native")


def _numbers(tabular: Tabular, graph: Graph, make: Any, names: tuple[str, ...]) -> str:
    """Return SQL of numbers that Python computes for each node, the first of which is the node's own."""
    plan, inputs = _source(tabular, _rows(graph, [], []))
    shown = tuple(OutputColumn(name, "long", tabular.session.identity()) for name in names)
    outputs = dict.fromkeys((each.identity for each in shown), "long")
    staged = Relation(Staged(plan, f"v{tabular.session.identity()}", inputs, outputs, make), shown)
    table = tabular.session.evaluator.table(staged)
    return f"SELECT {', '.join(f'{each.identity} AS {each.name}' for each in shown)} FROM {table}"


def _with_column(tabular: Tabular, graph: Graph, numbers: str, value: str, name: str) -> Graph:
    fields = ", ".join(f"a.f{index}" for index in range(len(graph.node_columns)))
    last = f"f{len(graph.node_columns)}"
    sql = f"SELECT a.n, {fields}, b.{value} AS {last} FROM ({graph.nodes}) AS a JOIN ({numbers}) AS b ON a.n = b.n"
    columns = (*graph.node_columns, (name, "long"))
    return replace(graph, nodes=_table(tabular, sql, columns, ("n",)), node_columns=columns)


def _marked(tabular: Tabular, graph: Graph, operator: syntax.GraphMarkComponents, options: dict[str, str]) -> Graph:
    kind = options.get("kind", "weak")
    if kind not in {"weak", "strong"}:
        raise tabular.session.error(operator.at, f"components are weak or strong, not {kind!r}")
    found = _numbers(tabular, graph, lambda: components(strong=kind == "strong"), ("n", "c"))
    return _with_column(tabular, graph, found, "c", options.get("with_component_id", "ComponentId"))


# Patterns.


class _Variables:
    """The variables of a pattern: nodes and edges by name, each with its place."""

    def __init__(self, paths: tuple[syntax.GraphPath, ...]) -> None:
        self.nodes: dict[str, int] = {}
        self.edges: dict[str, int] = {}
        self.pattern: list[tuple[int, int, syntax.GraphEdge]] = []
        self.count = 0
        for path in paths:
            places = [self._node(name) for name in path.nodes]
            for edge, source, target in zip(path.edges, places, places[1:], strict=False):
                if edge.name is not None:
                    self.edges[edge.name] = len(self.pattern)
                self.pattern.append((source, target, edge))

    def _node(self, name: str | None) -> int:
        if name is not None and name in self.nodes:
            return self.nodes[name]
        self.count += 1
        if name is not None:
            self.nodes[name] = self.count - 1
        return self.count - 1

    def is_connected(self) -> bool:
        """Return whether edges connect all nodes."""
        reached, left = {0}, list(self.pattern)
        while near := [each for each in left if each[0] in reached or each[1] in reached]:
            reached |= {place for source, target, _ in near for place in (source, target)}
            left = [each for each in left if each not in near]
        return len(reached) == self.count


def _matched(tabular: Tabular, graph: Graph, operator: syntax.GraphMatch, scope: Scope) -> Relation:
    session = tabular.session
    options = dict(operator.options)
    cycles = options.get("cycles", "unique_edges")
    if cycles not in {"unique_edges", "all", "none"}:
        raise session.error(operator.at, f"cycles are all, none or unique_edges, not {cycles!r}")
    if any(word in session.query.text for word in _DEGREES):
        numbers = _numbers(tabular, graph, lambda: degrees, ("n", "d_in", "d_out"))
        graph = _with_column(tabular, graph, numbers, "d_in", "$in")
        graph = _with_column(tabular, graph, numbers, "d_out", "$out")
    variables = _Variables(operator.paths)
    if not variables.is_connected():
        raise session.error(
            operator.at, "the parts of a pattern must have nodes in common", "use the same name in both"
        )
    flags = _Flags(tabular, graph, variables, scope)
    flags.collect(operator.condition)
    edges = [
        PatternEdge(source, target, edge.direction, edge.hops, flags.edges.get(place))
        for place, (source, target, edge) in enumerate(variables.pattern)
    ]
    node_flags = [flags.nodes.get(place) for place in range(variables.count)]
    plan, inputs = _source(tabular, _rows(graph, flags.node_sql, flags.edge_sql))
    nodes = [session.identity() for _ in range(variables.count)]
    walks = [(session.identity(), session.identity()) for _ in edges]
    length, number = session.identity(), session.identity()
    node_type, edge_type = _arrow(graph.node_columns), _arrow(graph.edge_columns)
    outputs: dict[str, Any] = dict.fromkeys(nodes, node_type)
    for edge, (walk, inside) in zip(edges, walks, strict=True):
        outputs[walk] = edge_type if edge.hops is None else _listed(edge_type)
        outputs[inside] = _listed(node_type)
    outputs |= {length: "long", number: "long"}
    plan = Staged(plan, f"v{session.identity()}", inputs, outputs, lambda: matches(edges, node_flags, cycles))
    bound = _Bound(tabular, graph, variables, (nodes, walks), scope)
    plan = Attach(plan, bound.attached)
    scalars = Scalars(session, scope, bound.columns, tabular.relation, special=bound.special)
    if operator.condition is not None:
        plan = Filter(plan, scalars.condition(operator.condition), ("graph-match",))
    if operator.shortest:
        plan = _shortest(plan, variables, nodes, length, number, every=options.get("output", "any") == "all")
    return bound.projected(plan, operator.items, scalars)


def _shortest(plan: Plan, variables: _Variables, nodes: list[str], length: str, number: str, *, every: bool) -> Plan:
    """Keep the shortest matches between each first and last node: one, or all of that length."""
    ends = sorted(
        {place for source, target, _ in (variables.pattern[0], variables.pattern[-1]) for place in (source, target)}
    )
    by = tuple(nodes[place] for place in ends)
    size, order = column(length, "long", length), column(number, "long", number)
    if not every:
        keys = (OrderKey(size, False, True), OrderKey(order, False, True))  # noqa: FBT003
        return Limit(plan, 1, by=by, keys=keys)
    least = f"(min({length}) OVER (PARTITION BY {', '.join(by)}))"
    used = [size, *(column(each, "dynamic", each) for each in by)]
    kept = f"k{number}"
    return Filter(
        Attach(Order(plan, ()), {kept: call("bool", "window", f"({length} = {least})", used)}),
        column(kept, "bool", kept),
        ("graph-shortest-paths",),
    )


def _arrow(columns: tuple[tuple[str, str], ...]) -> Any:
    return pa.struct([pa.field(f"f{index}", staged_type(kind)) for index, (_, kind) in enumerate(columns)])


def _listed(kind: Any) -> Any:
    return pa.list_(kind)


class _Flags:
    """Conditions on one variable alone, which Python tests before it goes on along a path."""

    def __init__(self, tabular: Tabular, graph: Graph, variables: _Variables, scope: Scope) -> None:
        self._tabular = tabular
        self._graph = graph
        self._variables = variables
        self._scope = scope
        self.nodes: dict[int, int] = {}
        self.edges: dict[int, int] = {}
        self.node_sql: list[str] = []
        self.edge_sql: list[str] = []

    def collect(self, condition: syntax.Expression | None) -> None:
        """Take what can be tested early from a condition, which is tested as a whole again."""
        parts = condition.parts if isinstance(condition, syntax.Logical) and condition.op == "and" else (condition,)
        for part in parts:
            match part:
                case syntax.Call(name="all", arguments=(syntax.Column(name=name), inner)) if (
                    name in self._variables.edges
                ):
                    self._edge(self._variables.edges[name], inner, None)
                case syntax.Binary(left=syntax.Member(base=syntax.Column(name=name)), right=syntax.Literal()):
                    if name in self._variables.nodes:
                        self._node(self._variables.nodes[name], part, name)
                    elif name in self._variables.edges:
                        self._edge(self._variables.edges[name], part, name)
                case _:
                    pass

    def _node(self, place: int, condition: syntax.Expression, prefix: str) -> None:
        sql = self._sql(condition, self._graph.node_columns, prefix)
        if place in self.nodes:
            self.node_sql[self.nodes[place]] = f"({self.node_sql[self.nodes[place]]} AND {sql})"
        else:
            self.nodes[place] = len(self.node_sql)
            self.node_sql.append(sql)

    def _edge(self, place: int, condition: syntax.Expression, prefix: str | None) -> None:
        sql = self._sql(condition, self._graph.edge_columns, prefix)
        if place not in self.edges:
            self.edges[place] = len(self.edge_sql)
            self.edge_sql.append(sql)

    def _sql(self, condition: syntax.Expression, columns: tuple[tuple[str, str], ...], prefix: str | None) -> str:
        start = "" if prefix is None else f"{prefix}."
        shown = [OutputColumn(f"{start}{name}", kind, f"f{index}") for index, (name, kind) in enumerate(columns)]
        return Scalars(self._tabular.session, self._scope, shown, self._tabular.relation).condition(condition).sql


class _Bound:
    """The columns of a match: ``n.property`` for each variable, and the functions of paths."""

    def __init__(
        self,
        tabular: Tabular,
        graph: Graph,
        variables: _Variables,
        places: tuple[list[str], list[tuple[str, str]]],
        scope: Scope,
    ) -> None:
        nodes, walks = places
        self._scope = scope
        self._tabular = tabular
        self._graph = graph
        self.attached: dict[str, Typed] = {}
        self.columns: list[OutputColumn] = []
        # Lists of several hops: SQL column and the properties of its elements.
        self._lists: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {}
        self._inside: dict[str, str] = {}
        self._key = int(graph.key[1:])
        self._nodes = {name: nodes[place] for name, place in variables.nodes.items()}
        for name, place in variables.nodes.items():
            self._add(name, nodes[place], graph.node_columns)
        for name, place in variables.edges.items():
            walk, inside = walks[place]
            self._inside[name] = inside
            if variables.pattern[place][2].hops is None:
                self._add(name, walk, graph.edge_columns)
            else:
                self._lists[name] = walk, graph.edge_columns
                self._add_list(name, walk)

    @property
    def special(self) -> dict[str, Special]:
        """Functions that only a match has."""
        quantified: dict[str, Special] = dict.fromkeys(("all", "any", "map"), self._quantified)
        inner = dict.fromkeys(("inner_nodes", "inner_edges"), self._inner)
        of_nodes = dict.fromkeys(_DEGREES, self._degree) | {"labels": _labels, "node_id": self._node_id}
        return quantified | inner | of_nodes

    def _inner(self, _scalars: Scalars, node: syntax.Call) -> Typed:
        """Return the properties of the nodes or edges on a path, as bags."""
        match node.arguments:
            case (syntax.Column(name=name),) if name in self._lists:
                (walk, edge_columns), inside = self._lists[name], self._inside[name]
            case _:
                raise self._tabular.session.error(node.at, f"{node.name}() needs an edge of several hops")
        of_nodes = node.name == "inner_nodes"
        listed, columns = (inside, self._graph.node_columns) if of_nodes else (walk, edge_columns)
        sql = f"to_json(list_transform({listed}, lambda e: {_bag('e', columns)}))"
        return call("dynamic", node.name, sql, [column(listed, "dynamic", listed)])

    def _add(self, name: str, identity: str, columns: tuple[tuple[str, str], ...]) -> None:
        whole = column(identity, "dynamic", identity)
        for index, (prop, kind) in enumerate(columns):
            new = self._tabular.session.identity()
            self.attached[new] = call(kind, "field", _field(identity, index, kind), [whole])
            self.columns.append(OutputColumn(f"{name}.{prop}", kind, new))
        self._add_bag(name, _bag(identity, columns), whole)

    def _add_list(self, name: str, identity: str) -> None:
        bag = _bag("e", self._graph.edge_columns)
        sql = f"to_json(list_transform({identity}, lambda e: {bag}))"
        whole = column(identity, "dynamic", identity)
        self._add_bag(name, sql, whole)
        for index, (prop, kind) in enumerate(self._graph.edge_columns):
            new = self._tabular.session.identity()
            value = converted(Typed(kind, _field("e", index, kind), "field"), "dynamic")
            listed = f"to_json(list_transform({identity}, lambda e: {value}))"
            self.attached[new] = call("dynamic", "fields", listed, [whole])
            self.columns.append(OutputColumn(f"{name}.{prop}", "dynamic", new))

    def _add_bag(self, name: str, sql: str, whole: Typed) -> None:
        new = self._tabular.session.identity()
        self.attached[new] = call("dynamic", "bag", sql, [whole])
        self.columns.append(OutputColumn(name, "dynamic", new))

    def _quantified(self, _scalars: Scalars, node: syntax.Call) -> Typed:
        session = self._tabular.session
        if len(node.arguments) != 2:  # noqa: PLR2004 - an edge and an expression
            raise session.error(node.at, f"{node.name}() takes an edge of several hops, and an expression")
        subject, inner = node.arguments
        match subject:
            case syntax.Column(name=name) if name in self._lists:
                listed, columns = self._lists[name]
            case syntax.Call(name="inner_edges", arguments=(syntax.Column(name=name),)) if name in self._lists:
                listed, columns = self._lists[name]
            case syntax.Call(name="inner_nodes", arguments=(syntax.Column(name=name),)) if name in self._inside:
                listed, columns = self._inside[name], self._graph.node_columns
            case _:
                hint = "name an edge such as e in -[e*1..3]->, or write inner_nodes(e)"
                raise session.error(subject.at, f"{node.name}() needs an edge of several hops", hint)
        element = f"e{session.identity()}"
        inside = [OutputColumn(name, kind, _field(element, index, kind)) for index, (name, kind) in enumerate(columns)]
        own: dict[str, Special] = {}
        for index, (name, _) in enumerate(columns):
            if name in {"$in", "$out"}:
                sql = _field(element, index, "long")
                own[f"node_degree_{name[1:]}"] = lambda _scalars, _node, sql=sql: Typed("long", sql, "degree")  # type: ignore[misc]
        if columns is self._graph.node_columns:
            key = Typed(columns[self._key][1], _field(element, self._key, columns[self._key][1]), "field")
            own["node_id"] = lambda _scalars, _node: Typed("string", to_text(key), "node_id")
        columns_of = [*self.columns, *inside]
        bound = Scalars(session, self._scope, columns_of, self._tabular.relation, special=own).bind(inner)
        outer = bound.refs - {each.identity for each in inside}
        whole = [column(each, "dynamic", each) for each in (listed, *outer)]
        if node.name == "map":
            shown = f"kql_real_json({bound.sql})" if bound.kind == "real" else converted(bound, "dynamic")
            return call("dynamic", "map", f"to_json(list_transform({listed}, lambda {element}: {shown}))", whole)
        if bound.kind != "bool":
            raise session.error(inner.at, f"{node.name}() needs a condition, and this is a {bound.kind}")
        found = f"len(list_filter({listed}, lambda {element}: coalesce({bound.sql}, FALSE)))"
        test = f"({found} = len({listed}))" if node.name == "all" else f"({found} > 0)"
        return call("bool", node.name, test, whole)

    def _degree(self, scalars: Scalars, node: syntax.Call) -> Typed:
        match node.arguments:
            case (syntax.Column(name=name),) if name in self._nodes:
                prop = f"${node.name.removeprefix('node_degree_')}"
                return replace(scalars.bind(syntax.Member(node.at, node.arguments[0], prop)), name=None)
            case _:
                raise self._tabular.session.error(node.at, f"{node.name}() needs a node of the pattern")

    def _node_id(self, scalars: Scalars, node: syntax.Call) -> Typed:
        match node.arguments:
            case (syntax.Column(name=name),) if name in self._nodes:
                prop = self._graph.node_columns[self._key][0]
                value = scalars.bind(syntax.Member(node.at, node.arguments[0], prop))
                return replace(value, kind="string", sql=to_text(value), name=None)
            case _:
                raise self._tabular.session.error(node.at, "node_id() needs a node of the pattern")

    def projected(self, plan: Plan, items: tuple[syntax.Named, ...], scalars: Scalars) -> Relation:
        """Return the columns that the query asks for."""
        return self._tabular.projected(plan, items, scalars)


def _labels(_scalars: Scalars, _node: syntax.Call) -> Typed:
    # Only stored graph models have labels.
    return literal("dynamic", [])


def _bag(whole: str, columns: tuple[tuple[str, str], ...]) -> str:
    pairs = []
    for index, (name, kind) in enumerate(columns):
        if not name.startswith("$"):
            value = Typed(kind, _field(whole, index, kind), "field")
            title = name.replace("'", "''")
            pairs.append(f"'{title}', {converted(value, 'dynamic')}")
    return f"json_object({', '.join(pairs)})"
