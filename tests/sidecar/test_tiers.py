"""Sidecars in two tiers: what few predicates name is not in the way of the others, and is there for those who ask."""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from lazydelta import DeltaTable, sidecar
from lazydelta.sidecar.building.build import build
from lazydelta.sidecar.format.columns import manifest_path
from lazydelta.sidecar.format.leaves import every_part
from lazydelta.sidecar.format.manifest import ManifestIndex
from lazydelta.sidecar.reading.discovery import shared_cache
from tests.oracle.replay import replay
from tests.scan.hand_log import HandLog, add
from tests.sidecar.conftest import Split, set_leaves
from tests.sidecar.sidecars import DISABLED, QUERIES, Place, flipped, hourly, resealed, rows
from tests.sidecar.test_requests import Cost, costs
from tests.sidecar.test_spread_build import _spread

STATS = ["id", "at", "name"]
KINDS = ("minValues", "maxValues", "nullCount")
SECOND = ("name < 'n0500'", "name IS NULL", "name > 'n0900' AND hour >= '2026021010'")
WIDE = 3_000
KILOBYTE = 1_000


def index_of(place: Place, version: int = 0) -> ManifestIndex:
    """Return a manifest."""
    return ManifestIndex.decode(place.store.get(manifest_path(version)))


def of_second_tier(cost: Cost) -> list[Any]:
    """Return the requests for files of second tiers."""
    return cost.of(".stats.parquet")


# --- three thousand columns


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> HandLog:
    """Make a table of three thousand columns and a few files, with a sidecar."""
    rng = random.Random(3)
    names = [f"c{number}" for number in range(WIDE)]
    log = HandLog(
        tmp_path_factory.mktemp("wide") / "t",
        {"hour": "string"} | dict.fromkeys(names, "long"),
        partitions=["hour"],
        configuration={"delta.dataSkippingNumIndexedCols": "-1"},
    )
    actions = []
    for number in range(24):
        low = {name: rng.randrange(1000) for name in names if rng.random() < 0.9}
        high = {name: value + rng.randrange(50) for name, value in low.items()}
        nulls = {name: rng.choice([0, 1] if name in low else [0, 3]) for name in names}
        stats = {"minValues": low, "maxValues": high, "nullCount": nulls}
        actions.append(add(f"f{number:03d}", records=3, partition={"hour": f"h{number // 4}"}, stats=stats))
    log.commit(*actions)
    log.checkpoint()
    assert build(log.table).action == "built"
    return log


def _may_match(action: Any, hour: str | None, column: str | None, low: int, high: int) -> bool:
    """Tell whether a file may have rows with a value from low to high, by the text of its log entry alone."""
    stats = json.loads(action["stats"])
    if hour is not None and action["partitionValues"]["hour"] != hour:
        return False
    if column is None:
        return True
    if stats["nullCount"][column] == stats["numRecords"]:
        return False
    if column not in stats["minValues"]:
        return True
    return bool(stats["minValues"][column] <= high and stats["maxValues"][column] >= low)


@pytest.mark.timeout(300)
def test_an_hour_of_three_thousand_columns_reads_no_footer_of_them(wide: HandLog) -> None:
    """And the manifest has ranges and names of a dozen; a predicate on any other column is as exact as the log."""
    place, logged = Place(str(wide.table)), list(replay(wide.log).files.values())
    manifest = json.loads(place.store.get(manifest_path(0)))
    assert len(json.dumps(manifest)) - len(json.dumps(manifest["metaData"])) < 16 * KILOBYTE
    assert sorted(Path(path).name for path in place.parquets()) == ["v0.index.parquet", "v0.stats.parquet"]
    with costs(wide.table) as cost:
        stream = place.open().files("hour = 'h2'")
        found = sorted(file.path for file in stream)
    assert found == sorted(each["path"] for each in logged if _may_match(each, "h2", None, 0, 0))
    assert stream.metrics.tier == 1
    assert of_second_tier(cost) == []
    assert sum(each.length or 0 for each in cost.footers) < 16 * KILOBYTE
    assert cost.bytes_read - (wide.table / manifest_path(0)).stat().st_size < 64 * KILOBYTE
    for column in ("c0", "c7", "c8", "c9", "c1500", "c2999"):
        for low, high in ((0, 300), (990, 2000)):
            shared_cache.clear()
            with costs(wide.table) as cost:
                stream = place.open().files(f"{column} >= {low} AND {column} <= {high} AND hour = 'h3'")
                found = sorted(file.path for file in stream)
            assert found == sorted(each["path"] for each in logged if _may_match(each, "h3", column, low, high))
            assert stream.metrics.tier == 1
            # Eight columns have their statistics in the first tier.
            assert bool(of_second_tier(cost)) == (int(column[1:]) >= 8)


# --- like any other sidecar


def later_stats(table: DeltaTable, where: str) -> dict[str, Any]:
    """Return the statistics of two columns, one in either tier, read file by file after the scan."""
    found: dict[str, Any] = {}
    for file in table.files(where):
        kinds = file.stats or {}
        found[file.path] = [(kinds.get(kind) or {}).get(name) for kind in KINDS for name in ("id", "name")]
    return found


def check(place: Place) -> None:
    """Check that scans find what the log has, with statistics of either tier, all of them and none."""
    for where in (*QUERIES, *SECOND):
        for strategy in ("forward", "reverse"):
            shared_cache.clear()
            found, metrics = rows(place.open(), where, stats_columns=STATS, strategy=strategy)
            assert found == place.answer(where, stats_columns=STATS), where
            assert (metrics.tier, metrics.sidecar_hits) == (1, 1)
    assert rows(place.open(), SECOND[0])[0] == place.answer(SECOND[0])
    # Statistics that are asked for when the file is there already.
    stats = later_stats(place.open(**DISABLED), "hour >= '2026021020'")
    assert later_stats(place.open(), "hour >= '2026021020'") == stats
    table = place.open().get_stats_for_files(list(stats), ["name", "id"])
    assert sorted(map(repr, table.to_pylist())) == sorted(
        map(repr, place.open(**DISABLED).get_stats_for_files(list(stats), ["name", "id"]).to_pylist())
    )


@pytest.mark.usefixtures("tiered")
@pytest.mark.parametrize("leaves", [False, True], ids=["flat", "leaves"])
def test_answers_are_those_of_the_log(
    leaves: bool,  # noqa: FBT001 - a parameter of the test
    split: Split,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split(7, 2)
    if leaves:
        set_leaves(monkeypatch, 2)
    hourly(tmp_path)
    place = Place(str(tmp_path))
    assert place.build(0) == "built"
    index = index_of(place)
    assert (index.leaves is not None) == leaves
    assert index.format_version == 3
    assert not any("name" in column.name for column in index.columns)
    parts = every_part(place.store, index).parts
    assert len(parts) > 3
    assert all(re.search(r"-\d+\.index\.parquet$", part.file) for part in parts)
    assert all(part.stats is not None and re.search(r"-\d+\.stats\.parquet$", part.stats.file) for part in parts)
    check(place)
    with costs(tmp_path) as cost:
        shared_cache.clear()
        assert place.open().files("hour = '2026021005' AND id < 300 AND at > '2026-02-10T00:00:00Z'").collect()
    assert of_second_tier(cost) == []


@pytest.mark.usefixtures("tiered")
def test_a_single_file_has_two_names_and_is_found_without_its_manifest(tmp_path: Path) -> None:
    hourly(tmp_path)
    place = Place(str(tmp_path))
    place.build(0)
    assert sorted(Path(path).name for path in place.parquets()) == ["v0.index.parquet", "v0.stats.parquet"]
    check(place)
    # Names that are taken are left alone.
    assert build(tmp_path, 0, force=True).action == "built"
    assert len(place.parquets()) == 4
    check(place)
    place.store.delete(manifest_path(0))
    shared_cache.clear()
    found, metrics = rows(place.open(), SECOND[0])
    assert (found, metrics.tier) == (place.answer(SECOND[0]), 2)


@pytest.mark.usefixtures("tiered")
def test_built_by_tasks_verified_shown_and_cleaned(split: Split, tmp_path: Path) -> None:
    split(7, 2)
    hourly(tmp_path)
    place = Place(str(tmp_path))
    first = build(tmp_path, 0)
    shown = sidecar.show(tmp_path)
    assert sum(column.endswith(".name") for column in shown.columns) == 3
    assert shown.size_bytes == first.size_bytes == sum(len(place.store.get(path)) for path in place.parquets())
    build(tmp_path, 0, force=True, maker=_spread())
    assert place.build(0) == "already-valid"
    report = sidecar.verify(tmp_path, 0)
    assert report.ok, report.problems
    assert report.compared_columns + len(report.not_compared) == len(shown.columns)
    check(place)
    kept = every_part(place.store, index_of(place)).files
    gone = sidecar.clean(tmp_path, grace_hours=0)
    assert set(place.parquets()) == set(kept)
    assert len(gone.deleted) == 2 * first.num_parts
    check(place)
    sidecar.drop(tmp_path)
    assert place.sidecars() == []


@pytest.mark.usefixtures("tiered")
def test_a_refresh_writes_both_tiers_of_what_changed(split: Split, tmp_path: Path) -> None:
    split(7, 2)
    log = hourly(tmp_path, tail=0)
    place = Place(str(tmp_path))
    built = build(tmp_path)
    stats = {
        "minValues": {"id": 1, "name": "n0001"},
        "maxValues": {"id": 2, "name": "n0002"},
        "nullCount": {"id": 0, "name": 0},
    }
    log.commit(add("late", records=4, partition={"hour": "2026021023"}, stats=stats))
    log.checkpoint()
    result = sidecar.refresh(tmp_path)
    assert (result.action, result.num_files) == ("refreshed", built.num_files + 1)
    assert built.num_parts - 3 <= result.reused_parts < built.num_parts
    report = sidecar.verify(tmp_path)
    assert report.ok, report.problems
    assert all(part.stats for part in every_part(place.store, index_of(place, 1)).parts)
    check(place)


# --- damage


@pytest.mark.usefixtures("tiered")
def test_a_damaged_second_tier_changes_no_answer_and_disturbs_nobody_else(
    split: Split, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    split(7, 2)
    hourly(tmp_path)
    place = Place(str(tmp_path))
    place.build(0)
    parts = every_part(place.store, index_of(place)).parts
    victim = parts[2].stats
    other = parts[1].stats
    assert victim is not None
    assert other is not None
    file, rng = tmp_path / victim.file, random.Random(4)
    good = file.read_bytes()
    answers = {where: place.answer(where, stats_columns=STATS) for where in (None, SECOND[0])}
    by_hour = place.answer("hour >= '2026021003'")
    caplog.set_level(logging.WARNING)
    footer = [victim.footer_offset * 8 + rng.randrange(victim.footer_length * 8) for _ in range(2)]
    pages = [rng.randrange(4 * 8, victim.footer_offset * 8) for _ in range(3)]
    stories = [
        None,
        b"",
        good[:-9],
        (tmp_path / other.file).read_bytes(),
        *(flipped(good, bit) for bit in footer + pages),
    ]
    for number, bad in enumerate(stories):
        file.unlink(missing_ok=True)
        if bad is not None:
            file.write_bytes(bad)
        for where, answer in answers.items():
            shared_cache.clear()
            assert rows(place.open(), where, stats_columns=STATS)[0] == answer
        shared_cache.clear()
        caplog.clear()
        found, metrics = rows(place.open(), "hour >= '2026021003'")
        assert (found, metrics.tier, metrics.sidecar_hits) == (by_hour, 1, 1)
        assert caplog.records == []
        if number % 4 == 0:  # a file that is gone, a flipped bit in a footer, one in a page
            assert not sidecar.verify(tmp_path, 0).ok
            expected = later_stats(place.open(**DISABLED), "hour >= '2026021003'")
            assert later_stats(place.open(), "hour >= '2026021003'") == expected
    result = sidecar.build(tmp_path, 0)
    assert result.action == "built"
    check(place)


@pytest.mark.usefixtures("tiered")
def test_a_manifest_that_gives_a_part_the_second_tier_of_another_is_found_out(split: Split, tmp_path: Path) -> None:
    split(7, 2)
    hourly(tmp_path)
    place = Place(str(tmp_path))
    place.build(0)

    def swap(manifest: dict[str, Any]) -> None:
        parts = manifest["parts"]
        parts[0]["stats"], parts[1]["stats"] = parts[1]["stats"], parts[0]["stats"]

    def elsewhere(manifest: dict[str, Any]) -> None:
        manifest["parts"][0]["stats"]["file"] = "elsewhere.stats.parquet"

    good = place.store.get(manifest_path(0))
    for lie in (swap, elsewhere):
        place.store.put(manifest_path(0), resealed(good, lie))
        for where in (None, *SECOND):
            shared_cache.clear()
            assert rows(place.open(), where, stats_columns=STATS)[0] == place.answer(where, stats_columns=STATS)
        assert not sidecar.verify(tmp_path, 0).ok


@pytest.mark.usefixtures("tiered")
def test_a_copied_table_keeps_both_tiers(split: Split, tmp_path: Path) -> None:
    split(7, 2)
    hourly(tmp_path / "a")
    Place(str(tmp_path / "a")).build(0)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found, metrics = rows(DeltaTable(tmp_path / "b"), SECOND[0])
    assert (found, metrics.tier) == (Place(str(tmp_path / "b")).answer(SECOND[0]), 1)
