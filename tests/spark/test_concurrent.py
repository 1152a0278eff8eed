"""Several jobs write one table at once, and its maintenance goes on beside them."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from lazydelta import DeltaTable
from lazydelta.log.snapshot import open_snapshot
from lazydelta.maintenance import background as maintenance
from lazydelta.maintenance.background import last_failure, start_maintenance, wait_for_maintenance
from lazydelta.maintenance.policy import machine_file, table_lock
from lazydelta.sidecar.handle import TableHandle
from lazydelta.spark import ingest, ingest_stream
from lazydelta.storage import open_store
from lazydelta.write.job import WriteJob
from lazydelta.write.options import WriteOptions
from tests.spark.stops import CHANGES_OF_A_FILE, Stops
from tests.spark.streams import Stream, make_source
from tests.spark.tables import commits, ids, logged, on_disk

pytestmark = [pytest.mark.xdist_group("spark")]


def _stream(spark: SparkSession, source: Path, table: Path, **options: object) -> StreamingQuery:
    files = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1).json(str(source))
    return ingest_stream(
        files,
        str(table),
        checkpoint_location=f"{source}-checkpoint",
        trigger={"availableNow": True},
        **options,  # type: ignore[arg-type]
    )


def _all_at_once(spark: SparkSession, folder: Path, files: int, batches: int) -> None:
    table = folder / "t"
    expected: list[int] = []
    for number in range(2):
        expected += make_source(folder / f"source{number}", files, rows=20, first=number * 1_000_000)
    interval = {"delta.checkpointInterval": "5"}
    queries = [
        _stream(spark, folder / f"source{number}", table, timestamp_column="ts", properties=interval)
        for number in range(2)
    ]
    for number in range(batches):
        rows = range(2_000_000 + 20 * number, 2_000_020 + 20 * number)
        expected += rows
        df = spark.range(rows.start, rows.stop, 1, 2)
        df = df.select("id", F.timestamp_seconds(F.lit(1_770_681_600) + F.col("id") % 7200).alias("ts"))
        ingest(df, str(table), timestamp_column="ts", properties=interval)
    for query in queries:
        query.awaitTermination()
    assert wait_for_maintenance(str(table), 60)
    assert ids(table) == sorted(expected)
    assert commits(table) == list(range(2 * files + batches))
    assert on_disk(table) == logged(table)
    assert last_failure(str(table)) is None
    # The last due version has its checkpoint at the least, and a sidecar beside it.
    due = (2 * files + batches - 1) // 5 * 5
    assert max(_checkpoints(table)) >= due
    assert max(_manifests(table)) >= due


def _checkpoints(table: Path) -> list[int]:
    return [int(each.name[:20]) for each in (table / "_delta_log").glob("0*.checkpoint.parquet")]


def _manifests(table: Path) -> list[int]:
    return [int(each.name[1:].partition(".")[0]) for each in (table / "_delta_log/_sidecars").glob("v*.manifest.json")]


def test_two_streams_and_a_batch_job_write_one_table(spark: SparkSession, tmp_path: Path) -> None:
    _all_at_once(spark, tmp_path, files=4, batches=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_streams_and_a_batch_job_write_one_table_for_long(spark: SparkSession, tmp_path: Path) -> None:
    _all_at_once(spark, tmp_path, files=150, batches=150)


class _RowChanges:
    """DELETE, MERGE and OPTIMIZE of Delta-Spark with predicates on partitions, each in a thread of its own."""

    def __init__(self, spark: SparkSession, table: Path) -> None:
        self._spark = spark
        self._table = table
        self.removed: set[int] = set()
        self.added: set[int] = set()
        self.done: Counter[str] = Counter()

    def work(self, goes_on: Callable[[int], bool]) -> None:
        """Go on with each statement as long as it is said so, for the number of times that it was tried."""
        with ThreadPoolExecutor(3) as pool:
            for each in [pool.submit(self._repeat, verb, goes_on) for verb in ("delete", "merge", "optimize")]:
                each.result()

    def _repeat(self, verb: str, goes_on: Callable[[int], bool]) -> None:
        dice = random.Random(verb)
        tried = 0
        while goes_on(tried):
            tried += 1
            hour = f"202602100{dice.randrange(3)}"
            mine = self._ids_of(hour, 0 if verb == "delete" else 1, dice)
            fresh = [10_000_000 + 10 * tried + each for each in range(3)]
            try:
                self._spark.sql(self._statement(verb, hour, mine, fresh))
            except PySparkException as error:
                if "CONCURRENT" not in str(error).upper():
                    raise
                continue
            self.done[verb] += 1
            if verb != "optimize":
                self.removed.update(mine)
            if verb == "merge":
                self.added.update(fresh)

    def _ids_of(self, hour: str, remainder: int, dice: random.Random) -> list[int]:
        """Return ids that the stream has brought and that no other of these threads removes."""
        rows = DeltaTable(self._table).to_arrow(where=f"_event_hour = '{hour}'", columns=["id"])["id"].to_pylist()
        known = [each for each in rows if each < 10_000_000 and each % 2 == remainder]
        return dice.sample(known, min(4, len(known)))

    def _statement(self, verb: str, hour: str, mine: list[int], fresh: list[int]) -> str:
        table, some = f"delta.`{self._table}`", ", ".join(map(str, mine or [-1]))
        if verb == "optimize":
            return f"OPTIMIZE {table} WHERE _event_hour = '{hour}'"
        if verb == "delete":
            return f"DELETE FROM {table} WHERE _event_hour = '{hour}' AND id IN ({some})"
        ids = ", ".join(map(str, mine + fresh))
        at = f"timestamp'2026-02-10T{hour[-2:]}:30:00Z'"
        return f"""
            MERGE INTO {table} t USING (SELECT explode(array({ids})) id) s ON t._event_hour = '{hour}' AND t.id = s.id
            WHEN MATCHED THEN DELETE
            WHEN NOT MATCHED THEN INSERT (id, ts, _event_hour) VALUES (s.id, {at}, '{hour}')
        """

    def check(self, written: Iterable[int]) -> None:
        """Assert that each row is there once, for us and for Delta-Spark, whatever became of its files."""
        expected = sorted((set(written) - self.removed) | self.added)
        assert sorted(DeltaTable(self._table).to_arrow(columns=["id"])["id"].to_pylist()) == expected
        found = self._spark.read.format("delta").load(str(self._table)).select("id").collect()
        assert sorted(row.id for row in found) == expected


def test_a_stream_writes_beside_row_changes_of_delta_spark(spark: SparkSession, tmp_path: Path) -> None:
    table, source = tmp_path / "t", tmp_path / "source"
    written = [*make_source(source, files=1, rows=60)]
    _stream(spark, source, table, timestamp_column="ts").awaitTermination()
    written += make_source(source, files=4, rows=20, first=1000)
    query = _stream(spark, source, table)
    changes = _RowChanges(spark, table)
    changes.work(lambda tried: tried < 1)
    query.awaitTermination()
    assert changes.done
    changes.check(written)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_stream_that_is_killed_writes_beside_row_changes_of_delta_spark(spark: SparkSession, tmp_path: Path) -> None:
    """For two minutes and four kills at least: drivers are killed a few micro-batches on, while files arrive."""
    options = {"properties": {"delta.checkpointInterval": "5"}}
    stream = Stream(tmp_path, tmp_path / "source", tmp_path / "t", options=options)
    written = [*make_source(stream.source, files=1, rows=100)]
    stream.finish()
    noted, dice, over = tmp_path / "checkpoint" / "commits", random.Random(1), threading.Event()
    end, killed, arrived = time.monotonic() + 120, 0, 1
    changes = _RowChanges(spark, stream.table)
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        stack.callback(over.set)
        work = pool.submit(changes.work, lambda _: not over.is_set())
        while time.monotonic() < end or killed < 4:
            for _ in range(6):
                written += make_source(stream.source, files=1, rows=20, first=1000 * arrived)
                arrived += 1
            wanted = len(_numbers(noted)) + dice.randrange(1, 6)
            with stream.running() as driver:
                while driver.poll() is None and len(_numbers(noted)) < wanted:
                    time.sleep(dice.random() / 10)
                killed += driver.poll() is None
        over.set()
        work.result()
    stream.finish()
    assert set(changes.done) == {"delete", "merge", "optimize"}
    changes.check(written)


def _numbers(folder: Path) -> list[int]:
    return [int(each.name) for each in folder.iterdir() if each.name.isdigit()]


def test_a_micro_batch_waits_for_no_maintenance_and_starts_no_second(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    make_source(tmp_path / "source", files=3, rows=5)
    interval = {"delta.checkpointInterval": "1"}
    with table_lock(TableHandle.open(table)) as mine:  # held as long as the test needs
        assert mine is not None
        _stream(spark, tmp_path / "source", table, timestamp_column="ts", properties=interval).awaitTermination()
        ingest(spark.range(1).withColumn("ts", F.current_timestamp()), str(table))
        assert not wait_for_maintenance(str(table), 0)
        assert commits(table) == [0, 1, 2, 3]
        assert _checkpoints(table) == []
    make_source(tmp_path / "source", files=1, rows=5, first=100)
    _stream(spark, tmp_path / "source", table, timestamp_column="ts", properties=interval).awaitTermination()
    _until(lambda: _checkpoints(table) == [4] and _manifests(table) == [4])


def test_a_table_is_left_alone_when_asked(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    make_source(tmp_path / "source", files=2, rows=5)
    options = {"timestamp_column": "ts", "properties": {"delta.checkpointInterval": "1"}, "maintain": False}
    _stream(spark, tmp_path / "source", table, **options).awaitTermination()
    ingest(spark.range(1).withColumn("ts", F.current_timestamp()), str(table), maintain=False)
    assert wait_for_maintenance(str(table), 10)
    assert commits(table) == [0, 1, 2]
    assert _checkpoints(table) == []
    assert not (table / "_delta_log" / "_last_checkpoint").exists()


# --- the process of maintenance, without Spark


def _table(folder: Path, commits: int) -> Path:
    schema = pa.schema([("id", pa.int64())])
    for number in range(commits):
        job = WriteJob.prepare(str(folder), schema, WriteOptions(properties={"delta.checkpointInterval": "2"}))
        job.commit([job.write([pa.record_batch([pa.array([number])], schema=schema)])])
    return folder


@contextlib.contextmanager
def _started(table: Path) -> Iterator[subprocess.Popen[bytes]]:
    start_maintenance(TableHandle.open(table))
    process = maintenance._started[-1]
    try:
        yield process
    finally:
        process.wait(60)


def _until(condition: object) -> None:
    deadline = time.monotonic() + 60
    assert callable(condition)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Checkpoint, hint and sidecar are at least four files. One point of each file here, all of them in the soak tests.
@pytest.mark.parametrize(
    "at",
    [
        pytest.param(at, marks=[] if at % CHANGES_OF_A_FILE == file % CHANGES_OF_A_FILE else [pytest.mark.slow])
        for file in range(4)
        for at in range(file * CHANGES_OF_A_FILE + 1, (file + 1) * CHANGES_OF_A_FILE + 1)
    ],
)
def test_maintenance_that_is_killed_does_no_harm(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _table(tmp_path / "t", 5)
    stops = Stops(tmp_path / "stops", table, [at])
    with monkeypatch.context() as patch:
        for name, value in stops.environment().items():
            patch.setenv(name, value)
        patch.syspath_prepend(stops.imported)
        with _started(table) as process:
            assert stops.wait(at, lambda: process.poll() is None) == process.pid
            assert not wait_for_maintenance(str(table), 0)
            os.kill(process.pid, signal.SIGKILL)
    assert ids(table) == [0, 1, 2, 3, 4]
    with _started(table) as process:
        assert process.wait(60) == 0
    assert _checkpoints(table) == [4]
    assert ids(table) == [0, 1, 2, 3, 4]
    assert last_failure(str(table)) is None


def test_what_goes_wrong_is_told_when_maintenance_is_due_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    table = _table(tmp_path / "t", 3)
    obstacle = table / "_delta_log" / f"{2:020}.checkpoint.parquet"
    obstacle.mkdir()
    with _started(table) as process:
        assert process.wait(60) == 0
    assert f"{2:020}.checkpoint" in capfd.readouterr().err
    failure = last_failure(str(table))
    assert failure is not None
    assert "write the checkpoint 2" in failure
    obstacle.rmdir()
    with caplog.at_level(logging.WARNING, "lazydelta.maintenance.background"), _started(table) as process:
        assert process.wait(60) == 0
    assert f"The last maintenance of file://{table} failed, and is tried again" in caplog.text
    assert _checkpoints(table) == [2]
    assert last_failure(str(table)) is None


def test_a_table_has_one_lock_however_it_is_named(tmp_path: Path) -> None:
    with table_lock(TableHandle.open(tmp_path / "t")) as mine:
        assert mine is not None
        for name in (f"{tmp_path}/t/", f"file://{tmp_path}/t", f"{tmp_path}/./t"):
            assert not wait_for_maintenance(name, 0)
        assert wait_for_maintenance(str(tmp_path / "other"), 0)


def test_a_commit_stands_whatever_becomes_of_its_maintenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = _table(tmp_path / "t", 3)
    metadata = open_snapshot(open_store(table)).metadata
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))  # no folder, so there can be no lock
    maintenance.maintain_now(TableHandle.open(table), 2, metadata)
    start_maintenance(TableHandle.open(table))
    assert caplog.text.count("a later commit tries again") == 2
    assert _checkpoints(table) == []


def test_a_batch_sees_to_what_fell_due_while_it_was_at_it(tmp_path: Path) -> None:
    table = _table(tmp_path / "t", 5)
    metadata = open_snapshot(open_store(table)).metadata
    maintenance.maintain_now(TableHandle.open(table), 2, metadata)
    _until(lambda: max(_checkpoints(table), default=0) == 4 and wait_for_maintenance(str(table), 0))


def test_maintenance_of_what_is_no_table_says_so(tmp_path: Path) -> None:
    with _started(tmp_path / "nothing") as process:
        process.wait(60)
    assert "no Delta" in str(last_failure(str(tmp_path / "nothing")))
    with contextlib.suppress(FileNotFoundError):
        machine_file(TableHandle.open(tmp_path / "nothing"), "failure").unlink()
    assert deltalake.DeltaTable.is_deltatable(str(tmp_path / "nothing")) is False
