"""``make bench``: the ladder, the object store, growth and the write side in one run, as tables, JSON and plots."""

from __future__ import annotations

import re
import sys
import time
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from benchmarks.growth import AGAINST, growth
from benchmarks.ladder import PEERS, ladder
from benchmarks.object_store import bases, object_store
from benchmarks.published import place_of, publish
from benchmarks.records import Record, Run, disagreements, machine, packages
from benchmarks.rungs import LADDER
from benchmarks.text_tables import grids
from benchmarks.write_side import write_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

RESULTS = Path(__file__).resolve().parent / "results"
_PARTS = ("ladder", "object-store", "object-store-bases", *(f"growth-{each}" for each in AGAINST), "write")
_CONTENDERS = (*PEERS, *(rung.name for rung in LADDER), "floor")
_SCALE = re.compile(r"(\d+)\s*([kKmM]?)")
_TIMES = {"": 1, "k": 1_000, "m": 1_000_000}


def files_of(scale: str) -> int:
    """Return the number of files that ``1M`` or ``100k`` says."""
    match = _SCALE.fullmatch(scale.strip())
    if match is None or not int(match[1]):
        raise click.BadParameter(f"{scale!r} is no size: write 100k, 1M, 10M")
    return int(match[1]) * _TIMES[match[2].lower()]


@click.command()
@click.option("--scale", default="1M", show_default=True, help="Files in the table: 100k, 1M, 10M.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Medians are over these.")
@click.option("--part", "parts", type=click.Choice(_PARTS), multiple=True, help="Run these parts; all without it.")
@click.option("--spark/--no-spark", default=True, help="Whether Spark and Delta-Spark are measured.")
@click.option("--iceberg/--no-iceberg", default=True, help="Whether PyIceberg is; to write its table takes minutes.")
@click.option("--question", "names", multiple=True, help="Questions of the ladder; all without it.")
@click.option(
    "--contender", "asked", type=click.Choice(_CONTENDERS), multiple=True, help="Who climbs it; all without it."
)
@click.option("--resume", is_flag=True, help="Go on with the last run of this size that was stopped.")
@click.option("--publish", "publishes", is_flag=True, help="Write the page, the plots and the JSON in docs, too.")
def main(  # noqa: PLR0913 - one for each option
    *,
    scale: str,
    rounds: int,
    parts: tuple[str, ...],
    spark: bool,
    iceberg: bool,
    names: tuple[str, ...],
    asked: tuple[str, ...],
    resume: bool,
    publishes: bool,
) -> None:
    """Measure lazydelta and its peers; exit with 1 where they find different files, or a part fails."""
    files = files_of(scale)
    wanted = parts or _PARTS
    file = unfinished_run(files, wanted) if resume else None
    if resume:
        click.echo("nothing to go on with: a new run begins" if file is None else f"going on with {file}", err=True)
    file = file or RESULTS / f"run-{files}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    run = Run.load(file) if file.exists() else Run(files, (), machine(), packages())
    done = frozenset(each.key for each in run.records)
    work: dict[str, Callable[[], Iterable[Record]]] = {
        "ladder": lambda: ladder(files, rounds, spark=spark, iceberg=iceberg, names=names, only=asked, done=done),
        "object-store": lambda: object_store(min(files, 100_000)),
        "object-store-bases": lambda: bases(files),
        "write": lambda: write_side(files, rounds, spark=spark),
    }
    work |= {f"growth-{each}": partial(growth, files, rounds, each, done) for each in AGAINST}
    run, failed = measured(run, {name: work[name] for name in wanted}, file)
    show(run)
    click.echo(f"written to {file}")
    if publishes:
        before = place_of(run)
        if (parts or names or asked) and before.exists():
            run = merged(Run.load(before), run)
        for each in publish(run):
            click.echo(f"written to {each}")
    wrong = [f"different answers: {words}" for words in disagreements(run.records)]
    wrong += [f"{name} failed: `--resume` goes through it again" for name in failed]
    for words in wrong:
        click.echo(words, err=True)
    sys.exit(1 if wrong else 0)


def measured(run: Run, work: Mapping[str, Callable[[], Iterable[Record]]], file: Path) -> tuple[Run, list[str]]:
    """Go through the parts that the run does not have yet; return it, and which of them failed.

    Each record is in the file when it is there: a run takes hours, and may be stopped. A part that was begun goes on
    where it knows what is done, and else is begun anew; what it had is kept until it is measured again. A part that
    fails does not end the others.
    """
    records = {each.key: each for each in run.records}
    failed = []
    run.save(file)
    for name in work:
        if name in run.parts:
            click.echo(f"{name}: done before", err=True)
            continue
        click.echo(name, err=True)
        try:
            for record in work[name]():
                records[record.key] = record
                run = replace(run, records=tuple(records.values()))
                run.save(file)
        except Exception:  # noqa: BLE001 - whatever it is, the others are worth having
            traceback.print_exc()
            failed.append(name)
            continue
        run = replace(run, parts=(*run.parts, name))
        run.save(file)
    return run, failed


def unfinished_run(files: int, wanted: Sequence[str], folder: Path = RESULTS) -> Path | None:
    """Return the newest run of this size if it lacks some of these parts."""
    newest = max(folder.glob(f"run-{files}-*.json"), default=None)
    return None if newest is None or set(wanted) <= set(Run.load(newest).parts) else newest


def merged(old: Run, new: Run) -> Run:
    """Put what was measured anew in the place of what was there before, and keep the rest."""
    records = {each.key: each for each in (*old.records, *new.records)}
    return replace(new, records=tuple(records.values()), parts=tuple(dict.fromkeys((*old.parts, *new.parts))))


def show(run: Run) -> None:
    """Print all tables."""
    console = Console(width=None if Console().is_terminal else 160)
    for grid in grids(run):
        table = Table(*grid.head, title=grid.title, title_justify="left")
        for row in grid.rows:
            table.add_row(*row)
        console.print(table)


if __name__ == "__main__":
    main()
