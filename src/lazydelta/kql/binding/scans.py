"""``scan``: binds its steps; ``computing.sequences`` runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazydelta.kql.binding.plan import Attach, OutputColumn, Plan, Relation, Scope, Staged, is_serialized
from lazydelta.kql.binding.scalars import Scalars
from lazydelta.kql.binding.types import Typed, common_kind, converted
from lazydelta.kql.computing.sequences import SequenceStep, sequences
from lazydelta.kql.language import syntax

if TYPE_CHECKING:
    from lazydelta.kql.binding.tabular import Tabular

__all__ = ["scanned"]

_OUTPUTS = ("all", "last", "none")


class _Columns:
    """The columns that expressions of a scan see: those of the row, the declared ones, and ``step.column`` of each."""

    def __init__(self, tabular: Tabular, relation: Relation, operator: syntax.ScanRows) -> None:
        identity = tabular.session.identity
        self.own = list(relation.columns)
        self.declared = [OutputColumn(name, kind, identity()) for name, kind, _ in operator.declared]
        self.states = [
            OutputColumn(f"{step.name}.{each.name}", each.kind, identity())
            for step in operator.steps
            for each in (*self.own, *self.declared)
        ]
        self.every = [*self.own, *self.declared, *self.states]


def scanned(tabular: Tabular, relation: Relation, operator: syntax.ScanRows, scope: Scope) -> Relation:
    """Return the rows that match the steps."""
    session = tabular.session
    if not is_serialized(relation.plan):
        raise session.error(operator.at, "scan needs rows in a fixed order", "write sort by … or serialize before it")
    columns = _Columns(tabular, relation, operator)
    names = [each.name for each in columns.own]
    doubled = next((each.name for each in columns.declared if each.name in names), None)
    if doubled is not None:
        raise session.error(operator.at, f"there is a column {doubled!r} already", "declare another name")
    scalars = Scalars(session, scope, columns.every, tabular.relation)
    computed: dict[str, Typed] = {}
    own = {each.identity for each in columns.own}
    inputs = {each.identity: each.kind for each in columns.own}
    width = len(columns.own)

    def part(bound: Typed) -> Any:
        """Return where a value is found: in a column computed before, or by a function of rows and states."""
        if bound.refs <= own:
            identity = session.identity()
            computed[identity] = bound
            inputs[identity] = bound.kind
            return len(inputs) - 1
        return session.evaluator.row_function([bound], [(each.identity, each.kind) for each in columns.every])

    steps = []
    for step in operator.steps:
        if step.output not in _OUTPUTS:
            raise session.error(step.at, f"a step returns all, last or none, not {step.output!r}")
        assigned = []
        for name, node in step.assignments:
            index = next((index for index, each in enumerate(columns.declared) if each.name == name), None)
            if index is None:
                raise session.error(node.at, f"{name!r} is not declared", "write it after declare")
            assigned.append((index, part(_fitting(tabular, node, scalars.bind(node), columns.declared[index]))))
        steps.append(SequenceStep(step.output, part(scalars.condition(step.condition)), tuple(assigned)))
    defaults = []
    for (_, kind, default), each in zip(operator.declared, columns.declared, strict=True):
        value: Any = "" if kind == "string" else None
        if default is not None:
            bound = _fitting(tabular, default, tabular.scalars(scope, ()).bind(default), each)
            (value,) = session.evaluator.row_function([bound], [])([])
        defaults.append(value)
    partition = []
    for pattern in operator.partition:
        found = relation.find(pattern.text)
        if found is None:
            raise session.error(pattern.at, f"there is no column {pattern.text!r}")
        partition.append(columns.own.index(found))
    match_name = dict(operator.options).get("with_match_id")
    shown = [OutputColumn(each.name, each.kind, session.identity()) for each in (*columns.own, *columns.declared)]
    match = OutputColumn(match_name or "", "long", session.identity())
    kinds = tuple(each.kind for each in (*shown, match))
    plan: Plan = Attach(relation.plan, computed) if computed else relation.plan
    plan = Staged(
        plan,
        f"v{session.identity()}",
        inputs,
        {each.identity: each.kind for each in (*shown, match)},
        lambda: sequences(tuple(steps), width, tuple(defaults), kinds, tuple(partition)),
    )
    return Relation(plan, tuple([*shown, match] if match_name is not None else shown))


def _fitting(tabular: Tabular, node: syntax.Expression, bound: Typed, target: OutputColumn) -> Typed:
    """Return a value in the type of the column that it is assigned to."""
    if bound.kind == target.kind:
        return bound
    if common_kind((bound.kind, target.kind)) is None and target.kind != "dynamic":
        raise tabular.session.error(node.at, f"{target.name!r} is a {target.kind}, and this is a {bound.kind}")
    sql = converted(bound, target.kind)
    return Typed(target.kind, sql, "convert", (bound,), refs=bound.refs)
