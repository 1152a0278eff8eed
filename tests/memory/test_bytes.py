"""Memory is bounded in bytes: rows that are large, or become large, are read a few at a time or without statistics."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from benchmarks.measure import measure
from lazydelta import DeltaTable, sidecar
from lazydelta.cli.app import cli
from lazydelta.errors import MemoryLimitError
from lazydelta.storage import open_store
from lazydelta.write.checkpoint.writer import write_checkpoint
from tests.oracle.checkpoints import CheckpointWriter, hint_for
from tests.scan.hand_log import HandLog, add
from tests.support.rounds import quick

pytestmark = [pytest.mark.memory, pytest.mark.timeout(300)]

LIMIT = 150 << 20
IMPORTS = ("lazydelta", "pyarrow.parquet", "obstore")
LARGE = 6_000_000
FILES = 45
"""Statistics of so many files that all at once they would take more than twice the budget."""

_BUDGET = 24 << 20


def small(number: int) -> dict[str, Any]:
    return {"minValues": {"id": number}, "maxValues": {"id": number}, "nullCount": {"id": 0}}


def large(number: int) -> dict[str, Any]:
    return small(number) | {"minValues": {"id": number, "name": "x" * LARGE}}


def table(
    folder: Path,
    stats: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    columns: dict[str, str] | None = None,
    **writing: Any,
) -> Path:
    """Make a table whose checkpoint is a few kilobytes and holds these statistics."""
    log = HandLog(folder, columns)
    log.commit(*(add(f"{number:06}.parquet", stats=each) for number, each in enumerate(stats)))
    snapshot = log.state()
    writer = CheckpointWriter(log.log, snapshot, random.Random(0))
    writer.stats, writer.compression = "json", "zstd"
    write = pq.write_table
    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", lambda *given, **more: write(*given, **(more | writing)))
        [path] = writer.classic()
    (log.log / "_last_checkpoint").write_text(json.dumps(hint_for(snapshot, [path])))
    (log.log / f"{0:020d}.json").unlink()
    assert path.stat().st_size < 2 << 20 or writing.get("compression") == "none"
    return folder


CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], bool]] = {
    "one text that a dictionary repeats": ([large(1)] * FILES, {"row_group_size": 1000}, True),
    "texts in pages of their own": (
        [large(n) for n in range(FILES)],
        {"row_group_size": 1000, "use_dictionary": False, "write_batch_size": 1},
        True,
    ),
    "texts in a page that is too large": (
        [large(n) for n in range(FILES)],
        {"row_group_size": 1000, "use_dictionary": False, "write_batch_size": 1000},
        False,
    ),
    "a few among many": (
        [small(n) for n in range(5_000)] + [large(n) for n in range(5_000, 5_000 + FILES)],
        {"row_group_size": 100_000, "write_batch_size": 1},
        True,
    ),
}


@pytest.mark.parametrize("case", quick(CASES, 2))
def test_large_statistics_in_a_small_checkpoint_stay_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    stats, writing, prunes = CASES[case]
    folder = table(tmp_path / "t", stats, monkeypatch, **writing)
    half = len(stats) - FILES // 2
    where = [("id", ">=", half)] if case != "one text that a dictionary repeats" else [("id", ">", 1)]
    measured = measure("benchmarks.lazydelta_work:matching_files", str(folder), where, imports=IMPORTS)
    assert measured.failure is None
    expected = 0 if where[0][2] == 1 else FILES // 2
    assert measured.answer == (expected if prunes else len(stats))
    assert measured.peak_bytes is not None
    assert measured.peak_bytes < LIMIT


def test_a_large_dictionary_of_statistics_is_not_held_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers that look at the size of a dictionary every thousand rows make one of all long texts among them."""
    texts = [large(number) for number in range(11)]
    folder = table(tmp_path / "t", texts, monkeypatch, row_group_size=1000)
    measured = measure("benchmarks.lazydelta_work:matching_files", str(folder), [("id", ">=", 8)], imports=IMPORTS)
    assert (measured.failure, measured.answer) == (None, 3)
    assert measured.peak_bytes is not None
    assert measured.peak_bytes < 0.9 * LIMIT
    # Without room to hold it even once, only the decoder holds it, then it is dropped.
    for budget, found in ((400, 3), (140, 3), (100, 11)):
        few = DeltaTable(folder, options={"memory_budget": budget << 20})
        assert len(few.files([("id", ">=", 8)]).collect()) == found


def test_files_are_the_same_whether_their_statistics_fit_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stats = [small(n) if n % 7 else large(n) for n in range(FILES)]
    folder = table(tmp_path / "t", stats, monkeypatch, row_group_size=30, use_dictionary=False, write_batch_size=1)
    plenty = {"memory_budget": 4 << 30}
    everything = [file.path for file in DeltaTable(folder, options=plenty).files()]
    assert len(everything) == FILES
    for budget in (1 << 20, 4 << 20, 20 << 20, 60 << 20):
        few = DeltaTable(folder, options={"memory_budget": budget})
        assert [file.path for file in few.files()] == everything
        found = {file.path for file in few.files([("id", "<", 40)], batch_size=16)}
        right = {file.path for file in DeltaTable(folder, options=plenty).files([("id", "<", 40)])}
        assert right <= found
        assert (found == right) is (budget > 2 * LARGE), budget
    assert "listed without statistics" in caplog.text


def test_a_checkpoint_is_not_copied_without_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = table(
        tmp_path / "t",
        [large(n) for n in range(20)],
        monkeypatch,
        row_group_size=1000,
        use_dictionary=False,
        write_batch_size=1000,
    )
    log = folder / "_delta_log"
    (log / f"{1:020d}.json").write_text(json.dumps(add("new.parquet", stats=small(1))) + "\n")
    with pytest.raises(MemoryLimitError, match=r"page of .* bytes in column 'add\.stats'") as caught:
        write_checkpoint(open_store(folder), memory_budget=32 << 20)
    assert "memory_budget" in str(caught.value.hint)
    assert not list(log.glob("*1.checkpoint.parquet"))
    assert write_checkpoint(open_store(folder)).action == "written"
    assert len(DeltaTable(folder).files("id = 7").collect()) == 1


def wide_pages(folder: Path, monkeypatch: pytest.MonkeyPatch, row_group_size: int, **writing: Any) -> Path:
    """Make a table of many columns, whose statistics of 300 files lie in one page of 10 MB for each row group."""
    names = [f"a_column_with_a_long_name_{number:03}" for number in range(300)]
    values = [dict.fromkeys(names, number) | {"id": number} for number in range(300)]
    stats = [{"minValues": each, "maxValues": each, "nullCount": dict.fromkeys(each, 0)} for each in values]
    columns = dict.fromkeys(["id", *names], "long")
    layout = {"row_group_size": row_group_size, "use_dictionary": False, "write_batch_size": 1000}
    return table(folder, stats, monkeypatch, columns, **(layout | writing))


def test_a_sidecar_is_not_built_without_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little memory for the checkpoint's pages is an error that says how much would do, and then it does."""
    folder = wide_pages(tmp_path / "t", monkeypatch, 1000)
    refused = CliRunner().invoke(cli, ["sidecar", "build", str(folder), "--memory", "16"])
    assert refused.exit_code != 0
    [needed] = re.findall(r"\(--memory\) of (\d+) MB", refused.output)
    with pytest.raises(MemoryLimitError, match=r"page of .* bytes in column 'add\.stats'"):
        sidecar.refresh(folder, memory_budget=16 << 20)
    assert not list((folder / "_delta_log").glob("_sidecars/*"))
    built = CliRunner().invoke(cli, ["sidecar", "build", str(folder), "--memory", needed])
    assert built.exit_code == 0, built.output
    assert sidecar.verify(folder).ok
    with pytest.raises(MemoryLimitError, match="page of"):
        sidecar.verify(folder, memory_budget=16 << 20)
    assert len(DeltaTable(folder, options={"memory_budget": 8 << 20}).files("id = 7").collect()) == 1


def test_statistics_that_are_passed_by_are_counted_and_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = wide_pages(tmp_path / "t", monkeypatch, 200)  # the second row group has a page that fits
    stream = DeltaTable(folder, options={"memory_budget": 8 << 20}).files("id = 7")
    found, passed_by = stream.collect(), stream.metrics.files_without_stats
    assert 195 <= passed_by <= 200  # a few rows are not about files
    assert len(found) - passed_by in {0, 1}  # the file in question may be in the other row group
    assert stream.metrics.as_dict()["delta.lazy.files_without_stats"] == passed_by
    [needed] = re.findall(r"(\d+) MB would do \(option memory_budget\)", str(stream.explain()))
    enough = DeltaTable(folder, options={"memory_budget": int(needed) << 20}).files("id = 7")
    assert len(enough.collect()) == 1
    assert (enough.metrics.files_without_stats, enough.metrics.stats_passed_by) == (0, "")


@pytest.mark.parametrize("use_dictionary", [True, False], ids=["dictionary", "plain"])
def test_large_pages_that_are_not_compressed_are_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, use_dictionary: bool
) -> None:
    """Scans leave files out by them, a sidecar is built from them, and neither holds a page."""
    folder = wide_pages(tmp_path / "t", monkeypatch, 1000, compression="none", use_dictionary=use_dictionary)
    few = {"memory_budget": 8 << 20}
    stream = DeltaTable(folder, options=few).files("id = 7")
    assert len(stream.collect()) == 1
    assert stream.metrics.files_without_stats == 0
    later = {file.path: file.stats for file in DeltaTable(folder, options=few).files()}
    assert later == {file.path: file.stats for file in DeltaTable(folder).files()}
    assert sidecar.build(folder, memory_budget=16 << 20).num_files == 300
    assert sidecar.verify(folder, memory_budget=16 << 20).ok


@pytest.mark.slow
def test_a_sidecar_of_many_columns_takes_no_more_memory_to_build_for_more_files(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(600)]

    def stats(number: int) -> dict[str, Any]:
        return {
            "minValues": {name: number + place for place, name in enumerate(names)},
            "maxValues": {name: number + place + 5 for place, name in enumerate(names)},
            "nullCount": dict.fromkeys(names, 0),
        }

    def peak(files: int) -> int:
        log = HandLog(tmp_path / str(files), dict.fromkeys(names, "long"))
        log.commit(*(add(f"{number}.parquet", stats=stats(number)) for number in range(files)))
        write_checkpoint(open_store(log.table))
        built = "benchmarks.lazydelta_work:build_sidecar"
        runs = []
        for _ in range(2):
            sidecar.drop(log.table)
            runs.append(measure(built, str(log.table), _BUDGET, imports=(*IMPORTS, "lazydelta.sidecar")))
        assert [run.failure for run in runs] == [None] * len(runs)
        assert sidecar.verify(log.table).ok
        assert len(DeltaTable(log.table).files([("c599", ">=", files + 590)]).collect()) == 14
        return min(run.peak_bytes or 0 for run in runs)

    few, many = peak(600), peak(2_400)
    assert 0 < many <= 1.3 * max(few, 4 * _BUDGET), (few, many)
