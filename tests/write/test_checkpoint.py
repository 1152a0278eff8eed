"""Checkpoints that we write: what they hold, read back by us, by plain pyarrow and by others."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.errors import CorruptLogError, StorageError, UnsupportedFeatureError
from lazydelta.log.opening import open_snapshot
from lazydelta.log.schema import TableSchema
from lazydelta.pruning import ranges_from_json, ranges_from_parsed
from lazydelta.storage import Request, observe, open_store
from lazydelta.write.checkpoint import write_checkpoint
from tests.oracle.observe import observed_facts
from tests.oracle.random_log import random_log
from tests.oracle.replay import canonical_path, commit_name, file_key, replay
from tests.pruning import worlds
from tests.scan.hand_log import HandLog, add, publish, remove, vector
from tests.scan.typed_log import typed_log
from tests.storage.conftest import make_place
from tests.support import unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from lazydelta.storage import Store
    from tests.oracle.replay import Json, Snapshot

NOW = 1_700_000_000_000
DAY = 86_400_000
SEEDS = range(60)


def rows(table: Path, version: int, action: str) -> list[Json]:
    """Return the actions of a kind in a checkpoint, read by plain pyarrow."""
    file = table / "_delta_log" / f"{version:020d}.checkpoint.parquet"
    column = pq.read_table(file).column(action)
    return [row for row in column.to_pylist(maps_as_pydicts="strict") if row is not None]


def only_checkpoint(table: Path, version: int) -> None:
    """Delete everything of the log that a reader does not need beside the checkpoint and later commits."""
    log = table / "_delta_log"
    for file in log.iterdir():
        name = file.name
        if not file.is_file():
            continue
        if name == "_last_checkpoint" or (name[:20].isdigit() and int(name[:20]) <= version):
            if name != f"{version:020d}.checkpoint.parquet":
                file.unlink()
        elif "compacted" in name:
            file.unlink()


def tombstone(path: str, deleted: int | None, **more: Any) -> Json:  # noqa: ANN401
    action: Json = {"path": path, "dataChange": True, **more}
    return {"remove": action if deleted is None else action | {"deletionTimestamp": deleted}}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


# --- any log


@pytest.mark.parametrize("seed", SEEDS)
def test_the_checkpoint_of_any_log_and_later_commits_give_the_same_table(seed: int, tmp_path: Path) -> None:
    log = random_log(seed, tmp_path)
    rng = random.Random(seed)
    missing = [v for v in log.readable if not list(log.log.glob(f"{v:020d}.checkpoint*"))]
    if not missing:
        missing = [log.latest]
    version = rng.choice(missing)
    store = open_store(log.path)
    result = write_checkpoint(store, version, now=NOW)
    if result.action == "already-there":
        assert version not in missing or len(missing) == 1
        return
    expected = log.expected(version)
    assert (result.version, result.num_of_add_files) == (version, len(expected.files))
    assert result.size_in_bytes == (log.path / result.path).stat().st_size
    only_checkpoint(log.path, version)
    for later in {version, *(v for v in log.readable if v > version)}:
        found = DeltaTable(log.path, version=later)
        assert observed_facts(found) == log.expected(later).facts
        _same_state(open_snapshot(store, version=later), log.expected(later))


def _same_state(found: Any, expected: Snapshot) -> None:  # noqa: ANN401
    assert {txn.app_id: txn.version for txn in found.transactions()} == {
        app: txn["version"] for app, txn in expected.transactions.items()
    }
    assert {each.domain: each.configuration for each in found.domains()} == {
        name: each["configuration"] for name, each in expected.domains.items() if not each["removed"]
    }
    assert expected.metadata is not None
    assert expected.protocol is not None
    assert found.metadata.id == expected.metadata["id"]
    assert found.metadata.schema_string == expected.metadata["schemaString"]
    assert list(found.metadata.partition_columns) == expected.metadata["partitionColumns"]
    assert found.metadata.configuration == expected.metadata["configuration"]
    assert found.metadata.name == expected.metadata.get("name")
    assert found.protocol.min_reader_version == expected.protocol["minReaderVersion"]
    assert list(found.protocol.reader_features or ()) == expected.protocol.get("readerFeatures", [])
    assert list(found.protocol.writer_features or ()) == expected.protocol.get("writerFeatures", [])


@pytest.mark.parametrize("seed", range(20))
def test_checkpoints_upon_checkpoints_lose_nothing(seed: int, tmp_path: Path) -> None:
    """Each of our checkpoints is the base of the next; no other checkpoint is there to help."""
    log = random_log(seed, tmp_path)
    for file in log.log.iterdir():
        if file.is_file():
            file.unlink()
    for version in range(log.latest + 1):
        (log.log / commit_name(version)).write_bytes((log.history / commit_name(version)).read_bytes())
    store = open_store(log.path)
    for version in sorted(random.Random(seed).sample(range(log.latest + 1), min(4, log.latest + 1))):
        write_checkpoint(store, version, now=NOW)
        only_checkpoint(log.path, version)
    expected = log.expected(log.latest)
    write_checkpoint(store, now=NOW)
    only_checkpoint(log.path, log.latest)
    assert observed_facts(DeltaTable(log.path)) == expected.facts
    logged = {file_key(row): row for row in rows(log.path, log.latest, "add")}
    assert set(logged) == set(expected.files)
    for key, row in logged.items():
        assert row["stats"] == expected.files[key].get("stats")
        assert row["tags"] == expected.files[key].get("tags")
        assert row["dataChange"] is False


@pytest.mark.parametrize("seed", SEEDS)
def test_tombstones_are_those_of_a_plain_replay(seed: int, tmp_path: Path) -> None:
    """All are of the same moment, so either all are within the retention or none is."""
    log = random_log(seed, tmp_path)
    for file in list(log.log.iterdir()):
        if file.is_file():
            file.unlink()
    for version in range(log.latest + 1):
        (log.log / commit_name(version)).write_bytes((log.history / commit_name(version)).read_bytes())
    store = open_store(log.path)
    middle = log.latest // 2
    write_checkpoint(store, middle, now=NOW)
    if log.latest > middle:
        write_checkpoint(store, log.latest, now=NOW)
    for version in {middle, log.latest}:
        dated = {key for key, each in log.expected(version).tombstones.items() if "deletionTimestamp" in each}
        found = [file_key(row) for row in rows(log.path, version, "remove")]
        assert sorted(found, key=repr) == sorted(dated, key=repr)


# --- what the rows hold


def test_the_columns_are_those_of_delta_spark(table: Path) -> None:
    log = HandLog(table, {"id": "long", "at": "timestamp", "hour": "string"}, partitions=["hour"])
    log.commit(add("a", ids=(1, 2), partition={"hour": "h"}))
    write_checkpoint(open_store(table))
    schema = pq.ParquetFile(table / "_delta_log" / f"{0:020d}.checkpoint.parquet").schema
    paths = [schema.column(index).path for index in range(len(schema))]
    assert paths == [
        "txn.appId",
        "txn.version",
        "txn.lastUpdated",
        "add.path",
        "add.partitionValues.key_value.key",
        "add.partitionValues.key_value.value",
        "add.size",
        "add.modificationTime",
        "add.dataChange",
        "add.tags.key_value.key",
        "add.tags.key_value.value",
        "add.deletionVector.storageType",
        "add.deletionVector.pathOrInlineDv",
        "add.deletionVector.offset",
        "add.deletionVector.sizeInBytes",
        "add.deletionVector.cardinality",
        "add.baseRowId",
        "add.defaultRowCommitVersion",
        "add.clusteringProvider",
        "add.stats",
        "add.partitionValues_parsed.hour",
        "add.stats_parsed.numRecords",
        "add.stats_parsed.minValues.id",
        "add.stats_parsed.minValues.at",
        "add.stats_parsed.maxValues.id",
        "add.stats_parsed.maxValues.at",
        "add.stats_parsed.nullCount.id",
        "add.stats_parsed.nullCount.at",
        "add.stats_parsed.tightBounds",
        "remove.path",
        "remove.deletionTimestamp",
        "remove.dataChange",
        "remove.extendedFileMetadata",
        "remove.partitionValues.key_value.key",
        "remove.partitionValues.key_value.value",
        "remove.size",
        "remove.deletionVector.storageType",
        "remove.deletionVector.pathOrInlineDv",
        "remove.deletionVector.offset",
        "remove.deletionVector.sizeInBytes",
        "remove.deletionVector.cardinality",
        "remove.baseRowId",
        "remove.defaultRowCommitVersion",
        "metaData.id",
        "metaData.name",
        "metaData.description",
        "metaData.format.provider",
        "metaData.format.options.key_value.key",
        "metaData.format.options.key_value.value",
        "metaData.schemaString",
        "metaData.partitionColumns.list.element",
        "metaData.configuration.key_value.key",
        "metaData.configuration.key_value.value",
        "metaData.createdTime",
        "protocol.minReaderVersion",
        "protocol.minWriterVersion",
        "protocol.readerFeatures.list.element",
        "protocol.writerFeatures.list.element",
        "domainMetadata.domain",
        "domainMetadata.configuration",
        "domainMetadata.removed",
    ]


@pytest.mark.parametrize(
    ("properties", "there"),
    [
        ({}, (True, True)),
        ({"delta.checkpoint.writeStatsAsJson": "false"}, (False, True)),
        ({"delta.checkpoint.writeStatsAsStruct": "false"}, (True, False)),
    ],
)
def test_the_properties_choose_the_forms_of_statistics(
    properties: Mapping[str, str], there: tuple[bool, bool], table: Path
) -> None:
    HandLog(table, configuration=properties).commit(add("a", ids=(1, 2)))
    write_checkpoint(open_store(table))
    row = rows(table, 0, "add")[0]
    assert ("stats" in row, "stats_parsed" in row) == there
    assert [file.stats for file in DeltaTable(table).files()][0] is not None


@pytest.mark.parametrize(
    ("properties", "columns"),
    [
        ({"delta.dataSkippingNumIndexedCols": "1"}, {"id"}),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, {"id", "name"}),
        ({"delta.dataSkippingStatsColumns": "name"}, {"name"}),
    ],
)
def test_the_properties_choose_the_columns_with_typed_statistics(
    properties: Mapping[str, str], columns: set[str], table: Path
) -> None:
    HandLog(table, configuration=properties).commit(add("a", ids=(1, 2)))
    write_checkpoint(open_store(table))
    assert set(rows(table, 0, "add")[0]["stats_parsed"]["nullCount"]) == columns


def test_a_table_whose_columns_have_no_bounds_gets_a_checkpoint(table: Path) -> None:
    HandLog(table, {"raw": "binary"}).commit(add("a", stats={"nullCount": {"raw": 3}}))
    write_checkpoint(open_store(table))
    assert rows(table, 0, "add")[0]["stats_parsed"] == {"numRecords": 1, "nullCount": {"raw": 3}, "tightBounds": None}


@pytest.mark.parametrize("seed", range(25))
def test_typed_statistics_say_what_the_json_says(seed: int, tmp_path: Path) -> None:
    """For every primitive type, nested fields, partition values, and statistics that do not parse."""
    log = typed_log(seed, tmp_path).log
    version = max((v for v in log.readable if not list(log.log.glob(f"{v:020d}.checkpoint*"))), default=None)
    if version is None:
        pytest.skip(f"seed {seed}: every readable version has a checkpoint already")
    write_checkpoint(open_store(log.path), version)
    file = log.log / f"{version:020d}.checkpoint.parquet"
    adds = pq.read_table(file, columns=["add"]).column("add").combine_chunks()
    adds = adds.filter(adds.is_valid())
    schema: TableSchema = open_snapshot(open_store(log.path), version=version).schema
    columns = [column for column in schema.leaves() if not column.is_partition]
    expected = log.expected(version)
    texts = [expected.files[file_key(row)].get("stats") for row in adds.to_pylist(maps_as_pydicts="strict")]
    said = ranges_from_json(pa.array(texts, pa.string()), columns)
    typed = ranges_from_parsed(adds.field("stats_parsed"), columns)
    assert _plain(typed.num_records) == _plain(said.num_records)
    assert _plain(typed.tight_bounds) == _plain(said.tight_bounds)
    for column in columns:
        for side in ("min", "max", "null_count"):
            ours, theirs = (getattr(each.columns[column.physical_path], side) for each in (typed, said))
            assert _plain(ours) == _plain(theirs), (column.name, side)
    partitions = worlds.PARTITIONS
    for row, add_row in zip(adds.field("partitionValues_parsed").to_pylist(), adds.to_pylist(), strict=True):
        logged = dict(add_row["partitionValues"])
        assert set(row) == set(partitions)
        for name in partitions:
            assert (row[name] is None) == (not logged[name])
            if logged[name]:
                assert str(row[name]).replace("+00:00", "")[:10] == logged[name].replace("T", " ")[:10]


def _plain(values: pa.Array | None) -> list[str] | None:
    return None if values is None or values.null_count == len(values) else [repr(each) for each in values.to_pylist()]


def test_statistics_that_were_typed_only_become_text_again(table: Path) -> None:
    log = HandLog(
        table,
        {"id": "long", "m": "decimal(20,3)", "d": "date", "t": "timestamp"},
        configuration={"delta.checkpoint.writeStatsAsJson": "false"},
    )
    stats = {
        "minValues": {"id": -5, "m": 12345678901234567.125, "d": "2026-02-10", "t": "2026-02-10T14:00:00.123Z"},
        "maxValues": {"id": 2**60, "m": 12345678901234567.125, "d": "2026-02-11", "t": "2026-02-10T15:00:00.000Z"},
        "nullCount": {"id": 0, "m": 1, "d": 2, "t": 3},
    }
    text = json.dumps(stats).replace("1.2345678901234568e+16", "12345678901234567.125")
    action = add("a")
    action["add"]["stats"] = f'{{"numRecords":9,{text[1:]}'
    log.commit(action, add("without"))
    store = open_store(table)
    write_checkpoint(store)
    log.configuration.clear()
    log.commit(log.metadata())
    write_checkpoint(store)
    found = {row["path"]: row["stats"] for row in rows(table, 1, "add")}
    columns = list(open_snapshot(store).schema.leaves())
    before, after = (ranges_from_json(pa.array([each]), columns) for each in (action["add"]["stats"], found["a"]))
    assert before == after
    assert found["without"] is None


def test_everything_that_an_add_carries_is_kept(table: Path) -> None:
    log = HandLog(table, features=["deletionVectors"])
    whole = add("a", ids=(1, 2), vector=vector("v") | {"offset": 7})
    whole["add"] |= {"tags": {"k": "v", "n": None}, "baseRowId": 5, "defaultRowCommitVersion": 3}
    whole["add"] |= {"clusteringProvider": "liquid"}
    log.commit(whole)
    store = open_store(table)
    write_checkpoint(store)
    log.commit(add("b"))
    write_checkpoint(store)
    only_checkpoint(table, 1)
    kept = next(row for row in rows(table, 1, "add") if row["path"] == "a")
    for name, value in whole["add"].items():
        assert kept[name] == (False if name == "dataChange" else value)


def test_a_json_checkpoint_as_base_loses_nothing(table: Path) -> None:
    log = HandLog(table, features=["v2Checkpoint"])
    log.commit()
    main = table / "_delta_log" / f"{0:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    action = add("a", ids=(1, 2))["add"] | {"tags": {"k": "v"}}
    lines = [
        {"checkpointMetadata": {"version": 0}},
        log.protocol(),
        log.metadata(),
        {"add": action},
        tombstone("gone", NOW),
    ]
    main.write_text("\n".join(map(json.dumps, lines)))
    log.commit(add("b"))
    store = open_store(table)
    write_checkpoint(store, now=NOW)
    assert {row["path"]: row["tags"] for row in rows(table, 1, "add")} == {"a": {"k": "v"}, "b": None}
    assert [row["path"] for row in rows(table, 1, "remove")] == ["gone"]


# --- tombstones, transactions, domains


def test_tombstones_stay_for_the_retention_of_the_table(table: Path) -> None:
    log = HandLog(table, configuration={"delta.deletedFileRetentionDuration": "interval 2 days"})
    log.commit(*(add(name) for name in "abcde"))
    log.commit(tombstone("a", NOW - 3 * DAY), tombstone("b", NOW - 1 * DAY), tombstone("c", None))
    store = open_store(table)
    write_checkpoint(store, now=NOW)
    assert [row["path"] for row in rows(table, 1, "remove")] == ["b"]
    log.commit(tombstone("d", NOW))
    write_checkpoint(store, now=NOW + 1)
    assert {row["path"] for row in rows(table, 2, "remove")} == {"d", "b"}
    log.commit(tombstone("e", NOW))
    write_checkpoint(store, now=NOW + DAY)
    assert {row["path"] for row in rows(table, 3, "remove")} == {"d", "e"}
    assert rows(table, 3, "add") == []


def test_a_week_is_the_retention_where_the_table_says_nothing(table: Path) -> None:
    log = HandLog(table)
    log.commit(add("a"), add("b"))
    log.commit(tombstone("a", NOW - 7 * DAY), tombstone("b", NOW - 7 * DAY + 1))
    write_checkpoint(open_store(table), now=NOW)
    assert [row["path"] for row in rows(table, 1, "remove")] == ["b"]


def test_a_file_that_came_back_has_no_tombstone(table: Path) -> None:
    log = HandLog(table)
    log.commit(add("a"), add("b"), add("c"))
    log.commit(*(tombstone(name, NOW) for name in "abc"))
    store = open_store(table)
    write_checkpoint(store, now=NOW)
    log.commit(add("a"))
    log.commit(tombstone("b", NOW + 1, size=7), add("b"))
    log.commit(tombstone("c", NOW + 2, size=9))
    write_checkpoint(store, now=NOW)
    only_checkpoint(table, 4)
    assert {row["path"] for row in rows(table, 4, "add")} == {"a", "b"}
    assert [(row["path"], row["size"], row["dataChange"]) for row in rows(table, 4, "remove")] == [("c", 9, False)]


def test_two_spellings_of_a_path_are_one_tombstone(table: Path) -> None:
    log = HandLog(table)
    log.commit(add("x y"))
    log.commit(tombstone("x y", NOW))
    store = open_store(table)
    write_checkpoint(store, now=NOW)
    log.commit(tombstone("x%20y", NOW + 1), tombstone("x y", NOW + 1))
    write_checkpoint(store, now=NOW)
    assert [canonical_path(row["path"]) for row in rows(table, 2, "remove")] == ["x y"]


def test_an_add_wins_over_a_remove_of_its_own_commit_however_large_that_is(table: Path) -> None:
    """Commits above a megabyte are streamed and read twice; their removes may stand before or behind the adds."""
    log = HandLog(table)
    names = [f"{number:05d}-{'x' * 60}" for number in range(9_000)]
    log.commit(*(add(name) for name in names))
    back = names[::3]
    log.commit(
        *(tombstone(name, NOW) for name in names[:4_000]),
        *(add(name, ids=(1, 2)) for name in back),
        *(tombstone(name, NOW) for name in names[4_000:]),
    )
    assert (table / "_delta_log" / commit_name(1)).stat().st_size > 1 << 20
    result = write_checkpoint(open_store(table), now=NOW)
    assert sorted(row["path"] for row in rows(table, 1, "add")) == back
    assert sorted(row["path"] for row in rows(table, 1, "remove")) == sorted(set(names) - set(back))
    assert result.num_of_add_files == len(back)
    assert result.size == len(names) + 2


def test_applications_are_forgotten_after_their_retention(table: Path) -> None:
    log = HandLog(table, configuration={"delta.setTransactionRetentionDuration": "interval 1 days"})
    log.commit(
        {"txn": {"appId": "old", "version": 1, "lastUpdated": NOW - 2 * DAY}},
        {"txn": {"appId": "young", "version": 2, "lastUpdated": NOW}},
        {"txn": {"appId": "unknown", "version": 3}},
    )
    write_checkpoint(open_store(table), now=NOW)
    assert {row["appId"]: row["version"] for row in rows(table, 0, "txn")} == {"young": 2, "unknown": 3}


def test_only_live_domains_are_kept(table: Path) -> None:
    log = HandLog(table, features=["domainMetadata"])
    log.commit(*({"domainMetadata": {"domain": name, "configuration": "{}", "removed": False}} for name in "ab"))
    log.commit({"domainMetadata": {"domain": "a", "configuration": "{}", "removed": True}})
    log.columns = {"id": "long"}
    write_checkpoint(open_store(table))
    assert rows(table, 1, "domainMetadata") == [{"domain": "b", "configuration": "{}", "removed": False}]


# --- when, and when not


def test_a_checkpoint_that_is_there_is_left_alone(table: Path) -> None:
    log = HandLog(table)
    log.commit(add("a"), add("b"))
    store = open_store(table)
    first = write_checkpoint(store)
    before = (table / first.path).stat()
    second = write_checkpoint(store)
    assert (first.action, second.action) == ("written", "already-there")
    assert (table / first.path).stat().st_ino == before.st_ino
    same = ("version", "path", "size", "size_in_bytes", "num_of_add_files", "is_v1")
    assert [getattr(first, name) for name in same] == [getattr(second, name) for name in same]


def test_a_checkpoint_of_several_parts_counts_as_one(table: Path) -> None:
    log = HandLog(table)
    log.commit(*(add(f"f{number}") for number in range(9)))
    log.checkpoint(parts=3)
    result = write_checkpoint(open_store(table))
    assert (result.action, result.parts, result.size, result.num_of_add_files) == ("already-there", 3, 11, 9)


def test_an_empty_file_in_its_place_is_replaced(table: Path) -> None:
    log = HandLog(table)
    log.commit(add("a"))
    (table / "_delta_log" / f"{0:020d}.checkpoint.parquet").touch()
    assert write_checkpoint(open_store(table)).action == "written"
    assert [row["path"] for row in rows(table, 0, "add")] == ["a"]


def test_a_damaged_checkpoint_is_an_error_that_names_it(table: Path) -> None:
    log = HandLog(table)
    log.commit(add("a"))
    result = write_checkpoint(open_store(table))
    file = table / result.path
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CorruptLogError, match="checkpoint.parquet"):
        write_checkpoint(open_store(table))


def test_another_writer_that_is_faster_keeps_its_checkpoint(table: Path) -> None:
    log = HandLog(table)
    log.commit(add("a"))
    store = open_store(table)
    theirs: list[bytes] = []

    def race(request: Request) -> None:
        if request.verb == "PUT" and not theirs:
            theirs.append(b"")
            theirs[0] = (table / write_checkpoint(open_store(table)).path).read_bytes()

    with observe(race):
        ours = write_checkpoint(store)
    assert ours.action == "already-there"
    assert (table / ours.path).read_bytes() == theirs[0]
    assert not list((table / "_delta_log").glob(".*"))


def test_a_table_with_unknown_writer_features_is_refused_by_name(table: Path) -> None:
    log = HandLog(table)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "newest"]}
    log.commit()
    log.commit({"protocol": protocol})
    with pytest.raises(UnsupportedFeatureError, match="newest") as caught:
        write_checkpoint(open_store(table))
    assert caught.value.features == ("newest",)
    assert not list((table / "_delta_log").glob("*.parquet"))


def test_progress_counts_the_files(table: Path) -> None:
    HandLog(table).commit(*(add(f"f{number}") for number in range(50)))
    seen: list[tuple[int, int | None]] = []
    write_checkpoint(open_store(table), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(50, None)]


def test_a_small_budget_makes_more_row_groups_and_the_same_checkpoint(table: Path) -> None:
    log = HandLog(table)
    log.commit(*(add(f"f{number:05d}", ids=(number, number)) for number in range(5_000)))
    store = open_store(table)
    result = write_checkpoint(store, memory_budget=1 << 20)
    metadata = pq.read_metadata(table / result.path)
    assert metadata.num_row_groups > 1
    assert [row["path"] for row in rows(table, 0, "add")] == [f"f{number:05d}" for number in range(5_000)]


# --- failures


def _requests(store: Store) -> list[str]:
    seen: list[str] = []
    with observe(lambda request: seen.append(request.verb)):
        write_checkpoint(store)
    return seen


def test_a_failure_at_any_request_leaves_the_table_as_it_was(table: Path) -> None:
    log = HandLog(table)
    log.commit(add("a"), add("b"))
    log.checkpoint()
    log.commit(add("c"), remove("a"))
    file = table / "_delta_log" / f"{1:020d}.checkpoint.parquet"
    count = len(_requests(open_store(table)))
    file.unlink()
    expected = log.state().facts
    for number in range(count):
        made = iter(range(count))

        def fail(_: Request, made: Iterator[int] = made, number: int = number) -> None:
            if next(made) == number:
                raise StorageError("the network is down")

        with observe(fail), pytest.raises(StorageError, match="network"):
            write_checkpoint(open_store(table))
        assert not file.exists()
        assert observed_facts(DeltaTable(table)) == expected
    assert write_checkpoint(open_store(table)).action == "written"


_KILLED = """
import sys
from lazydelta.storage import open_store
from lazydelta.write.checkpoint import write_checkpoint
print("ready", flush=True)
write_checkpoint(open_store(sys.argv[1]), memory_budget=1 << 20)
"""


def test_a_writer_that_is_killed_leaves_a_readable_table(table: Path) -> None:
    log = HandLog(table)
    log.commit(*(add(f"f{number:06d}", ids=(number, number)) for number in range(60_000)))
    log.commit(*(remove(f"f{number:06d}") for number in range(100)))
    rng = random.Random(5)
    written = 0
    for _ in range(8):
        child = subprocess.Popen([sys.executable, "-c", _KILLED, str(table)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(rng.uniform(0.0, 1.2))
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        assert sum(1 for _ in DeltaTable(table).files()) == 59_900
        assert deltalake.DeltaTable(table).version() == 1
        checkpoint = table / "_delta_log" / f"{1:020d}.checkpoint.parquet"
        if checkpoint.exists():
            written += 1
            assert pq.read_metadata(checkpoint).num_rows > 59_900
            checkpoint.unlink()
    assert written < 8, "every child was done before it was killed: the test kills nothing"
    assert write_checkpoint(open_store(table)).num_of_add_files == 59_900


# --- other readers and stores


def _written_by_deltalake(table: Path) -> None:
    for number in range(4):
        data = pa.table(
            {
                "id": pa.array([number * 10, number * 10 + 5], pa.int64()),
                "name": [f"n{number}", None],
                "day": [f"d{number % 2}", "d2"],
            }
        )
        deltalake.write_deltalake(table, data, mode="append", partition_by=["day"])
    deltalake.DeltaTable(table).delete("id = 10")


def test_deltalake_reads_the_same_files_and_rows_from_our_checkpoint(table: Path) -> None:
    _written_by_deltalake(table)
    before = deltalake.DeltaTable(table)
    files, data = sorted(before.file_uris()), before.to_pyarrow_table().sort_by("id")
    actions = pa.table(before.get_add_actions(flatten=True)).sort_by("path").to_pylist()
    result = write_checkpoint(open_store(table))
    only_checkpoint(table, result.version)
    after = deltalake.DeltaTable(table)
    assert after.version() == result.version
    assert sorted(after.file_uris()) == files
    assert after.to_pyarrow_table().sort_by("id") == data
    found = pa.table(after.get_add_actions(flatten=True)).sort_by("path").to_pylist()
    assert [_known(row) for row in found] == [_known(row) for row in actions]


def _known(row: Json) -> Json:
    return {name: value for name, value in row.items() if value is not None and name != "data_change"}


def test_deltalake_writes_on_after_our_checkpoint(table: Path) -> None:
    _written_by_deltalake(table)
    rows_before = deltalake.DeltaTable(table).to_pyarrow_table().num_rows
    result = write_checkpoint(open_store(table))
    only_checkpoint(table, result.version)
    more = pa.table({"id": pa.array([99], pa.int64()), "name": ["z"], "day": ["d9"]})
    deltalake.write_deltalake(table, more, mode="append")
    assert deltalake.DeltaTable(table).to_pyarrow_table().num_rows == rows_before + 1


def test_our_checkpoint_and_deltalakes_own_have_the_same_files(table: Path, tmp_path: Path) -> None:
    _written_by_deltalake(table)
    ours = write_checkpoint(open_store(table))
    found = {file_key(row): row["size"] for row in rows(table, ours.version, "add")}
    (table / ours.path).unlink()
    deltalake.DeltaTable(table).create_checkpoint()
    theirs = rows(table, ours.version, "add")
    assert found == {file_key(row): row["size"] for row in theirs}


@pytest.mark.parametrize("seed", SEEDS)
def test_deltalake_reads_checkpoints_of_any_log(seed: int, tmp_path: Path) -> None:
    log = random_log(seed, tmp_path)
    if not log.deltalake_reads:
        pytest.skip(f"seed {seed}: deltalake does not read this log ({', '.join(log.notes)})")
    version = log.latest
    if write_checkpoint(open_store(log.path), version).action != "written":
        pytest.skip(f"seed {seed}: the newest version has a checkpoint already")
    only_checkpoint(log.path, version)
    found = deltalake.DeltaTable(log.path)
    actions = pa.table(found.get_add_actions())
    paths = sorted(canonical_path(path) for path in actions.column("path").to_pylist())
    assert paths == sorted(path for path, _ in log.expected(version).files)


_DUCKDB = """
import sys, pathlib, duckdb, duckdb_extension_delta
file = next(pathlib.Path(duckdb_extension_delta.__file__).parent.rglob("*.duckdb_extension"))
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.load_extension(str(file))
print(connection.sql(f"SELECT count(*), sum(id), count(name) FROM delta_scan('{sys.argv[1]}')").fetchall()[0])
"""


@pytest.mark.peers
def test_duckdb_reads_the_rows_behind_our_checkpoint(table: Path, pytestconfig: pytest.Config) -> None:
    python = pytestconfig.rootpath / ".venv-peers" / "bin" / "python"
    if not python.exists():
        unavailable("the environment of the peers is not installed: run `make setup`")
    _written_by_deltalake(table)
    data = deltalake.DeltaTable(table).to_pyarrow_table()
    result = write_checkpoint(open_store(table))
    only_checkpoint(table, result.version)
    done = subprocess.run([str(python), "-c", _DUCKDB, str(table)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = data.column("name")
    assert done.stdout.strip() == str((data.num_rows, sum(data.column("id").to_pylist()), len(names) - names.null_count))


@pytest.mark.parametrize("kind", ["memory", "abfss", "s3"])
def test_a_checkpoint_is_written_to_any_store(kind: str, table: Path, request: pytest.FixtureRequest) -> None:
    log = HandLog(table)
    log.commit(*(add(f"f{number:05d}", ids=(number, number)) for number in range(3_000)))
    log.commit(remove("f00001"))
    place = make_place(kind, request)
    publish(table, place.uri, place.options)
    store = place.open()
    result = write_checkpoint(store, memory_budget=1 << 20)
    store.delete(f"_delta_log/{commit_name(0)}")
    store.delete(f"_delta_log/{commit_name(1)}")
    assert store.head(result.path).size == result.size_in_bytes
    assert observed_facts(DeltaTable(place.uri, storage_options=place.options)) == log.state().facts
