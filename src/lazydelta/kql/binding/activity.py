"""Plugins over a timeline: activity of users, sliding windows, sessions, rolling percentiles, rows near others.

The rows are stored once; each plugin is SQL over the id, the time as a number (ticks for datetimes) and the dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

from lazydelta.kql.binding.plan import Filter, OutputColumn, Relation, Rows, Window, order_of, order_sql
from lazydelta.kql.binding.plugins import Plugin, stored_sql
from lazydelta.kql.binding.types import call, column, quoted, to_text
from lazydelta.kql.language import syntax

__all__ = ["TIMELINE_PLUGINS", "Timeline"]

_TIMES = {"datetime", "timespan", "long", "int"}
_SAMPLES = 128
"""How many ids funnel_sequence shows for a sequence."""


class Timeline:
    """The rows of a plugin as SQL with the columns ``u`` (id), ``x`` (time as a number) and ``d0``, ``d1`` …."""

    def __init__(self, plugin: Plugin, dimensions_from: int, *, id_at: int = 0, time_at: int = 1) -> None:
        self.plugin = plugin
        self.time = plugin.column(time_at)
        key = plugin.column(id_at)
        if self.time.kind not in _TIMES:
            raise plugin.error(f"a timeline is a datetime, a timespan or a whole number, not a {self.time.kind}")
        rest = plugin.positional[dimensions_from:]
        self.dimensions = [
            found
            for each in rest
            if isinstance(each, syntax.Column) and (found := plugin.relation.find(each.name)) is not None
        ]
        stored, sql = stored_sql(plugin)
        place = {old.name: new for old, new in zip(plugin.relation.columns, stored.columns, strict=True)}
        dims = "".join(f", {place[each.name].identity} AS d{index}" for index, each in enumerate(self.dimensions))
        self.sql = (
            f"SELECT {place[key.name].identity} AS u, {self.number(place[self.time.name])} AS x{dims} FROM ({sql})"
        )
        self.groups = "".join(f", d{index}" for index in range(len(self.dimensions)))

    def number(self, value: OutputColumn) -> str:
        """Return SQL of a column of times as a number."""
        return f"(epoch_us({value.identity}) * 10)" if value.kind == "datetime" else f"CAST({value.identity} AS BIGINT)"

    def point(self, index: int) -> int:
        """Return a constant point or distance on the timeline."""
        found = self.plugin.typed(index)
        if found is None or not isinstance(found.value, int):
            raise self.plugin.error(
                f"argument {index + 1} of {self.plugin.node.name} must be a constant of the timeline"
            )
        return found.value

    def same(self, one: str, other: str) -> str:
        """Return a condition that the dimensions of two tables are equal."""
        return "".join(
            f" AND {one}.d{index} IS NOT DISTINCT FROM {other}.d{index}" for index in range(len(self.dimensions))
        )

    def back(self, sql: str) -> str:
        """Return SQL of a number as a value of the timeline."""
        return (
            f"make_timestamp(CAST({sql} // 10 AS BIGINT))" if self.time.kind == "datetime" else f"CAST({sql} AS BIGINT)"
        )

    def binned(self, start: int, end: int, step: int) -> str:
        """Return SQL of the rows in a range with the start of their bin as ``b``."""
        return (
            f"SELECT *, {start} + kql_bin(x - {start}, CAST({step} AS BIGINT)) AS b FROM ({self.sql})"
            f" WHERE x >= {start} AND x <= {end}"
        )

    def relation(self, sql: str, times: list[str], values: list[tuple[str, str]]) -> Relation:
        """Return rows of SQL: its times ``t0`` …, dimensions and values ``v0`` …, under their names."""
        session = self.plugin.session
        kind = "long" if self.time.kind == "int" else self.time.kind
        shown = [OutputColumn(name, kind, session.identity()) for name in times]
        parts = [f"{self.back(f't{index}')} AS {each.identity}" for index, each in enumerate(shown)]
        for index, each in enumerate(self.dimensions):
            new = OutputColumn(each.name, each.kind, session.identity())
            parts.append(f"d{index} AS {new.identity}")
            shown.append(new)
        for index, (name, value_kind) in enumerate(values):
            new = OutputColumn(name, value_kind, session.identity())
            parts.append(f"v{index} AS {new.identity}")
            shown.append(new)
        return Relation(Rows(f"SELECT {', '.join(parts)} FROM ({sql}) ORDER BY ALL"), tuple(shown))


def _counts(plugin: Plugin) -> Relation:
    """Count activities, distinct ids, new ids, and ids so far, in each bin."""
    line = Timeline(plugin, 5)
    start, end, step = (line.point(index) for index in (2, 3, 4))
    g = line.groups
    sql = (
        f"WITH r AS (SELECT *, min(b) OVER (PARTITION BY u{g}) AS f FROM ({line.binned(start, end, step)})),"
        f" c AS (SELECT b AS t0{g}, count(*) AS v0, count(DISTINCT u) AS v1,"
        " count(DISTINCT u) FILTER (WHERE f = b) AS v2"
        f" FROM r GROUP BY b{g})"
        f" SELECT *, CAST(sum(v2) OVER ({f'PARTITION BY {g[2:]} ' if g else ''}ORDER BY t0) AS BIGINT) AS v3 FROM c"
    )
    names = [("count", "long"), ("dcount", "long"), ("new_dcount", "long"), ("aggregated_dcount", "long")]
    return line.relation(sql, [line.time.name], names)


def _metrics(plugin: Plugin) -> Relation:
    """Count distinct and new ids of each bin, and the share of the previous bin's ids that came again."""
    line = Timeline(plugin, 5)
    start, end, step = (line.point(index) for index in (2, 3, 4))
    g = line.groups
    keyed = "".join(f", r.d{index}" for index in range(len(line.dimensions)))
    sql = (
        f"WITH r AS (SELECT DISTINCT u, b{g}, min(b) OVER (PARTITION BY u{g}) AS f"
        f" FROM ({line.binned(start, end, step)})),"
        f" c AS (SELECT b{g}, count(*) AS n, count(*) FILTER (WHERE f = b) AS w FROM r GROUP BY b{g}),"
        f" k AS (SELECT r.b{keyed}, count(*) AS n FROM r JOIN r AS p ON r.u = p.u AND p.b = r.b - {step}"
        f"{line.same('r', 'p')} GROUP BY r.b{keyed})"
        f" SELECT c.b AS t0{''.join(f', c.d{index}' for index in range(len(line.dimensions)))}, c.n AS v0, c.w AS v1,"
        " CASE WHEN p.n IS NULL THEN CAST('nan' AS DOUBLE) ELSE coalesce(k.n, 0) / CAST(p.n AS DOUBLE) END AS v2,"
        " CASE WHEN p.n IS NULL THEN CAST('nan' AS DOUBLE) ELSE 1 - coalesce(k.n, 0) / CAST(p.n AS DOUBLE) END AS v3"
        f" FROM c LEFT JOIN c AS p ON p.b = c.b - {step}{line.same('c', 'p')}"
        f" LEFT JOIN k ON k.b = c.b{line.same('c', 'k')}"
    )
    names = [
        ("dcount_values", "long"),
        ("dcount_newvalues", "long"),
        ("retention_rate", "real"),
        ("churn_rate", "real"),
    ]
    return line.relation(sql, [line.time.name], names)


def _new_metrics(plugin: Plugin) -> Relation:
    """Follow the ids that are new in each bin through the later bins."""
    line = Timeline(plugin, 6)
    start, end, step = (line.point(index) for index in (2, 3, 4))
    g = line.groups
    cohort = plugin.argument(5)
    chosen = ""
    if isinstance(cohort, syntax.Literal) or (cohort is not None and not isinstance(cohort, syntax.Column)):
        chosen = f" WHERE f = {line.point(5)}"
    lookback = plugin.positional[-1] if len(plugin.positional) > 5 else None  # noqa: PLR2004 - after the window
    known = ""
    if isinstance(lookback, syntax.Column) and plugin.relation.find(lookback.name) is None and lookback is not cohort:
        other = plugin.tabular.relation(lookback, plugin.scope)
        key = other.find(plugin.column(0).name)
        if key is None:
            raise plugin.error("the rows to look back at need the column of ids")
        table = plugin.tabular.session.evaluator.table(Relation(other.plan, (key,)))
        known = f" WHERE u NOT IN (SELECT {key.identity} FROM {table} WHERE {key.identity} IS NOT NULL)"
    sql = (
        f"WITH r AS (SELECT DISTINCT u, b{g}, min(b) OVER (PARTITION BY u{g}) AS f"
        f" FROM ({line.binned(start, end, step)}){known}),"
        f" n AS (SELECT f{g}, count(DISTINCT u) AS n FROM r{chosen} GROUP BY f{g}),"
        f" k AS (SELECT f, b{g}, count(DISTINCT u) AS k FROM r GROUP BY f, b{g}),"
        " t AS (SELECT DISTINCT b FROM r)"
        f" SELECT n.f AS t0, t.b AS t1{''.join(f', n.d{index}' for index in range(len(line.dimensions)))},"
        " n.n AS v0, coalesce(k.k, 0) AS v1, n.n - coalesce(k.k, 0) AS v2,"
        " coalesce(k.k, 0) / CAST(n.n AS DOUBLE) AS v3, 1 - coalesce(k.k, 0) / CAST(n.n AS DOUBLE) AS v4"
        f" FROM n JOIN t ON t.b >= n.f LEFT JOIN k ON k.f = n.f AND k.b = t.b{line.same('n', 'k')}"
    )
    name = line.time.name
    values = [("dcount_new_values", "long"), ("dcount_retained_values", "long"), ("dcount_churn_values", "long")]
    rates = [("retention_rate", "real"), ("churn_rate", "real")]
    return line.relation(sql, [f"from_{name}", f"to_{name}"], [*values, *rates])


def _engagement(plugin: Plugin) -> Relation:
    """Compare the distinct ids of an inner window with those of an outer one that ends with it."""
    first = plugin.typed(2)
    ranged = first is not None and first.kind == plugin.column(1).kind and len(plugin.positional) > 5  # noqa: PLR2004
    line = Timeline(plugin, 6 if ranged else 4)
    inner, outer = (line.point(index) for index in ((4, 5) if ranged else (2, 3)))
    within = f" WHERE x >= {line.point(2)} AND x <= {line.point(3)}" if ranged else ""
    g = line.groups
    dims = "".join(f", i.d{index}" for index in range(len(line.dimensions)))
    sql = (
        f"WITH r AS (SELECT DISTINCT u, kql_bin(x, CAST({inner} AS BIGINT)) AS b{g} FROM ({line.sql}){within}),"
        f" i AS (SELECT b{g}, count(DISTINCT u) AS n FROM r GROUP BY b{g}),"
        f" o AS (SELECT i.b{dims}, count(DISTINCT r.u) AS n FROM i JOIN r ON r.b <= i.b AND r.b > i.b - {outer}"
        f"{line.same('i', 'r')} GROUP BY i.b{dims})"
        f" SELECT i.b AS t0{dims}, i.n AS v0, o.n AS v1, i.n / CAST(o.n AS DOUBLE) AS v2 FROM i JOIN o ON o.b = i.b"
        f"{line.same('i', 'o')}"
    )
    counts = [("dcount_activities_inner", "long"), ("dcount_activities_outer", "long"), ("activity_ratio", "real")]
    return line.relation(sql, [line.time.name], counts)


def _sliding(plugin: Plugin) -> Relation:
    """Count rows and distinct ids of the window that ends with each bin."""
    line = Timeline(plugin, 6)
    start, end, window, step = (line.point(index) for index in (2, 3, 4, 5))
    g = line.groups
    sql = (
        f"WITH r AS (SELECT *, {start} + kql_bin(x - {start}, CAST({step} AS BIGINT)) AS b FROM ({line.sql})),"
        f" t AS (SELECT unnest(generate_series({start}, {end}, {step})) AS t0)"
        f" SELECT t0{g}, count(*) AS v0, count(DISTINCT u) AS v1 FROM t JOIN r ON r.b <= t0 AND r.b > t0 - {window}"
        f" GROUP BY t0{g}"
    )
    return line.relation(sql, [line.time.name], [("Count", "long"), ("Dcount", "long")])


def _active_users(plugin: Plugin) -> Relation:
    """Count ids that were seen in enough periods of the window before."""
    line = Timeline(plugin, 8)
    start, end, window, period, least, step = (line.point(index) for index in (2, 3, 4, 5, 6, 7))
    g = line.groups
    sql = (
        f"WITH r AS (SELECT DISTINCT u, {start} + kql_bin(x - {start}, CAST({period} AS BIGINT)) AS p{g}"
        f" FROM ({line.sql})),"
        f" a AS (SELECT n.u, n.p{''.join(f', n.d{index}' for index in range(len(line.dimensions)))} FROM r AS n"
        f" JOIN r AS o ON o.u = n.u AND o.p <= n.p AND o.p > n.p - {window}{line.same('n', 'o')}"
        f" WHERE n.p >= {start} AND n.p <= {end} GROUP BY ALL HAVING count(*) >= {least})"
        f" SELECT {start} + kql_bin(p - {start}, CAST({step} AS BIGINT)) AS t0{g}, count(DISTINCT u) AS v0"
        f" FROM a GROUP BY t0{g}"
    )
    return line.relation(sql, [line.time.name], [("dcount", "long")])


def _sessions(plugin: Plugin) -> Relation:
    """Count sessions of ids by the bin in which they begin: a session ends after a gap longer than the window."""
    line = Timeline(plugin, 6)
    start, end, step, window = (line.point(index) for index in (2, 3, 4, 5))
    g = line.groups
    before = f"lag(x) OVER (PARTITION BY u{g} ORDER BY x)"
    sql = (
        f"WITH r AS (SELECT *, {before} AS p FROM ({line.binned(start, end, step)}))"
        f" SELECT b AS t0{g}, count(*) FILTER (WHERE p IS NULL OR x - p > {window}) AS v0 FROM r GROUP BY b{g}"
    )
    return line.relation(sql, [line.time.name], [("count_sessions", "long")])


def _rolling(plugin: Plugin) -> Relation:
    """Return the percentile of the values in the window of bins that ends with each bin."""
    line = Timeline(plugin, 5, id_at=0, time_at=2)
    share = float(plugin.constant(1, "Percentile", 50))
    step, count = line.point(3), int(plugin.constant(4, "BinsPerWindow", 1))
    g = line.groups
    dims = "".join(f", t.d{index}" for index in range(len(line.dimensions)))
    sql = (
        f"WITH r AS (SELECT *, kql_bin(x, CAST({step} AS BIGINT)) AS b FROM ({line.sql})),"
        f" t AS (SELECT DISTINCT b{g} FROM r)"
        f" SELECT t.b AS t0{dims}, quantile_disc(r.u, {share / 100!r}) AS v0 FROM t"
        f" JOIN r ON r.b <= t.b AND r.b > t.b - {step * count}{line.same('t', 'r')} GROUP BY t.b{dims}"
    )
    value = plugin.column(0)
    if value.kind not in {"int", "long", "real", "datetime", "timespan"}:
        raise plugin.error(f"a percentile of a {value.kind} is not defined")
    shown = int(share) if share == int(share) else share
    return line.relation(sql, [line.time.name], [(f"rolling_{count}_percentile_{value.name}_{shown}", value.kind)])


def _rows_near(plugin: Plugin) -> Relation:
    """Return the rows that are at most so many before or after one for which a condition is true."""
    node = plugin.argument(0)
    if node is None:
        raise plugin.error("rows_near needs a condition")
    condition = plugin.scalars.condition(node)
    before = int(plugin.constant(1, "NumRows", 1))
    after = int(plugin.constant(2, "RowsAfter", before))
    # A row before the match has it among the rows that follow.
    keys = order_of(plugin.relation.plan)
    order = f"ORDER BY {order_sql(keys)} " if keys else ""
    frame = f"OVER ({order}ROWS BETWEEN {after} PRECEDING AND {before} FOLLOWING)"
    identity, used = plugin.session.identity(), [condition, *(each.expression for each in keys)]
    near = call("bool", "window", f"coalesce(bool_or({condition.sql}) {frame}, FALSE)", used)
    plan = Window(plugin.relation.plan, {identity: near})
    return Relation(Filter(plan, column(identity, "bool", identity), ("rows_near",)), plugin.relation.columns)


def _sequences(plugin: Plugin) -> Relation:
    """Return every sequence of rows that match the conditions one after the other, within the windows of time."""
    conditions = [each for each in plugin.node.arguments if isinstance(each, syntax.NamedArgument)]
    given = [each for each in plugin.positional[3:] if not isinstance(each, syntax.Column)]
    if given or not conditions:
        raise plugin.error("sequence_detect needs conditions with names, such as start = (Event == 'x')")
    time, step, span = plugin.column(0), plugin.typed(1), plugin.typed(2)
    if time.kind not in _TIMES or step is None or span is None:
        raise plugin.error("sequence_detect needs a column of times and two windows")
    dims = [plugin.column(index) for index in range(3, len(plugin.positional))]
    flags = tuple(syntax.Named(each.at, f"${n}", each.value) for n, each in enumerate(conditions))
    flagged = plugin.tabular.stored(plugin.tabular.extend(plugin.relation, flags, plugin.scope))
    assert isinstance(flagged.plan, Rows)  # noqa: S101 - a stored table
    place = {each.name: each.identity for each in flagged.columns}
    number = f"epoch_us({place[time.name]}) * 10" if time.kind == "datetime" else f"CAST({place[time.name]} AS BIGINT)"
    listed = "".join(f", {place[each.name]} AS d{n}" for n, each in enumerate(dims))
    tests = "".join(f", {place[f'${n}']} AS e{n}" for n in range(len(conditions)))
    same = "".join(f" AND r{{n}}.d{n} IS NOT DISTINCT FROM r0.d{n}" for n in range(len(dims)))
    joined = "".join(
        f" JOIN r AS r{n} ON r{n}.e{n} AND r{n}.x > r{n - 1}.x AND r{n}.x - r{n - 1}.x <= {step.value}"
        f" AND r{n}.x - r0.x <= {span.value}{same.format(n=n)}"
        for n in range(1, len(conditions))
    )
    session, last = plugin.session, len(conditions) - 1
    shown = [OutputColumn(each.name, each.kind, session.identity()) for each in dims]
    parts = [f"r0.d{n} AS {each.identity}" for n, each in enumerate(shown)]
    for n, each in enumerate(conditions):
        new = OutputColumn(f"{each.name}_{time.name}", time.kind, session.identity())
        back = f"make_timestamp(CAST(r{n}.x // 10 AS BIGINT))" if time.kind == "datetime" else f"r{n}.x"
        parts.append(f"{back} AS {new.identity}")
        shown.append(new)
    duration = OutputColumn("Duration", "timespan" if time.kind == "datetime" else time.kind, session.identity())
    parts.append(f"r{last}.x - r0.x AS {duration.identity}")
    sql = (
        f"WITH r AS (SELECT {number} AS x{listed}{tests} FROM ({flagged.plan.sql}))"
        f" SELECT DISTINCT {', '.join(parts)} FROM r AS r0{joined} WHERE r0.e0 ORDER BY ALL"
    )
    return Relation(Rows(sql), (*shown, duration))


def _states(plugin: Plugin, line: Timeline, index: int) -> str:
    """Return SQL of the rows with the id ``u``, the time ``x`` and the text of the state ``s``."""
    stored, sql = stored_sql(plugin)
    place = {old.name: new for old, new in zip(plugin.relation.columns, stored.columns, strict=True)}
    inside = place[plugin.column(index).name]
    return (
        f"SELECT {place[plugin.column(0).name].identity} AS u, {line.number(place[line.time.name])} AS x,"
        f" {to_text(column(inside.identity, inside.kind, inside.name))} AS s FROM ({sql})"
    )


def _funnel_sequence(plugin: Plugin) -> Relation:
    """Count ids that went through a sequence of states, by the states before and after it, or by one of them."""
    line = Timeline(plugin, 99)
    start, end, window, step = (line.point(index) for index in (2, 3, 4, 5))
    sequence = plugin.constant(7, None)
    if not isinstance(sequence, list) or not sequence:
        raise plugin.error("funnel_sequence needs a dynamic list of states")
    first, *rest = (quoted(str(each)) for each in sequence)
    steps = f"SELECT u, x AS x0, x AS xn FROM r WHERE s = {first}"
    for each in rest:
        steps = (
            f"SELECT m.u, m.x0, r.x AS xn FROM ({steps}) AS m ASOF JOIN (SELECT * FROM r WHERE s = {each}) AS r"
            f" ON m.u = r.u AND r.x > m.xn WHERE r.x - m.xn <= {window}"
        )
    last = quoted(str(sequence[-1]))
    near = (
        f"SELECT m.*, p.s AS p, p.x AS px FROM m ASOF LEFT JOIN (SELECT * FROM r WHERE s <> {first}) AS p"
        " ON m.u = p.u AND p.x < m.x0"
    )
    near = (
        f"SELECT m.*, q.s AS q, q.x AS qx FROM ({near}) AS m ASOF LEFT JOIN (SELECT * FROM r WHERE s <> {last}) AS q"
        " ON m.u = q.u AND q.x > m.xn"
    )
    shown = {0: ("prev", "next"), 1: ("prev",), 2: ("next",)}[plugin.constant(99, "$table", 0)]
    cells = {
        "prev": f"CASE WHEN x0 - px <= {window} THEN p ELSE '' END",
        "next": f"CASE WHEN qx - xn <= {window} THEN q ELSE '' END",
    }
    states = "".join(f", {cells[name]} AS v{index}" for index, name in enumerate(shown))
    place = len(shown)
    sql = (
        f"WITH r AS (SELECT * FROM ({_states(plugin, line, 6)}) WHERE x >= {start} AND x < {end}), m AS ({steps})"
        f" SELECT {start} + kql_bin(x0 - {start}, CAST({step} AS BIGINT)) AS t0{states}, count(DISTINCT u) AS v{place},"
        f" to_json(list_sort(list(DISTINCT u))[:{_SAMPLES}]) AS v{place + 1} FROM ({near})"
        f" GROUP BY ALL"
    )
    values = [*((name, "string") for name in shown), ("dcount", "long"), ("samples", "dynamic")]
    return line.relation(sql, [line.time.name], values)


def _funnel(plugin: Plugin) -> Relation:
    """Count ids that went through each state of a sequence, by the bin of the first and by the longest time for it."""
    line = Timeline(plugin, 99)
    start, end, step = (line.point(index) for index in (2, 3, 4))
    state = plugin.column(5)
    sequence, periods = (plugin.constant(index, None) for index in (6, 7))
    if not isinstance(sequence, list) or not isinstance(periods, list) or not sequence or not periods:
        raise plugin.error("funnel_sequence_completion needs a dynamic list of states and one of timespans")
    steps = [f"s0 AS (SELECT u, x AS x0 FROM r WHERE s = {quoted(str(sequence[0]))} AND x >= {start} AND x < {end})"]
    for n, each in enumerate(sequence[1:], 1):
        following = f"r.u = s{n - 1}.u AND r.s = {quoted(str(each))} AND r.x >= s{n - 1}.x{n - 1}"
        steps.append(f"s{n} AS (SELECT *, (SELECT min(r.x) FROM r WHERE {following}) AS x{n} FROM s{n - 1})")
    counted = " UNION ALL ".join(
        f"SELECT {start} + kql_bin(x0 - {start}, CAST({step} AS BIGINT)) AS t0, {quoted(str(name))} AS v0,"
        f" kql_span({quoted(str(period))}) AS v1, count(DISTINCT u) FILTER (WHERE x{n} - x0 <="
        f" kql_span({quoted(str(period))})) AS v2, {n} AS n FROM s{len(sequence) - 1} GROUP BY t0"
        for period in periods
        for n, name in enumerate(sequence)
    )
    whole = f"WITH r AS ({_states(plugin, line, 5)}), {', '.join(steps)} SELECT t0, v0, v1, v2 FROM ({counted})"
    return line.relation(whole, [line.time.name], [(state.name, "string"), ("Period", "timespan"), ("dcount", "long")])


TIMELINE_PLUGINS: dict[str, Callable[[Plugin], Relation]] = {
    "active_users_count": _active_users,
    "activity_counts_metrics": _counts,
    "activity_engagement": _engagement,
    "activity_metrics": _metrics,
    "funnel_sequence": _funnel_sequence,
    "funnel_sequence_completion": _funnel,
    "new_activity_metrics": _new_metrics,
    "rolling_percentile": _rolling,
    "rows_near": _rows_near,
    "sequence_detect": _sequences,
    "session_count": _sessions,
    "sliding_window_counts": _sliding,
}
"""Plugins over a timeline by name."""
