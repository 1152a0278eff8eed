"""``draw``: an explanation as a picture in SVG, for notebooks, the page and documents.

The picture has no scripts, styles or links, so that it can be shown anywhere; every text in it is escaped.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import msgspec

__all__ = ["ShownGroup", "draw"]

_WIDTH, _LEFT, _RIGHT = 880, 24, 856
_INK, _SOFT, _LINE, _PAPER = "#1f2933", "#52606d", "#cbd2d9", "#ffffff"
_DARK = (
    *(("fill", _INK, "#e6edf3"), ("fill", _SOFT, "#9aa7b4"), ("fill", _PAPER, "#0f141a"), ("stroke", _LINE, "#303a45")),
    *(("fill", "#d5dae1", "#3a4653"), ("fill", "#8a4b08", "#c77d2e"), ("fill", "#1a7f37", "#3fb45c")),
)
"""An attribute, its light color, and the color in a dark window."""
_READ, _PRUNED, _TAIL, _KEPT, _EAGER = "#1f6feb", "#d5dae1", "#d9730d", "#1a7f37", "#8a4b08"
_PREFIX = "delta.lazy."
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_KILO = 1000
_MOST_LINES = 6
_LONGEST = 128
_MOST_BARS = 1500
_FONT = "ui-sans-serif, system-ui, sans-serif"


class ShownGroup(msgspec.Struct, frozen=True):
    """A row group of the base on the axis of time, in seconds since 1970: its files, and what ruled it out, if any."""

    first: float
    last: float
    files: int
    pruned_by: str | None = None


def draw(
    plan: Mapping[str, Any],
    metrics: Mapping[str, Any],
    *,
    groups: Sequence[ShownGroup] = (),
    eager_bytes: int | None = None,
    title: str | None = None,
) -> str:
    """Return the picture of a plan and its metrics.

    ``groups`` are the row groups of the base, if a manifest has them. ``eager_bytes`` is what a reader loads that reads
    the whole checkpoint and every commit after it.
    """
    found = {name.removeprefix(_PREFIX): value for name, value in metrics.items()}
    canvas = _Canvas()
    name = str(title or plan.get("table") or "table").rstrip("/").rpartition("/")[2]
    canvas.text(_LEFT, 30, f"{name}, version {plan.get('version')}", size=17, weight=600)
    emitted, considered = int(found.get("files_emitted") or 0), int(found.get("files_considered") or 0)
    requests = int(found.get("requests") or 0)
    summary = f"{emitted:,} of {considered:,} files · {requests:,} {'request' if requests == 1 else 'requests'}"
    canvas.text(_LEFT, 50, f"{summary} · {_size(found.get('bytes_read'))} read · {plan.get('reason')}", color=_SOFT)
    y = _draw_axis(canvas, 72, groups, plan)
    y = _draw_funnel(canvas, y, found, considered)
    y = _draw_bytes(canvas, y, int(found.get("bytes_read") or 0), eager_bytes)
    y = _draw_conditions(canvas, y, [str(each) for each in plan.get("conditions") or ()])
    words = f"{summary}; {_size(found.get('bytes_read'))} read. " + " ".join(map(str, plan.get("conditions") or ()))
    return canvas.finished(y + 8, f"How a scan of {name} went", words)


class _Canvas:
    """Collects the elements of a picture."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def text(self, x: float, y: float, text: str, **how: Any) -> None:
        size, weight, anchor = how.get("size", 13), how.get("weight", 400), how.get("anchor", "start")
        shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
        place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
        self._parts.append(f'<text {place} fill="{how.get("color", _INK)}">{escape(shown)}</text>')

    def bar(self, x: float, y: float, size: tuple[float, float], color: str, tip: str = "") -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" width="{max(size[0], 0.6):.1f}" height="{max(size[1], 0):.1f}"'
        inside = f"<title>{escape(tip)}</title>" if tip else ""
        self._parts.append(f'<rect {place} fill="{color}" rx="1">{inside}</rect>')

    def line(self, x: float, y: float, to: float) -> None:
        self._parts.append(f'<line x1="{x}" y1="{y:.1f}" x2="{to}" y2="{y:.1f}" stroke="{_LINE}"/>')

    def finished(self, height: float, title: str, words: str) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}"'
        told = f"<title>{escape(title)}</title><desc>{escape(words)}</desc>"
        dark = "".join(f'.lazydelta [{name}="{light}"]{{{name}:{color}}}' for name, light, color in _DARK)
        told += f"<style>@media (prefers-color-scheme:dark){{{dark}}}</style>"
        paper = f'<rect width="{_WIDTH}" height="{height:.0f}" fill="{_PAPER}"/>'
        head += f' height="{height:.0f}" role="img" class="lazydelta" font-family="{_FONT}"'
        return f"{head}>{told}{paper}{''.join(self._parts)}</svg>"


def _draw_axis(canvas: _Canvas, y: float, groups: Sequence[ShownGroup], plan: Mapping[str, Any]) -> float:
    """Draw the row groups of the base and the tail after them."""
    tail = int(plan.get("tail_commits") or 0)
    right = _RIGHT - (70 if tail else 0)
    if not groups:
        told = "the base has no manifest: every entry of the checkpoint was looked at"
        canvas.text(_LEFT, y + 16, plan.get("sidecar") or told, color=_SOFT)
        return y + 34
    shown = groups if len(groups) <= _MOST_BARS else _merged(groups)
    start, end = min(each.first for each in shown), max(each.last for each in shown)
    scale = (right - _LEFT) / max(end - start, 1.0)
    tallest = max(each.files / max(each.last - each.first, 1.0) for each in shown)
    for each in shown:
        height = 18 + 46 * (each.files / max(each.last - each.first, 1.0)) / tallest
        color = _READ if each.pruned_by is None else _PRUNED
        why = "read" if each.pruned_by is None else f"left out by {each.pruned_by}"
        tip = f"{_timestamp(each.first)} to {_timestamp(each.last)}: {each.files:,} files, {why}"
        width = max((each.last - each.first) * scale - 0.5, 0.8)
        canvas.bar(_LEFT + (each.first - start) * scale, y + 70 - height, (width, height), color, tip)
    if tail:
        canvas.bar(right + 10, y + 24, (50, 46), _TAIL, f"the tail: {tail} commits since the checkpoint")
        canvas.text(right + 35, y + 86, f"tail {tail}", size=11, anchor="middle", color=_SOFT)
    canvas.line(_LEFT, y + 71, right)
    canvas.text(_LEFT, y + 86, _timestamp(start), size=11, color=_SOFT)
    canvas.text(right, y + 86, _timestamp(end), size=11, anchor="end", color=_SOFT)
    read = sum(each.pruned_by is None for each in groups)
    words = f"{read} of {len(groups)} row groups of the base may hold a match (blue)"
    canvas.text((_LEFT + right) / 2, y + 86, words, size=11, anchor="middle", color=_SOFT)
    return y + 104


def _draw_funnel(canvas: _Canvas, y: float, found: Mapping[str, Any], considered: int) -> float:
    rows = (
        ("left out", int(found.get("files_pruned") or 0), _PRUNED),
        ("removed or replaced by the tail", int(found.get("files_masked") or 0), _TAIL),
        ("returned", int(found.get("files_emitted") or 0), _KEPT),
    )
    canvas.text(_LEFT, y + 12, "files", weight=600)
    for index, (label, value, color) in enumerate(rows):
        line = y + 32 + index * 22
        canvas.text(_LEFT, line, label, color=_SOFT)
        canvas.bar(_LEFT + 210, line - 11, (470 * value / max(considered, 1), 14), color, f"{value:,} files {label}")
        canvas.text(_RIGHT, line, f"{value:,}", anchor="end")
    return y + 32 + len(rows) * 22


def _draw_bytes(canvas: _Canvas, y: float, read: int, eager: int | None) -> float:
    if not eager:
        return y + 6
    canvas.text(_LEFT, y + 12, "bytes of the log", weight=600)
    most = max(read, eager)
    for index, (label, value, color) in enumerate((("this scan", read, _READ), ("an eager reader", eager, _EAGER))):
        line = y + 32 + index * 22
        canvas.text(_LEFT, line, label, color=_SOFT)
        canvas.bar(_LEFT + 210, line - 11, (470 * value / max(most, 1), 14), color, f"{label}: {value:,} bytes")
        canvas.text(_RIGHT, line, _size(value), anchor="end")
    return y + 32 + 2 * 22


def _draw_conditions(canvas: _Canvas, y: float, conditions: Sequence[str]) -> float:
    if not conditions:
        return y
    canvas.text(_LEFT, y + 12, "conditions", weight=600)
    for index, each in enumerate(conditions[:_MOST_LINES]):
        canvas.text(_LEFT, y + 32 + index * 18, each, size=12, color=_SOFT)
    return y + 32 + min(len(conditions), _MOST_LINES) * 18


def _merged(groups: Sequence[ShownGroup]) -> list[ShownGroup]:
    """Return fewer groups for a picture: neighbours with the same fate become one bar."""
    size = -(-len(groups) // _MOST_BARS)
    found: list[ShownGroup] = []
    for each in sorted(groups, key=lambda group: group.first):
        last = found[-1] if found else None
        if last is not None and last.pruned_by == each.pruned_by and last.files < size * each.files:
            found[-1] = ShownGroup(last.first, max(last.last, each.last), last.files + each.files, each.pruned_by)
        else:
            found.append(each)
    return found


def _timestamp(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M")


def _size(value: Any) -> str:
    number, unit = float(value or 0), 0
    while number >= _KILO and unit < len(_UNITS) - 1:
        number, unit = number / _KILO, unit + 1
    return f"{number:.0f} {_UNITS[unit]}" if not unit else f"{number:.1f} {_UNITS[unit]}"
