"""The manifest in place of the checkpoint: who opens a table without a version checksum reads a small object less."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta.storage import observe
from tests.scan.hand_log import add
from tests.sidecar.sidecars import DISABLED, QUERIES, Place, hourly, resealed, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lazydelta.storage import Request
    from tests.sidecar.conftest import Split

MANIFEST = "_delta_log/_sidecars/v0.manifest.json"
TAILS = 64 << 10


@pytest.fixture
def place(split: Split, tmp_path: Path) -> Place:
    """Return a table with a sidecar and a tail, and no checksum."""
    split(10, 3)
    hourly(tmp_path / "t")
    found = Place(str(tmp_path / "t"))
    assert found.build() == "built"
    return found


def opened(place: Place, **options: Any) -> tuple[Any, list[Request]]:
    """Open a table cold, and return its state with the requests for its checkpoint."""
    asked: list[Request] = []
    with observe(asked.append):
        table = place.open(cache_size=0, **options)
    state = (table.version(), table.metadata(), table.protocol(), table.schema())
    return state, [each for each in asked if ".checkpoint.parquet" in each.path]


def test_opening_does_not_look_into_a_checkpoint_that_a_manifest_mirrors(place: Place) -> None:
    plain, looked = opened(place, **DISABLED)
    assert looked, "without sidecars the checkpoint is asked"
    mirrored, looked = opened(place)
    assert mirrored == plain
    assert looked == []


def test_explain_says_that_the_manifest_settled_protocol_and_metadata(place: Place) -> None:
    def settled_by(**options: Any) -> object:
        with place.open(cache_size=0, **options).files() as files:
            return files.explain().plan["settled_by"]

    assert settled_by() == "manifest"
    assert settled_by(**DISABLED) == "log"
    place.store.put(MANIFEST, b"{}")
    assert settled_by() == "log"


def test_a_copy_of_the_table_reads_the_end_of_its_checkpoint_as_the_proof(place: Place, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    copy = Place(str(tmp_path / "copy"))
    state, looked = opened(copy)
    assert state == opened(place)[0]
    assert len(looked) == 1
    assert (looked[0].length or 1 << 40) <= TAILS


def _another_schema(manifest: dict[str, Any]) -> None:
    schema = json.loads(manifest["metaData"]["schemaString"])
    schema["fields"].pop()
    manifest["metaData"]["schemaString"] = json.dumps(schema)


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "another table": lambda manifest: manifest.update(table_id="another"),
    "metadata of another table": lambda manifest: manifest["metaData"].update(id="another"),
    "another schema": _another_schema,
    "another version": lambda manifest: manifest.update(version=1),
    "another size of the checkpoint": lambda manifest: manifest["checkpoint"][0].update(size=1),
    "another checkpoint": lambda manifest: manifest["checkpoint"][0].update(etag="x", tail_sha256="0" * 64),
    "a format of the future": lambda manifest: manifest.update(format_version=99),
    "no metadata": lambda manifest: manifest.pop("metaData"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_contradicts_itself_or_the_checkpoint_is_not_believed(place: Place, lie: str) -> None:
    plain, _ = opened(place, **DISABLED)
    good = place.store.get(MANIFEST)
    place.store.put(MANIFEST, resealed(good, LIES[lie]))
    state, looked = opened(place)
    assert state == plain
    assert looked
    for where in QUERIES:
        assert rows(place.open(), where)[0] == place.answer(where)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xfe", b'{"sha256": 7}', None])
def test_a_manifest_that_is_damaged_or_gone_sends_opening_to_the_checkpoint(place: Place, data: bytes | None) -> None:
    plain, _ = opened(place, **DISABLED)
    if data is None:
        place.store.delete(MANIFEST)
    else:
        place.store.put(MANIFEST, data)
    state, looked = opened(place)
    assert state == plain
    assert looked


def test_what_the_tail_says_counts_before_the_manifest(split: Split, tmp_path: Path) -> None:
    split(10, 3)
    log = hourly(tmp_path)
    place = Place(str(tmp_path))
    place.build()
    log.columns = {**log.columns, "fresh": "double"}
    log.commit(log.metadata())
    log.commit(add("later", partition={"hour": "2026021001"}))
    table = place.open(cache_size=0)
    assert "fresh" in table.schema().names
    stream = table.files()
    stream.collect()
    assert stream.metrics.fallback_triggered == 1


def test_the_manifest_is_read_once_for_opening_and_scan(place: Place) -> None:
    for options in ({}, {"cache_size": 0}):
        asked: list[Request] = []
        with observe(asked.append):
            stream = place.open(**options).files()
            stream.collect()
        assert stream.metrics.tier == 1
        assert len([each for each in asked if each.path == MANIFEST]) == 1, options
