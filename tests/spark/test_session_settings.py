"""Settings of the session that change what a write means: heeded as Delta-Spark heeds them, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from lazydelta.errors import OptionError, SchemaMismatchError, UnsupportedFeatureError, WriteError
from lazydelta.ingest.arrow import write_arrow
from lazydelta.spark import ingest_files, ingest_stream, write
from lazydelta.spark.maintenance import in_session
from lazydelta.write.job import WriteJob
from lazydelta.write.options import WriteOptions
from tests.spark.tables import actions, commits, ids

pytestmark = [pytest.mark.xdist_group("spark")]

MODE = "spark.sql.sources.partitionOverwriteMode"
DEFAULTS = "spark.databricks.delta.properties.defaults."
APPLICATION, NUMBER = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
Save = Callable[..., None]


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, known in before.items():
            spark.conf.unset(key) if known is None else spark.conf.set(key, known)


def rows(spark: SparkSession, first: int, last: int, parts: int = 3) -> DataFrame:
    return spark.range(first, last, numPartitions=1).select("id", (F.col("id") % parts).alias("part"))


def by_function(df: DataFrame, table: Path, **options: Any) -> None:
    write(df, str(table), mode="overwrite", maintain=False, **options)


def by_format(df: DataFrame, table: Path, **options: Any) -> None:
    df.write.format("lazydelta").mode("overwrite").options(maintain=False, **options).save(str(table))


def by_delta_spark(df: DataFrame, table: Path, **options: Any) -> None:
    df.write.format("delta").mode("overwrite").options(**options).save(str(table))


def by_files(df: DataFrame, table: Path, **options: Any) -> None:
    source = table.parent / f"{table.name}.source"
    source.mkdir()
    (source / "rows.json").write_text("\n".join(json.dumps(each.asDict()) for each in df.collect()))
    ingest_files(df.sparkSession, str(source), str(table), mode="overwrite", maintain=False, **options)


# Delta-Spark is beside us to show that what is expected here is what it does.
_THEIRS = pytest.param(by_delta_spark, marks=pytest.mark.slow)
ways = pytest.mark.parametrize("save", [by_function, by_format, by_files, _THEIRS])
plainly = pytest.mark.parametrize("save", [by_format, _THEIRS])


def made(table: Path, partition_by: Sequence[str] = ("part",)) -> Path:
    """Make a table of the ids 0 to 8, whose part is what is left of a division by three."""
    numbers = {"id": list(range(9)), "part": [each % 3 for each in range(9)]}
    write_arrow(str(table), pa.table(numbers), partition_by=partition_by, maintain=False)
    return table


@ways
def test_a_session_that_overwrites_partitions_keeps_the_others(save: Save, spark: SparkSession, tmp_path: Path) -> None:
    table, plain = made(tmp_path / "t"), made(tmp_path / "plain", ())
    with settings(spark, {MODE: "DYNAMIC"}):
        save(rows(spark, 100, 102, parts=1), table)
        # Without partitions there is nothing to keep.
        save(rows(spark, 100, 102, parts=1), plain)
    assert ids(table) == [1, 2, 4, 5, 7, 8, 100, 101]
    assert ids(plain) == [100, 101]


@plainly
def test_what_a_write_says_goes_before_the_session(save: Save, spark: SparkSession, tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    with settings(spark, {MODE: "dynamic"}):
        save(rows(spark, 12, 15, parts=1), table, replaceWhere="part = 0")
        assert ids(table) == [1, 2, 4, 5, 7, 8, 12, 13, 14]
        save(rows(spark, 0, 0), table)  # no row, no partition
        assert ids(table) == [1, 2, 4, 5, 7, 8, 12, 13, 14]
        save(rows(spark, 20, 21), table, partitionOverwriteMode="static")
        assert ids(table) == [20]


def test_dynamic_overwrites_of_a_session_do_not_replace_the_columns(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("part", pa.int64())])
    job = WriteJob.prepare(str(made(tmp_path / "t")), schema, WriteOptions(overwrite_schema=True), "overwrite")
    with pytest.raises(OptionError, match="the session uses dynamic partition overwrites"):
        in_session(job, {MODE: "dynamic"})
    assert in_session(job, {MODE: "static"}) == in_session(job, {MODE: "dynamic"}, is_stream=True) == job


@ways
def test_new_tables_get_the_properties_and_commits_the_text_that_the_session_says(
    save: Save, spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    with settings(spark, SAID):
        save(rows(spark, 0, 2), table)
    # A table that exists keeps what it has.
    with settings(spark, {f"{DEFAULTS}checkpointInterval": "3"}):
        rows(spark, 2, 3).write.format("lazydelta").mode("append").save(str(table))
    check_created(table)
    assert ids(table) == [0, 1, 2]


def test_a_stream_creates_its_table_as_the_session_says(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.json").write_text('{"id": 1, "part": 2}')
    with settings(spark, SAID):
        ingest_stream(
            spark.readStream.schema("id long, part long").json(str(tmp_path / "source")),
            str(tmp_path / "t"),
            checkpoint_location=str(tmp_path / "checkpoint"),
            trigger={"availableNow": True},
        ).awaitTermination()
    check_created(tmp_path / "t")


SAID = {
    f"{DEFAULTS}deletedFileRetentionDuration": "interval 30 days",
    f"{DEFAULTS}dataSkippingNumIndexedCols": "1",
    f"{DEFAULTS}minReaderVersion": "2",
    "spark.databricks.delta.commitInfo.userMetadata": "nightly",
}


def check_created(table: Path) -> None:
    found = deltalake.DeltaTable(table).metadata().configuration
    assert found == {
        "delta.deletedFileRetentionDuration": "interval 30 days",
        "delta.dataSkippingNumIndexedCols": "1",
    }
    assert actions(table, 0, "commitInfo")[0]["userMetadata"] == "nightly"
    for each in actions(table, 0, "add"):
        assert json.loads(each["stats"])["maxValues"].keys() == {"id"}


def test_what_a_write_says_of_a_new_table_goes_before_the_session_and_the_rest_is_refused_by_name(
    tmp_path: Path,
) -> None:
    options = WriteOptions(properties={"delta.appendOnly": "false"}, user_metadata="mine")
    job = WriteJob.prepare(str(tmp_path / "t"), pa.schema([("id", pa.int64())]), options)
    said = in_session(job, SAID | {f"{DEFAULTS}appendOnly": "true"})
    assert (said.metadata.configuration or {})["delta.appendOnly"] == "false"
    assert said.plan.note.info == {"userMetadata": "mine"}
    assert in_session(job, {f"{DEFAULTS}appendOnly": "true", f"{DEFAULTS}minWriterVersion": "7"}) == job
    with pytest.raises(UnsupportedFeatureError, match=r"variantType \(the session sets .*defaults\.… for new tables"):
        in_session(job, {f"{DEFAULTS}feature.variantType": "supported"})


@plainly
def test_a_session_that_numbers_its_writes_has_each_once(save: Save, spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    with settings(spark, {APPLICATION: "job", NUMBER: "4"}):
        for _ in range(2):
            save(rows(spark, 0, 2), table)
        assert commits(table) == [0]
        spark.conf.set(NUMBER, "5")
        save(rows(spark, 2, 3), table)
    assert ids(table) == [2]


def test_a_session_numbers_its_writes_whole_or_not_at_all(tmp_path: Path) -> None:
    job = WriteJob.prepare(str(tmp_path / "t"), pa.schema([("id", pa.int64())]), WriteOptions())
    for half in ({NUMBER: "6"}, {APPLICATION: "job"}, {APPLICATION: "job", NUMBER: "six"}):
        with pytest.raises(OptionError, match="The session numbers its writes by "):
            in_session(job, half)
    own = WriteJob.prepare(job.uri, job.source, WriteOptions(app_id="own", app_version=1))
    assert in_session(own, {APPLICATION: "job", NUMBER: "6"}) == own
    assert in_session(job, {APPLICATION: "job", NUMBER: "6"}, is_stream=True) == job


def test_a_predicate_that_depends_on_the_time_zone_of_the_session_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    timestamps = spark.range(1).select("id", F.timestamp_seconds(F.lit(1_770_000_000)).alias("at"))
    write(timestamps, str(table), maintain=False)
    with pytest.raises(OptionError, match="compares timestamps in the session time zone, and the session's is America"):
        by_function(timestamps, table, overwrite_where="at >= '2026-02-01 21:40:00'")
    by_function(timestamps, table, overwrite_where="at >= '2026-02-01 21:40:00-05:00'")
    assert ids(table) == [0]


@pytest.mark.slow
def test_delta_spark_takes_a_timestamp_without_a_zone_for_one_of_the_sessions(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    timestamps = spark.range(2).select("id", F.timestamp_seconds(F.lit(1_770_000_000) + F.col("id") * 3600).alias("at"))
    timestamps.write.format("delta").save(str(table))
    # 1 770 000 000 is 02:40 in UTC of February 2, and 21:40 of February 1 in New York.
    by_delta_spark(timestamps.where("id > 5"), table, replaceWhere="at >= '2026-02-01 22:00:00'")
    assert ids(table) == [0]


@pytest.mark.parametrize(
    ("where", "is_refused"),
    [
        ("at > '2026-02-02 01:40:00+01:00'", False),
        ("at between '2026-02-02 01:40:00.5 -0500' and '2026-02-03T00:00:00z'", False),
        ("at in ('2026-02-02 01:40:00 UTC', '2026-02-02 01:40:00 Europe/Berlin')", False),
        ("at > timestamp '2026-02-02 01:40:00+01:00' or at is null", False),
        ("at is null", False),
        ("part = '2026-02-02 01:40:00'", False),
        ("at > '2026-02-02 01:40:00+01:00' or at < '2026-02-01'", True),
        ("year(at) = 2026", True),
        ("date_trunc('day', at) > '2026-02-02 00:00:00Z'", True),
        ("at > now() - interval 1 day", True),
    ],
)
def test_which_timestamps_have_a_zone(where: str, is_refused: bool, tmp_path: Path) -> None:  # noqa: FBT001
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("part", pa.string())])
    job = WriteJob.prepare(str(tmp_path / "t"), schema, WriteOptions(overwrite_where=where), "overwrite")
    if is_refused:
        with pytest.raises(OptionError, match="session's is Asia/Tokyo"):
            in_session(job, {"spark.sql.session.timeZone": "Asia/Tokyo"})
    else:
        assert in_session(job, {"spark.sql.session.timeZone": "Asia/Tokyo"}) == job
    assert in_session(job, {"spark.sql.session.timeZone": "Etc/UTC"}) == job


def test_settings_that_a_table_does_not_heed(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is cast with loss, no column comes in unasked and no names differ by case, whatever the session says."""
    table = tmp_path / "t"
    write(rows(spark, 0, 2), str(table), maintain=False)
    said = {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.storeAssignmentPolicy": "LEGACY",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
    }
    with settings(spark, said):
        with pytest.raises(SchemaMismatchError, match="'part'"):
            write(rows(spark, 0, 2).withColumn("part", F.lit("x")), str(table), mode="append")
        with pytest.raises(WriteError, match="part"):
            write(rows(spark, 0, 2).withColumn("part", F.lit(2.0**70)), str(table), mode="append")
        with pytest.raises(SchemaMismatchError, match=r"has the column 'more' .*set mergeSchema to true"):
            write(rows(spark, 0, 2).withColumn("more", F.lit(1)), str(table), mode="append")
        with pytest.raises(SchemaMismatchError, match="'ID'"):
            write(rows(spark, 0, 2).withColumn("ID", F.lit(1)), str(tmp_path / "twice"))
        renamed = rows(spark, 2, 3).withColumnsRenamed({"id": "ID", "part": "Part"})
        write(renamed.withColumn("text", F.lit("large")), str(table), mode="append", merge_schema=True)
    # Delta-Spark's extension adds an option to the write then, which Spark refuses for every other source.
    merging = {"spark.databricks.delta.schema.autoMerge.enabled": "true"}
    with settings(spark, merging), pytest.raises(WriteError, match=r"autoMerge\.enabled is true: unset it"):
        write(rows(spark, 0, 2).withColumn("more", F.lit(1)), str(table), mode="append")
    assert ids(table) == [0, 1, 2]
    assert [each.name for each in deltalake.DeltaTable(table).schema().fields] == ["id", "part", "text"]
