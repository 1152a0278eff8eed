"""Adoption, cleaning and dropping: what is needed stays, what is not goes, and nothing else is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lazydelta import sidecar
from lazydelta.errors import OptionError
from lazydelta.sidecar.cache import shared_cache
from lazydelta.sidecar.format import FOLDER, manifest_path, sidecar_path
from lazydelta.storage import Request, observe
from tests.scan.hand_log import HandLog
from tests.sidecar.conftest import Split
from tests.sidecar.refreshed import COLUMNS, HOURS, Hourly, file_in, gone_from, same
from tests.sidecar.sidecars import Place, rows

OFFICIAL = f"{FOLDER}/016ae953-37a9-438e-8683-9a9a4a79a395.parquet"
STRANGERS = [
    OFFICIAL,
    f"{FOLDER}/v1.parquet.tmp",
    f"{FOLDER}/v01.parquet",
    f"{FOLDER}/v1-not-a-build-1.parquet",
    f"{FOLDER}/v1-016ae953-37a9-438e-8683-9a9a4a79a395-0.parquet",
    f"{FOLDER}/x1.manifest.json",
    f"{FOLDER}/v1.json",
    f"{FOLDER}/v1.index.parquet",
    f"{FOLDER}/v1_2.delta.parquet",
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
    moment = time.time() - hours * 3600
    for path in place.sidecars() if paths is None else paths:
        os.utime(Path(place.uri) / path, (moment, moment))


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
    assert hourly.place.build() == "built"
    hourly.check()


def test_a_manifest_whose_parts_are_gone_is_replaced(hourly: Hourly) -> None:
    hourly.place.store.delete(hourly.parts()[3])
    assert hourly.place.build() == "built"
    hourly.check()


def test_a_single_file_that_is_of_no_use_is_left_alone_and_parts_are_written(single: Place) -> None:
    single.store.delete(manifest_path(0))
    data = single.store.get(sidecar_path(0))
    single.store.put(sidecar_path(0), data[:-9] + b"x" + data[-8:])
    assert single.build() == "built"
    assert len(single.parquets()) == 2
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


# --- clean


def test_clean_keeps_what_a_kept_manifest_refers_to_and_everything_that_is_not_ours(hourly: Hourly) -> None:
    put_strangers(hourly.place)
    hourly.place.store.put(DEBRIS, b"left by a build that died")
    needed = {*hourly.parts(), manifest_path(0)}
    result = sidecar.clean(hourly.place.uri, grace_hours=0)
    assert result.deleted == [DEBRIS]
    assert (result.kept_versions, result.kept_files) == ([0], 11)
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
    assert set(result.deleted[1:]) == set(old[0]) - set(old[1]) - set(old[2])
    hourly.check()
    assert sidecar.verify(hourly.place.uri, 1).ok


def test_clean_never_takes_the_newest_valid_sidecar(hourly: Hourly) -> None:
    """Not even when its checkpoint is gone from the log, and a damaged newer one is no replacement."""
    hourly.log.commit(gone_from(HOURS[7], 75))
    hourly.log.checkpoint()
    (hourly.log.log / f"{0:020d}.checkpoint.parquet").unlink()
    hourly.place.store.put(manifest_path(1), b"torn")
    needed = {*hourly.parts(0), manifest_path(0)}
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


# --- a process that is killed

_KILLED = """
import importlib, sys
from lazydelta import sidecar
from lazydelta.sidecar import part_file
from lazydelta.storage import observe
part_file.ROWS_PER_GROUP = 5
importlib.import_module("lazydelta.sidecar.build").PART_ROWS = 20
with observe(lambda request: request.verb == "PUT" and print("put", flush=True)):
    getattr(sidecar, sys.argv[2])(sys.argv[1])
"""


@pytest.mark.parametrize("deed", ["build", "refresh"])
def test_a_killed_process_leaves_nothing_that_confuses_readers(deed: str, hourly: Hourly) -> None:
    """Killed around its first, third and seventh write: the answer is the log's, and clean tidies up."""
    for number in range(10):
        hourly.log.commit(file_in(HOURS[number], 900 + number))
    hourly.log.checkpoint()
    if deed == "build":
        sidecar.drop(hourly.place.uri)
    before, expected = hourly.place.sidecars(), hourly.place.answer()
    for writes in (1, 3, 7):
        with subprocess.Popen(
            [sys.executable, "-c", _KILLED, hourly.place.uri, deed], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            for _ in range(writes):
                assert child.stdout.readline() == "put\n"
            child.kill()
        shared_cache.clear()
        assert rows(hourly.place.open())[0] == expected
        sidecar.clean(hourly.place.uri, grace_hours=0)
        left = [path for path in hourly.place.sidecars() if path != manifest_path(10)]
        assert left == before or hourly.place.store.exists(manifest_path(10))
    assert getattr(sidecar, deed)(hourly.place.uri).num_files == 210
    hourly.check()
