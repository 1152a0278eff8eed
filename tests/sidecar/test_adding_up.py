"""Every file of tail and base is counted once: found, pruned (itself or with its row group), or hidden by the tail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sidecar.sidecars import QUERIES, Place, hourly, rest, until_base

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sidecar.conftest import Split

FILES = 120
TAIL = 3
# Each commit of the tail adds a file and replaces one of the base; what an older commit added stays active.
TAIL_ADDS = 2 * TAIL


@pytest.fixture
def place(split: Split, tmp_path: Path) -> Place:
    """Return a table with a sidecar of several parts."""
    split(5, 4)
    hourly(tmp_path, files=FILES, tail=TAIL)
    found = Place(str(tmp_path))
    assert found.build() == "built"
    return found


@pytest.mark.parametrize("strategy", ["auto", "reverse", "forward"])
@pytest.mark.parametrize("where", QUERIES)
@pytest.mark.each_value
def test_all_files_are_counted_once(place: Place, where: str | None, strategy: str) -> None:
    stream = place.open().files(where, strategy=strategy)
    found = len(stream.collect())
    metrics = stream.metrics
    assert metrics.tier == 1
    assert metrics.files_emitted == found
    assert metrics.files_considered == FILES + TAIL_ADDS
    if metrics.row_groups_pruned:
        assert metrics.files_pruned_by_groups > 0


@pytest.mark.parametrize("strategy", ["reverse", "forward"])
def test_all_files_are_counted_once_where_the_sidecar_goes_in_the_middle(place: Place, strategy: str) -> None:
    """And the reason is there to be counted by."""
    where = "hour >= '2026021004'"
    options = {"delta.sidecar.row_groups_per_batch": 1}
    stream = place.open(**options).files(where, strategy=strategy, batch_size=1)
    files = until_base(stream)
    for path in place.parquets():
        place.store.delete(path)
    files += rest(stream)
    metrics = stream.metrics
    assert len({file.path for file in files}) == len(files) == len(place.answer(where))
    assert metrics.files_emitted == len(files)
    if metrics.sidecar_failure:
        assert metrics.sidecar_failure == "storage"
        assert "not used (storage)" in stream.explain().plan["sidecar"]
    else:
        assert strategy == "forward", "a reverse scan of one row group at a time has not read them all by then"
    assert metrics.files_emitted + metrics.files_masked <= metrics.files_considered <= FILES + TAIL_ADDS
