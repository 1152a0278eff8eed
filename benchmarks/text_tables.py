"""A run as tables of text, for the terminal and for the page alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.svg import bytes_text, count_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.records import Record, Run

__all__ = ["Grid", "grids"]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: what stands above it, its head and its rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def grids(run: Run) -> list[Grid]:
    """Return the tables of a run, those of the ladder first."""
    found = _ladder(run)
    for section in dict.fromkeys(each.section for each in run.records):
        if section != "ladder":
            found.append(_listed(section, run.of(section)))
    return found


def _ladder(run: Run) -> list[Grid]:
    records = run.of("ladder")
    if not records:
        return []
    return [
        _crossed("The ladder and its peers: time to complete", records, _seconds),
        _crossed("Time to the first file, opening included", records, _first),
        _crossed("Peak memory above imports", records, _peak),
        _crossed("Requests", [each for each in records if each.requests is not None], _requests),
        _crossed("Bytes read", [each for each in records if each.bytes is not None], _bytes),
    ]


def _crossed(title: str, records: Sequence[Record], cell: Callable[[Record], str]) -> Grid:
    """Put contenders beside questions."""
    asked = list(dict.fromkeys(each.question for each in records))
    names = list(dict.fromkeys(each.contender for each in records))
    cells = {(each.contender, each.question): cell(each) for each in records}
    rows = [[name, *(cells.get((name, question), "") for question in asked)] for name in names]
    return Grid(title, ["", *asked], rows)


def _listed(section: str, records: Sequence[Record]) -> Grid:
    """Give every record a line, and only those columns that any of them has."""
    columns: list[tuple[str, Callable[[Record], str]]] = [
        ("question", lambda each: each.question),
        ("circumstances", _variant),
        ("by", lambda each: each.contender),
        ("complete", _seconds),
        ("first file", _first),
        ("memory", _peak),
        ("requests", _requests),
        ("read", _bytes),
        ("round trips", lambda each: "" if each.round_trips is None else str(each.round_trips)),
        ("to the first", lambda each: "" if each.first_round_trips is None else str(each.first_round_trips)),
        ("", lambda each: ", ".join(f"{count_text(value)} {name}" for name, value in each.figures.items())),
    ]
    kept = [(head, cell) for head, cell in columns if any(cell(each) for each in records)]
    return Grid(
        section.capitalize(), [head for head, _ in kept], [[cell(each) for _, cell in kept] for each in records]
    )


def _variant(record: Record) -> str:
    return ", ".join(
        f"{name} {count_text(value) if isinstance(value, int) and not isinstance(value, bool) else value}"
        for name, value in record.variant.items()
    )


def _seconds(record: Record) -> str:
    if record.seconds is None:
        return record.failure or ""
    return seconds_text(record.seconds)


def _first(record: Record) -> str:
    return "" if record.first_seconds is None else seconds_text(record.first_seconds)


def _peak(record: Record) -> str:
    return "" if record.peak_bytes is None else bytes_text(record.peak_bytes)


def _requests(record: Record) -> str:
    return "" if record.requests is None else str(record.requests)


def _bytes(record: Record) -> str:
    return "" if record.bytes is None else bytes_text(record.bytes)
