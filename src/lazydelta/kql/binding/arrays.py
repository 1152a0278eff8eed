"""Operators on arrays and groups: ``mv-expand``, ``mv-apply``, ``make-series``, ``partition``, ``top-nested``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lazydelta.kql.binding import joins, operators
from lazydelta.kql.binding.plan import (
    Aggregate,
    Attach,
    Expand,
    Filter,
    Grid,
    Limit,
    Match,
    Merge,
    Order,
    OrderKey,
    OutputColumn,
    Plan,
    Relation,
    Scope,
    Window,
)
from lazydelta.kql.binding.types import Typed, call, column, converted, literal, to_text
from lazydelta.kql.language import syntax

if TYPE_CHECKING:
    from lazydelta.kql.binding.tabular import Tabular

__all__ = ["OF_ONE_PART", "element", "operate"]

_MOST_PARTITIONS = 64
OF_ONE_PART: dict[type, str] = {
    syntax.Evaluate: "evaluate",
    syntax.GetSchema: "getschema",
    syntax.MakeSeries: "make-series",
    syntax.Reduce: "reduce",
    syntax.Sample: "sample",
    syntax.TopNested: "top-nested",
}
"""Operators that do not keep groups apart: ``partition`` runs them for each value of its key."""
_NUMBERS = {"int", "long", "real", "decimal"}


def operate(tabular: Tabular, relation: Relation, operator: syntax.Operator, scope: Scope) -> Relation:
    """Return the relation after an operator of this module."""
    match operator:
        case syntax.MvExpand(steps=None):
            return _expanded(tabular, relation, operator, scope)[0]
        case syntax.MvExpand():
            return _applied(tabular, relation, operator, scope)
        case syntax.MakeSeries():
            return _series(tabular, relation, operator, scope)
        case syntax.Partition():
            return _partitioned(tabular, relation, operator, scope)
        case syntax.SampleDistinct(count=count, expression=expression):
            named = (syntax.Named(operator.at, None, expression),)
            distinct = tabular.grouped(relation, named, (), scope)
            return Relation(tabular.limited(distinct.plan, tabular.count(count, scope)), distinct.columns)
        case syntax.TopHitters():
            return _hitters(tabular, relation, operator, scope)
        case syntax.TopNested(levels=levels):
            return _nested(tabular, relation, levels, scope)
        case syntax.ProjectByNames(names=names):
            return _by_names(tabular, relation, names, scope)
        case _:
            raise tabular.session.error(operator.at, "this operator is not supported here", None)


# Arrays as rows.


def element(kind: str | None, text: str) -> str:
    """Return SQL that converts an element of an array, which is JSON, to a kind."""
    plain = f"coalesce(json_extract_string({text}, '$'), '')"
    match kind:
        case None | "dynamic":
            return f"CASE WHEN json_type({text}) <> 'NULL' THEN {text} END"
        case "string":
            return plain
        case "long" | "int":
            whole = f"coalesce(kql_long({plain}), TRY_CAST(trunc(TRY_CAST({plain} AS DOUBLE)) AS BIGINT))"
            return f"TRY_CAST({whole} AS {'BIGINT' if kind == 'long' else 'INTEGER'})"
        case "real":
            return f"TRY_CAST(nullif({plain}, '') AS DOUBLE)"
        case "decimal":
            return f"TRY_CAST(nullif({plain}, '') AS DECIMAL(38,18))"
        case "bool":
            return f"kql_bool({plain})"
        case "datetime":
            # Logs have months first as well.
            return f"coalesce(kql_timestamp({plain}), try_strptime({plain}, ['%m/%d/%Y %H:%M:%S', '%m/%d/%Y']))"
        case "timespan":
            return f"kql_span({plain})"
        case _:
            return f"TRY_CAST({plain} AS UUID)"


def _elements(sql: str, *, as_pairs: bool) -> str:
    """Return SQL for the list of elements: those of an array, the properties of a bag, or the value itself."""
    entry = "json_array(e.key, e.value)" if as_pairs else "json_object(e.key, e.value)"
    entries = f"map_entries(CAST({sql} AS MAP(VARCHAR, JSON)))"
    return (
        f"CASE json_type({sql}) WHEN 'ARRAY' THEN json_extract({sql}, '$[*]')"
        f" WHEN 'OBJECT' THEN list_transform({entries}, lambda e: {entry}) ELSE [{sql}] END"
    )


# Arrays of plain numbers that DuckDB decodes at once, as their elements convert one by one: the type, and characters of
# JSON that such an array does not have. They tell texts, fractions, exponents and truth values.
_PLAIN = {"long": ("BIGINT", '".eE'), "real": ("DOUBLE", '"eE')}


def _typed_elements(sql: str, kind: str | None, *, as_pairs: bool, most: int | None) -> str:
    """Return SQL for the list of elements, each converted to a kind."""
    shown = f"list_slice({{}}, 1, {most})" if most is not None else "{}"
    converted = f"list_transform({shown.format(_elements(sql, as_pairs=as_pairs))}, lambda e: {element(kind, 'e')})"
    if kind not in _PLAIN:
        return converted
    target, foreign = _PLAIN[kind]
    decoded = shown.format(f"from_json({sql}, '[\"{target}\"]')")
    text = f"CAST({sql} AS VARCHAR)"
    is_plain = " AND ".join([f"starts_with({text}, '[')", *(f"NOT contains({text}, '{each}')" for each in foreign)])
    return f"CASE WHEN {is_plain} THEN {decoded} ELSE {converted} END"


def _expanded(
    tabular: Tabular, relation: Relation, operator: syntax.MvExpand, scope: Scope
) -> tuple[Relation, list[OutputColumn]]:
    session = tabular.session
    options = {name: value for name, value in operator.options if not name.startswith("hint.")}
    kind = options.get("kind") or options.get("bagexpansion") or "bag"
    if kind not in {"bag", "array"}:
        raise session.error(operator.at, f"arrays are expanded as bag or array, not as {kind!r}")
    scalars = tabular.scalars(scope, relation.columns)
    most = None if operator.limit is None else tabular.count(operator.limit, scope)
    lists: dict[str, Typed] = {}
    shown = list(relation.columns)
    made: list[OutputColumn] = []
    for item in operator.items:
        bound = scalars.bind(item.expression)
        if bound.kind != "dynamic":
            raise session.error(item.at, f"only a dynamic value has elements, and this is a {bound.kind}")
        identity = session.identity()
        found = _typed_elements(bound.sql, item.kind, as_pairs=kind == "array", most=most)
        lists[identity] = replace(call(item.kind or "dynamic", "elements", found, [bound]), value=most)
        name = item.name or bound.name or joins.unused("Column1", (each.name for each in shown))
        new = OutputColumn(name, item.kind or "dynamic", identity)
        made.append(new)
        at = next((index for index, each in enumerate(shown) if each.name == name), None)
        if at is None:
            shown.append(new)
        else:
            shown[at] = new
    index = None
    if "with_itemindex" in options:
        index = session.identity()
        new = OutputColumn(options["with_itemindex"], "long", index)
        made.append(new)
        shown.append(new)
    return Relation(Expand(relation.plan, lists, index), tuple(shown)), made


def _applied(tabular: Tabular, relation: Relation, operator: syntax.MvExpand, scope: Scope) -> Relation:
    from lazydelta.kql.binding.tabular import Within  # noqa: PLC0415 - it imports this module

    session = tabular.session
    number = session.identity()
    numbered = Window(relation.plan, {number: call("long", "window", "row_number() OVER ()")}, are_ids=True)
    rows, _ = _expanded(tabular, Relation(numbered, relation.columns), operator, scope)
    outer = tabular.within
    carried = {each.identity: each.identity for each in relation.columns}
    kinds = {each.identity: each.kind for each in relation.columns} | {number: "long"}
    if outer is not None:
        carried |= {each: each for each in (*outer.keys, *outer.carried.values())}
        kinds |= outer.kinds
    tabular.within = inner = Within([number], carried, kinds)
    try:
        result = tabular.table_of(operator, tabular.steps(rows, operator.steps or (), scope))
    finally:
        tabular.within = outer
    if outer is not None:
        outer.rename(inner.carried)
    # A column of the source stays, unless the steps made another of its name.
    by_name = {each.name: each for each in result.columns}
    shown = [
        by_name.pop(each.name, OutputColumn(each.name, each.kind, inner.carried[each.identity]))
        for each in relation.columns
        if each.name in by_name or each.name not in _plain(operator)
    ]
    return Relation(result.plan, (*shown, *by_name.values()))


def _plain(operator: syntax.MvExpand) -> set[str]:
    """Return the columns that are expanded in place, which exist after ``mv-apply`` only if its steps keep them."""
    items = (each for each in operator.items if each.name is None or isinstance(each.expression, syntax.Column))
    return {
        each.expression.name
        for each in items
        if isinstance(each.expression, syntax.Column) and each.name in {None, each.expression.name}
    }


# Groups of rows.


def _partitioned(tabular: Tabular, relation: Relation, operator: syntax.Partition, scope: Scope) -> Relation:
    from lazydelta.kql.binding.tabular import Within  # noqa: PLC0415 - it imports this module

    session = tabular.session
    scalars = tabular.scalars(scope, relation.columns)
    key = scalars.bind(operator.key)
    # The rows of one partition by name are those of a query of their own.
    if operator.body is not None or any(isinstance(each, (syntax.As, *OF_ONE_PART)) for each in operator.steps):
        return _partition_queries(tabular, relation, operator, key, scope)
    if tabular.within is not None:
        raise session.error(operator.at, "partition is not supported inside partition or mv-apply")
    unfit = next((each for each in operator.steps if isinstance(each, syntax.Union | syntax.Join)), None)
    if unfit is not None:
        raise session.error(unfit.at, "join and union are not supported inside partition", "join after it")
    identity = session.identity()
    plan: Plan = Attach(relation.plan, {identity: key})
    if key.op == "column":
        identity, plan = str(key.value), relation.plan
    tabular.within = Within([identity], {}, {identity: key.kind})
    try:
        return tabular.table_of(operator, tabular.steps(Relation(plan, relation.columns), operator.steps, scope))
    finally:
        tabular.within = None


def _partition_queries(
    tabular: Tabular, relation: Relation, operator: syntax.Partition, key: Typed, scope: Scope
) -> Relation:
    """Run a query, or the steps, for each value of the key. In a query, the name of the key is that value."""
    session = tabular.session
    stored = tabular.stored(relation)
    named = (syntax.Named(operator.at, None, operator.key),)
    values = session.evaluator.values(tabular.grouped(stored, named, (), scope))
    kind, found = values
    if isinstance(found, str) or len(found) > _MOST_PARTITIONS:
        raise session.error(operator.at, f"partition by queries takes at most {_MOST_PARTITIONS} values")
    name = operator.key.name if isinstance(operator.key, syntax.Column) else key.name or ""

    def leg(value: Any) -> Relation:
        constant = literal(kind, value)
        if operator.body is not None:
            return tabular.relation(operator.body, scope.having(name, constant))
        again = tabular.stored(stored)
        bound = tabular.scalars(scope, again.columns).bind(operator.key)
        same = call("bool", "==", f"({bound.sql} IS NOT DISTINCT FROM {constant.sql})", [bound])
        rows = Relation(Filter(again.plan, same, ("partition",)), again.columns)
        return tabular.table_of(operator, tabular.steps(rows, operator.steps, scope))

    return merged(tabular, [leg(value) for value in found] or [leg(None)])


def merged(tabular: Tabular, legs: list[Relation]) -> Relation:
    """Return the rows of relations that have the same columns."""
    shown = tuple(replace(each, identity=tabular.session.identity()) for each in legs[0].columns)
    parts = []
    for leg in legs:
        pairs = zip(shown, leg.columns, strict=True)
        parts.append((leg.plan, {new.identity: column(old.identity, old.kind, old.name) for new, old in pairs}))
    return Relation(Merge(tuple(parts)), shown)


def _hitters(tabular: Tabular, relation: Relation, operator: syntax.TopHitters, scope: Scope) -> Relation:
    key = syntax.Named(operator.at, None, operator.key)
    bound = tabular.scalars(scope, relation.columns).bind(operator.key)
    total = syntax.Call(operator.at, "count", ())
    if operator.by is not None:
        total = syntax.Call(operator.at, "sum", (operator.by,))
        by = tabular.scalars(scope, relation.columns).bind(operator.by)
        name = f"approximate_sum_{by.name or ''}"
    else:
        name = f"approximate_count_{bound.name or ''}"
    grouped = tabular.grouped(relation, (key,), (syntax.Named(operator.at, name, total),), scope)
    last = grouped.columns[-1]
    order = OrderKey(column(last.identity, last.kind, last.name), descending=True, nulls_first=False)
    plan = Order(grouped.plan, (order,))
    return Relation(tabular.limited(plan, tabular.count(operator.count, scope)), grouped.columns)


def _nested(tabular: Tabular, relation: Relation, levels: tuple[syntax.NestedLevel, ...], scope: Scope) -> Relation:
    """Return the first groups of each level, within each kept group of the level above.

    A level ``with others`` has one more row for each kept group above it: the aggregate of the rows that are in none of
    its first groups. In that row, a level below is its own ``others``, or null.
    """
    result: Relation | None = None
    keys: list[syntax.Named] = []
    rest: list[Relation] = []
    for place, level in enumerate(levels):
        keys.append(level.key)
        title = level.by.name or f"aggregated_{_label(tabular, relation, level, scope)}"
        # The rows are read for each level, so each has identities of its own.
        groups = tabular.grouped(tabular.stored(relation), tuple(keys), (_total(level, title),), scope)
        *above, key, total = groups.columns
        plan: Plan = groups.plan
        if result is not None:
            plan = _matching("inner", groups, result, zip(above, result.columns[::2], strict=True))
        order = OrderKey(column(total.identity, total.kind, total.name), level.descending, nulls_first=False)
        if level.count is not None:
            count = tabular.count(level.count, scope)
            by = tuple(each.identity for each in above)
            plan = Limit(plan, count, by=by, keys=(order,)) if by else Limit(Order(plan, (order,)), count)
        before = () if result is None else result.columns
        total = replace(total, name=joins.unused(total.name, (each.name for each in before)))
        kept = Relation(plan, (*before, key, total))
        if any(each.others is not None for each in levels):
            # Kept groups are used twice, and which they are must not differ.
            kept = tabular.stored(kept)
        if level.others is not None:
            rest.append(_others(tabular, relation, levels, place, (result, kept), scope))
        result = kept
    assert result is not None  # noqa: S101 - the grammar has one level at least
    return merged(tabular, [result, *rest]) if rest else result


def _label(tabular: Tabular, relation: Relation, level: syntax.NestedLevel, scope: Scope) -> str:
    bound = tabular.scalars(scope, relation.columns).bind(level.key.expression)
    return level.key.name or bound.name or "Column1"


def _total(level: syntax.NestedLevel, title: str) -> syntax.Named:
    return syntax.Named(level.by.at, title, level.by.expression)


def _matching(kind: str, left: Relation, right: Relation, pairs: Iterable[tuple[OutputColumn, OutputColumn]]) -> Match:
    """Return the rows of a relation that have, or have not, equal values in another."""
    typed = tuple(
        (column(one.identity, one.kind, one.name), column(other.identity, other.kind, other.name))
        for one, other in pairs
    )
    left_kinds, right_kinds = ({each.identity: each.kind for each in side.columns} for side in (left, right))
    return Match(kind, left.plan, right.plan, typed, left_kinds, right_kinds)


def _others(
    tabular: Tabular,
    relation: Relation,
    levels: tuple[syntax.NestedLevel, ...],
    place: int,
    kept: tuple[Relation | None, Relation],
    scope: Scope,
) -> Relation:
    """Return the row of ``others`` of a level for each kept group of the level above."""
    at, (above, first) = levels[place].at, kept
    keys = [syntax.Named(each.at, f"${n}", each.key.expression) for n, each in enumerate(levels)]
    rows = tabular.extend(tabular.stored(relation), tuple(keys), scope)
    own = rows.columns[-len(keys) :]
    again = tabular.stored(first)
    left = Relation(_matching("leftanti", rows, again, zip(own, again.columns[::2], strict=False)), rows.columns)
    groups = tuple(syntax.Named(at, f"${n}", syntax.Column(at, f"${n}")) for n in range(place))
    counted = syntax.Named(at, "#", syntax.Call(at, "count", ()))
    totals = [_total(each, f"#{n}") for n, each in enumerate(levels)]
    made = tabular.grouped(left, groups, (*totals, counted), scope)
    some = made.find("#")
    assert some is not None  # noqa: S101 - the last of the aggregates
    # Without groups, an aggregate of no rows is a row all the same.
    condition = call("bool", ">", f"({some.identity} > 0)", [column(some.identity, "long", some.name)])
    plan: Plan = Filter(made.plan, condition, ("others",))
    shown: list[OutputColumn] = []
    if above is not None:
        outer = tabular.stored(above)
        shown += outer.columns
        plan = _matching(
            "inner", Relation(plan, made.columns), outer, zip(made.columns, outer.columns[::2], strict=False)
        )
    values: dict[str, Typed] = {}
    for number, level in enumerate(levels[place:], place):
        total = made.columns[place + number]
        pair = literal(own[number].kind, None), literal(total.kind, None)
        if level.others is not None:
            given = tabular.scalars(scope, ()).constant(level.others, "the name of others", own[number].kind)
            pair = given, column(total.identity, total.kind, total.name)
        for value in pair:
            identity = tabular.session.identity()
            values[identity] = value
            shown.append(OutputColumn("", value.kind, identity))
    return Relation(Attach(plan, values), tuple(shown))


def _by_names(tabular: Tabular, relation: Relation, names: tuple[syntax.Expression, ...], scope: Scope) -> Relation:
    session = tabular.session
    scalars = tabular.scalars(scope, ())
    found: dict[str, OutputColumn] = {}
    for node in names:
        value = scalars.constant(node, "a name of a column", "string", "dynamic").value
        for name in value if isinstance(value, list) else [value]:
            matching = [each for each in relation.columns if joins.matches_pattern(str(name), each.name)]
            found |= {each.identity: each for each in matching if each.identity not in found}
    if not found:
        raise session.error(names[0].at, "no column is left", "keep one")
    return Relation(relation.plan, tuple(found.values()))


# Series along an axis.


def _series(  # noqa: PLR0912, PLR0915 - one clause after the other
    tabular: Tabular, relation: Relation, operator: syntax.MakeSeries, scope: Scope
) -> Relation:
    session = tabular.session
    scalars = tabular.scalars(scope, relation.columns)
    axis = scalars.bind(operator.axis.expression)
    if axis.kind not in {"datetime", "timespan", *_NUMBERS}:
        raise session.error(operator.axis.at, f"an axis is a datetime, a timespan or a number, not a {axis.kind}")
    real = axis.kind in {"real", "decimal"}
    step = _along(scalars.bind(operator.step), real=real)
    place = _along(axis, real=real)
    first, last = (None if each is None else scalars.bind(each) for each in (operator.first, operator.last))
    start = "0" if first is None else _along(first, real=real)
    if first is None and axis.kind == "datetime":
        start = "-621355968000000000"
    conditions: list[Typed] = [call("bool", "isnotnull", f"({axis.sql} IS NOT NULL)", [axis])]
    complain = session.complain(operator)
    if first is not None:
        conditions.append(operators.compare(">=", axis, first, complain))
    if last is not None:
        conditions.append(operators.compare("<=" if operator.inclusive else "<", axis, last, complain))
    plan: Plan = relation.plan
    for each in conditions:
        plan = Filter(plan, each, (f"the axis of make-series {each.op} a bound",))
    number = session.identity()
    numbering = f"CAST(floor(({place} - {start}) / CAST({step} AS DOUBLE)) AS BIGINT)"
    if not real:
        numbering = f"CAST(({place} - {start} - kql_mod({place} - {start}, {step})) // {step} AS BIGINT)"
    plan = Attach(plan, {number: call("long", "bin", numbering, [axis])})
    hidden = OutputColumn(f"${number}", "long", number)
    items = tuple(each.item for each in operator.items)
    groups = (*operator.groups, syntax.Named(operator.at, None, syntax.Column(operator.at, hidden.name)))
    made = tabular.grouped(Relation(plan, (*relation.columns, hidden)), groups, items, scope)
    keys, place_of, values = (
        made.columns[: len(operator.groups)],
        made.columns[len(operator.groups)],
        made.columns[len(groups) :],
    )
    source, extra = (made.plan.source, made.plan.columns) if isinstance(made.plan, Attach) else (made.plan, {})
    assert isinstance(source, Aggregate)  # noqa: S101 - made just now
    if extra:
        raise session.error(operator.at, "make-series computes plain aggregates", "compute with series_ functions")
    lists: dict[str, str] = {}
    shown = [*keys]
    for item, value in zip(operator.items, values, strict=True):
        default = literal(value.kind, 0 if value.kind != "string" else "")
        if value.kind in {"datetime", "dynamic", "bool", "guid"}:
            default = literal(value.kind, None)
        if item.default is not None:
            default = scalars.bind(item.default)
        identity = session.identity()
        filled = _filled(value, default, place_of.identity)
        lists[identity] = filled
        shown.append(OutputColumn(value.name, "dynamic", identity))
    axis_identity = session.identity()
    shown.append(OutputColumn(operator.axis.name or axis.name or "Column1", "dynamic", axis_identity))
    lowest = "0" if first is not None else f"(SELECT min({place_of.identity}) FROM a)"
    if last is None:
        highest = f"(SELECT max({place_of.identity}) FROM a)"
    else:
        length = f"({_along(last, real=real)} - {start})"
        highest = f"CAST(floor({length} / CAST({step} AS DOUBLE)) AS BIGINT)"
        if not operator.inclusive:
            highest = f"CAST(ceil({length} / CAST({step} AS DOUBLE)) AS BIGINT) - 1"
    at = f"({start} + i * {step})"
    options = dict(operator.options)
    grid = Grid(
        source,
        tuple(each.identity for each in keys),
        place_of.identity,
        lowest,
        highest,
        (axis_identity, _shown_axis(axis.kind, at)),
        lists,
        options.get("kind") == "nonempty",
    )
    return Relation(grid, tuple(shown))


def _along(value: Typed, *, real: bool) -> str:
    """Return SQL for a number along an axis: ticks for times."""
    if value.kind == "datetime":
        return f"(epoch_us({value.sql}) * 10)"
    return f"CAST({value.sql} AS {'DOUBLE' if real else 'BIGINT'})"


def _shown_axis(kind: str, at: str) -> str:
    if kind == "datetime":
        return f"kql_timestamp_text(make_timestamp(CAST({at} // 10 AS BIGINT)))"
    return f"kql_span_text({at})" if kind == "timespan" else at


def _filled(value: OutputColumn, default: Typed, place: str) -> str:
    inside = Typed(value.kind, f"a.{value.identity}", "column")
    if {default.kind, value.kind} <= _NUMBERS and default.kind != value.kind:
        default = Typed(value.kind, converted(default, "real") if value.kind == "real" else default.sql, default.op)

    def shown(each: Typed) -> str:
        if each.kind == "real":
            return f"kql_real_json({each.sql})"
        return f"to_json({to_text(each) if each.kind in {'datetime', 'timespan'} else each.sql})"

    return f"CASE WHEN a.{place} IS NULL THEN {shown(default)} ELSE {shown(inside)} END"
