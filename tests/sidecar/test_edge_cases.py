"""The edge cases 1, 2, 3 and 5 that the design names: a sidecar that is missing, stale, torn, raced for, or empty."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from lazydelta.errors import LazyDeltaError, StorageError
from lazydelta.sidecar.format.columns import manifest_path, sidecar_path
from lazydelta.sidecar.reading.discovery import shared_cache
from lazydelta.storage import Request, observe
from tests.oracle.replay import commit_name
from tests.scan.hand_log import HandLog, add, paths, publish
from tests.sidecar.conftest import Split
from tests.sidecar.sidecars import QUERIES, Place, hourly, resealed, rest, rows, until_base
from tests.support.azurite import Azurite

STRATEGIES = ("reverse", "forward")
both = pytest.mark.parametrize("strategy", STRATEGIES)
everywhere = pytest.mark.parametrize("kind", ["local", pytest.param("azurite", marks=pytest.mark.azurite)])


@pytest.fixture
def put(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Return a function that puts a local table on a kind of store."""

    def put_table(kind: str, table: Path) -> Place:
        if kind == "local":
            return Place(str(table))
        azurite: Azurite = request.getfixturevalue("azurite")
        uri = f"abfss://{azurite.container('sidecars')}@{azurite.account}.dfs.core.windows.net/{uuid.uuid4().hex}"
        return Place(publish(table, uri, azurite.storage_options()), azurite.storage_options())

    return put_table


def assert_the_logs_answer(place: Place, tier: int, queries: tuple[Any, ...] = QUERIES) -> None:
    """Check queries under both strategies, and that the files of the base came from this tier."""
    for number, where in enumerate(queries):
        shared_cache.clear()
        found, metrics = rows(place.open(), where, strategy=STRATEGIES[number % 2])
        assert found == place.answer(where), where
        if where != QUERIES[-1]:  # nothing of the sidecar is read where the manifest rules everything out
            assert (metrics.tier, metrics.sidecar_hits) == (tier, tier < 3), where


# Edge case 1: a stale or missing sidecar.


@everywhere
def test_edge_case_1_manifest_and_sidecar_match(kind: str, put: Any, split: Split, tmp_path: Path) -> None:
    """Both are there and right: the base comes from the sidecar by its manifest."""
    split(10, 20)
    hourly(tmp_path / "t")
    place = put(kind, tmp_path / "t")
    assert place.build() == "built"
    assert_the_logs_answer(place, 1)


@everywhere
def test_edge_case_1_manifest_missing(kind: str, put: Any, split: Split, tmp_path: Path) -> None:
    """The single file says enough of itself to be used alone."""
    split(10, 20)
    hourly(tmp_path / "t")
    place = put(kind, tmp_path / "t")
    place.build()
    place.store.delete(manifest_path(0))
    assert_the_logs_answer(place, 2)


@everywhere
def test_edge_case_1_manifest_of_parts_missing(kind: str, put: Any, split: Split, tmp_path: Path) -> None:
    """The overview lists the parts that belong together; without it as well they are nothing."""
    split(10, 3)
    hourly(tmp_path / "t")
    place = put(kind, tmp_path / "t")
    place.build()
    assert len(place.parquets()) == 4
    place.store.delete(manifest_path(0))
    assert_the_logs_answer(place, 2)
    place.store.delete(sidecar_path(0))
    assert_the_logs_answer(place, 3)


@everywhere
def test_edge_case_1_both_missing(kind: str, put: Any, split: Split, tmp_path: Path) -> None:
    split(10, 20)
    hourly(tmp_path / "t")
    place = put(kind, tmp_path / "t")
    place.build()
    for path in place.sidecars():
        place.store.delete(path)
    assert_the_logs_answer(place, 3)


@everywhere
@pytest.mark.parametrize("groups", [20, 3], ids=["single", "parts"])
@pytest.mark.each_value
def test_edge_case_1_manifest_without_its_sidecar(
    kind: str, groups: int, put: Any, split: Split, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The manifest promises a file that is gone: the checkpoint answers, and the log says why."""
    split(10, groups)
    hourly(tmp_path / "t")
    place = put(kind, tmp_path / "t")
    place.build()
    for path in place.parquets():
        place.store.delete(path)
    assert_the_logs_answer(place, 3)
    assert "the checkpoint goes on" in caplog.text


@everywhere
def test_edge_case_1_manifest_pointing_at_another_file(kind: str, put: Any, split: Split, tmp_path: Path) -> None:
    """A manifest, sealed again, that names the sidecar of another table: its footer is not the one expected."""
    split(10, 20)
    for name, seed in (("t", 0), ("other", 1)):
        hourly(tmp_path / name, seed=seed)
    place, other = put(kind, tmp_path / "t"), Place(str(tmp_path / "other"))
    place.build()
    other.build()
    place.store.put("_delta_log/_sidecars/v7.parquet", other.store.get(sidecar_path(0)))

    def point_elsewhere(manifest: dict[str, Any]) -> None:
        manifest["sidecar_file"] = manifest["parts"][0]["file"] = "_delta_log/_sidecars/v7.parquet"

    store = place.store
    store.put(manifest_path(0), resealed(store.get(manifest_path(0)), point_elsewhere))
    assert_the_logs_answer(place, 3, QUERIES[:-1])


@everywhere
@pytest.mark.parametrize("renamed", [False, True], ids=["under its own name", "under the newer name"])
@pytest.mark.each_value
def test_edge_case_1_sidecar_of_version_990_while_the_checkpoint_is_1000(
    *, kind: str, renamed: bool, put: Any, split: Split, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older sidecar is never taken for the newer checkpoint's, not even under its name."""
    split(10, 200)
    log = HandLog(tmp_path / "t", {"id": "long", "hour": "string"}, partitions=["hour"])
    for number in range(1003):
        log.commit(add(f"f{number}", ids=(number, number), partition={"hour": f"20260210{number % 24:02d}"}))
        if number in {990, 1000}:
            log.checkpoint()
    for number in range(990):
        (log.log / commit_name(number)).unlink()
    place = put(kind, tmp_path / "t")
    place.build(990)
    if renamed:
        store = place.store
        for name in (manifest_path, sidecar_path):
            store.put(name(1000), store.get(name(990)))
    for where in (None, "hour = '2026021005'", "id > 995"):
        found, metrics = rows(place.open(), where)
        assert found == place.answer(where)
        assert (metrics.tier, metrics.sidecar_hits) == (3, 0)
    assert len(rows(place.open())[0]) == 1003
    assert (f"{manifest_path(1000)} is not used" in caplog.text) is renamed
    found, metrics = rows(place.open(995))
    assert len(found) == 996
    assert metrics.tier == 1  # for the version that it is of, it is right


@everywhere
@both
@pytest.mark.parametrize("groups", [40, 4], ids=["single", "parts"])
@pytest.mark.each_value
def test_edge_case_1_files_deleted_in_mid_scan(
    kind: str, strategy: str, groups: int, put: Any, split: Split, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer has some of the base already when manifest and sidecar go: the rest comes, and nothing twice."""
    split(5, groups)
    hourly(tmp_path / "t", files=200)
    place = put(kind, tmp_path / "t")
    place.build()
    stream = place.open().files(strategy=strategy)
    files = until_base(stream)
    for path in place.sidecars():
        place.store.delete(path)
    files += rest(stream)
    assert {file.tier for file in files} == {0, 1, 3}
    assert sorted(paths(files)) == sorted(paths(place.open().files()))
    assert (stream.metrics.tier, stream.metrics.sidecar_hits) == (3, 0)
    assert "the checkpoint goes on" in caplog.text


# Edge case 2: concurrent checkpointing.


def builders(place: Place, count: int = 2) -> list[str]:
    """Let some builders begin at once and return what each did."""
    start = threading.Barrier(count)
    done: list[str] = []

    def work() -> None:
        start.wait(10)
        done.append(place.build())

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return sorted(done)


@everywhere
@pytest.mark.parametrize("groups", [20, 3], ids=["single", "parts"])
@pytest.mark.each_value
def test_edge_case_2_two_writers_build_one_version_at_once(
    kind: str, groups: int, put: Any, split: Split, tmp_path: Path
) -> None:
    """One of them makes the sidecar, the other finds it made, and a reader meanwhile sees none or a whole one."""
    split(10, groups)
    hourly(tmp_path / "t")
    place = put(kind, tmp_path / "t")
    expected = place.answer()
    for _ in range(2):
        for path in place.sidecars():
            place.store.delete(path)
        seen: list[Any] = []
        ended = threading.Event()

        def read(seen: list[Any] = seen, ended: threading.Event = ended) -> None:
            while not ended.is_set():
                shared_cache.clear()
                seen.append(rows(place.open()))

        reader = threading.Thread(target=read)
        reader.start()
        actions = builders(place)
        ended.set()
        reader.join(60)
        assert len(actions) == 2
        assert "built" in actions
        assert seen
        assert all(found == expected for found, _ in seen)
        assert_the_logs_answer(place, 1, QUERIES[:2])


@pytest.mark.parametrize("groups", [20, 3], ids=["single", "parts"])
def test_edge_case_2_a_reader_at_every_point_of_two_interleaved_builds(
    groups: int, split: Split, tmp_path: Path
) -> None:
    """Before each write of the first builder a second one runs to its end, and a reader looks: never a half sidecar."""
    split(10, groups)
    hourly(tmp_path / "t")
    place = Place(str(tmp_path / "t"))
    expected = place.answer()
    writes: list[str] = []
    with observe(lambda request: writes.append(request.path) if request.verb == "PUT" else None):
        place.build()
    assert writes[-1 if groups == 20 else -2 :][0] == manifest_path(0), "parts have an overview, which follows it"
    writes = writes[: writes.index(manifest_path(0)) + 1]
    for timestamp in range(len(writes)):
        for path in place.sidecars():
            place.store.delete(path)
        count = 0
        inside = False

        def interleave(request: Request, timestamp: int = timestamp) -> None:
            nonlocal count, inside
            if request.verb != "PUT" or inside:
                return
            inside = True
            shared_cache.clear()
            assert rows(place.open())[0] == expected
            if count == timestamp:
                assert place.build() in {"built", "manifest-added"}
                shared_cache.clear()
                found, metrics = rows(place.open())
                assert found == expected
                assert metrics.tier == 1
            count += 1
            inside = False

        with observe(interleave):
            assert place.build() == "already-valid"
        assert count >= len(writes)
        assert_the_logs_answer(place, 1, QUERIES[:2])


@pytest.mark.parametrize("groups", [20, 3], ids=["single", "parts"])
def test_edge_case_2_a_build_that_dies_at_any_write_is_survived_and_done_again(
    groups: int, split: Split, tmp_path: Path
) -> None:
    """Whichever write never happened, readers get the log's answer, and the next build makes a valid sidecar."""
    split(10, groups)
    hourly(tmp_path / "t")
    place = Place(str(tmp_path / "t"))
    for timestamp in range(2 if groups == 20 else 5):
        for path in place.sidecars():
            place.store.delete(path)
        count = 0

        def die(request: Request, timestamp: int = timestamp) -> None:
            nonlocal count
            if request.verb == "PUT":
                count += 1
                if count > timestamp:
                    raise StorageError("injected", path=request.path)

        with observe(die), pytest.raises(StorageError, match="injected"):
            place.build()
        assert manifest_path(0) not in place.sidecars()
        for where in QUERIES[:2]:
            shared_cache.clear()
            assert rows(place.open(), where)[0] == place.answer(where)
        assert place.build() in {"built", "manifest-added"}
        assert_the_logs_answer(place, 1, QUERIES[:2])


@everywhere
def test_edge_case_2_a_torn_sidecar_is_survived_and_replaced(kind: str, put: Any, split: Split, tmp_path: Path) -> None:
    """Half a manifest, half a Parquet file or both: readers get the log's answer, and a build repairs it."""
    split(10, 20)
    hourly(tmp_path / "t")
    place = put(kind, tmp_path / "t")
    for torn in ([manifest_path(0)], [sidecar_path(0)], [manifest_path(0), sidecar_path(0)]):
        for path in place.sidecars():
            place.store.delete(path)
        place.build()
        store = place.store
        for path in torn:
            data = store.get(path)
            store.put(path, data[: len(data) // 2])
        assert_the_logs_answer(place, 2 if torn == [manifest_path(0)] else 3, QUERIES[:2])
        assert place.build() in {"built", "manifest-added"}
        assert_the_logs_answer(place, 1, QUERIES[:2])


@pytest.mark.parametrize("groups", [20, 3], ids=["single", "parts"])
def test_edge_case_2_two_writers_replace_a_torn_manifest_at_once(groups: int, split: Split, tmp_path: Path) -> None:
    """Both find an invalid manifest and want to replace it: neither fails, and one of theirs is there afterwards."""
    split(10, groups)
    hourly(tmp_path / "t")
    place = Place(str(tmp_path / "t"))
    place.build()
    store = place.store
    store.put(manifest_path(0), store.get(manifest_path(0))[:100])
    attempts: list[str] = []

    def interleave(request: Request) -> None:
        if request.verb == "PUT" and request.path == manifest_path(0):
            attempts.append(request.path)
            if len(attempts) == 2:  # the last timestamp before the first builder replaces what it found invalid
                assert place.build() in {"built", "manifest-added"}

    with observe(interleave):
        assert place.build() in {"built", "manifest-added", "already-valid"}
    assert len(attempts) > 1
    assert_the_logs_answer(place, 1)


# Edge case 3: schema evolution between checkpoints.


@both
@pytest.mark.parametrize("groups", [20, 3], ids=["single", "parts"])
@pytest.mark.each_value
def test_edge_case_3_schema_evolution_between_checkpoints(
    strategy: str, groups: int, split: Split, tmp_path: Path
) -> None:
    """Commit C+5 adds a column: base files are kept, tail files pruned by it, and the next sidecar has it."""
    split(4, groups)
    log = HandLog(tmp_path / "t", {"id": "long", "hour": "string"}, partitions=["hour"])
    log.commit(*(add(f"base{n:02d}", ids=(n, n), partition={"hour": f"h{n % 3}"}) for n in range(30)))
    log.checkpoint()
    for number in range(4):
        log.commit(add(f"old{number}", ids=(0, 9), partition={"hour": "h3"}))
    log.columns["extra"] = "long"
    log.commit(log.metadata())
    assert log.version == 5
    for number in range(4):
        stats = {"minValues": {"extra": number}, "maxValues": {"extra": number}, "nullCount": {"extra": 0}}
        log.commit(add(f"new{number}", partition={"hour": "h3"}, stats=stats))
    place = Place(str(tmp_path / "t"))
    place.build(0)
    base = [f"base{n:02d}" for n in range(30)] + [f"old{n}" for n in range(4)]

    stream = place.open().files("extra = 2", strategy=strategy)
    assert sorted(paths(stream)) == sorted([*base, "new2"])
    assert stream.metrics.tier == 1
    stream = place.open().files("extra = 2 AND hour = 'h1'", strategy=strategy)
    assert sorted(paths(stream)) == [f"base{n:02d}" for n in range(1, 30, 3)]
    assert stream.metrics.row_groups_pruned > 0
    assert place.open().files("extra IS NULL AND id > 90", strategy=strategy).collect() == []

    log.checkpoint()
    assert place.build() == "built"
    stream = place.open().files("extra = 2", strategy=strategy)
    assert sorted(paths(stream)) == sorted([*base, "new2"])
    assert (stream.metrics.tier, stream.metrics.files_pruned) == (1, 3)
    for where in (None, "extra < 2", "extra IS NOT NULL", "id = 3"):
        assert rows(place.open(), where, strategy=strategy)[0] == place.answer(where)


def test_edge_case_3_a_dropped_or_widened_column_survives_a_failing_sidecar(split: Split, tmp_path: Path) -> None:
    """The schema at V is not the sidecar's: the sort column grew wider, another one is gone, and then files vanish."""
    split(4, 5)
    mapped = {"id": ("long", "c1", 1), "gone": ("string", "c2", 2), "p": ("integer", "c3", 3)}
    log = HandLog(
        tmp_path / "t",
        mapped,
        partitions=["p"],
        features=["columnMapping", "typeWidening"],
        configuration={"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"},
    )
    stats = {"minValues": {"c2": "a"}, "maxValues": {"c2": "b"}, "nullCount": {"c2": 0}}
    log.commit(*(add(f"f{n:03d}", partition={"c3": str(n * 37 % 101 - 50)}, stats=stats) for n in range(100)))
    log.checkpoint()
    del log.columns["gone"]
    log.columns["p"] = ("long", "c3", 3)
    log.commit(log.metadata(), add("tail", partition={"c3": str(2**40)}))
    place = Place(str(tmp_path / "t"))
    place.build(0)
    for strategy in STRATEGIES:
        for where in (None, "p > 10", "p < 0", "id = 1"):
            found, metrics = rows(place.open(), where, strategy=strategy)
            assert found == place.answer(where)
            assert metrics.tier == 1
    kept = {path: place.store.get(path) for path in place.sidecars()}
    for strategy in STRATEGIES:
        for path, data in kept.items():
            place.store.put(path, data)
        stream = place.open().files(strategy=strategy)
        files = until_base(stream)
        for path in kept:
            place.store.delete(path)
        files += rest(stream)
        assert stream.metrics.tier == 3
        assert sorted(paths(files)) == sorted(paths(place.open().files()))


# Edge case 5: an empty table at the checkpoint.


@everywhere
@both
def test_edge_case_5_empty_table_at_the_checkpoint(kind: str, strategy: str, put: Any, tmp_path: Path) -> None:
    """A sidecar without rows is a sidecar: only files of the tail come, and no checkpoint is opened."""
    log = HandLog(tmp_path / "t", {"id": "long", "hour": "string"}, partitions=["hour"])
    log.commit()
    log.checkpoint()
    log.commit(add("a", ids=(1, 2), partition={"hour": "h1"}))
    log.commit(add("b", ids=(3, 4), partition={"hour": "h2"}))
    place = put(kind, tmp_path / "t")
    assert place.build(0) == "built"
    table = place.open()
    requests: list[Request] = []
    for where, expected in ((None, ["a", "b"]), ("hour = 'h1'", ["a"]), ("id > 2", ["b"]), ("id > 9", [])):
        with observe(requests.append):
            stream = table.files(where, strategy=strategy)
            assert sorted(paths(stream)) == expected
        assert stream.metrics.tier == 1
    assert not [each for each in requests if "checkpoint" in each.path]
    place.store.delete(manifest_path(0))
    shared_cache.clear()
    found, metrics = rows(place.open(), strategy=strategy)
    assert found == place.answer()
    assert metrics.tier == 2


def test_edge_case_5_a_table_without_a_checkpoint_has_no_sidecar(tmp_path: Path) -> None:
    """The builder says so in an error of ours, and scans are what they were."""
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    place = Place(str(tmp_path / "t"))
    with pytest.raises(LazyDeltaError, match="no complete checkpoint"):
        place.build()
    assert paths(place.open().files()) == ["a"]
    assert place.sidecars() == []


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "elementType": "long", "containsNull": True},
        {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
        {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]},
        "variant",
        "void",
    ],
    ids=lambda kind: kind if isinstance(kind, str) else kind["type"],
)
def test_a_column_without_bounds_can_be_tested_for_null(kind: Any, tmp_path: Path) -> None:
    """The manifest has no range of it, and no reason to fail."""
    log = HandLog(tmp_path, {"id": "long", "v": kind}, features=["variantType"])
    log.commit(add("one", ids=(1, 5)), add("two", ids=(7, 9)))
    log.checkpoint()
    place = Place(str(tmp_path))
    place.build()
    found, metrics = rows(place.open(), "id < 6 AND v IS NULL")
    assert (paths(place.open().files("id < 6 AND v IS NULL")), len(found)) == (["one"], 1)
    assert metrics.tier == 1
