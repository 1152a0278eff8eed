"""``python -m benchmarks``: run, print, keep the numbers, and fail when a promise is missed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks import discovery, sidecar
from benchmarks.report import Result, print_results, save_results

if TYPE_CHECKING:
    from benchmarks.discovery import Case
    from benchmarks.measure import Measurement

SUITES = {"discovery": discovery, "sidecar": sidecar}
RESULTS = Path(__file__).resolve().parent / "results"


@click.command()
@click.option("--files", type=click.IntRange(min=1), help="Instead of the size that the promises are about.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Medians are over these.")
@click.option("--only", type=click.Choice(sorted(SUITES)), multiple=True, help="Run these suites; all without it.")
@click.option("--case", "wanted", help="Run the cases whose name holds this text.")
@click.option("--gates-only", is_flag=True, help="Leave out what only informs.")
def main(*, files: int | None, rounds: int, only: tuple[str, ...], wanted: str | None, gates_only: bool) -> None:
    """Measure lazydelta beside deltalake; exit with 1 when a promise is missed."""
    misses: list[str] = []
    for suite in only or sorted(SUITES):
        size = files or SUITES[suite].GATED_FILES
        click.echo(f"{suite}: preparing a table of {size:,} files", err=True)
        chosen = [
            case
            for case in SUITES[suite].cases(size)
            if (wanted is None or wanted in case.name) and (case.gate is not None or not gates_only)
        ]
        results = [_run(case, rounds, gated=size == SUITES[suite].GATED_FILES) for case in chosen]
        print_results(f"{suite}, {size:,} files, medians of {rounds}", results)
        click.echo(f"written to {save_results(RESULTS, suite, size, results)}")
        misses += [miss for result in results for miss in result.misses()]
    for miss in misses:
        click.echo(f"missed: {miss}", err=True)
    sys.exit(1 if misses else 0)


def _run(case: Case, rounds: int, *, gated: bool) -> Result:
    ours: list[Measurement] = []
    theirs: list[Measurement] = []
    for number in range(rounds):
        click.echo(f"  {case.name}, round {number + 1}", err=True)
        sides = [(case.ours, ours)] + ([(case.theirs, theirs)] if case.theirs is not None else [])
        # Turn about, so that a machine that slows down or a warm cache favours neither.
        for contender, runs in sides if number % 2 == 0 else reversed(sides):
            runs.append(contender.run())
    return Result(case, ours, theirs, gated=gated)


if __name__ == "__main__":
    main()
