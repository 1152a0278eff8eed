"""A micro-batch that Spark repeats is skipped; another one under its number is an error, and never a skip."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from lazydelta.errors import WriteError
from lazydelta.spark import ingest, ingest_files, ingest_files_stream, ingest_stream, write
from lazydelta.spark.source import _batch_plan
from lazydelta.write.job import WriteJob
from lazydelta.write.options import WriteOptions
from tests.spark.streams import make_source
from tests.spark.tables import actions, commits, ids, logged, on_disk, read, read_by_delta_spark

pytestmark = [pytest.mark.xdist_group("spark")]

_UTC = pa.timestamp("us", "UTC")
NOW = {"availableNow": True}


def _run(spark: SparkSession, folder: Path, checkpoint: str = "checkpoint", **options: Any) -> None:
    files = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    ingest_stream(
        files.json(str(folder / "source")),
        str(folder / "t"),
        checkpoint_location=str(folder / checkpoint),
        trigger=NOW,
        **{"timestamp_column": "ts", **options},
    ).awaitTermination()


def _run_files(spark: SparkSession, folder: Path, checkpoint: str = "checkpoint") -> None:
    ingest_files_stream(
        spark,
        str(folder / "source"),
        str(folder / "t"),
        checkpoint_location=str(folder / checkpoint),
        trigger=NOW,
        timestamp_column="ts",
        max_files_per_trigger=1,
    ).awaitTermination()


@pytest.mark.parametrize("run", [_run, _run_files], ids=["rows", "files"])
def test_a_restored_checkpoint_location_goes_on_where_the_source_is_the_same(
    run: Any, spark: SparkSession, tmp_path: Path
) -> None:
    expected = list(make_source(tmp_path / "source", files=1, rows=7))
    run(spark, tmp_path)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    expected += make_source(tmp_path / "source", files=1, rows=7, first=70)
    run(spark, tmp_path)
    before = on_disk(tmp_path / "t")
    expected += make_source(tmp_path / "source", files=1, rows=7, first=700)
    run(spark, tmp_path, "backup")  # sends what the table has as number 1, and then what is new
    assert ids(tmp_path / "t") == expected
    assert commits(tmp_path / "t") == [0, 1, 2]
    assert on_disk(tmp_path / "t") == logged(tmp_path / "t")
    assert before < on_disk(tmp_path / "t")
    assert read_by_delta_spark(spark, tmp_path / "t").num_rows == 21


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (_run, r"with 7 rows, .*another batch has the same number, with 7 rows"),
        (_run_files, r"with 1 source files \(00000070-.*another batch .* with 1 source files \(00000700-"),
    ],
    ids=["rows", "files"],
)
def test_a_restored_checkpoint_location_skips_no_batch_of_another_kind(
    run: Any, named: str, spark: SparkSession, tmp_path: Path
) -> None:
    make_source(tmp_path / "source", files=1, rows=7)
    run(spark, tmp_path)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    make_source(tmp_path / "source", files=1, rows=7, first=70)
    run(spark, tmp_path)
    before = on_disk(tmp_path / "t")
    (tmp_path / "source" / "00000070-00000.json").unlink()
    # As many rows in the same hours: only the times tell them from those that the table has.
    make_source(tmp_path / "source", files=1, rows=7, first=700)
    with pytest.raises(
        StreamingQueryException, match=f"(?s)Micro-batch 1 of the application .* since version 1, {named}"
    ):
        run(spark, tmp_path, "backup")
    assert on_disk(tmp_path / "t") == before
    assert commits(tmp_path / "t") == [0, 1]


def _steady(folder: Path, *names: str) -> None:
    """Write files that look alike: one row a minute of each device, with other values."""
    folder.mkdir(exist_ok=True)
    for name in names:
        rows = [{"id": int(name), "device": each, "ts": f"2026-02-10T14:{each:02}:00Z"} for each in range(3)]
        (folder / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))


def _run_steady(
    spark: SparkSession, folder: Path, checkpoint: str, way: str, column: str = "0", **options: Any
) -> None:
    files = spark.readStream.schema("id long, device long, ts timestamp").options(maxFilesPerTrigger=1, **options)
    stream = files.json(str(folder / "source")).withColumn("more", F.expr(column))
    if way == "sink":
        ingest_stream(
            stream,
            str(folder / "t"),
            checkpoint_location=str(folder / checkpoint),
            trigger=NOW,
            timestamp_column="ts",
        ).awaitTermination()
        return

    def save(batch: DataFrame, number: int) -> None:
        write(batch, str(folder / "t"), mode="append", timestamp_column="ts", app_id="each", app_version=number)

    writer = stream.writeStream.option("checkpointLocation", str(folder / checkpoint)).trigger(**NOW)
    writer.foreachBatch(save).start().awaitTermination()


@pytest.mark.parametrize("way", ["sink", "foreachBatch"])
def test_batches_that_look_alike_are_told_apart_by_their_values(way: str, spark: SparkSession, tmp_path: Path) -> None:
    """The newest file comes first; so the restored location plans another file for the number that the table has."""
    _steady(tmp_path / "source", "1")
    _run_steady(spark, tmp_path, "checkpoint", way, latestFirst=True)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "same")
    _steady(tmp_path / "source", "2")
    _run_steady(spark, tmp_path, "checkpoint", way, latestFirst=True)
    _run_steady(spark, tmp_path, "same", way, latestFirst=True)  # the same file under the same number is skipped
    assert ids(tmp_path / "t") == [1, 1, 1, 2, 2, 2]
    _steady(tmp_path / "source", "3")
    os.utime(tmp_path / "source" / "3.json", (2e9, 2e9))
    with pytest.raises(
        StreamingQueryException,
        match=r"(?s)Micro-batch 1 of the application .* with 3 rows, .*; another batch .*with 3 rows, .*"
        r"use the newest copy of the location",
    ):
        _run_steady(spark, tmp_path, "backup", way, latestFirst=True)
    assert ids(tmp_path / "t") == [1, 1, 1, 2, 2, 2]
    assert on_disk(tmp_path / "t") == logged(tmp_path / "t")
    _run_steady(spark, tmp_path, "checkpoint", way, latestFirst=True)
    assert ids(tmp_path / "t") == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_a_repeat_by_the_same_plan_may_compute_other_values(spark: SparkSession, tmp_path: Path) -> None:
    _steady(tmp_path / "source", "1")
    _run_steady(spark, tmp_path, "checkpoint", "sink", "uuid()")
    before = read(tmp_path / "t")
    # As if the driver had been killed after the table's commit and before Spark's own.
    for each in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        each.unlink()
    _run_steady(spark, tmp_path, "checkpoint", "sink", "uuid()")
    assert read(tmp_path / "t").to_pylist() == before.to_pylist()
    (info,) = actions(tmp_path / "t", 0, "commitInfo")
    assert info["lazydeltaBatch"].keys() >= {"digest", "plan"}
    # Without a plan that can be read, values decide.
    for name in ("commits", "offsets"):
        for each in (tmp_path / "checkpoint" / name).glob("*0*"):
            each.unlink()
    with pytest.raises(StreamingQueryException, match="computes other values each time"):
        _run_steady(spark, tmp_path, "checkpoint", "sink", "uuid()")
    assert read(tmp_path / "t").num_rows == 3


def test_rejected_rows_are_part_of_what_a_batch_was(spark: SparkSession, tmp_path: Path) -> None:
    make_source(tmp_path / "source", files=1, rows=7)
    _run(spark, tmp_path, null_timestamps="reject")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    source = tmp_path / "source" / "nulls.json"
    source.write_text('{"id": 100}\n{"id": 101}')
    _run(spark, tmp_path, null_timestamps="reject")
    (info,) = actions(tmp_path / "t", 1, "commitInfo")
    assert (info["lazydeltaBatch"]["rows"], info["lazydeltaBatch"]["rejected"]) == (0, 2)
    source.unlink()
    (tmp_path / "source" / "more.json").write_text('{"id": 100}\n{"id": 101}\n{"id": 102}')
    with pytest.raises(StreamingQueryException, match=r"with 0 rows, 2 rejected rows, .* with 0 rows, 3 rejected rows"):
        _run(spark, tmp_path, "backup", null_timestamps="reject")
    assert read(tmp_path / "t_rejected").num_rows == 2


def test_a_batch_under_a_number_that_another_has_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    rows = spark.range(3).select("id", F.timestamp_seconds(F.lit(1_770_000_000) + F.col("id")).alias("ts"))
    once: dict[str, Any] = {"timestamp_column": "ts", "app_id": "loader", "app_version": 0}
    for _ in range(2):
        ingest(rows, str(table), **once)
    before = on_disk(table)
    with pytest.raises(WriteError, match=r"Batch 0 of the application 'loader' .* with 3 rows, .* with 2 rows"):
        ingest(rows.limit(2), str(table), **once)
    assert on_disk(table) == before
    assert ids(table) == [0, 1, 2]


def test_more_files_under_the_same_number_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    make_source(tmp_path / "source", files=2, rows=5)
    once: dict[str, Any] = {"timestamp_column": "ts", "app_id": "nightly", "app_version": 0}
    ingest_files(spark, str(tmp_path / "source"), str(tmp_path / "t"), **once)
    (tmp_path / "source" / "00000000-00001.json").unlink()  # tidied up, which is fine
    assert ingest_files(spark, str(tmp_path / "source"), str(tmp_path / "t"), **once).already_committed
    make_source(tmp_path / "source", files=1, rows=5, first=100)
    with pytest.raises(WriteError, match="another batch has the same number"):
        ingest_files(spark, str(tmp_path / "source"), str(tmp_path / "t"), **once)
    assert ids(tmp_path / "t") == list(range(10))


# --- noticed only at the commit


def _rows(*seconds: int | None) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "id": pa.array(range(len(seconds)), pa.int64()),
            "ts": pa.array(
                [None if each is None else dt.datetime.fromtimestamp(each, dt.UTC) for each in seconds], _UTC
            ),
        }
    )


@pytest.mark.parametrize("stage", ["written before", "counted"])
def test_another_batch_that_is_noticed_at_the_commit_adds_nothing_anywhere(stage: str, tmp_path: Path) -> None:
    options = WriteOptions(
        timestamp_column="ts", null_timestamps="reject", app_id="a", app_version=0, target_file_size=1
    )

    def prepared() -> WriteJob:
        return WriteJob.prepare(str(tmp_path / "t"), _rows().schema, options)

    job = prepared()
    ours, same, other = (job.write([_rows(*each)]) for each in ((1, 2), (2, 1), (1, 2, None)))
    assert not job.commit([ours], txn=options.txn, is_stream=True).already_committed
    if stage == "counted":
        job.discard([same, other])
        job = prepared()
        same, other = job.count([_rows(2, 1)]), job.count([_rows(1, 2, None)])
    assert job.commit([same], txn=options.txn, is_stream=True).already_committed
    with pytest.raises(WriteError, match=r"with 2 rows, .* with 2 rows, 1 rejected rows"):
        job.commit([other], txn=options.txn, is_stream=True)
    assert on_disk(tmp_path / "t") == logged(tmp_path / "t")
    assert not (tmp_path / "t_rejected" / "_delta_log").exists()
    assert on_disk(tmp_path / "t_rejected") == set()


def test_rejected_rows_that_are_there_already_leave_no_files_behind(tmp_path: Path) -> None:
    options = WriteOptions(timestamp_column="ts", null_timestamps="reject", app_id="a", app_version=0)
    job = WriteJob.prepare(str(tmp_path / "t"), _rows().schema, options)
    job.commit([job.write([_rows(1, None)])], txn=options.txn, is_stream=True)
    # As if it had been killed between the two commits.
    shutil.rmtree(tmp_path / "t")
    again = WriteJob.prepare(str(tmp_path / "t"), _rows().schema, options)
    assert again.commit([again.write([_rows(1, None)])], txn=options.txn, is_stream=True).version == 0
    assert on_disk(tmp_path / "t_rejected") == logged(tmp_path / "t_rejected")
    assert read(tmp_path / "t_rejected").num_rows == 1


def test_a_table_that_lost_the_batch_meanwhile_is_not_taken_to_have_it(tmp_path: Path) -> None:
    options = WriteOptions(timestamp_column="ts", app_id="a", app_version=0)
    job = WriteJob.prepare(str(tmp_path / "t"), _rows().schema, options)
    job.commit([job.write([_rows(1)])], txn=options.txn)
    again = WriteJob.prepare(str(tmp_path / "t"), _rows().schema, options)
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(WriteError, match="had this batch when the write began, but no longer has it"):
        again.commit([again.count([_rows(1)])], txn=options.txn)


def test_the_plan_of_a_batch_is_read_where_the_credentials_of_the_table_may_go(tmp_path: Path) -> None:
    location = tmp_path / "check point"
    (location / "offsets").mkdir(parents=True)
    (location / "offsets" / "3").write_text('v1\n{"batchTimestampMs":1}\n{"logOffset":2}')
    job = WriteJob.prepare(str(tmp_path / "t"), _rows().schema, WriteOptions(storage_options={"account_key": "S"}))
    found = _batch_plan(str(location), 3, job)
    assert found is not None
    assert found == _batch_plan(location.as_uri().replace("%20", " "), 3, job)
    (location / "offsets" / "3").write_text('v1\n{"batchTimestampMs":2}\n{"logOffset":2}')
    assert _batch_plan(str(location), 3, job) not in {None, found}
    elsewhere = ("abfss://c@other.dfs.core.windows.net/c", "s3a://bucket/c", "hdfs://node/c", "dbfs:/c")
    for place in (None, "", str(tmp_path / "none"), *elsewhere):
        assert _batch_plan(place, 3, job) is None
    assert _batch_plan(str(location), 4, job) is None
    remote = replace(job, uri="abfss://c@corp.dfs.core.windows.net/t")
    assert _batch_plan(str(location), 3, remote) is not None
    assert all(_batch_plan(place, 3, remote) is None for place in elsewhere)
