"""What a commit costs does not grow with the table: requests, bytes read and memory at a thousand and a million files.

Time is not looked at, because it follows from these and from the machine.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from benchmarks.measure import Measurement, measure
from benchmarks.tables import cached_table
from lazydelta.log.checksum.writer import TableTotals, write_checksum
from lazydelta.log.snapshot import open_snapshot
from lazydelta.storage import open_store

if TYPE_CHECKING:
    from pathlib import Path

SMALL, LARGE = 1_000, 1_000_000
COMMITS = 8
MEMORY_GROWTH = 1.3
# Below this the allocator's arenas decide, not the commits.
MEMORY_FLOOR = 16 << 20
IMPORTS = ("lazydelta.write.transaction", "pyarrow.parquet", "pyarrow._compute", "obstore")

pytestmark = [pytest.mark.memory, pytest.mark.timeout(300)]


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


def _copy(folder: Path, files: int, row_group_size: int | None) -> Path:
    """Return a table that the test may commit to; its checkpoint is shared with the one that is kept."""
    made, facts = cached_table(files=files, row_group_size=row_group_size)
    copy = folder / f"table-{files}"
    shutil.copytree(made, copy, copy_function=_link)
    assert facts.num_files == files
    return copy


def _with_checksum(table: Path, files: int) -> Path:
    store = open_store(table)
    snapshot = open_snapshot(store)
    write_checksum(
        store, snapshot.version, TableTotals(files, files), protocol=snapshot.protocol, metadata=snapshot.metadata
    )
    return table


def _commits(table: Path) -> Measurement:
    measured = measure("tests.write.commit_work:commits", str(table), COMMITS, imports=IMPORTS)
    assert measured.failure is None
    assert measured.peak_bytes is not None
    return measured


def _peaks(small: Measurement, large: Measurement) -> tuple[int, int]:
    assert small.peak_bytes is not None
    assert large.peak_bytes is not None
    return small.peak_bytes, large.peak_bytes


def test_a_commit_costs_the_same_at_a_thousand_files_and_at_a_million(tmp_path: Path) -> None:
    small, large = (_commits(_with_checksum(_copy(tmp_path, files, 20_000), files)) for files in (SMALL, LARGE))
    for little, much in zip(small.answer, large.answer, strict=True):
        assert much[0] == little[0] <= 8
        # The totals in a checksum have a few digits more.
        assert little[1] <= much[1] <= little[1] + 100
    peaks = _peaks(small, large)
    assert peaks[1] <= MEMORY_GROWTH * max(peaks[0], MEMORY_FLOOR), peaks


def test_without_a_checksum_a_commit_reads_a_hundredth_of_the_checkpoint_at_most(tmp_path: Path) -> None:
    """Protocol, metadata and applications are then looked up in it, whose row groups are as many as it has files."""
    tables = [_copy(tmp_path, files, 20_000) for files in (SMALL, LARGE)]
    small, large = (_commits(table) for table in tables)
    [checkpoint] = (tables[1] / "_delta_log").glob("*.checkpoint.parquet")
    assert all(read < checkpoint.stat().st_size // 100 for _, read in large.answer)
    assert max(requests for requests, _ in large.answer) <= 10 * max(requests for requests, _ in small.answer)
    peaks = _peaks(small, large)
    assert peaks[1] <= MEMORY_GROWTH * max(peaks[0], MEMORY_FLOOR), peaks
