"""The cache of manifests and footers: bounded, shared by tables and threads, never right about a table that changed."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from lazydelta.sidecar.format.columns import FOLDER
from lazydelta.sidecar.reading.discovery import shared_cache
from lazydelta.storage import Request, observe
from tests.scan.hand_log import key
from tests.sidecar.conftest import Split
from tests.sidecar.sidecars import DISABLED, QUERIES, Place, hourly, rows

WHERE = "hour = '2026021005'"


def sidecar_requests(requests: list[Request], name: str = "_sidecars") -> int:
    """Return how many reads named something of the sidecar."""
    return sum(each.verb == "GET" and name in each.path for each in requests)


@pytest.fixture
def place(split: Split, tmp_path: Path) -> Place:
    """Make a table whose sidecar has several parts."""
    split(5, 5)
    hourly(tmp_path / "table")
    made = Place(str(tmp_path / "table"))
    made.build()
    return made


def test_manifest_and_footers_are_read_once(place: Place) -> None:
    """Another open of the same table in this process reads row groups only."""
    cold: list[Request] = []
    with observe(cold.append):
        first, metrics = rows(place.open(), WHERE)
    assert metrics.cache_hits == 0
    warm: list[Request] = []
    with observe(warm.append):
        again, metrics = rows(place.open(), WHERE)
    assert again == first
    assert metrics.cache_hits > 0
    assert sidecar_requests(cold, "manifest.json") == 1
    assert sidecar_requests(warm, "manifest.json") == 0
    assert sidecar_requests(warm) == metrics.row_groups_read < sidecar_requests(cold)


def test_a_cleared_cache_remembers_nothing(place: Place) -> None:
    rows(place.open(), WHERE)
    assert shared_cache.size > 0
    shared_cache.clear()
    assert shared_cache.size == 0
    assert rows(place.open(), WHERE)[1].cache_hits == 0


def test_a_cache_of_no_size_keeps_nothing_and_answers_all_the_same(place: Place) -> None:
    expected = {where: place.answer(where) for where in QUERIES}
    shared_cache.clear()
    for where in QUERIES:
        found, metrics = rows(place.open(cache_size=0), where)
        assert found == expected[where]
        assert metrics.cache_hits == 0
    assert shared_cache.size == 0


def test_a_rebuilt_table_at_the_same_place_is_another_table(place: Place, tmp_path: Path) -> None:
    """Everything is replaced under a warm cache, checkpoint and sidecar too: nothing of the old table is seen."""
    rows(place.open())
    shutil.rmtree(tmp_path / "table")
    hourly(tmp_path / "table", files=77, seed=3)
    place.build()
    for where in QUERIES:
        found, metrics = rows(place.open(), where)
        assert found == place.answer(where)
        assert metrics.tier == 1
    assert len({path for path, *_ in rows(place.open())[0]}) < 100


def test_a_sidecar_that_vanished_under_a_warm_cache_is_survived(place: Place, tmp_path: Path) -> None:
    """The manifest is remembered and its files are gone; the next scan looks anew and finds nothing."""
    rows(place.open())
    shutil.rmtree(tmp_path / "table" / FOLDER)
    found, metrics = rows(place.open())
    assert found == place.answer()
    assert metrics.tier == 3
    requests: list[Request] = []
    with observe(requests.append):
        found, metrics = rows(place.open())
    assert found == place.answer()
    assert metrics.tier == 3
    assert not [each for each in requests if "_sidecars/v0-" in each.path]
    place.build()
    found, metrics = rows(place.open())
    assert found == place.answer()
    assert metrics.tier == 1


def test_threads_share_the_cache(place: Place) -> None:
    """Many scans at once, while others clear the cache: each gets its own right answer."""
    expected = {where: place.answer(where) for where in QUERIES[:4]}
    wrong: list[object] = []

    def scan(number: int) -> None:
        for turn in range(6):
            where = QUERIES[(number + turn) % 4]
            if rows(place.open(), where)[0] != expected[where]:
                wrong.append(where)
            if turn == number:
                shared_cache.clear()

    threads = [threading.Thread(target=scan, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


def test_coroutines_share_the_cache(place: Place) -> None:
    expected = sorted(map(key, place.open(**DISABLED).files(WHERE)), key=repr)

    async def scan() -> list[object]:
        return sorted([key(file) async for file in place.open().files(WHERE)], key=repr)

    async def together() -> list[list[object]]:
        return await asyncio.gather(*(scan() for _ in range(8)))

    assert all(found == expected for found in asyncio.run(together()))


def test_the_cache_stays_within_its_bound(split: Split, tmp_path: Path) -> None:
    """Tables come and go; what was used least recently is dropped, and scans do not notice."""
    split(2, 2)
    places = []
    for number in range(6):
        hourly(tmp_path / str(number), files=60, seed=number)
        places.append(Place(str(tmp_path / str(number))))
        places[-1].build()
    rows(places[0].open())
    one = shared_cache.size
    try:
        shared_cache.resize(one * 2)
        for place in places:
            assert rows(place.open())[0] == place.answer()
            assert shared_cache.size <= one * 2
    finally:
        shared_cache.resize(64 << 20)
