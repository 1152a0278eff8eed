"""Adoption, cleaning and dropping: what is needed stays, what is not goes, and nothing else is touched."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from lazydelta import sidecar
from lazydelta.errors import OptionError
from lazydelta.sidecar.building.publish import BuildResult, Publication
from lazydelta.sidecar.format.columns import FOLDER, manifest_path, sidecar_path
from lazydelta.storage import Request, observe
from tests.scan.hand_log import HandLog
from tests.sidecar.conftest import Split
from tests.sidecar.refreshed import COLUMNS, HOURS, Hourly, file_in, gone_from, same
from tests.sidecar.sidecars import Place, flipped, is_overview, rows

OFFICIAL = f"{FOLDER}/016ae953-37a9-438e-8683-9a9a4a79a395.parquet"
STRANGERS = [
    OFFICIAL,
    f"{FOLDER}/v1.parquet.tmp",
    f"{FOLDER}/v01.parquet",
    f"{FOLDER}/v1-not-a-build-1.parquet",
    f"{FOLDER}/v1-016ae953-37a9-438e-8683-9a9a4a79a395-0.parquet",
    f"{FOLDER}/x1.manifest.json",
    f"{FOLDER}/v1.json",
    f"{FOLDER}/v1.other.parquet",
    f"{FOLDER}/v1.delta.parquet",
]
DEBRIS = f"{FOLDER}/v0-016ae953-37a9-438e-8683-9a9a4a79a395-1.parquet"


@pytest.fixture
def single(tmp_path: Path) -> Place:
    """Return a table whose sidecar is a single file."""
    log = HandLog(tmp_path / "t", COLUMNS, partitions=["hour"])
    log.commit(*(file_in(HOURS[number // 10], number) for number in range(50)))
    log.checkpoint()
    place = Place(str(tmp_path / "t"))
    assert place.build() == "built"
    return place


@pytest.fixture
def hourly(tmp_path: Path, split: Split) -> Hourly:
    """Return a table whose sidecar has ten parts."""
    return Hourly(tmp_path / "t", split)


def put_strangers(place: Place) -> None:
    """Put files beside ours that are not ours, though some look alike."""
    for path in STRANGERS:
        place.store.put(path, b"not ours")


def age(place: Place, hours: float, paths: list[str] | None = None) -> None:
    """Make files older than they are."""
    timestamp = time.time() - hours * 3600
    for path in place.sidecars() if paths is None else paths:
        os.utime(Path(place.uri) / path, (timestamp, timestamp))


# --- adoption


def test_a_sidecar_without_its_manifest_gets_it_back(single: Place) -> None:
    """Nothing but the manifest is written, and it is what the build had written."""
    before = single.store.get(manifest_path(0))
    single.store.delete(manifest_path(0))
    writes: list[Request] = []
    with observe(lambda request: writes.append(request) if request.verb == "PUT" else None):
        assert single.build() == "manifest-added"
    assert [request.path for request in writes] == [manifest_path(0)]
    assert len(single.store.get(manifest_path(0))) <= len(before)
    same(single)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\x00", b'{"sha256": 3}'])
def test_an_invalid_manifest_is_replaced(single: Place, content: bytes) -> None:
    single.store.put(manifest_path(0), content)
    assert single.build() == "manifest-added"
    assert single.build() == "already-valid"
    same(single)


def test_an_invalid_manifest_of_parts_is_replaced_by_a_build(hourly: Hourly) -> None:
    hourly.place.store.put(manifest_path(0), b"{}")
    assert hourly.place.build() == "manifest-added"
    hourly.check()
    hourly.place.store.put(manifest_path(0), b"{}")
    hourly.place.store.delete(sidecar_path(0))
    assert hourly.place.build() == "built", "no overview lists its parts"
    hourly.check()


def test_a_manifest_whose_parts_are_gone_is_replaced(hourly: Hourly) -> None:
    hourly.place.store.delete(hourly.parts()[3])
    assert hourly.place.build() == "built"
    hourly.check()


def test_a_single_file_that_is_of_no_use_gives_way_to_the_overview_of_parts(single: Place) -> None:
    single.store.delete(manifest_path(0))
    data = single.store.get(sidecar_path(0))
    single.store.put(sidecar_path(0), data[:-9] + b"x" + data[-8:])
    assert single.build() == "built"
    assert len(single.parquets()) == 1
    assert is_overview(single.store.get(sidecar_path(0)))
    same(single)


def test_a_builder_whose_answer_was_lost_knows_its_own_manifest(hourly: Hourly) -> None:
    """The store has the manifest and the client asks again: it is ours, and its parts stay."""
    sidecar.drop(hourly.place.uri)
    store_type = type(hourly.place.store)
    real = store_type.put_if_absent

    def twice(self: object, path: str, data: bytes) -> None:
        real(self, path, data)  # type: ignore[arg-type]
        if path == manifest_path(0):
            real(self, path, data)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_type, "put_if_absent", twice)
        assert hourly.place.build() == "built"
    assert len(hourly.place.parquets()) == 10
    hourly.check()


# --- pages that are damaged under an intact footer


def damage_pages(place: Place, path: str) -> None:
    """Turn over a bit in the first page of a file: its size and its footer stay as they were."""
    place.store.put(path, flipped(place.store.get(path), 8 * 60))


def test_a_build_replaces_a_sidecar_with_a_damaged_page(hourly: Hourly) -> None:
    """Readers go round it, verify tells, and a build reads what is there before it calls it good."""
    victim = hourly.parts()[3]
    damage_pages(hourly.place, victim)
    assert rows(hourly.place.open())[0] == hourly.place.answer()
    assert not sidecar.verify(hourly.place.uri).ok
    result = sidecar.build(hourly.place.uri)
    assert result.action == "built"
    assert victim in str(result.reason)
    assert victim not in hourly.parts()
    hourly.check()
    assert len(sidecar.clean(hourly.place.uri, grace_hours=0).deleted) == 10
    hourly.check()


@pytest.mark.parametrize("manifest", [True, False], ids=["manifest", "no manifest"])
def test_a_build_replaces_a_single_file_with_a_damaged_page(*, single: Place, manifest: bool) -> None:
    damage_pages(single, sidecar_path(0))
    if not manifest:
        single.store.delete(manifest_path(0))
    assert single.build() == "built"
    same(single)
    assert sidecar.clean(single.uri, grace_hours=0).deleted == [sidecar_path(0)]
    same(single)


def test_a_refresh_goes_by_sizes_and_footers_alone(hourly: Hourly) -> None:
    """It does not read what it does not rewrite; the damage is found by readers, verify and build."""
    damage_pages(hourly.place, hourly.parts()[3])
    assert sidecar.refresh(hourly.place.uri).action == "already-valid"
    hourly.log.commit(file_in(HOURS[15], 900))
    assert hourly.refresh().action == "refreshed"
    assert rows(hourly.place.open())[0] == hourly.place.answer()
    assert sidecar.build(hourly.place.uri).action == "built"
    hourly.check()


def test_a_refresh_that_has_to_rewrite_a_damaged_part_builds_everything(hourly: Hourly) -> None:
    damage_pages(hourly.place, hourly.parts()[3])
    hourly.log.commit(file_in(HOURS[6], 900))
    result = hourly.refresh()
    assert (result.action, result.reused_parts) == ("built", 0)
    assert "row group" in str(result.reason)
    hourly.check()


def test_force_builds_a_good_sidecar_anew(hourly: Hourly) -> None:
    before = set(hourly.parts())
    assert sidecar.build(hourly.place.uri, force=True).action == "built"
    assert not before & set(hourly.parts())
    hourly.check()
    assert set(sidecar.clean(hourly.place.uri, grace_hours=0).deleted) == before


def test_of_two_forced_builds_at_once_one_wins(hourly: Hourly) -> None:
    """The manifest that the loser wanted to replace is gone by then: what is there is another one, and valid."""
    real = Publication.put_manifest
    inner: list[str] = []

    def put_manifest(self: Publication, *arguments: Any, **keywords: Any) -> BuildResult:
        if not inner:
            inner.append("")
            inner[0] = sidecar.build(hourly.place.uri, force=True).action
        return real(self, *arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publication, "put_manifest", put_manifest)
        result = sidecar.build(hourly.place.uri, force=True)
    assert (inner, result.action) == (["built"], "already-valid")
    hourly.check()
    sidecar.clean(hourly.place.uri, grace_hours=0)
    assert len(hourly.place.parquets()) == 10
    hourly.check()


# --- temporary files of writers that were killed


def leave(place: Place, folder: str, hours: float) -> Path:
    """Leave a temporary file behind, as a writer does that is killed before its file has a name."""
    file = Path(place.uri) / folder / ".lazydelta-0123456789abcdef0123456789abcdef-v7.parquet"
    file.write_bytes(b"half of it")
    timestamp = time.time() - hours * 3600
    os.utime(file, (timestamp, timestamp))
    return file


def test_clean_removes_temporary_files_by_their_age(hourly: Hourly) -> None:
    ours, logs = leave(hourly.place, FOLDER, 2), leave(hourly.place, "_delta_log", 2)
    assert sidecar.clean(hourly.place.uri).deleted == []
    result = sidecar.clean(hourly.place.uri, grace_hours=1)
    assert result.deleted == [f"{FOLDER}/{ours.name}"]
    assert result.size_bytes == 10
    assert (ours.exists(), logs.exists()) == (False, True)
    leave(hourly.place, "_delta_log", 25)
    assert sidecar.clean(hourly.place.uri, dry_run=True).deleted == [f"_delta_log/{logs.name}"]
    assert logs.exists()
    assert sidecar.clean(hourly.place.uri).deleted == [f"_delta_log/{logs.name}"]
    assert not logs.exists()
    hourly.check()


def test_drop_removes_temporary_files_of_sidecars(hourly: Hourly) -> None:
    ours, logs = leave(hourly.place, FOLDER, 0.01), leave(hourly.place, "_delta_log", 50)
    sidecar.drop(hourly.place.uri)
    assert (ours.exists(), logs.exists()) == (False, True)


# --- clean


def test_clean_keeps_what_a_kept_manifest_refers_to_and_everything_that_is_not_ours(hourly: Hourly) -> None:
    put_strangers(hourly.place)
    hourly.place.store.put(DEBRIS, b"left by a build that died")
    needed = {*hourly.parts(), manifest_path(0), sidecar_path(0)}
    result = sidecar.clean(hourly.place.uri, grace_hours=0)
    assert result.deleted == [DEBRIS]
    assert (result.kept_versions, result.kept_files) == ([0], 12)
    assert set(hourly.place.sidecars()) == {*needed, *STRANGERS}
    assert sidecar.clean(hourly.place.uri, grace_hours=0).deleted == []


def test_clean_leaves_young_files_alone(hourly: Hourly) -> None:
    hourly.place.store.put(DEBRIS, b"a build may be at work on it")
    assert sidecar.clean(hourly.place.uri).deleted == []
    age(hourly.place, 23, [DEBRIS])
    assert sidecar.clean(hourly.place.uri).deleted == []
    age(hourly.place, 25, [DEBRIS])
    assert sidecar.clean(hourly.place.uri).deleted == [DEBRIS]


def test_a_dry_run_deletes_nothing(hourly: Hourly) -> None:
    hourly.place.store.put(DEBRIS, b"debris")
    before = hourly.place.sidecars()
    result = sidecar.clean(hourly.place.uri, grace_hours=0, dry_run=True)
    assert (result.deleted, result.dry_run, result.size_bytes) == ([DEBRIS], True, 6)
    assert hourly.place.sidecars() == before
    assert sidecar.drop(hourly.place.uri, dry_run=True).dry_run
    assert hourly.place.sidecars() == before


def test_clean_keeps_sidecars_whose_checkpoint_the_log_has_and_drops_the_others(hourly: Hourly) -> None:
    hourly.log.commit(gone_from(HOURS[7], 75))
    hourly.refresh()
    hourly.log.commit(gone_from(HOURS[1], 11))
    hourly.refresh()
    assert sidecar.clean(hourly.place.uri, grace_hours=0).kept_versions == [0, 1, 2]
    old = hourly.parts(0), hourly.parts(1), hourly.parts(2)
    (hourly.log.log / f"{0:020d}.checkpoint.parquet").unlink()
    result = sidecar.clean(hourly.place.uri, grace_hours=0)
    assert result.kept_versions == [1, 2]
    assert result.deleted[0] == manifest_path(0)
    assert set(result.deleted[1:]) == {*old[0], sidecar_path(0)} - set(old[1]) - set(old[2])
    hourly.check()
    assert sidecar.verify(hourly.place.uri, 1).ok


def test_clean_never_takes_the_newest_valid_sidecar(hourly: Hourly) -> None:
    """Not even when its checkpoint is gone from the log, and a damaged newer one is no replacement."""
    hourly.log.commit(gone_from(HOURS[7], 75))
    hourly.log.checkpoint()
    (hourly.log.log / f"{0:020d}.checkpoint.parquet").unlink()
    hourly.place.store.put(manifest_path(1), b"torn")
    needed = {*hourly.parts(0), manifest_path(0), sidecar_path(0)}
    result = sidecar.clean(hourly.place.uri, grace_hours=0)
    assert result.deleted == [manifest_path(1)]
    assert set(hourly.place.sidecars()) == needed


def test_clean_keeps_a_single_file_that_awaits_its_manifest(single: Place) -> None:
    single.store.delete(manifest_path(0))
    assert sidecar.clean(single.uri, grace_hours=0).deleted == []
    assert single.build() == "manifest-added"


def test_clean_removes_the_sidecars_of_another_table_at_the_same_place(hourly: Hourly, tmp_path: Path) -> None:
    other = HandLog(tmp_path / "u", COLUMNS, partitions=["hour"])
    metadata = other.metadata()
    metadata["metaData"]["id"] = "another"
    other.metadata = lambda: metadata  # type: ignore[method-assign]
    other.commit(file_in(HOURS[0], 1))
    other.checkpoint()
    place = Place(str(tmp_path / "u"))
    for path in hourly.place.sidecars():
        place.store.put(path, hourly.place.store.get(path))
    assert place.build() == "built"
    assert len(sidecar.clean(place.uri, grace_hours=0).deleted) == 10
    same(place, (None,))


def test_an_impossible_grace_period_is_refused(single: Place) -> None:
    with pytest.raises(OptionError, match="grace period"):
        sidecar.clean(single.uri, grace_hours=-1)


def test_a_build_sweeps_up_what_an_old_one_left(hourly: Hourly) -> None:
    hourly.place.store.put(DEBRIS, b"left by a build that died")
    age(hourly.place, 48)
    young = f"{FOLDER}/v1-016ae953-37a9-438e-8683-9a9a4a79a396-1.parquet"
    hourly.place.store.put(young, b"being written")
    hourly.log.commit(file_in("2026021020", 1000))
    assert hourly.refresh().action == "refreshed"
    left = set(hourly.place.sidecars())
    assert DEBRIS not in left
    assert young in left
    hourly.check()


# --- drop


def test_drop_deletes_manifests_first_and_touches_nothing_else(hourly: Hourly) -> None:
    put_strangers(hourly.place)
    hourly.log.commit(gone_from(HOURS[7], 75))
    hourly.refresh()
    deleted: list[str] = []
    with observe(lambda request: deleted.append(request.path) if request.verb == "DELETE" else None):
        result = sidecar.drop(hourly.place.uri)
    assert deleted == result.deleted
    assert deleted[:2] == [manifest_path(0), manifest_path(1)]
    assert hourly.place.sidecars() == sorted(STRANGERS)
    found, metrics = rows(hourly.place.open())
    assert (found, metrics.tier) == (hourly.place.answer(), 3)


def test_an_open_table_survives_a_drop(hourly: Hourly) -> None:
    """Its cache still has the manifest; the files are gone, and the checkpoint answers."""
    table = hourly.place.open()
    expected = rows(table)[0]
    sidecar.drop(hourly.place.uri)
    assert rows(table)[0] == expected
