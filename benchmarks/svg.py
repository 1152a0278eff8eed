"""Small plots as SVG text: lines over two logarithmic axes, and bars over one. The same numbers make the same bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Bar", "Series", "bar_plot", "bytes_text", "count_text", "line_plot", "seconds_text"]

_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 190, 44, 48
_BAR, _BAR_LEFT, _BAR_RIGHT = 22, 150, 110
# Colours that differ for those who see no red or green, too.
_COLOURS = ("#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#009e73", "#cc79a7", "#555555")
_STYLE = "font-family='sans-serif' font-size='12'"


@dataclass(frozen=True, slots=True)
class Series:
    """A line with its name; points have positive coordinates. ``synthetic`` are the x of points of made-up tables."""

    name: str
    points: Sequence[tuple[float, float]]
    synthetic: frozenset[float] = frozenset()


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar; without a value its note says why there is none. ``ours`` are set apart by colour."""

    name: str
    value: float | None
    note: str = ""
    ours: bool = False


def line_plot(
    title: str,
    axis: str,
    series: Sequence[Series],
    *,
    across: Callable[[float], str],
    up: Callable[[float], str],
) -> str:
    """Draw lines over logarithmic axes; ``across`` and ``up`` write the numbers beside them."""
    drawn = [each for each in series if each.points]
    if not drawn:
        raise ValueError(f"there is nothing to draw in {title!r}")
    xs = _decades([x for each in drawn for x, _ in each.points])
    ys = _decades([y for each in drawn for _, y in each.points])
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return _between(x, xs, _LEFT, right), _between(y, ys, bottom, _TOP)

    parts = [_text(_LEFT, 24, title, size=15)]
    for value in xs:
        x, _ = place(value, ys[0])
        parts += [_line(x, _TOP, x, bottom), _text(x, bottom + 18, across(value), anchor="middle")]
    for value in ys:
        _, y = place(xs[0], value)
        parts += [_line(_LEFT, y, right, y), _text(_LEFT - 8, y + 4, up(value), anchor="end")]
    noted = f"{axis} (hollow: synthetic manifest)" if any(each.synthetic for each in drawn) else axis
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 10, noted, anchor="middle"))
    ends = _apart([place(*each.points[-1])[1] for each in drawn])
    for number, each in enumerate(drawn):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [place(*point) for point in each.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2.5'/>")
        for (at, _), (x, y) in zip(each.points, places, strict=True):
            fill = f"#ffffff' stroke='{colour}" if at in each.synthetic else colour
            parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{fill}'/>")
        label = f"{each.name}: {up(each.points[-1][1])}"
        parts.append(_text(places[-1][0] + 10, ends[number] + 4, label, colour=colour))
    return _svg(_WIDTH, _HEIGHT, parts)


def bar_plot(title: str, bars: Sequence[Bar], *, across: Callable[[float], str]) -> str:
    """Draw bars of logarithmic length, each with its value."""
    known = [each.value for each in bars if each.value is not None]
    if not known:
        raise ValueError(f"there is nothing to draw in {title!r}")
    xs = _decades(known)
    bottom = _TOP + _BAR * len(bars)
    right = _WIDTH - _BAR_RIGHT
    parts = [_text(12, 24, title, size=15)]
    for value in xs:
        x = _between(value, xs, _BAR_LEFT, right)
        parts += [_line(x, _TOP, x, bottom), _text(x, bottom + 18, across(value), anchor="middle")]
    for number, each in enumerate(bars):
        y = _TOP + _BAR * number
        parts.append(_text(_BAR_LEFT - 8, y + 15, each.name, anchor="end"))
        if each.value is None:
            parts.append(_text(_BAR_LEFT + 6, y + 15, each.note, colour="#b00020"))
            continue
        # Logarithms have no zero to begin at: the shortest bar begins a little before the first line.
        end = _between(each.value, xs, _BAR_LEFT, right)
        colour = _COLOURS[0] if each.ours else _COLOURS[3]
        width = max(2.0, end - _BAR_LEFT)
        parts.append(f"<rect x='{_BAR_LEFT}' y='{y + 4}' width='{width:.1f}' height='{_BAR - 8}' fill='{colour}'/>")
        parts.append(_text(_BAR_LEFT + width + 6, y + 15, across(each.value)))
    return _svg(_WIDTH, bottom + 32, parts)


def _decades(values: Sequence[float]) -> list[float]:
    """Return the powers of ten around the values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def _between(value: float, scale: Sequence[float], start: float, end: float) -> float:
    low, high = math.log10(scale[0]), math.log10(scale[-1])
    return start + (math.log10(value) - low) / (high - low) * (end - start)


def _apart(heights: Sequence[float], least: float = 15) -> list[float]:
    """Move labels apart that would lie on each other."""
    found = list(heights)
    before: float | None = None
    for index in sorted(range(len(found)), key=lambda each: found[each]):
        if before is not None and found[index] < before + least:
            found[index] = before + least
        before = found[index]
    return found


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='#cccccc'/>"


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = "#333333") -> str:
    place = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'"
    return f"<text {place} font-size='{size}' fill='{colour}'>{escape(text)}</text>"


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    size = f"width='{width:.0f}' height='{height:.0f}' viewBox='0 0 {width:.0f} {height:.0f}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} {_STYLE}>"
    # White, because a page may be dark.
    return "\n".join([head, "<rect width='100%' height='100%' fill='#ffffff'/>", *parts, "</svg>\n"])


def seconds_text(value: float) -> str:
    """Write seconds as people say them."""
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def bytes_text(value: float) -> str:
    """Write megabytes or gigabytes."""
    megabytes = value / 1e6
    return f"{megabytes:.3g} MB" if megabytes < 1000 else f"{megabytes / 1000:.3g} GB"


def count_text(value: float) -> str:
    """Write a count: 10 k, 1 M, 1 B."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"
