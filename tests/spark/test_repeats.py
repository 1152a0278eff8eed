"""A micro-batch that Spark repeats is skipped; another one under its number is an error, and never a skip."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from lazydelta.errors import WriteError
from lazydelta.spark import ingest, ingest_files, ingest_files_stream, ingest_stream
from lazydelta.write.job import WriteJob
from lazydelta.write.write_options import WriteOptions
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
        (_run, r"with 7 rows, .*another one came under the same number, with 7 rows"),
        (_run_files, r"with 1 source files \(00000070-.*another one .* with 1 source files \(00000700-"),
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
    with pytest.raises(StreamingQueryException, match=r"with 0 rows, 2 rejected rows; .* with 0 rows, 3 rejected rows"):
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
    with pytest.raises(WriteError, match="another one came under the same number"):
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
    with pytest.raises(WriteError, match="had this batch when it was begun, and no longer has it"):
        again.commit([again.count([_rows(1)])], txn=options.txn)
