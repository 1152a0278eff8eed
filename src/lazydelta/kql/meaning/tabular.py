"""Tables and operators: a pipeline becomes a plan whose columns have names and types."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from lazydelta.kql.language import kql_syntax as syntax
from lazydelta.kql.meaning import columns_shown, joining
from lazydelta.kql.meaning.columns_shown import Made
from lazydelta.kql.meaning.query_plan import (
    Aggregate,
    Attach,
    Filter,
    Limit,
    Order,
    OrderKey,
    OutputColumn,
    Plan,
    Relation,
    Scan,
)
from lazydelta.kql.meaning.query_session import Scope, Session, TableFunction
from lazydelta.kql.meaning.row_sources import datatable, printed, ranged, schema_rows
from lazydelta.kql.meaning.scalars import Scalars, bind_let, bound_parameters
from lazydelta.kql.meaning.summaries import SEVERAL, Aggregates
from lazydelta.kql.meaning.typed import Typed, column

__all__ = ["Tabular"]


class Tabular:
    """Binds the tables and operators of one query."""

    def __init__(self, session: Session) -> None:
        self.session = self._session = session
        self.render: syntax.Render | None = None

    def program(self, program: syntax.Program, scope: Scope) -> Relation:
        """Return what a program asks for."""
        for let in program.lets:
            if let.name in scope:
                raise self._session.error(let.at, f"{let.name!r} is defined twice", "choose another name")
            scope = bind_let(self._session, let, scope, self.relation)
        return self.relation(program.body, scope)

    def relation(self, node: syntax.Expression, scope: Scope) -> Relation:
        """Return what stands for a table."""
        match node:
            case syntax.Pipeline(source=source, operators=operators):
                relation = self.relation(source, scope)
                for index, operator in enumerate(operators):
                    if isinstance(operator, syntax.Render):
                        if index < len(operators) - 1:
                            raise self._session.error(operators[index + 1].at, "render is the end of a query")
                        self.render = operator
                    else:
                        relation = self._operator(relation, operator, scope)
                return relation
            case syntax.Print(items=items):
                return printed(self._session, items, self._scalars(scope, ()))
            case syntax.Range():
                return ranged(self._session, node, self._scalars(scope, ()))
            case syntax.DataTable():
                return datatable(self._session, node, self._scalars(scope, ()))
            case syntax.Union():
                return joining.union(self._session, node, None, partial(self._leg, scope=scope))
            case syntax.Column(name=name):
                return self._named(node, name, scope)
            case syntax.Call():
                return self._called(node, scope)
            case _:
                hint = "a query is a table and operators after it, or print"
                raise self._session.error(node.at, "a table is expected here, not a value", hint)

    def _leg(self, node: syntax.Expression, scope: Scope) -> Relation:
        return self.relation(node, scope)

    def _scalars(self, scope: Scope, columns: Iterable[OutputColumn]) -> Scalars:
        return Scalars(self._session, scope, tuple(columns), self.relation)

    def _named(self, node: syntax.Node, name: str, scope: Scope) -> Relation:
        binding = scope.get(name)
        if isinstance(binding, Relation):
            return binding
        if isinstance(binding, TableFunction) and not (binding.is_function and binding.parameters):
            return self.program(binding.program, binding.scope)
        if isinstance(binding, TableFunction):
            raise self._session.error(node.at, f"{name!r} is a function", f"call it: {name}(…)")
        if isinstance(binding, Typed):
            raise self._session.error(node.at, f"{name!r} is a value, and a table is expected")
        return self._table(node, name, node)

    def _table(self, node: syntax.Node, name: str, reference: syntax.Node) -> Relation:
        found = self._session.tables.columns(name)
        if found is None:
            names = self._session.tables.names()
            hint = f"known are {', '.join(names)}" if names else "give it with tables={…} or --table NAME=URI"
            raise self._session.error(node.at, f"there is no table {name!r}", hint)
        shown = tuple(OutputColumn(each, kind, self._session.identity()) for each, kind in found)
        view = f"v{self._session.identity()}"
        return Relation(Scan(name, view, {each.identity: each.name for each in shown}, reference.at), shown)

    def _called(self, node: syntax.Call, scope: Scope) -> Relation:
        if node.name in {"external_table", "table"}:
            if len(node.arguments) != 1:
                raise self._session.error(node.at, f"{node.name}() takes the name of a table")
            name = self._scalars(scope, ()).constant(node.arguments[0], "the name of a table", "string").value
            return self._table(node.arguments[0], name, node)
        if node.name == "materialize" and len(node.arguments) == 1:
            # A promise about speed, not about rows.
            return self.relation(node.arguments[0], scope)
        function = scope.get(node.name)
        if not isinstance(function, TableFunction):
            hint = "write external_table('name'), or a name"
            raise self._session.error(node.at, f"{node.name}() does not give a table", hint)
        scalars = self._scalars(scope, ())
        inner = bound_parameters(self._session, node, function, scalars.bind, self.relation, scope)
        return self.program(function.program, inner)

    def _operator(  # noqa: C901, PLR0912 - one case an operator
        self, relation: Relation, operator: syntax.Operator, scope: Scope
    ) -> Relation:
        match operator:
            case syntax.Where():
                return self._where(relation, operator, scope)
            case syntax.Project(items=items):
                return self._project(relation, items, scope)
            case syntax.Extend(items=items):
                return self._extend(relation, items, scope)
            case syntax.ProjectAway() | syntax.ProjectKeep() | syntax.ProjectRename() | syntax.ProjectReorder():
                return columns_shown.choose(self._session, relation, operator)
            case syntax.Summarize():
                return self._summarize(relation, operator, scope)
            case syntax.Distinct():
                return self._distinct(relation, operator, scope)
            case syntax.Sort(orderings=orderings):
                return Relation(self._order(relation, orderings, scope), relation.columns)
            case syntax.Top(count=count, ordering=ordering):
                ordered = self._order(relation, (ordering,), scope)
                return Relation(Limit(ordered, self._count(count, scope)), relation.columns)
            case syntax.Take(count=count):
                return Relation(Limit(relation.plan, self._count(count, scope)), relation.columns)
            case syntax.Sample(count=count):
                limited = Limit(relation.plan, self._count(count, scope), at_random=True)
                return Relation(limited, relation.columns)
            case syntax.Count():
                identity = self._session.identity()
                plan = Aggregate(relation.plan, {}, {identity: ("count(*)", frozenset())})
                return Relation(plan, (OutputColumn("Count", "long", identity),))
            case syntax.GetSchema():
                return schema_rows(self._session, relation)
            case syntax.Union():
                return joining.union(self._session, operator, relation, partial(self._leg, scope=scope))
            case syntax.Join():
                right = self.relation(operator.right, scope)
                return joining.join(self._session, operator, relation, right)
            case syntax.Render():
                return relation

    def _where(self, relation: Relation, operator: syntax.Where, scope: Scope) -> Relation:
        condition = self._scalars(scope, relation.columns).condition(operator.condition)
        spans: tuple[tuple[int, int], ...] = ((operator.at, operator.end),)
        if isinstance(operator.condition, syntax.Logical) and operator.condition.op == "and":
            spans = operator.condition.spans
        texts = tuple(self._session.query.text[start:end].strip() for start, end in spans)
        return Relation(Filter(relation.plan, condition, texts), relation.columns)

    def _count(self, node: syntax.Expression, scope: Scope) -> int:
        value: int = self._scalars(scope, ()).constant(node, "a number of rows", "long", "int").value
        if value < 0:
            raise self._session.error(node.at, f"{value} is no number of rows", "write a number from 0")
        return value

    def _order(self, relation: Relation, orderings: tuple[syntax.Ordering, ...], scope: Scope) -> Order:
        scalars = self._scalars(scope, relation.columns)
        keys = []
        for each in orderings:
            expression = scalars.bind(each.expression)
            if expression.kind == "dynamic":
                hint = "convert it with tostring() or todouble()"
                raise self._session.error(each.at, "dynamic values have no order", hint)
            keys.append(OrderKey(expression, each.descending, each.nulls_first))
        return Order(relation.plan, tuple(keys))

    def _project(self, relation: Relation, items: tuple[syntax.Named, ...], scope: Scope) -> Relation:
        plan, made = self._computed(relation.plan, items, self._scalars(scope, relation.columns))
        return Relation(plan, columns_shown.without_repeats(self._session, made))

    def _extend(self, relation: Relation, items: tuple[syntax.Named, ...], scope: Scope) -> Relation:
        plan, made = self._computed(relation.plan, items, self._scalars(scope, relation.columns))
        shown = list(relation.columns)
        for new, _, written in made:
            at = next((index for index, each in enumerate(shown) if each.name == new.name), None)
            if at is None:
                shown.append(new)
            elif written:
                shown[at] = new
            else:
                name = columns_shown.unused(new.name, {each.name for each in shown})
                shown.append(OutputColumn(name, new.kind, new.identity))
        return Relation(plan, tuple(shown))

    def _computed(self, plan: Plan, items: tuple[syntax.Named, ...], scalars: Scalars) -> tuple[Plan, list[Made]]:
        """Return the plan with what the items compute; a plain column keeps its identity."""
        attached: dict[str, Typed] = {}
        made: list[Made] = []
        unnamed = 0
        for item in items:
            bound = scalars.bind(item.expression)
            name = columns_shown.one_name(self._session, item) or bound.name
            if name is None:
                unnamed += 1
                name = f"Column{unnamed}"
            if bound.op == "column":
                identity = str(bound.value)
            else:
                identity = self._session.identity()
                attached[identity] = bound
            made.append(Made(OutputColumn(name, bound.kind, identity), item, written=item.name is not None))
        return (Attach(plan, attached) if attached else plan), made

    def _distinct(self, relation: Relation, operator: syntax.Distinct, scope: Scope) -> Relation:
        items = operator.items
        if not items:
            mixed = next((each.name for each in relation.columns if each.kind == "dynamic"), None)
            if mixed is not None:
                hint = "name the other columns, or convert it with tostring()"
                raise self._session.error(operator.at, f"the column {mixed!r} is dynamic, which has no equality", hint)
            keys = {self._session.identity(): column(each.identity, each.kind, each.name) for each in relation.columns}
            shown = [OutputColumn(each.name, each.kind, key) for key, each in zip(keys, relation.columns, strict=True)]
            return Relation(Aggregate(relation.plan, keys, {}), tuple(shown))
        return self._grouped(relation, items, (), scope)

    def _summarize(self, relation: Relation, operator: syntax.Summarize, scope: Scope) -> Relation:
        return self._grouped(relation, operator.groups or (), operator.items, scope)

    def _grouped(
        self, relation: Relation, groups: tuple[syntax.Named, ...], items: tuple[syntax.Named, ...], scope: Scope
    ) -> Relation:
        scalars = self._scalars(scope, relation.columns)
        keys: dict[str, Typed] = {}
        made: list[Made] = []
        unnamed = 0
        for group in groups:
            bound = scalars.bind(group.expression)
            if bound.kind == "dynamic":
                raise self._session.error(group.at, "rows cannot be grouped by a dynamic value", "use tostring()")
            name = columns_shown.one_name(self._session, group) or bound.name
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

        aggregates = Aggregates(self._session, scalars, others)
        after = Scalars(self._session, scope, relation.columns, self.relation, aggregates.one)
        attached: dict[str, Typed] = {}
        for item in items:
            if isinstance(item.expression, syntax.Call) and item.expression.name in SEVERAL:
                results = aggregates.columns(item.expression)
            else:
                results = [after.bind(item.expression)]
            names = self._names(item, len(results))
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
        plan: Plan = Aggregate(relation.plan, keys, aggregates.collected)
        if attached:
            plan = Attach(plan, attached)
        return Relation(plan, columns_shown.without_repeats(self._session, made, first_come=True))

    def _names(self, item: syntax.Named, count: int) -> list[str | None]:
        """Return the names that an item gives to the columns that it makes, None for those that keep their own."""
        if count == 1:
            return [columns_shown.one_name(self._session, item)]
        given = [item.name, *item.more]
        if len(given) > count:
            message = f"{len(given)} names are too many for {count} columns"
            raise self._session.error(item.at, message, "leave some out")
        return given + [None] * (count - len(given))

    def _check_aggregated(self, item: syntax.Named, result: Typed, aggregates: Aggregates) -> None:
        if result.refs - aggregates.collected.keys() or not result.refs:
            hint = "write an aggregate such as count(), sum() or take_any(), or put the column after by"
            raise self._session.error(item.expression.at, "summarize computes aggregates, and this is none", hint)
