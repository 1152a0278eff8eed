from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import tables
from benchmarks.__main__ import run_case
from benchmarks.discovery import Case, Contender, Gate
from benchmarks.measure import Measurement, measure
from benchmarks.report import Result, save_results

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20
WORK = "benchmarks.reference_work"


def test_a_child_reports_time_memory_and_answer() -> None:
    measured = measure(f"{WORK}:allocate", 50 * MB)
    assert measured.failure is None
    assert measured.answer == 50 * MB
    assert measured.seconds is not None
    assert measured.seconds > 0
    assert measured.peak_bytes is not None
    # The peak before may have been a little above what was in use.
    assert 45 * MB < measured.peak_bytes < 70 * MB


def test_imports_count_for_nothing() -> None:
    measured = measure(f"{WORK}:allocate", 1, imports=("pandas", "deltalake"))
    assert measured.peak_bytes is not None
    assert measured.peak_bytes < 5 * MB


def test_running_out_of_time_is_a_result() -> None:
    assert measure(f"{WORK}:sleep", 60, time_cap=3).failure == "not done after 3 s"


def test_running_out_of_memory_is_a_result() -> None:
    assert measure(f"{WORK}:allocate", 20_000 * MB).failure == "out of memory (cap 16 GB)"


def test_a_child_that_fails_says_why() -> None:
    assert measure(f"{WORK}:fail", "no such thing").failure == "exit code 1: ValueError: no such thing"


def test_a_table_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAZYDELTA_BENCH_CACHE", str(tmp_path))
    folder, made = tables.cached_table(files=100, tail=2)
    again, same = tables.cached_table(tail=2, files=100)
    other, _ = tables.cached_table(files=101)
    assert (folder, made) == (again, same)
    assert made.num_files == 120
    assert other != folder


def test_a_table_that_was_left_half_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAZYDELTA_BENCH_CACHE", str(tmp_path))
    folder, made = tables.cached_table(files=100)
    (folder / "made.json").unlink()
    assert tables.cached_table(files=100) == (folder, made)


def test_a_table_of_an_older_generator_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAZYDELTA_BENCH_CACHE", str(tmp_path))
    older = tmp_path / "files100-0123456789ab"
    unrelated = tmp_path / "files100-tail2-0123456789ab"
    older.mkdir()
    unrelated.mkdir()
    tables.cached_table(files=100)
    assert not older.exists()
    assert unrelated.exists()


def _run(seconds: float, megabytes: int, answer: int = 7) -> Measurement:
    return Measurement(seconds, megabytes * MB, answer=answer)


def _result(ours: list[Measurement], theirs: list[Measurement], *, gated: bool = True) -> Result:
    side = Contender("lazydelta", "all_files", (), ())
    return Result(Case("case", side, side, Gate(15, 5), 7), ours, theirs, gated=gated)


def test_ratios_are_of_medians() -> None:
    result = _result([_run(1, 10), _run(9, 90), _run(2, 20)], [_run(30, 100), _run(40, 200), _run(900, 900)])
    assert result.faster == 20
    assert result.smaller == 10
    assert result.misses() == []


def test_a_missed_promise_of_speed_or_memory_is_named() -> None:
    assert _result([_run(1, 30)], [_run(10, 100)]).misses() == [
        "case: 10.0 times faster, promised are 15",
        "case: 3.3 times smaller, promised are 5",
    ]


def test_what_only_informs_misses_nothing() -> None:
    assert _result([_run(1, 30)], [_run(1, 30)], gated=False).misses() == []


def test_a_wrong_answer_is_missed_even_where_nothing_gates() -> None:
    result = _result([_run(1, 1, answer=6)], [_run(100, 100)], gated=False)
    assert result.misses() == ["case: the answer is 6, not 7"]


def test_our_own_failure_is_a_miss_and_a_peers_failure_is_not() -> None:
    failed = Measurement(None, None, failure="out of memory")
    assert _result([failed], [_run(1, 1)]).misses() == ["case: lazydelta failed: out of memory"]
    assert _result([_run(1, 1)], [failed]).misses() == []


def test_memory_has_a_bound_of_its_own_whatever_the_peer_needs() -> None:
    side = Contender("lazydelta", "all_files", (), ())
    gate = Gate(0, smaller=0, peak=20)
    for theirs in ([], [_run(1, 1)]):
        case = Case("case", side, side if theirs else None, gate, 7)
        assert Result(case, [_run(1, 19)], theirs, gated=True).misses() == []
        assert Result(case, [_run(1, 21)], theirs, gated=True).misses() == ["case: 21 MB, promised are 20"]


def test_shared_work_is_measured_once_a_round_and_prepared_each_time(tmp_path: Path) -> None:
    prepared: list[str] = []
    long = Contender("reference", "allocate", (7,), (), lambda: prepared.append("long"), shared=True)
    short = Contender("reference", "allocate", (7,), (), lambda: prepared.append("short"))
    cases = [Case("one", short, long, None, 7), Case("two", short, long, None, 7)]
    known: dict[tuple[Contender, int], Measurement] = {}
    first, second = (run_case(case, 2, known, gated=False) for case in cases)
    assert (prepared.count("long"), prepared.count("short")) == (2, 4)
    assert first.rounds["theirs"] == second.rounds["theirs"]
    assert {run.answer for result in (first, second) for run in result.rounds["ours"]} == {7}
    assert [result.misses() for result in (first, second)] == [[], []]
    assert save_results(tmp_path, "suite", 1, [first, second]).exists()


def test_all_rounds_are_kept(tmp_path: Path) -> None:
    file = save_results(tmp_path / "results", "discovery", 10, [_result([_run(1, 10)] * 3, [_run(20, 100)] * 3)])
    text = file.read_text()
    assert text.count('"seconds"') == 6
    assert '"deltalake": "' in text


def test_a_gate_of_cpu_time_does_not_look_at_the_clock() -> None:
    ours, theirs = Measurement(9.0, MB, cpu_seconds=1.0, answer=7), Measurement(1.0, MB, cpu_seconds=2.0, answer=7)
    side = Contender("lazydelta", "", (), ())
    case = Case("a case", side, side, Gate(1.0, smaller=0.0, of_cpu=True), 7)
    assert Result(case, [ours], [theirs], gated=True).faster == 2
    assert Result(case, [ours], [theirs], gated=True).misses() == []
    assert Result(case, [theirs], [ours], gated=True).misses() == ["a case: 0.50 times faster, promised are 1"]
