"""A run of the benchmark that is stopped, or of which a part fails, keeps what it has and can be gone on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.full_run import measured, unfinished_run
from benchmarks.records import Record, Run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Stopped(BaseException):
    """A key was pressed."""


def empty() -> Run:
    return Run(1000, (), {}, {}, "2026-11-16T00:00:00Z")


def part(name: str, *seconds: float, ends: BaseException | None = None) -> Iterator[Record]:
    """Yield a record for each of these, then end in this way."""
    for number, each in enumerate(seconds):
        yield Record(name, "ours", f"question {number}", seconds=each)
    if ends is not None:
        raise ends


def test_a_run_that_is_stopped_goes_on_with_the_parts_that_are_not_done(tmp_path: Path) -> None:
    file = tmp_path / "run-1000-20261116T000000Z.json"
    work = {"a": lambda: part("a", 1.0, 2.0), "b": lambda: part("b", 3.0, ends=Stopped()), "c": lambda: part("c", 9.0)}
    with pytest.raises(Stopped):
        measured(empty(), work, file)
    assert [each.seconds for each in Run.load(file).records] == [1.0, 2.0, 3.0]
    assert unfinished_run(1000, ["a", "b", "c"], tmp_path) == file
    assert unfinished_run(2000, ["a", "b", "c"], tmp_path) is None
    again = work | {"a": lambda: pytest.fail("it was done"), "b": lambda: part("b", 4.0, 5.0)}
    run, failed = measured(Run.load(file), again, file)
    assert (failed, run.parts) == ([], ("a", "b", "c"))
    assert [each.seconds for each in Run.load(file).records] == [1.0, 2.0, 4.0, 5.0, 9.0]
    assert unfinished_run(1000, ["a", "b", "c"], tmp_path) is None


def test_a_part_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    file = tmp_path / "run-1000-20261116T000000Z.json"
    work = {"a": lambda: part("a", 1.0, ends=OSError("no room")), "b": lambda: part("b", 3.0)}
    run, failed = measured(empty(), work, file)
    assert (failed, run.parts) == (["a"], ("b",))
    assert [each.seconds for each in Run.load(file).records] == [1.0, 3.0]
    assert unfinished_run(1000, ["a", "b"], tmp_path) == file
