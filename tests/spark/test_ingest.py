"""Rows that Spark writes with ``format("lazydelta")`` are the rows that everybody reads."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from lazydelta.errors import OptionError
from lazydelta.spark import ingest
from lazydelta.spark.source import LazyDeltaSource
from lazydelta.write.job import WriteJob
from lazydelta.write.options import WriteOptions
from tests.spark.tables import (
    actions,
    added,
    by_id,
    check_footers,
    commits,
    ids,
    logged,
    on_disk,
    partition_of,
    read,
    read_by_delta_spark,
    same,
    write,
)
from tests.support.rounds import quick
from tests.write.peers import DeltaRs, DuckDb, Polars, duckdb_peer

pytestmark = [pytest.mark.xdist_group("spark")]

_UTC = pa.timestamp("us", "UTC")
_NEW_YORK = ZoneInfo("America/New_York")


def _timestamps() -> list[dt.datetime]:
    """Return timestamps around whatever may go wrong; the session's clocks are those of New York."""
    edges = [
        dt.datetime(2026, 2, 10, 0, 0, tzinfo=dt.UTC),  # midnight in UTC
        dt.datetime(2026, 2, 10, 0, 0, tzinfo=_NEW_YORK),  # midnight in the session
        dt.datetime(2026, 3, 1, 0, 0, tzinfo=dt.UTC),  # end of a month
        dt.datetime(2026, 1, 1, 0, 0, tzinfo=dt.UTC),  # end of a year
        dt.datetime(2024, 2, 29, 0, 0, tzinfo=dt.UTC),  # leap day
        dt.datetime(2024, 3, 1, 0, 0, tzinfo=dt.UTC),
        dt.datetime(2026, 3, 8, 7, 0, tzinfo=dt.UTC),  # clocks go forward: 02:00 becomes 03:00
        dt.datetime(2026, 11, 1, 5, 0, tzinfo=dt.UTC),  # 01:00 for the first time
        dt.datetime(2026, 11, 1, 6, 0, tzinfo=dt.UTC),  # 01:00 for the second time
        dt.datetime(1970, 1, 1, 0, 0, tzinfo=dt.UTC),
        dt.datetime(1883, 11, 18, 17, 0, tzinfo=dt.UTC),  # before zones had whole minutes
    ]
    steps = [
        dt.timedelta(microseconds=-1),
        dt.timedelta(0),
        dt.timedelta(microseconds=1),
        dt.timedelta(microseconds=999_999),
    ]
    steps += [dt.timedelta(minutes=30, microseconds=123), dt.timedelta(minutes=-30)]
    return [edge.astimezone(dt.UTC) + step for edge in edges for step in steps]


def _events(spark: SparkSession, timestamps: list[dt.datetime | None], first: int = 0) -> DataFrame:
    return spark.createDataFrame(
        pa.table({"id": pa.array(range(first, first + len(timestamps)), pa.int64()), "ts": pa.array(timestamps, _UTC)})
    )


def _hours(spark: SparkSession, hours: int, rows: int, partitions: int = 2) -> DataFrame:
    """Return ``rows`` rows spread evenly over ``hours`` hours, each task with some of every hour."""
    start = int(dt.datetime(2026, 2, 10, tzinfo=dt.UTC).timestamp())
    return spark.range(0, rows, 1, partitions).select(
        "id", F.timestamp_seconds(F.lit(start) + (F.col("id") % hours) * 3600).alias("ts")
    )


@pytest.fixture(scope="module")
def duckdb() -> Iterator[DuckDb]:
    with duckdb_peer() as peer:
        yield peer


@pytest.mark.parametrize("boundary", quick(["hour", "second", "month", "day", "minute"], 2))
def test_every_reader_sees_the_rows_of_every_boundary(
    boundary: str, spark: SparkSession, duckdb: DuckDb, tmp_path: Path
) -> None:
    timestamps = _timestamps()
    table = tmp_path / "t"
    df = _events(spark, [*timestamps, None])
    write(df, table, timestampColumn="ts", boundary=boundary)
    column = f"_event_{boundary}"
    expected = pa.table(
        {
            "id": pa.array(range(len(timestamps) + 1), pa.int64()),
            "ts": pa.array([*timestamps, None], _UTC),
            column: [partition_of(each, boundary) for each in [*timestamps, None]],
        }
    )
    for peer in (DeltaRs(), Polars(), duckdb):
        assert same(peer.rows(table), expected), type(peer).__name__
    assert same(read_by_delta_spark(spark, table), expected)
    assert check_footers(table, "ts", boundary, column) == len(set(expected[column].to_pylist()))
    assert on_disk(table) == logged(table)


def test_every_type_comes_through(spark: SparkSession, duckdb: DuckDb, tmp_path: Path) -> None:
    inner = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string())), ("at", _UTC)])
    timestamp = dt.datetime(2026, 2, 10, 12, 0, 0, 1, tzinfo=dt.UTC)
    struct = {"a": 1, "b": ["x", None], "at": timestamp}
    expected = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int64()),
            "ts": pa.array([timestamp] * 3, _UTC),
            "i8": pa.array([-128, 127, None], pa.int8()),
            "i16": pa.array([-(1 << 15), (1 << 15) - 1, None], pa.int16()),
            "i32": pa.array([-(1 << 31), (1 << 31) - 1, None], pa.int32()),
            "i64": pa.array([-(1 << 63), (1 << 63) - 1, None], pa.int64()),
            "f32": pa.array([1.5, float("nan"), None], pa.float32()),
            "f64": pa.array([-0.1, float("inf"), None], pa.float64()),
            "flag": pa.array([True, False, None]),
            "text": pa.array(["", "ü\u2028\0", None]),
            "bytes": pa.array([b"", b"\0\xff", None]),
            "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
            "small": pa.array([Decimal("1.23"), Decimal("-9.99"), None], pa.decimal128(3, 2)),
            "large": pa.array([Decimal("9" * 38), Decimal(-1), None], pa.decimal128(38, 0)),
            "struct": pa.array([struct, {"a": None, "b": None, "at": None}, None], inner),
            "list": pa.array([[struct, None], [], None], pa.list_(inner)),
            "map": pa.array([[("k", struct), ("l", None)], [], None], pa.map_(pa.string(), inner)),
        }
    )
    table = tmp_path / "t"
    # Spark would take wall clocks from Arrow for clocks of its session.
    wall = F.expr("CASE id WHEN 1 THEN timestamp_ntz'2026-03-08 02:30:00' WHEN 2 THEN timestamp_ntz'1900-01-01' END")
    write(spark.createDataFrame(expected).withColumn("wall", wall), table, timestampColumn="ts")
    clocks = [dt.datetime(2026, 3, 8, 2, 30), dt.datetime(1900, 1, 1), None]  # noqa: DTZ001 - wall clocks
    expected = expected.append_column("wall", pa.array(clocks, pa.timestamp("us")))
    for peer in (DeltaRs(), duckdb):
        assert same(peer.rows(table), expected), type(peer).__name__
    assert same(read_by_delta_spark(spark, table), expected)


@pytest.mark.parametrize(("kind", "boundary"), [("timestamp_ntz", "minute"), ("date", "day"), ("date", "hour")])
def test_wall_clocks_and_days_are_timestamps_of_utc(
    kind: str, boundary: str, spark: SparkSession, tmp_path: Path
) -> None:
    texts = ["2026-03-08 02:30:00", "2024-02-29 23:59:59.999999", "1969-12-31 00:00:00"]
    df = spark.createDataFrame([(number, text) for number, text in enumerate(texts)], "id long, text string")
    table = tmp_path / "t"
    write(df.select("id", F.col("text").cast(kind).alias("at")), table, timestampColumn="at", boundary=boundary)
    found = by_id(read_by_delta_spark(spark, table))
    for row, text in zip(found, texts, strict=True):
        timestamp = dt.datetime.fromisoformat(text)
        day = dt.datetime(timestamp.year, timestamp.month, timestamp.day)  # noqa: DTZ001 - a wall clock
        assert row[f"_event_{boundary}"] == partition_of(day if kind == "date" else timestamp, boundary)
    check_footers(table, "at", boundary, f"_event_{boundary}")


def test_a_zone_less_session_and_another_zone_write_the_same(spark: SparkSession, tmp_path: Path) -> None:
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    for session, name in ((spark, "a"), (other, "b")):
        write(_events(session, list(_timestamps())), tmp_path / name, timestampColumn="ts")
    assert same(read(tmp_path / "b"), read(tmp_path / "a"))


def test_rows_without_a_timestamp_go_to_the_null_partition(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(_events(spark, [None, dt.datetime(2026, 2, 10, tzinfo=dt.UTC), None]), table, timestampColumn="ts")
    assert sorted((each["partition._event_hour"] for each in added(table)), key=str) == ["2026021000", None]
    assert ids(table) == [0, 1, 2]
    assert not (tmp_path / "t_rejected").exists()


def test_rejected_rows_are_all_in_the_side_table(spark: SparkSession, tmp_path: Path) -> None:
    table, side = tmp_path / "t", tmp_path / "aside"
    timestamps = [None if number % 3 else dt.datetime(2026, 2, 10, tzinfo=dt.UTC) for number in range(30)]
    write(_events(spark, timestamps), table, timestampColumn="ts", nullTimestamps="reject", rejectedTable=str(side))
    assert ids(table) == list(range(0, 30, 3))
    rejected = read(side).to_pylist()
    assert sorted(json.loads(each["record"])["id"] for each in rejected) == [n for n in range(30) if n % 3]
    assert {each["reason"] for each in rejected} == {"no value in the timestamp column 'ts'"}
    assert on_disk(side) == logged(side)


def test_the_side_table_is_beside_the_table_and_takes_what_no_calendar_of_python_holds(
    spark: SparkSession, tmp_path: Path
) -> None:
    far = "timestamp_micros(316537891200000000L)"
    df = spark.sql(f"SELECT 1L id, {far} ts, X'00ff' b, 1.50BD d, named_struct('at', {far}) s, map('k', 1) m")
    table = tmp_path / "t"
    write(df, table, timestampColumn="ts", nullTimestamps="reject")
    (rejected,) = read(tmp_path / "t_rejected").to_pylist()
    assert rejected["reason"] == "the timestamp column 'ts' is outside the years 0 to 9999"
    record = json.loads(rejected["record"])
    assert record.pop("ts").startswith("12000-09-08 00:00:00")
    assert record == {"id": 1, "b": "AP8=", "d": "1.50", "s": {"at": 316_537_891_200_000_000}, "m": [["k", 1]]}
    assert ids(table) == []
    with pytest.raises(PythonException, match="outside the years 0 to 9999"):
        write(df, table)


def test_late_rows_land_in_their_own_hour(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    hour = dt.datetime(2026, 2, 10, 10, tzinfo=dt.UTC)
    write(_events(spark, [hour]), table, timestampColumn="ts")
    late = hour - dt.timedelta(days=400)
    write(_events(spark, [hour + dt.timedelta(hours=1), late], first=1), table)
    added = {add["partitionValues"]["_event_hour"] for add in actions(table, 1, "add")}
    assert added == {"2026021011", partition_of(late, "hour")}
    check_footers(table, "ts", "hour", "_event_hour")


def test_a_skewed_hour_is_split_by_size(spark: SparkSession, tmp_path: Path) -> None:
    hour = F.lit("2026-02-10 10:00:00").cast("timestamp")
    many = spark.range(0, 40_000, 1, 2).select(
        "id", hour.alias("ts"), F.sha2(F.col("id").cast("string"), 512).alias("x")
    )
    few = spark.range(40_000, 40_010).select(
        "id", (hour + F.expr("INTERVAL 1 HOUR")).alias("ts"), F.lit("x").alias("x")
    )
    table = tmp_path / "t"
    write(many.union(few), table, timestampColumn="ts", targetFileSize="512KB")
    sizes: dict[str, list[int]] = {}
    for add in actions(table, 0, "add"):
        sizes.setdefault(add["partitionValues"]["_event_hour"], []).append(add["size"])
    skewed, small = sizes["2026021015"], sizes["2026021016"]
    assert len(small) == 1
    assert len(skewed) >= sum(skewed) // (768 << 10)
    assert max(skewed) <= 1 << 20
    assert ids(table) == list(range(40_010))
    check_footers(table, "ts", "hour", "_event_hour")


def test_small_data_makes_one_file_a_boundary_whatever_the_number_of_tasks(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(_hours(spark, hours=3, rows=300, partitions=12), table, timestampColumn="ts")
    assert check_footers(table, "ts", "hour", "_event_hour") == 3
    assert ids(table) == list(range(300))


def test_large_data_makes_at_most_one_file_a_boundary_and_task(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    df = _hours(spark, hours=2, rows=60_000, partitions=3).withColumn("x", F.sha2(F.col("id").cast("string"), 512))
    write(df, table, timestampColumn="ts")
    assert 2 <= check_footers(table, "ts", "hour", "_event_hour") <= 6
    assert ids(table) == list(range(60_000))


def test_a_table_remembers_its_layout(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    day = dt.datetime(2026, 2, 10, tzinfo=dt.UTC)
    write(_events(spark, [day]), table, timestampColumn="ts", boundary="day", partitionColumn="on_day")
    write(_events(spark, [day + dt.timedelta(days=1), None], first=1), table, nullTimestamps="reject")
    assert deltalake.DeltaTable(table).metadata().partition_columns == ["on_day"]
    assert sorted(read(table)["on_day"].to_pylist()) == ["20260210", "20260211"]
    assert read(tmp_path / "t_rejected").num_rows == 1
    with pytest.raises(AnalysisException, match=r'expected: \["on_day"\], got: \["_event_hour"\]'):
        write(_events(spark, [day]), table, boundary="hour")


def test_a_column_of_days_takes_no_hours(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    timestamp = dt.datetime(2026, 2, 10, tzinfo=dt.UTC)
    write(_events(spark, [timestamp]), table, timestampColumn="ts", boundary="day", partitionColumn="at")
    with pytest.raises(AnalysisException, match="boundary"):
        write(_events(spark, [timestamp]), table, timestampColumn="ts", boundary="hour", partitionColumn="at")
    assert commits(table) == [0]


def test_further_partition_columns_stand_beside_the_boundary(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    df = _hours(spark, hours=2, rows=40).withColumn("site", F.when(F.col("id") % 4 > 1, "a b/c"))
    write(df, table, timestampColumn="ts", partitionBy="site")
    values = {
        (add["partitionValues"]["_event_hour"], add["partitionValues"]["site"]) for add in actions(table, 0, "add")
    }
    assert values == {(hour, site) for hour in ("2026021000", "2026021001") for site in ("a b/c", None)}
    assert same(read_by_delta_spark(spark, table), read(table))


def test_merge_schema_adds_columns_and_nothing_else_does(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(_hours(spark, 1, 2), table, timestampColumn="ts")
    wider = _hours(spark, 1, 2).select((F.col("id") + 2).alias("id"), "ts", F.struct(F.lit(1).alias("a")).alias("new"))
    with pytest.raises(AnalysisException, match="has the column 'new'"):
        write(wider, table)
    write(wider, table, mergeSchema="true")
    write(wider.withColumn("new", F.struct(F.lit(1).alias("a"), F.lit("b").alias("b"))), table, mergeSchema=True)
    assert [each["new"] for each in by_id(read(table))][:2] == [None, None]
    assert same(read_by_delta_spark(spark, table), read(table))
    assert read(table).num_rows == 6


def test_overwrite_replaces_everything(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(_hours(spark, 3, 9), table, timestampColumn="ts")
    write(_hours(spark, 1, 2).withColumn("id", F.col("id") + 100), table, "overwrite")
    assert ids(table) == [100, 101]
    write(_hours(spark, 1, 2).limit(0), table, "overwrite")
    assert ids(table) == []
    assert len(actions(table, 2, "remove")) == 1


def test_replace_where_replaces_its_partitions_alone(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(_hours(spark, 3, 9), table, timestampColumn="ts")
    fresh = _hours(spark, 1, 2).withColumn("id", F.col("id") + 100)
    write(fresh, table, "overwrite", replaceWhere="_event_hour = '2026021000'")
    assert ids(table) == [1, 2, 4, 5, 7, 8, 100, 101]
    with pytest.raises(PythonException, match="not selected by"):
        write(_hours(spark, 3, 9), table, "overwrite", replaceWhere="_event_hour = '2026021000'")
    with pytest.raises(AnalysisException, match="needs mode='overwrite'"):
        write(fresh, table, replaceWhere="_event_hour = '2026021000'")
    assert on_disk(table) > logged(table)
    assert commits(table) == [0, 1]


def test_only_the_columns_that_are_named_get_statistics(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    df = _hours(spark, 1, 4).withColumn("s", F.struct(F.col("id").alias("a.b"), F.col("id").alias("c")))
    write(df, table, timestampColumn="ts", statsColumns="ts,s.`a.b`")
    (add,) = actions(table, 0, "add")
    stats = json.loads(add["stats"])
    assert stats["numRecords"] == 4
    assert stats["maxValues"].keys() == {"ts", "s"}
    assert stats["maxValues"]["s"] == {"a.b": 3}


@pytest.mark.parametrize("compression", quick(["zstd", "none", "snappy", "gzip"], 2))
def test_files_are_compressed_as_asked(compression: str, spark: SparkSession, tmp_path: Path) -> None:
    write(_hours(spark, 1, 4), tmp_path / "t", timestampColumn="ts", compression=compression)
    (file,) = logged(tmp_path / "t")
    codec = pq.read_metadata(tmp_path / "t" / file).row_group(0).column(0).compression
    assert codec == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


def test_an_empty_dataframe_makes_a_table_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    write(_hours(spark, 1, 4).limit(0), tmp_path / "t", timestampColumn="ts")
    assert deltalake.DeltaTable(tmp_path / "t").metadata().partition_columns == ["_event_hour"]
    assert read_by_delta_spark(spark, tmp_path / "t").num_rows == 0
    assert on_disk(tmp_path / "t") == set()


def test_what_spark_derives_to_be_never_null_may_be_null_later(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    df = _hours(spark, 1, 1)
    never = df.select("id", "ts", F.struct(F.lit(1).alias("a"), F.array(F.lit(1)).alias("b")).alias("s"))
    write(never, table, timestampColumn="ts")
    null = F.lit(None).cast("int")
    write(df.select("id", "ts", F.struct(null.alias("a"), F.array(null).alias("b")).alias("s")), table)
    assert {"a": None, "b": [None]} in read(table)["s"].to_pylist()


def test_the_function_and_the_format_write_the_same(spark: SparkSession, tmp_path: Path) -> None:
    df = _hours(spark, 2, 20)
    ingest(df, str(tmp_path / "f"), timestamp_column="ts", boundary="minute", stats_columns=["id"], compression="gzip")
    write(df, tmp_path / "w", timestampColumn="ts", boundary="minute", statsColumns="id", compression="gzip")

    def essence(table: Path) -> list[tuple[str, str]]:
        return sorted((str(add["partitionValues"]), add["stats"]) for add in actions(table, 0, "add"))

    assert essence(tmp_path / "f") == essence(tmp_path / "w")
    assert (
        actions(tmp_path / "f", 0, "metaData")[0]["configuration"]
        == actions(tmp_path / "w", 0, "metaData")[0]["configuration"]
    )


def test_a_batch_with_an_application_version_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    for _ in range(2):
        ingest(_hours(spark, 1, 3), str(table), timestamp_column="ts", app_id="loader", app_version=0)
    assert ids(table) == [0, 1, 2]
    assert on_disk(table) == logged(table)
    ingest(_hours(spark, 1, 3), str(table), app_id="loader", app_version=1)
    assert ids(table) == [0, 0, 1, 1, 2, 2]
    # A session with Delta-Spark in it would refuse it by itself.
    with pytest.raises(OptionError, match="without txnVersion"):
        LazyDeltaSource({"path": str(table), "txnAppId": "loader"}).writer(spark.range(1).schema, overwrite=False)


def test_any_session_knows_the_format(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    write(session.range(3), tmp_path / "t")
    assert ids(tmp_path / "t") == [0, 1, 2]


def test_tasks_in_other_folders_write_to_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = WriteOptions(rejected_table="aside")
    job = WriteJob.prepare("t", pa.schema([("id", pa.int64())]), options)
    assert job.uri == str(tmp_path / "t")
    assert job.options.rejected_uri(job.uri) == str(tmp_path / "aside")


def test_files_stay_when_spark_commits_the_same_messages_twice(tmp_path: Path) -> None:
    options = WriteOptions(timestamp_column="ts", app_id="a", app_version=0, target_file_size=1)
    schema = pa.schema([("id", pa.int64()), ("ts", _UTC)])
    job = WriteJob.prepare(str(tmp_path / "t"), schema, options)
    rows = pa.record_batch([pa.array([1]), pa.array([dt.datetime(2026, 2, 10, tzinfo=dt.UTC)], _UTC)], schema=schema)
    results = [job.write([rows])]
    assert results[0].adds
    assert not job.commit(results, txn=options.txn).already_committed
    assert job.commit(results, txn=options.txn).already_committed
    assert ids(tmp_path / "t") == [1]
    late = [job.write([rows])]
    assert job.commit(late, txn=options.txn).already_committed
    assert on_disk(tmp_path / "t") == logged(tmp_path / "t")
