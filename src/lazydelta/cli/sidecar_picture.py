"""A sidecar drawn in text: a bar for each row group, from its smallest to its largest value on a common axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lazydelta.cli import wording as text

if TYPE_CHECKING:
    from lazydelta.sidecar import SidecarInfo
    from lazydelta.sidecar.inspection.show import ShownRowGroup

__all__ = ["picture"]

_MOST_BARS = 40
_NARROWEST = 16
# How time boundaries are written as partition values, by their length.
_BOUNDARIES = {6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}


@dataclass(frozen=True, slots=True)
class _Bar:
    label: str
    num_rows: int
    size: int
    min: str | None
    max: str | None
    has_missing: bool


def picture(info: SidecarInfo, width: int, *, everything: bool, blocks: bool) -> Iterator[str]:
    """Yield the lines of the drawing; many row groups are drawn by part, and many parts several to a bar."""
    bars, unit = _bars(info, everything=everything)
    ends = [end for bar in bars for end in (bar.min, bar.max) if end is not None]
    if not bars:
        yield "no files, nothing to draw"
        return
    column = info.sort[0] if info.sort else "path"
    heads = [(bar.label, text.count(bar.num_rows), text.size(bar.size)) for bar in bars]
    widths = [
        max(len(name), *(len(head[place]) for head in heads)) for place, name in enumerate((unit, "files", "size"))
    ]
    room = max(_NARROWEST, width - sum(widths) - 3 * 2 - 1)
    axis = _Axis(ends)
    yield f"{unit:<{widths[0]}}  {'files':>{widths[1]}}  {'size':>{widths[2]}}  {text.printable(column)}"
    for bar, head in zip(bars, heads, strict=True):
        drawn = axis.drawn(bar, room, "█" if blocks else "#")
        missing = "+" if bar.has_missing else " "
        yield f"{head[0]:<{widths[0]}}  {head[1]:>{widths[1]}}  {head[2]:>{widths[2]}}  {drawn}{missing}".rstrip()
    if ends:
        low, high = text.printable(axis.lowest), text.printable(axis.highest)
        gap = max(1, room - len(low) - len(high))
        yield f"{'':<{sum(widths) + 3 * 2}}{low}{' ' * gap}{high}" if low != high else f"{'':<{sum(widths) + 6}}{low}"
    if any(bar.has_missing for bar in bars):
        yield f"+ holds files without {text.printable(column)}"


def _bars(info: SidecarInfo, *, everything: bool) -> tuple[list[_Bar], str]:
    groups = [
        (f"{number}/{group.index}", [group]) for number, part in enumerate(info.parts, 1) for group in part.row_groups
    ]
    if everything or len(groups) <= _MOST_BARS:
        return [_bar(label, members) for label, members in groups], "part/group"
    parts = [(number, part.row_groups) for number, part in enumerate(info.parts, 1) if part.row_groups]
    step = -(-len(parts) // _MOST_BARS)
    bars = []
    for start in range(0, len(parts), step):
        some = parts[start : start + step]
        label = str(some[0][0]) if len(some) == 1 else f"{some[0][0]}-{some[-1][0]}"
        bars.append(_bar(label, [group for _, members in some for group in members]))
    return bars, "part"


def _bar(label: str, groups: Sequence[ShownRowGroup]) -> _Bar:
    # Rows are sorted, so the first group has the smallest value and the last one with a value the largest.
    known = [group for group in groups if group.min is not None and group.max is not None]
    return _Bar(
        label,
        sum(group.num_rows for group in groups),
        sum(group.size_bytes for group in groups),
        known[0].min if known else None,
        known[-1].max if known else None,
        any(len(group.last) > 1 and group.last[0] is None for group in groups),
    )


class _Axis:
    """Places values between the smallest and the largest: by time or number, or by rank where they are just text."""

    def __init__(self, values: Sequence[str]) -> None:
        numbers = [_number(value) for value in values]
        self._places: dict[str, float] = {}
        if all(number is not None for number in numbers):
            self._places = {value: number for value, number in zip(values, numbers, strict=True) if number is not None}
        else:
            self._places = {value: float(rank) for rank, value in enumerate(sorted(set(values)))}
        ordered = sorted(self._places, key=self._places.__getitem__)
        self.lowest, self.highest = (ordered[0], ordered[-1]) if ordered else ("", "")

    def drawn(self, bar: _Bar, room: int, mark: str) -> str:
        if bar.min is None or bar.max is None:
            return " " * room
        low, high = self._places[self.lowest], self._places[self.highest]
        scale = (room - 1) / (high - low) if high > low else 0.0
        start = round((self._places[bar.min] - low) * scale)
        end = max(start, round((self._places[bar.max] - low) * scale))
        return (" " * start + mark * (end - start + 1)).ljust(room)


def _number(value: str) -> float | None:
    form = _BOUNDARIES.get(len(value)) if value.isdigit() else None
    if form is not None:
        try:
            return datetime.strptime(value, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            pass
    try:
        return float(value)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
