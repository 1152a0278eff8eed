"""Functions of neighbouring rows: ``row_number``, ``prev`` and the like, for rows whose order is fixed.

Without a restart each is a window over all rows before, which DuckDB computes as rows stream by. The rows of a
``partition`` or ``mv-apply`` are numbered for each part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazydelta.kql.binding.plan import (
    Attach,
    Order,
    OrderKey,
    OutputColumn,
    Plan,
    Relation,
    Scope,
    Session,
    Staged,
    Window,
    is_serialized,
    order_of,
    order_sql,
)
from lazydelta.kql.binding.scalars import Scalars, Special
from lazydelta.kql.binding.types import NUMBERS, Typed, as_kind, call, column, common_kind, converted, literal
from lazydelta.kql.computing.sequences import SequenceStep, sequences
from lazydelta.kql.computing.steps import sessions
from lazydelta.kql.language import syntax

if TYPE_CHECKING:
    from lazydelta.kql.binding.tabular import Tabular

__all__ = [
    "WINDOW_FUNCTIONS",
    "Windows",
    "scanned",
]


_COUNTS = {
    "next": (1, 3),
    "prev": (1, 3),
    "row_cumsum": (1, 2),
    "row_number": (0, 2),
    "row_rank_dense": (1, 2),
    "row_rank_min": (1, 2),
    "row_window_session": (3, 4),
}
WINDOW_FUNCTIONS = frozenset(_COUNTS)
"""Functions of neighbouring rows."""


class Windows:
    """Adds the columns of such functions to ``plan``, one step for each call, since they may be nested."""

    def __init__(self, session: Session, plan: Plan, partition: tuple[str, ...] = ()) -> None:
        self._session = session
        self._partition = partition
        self.plan = plan

    @property
    def special(self) -> dict[str, Special]:
        """The functions, by name."""
        return dict.fromkeys(WINDOW_FUNCTIONS, self._call)

    def _call(self, scalars: Scalars, node: syntax.Call) -> Typed:
        least, most = _COUNTS[node.name]
        if not least <= len(node.arguments) <= most:
            raise self._session.error(node.at, f"{node.name}() takes {least} to {most} arguments")
        if not is_serialized(self.plan):
            message = f"{node.name}() needs rows in a fixed order"
            raise self._session.error(node.at, message, "write sort by … or serialize before it")
        values = [scalars.bind(each) for each in node.arguments]
        match node.name:
            case "prev" | "next":
                return self._neighbour(node, values)
            case "row_number":
                return self._row_number(node, values)
            case "row_cumsum":
                return self._sum(node, values)
            case "row_window_session":
                return self._session_start(node, values)
            case _:
                return self._rank(node, values)

    def _add(self, kind: str, sql: str, used: list[Typed], name: str | None = None) -> Typed:
        identity = self._session.identity()
        refs = [column(each, "long", each) for each in self._partition]
        keys = [each.expression for each in order_of(self.plan)] if self._partition else []
        self.plan = Window(self.plan, {identity: call(kind, "window", sql, [*used, *refs, *keys])})
        made = column(identity, kind, identity)
        return Typed(made.kind, made.sql, made.op, value=made.value, refs=made.refs, name=name)

    def _over(self, frame: str = "") -> str:
        parts = []
        if self._partition:
            parts.append(f"PARTITION BY {', '.join(self._partition)}")
            parts += [f"ORDER BY {order_sql(order_of(self.plan))}"] if order_of(self.plan) else []
        return f"OVER ({' '.join([*parts, frame]).strip()})"

    def _before(self) -> str:
        return self._over("ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW")

    def _number(self) -> Typed:
        return self._add("long", f"row_number() {self._over()}", [])

    def _restart(self, node: syntax.Call, value: Typed | None) -> Typed:
        if value is None:
            return literal("bool", value=False)
        if value.kind != "bool":
            raise self._session.error(node.arguments[-1].at, "a restart must be a condition")
        return value

    def _latest(self, number: Typed, condition: str, used: list[Typed]) -> Typed:
        """Return the number of the last row up to here for which a condition is true."""
        sql = f"max(CASE WHEN {condition} OR {number.sql} = 1 THEN {number.sql} END) {self._before()}"
        return self._add("long", sql, [number, *used])

    def _neighbour(self, node: syntax.Call, values: list[Typed]) -> Typed:
        value, *rest = values
        offset = rest[0].value if rest else 1
        if rest and not (rest[0].is_literal and isinstance(offset, int) and offset >= 0):
            raise self._session.error(node.arguments[1].at, "an offset must be a constant from 0")
        default = converted(rest[1], value.kind) if len(rest) > 1 else literal(value.kind, None).sql
        function = "lag" if node.name == "prev" else "lead"
        name = f"{node.name}_{value.name}" if value.name else None
        used = [value, *rest[1:]]
        return self._add(value.kind, f"{function}({value.sql}, {offset}, {default}) {self._over()}", used, name)

    def _row_number(self, node: syntax.Call, values: list[Typed]) -> Typed:
        start = as_kind(values[0], "long") if values else "1"
        number = self._number()
        if len(values) < 2:  # noqa: PLR2004 - without a restart
            sql = f"({number.sql} + {start} - 1)"
            return call("long", node.name, sql, [number, *values])
        restart = self._restart(node, values[1])
        first = self._latest(number, f"coalesce({restart.sql}, FALSE)", [restart])
        return call("long", node.name, f"({number.sql} - {first.sql} + {start})", [number, first, *values])

    def _sum(self, node: syntax.Call, values: list[Typed]) -> Typed:
        value = values[0]
        if value.kind not in {*NUMBERS, "timespan"}:
            raise self._session.error(node.arguments[0].at, f"row_cumsum() of a {value.kind} is not defined")
        kind = "long" if value.kind == "int" else value.kind
        cast = {"long": "BIGINT", "timespan": "BIGINT", "real": "DOUBLE"}.get(kind)
        if len(values) == 1:
            sql = f"sum({value.sql}) {self._before()}"
            return self._add(kind, f"CAST({sql} AS {cast})" if cast else sql, values)
        number = self._number()
        restart = self._restart(node, values[1])
        first = self._latest(number, f"coalesce({restart.sql}, FALSE)", [restart])
        inside = ", ".join([*self._partition, first.sql])
        frame = f"OVER (PARTITION BY {inside} ORDER BY {number.sql} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
        sql = f"sum({value.sql}) {frame}"
        made = self._add(kind, f"CAST({sql} AS {cast})" if cast else sql, [*values, first, number])
        # Partitions come out in any order.
        keys = order_of(self.plan)
        self.plan = Order(self.plan, (*(keys if self._partition else ()), OrderKey(number, False, True)))  # noqa: FBT003
        return made

    def _rank(self, node: syntax.Call, values: list[Typed]) -> Typed:
        number = self._number()
        value = values[0]
        restart = self._restart(node, values[1] if len(values) > 1 else None)
        before = self._add(value.kind, f"lag({value.sql}) {self._over()}", [value])
        changed = f"({value.sql} IS DISTINCT FROM {before.sql} OR {number.sql} = 1 OR coalesce({restart.sql}, FALSE))"
        used = [value, before, restart, number]
        first = self._latest(number, f"coalesce({restart.sql}, FALSE)", [restart])
        if node.name == "row_rank_min":
            here = self._latest(number, changed, used)
            return call("long", node.name, f"({here.sql} - {first.sql} + 1)", [here, first])
        changes = self._add("long", f"CAST(count(*) FILTER (WHERE {changed}) {self._before()} AS BIGINT)", used)
        sql = f"max(CASE WHEN {number.sql} = {first.sql} THEN {changes.sql} END) {self._before()}"
        base = self._add("long", sql, [number, first, changes])
        return call("long", node.name, f"({changes.sql} - {base.sql} + 1)", [changes, base])

    def _session_start(self, node: syntax.Call, values: list[Typed]) -> Typed:
        value, longest, gap, *rest = values
        if value.kind not in {"datetime", "timespan", "long", "int"} or self._partition:
            raise self._session.error(node.at, f"row_window_session() of a {value.kind} is not defined here")
        restart = self._restart(node, rest[0] if rest else None)
        ticks = f"epoch_us({value.sql}) * 10" if value.kind == "datetime" else f"CAST({value.sql} AS BIGINT)"
        given = {
            self._session.identity(): call("long", "ticks", ticks, [value]),
            self._session.identity(): longest,
            self._session.identity(): gap,
            self._session.identity(): restart,
        }
        made = self._session.identity()
        view = f"v{self._session.identity()}"
        inputs = dict(zip(given, ("long", "long", "long", "bool"), strict=True))
        self.plan = Staged(Window(self.plan, given), view, inputs, {made: "long"}, sessions, keeps=True)
        start = column(made, "long", made)
        if value.kind == "datetime":
            return call("datetime", node.name, f"make_timestamp({start.sql} // 10)", [start])
        return Typed(value.kind, start.sql, node.name, (start,), refs=start.refs)


# ``scan``: binds its steps; ``computing.sequences`` runs them.


_OUTPUTS = ("all", "last", "none")


class _Columns:
    """The columns that expressions of a scan see: those of the row, the declared ones, and ``step.column`` of each."""

    def __init__(self, tabular: Tabular, relation: Relation, operator: syntax.ScanRows) -> None:
        identity = tabular.session.identity
        # Inside partition and mv-apply, rows keep the columns of their group, which no name reaches.
        self.own = list(relation.columns)
        if tabular.within is not None:
            inside = dict.fromkeys([*tabular.within.keys, *tabular.within.carried.values()])
            seen = {each.identity for each in self.own}
            self.own += [OutputColumn("", tabular.within.kinds[each], each) for each in inside if each not in seen]
        self.declared = [OutputColumn(name, kind, identity()) for name, kind, _ in operator.declared]
        self.states = [
            OutputColumn(f"{step.name}.{each.name}", each.kind, identity())
            for step in operator.steps
            for each in (*self.own, *self.declared)
        ]
        self.every = [*self.own, *self.declared, *self.states]

    def partition(self, tabular: Tabular, operator: syntax.ScanRows) -> tuple[int, ...]:
        """Return the positions of the columns whose values have sequences of their own."""
        names, places = [each.name for each in self.own], [each.identity for each in self.own]
        found = []
        for pattern in operator.partition:
            if pattern.text not in names:
                raise tabular.session.error(pattern.at, f"there is no column {pattern.text!r}")
            found.append(names.index(pattern.text))
        return (*found, *(places.index(each) for each in (tabular.within.keys if tabular.within else ())))


def scanned(tabular: Tabular, relation: Relation, operator: syntax.ScanRows, scope: Scope) -> Relation:
    """Return the rows that match the steps."""
    session = tabular.session
    if not is_serialized(relation.plan):
        raise session.error(operator.at, "scan needs rows in a fixed order", "write sort by … or serialize before it")
    columns = _Columns(tabular, relation, operator)
    names = [each.name for each in columns.own]
    doubled = next((each.name for each in columns.declared if each.name in names), None)
    if doubled is not None:
        raise session.error(operator.at, f"there is already a column {doubled!r}", "declare another name")
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
    partition, apart = columns.partition(tabular, operator), tabular.within is not None
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
        lambda: sequences(tuple(steps), width, tuple(defaults), kinds, partition, is_numbered_apart=apart),
    )
    if tabular.within is not None:
        tabular.within.rename({old.identity: new.identity for old, new in zip(columns.own, shown, strict=False)})
    visible = [*shown[: len(relation.columns)], *shown[width:]]
    return Relation(plan, tuple([*visible, match] if match_name is not None else visible))


def _fitting(tabular: Tabular, node: syntax.Expression, bound: Typed, target: OutputColumn) -> Typed:
    """Return a value in the type of the column that it is assigned to."""
    if bound.kind == target.kind:
        return bound
    if common_kind((bound.kind, target.kind)) is None and target.kind != "dynamic":
        raise tabular.session.error(node.at, f"{target.name!r} is a {target.kind}, and this is a {bound.kind}")
    sql = converted(bound, target.kind)
    return Typed(target.kind, sql, "convert", (bound,), refs=bound.refs)
