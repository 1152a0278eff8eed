"""``python -m benchmarks.bench_check``: a short run beside the committed one; a regression beyond noise fails.

Times are compared as ratios to deltalake in the same run, because a busy machine slows down both. Counts (requests,
bytes, answers) have no noise but what threads make of read-ahead. What looks worse is asked again, with deltalake
beside it, and the best of all looks counts: other work on the machine comes and goes, and a regression stays. Where the
machine is busy from the start, times are not compared: what takes a few milliseconds waits for its turn longer than it
works, and what takes seconds does not.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.ladder import ladder
from benchmarks.records import Record, Run, disagreements, machine, packages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["COMMITTED", "best_of", "is_busy", "looked_at_again", "regressions"]

COMMITTED = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "check.json"
_FILES = 100_000
_BESIDE = "L0 deltalake"
_TIME_NOISE = 2.0
_MEMORY_NOISE, _MEMORY_SLACK = 1.3, 8 << 20
_COUNT_NOISE, _REQUEST_SLACK, _BYTES_SLACK = 1.1, 3, 64 << 10
# Below this the clock and the start of threads are most of what is measured.
_LEAST_SECONDS = 0.02
_LOOKS = 3


def regressions(fresh: Run, committed: Run) -> list[str]:
    """Say what of ours is worse than it was, or is not there any more; times where the machine was not busy."""
    now = {each.key: each for each in fresh.records}
    found = []
    if fresh.scale != committed.scale:
        return [f"the runs are of {fresh.scale} and {committed.scale} files: compare runs of one size"]
    for before in committed.records:
        if not _is_ours(before) or before.failure is not None:
            continue
        name = f"{before.question}, {before.contender}"
        after = now.get(before.key)
        if after is None:
            found.append(f"{name}: not measured any more")
        elif after.failure is not None:
            found.append(f"{name}: {after.failure}")
        else:
            slower = [] if is_busy(fresh) else _slower(before, after, committed.records, fresh.records)
            found += [f"{name}: {worse}" for worse in (*slower, *_worse(before, after))]
    return found


def is_busy(run: Run) -> bool:
    """Tell whether the machine had other work before anything was measured."""
    return float(run.machine.get("load_before", 0)) > float(run.machine.get("cores", 1)) / 2


def best_of(looks: Sequence[Record]) -> Record:
    """Return the best of one measurement: what other work took of the machine is in the others."""
    good = [each for each in looks if each.failure is None]
    if not good:
        return looks[-1]

    def least(name: str) -> Any:
        return min((value for each in good if (value := getattr(each, name)) is not None), default=None)

    # An answer is not better or worse than another: the last one shows whether it is still a wrong one.
    names = ("seconds", "first_seconds", "peak_bytes", "requests", "bytes")
    return replace(good[-1], **{name: least(name) for name in names})


def looked_at_again(fresh: Run, committed: Run, ask: Callable[[Sequence[str]], Iterable[Record]]) -> Run:
    """Ask the questions again in which something looks worse, until nothing does or it has been looked at enough."""
    looks: dict[tuple[str, ...], list[Record]] = {each.key: [each] for each in fresh.records}
    for _ in range(_LOOKS - 1):
        worse = {words.partition(", L")[0] for words in regressions(fresh, committed)}
        asked = [name for name in dict.fromkeys(each.question for each in fresh.records) if name in worse]
        if not asked:
            break
        for each in ask(asked):
            looks.setdefault(each.key, []).append(each)
        fresh = replace(fresh, records=tuple(map(best_of, looks.values())))
    return fresh


def _is_ours(record: Record) -> bool:
    return record.contender.startswith("L") and not record.contender.startswith("L0")


def _slower(before: Record, after: Record, old: Iterable[Record], new: Iterable[Record]) -> list[str]:
    was, is_now = _ratio(before, old), _ratio(after, new)
    if was is None or is_now is None or is_now >= was / _TIME_NOISE:
        return []
    return [f"{is_now:.1f} times as fast as deltalake, {was:.1f} before"]


def _worse(before: Record, after: Record) -> list[str]:
    found = []
    if after.answer != before.answer:
        found.append(f"{after.answer} files, not {before.answer}")
    for what, one, other, noise, slack in (
        ("bytes of memory", before.peak_bytes, after.peak_bytes, _MEMORY_NOISE, _MEMORY_SLACK),
        ("requests", before.requests, after.requests, _COUNT_NOISE, _REQUEST_SLACK),
        ("bytes read", before.bytes, after.bytes, _COUNT_NOISE, _BYTES_SLACK),
    ):
        if one is not None and other is not None and other > one * noise + slack:
            found.append(f"{other:,} {what}, {one:,} before")
    return found


def _ratio(record: Record, records: Iterable[Record]) -> float | None:
    """Return how many times faster than deltalake it is at the same question."""
    for each in records:
        same = (each.section, each.question, each.variant) == (record.section, record.question, record.variant)
        if same and each.contender == _BESIDE and each.seconds is not None and record.seconds is not None:
            return each.seconds / max(record.seconds, _LEAST_SECONDS)
    return None


@click.command()
@click.option("--update", is_flag=True, help="Keep this run as the one to compare with.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
def main(*, update: bool, rounds: int) -> None:
    """Run the ladder on a small table and compare."""
    described = machine()

    def ask(names: Sequence[str]) -> Iterable[Record]:
        return ladder(_FILES, rounds, spark=False, iceberg=False, names=names)

    fresh = Run(_FILES, tuple(ask(())), described, packages())
    if is_busy(fresh):
        click.echo(f"the machine is busy (load {described['load_before']}): times are not compared", err=True)
    found = disagreements(fresh.records)
    if update:
        fresh.save(COMMITTED)
        click.echo(f"written to {COMMITTED}")
    else:
        committed = Run.load(COMMITTED)
        found += regressions(looked_at_again(fresh, committed, ask), committed)
    for each in found:
        click.echo(f"worse: {each}", err=True)
    if not found:
        click.echo("nothing is worse than it was")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
