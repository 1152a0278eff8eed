"""Memory does not grow with the table: the peak of a scan, seen from outside, at two sizes ten times apart.

The peak is ``VmHWM`` of a fresh process minus its value after the imports, so it is what a scan adds, allocators and
caches included. How much an allocator keeps for later depends on how the threads happened to run, by a fifth and more
on a busy machine: the smallest peak of a few runs is what the scan needs, and growth with the table would show in each.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.measure import Measurement, measure
from benchmarks.tables import cached_table
from tests.support.rounds import quick

SMALL, LARGE = 100_000, 1_000_000
LIMIT = 150 << 20
GROWTH = 1.3
# Below this the allocator's arenas decide, not the scan: a peak of 12 MB beside one of 9 MB is no growth.
FLOOR = 16 << 20

RUNS = 3

IMPORTS = ("lazydelta", "pyarrow.parquet", "obstore")
LAYOUTS: dict[str, dict[str, Any]] = {
    "one row group": {"row_group_size": None},
    "many row groups": {"row_group_size": 20_000},
}
PREDICATES: dict[str, list[tuple[str, str, object]] | None] = {
    "all files": None,
    "files by statistics": [("device_id", "=", "sensor-04242")],
}

pytestmark = [pytest.mark.memory, pytest.mark.timeout(300)]


def _scan(
    files: int, layout: dict[str, Any], where: list[tuple[str, str, object]] | None, strategy: str
) -> Measurement:
    folder, _ = cached_table(files=files, **layout)
    if where is None:
        measured = measure("benchmarks.lazydelta_work:all_files", str(folder), strategy, imports=IMPORTS)
    else:
        measured = measure("benchmarks.lazydelta_work:matching_files", str(folder), where, strategy, imports=IMPORTS)
    assert measured.failure is None
    return measured


def _peak(runs: list[Measurement]) -> int:
    peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
    assert len(peaks) == len(runs)
    return min(peaks)


@pytest.mark.parametrize("strategy", quick(["reverse", "forward"], 1))
@pytest.mark.parametrize("where", PREDICATES.values(), ids=PREDICATES)
@pytest.mark.parametrize("layout", quick(LAYOUTS.values(), 1), ids=LAYOUTS)
def test_ten_times_the_files_take_no_more_memory(
    layout: dict[str, Any], where: list[tuple[str, str, object]] | None, strategy: str
) -> None:
    small = [_scan(SMALL, layout, where, strategy) for _ in range(RUNS)]
    large = [_scan(LARGE, layout, where, strategy) for _ in range(RUNS)]
    for few, many in zip(small, large, strict=True):
        if where is None:
            assert (few.answer, many.answer) == (SMALL, LARGE)
        else:
            assert 0 < few.answer < many.answer < LARGE // 10
    assert _peak(large) <= GROWTH * max(_peak(small), FLOOR), (small, large)
    assert all(run.peak_bytes is not None and run.peak_bytes < LIMIT for run in large), large


@pytest.mark.parametrize("strategy", ["forward", "reverse"])
def test_statistics_of_a_hundred_columns_take_no_more_memory(strategy: str) -> None:
    """They are several kilobytes a file: a batch holds fewer files then."""
    wide, _ = cached_table(files=20_000, columns=100)
    where = PREDICATES["files by statistics"]
    measured = measure("benchmarks.lazydelta_work:matching_files", str(wide), where, strategy, imports=IMPORTS)
    assert measured.failure is None
    assert measured.peak_bytes is not None
    assert 0 < measured.answer < 2_000
    assert measured.peak_bytes < LIMIT


def test_the_measurement_sees_memory_that_is_taken() -> None:
    """Else a flat line would prove nothing."""
    measured = measure("benchmarks.reference_work:allocate", 200 << 20)
    assert measured.peak_bytes is not None
    assert 190 << 20 < measured.peak_bytes < 220 << 20
