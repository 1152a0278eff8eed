"""The set of what must stay is exact, and small in memory however many files a table has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lazydelta.maintenance.vacuum_files import KeptFiles, Orphans
from lazydelta.runtime.arrays import string_array
from lazydelta.storage import open_store

LIMIT = 1 << 20


@pytest.mark.parametrize("count", [1_000, 300_000])
def test_many_places_take_the_memory_of_the_limit_and_are_all_found(tmp_path: Path, count: int) -> None:
    kept = KeptFiles(open_store(tmp_path), LIMIT)
    paths = [f"_event_hour=h{number % 100}/part-{number:08}.parquet" for number in range(count)]
    for start in range(0, count, 10_000):
        kept.keep(string_array(paths[start : start + 10_000]))
    assert len(kept) == count
    # Sixteen bytes each would be 4.8 MB: they are on disk, and some bits each tell where to look.
    assert kept._places.memory <= 2 * LIMIT
    assert kept.has(paths[:: count // 500]).all()
    assert not kept.has([f"{path}x" for path in paths[:500]]).any()
    kept.close()


def test_nothing_is_in_an_empty_set(tmp_path: Path) -> None:
    kept = KeptFiles(open_store(tmp_path), LIMIT)
    kept.keep(string_array([]))
    assert np.array_equal(kept.has(["a"]), [False])
    assert len(kept.has([])) == 0


def test_orphans_come_back_in_order_whatever_their_names() -> None:
    orphans = Orphans()
    names = ["a b", "new\nline", "ünï/日", '"quoted"', *(f"f{number}" for number in range(2500))]
    for size, name in enumerate(names):
        orphans.add(name, size)
    found = [each for batch in orphans.batches() for each in batch]
    assert [each.path for each in found] == names
    assert [each.size for each in found] == list(range(len(names)))
    assert (orphans.count, orphans.size) == (len(names), sum(range(len(names))))
    assert [each for batch in orphans.batches() for each in batch] == found
    orphans.close()
