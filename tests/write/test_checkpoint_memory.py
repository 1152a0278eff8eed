"""The memory that a checkpoint takes does not grow with the table."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.measure import Measurement, measure
from benchmarks.tables import cached_table
from lazydelta.storage import open_store
from lazydelta.write.checkpoint.writer import MEMORY_BUDGET, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

SMALL, LARGE, HUGE = 50_000, 200_000, 5_000_000
TAIL: dict[str, Any] = {"tail": 5, "adds_per_commit": 200, "removes": 1_000}
GROWTH = 1.4  # a row group has a kilobyte or two of metadata for each column; the rest is the allocator
LIMIT = 1 << 30
BUDGET = 64 << 20  # several row groups even in the small table
NOW = 1_770_764_400_000  # made tables do not depend on the clock, and neither do their tombstones
IMPORTS = ("lazydelta.write.checkpoint.writer", "pyarrow.parquet", "obstore")

pytestmark = [pytest.mark.memory, pytest.mark.timeout(300)]


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


def _copy(folder: Path, files: int, **recipe: Any) -> Path:
    """Return a table that the test may write to; its big files are not copied where they can be shared."""
    made, _ = cached_table(files=files, **TAIL, **recipe)
    copy = folder / f"table-{files}"
    shutil.copytree(made, copy, copy_function=_link)
    return copy


def _checkpoint(table: Path, memory_budget: int = BUDGET) -> Measurement:
    measured = measure("tests.write.checkpoint_work:checkpoint", str(table), memory_budget, NOW, imports=IMPORTS)
    assert measured.failure is None
    assert measured.peak_bytes is not None
    return measured


@pytest.mark.parametrize("stats", ["json", "both"])
def test_four_times_the_files_take_no_more_memory(stats: str, tmp_path: Path) -> None:
    small, large = (_checkpoint(_copy(tmp_path, files, stats=stats)) for files in (SMALL, LARGE))
    assert small.answer == [SMALL, SMALL + 1_000 + 2]
    assert large.answer == [LARGE, LARGE + 1_000 + 2]
    assert small.peak_bytes is not None
    assert large.peak_bytes is not None
    assert large.peak_bytes < GROWTH * small.peak_bytes, (small.peak_bytes, large.peak_bytes)
    assert large.peak_bytes < 3 * BUDGET


def test_a_checkpoint_over_our_own_checkpoint_takes_no_more_either(tmp_path: Path) -> None:
    """Ours has statistics in both forms, and row groups of its own."""
    table = _copy(tmp_path, LARGE)
    first = _checkpoint(table)
    version = write_checkpoint(open_store(table)).version
    (table / "_delta_log" / f"{version + 1:020d}.json").write_text('{"commitInfo":{"operation":"WRITE"}}\n')
    second = _checkpoint(table)
    assert second.answer == first.answer
    assert first.peak_bytes is not None
    assert second.peak_bytes is not None
    assert second.peak_bytes < GROWTH * first.peak_bytes, (first.peak_bytes, second.peak_bytes)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_checkpoint_of_five_million_files_stays_below_a_gigabyte(tmp_path: Path) -> None:
    measured = _checkpoint(_copy(tmp_path, HUGE), MEMORY_BUDGET)
    assert measured.answer == [HUGE, HUGE + 1_000 + 2]
    assert measured.peak_bytes is not None
    assert measured.peak_bytes < LIMIT, measured
