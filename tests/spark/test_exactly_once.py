"""Every row of a stream is in the table once, whatever is killed and whatever is repeated."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from lazydelta.maintenance.background import wait_for_maintenance
from lazydelta.maintenance.policy import machine_file
from lazydelta.sidecar.handle import TableHandle
from lazydelta.spark import ingest_stream
from lazydelta.spark.source import LazyDeltaSource, _Message
from tests.spark.stops import CHANGES_OF_A_COMMIT, CHANGES_OF_A_FILE
from tests.spark.streams import WORKER, Stream, descendants, kill_executor, make_source
from tests.spark.tables import actions, commits, ids, logged, named, on_disk, write

pytestmark = [pytest.mark.xdist_group("spark")]

_SCHEMA = "id long, ts timestamp"


def _run(spark: SparkSession, folder: Path, checkpoint: str = "checkpoint", **options: object) -> StreamingQuery:
    """Stream the files of ``folder/source`` that are new to the checkpoint location."""
    files = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "source"))
    query = ingest_stream(
        files,
        str(folder / "t"),
        checkpoint_location=str(folder / checkpoint),
        trigger={"availableNow": True},
        **{"timestamp_column": "ts", **options},  # type: ignore[arg-type]
    )
    query.awaitTermination()
    return query


def _forget_last_batch(checkpoint: Path) -> int:
    """Let Spark forget that its last micro-batch was committed, as if it had been killed before it took note."""
    last = max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return last


def _check(table: Path, expected: range) -> None:
    """Assert that the table has each row once, and that nothing of it is missing."""
    assert ids(table) == list(expected)
    assert commits(table) == list(range(len(commits(table))))
    assert logged(table) <= on_disk(table)
    # What no version names is for VACUUM to clean, and only that.
    deltalake.DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert ids(table) == list(expected)


def test_a_checkpoint_location_repeats_nothing_and_a_fresh_one_skips_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    expected = make_source(tmp_path / "source", files=3, rows=5)
    _run(spark, tmp_path)
    assert commits(table) == [0, 1, 2]
    _run(spark, tmp_path)
    assert commits(table) == [0, 1, 2]
    assert ids(table) == list(expected)
    _run(spark, tmp_path, "fresh")
    assert ids(table) == sorted([*expected, *expected])
    applications = {actions(table, version, "txn")[0]["appId"] for version in commits(table)}
    queries = [json.loads((tmp_path / name / "metadata").read_text())["id"] for name in ("checkpoint", "fresh")]
    assert applications == set(queries)
    assert [actions(table, version, "txn")[0]["version"] for version in range(6)] == [0, 1, 2, 0, 1, 2]
    assert {actions(table, version, "commitInfo")[0]["operation"] for version in commits(table)} == {"STREAMING UPDATE"}


@pytest.mark.parametrize("files", [1, 2], ids=["version 0", "version 1"])
def test_a_repeated_batch_is_recognised_before_it_writes(files: int, spark: SparkSession, tmp_path: Path) -> None:
    expected = make_source(tmp_path / "source", files=files, rows=20)
    _run(spark, tmp_path, target_file_size=1)
    before = on_disk(tmp_path / "t")
    last = _forget_last_batch(tmp_path / "checkpoint")
    times = {each: (tmp_path / "t" / each).parent.stat().st_mtime_ns for each in before}
    query = _run(spark, tmp_path, target_file_size=1)
    repeated = [each for each in query.recentProgress if each.batchId == last and each.numInputRows]
    assert repeated
    assert on_disk(tmp_path / "t") == before
    assert {each: (tmp_path / "t" / each).parent.stat().st_mtime_ns for each in before} == times
    assert ids(tmp_path / "t") == list(expected)
    assert commits(tmp_path / "t") == list(range(files))


def test_rejected_rows_of_a_repeated_batch_are_in_the_side_table_once(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    make_source(source, files=1, rows=3)
    (source / "nulls.json").write_text('{"id": 100}\n{"id": 101}')
    _run(spark, tmp_path, null_timestamps="reject")
    # As if the driver had been killed between the two commits of the batch with the nulls.
    with_nulls = commits(tmp_path / "t_rejected")
    assert with_nulls == [0]
    _forget_last_batch(tmp_path / "checkpoint")
    last = max(commits(tmp_path / "t"))
    for file in (tmp_path / "t" / "_delta_log").glob(f"{last:020}.*"):
        file.unlink()
    _run(spark, tmp_path, null_timestamps="reject")
    assert ids(tmp_path / "t") == [0, 1, 2]
    rejected = deltalake.DeltaTable(tmp_path / "t_rejected").to_pyarrow_table()["record"].to_pylist()
    assert sorted(json.loads(each)["id"] for each in rejected) == [100, 101]


def test_a_named_stream_skips_nothing_with_a_fresh_location_either(spark: SparkSession, tmp_path: Path) -> None:
    expected = make_source(tmp_path / "source", files=1, rows=5)
    for location in ("checkpoint", "checkpoint", "fresh"):
        _run(spark, tmp_path, location, app_id="telemetry")
    assert ids(tmp_path / "t") == sorted([*expected, *expected])
    for version, location in enumerate(("checkpoint", "fresh")):
        query = json.loads((tmp_path / location / "metadata").read_text())["id"]
        (txn,) = actions(tmp_path / "t", version, "txn")
        assert (txn["appId"], txn["version"]) == (f"telemetry:{query}", 0)
    with pytest.raises(StreamingQueryException, match="OptionError: txnVersion is not valid for a stream"):
        _run(spark, tmp_path, "other", app_id="x", app_version=1)


def test_an_old_copy_of_the_checkpoint_location_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    make_source(tmp_path / "source", files=1, rows=5)
    _run(spark, tmp_path)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    make_source(tmp_path / "source", files=2, rows=5, first=100)
    _run(spark, tmp_path)
    before = on_disk(tmp_path / "t")
    # The copy goes on with batch 1, which need not be the batch 1 that the table has.
    with pytest.raises(StreamingQueryException, match=r"has micro-batch 2 of the application .*, and this is number 1"):
        _run(spark, tmp_path, "old")
    assert on_disk(tmp_path / "t") == before
    assert commits(tmp_path / "t") == [0, 1, 2]


def test_a_complete_result_replaces_the_one_before(spark: SparkSession, tmp_path: Path) -> None:
    make_source(tmp_path / "source", files=2, rows=5)
    files = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "source"))
    query = (
        files.groupBy((F.col("id") % 2).alias("id"))
        .count()
        .writeStream.format("lazydelta")
        .outputMode("complete")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "t"))
    )
    query.awaitTermination()
    rows = deltalake.DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist()
    assert sorted((each["id"], each["count"]) for each in rows) == [(0, 5), (1, 5)]


# --- what fails


def _one_fails(go_on: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step in which the rows from 50,000 on fail, when they are told to."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows and batch.column(0)[0].as_py() >= 50_000:
                deadline = time.monotonic() + 300
                while not go_on.exists() and time.monotonic() < deadline:
                    time.sleep(0.05)
                message = "this row is bad"
                raise ValueError(message)
            yield batch

    return step


def _tell_when_a_task_is_done(spark: SparkSession, go_on: Path, over: threading.Event) -> None:
    """Make a file when Spark has the result of one of the tasks."""
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(0.05):
        stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
        if any(each is not None and each.numTasks == 2 and each.numCompletedTasks == 1 for each in stages):
            go_on.touch()
            return


def _two_tasks(spark: SparkSession, go_on: Path) -> DataFrame:
    df = spark.range(0, 100_000, 1, 2).select(
        "id", F.timestamp_seconds(F.lit(1_770_000_000)).alias("ts"), F.sha2(F.col("id").cast("string"), 512).alias("x")
    )
    return df.mapInArrow(_one_fails(go_on), df.schema)


def test_a_task_that_fails_leaves_no_files_behind(spark: SparkSession, tmp_path: Path) -> None:
    table, go_on, over = tmp_path / "t", tmp_path / "go_on", threading.Event()
    write(spark.range(1).select("id", F.lit(None).cast("timestamp").alias("ts"), F.lit("").alias("x")), table)
    before = on_disk(table)
    watcher = threading.Thread(target=_tell_when_a_task_is_done, args=(spark, go_on, over))
    watcher.start()
    try:
        with pytest.raises(PySparkException, match="this row is bad"):
            write(_two_tasks(spark, go_on), table)
    finally:
        over.set()
        watcher.join()
    assert go_on.exists(), "one of the tasks had come to its end"
    assert on_disk(table) == before
    assert commits(table) == [0]


@pytest.mark.parametrize("streams", [False, True], ids=["batch", "stream"])
def test_only_what_nobody_tried_to_commit_is_deleted(streams: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a case
    side = tmp_path / "t_rejected"
    options = {"path": str(tmp_path / "t"), "timestampColumn": "ts", "nullTimestamps": "reject", "targetFileSize": "1"}
    source = LazyDeltaSource(options)
    schema = StructType([StructField("id", LongType()), StructField("ts", TimestampType())])
    rows = pa.record_batch({"id": [1, 2], "ts": pa.array([0, None], pa.timestamp("us", "UTC"))})
    job = source.stream_job(schema, overwrite=False)
    message = _Message(job.write([rows]), job)
    assert on_disk(tmp_path / "t")
    assert on_disk(side)

    def abort(messages: list[WriterCommitMessage | None]) -> None:
        if streams:
            source.streamWriter(schema, overwrite=False).abort(messages, 0)
        else:
            source.writer(schema, overwrite=False).abort(messages)

    # All tasks have told what they did, so a commit was tried and may be there.
    abort([message])
    assert on_disk(tmp_path / "t")
    assert on_disk(side)
    abort([None, message])
    assert not on_disk(tmp_path / "t")
    assert not on_disk(side)


def test_files_stay_when_the_committer_is_killed_after_its_commit(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    rows = 20_000
    df = spark.range(0, rows, 1, 2).select(
        "id", F.timestamp_seconds(F.lit(1_770_000_000)).alias("ts"), F.sha2(F.col("id").cast("string"), 512).alias("x")
    )
    options = {"timestampColumn": "ts", "targetFileSize": "256KB", "delta.checkpointInterval": "1"}
    write(df, table, **options)
    with _maintenance_that_waits(table):
        killer = threading.Thread(target=_kill_committer, args=(table, 1))
        killer.start()
        try:
            with pytest.raises((PySparkException, Py4JJavaError)):  # Spark was told that it failed, and calls abort
                write(df, table, **options)
        finally:
            killer.join()
    assert commits(table) == [0, 1]
    assert logged(table) <= on_disk(table)
    assert ids(table) == sorted([*range(rows)] * 2)


@contextmanager
def _maintenance_that_waits(table: Path) -> Iterator[None]:
    """Let the maintenance that follows a commit wait for ever: a pipe without a reader lies where its lock should."""
    lock = machine_file(TableHandle.open(table), "lock")
    lock.unlink(missing_ok=True)
    os.mkfifo(lock)
    try:
        yield
    finally:
        lock.unlink()


def _kill_committer(table: Path, version: int) -> None:
    """Kill the process that commits when its commit is there; it cannot come to its end by itself."""
    commit = table / "_delta_log" / f"{version:020}.json"
    deadline = time.monotonic() + 300
    while not commit.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    committers = descendants(os.getpid(), lambda command: "pyspark.sql.worker.commit_data_source_write" in command)
    for process in committers:
        if not descendants(process):  # the others are those that Spark forks them from
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


# --- what is killed


def _stream(folder: Path, files: int, rows: int, **settings: object) -> tuple[Stream, range]:
    expected = make_source(folder / "source", files, rows)
    options = {"properties": {"delta.checkpointInterval": "4"}}
    return Stream(folder, folder / "source", folder / "t", options=options, **settings), expected  # type: ignore[arg-type]


def _kill_drivers(stream: Stream, kills: int, files: int) -> int:
    """Kill one driver after the other, each at a counted change of a file; return how many."""
    dice = random.Random(kills)
    killed = 0
    for each in range(kills):
        # Some point of the batches that are left, each killed driver going a bit further.
        batches = max(1, (files - stream.version() - 1) // (kills - each + 1))
        at = 1 + dice.randrange(batches * CHANGES_OF_A_COMMIT)
        with stream.stopping(at) as (driver, stops):
            stops.wait(at, lambda driver=driver: driver.poll() is None)  # type: ignore[misc]
            killed += driver.poll() is None
    return killed


@pytest.mark.timeout(600)
def test_rows_are_there_once_although_the_driver_was_killed(tmp_path: Path) -> None:
    stream, expected = _stream(tmp_path, files=6, rows=50)
    assert _kill_drivers(stream, kills=1, files=6) == 1
    stream.finish()
    # It was killed in one of the first batches: what it left went with the maintenance of the fourth version. What was
    # being written has the name of a temporary file, which goes by its age.
    whole = {each for each in on_disk(stream.table) if each.endswith(".parquet") and "/.lazydelta-" not in each}
    assert whole <= named(stream.table)
    _check(stream.table, expected)


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_what_a_driver_left_that_was_killed_before_its_commit_goes_with_the_next_maintenance(tmp_path: Path) -> None:
    stream, expected = _stream(tmp_path, files=6, rows=50)
    # Its first file is there, and the second is begun: nothing is committed yet.
    with stream.stopping(CHANGES_OF_A_FILE + 1) as (driver, stops):
        stops.wait(CHANGES_OF_A_FILE + 1, lambda: driver.poll() is None)
    left = {each for each in on_disk(stream.table) if each.endswith(".parquet")}
    assert stream.version() == -1
    assert left
    stream.finish()
    assert left.isdisjoint(on_disk(stream.table))
    assert {each for each in on_disk(stream.table) if each.endswith(".parquet")} <= named(stream.table)
    _check(stream.table, expected)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_rows_are_there_once_although_the_driver_was_killed_at_twenty_points(tmp_path: Path) -> None:
    stream, expected = _stream(tmp_path, files=120, rows=500)
    assert _kill_drivers(stream, kills=20, files=120) == 20
    stream.finish(900)
    _check(stream.table, expected)
    version = stream.version()
    stream.finish()
    assert stream.version() == version
    stream.checkpoint = "fresh"
    stream.finish(900)
    assert ids(stream.table) == sorted([*expected, *expected])


def _kill_executors(stream: Stream, kills: int, files: int) -> int:
    """Kill Python workers, or the executors that they belong to, at counted changes of files; return how many."""
    dice = random.Random(kills)
    stream.options["target_file_size"] = 1  # or few rows would travel with the result, and no task would write a file
    places = sorted(dice.sample(range(1, CHANGES_OF_A_FILE * (files - 1)), kills))
    killed = executors = 0
    with stream.stopping(*places, command=WORKER) as (driver, stops):
        for at in places:
            worker = stops.wait(at, lambda: driver.poll() is None)
            if killed % 2 == 0:
                executors += kill_executor(driver.pid, worker)
            else:
                with suppress(ProcessLookupError):  # it went with its executor
                    os.kill(worker, signal.SIGKILL)
            killed += 1
        assert driver.wait(900) == 0, stream.log()
    assert wait_for_maintenance(str(stream.table), 60)
    assert executors >= (kills + 3) // 4  # half of the stops, of which some may be those of workers without one
    return killed


_CLUSTER = {
    "master": "local-cluster[2,1,1024]",
    "conf": {"spark.task.maxFailures": "100", "spark.executor.memory": "512m", "spark.driver.memory": "512m"},
    "starts": 30,
}


@pytest.mark.slow  # the short one is with the other work of a cluster
@pytest.mark.timeout(600)
def test_rows_are_there_once_although_an_executor_was_killed(tmp_path: Path) -> None:
    stream, expected = _stream(tmp_path, files=4, rows=50, **_CLUSTER)
    assert _kill_executors(stream, kills=1, files=4) == 1
    _check(stream.table, expected)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_rows_are_there_once_although_executors_were_killed_at_twenty_points(tmp_path: Path) -> None:
    stream, expected = _stream(tmp_path, files=150, rows=500, **_CLUSTER)
    assert _kill_executors(stream, kills=20, files=150) == 20
    _check(stream.table, expected)
