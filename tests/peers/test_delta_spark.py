"""Delta-Spark reads, checks, cleans and writes the same tables as we do."""

from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from lazydelta import DeltaTable, write_arrow, write_deltalake
from lazydelta.sidecar import build, verify
from lazydelta.storage import open_store
from lazydelta.write.checkpoint.writer import write_checkpoint
from tests.support.delta_spark import DeltaSpark

# One Spark at a time: all of these run in the same worker.
pytestmark = [pytest.mark.xdist_group("other sparks"), pytest.mark.timeout(600)]

START = dt.datetime(2026, 2, 10, 21, 30, tzinfo=dt.UTC)


def batch(first: int, count: int = 60) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "at": pa.array([START + dt.timedelta(minutes=3 * i) for i in range(count)], pa.timestamp("us", "UTC")),
            "device": pa.array([None if i % 7 == 0 else f"sensor-{i % 5}" for i in range(count)]),
            "value": pa.array([i / 4 for i in range(count)], pa.float64()),
        },
    )


def ours(path: Path, **options: object) -> list[int]:
    table = DeltaTable(path, options=options).to_pyarrow_table(columns=["id"])
    ids: list[int] = sorted(table.column("id").to_pylist())
    return ids


def spark_ids(spark: DeltaSpark, path: Path) -> list[int]:
    return sorted(row["id"] for row in spark.sql(f"SELECT id FROM delta.`{path}`"))


def test_spark_reads_our_commits_checkpoints_and_checksums(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    for number in range(6):
        properties = {"delta.checkpointInterval": "3"} if number == 0 else None
        write_arrow(tmp_path, batch(number * 60), timestamp_column="at", properties=properties)
    log = {each.name for each in (tmp_path / "_delta_log").iterdir()}
    assert {"00000000000000000003.checkpoint.parquet", "00000000000000000005.crc"} <= log
    assert spark_ids(delta_spark, tmp_path) == list(range(360))
    assert delta_spark.validate(tmp_path) == 5
    [detail] = delta_spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path}`")
    files = DeltaTable(tmp_path).files().collect()
    assert (detail["numFiles"], detail["sizeInBytes"]) == (len(files), sum(file.size for file in files))


def test_spark_skips_files_by_our_statistics_and_loses_no_row(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    for number in range(3):
        write_arrow(tmp_path, batch(number * 60), timestamp_column="at")
    for where in ("id >= 100", "at < '2026-02-10T22:00:00Z'", "device IS NULL", "device > 'sensor-3'", "value = 2.5"):
        found = sorted(row["id"] for row in delta_spark.sql(f"SELECT id FROM delta.`{tmp_path}` WHERE {where}"))
        mine = DeltaTable(tmp_path).to_pyarrow_table(columns=["id"], filters=where)
        assert found == sorted(mine.column("id").to_pylist()), where
        assert found, where


def test_spark_vacuum_and_cleanup_leave_sidecars_alone(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    for number in range(4):
        properties = {"delta.checkpointInterval": "3"} if number == 0 else None
        write_arrow(tmp_path, batch(number * 60), timestamp_column="at", properties=properties)
    build(tmp_path)
    before = {each.name for each in (tmp_path / "_delta_log" / "_sidecars").iterdir()}
    delta_spark.sql(f"VACUUM delta.`{tmp_path}` RETAIN 0 HOURS")
    delta_spark.sql(
        f"ALTER TABLE delta.`{tmp_path}` SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 0 hours', "
        "'delta.deletedFileRetentionDuration' = 'interval 0 hours')"
    )
    for number in range(3):
        delta_spark.sql(
            f"INSERT INTO delta.`{tmp_path}` SELECT {900 + number}L, TIMESTAMP '2026-02-11 01:00:00', 'x', 1.0D, "
            "'2026021101'"
        )
    assert {each.name for each in (tmp_path / "_delta_log" / "_sidecars").iterdir()} >= before
    assert (tmp_path / "_delta_log" / f"{6:020d}.checkpoint.parquet").exists()
    expected = [*range(240), *range(900, 903)]
    assert ours(tmp_path) == expected
    assert ours(tmp_path, **{"delta.sidecar.enabled": False}) == expected
    assert spark_ids(delta_spark, tmp_path) == expected


def test_we_read_what_spark_writes(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    """Deletion vectors, column mapping by name, an update, a checkpoint of Spark's own, and our sidecar over it."""
    delta_spark.sql(
        f"CREATE TABLE delta.`{tmp_path}` (id BIGINT, `the name` STRING, day DATE) USING delta PARTITIONED BY (day) "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true', "
        "'delta.checkpointInterval' = '4')"
    )
    for number in range(5):
        delta_spark.sql(
            f"INSERT INTO delta.`{tmp_path}` SELECT id, concat('n', id), DATE '2026-02-0{number + 1}' "
            f"FROM range({number * 100}, {number * 100 + 100})"
        )
    delta_spark.sql(f"DELETE FROM delta.`{tmp_path}` WHERE id % 10 = 3")
    delta_spark.sql(f"UPDATE delta.`{tmp_path}` SET `the name` = 'changed' WHERE id = 44")
    build(tmp_path)
    expected = [row["id"] for row in delta_spark.sql(f"SELECT id FROM delta.`{tmp_path}` ORDER BY id")]
    assert ours(tmp_path) == expected
    table = DeltaTable(tmp_path).to_pyarrow_table(filters="`the name` = 'changed'")
    assert table.column("id").to_pylist() == [44]
    days = DeltaTable(tmp_path).files("day = DATE '2026-02-03'").collect()
    assert {file.partition_values["day"] for file in days} == {"2026-02-03"}


@pytest.mark.parametrize("kind", ["", pytest.param("TIMESTAMP_MICROS", marks=pytest.mark.slow)])
def test_timestamps_far_away_and_before_1970_survive_sparks_typed_statistics(
    delta_spark: DeltaSpark, tmp_path: Path, kind: str
) -> None:
    """With the timestamps that Spark writes by default, and with those that it can be told to write."""
    timestamps = [
        "9999-12-31 00:00:00",
        "2024-05-06 07:08:09.123456",
        "1969-12-31 23:59:59.9995",
        "1600-01-01 00:00:00",
    ]
    setting = "spark.sql.parquet.outputTimestampType"
    delta_spark.sql(f"SET {setting} = {kind}" if kind else f"RESET {setting}")
    try:
        delta_spark.sql(
            f"CREATE TABLE delta.`{tmp_path}` (id BIGINT, valid_to TIMESTAMP) USING delta TBLPROPERTIES "
            "('delta.checkpoint.writeStatsAsStruct' = 'true', 'delta.checkpointInterval' = '4')"
        )
        for number, timestamp in enumerate(timestamps):
            delta_spark.sql(f"INSERT INTO delta.`{tmp_path}` SELECT {number}L, TIMESTAMP '{timestamp}'")
    finally:
        delta_spark.sql(f"RESET {setting}")
    assert (tmp_path / "_delta_log" / f"{4:020d}.checkpoint.parquet").exists()
    points = [
        *timestamps,
        "2025-01-01 00:00:00",
        "1969-12-31 23:59:59.999",
        "1970-01-01 00:00:00",
        "1815-01-01 00:00:00",
    ]
    predicates = [f"valid_to {op} TIMESTAMP '{point}'" for point in points for op in (">", ">=", "<", "<=", "=", "!=")]
    asked = ", ".join(f"{where} AS p{number}" for number, where in enumerate(predicates))
    rows = delta_spark.sql(f"SELECT id, {asked} FROM delta.`{tmp_path}` ORDER BY id")
    expected = {where: [row["id"] for row in rows if row[f"p{number}"]] for number, where in enumerate(predicates)}

    def check(**options: object) -> None:
        for where in predicates:
            table = DeltaTable(tmp_path, options=options).to_pyarrow_table(columns=["id"], filters=where)
            assert sorted(table.column("id").to_pylist()) == expected[where], where

    check(**{"delta.sidecar.enabled": False})
    build(tmp_path)
    assert verify(tmp_path).problems == []
    check()
    # Our own checkpoint copies what Spark's has, and deltalake, which reads Spark's wrong, goes by ours.
    delta_spark.sql(f"INSERT INTO delta.`{tmp_path}` SELECT 4L, NULL")
    assert write_checkpoint(open_store(tmp_path)).action == "written"
    check(**{"delta.sidecar.enabled": False})
    adds = pa.table(deltalake.DeltaTable(str(tmp_path)).get_add_actions(flatten=True))
    maxima = [each for each in adds.column("max.valid_to").to_pylist() if each is not None]
    assert max(maxima) == dt.datetime(9999, 12, 31, tzinfo=dt.UTC)


def test_three_kinds_of_writers_lose_nothing(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    """Spark, deltalake and lazydelta append to one table at the same time."""
    write_arrow(tmp_path, batch(0, 10).drop_columns(["at"]))
    errors: list[BaseException] = []

    def with_lazydelta() -> None:
        try:
            for number in range(6):
                write_arrow(tmp_path, batch(1000 + number * 10, 10).drop_columns(["at"]))
        except BaseException as error:  # noqa: BLE001 - checked below
            errors.append(error)

    def with_deltalake() -> None:
        try:
            for number in range(6):
                rows = batch(2000 + number * 10, 10).drop_columns(["at"])
                deltalake.write_deltalake(str(tmp_path), rows, mode="append")
        except BaseException as error:  # noqa: BLE001 - checked below
            errors.append(error)

    threads = [threading.Thread(target=with_lazydelta), threading.Thread(target=with_deltalake)]
    for thread in threads:
        thread.start()
    for number in range(4):
        delta_spark.sql(f"INSERT INTO delta.`{tmp_path}` SELECT {3000 + number}L, 'spark', 0.5D")
    for thread in threads:
        thread.join()
    assert errors == []
    expected = [*range(10), *range(1000, 1060), *range(2000, 2060), *range(3000, 3004)]
    assert ours(tmp_path) == expected
    assert spark_ids(delta_spark, tmp_path) == expected


def test_spark_reads_the_changes_of_tables_that_we_write(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    """We write no change data of our own; Spark tells it by the files that come and go."""
    rows = pa.table({"id": pa.array(range(6), pa.int64()), "part": ["a", "a", "b", "b", "c", "c"]})
    enabled = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(tmp_path, rows, partition_by=["part"], configuration=enabled)
    write_deltalake(tmp_path, rows.slice(0, 3), mode="append")
    DeltaTable(tmp_path).optimize.compact()
    write_deltalake(tmp_path, rows.slice(2, 1), mode="overwrite", predicate="part = 'b'")
    delta_spark.sql(f"DELETE FROM delta.`{tmp_path}` WHERE id = 0")
    write_deltalake(tmp_path, rows.slice(5), mode="overwrite")
    names = ["id", "part", "_change_type", "_commit_version"]
    asked = f"SELECT {', '.join(names)} FROM table_changes_by_path('{tmp_path}', 0)"
    theirs = delta_spark.sql(asked)
    ours = DeltaTable(tmp_path).load_cdf(columns=names).read_all()
    assert sorted(map(repr, ours.to_pylist())) == sorted(map(repr, theirs))
    assert ours.num_rows > len(rows)


def test_spark_derives_filters_from_generated_hours_and_writes_them(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    write_arrow(tmp_path, batch(0), timestamp_column="at", partition_generated=True)
    table = f"delta.`{tmp_path}`"
    late = "at >= '2026-02-10T23:10:00Z'"
    [plan] = delta_spark.sql(f"EXPLAIN SELECT id FROM {table} WHERE {late}")
    scan = next(line for line in plan["plan"].splitlines() if "PartitionFilters" in line)
    assert "_event_hour" in scan.split("PartitionFilters: [")[1].split("],")[0]
    expected = DeltaTable(tmp_path).to_pyarrow_table(columns=["id"], filters=late)["id"].to_pylist()
    assert sorted(row["id"] for row in delta_spark.sql(f"SELECT id FROM {table} WHERE {late}")) == sorted(expected)

    delta_spark.sql(f"INSERT INTO {table} (id, at) VALUES (1000, TIMESTAMP '2026-02-11T05:59:59Z')")
    write_arrow(tmp_path, batch(60))
    assert ours(tmp_path) == spark_ids(delta_spark, tmp_path) == [*range(120), 1000]
    [theirs] = DeltaTable(tmp_path).files("at >= '2026-02-11T05:00:00Z'")
    assert theirs.partition_values == {"_event_hour": "2026-02-11-05"}
    with pytest.raises(AssertionError, match="_event_hour"):
        delta_spark.sql(f"INSERT INTO {table} (id, at, _event_hour) VALUES (2, TIMESTAMP '2026-02-11T05:00:00Z', 'x')")
