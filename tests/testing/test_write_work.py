"""What writers are measured at does what it says, by both writers."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pytest

from benchmarks import everyday_work, write_work
from lazydelta import DeltaTable
from lazydelta.testing import make_table

WRITERS = ("lazydelta", "deltalake")


@pytest.mark.parametrize("by", WRITERS)
def test_rows_and_commits_are_written(by: str, tmp_path: Path) -> None:
    assert write_work.append(by, str(tmp_path / "rows"), 500)["count"] == 500
    assert len(deltalake.DeltaTable(str(tmp_path / "rows")).file_uris()) == 24, "a file for each hour"
    assert write_work.commits(by, str(tmp_path / "commits"), 3)["count"] == 3


@pytest.mark.parametrize("by", WRITERS)
def test_small_files_are_put_together_and_keep_their_rows(by: str, tmp_path: Path) -> None:
    assert write_work.optimize(by, str(tmp_path), 4)["count"] == 4_000
    assert len(deltalake.DeltaTable(str(tmp_path)).file_uris()) == 1


@pytest.mark.parametrize("by", WRITERS)
def test_a_checkpoint_is_written_of_a_copy(by: str, tmp_path: Path) -> None:
    made = make_table(tmp_path / "source", files=300, tail=4, checksum=True)
    before = sorted(file.name for file in (tmp_path / "source" / "_delta_log").iterdir())
    assert write_work.checkpoint(by, str(tmp_path / "source"), str(tmp_path / "copy"))["count"] == 2
    assert sorted(file.name for file in (tmp_path / "source" / "_delta_log").iterdir()) == before
    assert (tmp_path / "copy" / "_delta_log" / f"{made.version:020}.checkpoint.parquet").exists()
    assert DeltaTable(tmp_path / "copy").version() == made.version


@pytest.mark.parametrize("by", WRITERS)
def test_everyday_work_gives_the_answers_that_are_expected(by: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "table")
    assert [everyday_work.write(by, folder, 8) for _ in range(2)] == [1, 2]
    assert everyday_work.read(by, folder) == 6
    assert everyday_work.listing(by, folder) == 2
    assert everyday_work.delete(by, folder, "c5 = 2") == 4
    assert everyday_work.checkpoint(by, folder) == everyday_work.listing(by, folder)
