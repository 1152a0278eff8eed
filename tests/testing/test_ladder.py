"""The ladder at a size that takes a timestamp: its rungs, its answers, and what each rung saves."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks import floor_work, ladder_work, peer_work
from benchmarks.ladder import Asked, ask_all
from benchmarks.ladder_tables import LADDER_TABLE
from benchmarks.measure import Measurement
from benchmarks.questions import Question, questions
from benchmarks.records import Record, Run, disagreements, machine, packages, record_of
from benchmarks.rungs import LADDER
from lazydelta.sidecar import build
from lazydelta.testing import MadeTable, make_table

FILES = 25_000


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, MadeTable]:
    folder = tmp_path_factory.mktemp("ladder")
    made = make_table(folder, files=FILES, **LADDER_TABLE)
    build(folder)
    return str(folder), made


def test_each_rung_switches_one_thing() -> None:
    assert [rung.name for rung in LADDER] == [f"L{number}" for number in range(1, 9)]
    for below, above in pairwise(LADDER):
        gone = set(below.options) - set(above.options)
        switched = len(gone) + (below.limits != above.limits) + (below.remembers != above.remembers)
        assert all(below.options[name] == value for name, value in above.options.items())
        # To remember is one thing: room for it, and a query before the one that is measured.
        assert switched == (2 if above.remembers else 1), above.name
    assert LADDER[-1].options == {}, "the top of the ladder is what everybody gets"


def test_every_rung_and_every_peer_give_the_same_answers(table: tuple[str, MadeTable]) -> None:
    uri, made = table
    found: dict[tuple[str, str], dict[str, Any]] = {}
    records: list[Record] = []

    def note(contender: str, question: Question, answer: dict[str, Any]) -> None:
        found[contender, question.name] = answer
        records.append(record_of("ladder", contender, question.name, [Measurement(1.0, 0, answer=answer)]))

    for question in questions(made):
        asked = question.as_dict()
        note("deltalake", question, peer_work.deltalake(uri, asked))
        if question.name in {"one hour", "statistics"}:
            note("Polars", question, peer_work.polars(uri, asked))
        note("floor", question, floor_work.ask(uri, asked))
        for rung in LADDER if question.name in {"one hour", "take 100", "statistics"} else LADDER[-1:]:
            note(rung.name, question, ladder_work.ask(uri, asked, rung.options, rung.limits, rung.remembers))
    assert disagreements(records) == []
    assert found["L8", "all files"]["count"] == made.num_files
    assert 0 < found["L8", "one hour"]["count"] < found["L8", "24 hours"]["count"] < found["L8", "30 days"]["count"]
    assert found["floor", "one hour"]["count"] < found["floor", "all files"]["count"] == FILES
    for rung in LADDER:
        answer = found[rung.name, "one hour"]
        assert 0 < answer["first_seconds"] <= answer["seconds"]
    tiers = [found[rung.name, "one hour"]["tier"] for rung in LADDER]
    assert tiers == [3, 3, 2, 1, 1, 1, 1, 1]
    read = [found[rung.name, "one hour"]["row_groups"] for rung in LADDER[2:]]
    assert read == [3, 3, 3, 1, 1, 1], "row groups of the sidecar, which L6 prunes"
    size = {rung.name: found[rung.name, "one hour"]["bytes"] for rung in LADDER}
    assert size["L1"] == size["L2"] > size["L3"] > size["L4"] > size["L5"] > size["L6"] == size["L7"] > size["L8"]
    taken = {rung.name: found[rung.name, "take 100"]["bytes"] for rung in LADDER}
    assert taken["L6"] > 2 * taken["L7"] > 2 * taken["L8"]


def test_contenders_take_turns_and_what_is_slow_is_asked_once() -> None:
    order: list[str] = []

    def contender(name: str, seconds: float, *, once: bool = False) -> Asked:
        def run(_: Question) -> Measurement:
            order.append(name)
            return Measurement(seconds, 1, answer={"count": 7, "seconds": seconds, "first_seconds": None})

        return Asked(name, run, once=once)

    asked = [contender("a", 1.0), contender("b", 1.0), contender("slow", 60.0), contender("once", 1.0, once=True)]
    records = list(ask_all("ladder", asked, [Question("q")], 3, {"files": 1}))
    assert order == ["a", "b", "slow", "once", "b", "a", "a", "b"]
    assert [(each.contender, each.rounds, each.answer) for each in records] == [
        ("a", [1.0] * 3, 7),
        ("b", [1.0] * 3, 7),
        ("slow", [60.0], 7),
        ("once", [1.0], 7),
    ]
    assert records[0].key == ("ladder", "a", "q", '{"files": 1}')


def test_a_question_that_is_done_for_all_is_not_asked_again() -> None:
    """If a record is missing, all contenders are asked: they are measured side by side."""
    asked_for: list[tuple[str, str]] = []

    def contender(name: str) -> Asked:
        def run(question: Question) -> Measurement:
            asked_for.append((name, question.name))
            return Measurement(0.1, 1, answer={"count": 7, "seconds": 0.1, "first_seconds": None})

        return Asked(name, run)

    asked, variant = [contender("a"), contender("b")], {"files": 1}
    first = list(ask_all("growth", asked, [Question("q"), Question("r")], 1, variant))
    asked_for.clear()
    done = {each.key for each in first if (each.contender, each.question) != ("b", "r")}
    again = list(ask_all("growth", asked, [Question("q"), Question("r")], 1, variant, done))
    assert asked_for == [("a", "r"), ("b", "r")]
    assert [each.key for each in again] == [each.key for each in first if each.question == "r"]
    assert len(list(ask_all("growth", asked, [Question("q")], 1, {"files": 2}, done))) == 2


def test_running_out_is_a_result_and_answers_that_change_are_a_failure() -> None:
    lost = Measurement(None, None, failure="out of memory (cap 16 GB)")
    assert record_of("ladder", "deltalake", "q", [lost]).failure == "out of memory (cap 16 GB)"
    two = [Measurement(1.0, 1, answer={"count": count, "seconds": 1.0}) for count in (1, 2)]
    assert record_of("ladder", "deltalake", "q", two).failure == "the answers differ: ['1', '2']"


def test_those_who_disagree_are_named() -> None:
    records = [Record("ladder", name, "q", answer=count) for name, count in (("L1", 5), ("L2", 5), ("DuckDB", 6))]
    assert disagreements(records) == ["q {}: 5 by L1 L2, 6 by DuckDB"]
    assert disagreements([Record("ladder", "floor", "q", answer=9), Record("ladder", "L1", "q", answer=5)]) == []


def test_a_run_is_kept_and_read_again(tmp_path: Path) -> None:
    record = Record("ladder", "L1", "q", {"files": 5}, seconds=0.25, peak_bytes=7, answer=3, rounds=[0.25])
    failed = Record("ladder", "deltalake", "q", failure="not done after 600 s")
    run = Run(5, (record, failed), machine(), packages(), "2026-11-16T06:00:00Z")
    run.save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json") == run
    assert run.packages["peers: pyiceberg[pyarrow]"]
    assert run.machine["cores"] >= 1
    (tmp_path / "run.json").write_text('{"format": 0}')
    with pytest.raises(ValueError, match="run the benchmark again"):
        Run.load(tmp_path / "run.json")
