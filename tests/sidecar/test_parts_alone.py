"""A sidecar in parts without its manifest: its overview lists the parts, and whatever is lost, the answer stays."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lazydelta.sidecar.building.refresh import refresh
from lazydelta.sidecar.format.columns import manifest_path, sidecar_path
from lazydelta.sidecar.lifecycle import clean
from lazydelta.sidecar.reading.discovery import shared_cache
from lazydelta.sidecar.verification import verify
from lazydelta.storage import Store
from tests.scan.hand_log import HandLog, add, remove
from tests.sidecar.conftest import Form, Split
from tests.sidecar.sidecars import Place, flipped, hourly, rows

PREDICATES = (None, "hour = '2026021005'", "hour >= '2026021020' AND id > 40", "id = 5", "hour IS NULL")


def parts_of(place: Place) -> list[str]:
    return [path for path in place.parquets() if "-" in path]


def refreshed(tmp_path: Path, seed: int) -> tuple[HandLog, Place, int]:
    """Return a table whose sidecar, of the version returned, has parts of two builds, and a tail."""
    log = hourly(tmp_path, files=90, tail=2, seed=seed)
    place = Place(str(tmp_path))
    assert place.build() == "built"
    log.commit(add("last", ids=(1, 9), records=3, partition={"hour": "2026021023"}))
    log.checkpoint()
    version = log.version
    done = refresh(str(tmp_path))
    assert 0 < done.reused_parts < done.num_parts, "parts of two builds"
    log.commit(remove("last"), add("newer", ids=(1, 99), records=3, partition={"hour": "2026021005"}))
    return log, place, version


def stale_overview(store: Store, version: int) -> None:
    store.put(sidecar_path(version), store.get(sidecar_path(0)))


def torn_overview(store: Store, version: int) -> None:
    data = store.get(sidecar_path(version))
    store.put(sidecar_path(version), flipped(data, random.Random(version).randrange(len(data) * 8)))


def lost_part(store: Store, version: int) -> None:
    _, last = _ends(store, version)
    store.delete(last)


def stale_part(store: Store, version: int) -> None:
    first, last = _ends(store, version)
    store.put(last, store.get(first))


def _ends(store: Store, version: int) -> tuple[str, str]:
    parts = [each.path for each in store.list("_delta_log/_sidecars") if "-" in each.path and ".parquet" in each.path]
    return next(each for each in parts if "/v0-" in each), next(each for each in parts if f"/v{version}-" in each)


@pytest.mark.parametrize("harm", [None, lost_part, stale_part, stale_overview, torn_overview])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.each_value
def test_without_its_manifest_a_scan_finds_the_same(
    harm: Callable[[Store, int], None] | None, seed: int, tmp_path: Path, split: Split, form: Form
) -> None:
    """Plain parts, with leaves and with tiers, of two builds; one of them lost, or the list of another version."""
    form(seed)
    split(4, 2)
    _, place, version = refreshed(tmp_path, seed)
    place.store.delete(manifest_path(version))
    place.store.delete(manifest_path(0))
    if harm is not None:
        harm(place.store, version)
    for where in PREDICATES:
        shared_cache.clear()
        found, metrics = rows(place.open(), where)
        assert found == place.answer(where), where
        if harm is None:
            assert metrics.tier == 2, metrics.sidecar
            assert where is None or "hour" not in where or metrics.row_groups_pruned, where
        elif where is None:
            assert metrics.tier == 3, metrics.sidecar
    if harm is None:
        report = verify(str(tmp_path))
        assert (report.ok, report.tier) == (True, 2), report.problems


def test_parts_without_manifest_and_overview_do_not_count(tmp_path: Path, split: Split) -> None:
    """Those of a killed build look the same, and so do those of releases that wrote no overview."""
    split(4, 2)
    hourly(tmp_path)
    place = Place(str(tmp_path))
    place.build()
    for path in (manifest_path(0), sidecar_path(0)):
        place.store.delete(path)
    found, metrics = rows(place.open())
    assert (found, metrics.tier) == (place.answer(), 3)


def test_a_lost_manifest_is_written_again_from_the_overview(tmp_path: Path, split: Split, form: Form) -> None:
    split(4, 2)
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        form(seed)
        _, place, version = refreshed(folder, seed)
        parts = parts_of(place)
        place.store.delete(manifest_path(version))
        place.store.delete(manifest_path(0))
        clean(str(folder), grace_hours=0)
        kept = {path for path in parts_of(place) if path in parts}
        found, metrics = rows(place.open())
        assert (found, metrics.tier) == (place.answer(), 2), "cleaning up keeps what an overview lists"
        assert place.build() == "manifest-added"
        assert set(parts_of(place)) == kept
        shared_cache.clear()
        found, metrics = rows(place.open(), "hour = '2026021005'")
        assert (found, metrics.tier) == (place.answer("hour = '2026021005'"), 1)
