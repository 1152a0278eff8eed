"""What counts as a regression: a changed number fails, and noise does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.bench_check import best_of, looked_at_again, regressions
from benchmarks.records import Record, Run

MB = 1 << 20
THEIRS = Record("ladder", "L0 deltalake", "one hour", seconds=10.0, peak_bytes=900 * MB, answer=70)
OURS = Record(
    "ladder", "L6", "one hour", seconds=0.1, peak_bytes=20 * MB, requests=30, bytes=500_000, answer=70, rounds=[0.1]
)


def _run(*records: Record, scale: int = 100_000) -> Run:
    return Run(scale, records, {}, {}, "2026-11-16T00:00:00Z")


COMMITTED = _run(THEIRS, OURS)


def test_the_same_run_is_no_regression() -> None:
    assert regressions(COMMITTED, COMMITTED) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seconds": 0.25}, "40.0 times as fast as deltalake, 100.0 before"),
        ({"peak_bytes": 40 * MB}, "41,943,040 bytes of memory, 20,971,520 before"),
        ({"requests": 40}, "40 requests, 30 before"),
        ({"bytes": 700_000}, "700,000 bytes read, 500,000 before"),
        ({"answer": 69}, "69 files, not 70"),
        ({"failure": "exit code 1: boom"}, "exit code 1: boom"),
    ],
    ids=["time", "memory", "requests", "bytes", "answer", "failure"],
)
def test_each_number_that_is_worse_is_named(change: dict[str, Any], words: str) -> None:
    assert regressions(_run(THEIRS, replace(OURS, **change)), COMMITTED) == [f"one hour, L6: {words}"]


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 0.15},
        {"seconds": 0.01},
        {"peak_bytes": 24 * MB},
        {"requests": 33},
        {"requests": 2},
        {"bytes": 520_000},
    ],
    ids=str,
)
def test_noise_and_progress_are_no_regressions(change: dict[str, Any]) -> None:
    assert regressions(_run(THEIRS, replace(OURS, **change)), COMMITTED) == []


def test_a_machine_that_is_slow_for_both_is_no_regression() -> None:
    slow = _run(replace(THEIRS, seconds=40.0), replace(OURS, seconds=0.4))
    assert regressions(slow, COMMITTED) == []


def test_what_is_not_measured_any_more_is_a_regression_and_peers_are_not_ours() -> None:
    assert regressions(_run(THEIRS), COMMITTED) == ["one hour, L6: not measured any more"]
    worse = replace(THEIRS, answer=1, seconds=10.0, peak_bytes=1 << 40)
    assert regressions(_run(worse, OURS), COMMITTED) == []


def test_runs_of_other_sizes_are_not_compared() -> None:
    assert regressions(_run(OURS, scale=5), COMMITTED) == [
        "the runs are of 5 and 100000 files: compare runs of one size"
    ]


def test_what_looks_worse_is_asked_again_and_other_work_on_the_machine_is_no_regression() -> None:
    asked: list[list[str]] = []
    other = replace(OURS, question="all files")
    beside = replace(THEIRS, question="all files")
    committed = _run(THEIRS, OURS, beside, other)
    slow = _run(THEIRS, replace(OURS, seconds=0.9), beside, other)

    def ask(names: Any) -> list[Record]:
        asked.append(list(names))
        return [replace(THEIRS, seconds=30.0), OURS]

    assert regressions(looked_at_again(slow, committed, ask), committed) == []
    assert asked == [["one hour"]]


def test_what_is_worse_each_time_is_a_regression() -> None:
    asked: list[list[str]] = []

    def ask(names: Any) -> list[Record]:
        asked.append(list(names))
        return [THEIRS, replace(OURS, seconds=0.8 + len(asked), requests=40)]

    slow = _run(THEIRS, replace(OURS, seconds=0.9, requests=40))
    found = regressions(looked_at_again(slow, COMMITTED, ask), COMMITTED)
    assert found == [
        "one hour, L6: 11.1 times as fast as deltalake, 100.0 before",
        "one hour, L6: 40 requests, 30 before",
    ]
    assert len(asked) == 2


def test_the_best_of_several_looks_passes_failures_by_and_keeps_answers() -> None:
    failed = replace(OURS, failure="boom", seconds=None)
    best = best_of([failed, replace(OURS, seconds=0.3, peak_bytes=10), replace(OURS, seconds=0.2, peak_bytes=30)])
    assert (best.failure, best.seconds, best.peak_bytes, best.answer) == (None, 0.2, 10, 70)
    assert best_of([failed, failed]).failure == "boom"


def test_times_are_not_compared_where_the_machine_is_busy_and_counts_are() -> None:
    busy = replace(_run(THEIRS, replace(OURS, seconds=0.9, requests=40)), machine={"cores": 2, "load_before": 9.9})
    assert regressions(busy, COMMITTED) == ["one hour, L6: 40 requests, 30 before"]
    quiet = replace(busy, machine={"cores": 2, "load_before": 0.3})
    assert len(regressions(quiet, COMMITTED)) == 2
