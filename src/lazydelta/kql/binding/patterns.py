"""Plugins that find patterns of values: ``basket``, ``autocluster`` and ``diffpatterns``.

Values that are too rare for any pattern become null, and equal rows are counted. What is left has few different rows
however long the table is, and Python finds the patterns in it.
"""

from __future__ import annotations

from collections.abc import Callable

from lazydelta.kql.binding.plan import OutputColumn, Relation, Rows
from lazydelta.kql.binding.plugins import Plugin, staged, stored_sql
from lazydelta.kql.binding.types import Typed, column, quoted, to_text
from lazydelta.kql.computing.sequences import Pattern, Row, clusters, differences, frequent, pattern_stage
from lazydelta.kql.language import syntax

__all__ = ["PATTERN_PLUGINS"]

_SHARE = 0.05
_SEGMENTS = 25
_DIMENSIONS = 5


def _options(plugin: Plugin, first: int) -> list[Typed | None]:
    """Return the constants from an argument on; ``~`` is the default, and so is the column of weights."""
    scalars = plugin.tabular.scalars(plugin.scope, ())
    found: list[Typed | None] = []
    for node in plugin.positional[first:]:
        is_column = isinstance(node, syntax.Column) and plugin.relation.find(node.name) is not None
        constant = None if is_column else scalars.constant(node, f"an argument of {plugin.node.name}")
        found.append(None if constant is None or constant.value == "~" else constant)
    return found


def _number(plugin: Plugin, options: list[Typed | None], index: int, default: float, *, within: bool = True) -> float:
    value = options[index] if index < len(options) else None
    if value is None:
        return default
    if not isinstance(value.value, int | float) or (within and not 0 < value.value < 1):
        raise plugin.error(f"{value.value!r} is not a number that {plugin.node.name} can use here")
    return float(value.value)


def _weight(plugin: Plugin, index: int) -> OutputColumn | None:
    node = plugin.positional[index] if index < len(plugin.positional) else None
    return plugin.relation.find(node.name) if isinstance(node, syntax.Column) else None


def _found(
    plugin: Plugin,
    weights: list[str],
    share: float,
    find: Callable[[list[Row]], list[Pattern]],
    *,
    without: tuple[OutputColumn | None, ...],
    wildcards: list[Typed],
) -> Relation:
    """Return patterns over all columns but some; ``weights`` are SQL over the stored rows.

    ``wildcards`` stand for any value in columns of their types.
    """
    stored, sql = stored_sql(plugin)
    place = dict(zip((each.identity for each in plugin.relation.columns), stored.columns, strict=True))
    skipped = {place[each.identity].identity for each in without if each is not None}
    used = [each for each in stored.columns if each.identity not in skipped and each.kind != "dynamic"]
    if not used:
        raise plugin.error(f"{plugin.node.name} needs a column to find patterns in")
    names = {old.identity: new.identity for old, new in zip(plugin.relation.columns, stored.columns, strict=True)}
    sums = [each.format(**names) for each in weights]
    totals = ", ".join(f"sum({each}) AS t{index}" for index, each in enumerate(sums))
    parts = [f"n AS (SELECT {totals} FROM t)"]
    kept = []
    for each in used:
        enough = " OR ".join(f"sum({one}) >= {share!r} * any_value(t{index})" for index, one in enumerate(sums))
        parts.append(f"f_{each.identity} AS (SELECT {each.identity} AS v FROM t, n GROUP BY 1 HAVING {enough})")
        kept.append(f"CASE WHEN {each.identity} IN (SELECT v FROM f_{each.identity}) THEN {each.identity} END")
    values = [OutputColumn(each.name, each.kind, plugin.session.identity()) for each in used]
    numbers = [OutputColumn("", "real", plugin.session.identity()) for _ in sums]
    chosen = [f"{one} AS {each.identity}" for one, each in zip(kept, values, strict=True)]
    chosen += [f"CAST(sum({one}) AS DOUBLE) AS {each.identity}" for one, each in zip(sums, numbers, strict=True)]
    grouped = ", ".join(str(index + 1) for index in range(len(values)))
    rows = f"WITH t AS ({sql}), {', '.join(parts)} SELECT {', '.join(chosen)} FROM t GROUP BY {grouped}"
    source = Relation(Rows(rows), (*values, *numbers))
    places = {each.identity: index for index, each in enumerate(used)}
    known = {each.kind: each.value for each in wildcards}
    known.setdefault("int", known.get("long"))
    outputs = [(each.kind, places.get(each.identity), known.get(each.kind)) for each in stored.columns]
    shown = [("SegmentId", "long"), ("Count", "long"), ("Percent", "real")]
    if len(sums) > 1:
        shown = [("SegmentId", "long"), *((f"Count{each}", "long") for each in "AB")]
        shown += [(name, "real") for name in ("PercentA", "PercentB", "PercentDiffAB")]
    columns = [*shown, *((each.name, each.kind) for each in stored.columns)]
    return staged(plugin, source, columns, lambda: pattern_stage(outputs, len(sums), find))


def _weight_sql(weight: OutputColumn | None) -> str:
    return "1" if weight is None else f"coalesce({{{weight.identity}}}, 0)"


def _basket(plugin: Plugin) -> Relation:
    options, weight = _options(plugin, 0), _weight(plugin, 1)
    share = _number(plugin, options, 0, _SHARE)
    most = int(_number(plugin, options, 2, _DIMENSIONS, within=False))

    def find(rows: list[Row]) -> list[Pattern]:
        return frequent(rows, (share * sum(row.weights[0] for row in rows),), most)

    wildcards = [each for each in options[3:] if each is not None]
    return _found(plugin, [_weight_sql(weight)], share, find, without=(weight,), wildcards=wildcards)


def _autocluster(plugin: Plugin) -> Relation:
    options, weight = _options(plugin, 0), _weight(plugin, 1)
    size_weight = _number(plugin, options, 0, 0.5)
    wildcards = [each for each in options[3:] if each is not None]

    def find(rows: list[Row]) -> list[Pattern]:
        return clusters(rows, _SHARE, size_weight, _SEGMENTS)

    return _found(plugin, [_weight_sql(weight)], _SHARE, find, without=(weight,), wildcards=wildcards)


def _diffpatterns(plugin: Plugin) -> Relation:
    split, options, weight = plugin.column(0), _options(plugin, 1), _weight(plugin, 3)
    if len(options) < 2 or options[0] is None or options[1] is None:  # noqa: PLR2004 - the two values
        raise plugin.error("diffpatterns needs a column and its two values to compare")
    share = _number(plugin, options, 3, _SHARE)
    most = int(_number(plugin, options, 4, _DIMENSIONS, within=False))
    text = to_text(column(f"{{{split.identity}}}", split.kind, split.name))
    sums = [
        f"CASE WHEN {text} = {quoted(_written(each))} THEN {_weight_sql(weight)} ELSE 0 END" for each in options[:2]
    ]

    def find(rows: list[Row]) -> list[Pattern]:
        return differences(rows, share, most)

    wildcards = [each for each in options[5:] if each is not None]
    return _found(plugin, sums, share, find, without=(split, weight), wildcards=wildcards)


def _written(value: Typed | None) -> str:
    found = None if value is None else value.value
    # Braces would be places of columns.
    return str(found).replace("{", "{{").replace("}", "}}")


PATTERN_PLUGINS: dict[str, Callable[[Plugin], Relation]] = {
    "autocluster": _autocluster,
    "basket": _basket,
    "diffpatterns": _diffpatterns,
}
"""Plugins of patterns by name."""
