"""The page and the plots that a run is published as: ``docs/benchmarks.md``, its SVG files, and the README.

    python -m benchmarks.published [RUN.json]

A run that is given, also one that was stopped, takes the place of the published one of its size; the page says what it
lacks. Everything here follows from ``docs/benchmarks/run-*.json`` alone, one for each size of the table, so that a
number on the page that no run has is an error that a test finds. Plots are of the largest table that has the numbers.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.growth import SECTIONS
from benchmarks.ladder import PEERS
from benchmarks.records import Record, Run
from benchmarks.svg import Bar, Series, bar_plot, bytes_text, count_text, line_plot, seconds_text
from benchmarks.text_tables import Grid, grids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["FOLDER", "left_out", "page", "place_of", "plots", "publish", "published_runs", "readme_part"]

_ROOT = Path(__file__).resolve().parents[1]
FOLDER = _ROOT / "docs" / "benchmarks"
_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"
_QUESTIONS = ("one hour", "24 hours", "30 days", "take 100", "take 1000", "all files", "statistics")
_README_PLOTS = ("growth-time.svg", "growth-memory.svg")
_README_QUESTIONS = {
    "one hour": "files of one hour, by SQL text",
    "24 hours": "files of 24 hours",
    "take 100": "any 100 files",
    "all files": "all files",
    "statistics": "files by the statistics of a column that nothing is sorted by",
}
# L7 is a first query without any option.
_README_CONTENDERS = {
    "L7": "lazydelta",
    "L0 deltalake": "deltalake",
    "DuckDB": "DuckDB's extension",
    "Polars": "Polars",
}


def place_of(run: Run) -> Path:
    """Return where the run is published: there is one of each size."""
    return FOLDER / f"run-{count_text(run.scale).replace(' ', '')}.json"


def published_runs() -> list[Run]:
    """Return what is published, the largest table first."""
    return sorted((Run.load(file) for file in FOLDER.glob("run-*.json")), key=lambda run: -run.scale)


def publish(run: Run | None = None) -> list[Path]:
    """Write plots and pages, with this run in the place of the one of its size; return what was written."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    written = []
    if run is not None:
        run.save(place_of(run))
        written.append(place_of(run))
    runs = published_runs()
    drawn = plots(runs)
    for old in FOLDER.glob("*.svg"):
        if old.name not in drawn:
            old.unlink()  # of another run, which has numbers for it
    for name, text in drawn.items():
        (FOLDER / name).write_text(text)
        written.append(FOLDER / name)
    for file, part in ((_ROOT / "docs" / "benchmarks.md", page(runs)), (_ROOT / "README.md", readme_part(runs))):
        file.write_text(between_marks(file.read_text(), part))
        written.append(file)
    return written


def between_marks(text: str, part: str) -> str:
    """Put what was measured where the page has its place."""
    pattern = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the page has no {_BEGIN} … {_END}")
    return pattern.sub(lambda _: f"{_BEGIN}\n{part}\n{_END}", text, count=1)


def plots(runs: Sequence[Run]) -> dict[str, str]:
    """Draw all plots that there are numbers for, each by the first of the runs that has them."""
    found: dict[str, str] = {}
    for run in runs:
        found = _plots(run) | found
    return dict(sorted(found.items()))


def _plots(run: Run) -> dict[str, str]:
    found = {}
    for name, title, up, value in (
        ("growth-time.svg", "Files of one hour: seconds, opening included", seconds_text, lambda each: each.seconds),
        ("growth-memory.svg", "Files of one hour: peak memory above imports", bytes_text, lambda each: each.peak_bytes),
    ):
        series = _by_size(run.of(SECTIONS[0]), "one hour", value)
        if series:
            found[name] = line_plot(title, "files in the table", series, across=count_text, up=up)
    rungs = [each for each in run.of("ladder") if each.question == "one hour" and each.contender != "floor"]
    for name, title, across, value in (
        ("ladder-time.svg", "The ladder: files of one hour, seconds", seconds_text, lambda each: each.seconds),
        ("ladder-first.svg", "The ladder: first file, seconds", seconds_text, lambda each: each.first_seconds),
        ("ladder-memory.svg", "The ladder: peak memory above imports", bytes_text, lambda each: each.peak_bytes),
    ):
        bars = [Bar(each.contender, value(each), each.failure or "", ours=_is_rung(each.contender)) for each in rungs]
        if any(bar.value is not None for bar in bars):
            heading = f"{title} ({count_text(run.scale)} files)"
            found[name] = bar_plot(heading, bars, across=across)
    return found


def _is_rung(contender: str) -> bool:
    return re.match(r"L[1-8]$", contender) is not None


def _by_size(records: Sequence[Record], question: str, value: Callable[[Record], float | None]) -> list[Series]:
    points: dict[str, list[tuple[float, float]]] = {}
    synthetic: dict[str, set[float]] = {}
    for each in records:
        found, files = value(each), float(each.variant["files"])
        if each.question == question and found:
            points.setdefault(each.contender, []).append((files, float(found)))
            if each.variant.get("synthetic"):
                synthetic.setdefault(each.contender, set()).add(files)
    return [Series(name, sorted(places), frozenset(synthetic.get(name, ()))) for name, places in points.items()]


def page(runs: Sequence[Run]) -> str:
    """Return what stands on the page between its marks."""
    parts = []
    for name in plots(runs):
        parts += [f"![{name.removesuffix('.svg').replace('-', ', ')}](benchmarks/{name})", ""]
    for run in runs:
        parts += [f"### {run.scale:,} files", "", _described(run), ""]
        missing = left_out(run)
        if missing:
            parts += [f"Not in this run: {', '.join(missing)}.", ""]
        for grid in grids(run):
            parts += [f"#### {grid.title}", "", *_markdown(grid), ""]
            if grid.note:
                parts += [grid.note, ""]
    return "\n".join(parts).rstrip()


def left_out(run: Run) -> list[str]:
    """Name the peers, questions and parts that a whole run has and this one has not: a page must not hide them."""
    ladder = run.of("ladder")
    contenders, asked = {each.contender for each in ladder}, {each.question for each in ladder}
    sections = {each.section for each in run.records}
    return [
        *(each for each in PEERS if each not in contenders),
        *(f"the question {each!r}" for each in _QUESTIONS if each not in asked),
        *(each for each in (*SECTIONS, "object store", "write side") if each not in sections),
    ]


def readme_part(runs: Sequence[Run]) -> str:
    """Return what stands in the README: the answers on the largest table, and how they grow."""
    drawn = plots(runs)
    largest = next((run for run in runs if run.of("ladder")), None)
    lines = [] if largest is None else [_described(largest), "", *_markdown(_in_short(largest)), ""]
    lines += [f"![{name.removesuffix('.svg')}](docs/benchmarks/{name})" for name in _README_PLOTS if name in drawn]
    return "\n".join(lines).rstrip()


def _in_short(run: Run) -> Grid:
    """Put questions beside a few contenders, with time and memory in one cell."""
    found = {(each.question, each.contender): each for each in run.of("ladder")}
    asked = [name for name in _README_QUESTIONS if any(question == name for question, _ in found)]
    contenders = [name for name in _README_CONTENDERS if any(contender == name for _, contender in found)]
    rows = [
        [_README_QUESTIONS[question], *(_time_and_memory(found.get((question, name))) for name in contenders)]
        for question in asked
    ]
    return Grid("", [f"{run.scale:,} files", *(_README_CONTENDERS[name] for name in contenders)], rows)


def _time_and_memory(record: Record | None) -> str:
    if record is None:
        return ""
    if record.seconds is None or record.peak_bytes is None:
        return record.failure or ""
    return f"{seconds_text(record.seconds)}, {bytes_text(record.peak_bytes)}"


def _described(run: Run) -> str:
    machine = run.machine
    busy = machine.get("load_before", 0) > machine["cores"] / 2
    state = f"with a load of {machine['load_before']} when it began" if busy else "otherwise idle"
    most = max((len(each.rounds) for each in run.records), default=0)
    how = "Each was measured once." if most <= 1 else f"Medians of {most} rounds, and one of what takes long."
    return (
        f"Measured {run.time[:10]} with a table of {run.scale:,} files on {machine['cores']} cores"
        f"\n({machine['cpu'] or machine['platform']}, {machine['memory_gb']} GB, Python {machine['python']}), {state}."
        f"\n{how}"
    )


def _markdown(grid: Grid) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    return [row(grid.head), row(["---"] * len(grid.head)), *(row(each) for each in grid.rows)]


if __name__ == "__main__":
    for each in publish(Run.load(Path(sys.argv[1])) if sys.argv[1:] else None):
        print(each.relative_to(_ROOT))
