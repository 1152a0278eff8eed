"""The write side: rows a second, the latency of a commit, sidecars, checkpoints and OPTIMIZE, beside the other writers.

Spark writes the same rows as Parquet, as Delta-Spark writes them and as our pipeline does, by the suite ``ingest``.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks import ingest
from benchmarks.ladder import one_spark
from benchmarks.ladder_tables import LADDER_TABLE, indexed_table
from benchmarks.measure import Measurement, measure
from benchmarks.records import Record, record_of
from benchmarks.sidecar import builders, grown_table, table_with_sidecar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["SECTION", "write_side"]

SECTION = "write side"
_WRITERS = ("lazydelta", "deltalake")
_COMMITS, _SMALL_FILES = 30, 100
_IMPORTS = ("lazydelta", "deltalake", "pyarrow.parquet", "obstore")


def write_side(files: int, rounds: int, *, spark: bool = True) -> Iterator[Record]:
    """Measure writers: a row for each file of the size, and sidecars and checkpoints of a table of that size."""
    yield from by_process(files, rounds)
    yield from _sidecars(files, rounds)
    if spark:
        with one_spark():
            yield from _by_spark(files, rounds)


def by_process(files: int, rounds: int) -> Iterator[Record]:
    """Measure what needs no Spark, writer by writer in turns, each in a child; records come when they are there."""
    source = str(indexed_table(files, **LADDER_TABLE)[0])
    work: list[tuple[str, str, tuple[Any, ...], Callable[[float], dict[str, float]]]] = [
        (f"append {files:,} rows", "append", (files,), lambda seconds: {"rows/s": files / seconds}),
        ("one commit of 100 rows", "commits", (_COMMITS,), lambda _: {}),
        (f"checkpoint of {files:,} files", "checkpoint", (), lambda seconds: {"files/s": files / seconds}),
        (f"OPTIMIZE of {_SMALL_FILES} files", "optimize", (_SMALL_FILES,), lambda _: {}),
    ]
    for question, name, arguments, figures in work:
        runs: dict[str, list[Measurement]] = {writer: [] for writer in _WRITERS}
        for number in range(rounds):
            for writer in _WRITERS if number % 2 == 0 else reversed(_WRITERS):
                click.echo(f"  {SECTION}, round {number + 1}: {question}, {writer}", err=True)
                with tempfile.TemporaryDirectory(prefix="lazydelta-bench-write-") as folder:
                    target = str(Path(folder) / "table")
                    given = (source, target) if name == "checkpoint" else (target, *arguments)
                    runs[writer].append(measure(f"benchmarks.write_work:{name}", writer, *given, imports=_IMPORTS))
        yield from (_figured(record_of(SECTION, writer, question, runs[writer]), figures) for writer in _WRITERS)


def _figured(record: Record, figures: Callable[[float], dict[str, float]]) -> Record:
    return record if record.seconds is None else replace(record, figures=figures(record.seconds))


def _sidecars(files: int, rounds: int) -> Iterator[Record]:
    folder, _ = table_with_sidecar(files)
    grown = grown_table(folder)
    built, refreshed = builders(folder, grown)
    for question, contender in (("build the sidecar", built), ("refresh it after ten commits", refreshed)):
        click.echo(f"  {SECTION}: {question}", err=True)
        runs = [_answered(contender.run()) for _ in range(rounds)]
        record = record_of(SECTION, "lazydelta", question, runs, {"files": files})
        yield _figured(record, lambda seconds: {"files/s": files / seconds})


def _by_spark(rows: int, rounds: int) -> list[Record]:
    """Write the same rows by one session in each way that there is, in turns."""
    cases = ingest.cases(rows)
    sides = [side for case in cases for side in (case.ours, case.theirs) if side is not None]
    ways = {f"{side.name}, {side.work}": side for side in sides}
    runs: dict[str, list[Measurement]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, side in ways.items():
            click.echo(f"  {SECTION}, round {number + 1}: Spark, {name}", err=True)
            runs[name].append(_answered(side.run()))
    return [
        _figured(
            record_of(SECTION, name, f"Spark writes {rows:,} rows", found), lambda seconds: {"rows/s": rows / seconds}
        )
        for name, found in runs.items()
    ]


def _answered(run: Measurement) -> Measurement:
    """Return a measurement whose answer is a number as one that has its seconds in the answer."""
    if run.failure is not None:
        return run
    return replace(run, answer={"count": run.answer, "seconds": run.seconds})
