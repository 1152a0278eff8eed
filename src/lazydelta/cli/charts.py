"""Charts of KQL's ``render``: in the terminal, or as an SVG or PNG file.

What becomes the x axis, the values and the lines follows Kusto: ``xcolumn``, ``ycolumns`` and ``series`` if the query
names them; else the first column, or the first datetime, the numbers, and the texts. Arrays, as ``make-series`` returns
them, are lines of their own.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lazydelta.cli.wording import printable
from lazydelta.errors import OptionError, require

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DRAWN", "FILES", "Chart", "chart_of", "draw", "save"]

FILES = (".svg", ".png")
"""The endings of files that charts are written to."""

_LINES = {"timechart", "linechart", "areachart", "stackedareachart", "anomalychart", "scatterchart"}
_BARS = {"barchart", "columnchart", "piechart"}
DRAWN = frozenset(_LINES | _BARS | {"card"})
"""The kinds of ``render`` that become a chart; the others, such as ``treemap``, need a browser."""

_STACKED = {"stacked", "stacked100"}
_MOST_POINTS = 50_000
_MOST_BARS = 60
_MOST_LINES = 12
_NUMBERS = {"int", "long", "real", "decimal"}


@dataclass
class Line:
    """The values of one line or one colour of bars."""

    name: str
    x: list[Any] = field(default_factory=list)
    y: list[float | None] = field(default_factory=list)


@dataclass
class Chart:
    """What to draw: ``x`` is ``datetime``, ``number`` or ``text``. ``notes`` are for the reader of the chart."""

    kind: str
    properties: dict[str, Any]
    x: str
    lines: list[Line]
    notes: list[str] = field(default_factory=list)

    def word(self, name: str, default: str = "") -> str:
        """Return a property as text."""
        return str(self.properties.get(name, default))

    @property
    def is_stacked(self) -> bool:
        """Whether the values of lines are added up."""
        default = "stacked" if self.kind == "stackedareachart" else "default"
        return self.word("kind", default) in _STACKED


def chart_of(render: tuple[str, dict[str, Any]], kinds: dict[str, str], batches: Iterable[pa.RecordBatch]) -> Chart:
    """Return the chart of a result. ``kinds`` are Kusto's types of the columns."""
    kind, given = render
    properties = {name.lower(): value for name, value in given.items()}
    if kind not in DRAWN:
        raise OptionError(f"A {kind} cannot be drawn here", hint="print the rows with --rows, or render a timechart")
    rows, cut = _rows(batches)
    if kind == "card":
        first = rows[0] if rows else {}
        return Chart(kind, properties, "text", [Line(name, [name], [value]) for name, value in first.items()])
    x = _x_column(kind, properties, kinds, rows)
    values = _columns(properties, "ycolumns", kinds) or [
        name for name in kinds if name != x and (kinds[name] in _NUMBERS or _holds_numbers(rows, name, kinds))
    ]
    if not values:
        raise OptionError(f"A {kind} needs a column of numbers", hint="add one, or pass ycolumns=")
    splits = _columns(properties, "series", kinds) or [
        name for name in kinds if name not in {x, *values} and kinds[name] in {"string", "bool", "guid"}
    ]
    lines, x_kind = _lines(rows, x, values, splits, kinds)
    chart = Chart(kind, properties, x_kind, lines)
    if cut:
        chart.notes.append(f"Only the first {_MOST_POINTS:,} rows are drawn; summarize them to see all.")
    if len(lines) > _MOST_LINES:
        chart.notes.append(f"Only {_MOST_LINES} of {len(lines)} lines are drawn.")
        chart.lines = lines[:_MOST_LINES]
    return chart


def _rows(batches: Iterable[pa.RecordBatch]) -> tuple[list[dict[str, Any]], bool]:
    rows: list[dict[str, Any]] = []
    for batch in batches:
        rows += batch.to_pylist()
        if len(rows) > _MOST_POINTS:
            return rows[:_MOST_POINTS], True
    return rows, False


def _columns(properties: dict[str, Any], name: str, kinds: dict[str, str]) -> list[str]:
    found = [each.strip() for each in str(properties.get(name, "")).split(",") if each.strip()]
    for each in found:
        if each not in kinds:
            known = ", ".join(kinds)
            raise OptionError(f"The chart's {name} names {each!r}, which is not a column", hint=f"known: {known}")
    return found


def _x_column(kind: str, properties: dict[str, Any], kinds: dict[str, str], rows: Sequence[dict[str, Any]]) -> str:
    named = _columns(properties, "xcolumn", kinds)
    if named:
        return named[0]
    if kind in {"timechart", "anomalychart"}:
        # The times of make-series are an array.
        times = (name for name in kinds if kinds[name] == "datetime" or _holds_times(rows, name, kinds))
        return next(times, next(iter(kinds)))
    return next(iter(kinds))


def _array(value: Any, kind: str) -> list[Any] | None:
    if kind != "dynamic" or value is None:
        return None
    decoded = json.loads(value)
    return decoded if isinstance(decoded, list) else None


def _first_array(rows: Sequence[dict[str, Any]], name: str, kinds: dict[str, str]) -> list[Any]:
    arrays = (_array(row[name], kinds[name]) for row in rows)
    return next((each for each in arrays if each), [])


def _holds_numbers(rows: Sequence[dict[str, Any]], name: str, kinds: dict[str, str]) -> bool:
    first = _first_array(rows, name, kinds)
    return bool(first) and all(each is None or isinstance(each, int | float) for each in first)


def _holds_times(rows: Sequence[dict[str, Any]], name: str, kinds: dict[str, str]) -> bool:
    first = _first_array(rows, name, kinds)
    return bool(first) and all(isinstance(_place(each), datetime) for each in first)


def _lines(
    rows: Sequence[dict[str, Any]], x: str, values: list[str], splits: list[str], kinds: dict[str, str]
) -> tuple[list[Line], str]:
    found: dict[str, Line] = {}
    seen: list[Any] = []
    for row in rows:
        prefix = ", ".join(str(row[each]) for each in splits)
        for name in values:
            label = prefix if prefix and len(values) == 1 else f"{prefix}: {name}" if prefix else name
            line = found.setdefault(label, Line(printable(label)))
            for at, value in _points(row, x, name, kinds):
                line.x.append(at)
                line.y.append(_number(value))
                seen.append(at)
    present = [each for each in seen if each is not None]
    if present and all(isinstance(each, datetime) for each in present):
        kind = "datetime"
    elif present and all(isinstance(each, int | float) and not isinstance(each, bool) for each in present):
        kind = "number"
    else:
        kind = "text"
        for line in found.values():
            line.x = [printable("" if each is None else str(each)) for each in line.x]
    return list(found.values()), kind


def _points(row: dict[str, Any], x: str, y: str, kinds: dict[str, str]) -> Iterator[tuple[Any, Any]]:
    places, values = _array(row[x], kinds[x]), _array(row[y], kinds[y])
    if values is None:
        yield _place(row[x]), row[y]
        return
    for index, value in enumerate(values):
        yield _place(places[index]) if places is not None and index < len(places) else index, value


def _place(value: Any) -> Any:
    if isinstance(value, str) and len(value) >= len("2024-01-01T00") and value[4:5] == value[7:8] == "-":
        try:
            timestamp = datetime.fromisoformat(value[:26].rstrip("Z"))
        except ValueError:
            return value
        return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
    return value.total_seconds() if isinstance(value, timedelta) else value


def _number(value: Any) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if value is None or isinstance(value, str | bool):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


# Preparation that both ways of drawing share.


def _prepared(chart: Chart) -> list[Line]:
    """Return lines in the order of x, without missing values, added up where the chart asks for that."""
    lines = []
    for line in chart.lines:
        pairs = [(at, value) for at, value in zip(line.x, line.y, strict=True) if at is not None and value is not None]
        if chart.x != "text":
            pairs.sort(key=lambda pair: pair[0])
        if chart.word("accumulate").lower() == "true":
            total, sums = 0.0, []
            for at, value in pairs:
                total += value
                sums.append((at, total))
            pairs = sums
        lines.append(Line(line.name, [at for at, _ in pairs], [value for _, value in pairs]))
    if not chart.is_stacked or chart.kind in _BARS:
        return lines
    places = sorted({at for line in lines for at in line.x})
    below = dict.fromkeys(places, 0.0)
    stacked = []
    for line in lines:
        own = dict(zip(line.x, line.y, strict=True))
        below = {at: below[at] + (own.get(at) or 0.0) for at in places}
        stacked.append(Line(line.name, places, [below[at] for at in places]))
    return stacked


def _table(chart: Chart) -> tuple[list[str], list[list[float]]]:
    """Return the labels of bars and, for each line, their values."""
    places = list(dict.fromkeys(at for line in chart.lines for at in line.x))
    if chart.x != "text":
        places.sort()
    if len(places) > _MOST_BARS:
        chart.notes.append(f"Only the first {_MOST_BARS} of {len(places)} bars are drawn.")
        places = places[:_MOST_BARS]
    values = []
    for line in chart.lines:
        own: dict[Any, float] = {}
        for at, value in zip(line.x, line.y, strict=True):
            own[at] = own.get(at, 0.0) + (value or 0.0)
        values.append([own.get(at, 0.0) for at in places])
    return [_label(at) for at in places], values


def _label(at: Any) -> str:
    if isinstance(at, datetime):
        return f"{at:%Y-%m-%d}" if not at.hour + at.minute + at.second else f"{at:%m-%d %H:%M:%S}"
    return f"{at:g}" if isinstance(at, float) else str(at)


# The terminal.


def draw(chart: Chart, *, color: bool) -> str:
    """Return the chart as text of the size of the terminal."""
    if chart.kind == "card":
        return "\n".join(f"{printable(line.name)}: {printable(str(line.y[0]))}" for line in chart.lines)
    require("charts", "plotext")
    import plotext  # noqa: PLC0415 - optional

    columns, rows = shutil.get_terminal_size((100, 30))
    plotext.clear_figure()
    plotext.theme("pro" if color else "clear")
    plotext.plot_size(columns, max(min(rows - 4, 30), 12))
    if chart.kind in _BARS:
        _draw_bars(plotext, chart, columns, color=color)
    else:
        _draw_lines(plotext, chart)
    if chart.word("title"):
        plotext.title(printable(chart.word("title")))
    text = plotext.build().rstrip("\n")
    plotext.clear_figure()
    return str(text if color else plotext.uncolorize(text))


def _draw_bars(plotext: Any, chart: Chart, columns: int, *, color: bool) -> None:
    labels, values = _table(chart)
    names = [line.name for line in chart.lines]
    if chart.kind == "piechart":
        total = sum(map(abs, values[0])) or 1.0
        labels = [f"{label} {100 * value / total:.1f} %" for label, value in zip(labels, values[0], strict=True)]
        values, names = values[:1], names[:1]
        chart.notes.append("A terminal draws no circles: the slices are bars. --output FILE.svg draws the pie.")
    flat = chart.kind != "columnchart"
    if flat:
        labels, values = labels[::-1], [each[::-1] for each in values]
        plotext.plot_size(columns, max(len(labels) * (1 if chart.is_stacked else len(values)) + 4, 8))
    labels = [label[: max(columns // 3, 8)] for label in labels]
    options = {"orientation": "horizontal" if flat else "vertical", "width": 0.6}
    if len(values) == 1:
        plotext.bar(labels, values[0], **options)
        return
    if not color:
        chart.notes.append(f"From bottom to top at each place: {', '.join(names)}." if flat else f"{', '.join(names)}.")
    together = plotext.stacked_bar if chart.is_stacked else plotext.multiple_bar
    together(labels, values, labels=names, **options)


def _draw_lines(plotext: Any, chart: Chart) -> None:
    lines = _prepared(chart)
    places: list[Any] = [] if chart.x != "text" else list(dict.fromkeys(at for line in lines for at in line.x))
    index = {at: number for number, at in enumerate(places)}
    for line in lines:
        x = [_position(chart.x, at, index) for at in line.x]
        if not x:
            continue
        label = line.name if chart.word("legend") != "hidden" else None
        if chart.kind == "scatterchart":
            plotext.scatter(x, line.y, label=label)
        else:
            filled = chart.kind in {"areachart", "stackedareachart"} and len(lines) == 1
            plotext.plot(x, line.y, label=label, marker="braille", fillx=filled)
    _marks(plotext, chart, lines)
    _ticks(plotext, chart, lines, places)
    plotext.xlabel(printable(chart.word("xtitle")))
    plotext.ylabel(printable(chart.word("ytitle")))
    low, high = (chart.properties.get(name) for name in ("ymin", "ymax"))
    if low is not None or high is not None:
        plotext.ylim(low, high)
    for axis, scale in (("xaxis", plotext.xscale), ("yaxis", plotext.yscale)):
        if chart.word(axis) == "log":
            scale("log")


def _position(kind: str, at: Any, index: dict[Any, int]) -> float:
    return at.timestamp() if kind == "datetime" else index[at] if kind == "text" else float(at)


def _ticks(plotext: Any, chart: Chart, lines: list[Line], places: list[Any]) -> None:
    if chart.x == "text":
        step = max(len(places) // 8, 1)
        plotext.xticks(list(range(0, len(places), step)), [str(each)[:12] for each in places[::step]])
    elif chart.x == "datetime":
        timestamps = sorted({at for line in lines for at in line.x})
        if not timestamps:
            return
        first, last = timestamps[0], timestamps[-1]
        spans = ((timedelta(hours=1), "%H:%M:%S"), (timedelta(days=7), "%m-%d %H:%M"), (timedelta.max, "%Y-%m-%d"))
        shown = next(text for longest, text in spans if last - first < longest)
        ticks = [first + (last - first) * part / 4 for part in range(5)] if last > first else [first]
        plotext.xticks([each.timestamp() for each in ticks], [each.strftime(shown) for each in ticks])


def _marks(plotext: Any, chart: Chart, lines: list[Line]) -> None:
    """Draw the points that an anomaly chart flags: those whose value in ``anomalycolumns`` is not zero."""
    for x, y in _anomalies(chart, lines):
        plotext.scatter([_position(chart.x, x, {})], [y], marker="x", color="red")


def _anomalies(chart: Chart, lines: list[Line]) -> list[tuple[Any, float]]:
    flags = {each.strip() for each in chart.word("anomalycolumns").split(",") if each.strip()}
    if chart.kind != "anomalychart" or not flags or chart.x == "text":
        return []
    flagged = {at for line in lines if line.name in flags for at, value in zip(line.x, line.y, strict=True) if value}
    return [
        (at, value)
        for line in lines
        if line.name not in flags
        for at, value in zip(line.x, line.y, strict=True)
        if at in flagged and value is not None
    ]


# Files.


def save(chart: Chart, path: Path) -> None:
    """Write the chart to an SVG or PNG file."""
    require("charts", "matplotlib")
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    figure = Figure(figsize=(10, 5.5), layout="constrained")
    axes = figure.add_subplot()
    if chart.kind == "card":
        axes.axis("off")
        text = "\n".join(f"{printable(line.name)}: {printable(str(line.y[0]))}" for line in chart.lines)
        axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=28)
    elif chart.kind in _BARS:
        _save_bars(axes, chart)
    else:
        _save_lines(axes, chart)
    axes.set_title(chart.word("title"))
    if chart.kind not in {"card", "piechart"}:
        axes.set_xlabel(chart.word("xtitle"))
        axes.set_ylabel(chart.word("ytitle"))
        if len(chart.lines) > 1 and chart.word("legend") != "hidden":
            axes.legend()
    # Without the date and random names, so that equal charts are equal files.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _save_bars(axes: Any, chart: Chart) -> None:
    labels, values = _table(chart)
    if chart.kind == "piechart":
        axes.pie([abs(value) for value in values[0]], labels=labels, autopct="%1.1f%%")
        return
    height = 0.8 if chart.is_stacked else 0.8 / len(values)
    below = [0.0] * len(labels)
    for index, (line, own) in enumerate(zip(chart.lines, values, strict=True)):
        at = [place + (0 if chart.is_stacked else index * height) for place in range(len(labels))]
        start = below if chart.is_stacked else [0.0] * len(labels)
        if chart.kind == "barchart":
            axes.barh(at, own, height, left=start, label=line.name)
        else:
            axes.bar(at, own, height, bottom=start, label=line.name)
        below = [one + other for one, other in zip(below, own, strict=True)]
    middle = [place + (0 if chart.is_stacked else 0.4 - height / 2) for place in range(len(labels))]
    if chart.kind == "barchart":
        axes.set_yticks(middle, labels)
        axes.invert_yaxis()
    else:
        axes.set_xticks(middle, labels, rotation=30 if len(labels) > _MOST_LINES else 0)


def _save_lines(axes: Any, chart: Chart) -> None:
    lines = _prepared(chart)
    below: list[float] | None = None
    for line in lines:
        values = [value for value in line.y if value is not None]
        if chart.kind == "scatterchart":
            axes.scatter(line.x, values, s=12, label=line.name)
            continue
        (drawn,) = axes.plot(line.x, values, label=line.name)
        if chart.kind in {"areachart", "stackedareachart"}:
            lower = below if chart.is_stacked and below is not None else [0.0] * len(values)
            axes.fill_between(line.x, lower, values, alpha=0.4, color=drawn.get_color())
            below = values
    marked = _anomalies(chart, lines)
    if marked:
        axes.scatter([x for x, _ in marked], [y for _, y in marked], marker="x", color="red", zorder=3)
    for axis, scale in (("xaxis", axes.set_xscale), ("yaxis", axes.set_yscale)):
        if chart.word(axis) == "log":
            scale("log")
    if "ymin" in chart.properties or "ymax" in chart.properties:
        axes.set_ylim(chart.properties.get("ymin"), chart.properties.get("ymax"))
