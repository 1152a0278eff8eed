"""Checkpoints that we write hold what a plain replay of the log gives, in Delta-Spark's columns."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.log.snapshot import LogSnapshot as Replayed
from lazydelta.log.snapshot import open_snapshot
from lazydelta.protocol.schema import TableSchema
from lazydelta.stats import ranges_from_json, ranges_from_parsed
from lazydelta.storage import open_store
from lazydelta.write.checkpoint.writer import state_of, write_checkpoint
from tests.oracle.observe import observed_facts
from tests.oracle.random_log import random_log
from tests.oracle.replay import Snapshot, canonical_path, commit_name, file_key
from tests.predicates import worlds
from tests.scan.hand_log import HandLog, add, vector
from tests.scan.typed_log import typed_log
from tests.write.checkpoints import DAY, NOW, commits_only, only_checkpoint, rows, tombstone

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SEEDS = range(60)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


# --- any log


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.one_in(5)
def test_the_checkpoint_of_any_log_and_later_commits_give_the_same_table(seed: int, tmp_path: Path) -> None:
    log = random_log(seed, tmp_path)
    without = [v for v in log.readable if not list(log.log.glob(f"{v:020d}.checkpoint*"))]
    if not without:
        commits_only(log)
    version = random.Random(seed).choice(without or [log.latest])
    store = open_store(log.path)
    result = write_checkpoint(store, version, now=NOW)
    assert result.action == "written"
    expected = log.expected(version)
    assert (result.version, result.num_of_add_files) == (version, len(expected.files))
    assert result.size_in_bytes == (log.path / result.path).stat().st_size
    only_checkpoint(log.path, version)
    for later in {version, *(v for v in log.readable if v > version)}:
        found = DeltaTable(log.path, version=later)
        assert observed_facts(found) == log.expected(later).facts
        _same_state(open_snapshot(store, version=later), log.expected(later))


def _same_state(found: Any, expected: Snapshot) -> None:
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
@pytest.mark.one_in(4)
def test_checkpoints_upon_checkpoints_lose_nothing(seed: int, tmp_path: Path) -> None:
    """Each of our checkpoints is the base of the next; no other checkpoint is there to help."""
    log = random_log(seed, tmp_path)
    commits_only(log)
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
@pytest.mark.one_in(5)
def test_tombstones_are_those_of_a_plain_replay(seed: int, tmp_path: Path) -> None:
    """All are of the same timestamp, so either all are within the retention or none is."""
    log = random_log(seed, tmp_path)
    commits_only(log)
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
    assert next(file.stats for file in DeltaTable(table).files()) is not None


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
@pytest.mark.one_in(5)
def test_typed_statistics_say_what_the_json_says(seed: int, tmp_path: Path) -> None:
    """For every primitive type, nested fields, partition values, and statistics that do not parse."""
    log = typed_log(seed, tmp_path).log
    version = max((v for v in log.readable if not list(log.log.glob(f"{v:020d}.checkpoint*"))), default=log.latest)
    if version == log.latest:
        commits_only(log)
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
    log = HandLog(table)
    log.commit({"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata"]}})
    log.commit(*({"domainMetadata": {"domain": name, "configuration": "{}", "removed": False}} for name in "ab"))
    log.commit({"domainMetadata": {"domain": "a", "configuration": "{}", "removed": True}})
    write_checkpoint(open_store(table))
    assert rows(table, 2, "domainMetadata") == [{"domain": "b", "configuration": "{}", "removed": False}]


def test_small_commits_are_reconciled_together_and_the_log_is_replayed_twice(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = HandLog(table)
    for number in range(60):
        older = [tombstone(f"f{number - 3}", NOW - 1)] if number % 4 == 3 else []
        log.commit(add(f"f{number}"), *older)
    store = open_store(table)
    state = state_of(open_snapshot(store), 256 << 20, NOW)
    batches = list(state.batches())
    assert len(batches) <= 6  # protocol, metadata, applications, domains, files, tombstones
    assert state.rows.num_adds == 45
    replays = 0
    tail = Replayed.tail

    def counted(self: Replayed, *given: Any, **named: Any) -> Any:
        nonlocal replays
        replays += 1
        return tail(self, *given, **named)

    monkeypatch.setattr(Replayed, "tail", counted)
    write_checkpoint(store, now=NOW)
    assert replays == 2  # for the files, and for what is no file
