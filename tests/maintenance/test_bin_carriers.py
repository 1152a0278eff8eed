"""Bins rewritten side by side: within one memory budget, in order, and nothing is left of what is not committed."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lazydelta
from lazydelta.errors import DataFileError, StorageError
from lazydelta.maintenance.optimize import OptimizeSettings, optimize
from lazydelta.maintenance.rewrite import Bin, Rewriter, Rewritten, in_threads
from lazydelta.sidecar.handle import TableHandle
from tests.maintenance.old_tables import data_files
from tests.oracle.replay import replay

PARTITIONS = "abcdef"
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table with six partitions of three files."""
    for number in range(3):
        rows = pa.table({"p": list(PARTITIONS), "id": pa.array(range(number * 6, number * 6 + 6), pa.int64())})
        lazydelta.write_arrow(tmp_path, rows, partition_by=["p"])
    return tmp_path


def _ids(root: Path) -> list[int]:
    return sorted(lazydelta.DeltaTable(root).to_pyarrow_table().column("id").to_pylist())


def test_several_bins_are_under_way_together_and_share_the_budget(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No bin ends before four have begun, so that one after the other would wait for ever."""
    together, budgets = threading.Barrier(4), []
    begun = [0]
    original = Rewriter.rewrite

    def held(self: Rewriter, bin_: Bin, family: str = "", *, run_again: bool = False) -> Rewritten:
        budgets.append(self.memory_budget)
        begun[0] += 1
        if begun[0] <= 4:
            together.wait(60)
        return original(self, bin_, family, run_again=run_again)

    monkeypatch.setattr(Rewriter, "rewrite", held)
    done = optimize(TableHandle.open(table), settings=OptimizeSettings(memory_budget=256 * MIB))
    assert (done.removed.count, done.added.count) == (18, 6)
    assert budgets == [64 * MIB] * 6
    assert _ids(table) == list(range(18))


def test_little_memory_is_for_one_bin_at_a_time(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = []
    original = Rewriter.rewrite

    def noted(self: Rewriter, bin_: Bin, family: str = "", *, run_again: bool = False) -> Rewritten:
        budgets.append((self.memory_budget, threading.current_thread() is threading.main_thread()))
        return original(self, bin_, family, run_again=run_again)

    monkeypatch.setattr(Rewriter, "rewrite", noted)
    optimize(TableHandle.open(table), settings=OptimizeSettings(memory_budget=40 * MIB))
    assert budgets == [(40 * MIB, True)] * 6


def test_a_bin_that_fails_fails_the_run_and_nothing_is_left_of_the_others(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = data_files(table)
    original = Rewriter.rewrite

    def failing(self: Rewriter, bin_: Bin, family: str = "", *, run_again: bool = False) -> Rewritten:
        if bin_.partition == ("c",):
            raise StorageError("no room", path="c")
        return original(self, bin_, family, run_again=run_again)

    monkeypatch.setattr(Rewriter, "rewrite", failing)
    with pytest.raises(StorageError, match="no room"):
        optimize(TableHandle.open(table))
    assert data_files(table) == before
    assert len(replay(table / "_delta_log").files) == 18
    monkeypatch.undo()
    assert optimize(TableHandle.open(table)).removed.count == 18


def test_a_file_that_cannot_be_read_is_named(table: Path) -> None:
    path = next(iter(sorted(data_files(table))))
    (table / path).write_bytes(b"no Parquet")
    before = data_files(table)
    with pytest.raises(DataFileError, match=path.rpartition("/")[2]):
        optimize(TableHandle.open(table))
    assert data_files(table) == before


def test_who_has_enough_gets_what_was_rewritten_in_vain_deleted(table: Path) -> None:
    before = data_files(table)
    seen: list[Rewritten] = []
    handle = TableHandle.open(table)

    def impatient(rewriter: Rewriter, bins: Iterator[Bin]) -> Generator[Rewritten]:
        with closing(in_threads(rewriter, bins)) as carried:
            seen.append(next(carried))
            seen.append(next(carried))
        yield from ()

    optimize(handle, carrier=impatient)
    new = data_files(table) - before
    assert new == {add.path for each in seen for add in each.adds}


def test_new_files_are_in_the_order_of_their_bins_though_these_ended_in_another(tmp_path: Path) -> None:
    """The last bin is rewritten first: by the times in the log its rows come last all the same, run after run."""
    for number in range(12):
        lazydelta.write_arrow(tmp_path, pa.table({"id": pa.array([number], pa.int64())}))
    size = max(each["size"] for each in replay(tmp_path / "_delta_log").files.values())
    settings = OptimizeSettings(target_size=3 * size + size // 2)

    def backwards(rewriter: Rewriter, bins: Iterator[Bin]) -> Generator[Rewritten]:
        yield from (rewriter.rewrite(each) for each in reversed(list(bins)))

    done = optimize(TableHandle.open(tmp_path), settings=settings, carrier=backwards)
    assert (done.removed.count, done.added.count) == (12, 4)
    files = sorted(replay(tmp_path / "_delta_log").files.values(), key=lambda each: int(each["modificationTime"]))
    assert len({each["modificationTime"] for each in files}) == 4
    ids = [pq.read_table(tmp_path / each["path"]).column("id").to_pylist() for each in files]
    assert ids == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_bins_come_back_in_the_order_in_which_they_were_given(table: Path) -> None:
    given: list[Bin] = []
    came: list[Bin] = []

    def noted(rewriter: Rewriter, bins: Iterator[Bin]) -> Generator[Rewritten]:
        given.extend(bins)
        for each in in_threads(rewriter, iter(given)):
            came.append(each.bin)
            yield each

    optimize(TableHandle.open(table), carrier=noted)
    assert came == given
    assert len(came) == 6
