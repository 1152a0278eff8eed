"""``python -m benchmarks``: run, print, keep the numbers, and fail when a promise is missed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks import cluster_build, discovery, engines, everyday, ingest, kql, merging, serving, sidecar, spark_read
from benchmarks import rows as row_reading
from benchmarks.report import Result, print_results, save_results

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.discovery import Case, Contender
    from benchmarks.measure import Measurement


@dataclass(frozen=True, slots=True)
class Suite:
    """Cases of one size, ``gated`` being the one that promises are about; ``show`` prints what only this suite has."""

    cases: Callable[[int], list[Case]]
    gated: int
    unit: str
    show: Callable[[list[Result]], None] | None = None


SUITES = {
    "cluster-build": Suite(cluster_build.cases, cluster_build.FILES, "files", cluster_build.print_details),
    "discovery": Suite(discovery.cases, discovery.GATED_FILES, "files"),
    "engine-memory": Suite(engines.memory_cases, engines.MEMORY_FILES, "files"),
    "engines": Suite(engines.cases, engines.GATED_FILES, "files"),
    "everyday": Suite(everyday.cases, everyday.GATED_COLUMNS, "columns"),
    "ingest": Suite(ingest.cases, ingest.GATED_ROWS, "rows", ingest.print_details),
    "kql": Suite(kql.cases, kql.GATED_ROWS, "rows"),
    "merge": Suite(merging.cases, merging.GATED_FILES, "files"),
    "rows": Suite(row_reading.cases, row_reading.GATED_ROWS, "rows"),
    "sidecar": Suite(sidecar.cases, sidecar.GATED_FILES, "files"),
    "spark-read": Suite(spark_read.cases, spark_read.GATED_FILES, "files"),
}
SERVING = "serving"
NAMES = sorted([*SUITES, SERVING])
RESULTS = Path(__file__).resolve().parent / "results"


@click.command()
@click.option("--files", type=click.IntRange(min=1), help="Instead of the size that the promises are about.")
@click.option("--rows", type=click.IntRange(min=1), help="The same for suites that write rows.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Medians are over these.")
@click.option("--only", type=click.Choice(NAMES), multiple=True, help="Run these suites; all without it.")
@click.option("--case", "wanted", help="Run the cases whose name holds this text.")
@click.option("--gates-only", is_flag=True, help="Leave out what only informs.")
def main(
    *, files: int | None, rows: int | None, rounds: int, only: tuple[str, ...], wanted: str | None, gates_only: bool
) -> None:
    """Measure lazydelta beside deltalake; exit with 1 when a promise is missed."""
    misses: list[str] = []
    if not only or SERVING in only:
        # Two processes that talk to each other, which no pair of contenders is.
        misses += serving.run(files or serving.GATED_FILES, rounds)
    for name in [each for each in only or sorted(SUITES) if each != SERVING]:
        suite = SUITES[name]
        size = (rows if suite.unit == "rows" else files) or suite.gated
        click.echo(f"{name}: preparing a table of {size:,} {suite.unit}", err=True)
        chosen = [
            case
            for case in suite.cases(size)
            if (wanted is None or wanted in case.name) and (case.gate is not None or not gates_only)
        ]
        known: dict[tuple[Contender, int], Measurement] = {}
        results = [run_case(case, rounds, known, gated=size == suite.gated) for case in chosen]
        print_results(f"{name}, {size:,} {suite.unit}, medians of {rounds}", results)
        if suite.show is not None:
            suite.show(results)
        click.echo(f"written to {save_results(RESULTS, name, size, results)}")
        misses += [miss for result in results for miss in result.misses()]
    for miss in misses:
        click.echo(f"missed: {miss}", err=True)
    sys.exit(1 if misses else 0)


def run_case(case: Case, rounds: int, known: dict[tuple[Contender, int], Measurement], *, gated: bool) -> Result:
    """Measure both sides of a case; ``known`` has the shared work that was measured already, by contender and round."""
    ours: list[Measurement] = []
    theirs: list[Measurement] = []
    for number in range(rounds):
        click.echo(f"  {case.name}, round {number + 1}", err=True)
        sides = [(case.ours, ours)] + ([(case.theirs, theirs)] if case.theirs is not None else [])
        # Turn about, so that a machine that slows down or a warm cache favours neither.
        for contender, runs in sides if number % 2 == 0 else reversed(sides):
            found = known.get((contender, number)) if contender.shared else None
            runs.append(found or contender.run())
            if contender.shared:
                known[contender, number] = runs[-1]
    return Result(case, ours, theirs, gated=gated)


if __name__ == "__main__":
    main()
