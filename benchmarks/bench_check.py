"""``python -m benchmarks.bench_check``: a short run beside the committed one; a regression beyond noise fails.

Times are compared as ratios to deltalake in the same run, because a busy machine slows down both. Counts (requests,
bytes, answers) have no noise but what threads make of read-ahead.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.ladder import ladder
from benchmarks.records import Record, Run, disagreements, machine, packages

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["COMMITTED", "regressions"]

COMMITTED = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "check.json"
_FILES = 100_000
_BESIDE = "L0 deltalake"
_TIME_NOISE = 2.0
_MEMORY_NOISE, _MEMORY_SLACK = 1.3, 8 << 20
_COUNT_NOISE, _REQUEST_SLACK, _BYTES_SLACK = 1.1, 3, 64 << 10
# Below this the clock and the start of threads are most of what is measured.
_LEAST_SECONDS = 0.02


def regressions(fresh: Run, committed: Run) -> list[str]:
    """Say what of ours is worse than it was, or is not there any more."""
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
            found += [f"{name}: {worse}" for worse in _worse(before, after, committed.records, fresh.records)]
    return found


def _is_ours(record: Record) -> bool:
    return record.contender.startswith("L") and not record.contender.startswith("L0")


def _worse(before: Record, after: Record, old: Iterable[Record], new: Iterable[Record]) -> list[str]:
    found = []
    if after.answer != before.answer:
        found.append(f"{after.answer} files, not {before.answer}")
    was, is_now = _ratio(before, old), _ratio(after, new)
    if was is not None and is_now is not None and is_now < was / _TIME_NOISE:
        found.append(f"{is_now:.1f} times as fast as deltalake, {was:.1f} before")
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
    records = list(ladder(_FILES, rounds, spark=False, iceberg=False))
    fresh = Run(_FILES, tuple(records), described, packages())
    found = disagreements(records)
    if update:
        fresh.save(COMMITTED)
        click.echo(f"written to {COMMITTED}")
    else:
        found += regressions(fresh, Run.load(COMMITTED))
    for each in found:
        click.echo(f"worse: {each}", err=True)
    if not found:
        click.echo("nothing is worse than it was")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
