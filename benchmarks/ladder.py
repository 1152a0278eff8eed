"""The ladder L0 to L8 and the peers, on one table: every contender is asked every question in a process of its own.

Contenders take turns, and every other round begins at the other end. What takes long is asked once: its noise is small
beside the distance that matters here.
"""

from __future__ import annotations

import fcntl
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.ladder_tables import LADDER_TABLE, PEERS_PYTHON, iceberg_table, indexed_table
from benchmarks.measure import Measurement, measure
from benchmarks.questions import Question, questions
from benchmarks.records import Key, Record, record_of
from benchmarks.rungs import LADDER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

__all__ = ["PEERS", "SECTION", "Asked", "ask_all", "contenders", "ladder"]

SECTION = "ladder"
PEERS = ("L0 deltalake", "L0 Delta-Spark", "Polars", "DuckDB", "PyIceberg")
_OURS = ("lazydelta", "pyarrow.parquet", "obstore")
_SLOW = 5.0
_SPARK_LOCK = Path(tempfile.gettempdir()) / "spark.lock"


@dataclass(frozen=True, slots=True)
class Asked:
    """A contender: ``run`` asks it a question once, in a child; ``only`` are the questions it is asked, None all."""

    name: str
    run: Callable[[Question], Measurement]
    once: bool = False
    only: tuple[str, ...] | None = None


def contenders(uri: str, *, iceberg: str | None = None, spark: bool = True) -> list[Asked]:
    """Return everybody who can be asked about this table on this machine, L0 first, floors last."""
    found = [Asked("L0 deltalake", _by("benchmarks.peer_work:deltalake", uri, imports=("deltalake", "pyarrow")))]
    if spark:
        # Some files take it as long as all of them, and each question a session.
        asked = ("one hour", "all files", "statistics")
        found.append(Asked("L0 Delta-Spark", _by_spark(uri), once=True, only=asked))
    for rung in LADDER:
        work = "benchmarks.ladder_work:ask"
        found.append(Asked(rung.name, _by(work, uri, rung.options, rung.limits, rung.remembers, imports=_OURS)))
    found.append(Asked("Polars", _by("benchmarks.peer_work:polars", uri, imports=("polars", "deltalake"))))
    if PEERS_PYTHON.exists():
        found.append(Asked("DuckDB", _by("benchmarks.duckdb_files_work:ask", uri, python=str(PEERS_PYTHON))))
    if iceberg is not None:
        plans = _by("benchmarks.iceberg_work:ask", iceberg, python=str(PEERS_PYTHON))
        found.append(Asked("PyIceberg", plans, only=("one hour", "24 hours", "take 100", "all files", "statistics")))
    found.append(Asked("floor", _by("benchmarks.floor_work:ask", uri, imports=("pyarrow.parquet",))))
    return found


def _by(
    work: str, uri: str, *more: Any, imports: tuple[str, ...] = (), python: str | None = None
) -> Callable[[Question], Measurement]:
    return lambda question: measure(work, uri, question.as_dict(), *more, imports=imports, python=python)


def _by_spark(uri: str) -> Callable[[Question], Measurement]:
    def run(question: Question) -> Measurement:
        with one_spark():
            return measure("benchmarks.delta_spark_work:ask", uri, question.as_dict(), limited=False)

    return run


@contextmanager
def one_spark() -> Iterator[None]:
    """Wait until no other session of Spark is measured on this machine."""
    with _SPARK_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ask_all(
    section: str,
    asked: Sequence[Asked],
    wanted: Sequence[Question],
    rounds: int,
    variant: dict[str, Any] | None = None,
    done: Collection[Key] = (),
) -> Iterator[Record]:
    """Ask everybody everything, in turns; the records of a question come when it is done.

    What is ``done`` for all of them is not asked again. If one is missing all are: they are compared with each other,
    and so are measured side by side.
    """
    for question in wanted:
        chosen = [each for each in asked if each.only is None or question.name in each.only]
        if all(Record(section, each.name, question.name, variant or {}).key in done for each in chosen):
            click.echo(f"  {section}: {question.name}: done before", err=True)
            continue
        runs: dict[str, list[Measurement]] = {each.name: [] for each in chosen}
        for number in range(rounds):
            for each in chosen if number % 2 == 0 else reversed(chosen):
                known = runs[each.name]
                if number and (each.once or _is_slow(known)):
                    continue
                click.echo(f"  {section}, round {number + 1}: {question.name}, {each.name}", err=True)
                known.append(each.run(question))
        yield from (record_of(section, each.name, question.name, runs[each.name], variant) for each in chosen)


def _is_slow(known: list[Measurement]) -> bool:
    """Tell whether a question has been asked once and is not worth asking again: it takes long, or cannot be done."""
    first = known[0]
    return first.failure is not None or float(first.answer["seconds"]) > _SLOW


def ladder(
    files: int,
    rounds: int,
    *,
    spark: bool = True,
    iceberg: bool = True,
    names: Sequence[str] = (),
    only: Sequence[str] = (),
    done: Collection[Key] = (),
) -> Iterator[Record]:
    """Measure the ladder and the peers on a table of so many files.

    ``names`` are the questions and ``only`` the contenders; none means all.
    """
    folder, made = indexed_table(files, **LADDER_TABLE)
    metadata = iceberg_table(folder) if iceberg else None
    everybody = contenders(str(folder), iceberg=metadata, spark=spark)
    asked = [each for each in everybody if not only or each.name in only]
    wanted = [each for each in questions(made) if not names or each.name in names]
    yield from ask_all(SECTION, asked, wanted, rounds, done=done)
