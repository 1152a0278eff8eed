"""The tables and the work of the benchmark of engines, at a size that takes a timestamp."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import deltalake
import pytest

from benchmarks import engine_work, engines, scan_delta_work
from benchmarks.discovery import Case, Contender, Gate
from benchmarks.measure import Measurement
from benchmarks.report import Result

MB = 1 << 20
ROWS = 50


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAZYDELTA_BENCH_CACHE", str(tmp_path_factory.mktemp("engines")))
        patch.setattr(engines, "_ROWS_A_FILE", ROWS)
        yield engines._tables(300)


def test_only_the_last_hours_of_the_large_table_have_data(tables: tuple[str, str, str]) -> None:
    large, indexed, small = tables
    for uri in (large, indexed):
        found = deltalake.DeltaTable(uri).file_uris()
        assert len(found) == 320
        assert sorted(Path(each).name for each in found if Path(each).exists()) == sorted(
            Path(each).name for each in deltalake.DeltaTable(small).file_uris()
        )
    assert list(Path(indexed).glob("_delta_log/_sidecars/*.manifest.json"))
    assert engines._tables(300) == tables, "made once"


def test_the_work_gives_the_answers_that_are_expected(tables: tuple[str, str, str]) -> None:
    large, indexed, small = tables
    for name, uri in (("large", large), ("indexed", indexed), ("small", small)):
        assert engine_work.limited(uri, "2026021101", 30) == 30, name
        assert engine_work.aggregate(uri, "2026021100") == 20 * ROWS, name
        assert engine_work.discover(uri, "2026021100") == 20, name
    assert engine_work.limited_polars(indexed, "2026021101", 30) == 30
    assert engine_work.join(large, small, "2026021100") == 20 * ROWS
    assert scan_delta_work.limited(indexed, "2026021101", 30) == 30


def test_cases_name_work_that_exists(tables: tuple[str, str, str]) -> None:
    modules = {"engine": engine_work, "scan_delta": scan_delta_work}
    for case in [*engines.cases(300), *engines.memory_cases(300)]:
        for side in (case.ours, case.theirs):
            if side is not None and side.name in modules:
                assert callable(getattr(modules[side.name], side.work)), case.name


class _Known(Contender):
    def run(self) -> Measurement:
        return Measurement(float(str(self.arguments[0])), MB, answer=7)


def test_beside_two_pieces_of_work_the_slower_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Contender, "run", _Known.run)
    for first, second in ((1.0, 3.0), (3.0, 1.0)):
        larger = engines._Larger("x", "x", (first,), (), other=_Known("x", "x", (second,), ()))
        assert larger.run().seconds == 3.0


def test_memory_may_be_bounded_by_that_of_the_other_side() -> None:
    side = Contender("engine", "limited", (), ())
    case = Case("case", side, side, Gate(0, smaller=0, above=100), 7)
    theirs = [Measurement(1, 50 * MB, answer=7)]
    assert Result(case, [Measurement(1, 149 * MB, answer=7)], theirs, gated=True).misses() == []
    assert Result(case, [Measurement(1, 160 * MB, answer=7)], theirs, gated=True).misses() == [
        "case: 110 MB above the other side, promised are 100"
    ]
