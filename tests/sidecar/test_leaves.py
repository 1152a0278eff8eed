"""Manifests with leaves: the same answers as without, for all who read manifests, and what is damaged is not used."""

from __future__ import annotations

import json
import logging
import random
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.synthetic_manifest import FILES_AN_HOUR, REAL_HOURS, make_long_table
from lazydelta import DeltaTable, sidecar
from lazydelta.protocol.schema import DataType, Decimal, Primitive
from lazydelta.sidecar.building.build import build
from lazydelta.sidecar.format.columns import FOLDER, manifest_path
from lazydelta.sidecar.format.leaves import every_part, inflated, ranges_over
from lazydelta.sidecar.format.manifest import ManifestIndex, RangeText, SidecarError
from lazydelta.sidecar.handle import TableHandle
from lazydelta.sidecar.reading.discovery import shared_cache
from lazydelta.testing import make_table
from tests.scan.hand_log import key, publish
from tests.sidecar.conftest import Split, set_leaves, set_sizes
from tests.sidecar.refreshed import HOURS, Hourly, file_in, gone_from, same
from tests.sidecar.sidecars import DISABLED, QUERIES, Place, flipped, hourly, resealed, rows
from tests.sidecar.test_format import DOCS, _validate
from tests.sidecar.test_newest_first import base_paths, expected
from tests.sidecar.test_requests import LATENCY, Cost, costs
from tests.sidecar.test_scan_ranges import keys_of, ranges_of
from tests.sidecar.test_spread_build import _spread
from tests.support.azurite import Azurite
from tests.support.latency import LatencyProxy

MEGABYTE = 1_000_000
STATS = ["id", "at", "name"]
NO_HOUR = "1999010100"
ONE_HOUR = f"_event_hour = '{REAL_HOURS[1]}'"


def index_of(place: Place, version: int = 0) -> ManifestIndex:
    """Return the root of a manifest."""
    return ManifestIndex.decode(place.store.get(manifest_path(version)))


def leaf_file(place: Place) -> Path:
    """Return where the leaves of the only sidecar lie."""
    (found,) = (Path(place.uri) / FOLDER).glob("*.leaves")
    return found


# --- however many files there are


def one_hour(table: Path, hour: str) -> tuple[Cost, list[str], Any]:
    """Ask for an hour, cold."""
    shared_cache.clear()
    with costs(table) as cost:
        stream = DeltaTable(table).files(f"_event_hour = '{hour}'")
        found = sorted(file.path for file in stream)
    return cost, found, stream.metrics


def manifest_bytes(cost: Cost, table: Path) -> int:
    """Return how many bytes of the manifest, root and leaves, were read."""
    whole = sum((table / each.path).stat().st_size for each in cost.of(".manifest.json"))
    return whole + sum(each.length or 0 for each in cost.of(".leaves"))


@pytest.mark.timeout(300)
def test_an_hour_costs_the_same_in_a_hundred_million_files_and_in_a_billion(tmp_path: Path) -> None:
    """Less than a megabyte of manifest, as many requests and row groups, and the files that the log has."""
    seen: dict[str, list[Any]] = {}
    peaks: list[int] = []
    for files in (100_000_000, 1_000_000_000):
        table = tmp_path / str(files)
        make_long_table(table, files)
        index = index_of(Place(str(table)), 10)
        assert abs(index.num_files - files) < 2 * 160_000
        log = DeltaTable(table, options=DISABLED)
        some: list[str] = []
        for hour in (*REAL_HOURS, NO_HOUR):
            cost, found, metrics = one_hour(table, hour)
            assert manifest_bytes(cost, table) < MEGABYTE
            assert metrics.tier == 1
            assert metrics.row_groups_pruned + metrics.row_groups_read == index.num_row_groups
            assert found == sorted(file.path for file in log.files(f"_event_hour = '{hour}'"))
            assert (len(found) > FILES_AN_HOUR // 2) == (hour != NO_HOUR)
            requests = Counter((each.verb, each.path.rpartition(".")[2]) for each in cost.requests)
            assert len(cost.of(".leaves")) == (hour != NO_HOUR)
            seen.setdefault(hour, []).append((requests, metrics.row_groups_read))
            some += found[:1]
        shared_cache.clear()
        with costs(table) as cost:
            assert DeltaTable(table).get_stats_for_files(some[:1], ["device_id"]).num_rows == 1
        assert len({each.start for each in cost.row_groups}) <= 4  # the core and three columns of one row group
        assert manifest_bytes(cost, table) < MEGABYTE
        assert cost.of("checkpoint.parquet") == []
        shared_cache.clear()
        tracemalloc.start()
        try:
            rows_of_hour = sum(batch.num_rows for batch in DeltaTable(table).files(ONE_HOUR).batches())
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert rows_of_hour > FILES_AN_HOUR // 2
    assert max(peaks) < 8 * MEGABYTE  # the manifest of a billion files, parsed, is hundreds
    assert all(first == second for first, second in seen.values())
    assert all(0 < groups <= 2 for hour in REAL_HOURS for _, groups in seen[hour])


def test_the_first_file_of_a_large_table_takes_one_round_trip_more(azurite: Azurite, tmp_path: Path) -> None:
    """Cold: the hint; the listing with the root beside it; the leaf; row group and footer together."""
    make_table(tmp_path, files=2_000, hours=20, tail=2, checksum=True)
    with pytest.MonkeyPatch.context() as patch:
        set_sizes(patch, 50, 2)
        set_leaves(patch, 2)
        build(tmp_path)
    options = azurite.storage_options()
    uri = f"abfss://{azurite.container('leaves')}@{azurite.account}.dfs.core.windows.net/table"
    uri = publish(tmp_path, uri, options)
    with LatencyProxy(azurite.port, LATENCY) as proxy:
        endpoint = f"http://127.0.0.1:{proxy.port}/{azurite.account}"
        began = time.perf_counter()
        table = DeltaTable(uri, storage_options=options | {"azure_storage_endpoint": endpoint})
        stream = table.files("_event_hour = '2026021012'", strategy="reverse")
        first = next(stream)
        ended = time.perf_counter()
        stream.close()
        assert first.tier == 1
        assert proxy.round_trips(began, ended) <= 4


# --- all who read manifests


@pytest.mark.usefixtures("leafy")
def test_scans_find_what_the_log_has_in_every_order(split: Split, tmp_path: Path) -> None:
    split(4, 3)
    log, place = hourly(tmp_path), Place(str(tmp_path))
    assert place.build(0) == "built"
    index = index_of(place)
    assert index.leaves is not None
    assert len(index.leaves.leaves) > 2
    assert index.format_version == 3
    schema = json.loads((DOCS / "manifest.schema.json").read_text(encoding="utf-8"))
    _validate(json.loads(place.store.get(manifest_path(0))), schema, schema["$defs"])
    pruned = 0
    for where in QUERIES:
        for strategy in ("forward", "reverse"):
            shared_cache.clear()
            found, metrics = rows(place.open(), where, stats_columns=STATS, strategy=strategy)
            assert found == place.answer(where, stats_columns=STATS)
            assert (metrics.tier, metrics.sidecar_hits) == (1, 1)
            assert metrics.row_groups_pruned + metrics.row_groups_read == index.num_row_groups
            pruned += metrics.row_groups_pruned
            again = rows(place.open(), where, stats_columns=STATS, strategy=strategy)[0]  # by what is remembered
            assert again == found
        assert base_paths(place.open().files(where, strategy="reverse")) == expected(log, where, place)
    assert pruned
    for limit in (1, 5, 60):
        wanted = expected(log, None, place)[:limit]
        tail = sum(1 for file in place.open(**DISABLED).files() if file.version is not None)
        assert base_paths(place.open().files(strategy="reverse", limit=limit + tail)) == wanted
    files = {file.path: file.num_records for file in place.open(**DISABLED).files()}
    looked = place.open().get_stats_for_files(list(files), ["id"])
    assert looked.num_rows == len(files)


@pytest.mark.usefixtures("leafy")
def test_what_is_not_in_a_leaf_is_not_read(split: Split, tmp_path: Path) -> None:
    split(5, 2)
    hourly(tmp_path, tail=0)
    place = Place(str(tmp_path))
    place.build(0)
    with costs(tmp_path) as cost:
        stream = place.open().files("hour = '2026021005'")
        assert stream.collect()
    assert 1 <= len(cost.of(".leaves")) <= 2
    with costs(tmp_path) as cost:
        assert place.open().files("hour = '1999010100'").collect() == []
    assert cost.of(".leaves") == []
    # A pinned table remembers leaves as it remembers footers.
    table = place.open()
    table.files("hour = '2026021005'").collect()
    with costs(tmp_path) as cost:
        table.files("hour = '2026021005'").collect()
    assert cost.of(".leaves") == cost.of(".manifest.json") == cost.footers == []


def test_built_and_shown_and_verified_as_without_leaves(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process and by many tasks; a sidecar that is there is not built again."""
    split(5, 2)
    hourly(tmp_path)
    place = Place(str(tmp_path))
    place.build(0)
    flat = sidecar.show(tmp_path)
    set_leaves(monkeypatch, 2)
    for maker in (None, _spread()):
        assert build(tmp_path, 0, force=True, maker=maker).num_parts > 5
        assert place.build(0) == "already-valid"
        shown = sidecar.show(tmp_path)
        assert (shown.num_files, shown.sort, shown.columns) == (flat.num_files, flat.sort, flat.columns)
        if maker is None:
            assert [part.row_groups for part in shown.parts] == [part.row_groups for part in flat.parts]
        report = sidecar.verify(tmp_path, 0)
        assert report.ok, report.problems
        assert report.num_parts == len(shown.parts)
        shared_cache.clear()
        assert rows(place.open(), "hour >= '2026021020'")[0] == place.answer("hour >= '2026021020'")


def test_refreshes_go_from_one_form_to_the_other(tmp_path: Path, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """With row groups in the manifest, in footers, in leaves; what did not change is used again in all of them."""
    table = Hourly(tmp_path / "t", split)
    number = 0

    def changed() -> ManifestIndex:
        nonlocal number
        table.log.commit(gone_from(HOURS[7], 75 + number), file_in("2026021020", 1000 + number))
        number += 1
        result = table.refresh()
        assert (result.action, result.reused_parts >= 8) == ("refreshed", True)
        same(table.place, (None, "hour >= '2026021017'"))
        return index_of(table.place, table.log.version)

    with monkeypatch.context() as patch:
        patch.setattr("lazydelta.sidecar.format.manifest.MANIFEST_LIMIT", 12_000)
        assert changed().groups_of([0]) is None
        set_leaves(patch, 2)
        first = changed()
        assert first.leaves is not None
        assert changed().leaves is not None
    last = changed()
    assert last.leaves is None
    assert last.groups_of([0])
    assert first.leaves.file in every_part(table.place.store, first).files
    sidecar.drop(table.place.uri)
    assert table.place.sidecars() == []


@pytest.mark.usefixtures("leafy")
def test_clean_keeps_leaves_and_what_they_name_as_long_as_their_manifest(tmp_path: Path, split: Split) -> None:
    table = Hourly(tmp_path / "t", split)
    table.log.commit(file_in("2026021020", 1000))
    table.refresh()
    assert sidecar.clean(table.place.uri, grace_hours=0).deleted == []
    table.check()
    for path in (tmp_path / "t/_delta_log").glob("*00000.checkpoint.parquet"):
        path.unlink()  # the log has no checkpoint any more that the first one mirrors
    gone = sidecar.clean(table.place.uri, grace_hours=0).deleted
    assert {Path(path).name[2:] if "-" not in path else Path(path).suffix for path in gone} == {
        ".manifest.json",
        ".parquet",
        ".leaves",
    }
    table.check()


@pytest.mark.usefixtures("leafy")
@pytest.mark.parametrize("lost", [False, True], ids=["there", "lost in between"])
def test_ranges_of_a_scan_hold_each_file_once(lost: bool, tmp_path: Path, split: Split) -> None:  # noqa: FBT001
    split(5, 2)
    hourly(tmp_path)
    Place(str(tmp_path)).build(0)
    handle = TableHandle.open(tmp_path)
    snapshot = handle.snapshot()
    for where in (None, "hour >= '2026021015'"):
        shared_cache.clear()
        ranges = ranges_of(snapshot, where, 9)
        assert len({each.place.leaf for each in ranges if each.place}) > 1
        if lost:
            shared_cache.clear()
            data = leaf_file(Place(str(tmp_path))).read_bytes()
            leaf_file(Place(str(tmp_path))).write_bytes(b"")
        found = Counter(each for within in ranges for each in keys_of(snapshot, within, where))
        if lost:
            leaf_file(Place(str(tmp_path))).write_bytes(data)
        assert set(found.values()) == {1}
        assert set(found) == {key(file) for file in DeltaTable(tmp_path, options=DISABLED).files(where)}


# --- damage


def _unchanged(place: Place, answers: dict[Any, Any], tiers: set[int]) -> None:
    for where, answer in answers.items():
        shared_cache.clear()
        found, metrics = rows(place.open(), where, stats_columns=STATS)
        assert found == answer, where
        assert metrics.tier in tiers


@pytest.mark.usefixtures("leafy")
def test_damaged_leaves_change_no_answer(
    tmp_path: Path, split: Split, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    split(5, 2)
    hourly(tmp_path)
    place = Place(str(tmp_path))
    place.build(0)
    answers = {where: place.answer(where, stats_columns=STATS) for where in (None, "hour = '2026021005'", "id < 100")}
    _unchanged(place, answers, {1})
    file, rng = leaf_file(place), random.Random(1)
    good = file.read_bytes()
    cut = index_of(place).leaves
    assert cut is not None
    swapped = bytearray(good)
    first, second = cut.leaves[0], cut.leaves[1]
    swapped[first.offset : second.offset + second.length] = (
        good[second.offset :][: second.length] + good[: first.length]
    )
    caplog.set_level(logging.WARNING)
    for bad in (
        None,
        b"",
        good[:-1],
        bytes(len(good)),
        bytes(swapped),
        *(flipped(good, rng.randrange(len(good) * 8)) for _ in range(4)),
    ):
        file.unlink(missing_ok=True)
        if bad is not None:
            file.write_bytes(bad)
        caplog.clear()
        _unchanged(place, answers, {1, 3})
        assert caplog.records, "the damage is told"
        assert not sidecar.verify(place.uri, 0).ok
    # A build sees it, and writes it again.
    result = sidecar.build(place.uri, 0)
    assert result.action == "manifest-added"
    _unchanged(place, answers, {1})


ROOT_LIES: dict[str, Any] = {
    "a leaf is forgotten": lambda root: root["leaves"]["leaves"].pop(),
    "leaves in another order": lambda root: root["leaves"]["leaves"].reverse(),
    "another file": lambda root: root["leaves"].update(file=f"{FOLDER}/v0.leaves"),
    "a file elsewhere": lambda root: root["leaves"].update(file="elsewhere/v0.leaves"),
    "fewer parts": lambda root: root["leaves"]["leaves"][0].update(num_parts=1),
    "fewer files": lambda root: root.update(num_files=root["num_files"] - 1),
    "behind the end": lambda root: root["leaves"]["leaves"][-1].update(offset=10**9),
    "a huge leaf": lambda root: root["leaves"]["leaves"][0].update(raw_length=10**15),
    "other keys": lambda root: root["leaves"]["leaves"][0].update(first=[None, "x"]),
    "no leaves": lambda root: root.update(leaves=None),
    "parts and leaves": lambda root: root.update(parts=[]) or root["leaves"].update(leaves=[]),
}


@pytest.mark.usefixtures("leafy")
def test_roots_that_lie_under_a_good_seal_change_no_answer(tmp_path: Path, split: Split) -> None:
    split(5, 2)
    hourly(tmp_path)
    place = Place(str(tmp_path))
    place.build(0)
    answers = {where: place.answer(where, stats_columns=STATS) for where in (None, "hour = '2026021005'")}
    good = place.store.get(manifest_path(0))
    for story, lie in ROOT_LIES.items():
        place.store.put(manifest_path(0), resealed(good, lie))
        for where, answer in answers.items():
            shared_cache.clear()
            assert rows(place.open(), where, stats_columns=STATS)[0] == answer, story
        assert not sidecar.verify(place.uri, 0).ok, story
    for bit in random.Random(2).sample(range(len(good) * 8), 8):
        place.store.put(manifest_path(0), flipped(good, bit))
        _unchanged(place, {"hour = '2026021005'": answers["hour = '2026021005'"]}, {2})


# --- ranges of leaves


def test_ranges_of_parts_are_joined_by_value() -> None:
    types: dict[str, DataType] = {"n": Primitive("long"), "d": Decimal(10, 2), "s": Primitive("string")}
    ranges = [
        {
            "n": RangeText("9", "10"),
            "d": RangeText("-2.50", "9.00"),
            "s": RangeText("a", "b"),
            "x": RangeText("1", "1"),
        },
        {"n": RangeText("-3", "9"), "d": RangeText("-10.00", "10.00"), "s": RangeText("B", "é", has_null=True)},
    ]
    found = ranges_over(ranges, types)
    assert found == {
        "n": RangeText("-3", "10"),
        "d": RangeText("-10.00", "10.00"),
        "s": RangeText("B", "é", has_null=True),
    }
    unknown = ranges_over([{"n": RangeText("1", "2")}, {"n": RangeText(has_missing=True)}], types)
    assert unknown == {"n": RangeText(has_missing=True)}
    all_null = ranges_over([{"n": RangeText(has_null=True)}, {"n": RangeText("1", "2")}], types)
    assert all_null == {"n": RangeText("1", "2", has_null=True)}
    assert ranges_over([{"n": RangeText("not a number", "2")}], types)["n"].has_missing
    assert ranges_over([], types) == {}


def test_a_text_that_was_made_to_fill_the_memory_is_not_unpacked() -> None:
    large = 64 << 20
    bomb = pa.compress(bytes(large), codec="zstd", asbytes=True)
    tracemalloc.start()
    try:
        with pytest.raises(SidecarError, match=f"{len(bomb)} bytes claim to be {large}"):
            inflated(bomb, large)
        assert pa.total_allocated_bytes() + tracemalloc.get_traced_memory()[1] < large
    finally:
        tracemalloc.stop()
    assert inflated(pa.compress(b"x" * 9000, codec="zstd", asbytes=True), 9000) == b"x" * 9000
