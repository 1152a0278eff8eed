"""Tables and operators: turn a pipeline into a plan whose columns have names and types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from lazydelta.kql.binding import arrays, graphs, joins, plugins, texts
from lazydelta.kql.binding.activity import TIMELINE_PLUGINS
from lazydelta.kql.binding.graphs import Graph
from lazydelta.kql.binding.joins import Made, one_name, unused
from lazydelta.kql.binding.patterns import PATTERN_PLUGINS
from lazydelta.kql.binding.plan import (
    Aggregate,
    Attach,
    Filter,
    Limit,
    Order,
    OrderKey,
    OutputColumn,
    Plan,
    Relation,
    Rows,
    Scan,
    Scope,
    Session,
    TableFunction,
    is_repeatable,
    is_serialized,
    order_of,
)
from lazydelta.kql.binding.scalars import Scalars, bind_let, bound_parameters
from lazydelta.kql.binding.summarize import Aggregates
from lazydelta.kql.binding.types import NUMBERS, SQL_TYPES, Typed, column, common_kind, converted, literal, quoted
from lazydelta.kql.binding.windows import Windows, scanned
from lazydelta.kql.functions.aggregates import SEVERAL
from lazydelta.kql.functions.table import FUNCTIONS, REFUSED
from lazydelta.kql.language import syntax

__all__ = ["Tabular"]

_PLUGINS = {**TIMELINE_PLUGINS, **PATTERN_PLUGINS}


# Rows contained in the query: ``print``, ``range``, ``datatable``, and the schema of another table as rows.


_DATA_TYPES = {
    "bool": "System.SByte",
    "int": "System.Int32",
    "long": "System.Int64",
    "real": "System.Double",
    "decimal": "System.Data.SqlTypes.SqlDecimal",
    "string": "System.String",
    "datetime": "System.DateTime",
    "timespan": "System.TimeSpan",
    "dynamic": "System.Object",
    "guid": "System.Guid",
}


def item_names(session: Session, item: syntax.Named, count: int) -> list[str | None]:
    """Return the names that an item gives to its columns, None for those that keep their own."""
    if count == 1:
        return [one_name(session, item)]
    given = [item.name, *item.more]
    if len(given) > count:
        message = f"{len(given)} names are too many for {count} columns"
        raise session.error(item.at, message, "omit some")
    return given + [None] * (count - len(given))


def printed(session: Session, items: tuple[syntax.Named, ...], scalars: Scalars) -> Relation:
    """Return one row of values."""
    shown: list[OutputColumn] = []
    parts: list[str] = []
    for index, item in enumerate(items):
        results = scalars.columns(item.expression)
        written = item_names(session, item, len(results))
        if item.name is not None and item.name in {each.name for each in items[:index]}:
            raise session.error(item.at, f"there are two columns {item.name!r}", "give one another name")
        for name, bound in zip(written, results, strict=True):
            own = bound.name if len(results) > 1 else None
            identity = session.identity()
            shown_name = name or own or unused(f"print_{index}", (each.name for each in shown))
            shown.append(OutputColumn(shown_name, bound.kind, identity))
            parts.append(f"{bound.sql} AS {identity}")
    return Relation(Rows(f"SELECT {', '.join(parts)}"), tuple(shown))


def ranged(session: Session, node: syntax.Range, scalars: Scalars) -> Relation:
    """Return a column of equidistant values."""
    first, last, step = (scalars.bind(each) for each in (node.first, node.last, node.step))
    identity = session.identity()
    kinds = (first.kind, last.kind, step.kind)
    if kinds == ("datetime", "datetime", "timespan"):
        numbers = (f"epoch_us({first.sql})", f"epoch_us({last.sql})", f"({step.sql} // 10)")
        kind, made = "datetime", "make_timestamp(x)"
    elif set(kinds) == {"timespan"} or (set(kinds) <= {"int", "long"}):
        numbers = (first.sql, last.sql, step.sql)
        kind, made = "timespan" if "timespan" in kinds else "long", "x"
    elif set(kinds) <= set(NUMBERS):
        return _real_range(session, node, (first, last, step))
    else:
        raise session.error(node.at, f"range cannot go from {kinds[0]} to {kinds[1]} by {kinds[2]}", "use one type")
    start, end, distance = (f"CAST({each} AS BIGINT)" for each in numbers)
    if step.is_literal and not step.value:
        raise session.error(node.step.at, "a step of zero has no end", "write a step")
    # A table function streams, however long the range; a list would be made as a whole.
    sql = f"SELECT {made} AS {identity} FROM generate_series({start}, {end}, {distance}) AS r(x)"
    return Relation(Rows(sql), (OutputColumn(node.name, kind, identity),))


def _real_range(session: Session, node: syntax.Range, bounds: tuple[Typed, Typed, Typed]) -> Relation:
    first, last, step = (converted(each, "real") for each in bounds)
    identity = session.identity()
    count = f"CAST(floor(({last} - {first}) / {step} + 1e-9) AS BIGINT)"
    sql = f"SELECT {first} + x * {step} AS {identity} FROM generate_series(0, {count}) AS r(x)"
    return Relation(Rows(sql), (OutputColumn(node.name, "real", identity),))


def datatable(session: Session, node: syntax.DataTable, scalars: Scalars) -> Relation:
    """Return the rows written in the query."""
    shown = tuple(OutputColumn(name, kind, session.identity()) for name, kind in node.columns)
    if len({each.name for each in shown}) < len(shown):
        raise session.error(node.at, "a datatable has two columns with the same name", "give one another name")
    width = len(shown)
    if len(node.values) % width:
        message = f"{len(node.values)} values do not fill rows of {width} columns"
        raise session.error(node.at, message, "write a value for every column of every row")
    cells = [_cell(session, scalars, shown[index % width], each) for index, each in enumerate(node.values)]
    rows = [cells[start : start + width] for start in range(0, len(cells), width)]
    empty = not rows
    rows = rows or [[literal(each.kind, None).sql for each in shown]]
    values = ", ".join(f"({', '.join(row)})" for row in rows)
    names = ", ".join(each.identity for each in shown)
    typed = ", ".join(
        each.identity
        if each.kind == "decimal"
        else f"CAST({each.identity} AS {SQL_TYPES[each.kind]}) AS {each.identity}"
        for each in shown
    )
    none = " WHERE FALSE" if empty else ""
    return Relation(Rows(f"SELECT {typed} FROM (VALUES {values}) AS d({names}){none}"), shown)


def _cell(session: Session, scalars: Scalars, column: OutputColumn, node: syntax.Expression) -> str:
    bound = scalars.bind(node)
    if bound.refs:
        raise session.error(node.at, "a datatable holds constants only")
    if bound.kind == column.kind:
        return bound.sql
    if bound.is_literal and bound.value is None:
        return literal(column.kind, None).sql
    fits = {bound.kind, column.kind} <= set(NUMBERS) and common_kind((bound.kind, column.kind)) == column.kind
    narrows = bound.kind == "long" and column.kind == "int" and bound.is_literal and abs(bound.value) < 2**31
    if fits or narrows:
        return f"CAST({bound.sql} AS {SQL_TYPES[column.kind]})"
    if column.kind in {"dynamic", "string"}:
        return converted(bound, column.kind)
    if bound.kind == "string" and column.kind == "datetime" and bound.is_literal:
        return f"kql_timestamp({bound.sql})"
    raise session.error(node.at, f"column {column.name!r} is a {column.kind}, and this is a {bound.kind}")


def schema_rows(session: Session, relation: Relation) -> Relation:
    """Return one row per column of a table. The table itself is not read."""
    names = [("ColumnName", "string"), ("ColumnOrdinal", "long"), ("DataType", "string"), ("ColumnType", "string")]
    shown = tuple(OutputColumn(name, kind, session.identity()) for name, kind in names)
    rows = ", ".join(
        f"({quoted(each.name)}, CAST({index} AS BIGINT), {quoted(_DATA_TYPES[each.kind])}, {quoted(each.kind)})"
        for index, each in enumerate(relation.columns)
    )
    head = ", ".join(each.identity for each in shown)
    return Relation(Rows(f"SELECT * FROM (VALUES {rows}) AS d({head})"), shown)


@dataclass(slots=True)
class Within:
    """The groups that operators of ``mv-apply`` and ``partition`` apply to, one by one.

    ``keys`` are the columns that tell groups apart. ``carried`` maps columns of the source, which are the same for all
    rows of a group, to their present identities. ``kinds`` has the types of both.
    """

    keys: list[str]
    carried: dict[str, str]
    kinds: dict[str, str]

    def regroup(
        self, session: Session, keys: dict[str, Typed], aggregates: dict[str, tuple[str, frozenset[str]]]
    ) -> None:
        """Add the groups to the keys of an aggregate, and the carried columns to its aggregates."""
        made = {each: session.identity() for each in self.keys}
        keys |= {new: column(old, "long", old) for old, new in made.items()}
        for old in self.carried.values():
            if old not in made:
                made[old] = new = session.identity()
                aggregates[new] = f"first({old})", frozenset({old})
        self.rename(made)

    def rename(self, made: dict[str, str]) -> None:
        """Take over new identities of the columns."""
        self.keys = [made[each] for each in self.keys]
        self.carried = {name: made[old] for name, old in self.carried.items()}
        self.kinds = {made[old]: kind for old, kind in self.kinds.items() if old in made}


def _attached(plan: Plan, columns: dict[str, Typed]) -> Plan:
    return Attach(plan, columns) if columns else plan


class Tabular:
    """Binds the tables and operators of one query."""

    def __init__(self, session: Session) -> None:
        self.session = self._session = session
        self.render: syntax.Render | None = None
        # The rows of a group, where operators apply to each group by itself.
        self.within: Within | None = None
        self._patterns: dict[str, tuple[syntax.DeclaredPattern, Scope]] = {}
        self._made: dict[tuple[int, int], tuple[Relation, str | None, syntax.Call, Scope]] = {}

    def program(self, program: syntax.Program, scope: Scope, *, is_query: bool = False) -> Relation:
        """Return the result relation of a program. A query may be a call of a scalar function, which is printed."""
        return self.table_of(program.body, self.value(program, scope, is_query=is_query))

    def value(self, program: syntax.Program, scope: Scope, *, is_query: bool = False) -> Relation | Graph:
        """Return the result of a program: a table or a graph."""
        for statement in program.lets:
            scope = self._statement(statement, scope)
        body = program.body
        if is_query and isinstance(body, syntax.Call) and body.name in FUNCTIONS and body.name not in scope:
            body = syntax.Print(body.at, (syntax.Named(body.at, None, body),))
        return self._value(body, scope)

    def _statement(self, node: syntax.Let | syntax.QueryParameters | syntax.DeclaredPattern, scope: Scope) -> Scope:
        if isinstance(node, syntax.QueryParameters):
            for each in node.parameters:
                if each.default is None:
                    raise self._session.error(each.at, f"the parameter {each.name!r} has no value", "add = and a value")
                scope = scope.having(each.name, literal(each.default.kind, each.default.value))
            return scope
        if node.name in scope or node.name in self._patterns:
            raise self._session.error(node.at, f"{node.name!r} is defined twice", "choose another name")
        if isinstance(node, syntax.DeclaredPattern):
            self._patterns[node.name] = node, scope
            return scope
        return bind_let(self._session, node, scope, self.relation)

    def table_of(self, node: syntax.Node, value: Relation | Graph) -> Relation:
        """Return a value that must be a table."""
        if isinstance(value, Graph):
            hint = "write graph-match, graph-shortest-paths or graph-to-table after it"
            raise self._session.error(node.at, "a graph is not a table", hint)
        return value

    def relation(self, node: syntax.Expression, scope: Scope) -> Relation:
        """Return the relation of a tabular expression."""
        return self.table_of(node, self._value(node, scope))

    def _check_plugins(self, operators: tuple[syntax.Node, ...]) -> None:
        """Refuse unknown plugins before the source is opened."""
        for each in operators:
            if isinstance(each, syntax.Evaluate):
                plugins.plugin_of(self, each, _PLUGINS)

    def _value(  # noqa: PLR0912 - one case per form
        self, node: syntax.Expression, scope: Scope
    ) -> Relation | Graph:
        match node:
            case syntax.Pipeline(source=source, operators=operators):
                self._check_plugins(operators)
                return self.steps(self._value(source, scope), operators, scope, source)
            case syntax.Print(items=items):
                return printed(self._session, items, self.scalars(scope, ()))
            case syntax.Range():
                return ranged(self._session, node, self.scalars(scope, ()))
            case syntax.DataTable():
                return datatable(self._session, node, self.scalars(scope, ()))
            case syntax.Union():
                return joins.union(self._session, node, None, partial(self._leg, scope=scope), scope)
            case syntax.Search():
                return texts.search(self, node, None, scope)
            case syntax.Find():
                return texts.find(self, node, scope)
            case syntax.Column(name=name):
                return self._named(node, name, scope)
            case syntax.Member(base=syntax.Call(name="database"), name=name):
                return self._table(node, name, node)
            case syntax.Member(base=syntax.Call(name=name) as called, name=path) if name in self._patterns:
                return self._pattern(called, path, scope)
            case syntax.Member(base=syntax.Method() as method) | (syntax.Method() as method):
                raise self._session.error(method.at, "other clusters are not supported", "give their tables by name")
            case syntax.Call(name=name) if name in self._patterns:
                return self._pattern(node, None, scope)
            case syntax.Call():
                return self._called(node, scope)
            case _:
                hint = "a query is a table and operators after it, or print"
                raise self._session.error(node.at, "a table is expected here, not a value", hint)

    def steps(
        self,
        value: Relation | Graph,
        operators: tuple[syntax.Operator, ...],
        scope: Scope,
        source: syntax.Expression | None = None,
    ) -> Relation | Graph:
        """Return a value after operators; ``source`` is what it was bound from, for ``as``."""
        for index, operator in enumerate(operators):
            match operator:
                case syntax.Render():
                    if index < len(operators) - 1:
                        raise self._session.error(operators[index + 1].at, "render is the end of a query")
                    self.render = operator
                case syntax.As(options=options, name=name):
                    table = self.table_of(operator, value)
                    if source is None or ("hint.materialized", "true") in options:
                        value = self.stored(table)
                        scope = scope.having(name, value)
                    else:
                        again = syntax.Pipeline(source.at, source, operators[:index]) if index else source
                        program = syntax.Program(source.at, (), again)
                        scope = scope.having(name, TableFunction((), program, scope, is_function=False))
                case _ if isinstance(value, Graph):
                    value = graphs.operate(self, value, operator, scope)
                case syntax.MakeGraph():
                    value = graphs.made(self, value, operator, scope)
                case syntax.Invoke(call=call):
                    value = self._invoked(call, value, scope)
                case _:
                    value = self._operator(value, operator, scope)
        return value

    def stored(self, relation: Relation) -> Relation:
        """Return a relation whose rows are computed once, however often the query uses them."""
        return self._stored_as(relation, self._session.evaluator.table(relation))

    def _stored_as(self, relation: Relation, table: str) -> Relation:
        shown = tuple(OutputColumn(each.name, each.kind, self._session.identity()) for each in relation.columns)
        pairs = zip(relation.columns, shown, strict=True)
        chosen = ", ".join(f"{old.identity} AS {new.identity}" for old, new in pairs)
        return Relation(Rows(f"SELECT {chosen} FROM {table}"), shown)

    def _invoked(self, call: syntax.Call, relation: Relation, scope: Scope) -> Relation:
        function = scope.get(call.name)
        if not isinstance(function, TableFunction) or not function.parameters:
            raise self._session.error(call.at, f"invoke needs a function of a table, and {call.name!r} is not one")
        name = f"${call.name}"
        whole = syntax.Call(call.at, call.name, (syntax.Column(call.at, name), *call.arguments))
        return self.relation(whole, scope.having(name, relation))

    def _pattern(self, node: syntax.Call, path: str | None, scope: Scope) -> Relation:
        declared, outer = self._patterns[node.name]
        scalars = self.scalars(scope, ())
        values = [scalars.constant(each, "a value of a pattern").value for each in node.arguments]
        for rule in declared.rules:
            if [each.value for each in rule.values] == values and rule.path == path:
                return self.program(rule.program, outer)
        raise self._session.error(node.at, f"the pattern {node.name!r} has no rule for these values")

    def _leg(self, node: syntax.Expression, scope: Scope) -> Relation:
        return self.relation(node, scope)

    def scalars(self, scope: Scope, columns: Iterable[OutputColumn], windows: Windows | None = None) -> Scalars:
        """Return what binds expressions over columns; ``windows`` is where functions of neighbouring rows go."""
        special = windows.special if windows is not None else None
        return Scalars(self._session, scope, tuple(columns), self.relation, special=special)

    def _windows(self, plan: Plan) -> Windows:
        return Windows(self._session, plan, tuple(self.within.keys) if self.within is not None else ())

    def _named(self, node: syntax.Node, name: str, scope: Scope) -> Relation | Graph:
        binding = scope.get(name)
        if isinstance(binding, Relation):
            return binding
        if isinstance(binding, TableFunction) and not (binding.is_function and binding.parameters):
            return self.value(binding.program, binding.scope)
        if isinstance(binding, TableFunction):
            raise self._session.error(node.at, f"{name!r} is a function", f"call it: {name}(…)")
        if isinstance(binding, Typed):
            raise self._session.error(node.at, f"{name!r} is a value, and a table is expected")
        return self._table(node, name, node)

    def _table(self, node: syntax.Node, name: str, reference: syntax.Node) -> Relation:
        found = self._session.tables.columns(name)
        if found is None:
            names = self._session.tables.names()
            hint = f"known: {', '.join(names)}" if names else "give it with tables={…} or --table NAME=URI"
            raise self._session.error(node.at, f"there is no table {name!r}", hint)
        shown = tuple(OutputColumn(each, kind, self._session.identity()) for each, kind in found)
        view = f"v{self._session.identity()}"
        relation = Relation(Scan(name, view, {each.identity: each.name for each in shown}, reference.at), shown)
        window = self._session.window
        if window is not None and (window[0], "datetime") in found:
            return self._operator(relation, window[1], Scope())
        return relation

    def _called(self, node: syntax.Call, scope: Scope) -> Relation | Graph:
        if node.name in {"external_table", "table"}:
            if len(node.arguments) != 1:
                raise self._session.error(node.at, f"{node.name}() takes the name of a table")
            name = self.scalars(scope, ()).constant(node.arguments[0], "the name of a table", "string").value
            return self._named(node, name, scope) if name in scope else self._table(node.arguments[0], name, node)
        if node.name == "materialize" and len(node.arguments) == 1:
            return self._materialized(node, scope)
        function = scope.get(node.name)
        if not isinstance(function, TableFunction):
            if node.name in REFUSED:
                raise self._session.error(node.at, f"{node.name}() is not supported", REFUSED[node.name])
            hint = "write external_table('name'), or a name"
            raise self._session.error(node.at, f"{node.name}() does not give a table", hint)
        scalars = self.scalars(scope, ())
        inner = bound_parameters(self._session, node, function, scalars.bind, self.relation, scope)
        return self.value(function.program, inner)

    def _materialized(self, node: syntax.Call, scope: Scope) -> Relation:
        """Return the rows of ``materialize``, which are the same for each use of its ``let`` name."""
        # The node and its scope are kept in the cache, because an id is unique only while its object lives.
        key = id(node), id(scope)
        if key not in self._made:
            relation = self.relation(node.arguments[0], scope)
            table = None if is_repeatable(relation.plan) else self._session.evaluator.table(relation)
            self._made[key] = relation, table, node, scope
        relation, table, *_ = self._made[key]
        if table is None:
            # Only a performance hint: a repeatable relation is better read again with the conditions that follow it.
            return self.relation(node.arguments[0], scope)
        return self._stored_as(relation, table)

    def _operator(  # noqa: C901, PLR0912 - one case per operator
        self, relation: Relation, operator: syntax.Operator, scope: Scope
    ) -> Relation:
        if self.within is not None and type(operator) in arrays.OF_ONE_PART:
            word = arrays.OF_ONE_PART[type(operator)]
            raise self._session.error(operator.at, f"{word} is not supported inside mv-apply", "write it behind")
        match operator:
            case syntax.Where():
                return self._where(relation, operator, scope)
            case syntax.Project(items=items):
                return self._project(relation, items, scope)
            case syntax.Extend(items=items):
                return self.extend(relation, items, scope)
            case syntax.ProjectAway() | syntax.ProjectKeep() | syntax.ProjectRename() | syntax.ProjectReorder():
                return joins.choose(self._session, relation, operator)
            case syntax.Summarize():
                return self._summarize(relation, operator, scope)
            case syntax.Distinct():
                return self._distinct(relation, operator, scope)
            case syntax.Sort(orderings=orderings):
                return Relation(self._order(relation, orderings, scope), relation.columns)
            case syntax.Top(count=count, ordering=ordering):
                ordered = self._order(relation, (ordering,), scope)
                return Relation(self.limited(ordered, self.count(count, scope)), relation.columns)
            case syntax.Take(count=count):
                return Relation(self.limited(relation.plan, self.count(count, scope)), relation.columns)
            case syntax.Sample(count=count):
                limited = Limit(relation.plan, self.count(count, scope), at_random=True)
                return Relation(limited, relation.columns)
            case syntax.Count():
                return self._count(relation, operator, scope)
            case syntax.GetSchema():
                return schema_rows(self._session, relation)
            case syntax.Union():
                return joins.union(self._session, operator, relation, partial(self._leg, scope=scope), scope)
            case syntax.Join():
                right = self.relation(operator.right, scope)
                return joins.join(self._session, operator, relation, right)
            case syntax.Serialize(items=items):
                fixed = (
                    relation if is_serialized(relation.plan) else Relation(Order(relation.plan, ()), relation.columns)
                )
                return self.extend(fixed, items, scope) if items else fixed
            case syntax.Consume():
                return Relation(Limit(relation.plan, 0), relation.columns)
            case syntax.AssertSchema():
                return self._asserted(relation, operator)
            case syntax.Evaluate():
                return plugins.evaluated(self, relation, operator, scope, _PLUGINS)
            case syntax.Search():
                return texts.search(self, operator, relation, scope)
            case syntax.Parse() | syntax.ParseKv() | syntax.Reduce():
                return texts.operate(self, relation, operator, scope)
            case syntax.ScanRows():
                return scanned(self, relation, operator, scope)
            case syntax.Facet() | syntax.Fork():
                raise self._session.error(operator.at, "fork and facet are the end of a query")
            case _:
                return arrays.operate(self, relation, operator, scope)

    def _asserted(self, relation: Relation, operator: syntax.AssertSchema) -> Relation:
        found = tuple((each.name, each.kind) for each in relation.columns)
        if found != operator.columns:
            shown = ", ".join(f"{name}:{kind}" for name, kind in found)
            raise self._session.error(operator.at, "the table has other columns", f"it has {shown}")
        return relation

    def limited(self, plan: Plan, count: int) -> Limit:
        """Return at most so many rows, of each group if there are groups."""
        if self.within is None:
            return Limit(plan, count)
        return Limit(plan, count, by=tuple(self.within.keys), keys=order_of(plan))

    def _count(self, relation: Relation, operator: syntax.Count, scope: Scope) -> Relation:
        call = syntax.Call(operator.at, "count", ())
        return self.grouped(relation, (), (syntax.Named(operator.at, operator.name, call),), scope)

    def _where(self, relation: Relation, operator: syntax.Where, scope: Scope) -> Relation:
        windows = self._windows(relation.plan)
        condition = self.scalars(scope, relation.columns, windows).condition(
            texts.any_column(operator.condition, relation)
        )
        spans: tuple[tuple[int, int], ...] = ((operator.at, operator.end),)
        if isinstance(operator.condition, syntax.Logical) and operator.condition.op == "and":
            spans = operator.condition.spans
        shown = tuple(self._session.query.text[start:end].strip() for start, end in spans)
        return Relation(Filter(windows.plan, condition, shown), relation.columns)

    def count(self, node: syntax.Expression, scope: Scope) -> int:
        """Return a number of rows, which must be constant."""
        value: int = self.scalars(scope, ()).constant(node, "a number of rows", "long", "int").value
        if value < 0:
            raise self._session.error(node.at, f"{value} is not a number of rows", "write a number from 0")
        return value

    def _order(self, relation: Relation, orderings: tuple[syntax.Ordering, ...], scope: Scope) -> Order:
        scalars = self.scalars(scope, relation.columns)
        keys = []
        for each in orderings:
            expression = scalars.bind(each.expression)
            if expression.kind == "dynamic":
                hint = "convert it with tostring() or todouble()"
                raise self._session.error(each.at, "dynamic values have no order", hint)
            keys.append(OrderKey(expression, each.descending, each.nulls_first))
        first = [OrderKey(column(each, "long", each), False, True) for each in self.within.keys] if self.within else []  # noqa: FBT003
        return Order(relation.plan, (*first, *keys))

    def _project(self, relation: Relation, items: tuple[syntax.Named, ...], scope: Scope) -> Relation:
        windows = self._windows(relation.plan)
        attached, made = self._computed(items, self.scalars(scope, relation.columns, windows), relation)
        return Relation(_attached(windows.plan, attached), joins.without_repeats(self._session, made))

    def projected(self, plan: Plan, items: tuple[syntax.Named, ...], scalars: Scalars) -> Relation:
        """Return computed items alone."""
        attached, made = self._computed(items, scalars, Relation(plan, ()))
        return Relation(_attached(plan, attached), joins.without_repeats(self._session, made))

    def extend(self, relation: Relation, items: tuple[syntax.Named, ...], scope: Scope) -> Relation:
        """Return the relation with computed columns, which replace those of the same name."""
        windows = self._windows(relation.plan)
        scalars = self.scalars(scope, relation.columns, windows)
        attached, made = self._computed(items, scalars, relation, frozenset(each.identity for each in relation.columns))
        plan = _attached(windows.plan, attached)
        shown = list(relation.columns)
        for new, _, written in made:
            at = next((index for index, each in enumerate(shown) if each.name == new.name), None)
            if at is None:
                shown.append(new)
            elif written:
                shown[at] = new
            else:
                name = joins.unused(new.name, {each.name for each in shown})
                shown.append(OutputColumn(name, new.kind, new.identity))
        return Relation(plan, tuple(shown))

    def _computed(
        self, items: tuple[syntax.Named, ...], scalars: Scalars, relation: Relation, shown: frozenset[str] = frozenset()
    ) -> tuple[dict[str, Typed], list[Made]]:
        """Return the computed items; ``*`` is all columns.

        A plain column keeps its identity, unless that is ``shown`` already: two columns of a table never share one.
        """
        attached: dict[str, Typed] = {}
        taken = {*shown}
        made: list[Made] = []
        unnamed = 0
        for item in items:
            if isinstance(item.expression, syntax.Star):
                made += [Made(each, item, written=False) for each in relation.columns]
                taken |= {each.identity for each in relation.columns}
                continue
            results = scalars.columns(item.expression)
            for given, bound in zip(item_names(self._session, item, len(results)), results, strict=True):
                name = given or bound.name
                if name is None:
                    unnamed += 1
                    name = f"Column{unnamed}"
                identity = str(bound.value)
                itself = identity in shown and name == bound.name
                if bound.op != "column" or (identity in taken and not itself):
                    identity = self._session.identity()
                    attached[identity] = bound
                taken.add(identity)
                made.append(Made(OutputColumn(name, bound.kind, identity), item, written=given is not None))
        return attached, made

    def _distinct(self, relation: Relation, operator: syntax.Distinct, scope: Scope) -> Relation:
        items = operator.items
        if not items:
            mixed = next((each.name for each in relation.columns if each.kind == "dynamic"), None)
            if mixed is not None:
                hint = "name the other columns, or convert it with tostring()"
                raise self._session.error(operator.at, f"the column {mixed!r} is dynamic, which has no equality", hint)
            keys = {self._session.identity(): column(each.identity, each.kind, each.name) for each in relation.columns}
            shown = [OutputColumn(each.name, each.kind, key) for key, each in zip(keys, relation.columns, strict=True)]
            carried: dict[str, tuple[str, frozenset[str]]] = {}
            if self.within is not None:
                self.within.regroup(self._session, keys, carried)
            return Relation(Aggregate(relation.plan, keys, carried), tuple(shown))
        return self.grouped(relation, items, (), scope)

    def _summarize(self, relation: Relation, operator: syntax.Summarize, scope: Scope) -> Relation:
        return self.grouped(relation, operator.groups or (), operator.items, scope)

    def grouped(
        self, relation: Relation, groups: tuple[syntax.Named, ...], items: tuple[syntax.Named, ...], scope: Scope
    ) -> Relation:
        """Return aggregates by group. The group of ``mv-apply`` or ``partition`` is a key as well."""
        scalars = self.scalars(scope, relation.columns)
        keys: dict[str, Typed] = {}
        made: list[Made] = []
        unnamed = 0
        for group in groups:
            bound = scalars.bind(group.expression)
            if bound.kind == "dynamic":
                raise self._session.error(group.at, "rows cannot be grouped by a dynamic value", "use tostring()")
            name = joins.one_name(self._session, group) or bound.name
            if name is None:
                unnamed += 1
                name = f"Column{unnamed}"
            identity = self._session.identity()
            keys[identity] = bound
            made.append(Made(OutputColumn(name, bound.kind, identity), group, written=group.name is not None))
        used = {str(each.value) for each in keys.values() if each.op == "column"}

        def others() -> list[Typed]:
            rest = (each for each in relation.columns if each.identity not in used)
            return [column(each.identity, each.kind, each.name) for each in rest]

        aggregates = Aggregates(self._session, scalars, others, order_of(relation.plan))
        after = Scalars(self._session, scope, relation.columns, self.relation, aggregates.one)
        attached: dict[str, Typed] = {}
        for item in items:
            if isinstance(item.expression, syntax.Call) and item.expression.name in SEVERAL:
                results = aggregates.columns(item.expression)
            else:
                results = [after.bind(item.expression)]
            names = item_names(self._session, item, len(results))
            for given, result in zip(names, results, strict=True):
                self._check_aggregated(item, result, aggregates)
                name = given or result.name
                if name is None:
                    unnamed += 1
                    name = f"Column{unnamed}"
                identity = str(result.value)
                if result.op != "column":
                    identity = self._session.identity()
                    attached[identity] = result
                made.append(Made(OutputColumn(name, result.kind, identity), item, written=given is not None))
        if self.within is not None:
            self.within.regroup(self._session, keys, aggregates.collected)
        plan = _attached(Aggregate(relation.plan, keys, aggregates.collected), attached)
        return Relation(plan, joins.without_repeats(self._session, made, first_come=True))

    def _check_aggregated(self, item: syntax.Named, result: Typed, aggregates: Aggregates) -> None:
        if result.refs - aggregates.collected.keys() or not result.refs:
            hint = "write an aggregate such as count(), sum() or take_any(), or put the column after by"
            raise self._session.error(item.expression.at, "summarize computes aggregates, and this is not one", hint)
