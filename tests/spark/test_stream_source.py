"""``readStream.format("lazydelta")``: each row of a table once, whatever is written, rewritten and killed meanwhile."""

from __future__ import annotations

import datetime as dt
import random
import sys
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import lazydelta
from lazydelta import sidecar
from lazydelta.errors import OptionError
from lazydelta.maintenance.background import wait_for_maintenance
from lazydelta.spark.source import LazyDeltaSource
from tests.spark.stops import CHANGES_OF_A_COMMIT
from tests.spark.streams import Stream
from tests.spark.tables import by_id, ids, read, same

pytestmark = [pytest.mark.xdist_group("spark")]

_START = dt.datetime(2026, 2, 10, tzinfo=dt.UTC)


def append(table: Path, numbers: Iterable[int]) -> None:
    """Append a file for each of a few rows' partitions, with types that Spark and Arrow spell differently."""
    some = list(numbers)
    rows = pa.table(
        {
            "id": pa.array(some, pa.int64()),
            "ts": pa.array([_START + dt.timedelta(minutes=each) for each in some], pa.timestamp("us", "UTC")),
            "part": pa.array([f"p {each % 2}" for each in some]),
            "amount": pa.array([Decimal(each) / 4 for each in some], pa.decimal128(10, 2)),
            "nested": pa.array([{"a": [each, None], "b": {"x": None}} for each in some], _NESTED),
        }
    )
    lazydelta.write_arrow(table, rows, partition_by=["part"], maintain=False)


_NESTED = pa.struct([("a", pa.list_(pa.int32())), ("b", pa.struct([("x", pa.date32())]))])


def stream(spark: SparkSession, table: Path, **options: Any) -> DataFrame:
    return spark.readStream.format("lazydelta").options(**options).load(str(table))


def run(df: DataFrame, folder: Path, sink: Path | None = None) -> StreamingQuery:
    """Write what there is to a table, and return the query when it has ended."""
    writer = df.writeStream.format("lazydelta").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.option("maintain", "false").trigger(availableNow=True).start(str(sink or folder / "sink"))
    query.awaitTermination()
    return query


def taken(query: StreamingQuery) -> list[int]:
    """Return how many rows each micro-batch that had any took."""
    return [rows for each in query.recentProgress if (rows := each["numInputRows"])]


def test_what_there_is_comes_once_over_restarts_with_rewrites_and_sidecars_between(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    for number in range(3):
        append(table, range(number * 4, number * 4 + 4))
    # Of six files with two rows each four come at a time.
    query = run(stream(spark, table, maxFilesPerTrigger=4), tmp_path)
    assert taken(query) == [8, 4]
    append(table, range(12, 16))
    spark.sql(f"OPTIMIZE delta.`{table}`")
    lazydelta.DeltaTable(table).create_checkpoint()
    sidecar.build(str(table))
    append(table, range(16, 20))
    assert taken(run(stream(spark, table, maxFilesPerTrigger=4), tmp_path)) == [8]
    sidecar.drop(str(table))
    assert taken(run(stream(spark, table, maxFilesPerTrigger=4), tmp_path)) == []
    assert ids(tmp_path / "sink") == list(range(20))
    assert same(read(tmp_path / "sink"), read(table))


def test_a_snapshot_with_deletion_vectors_comes_without_the_deleted_rows_and_a_later_deletion_stops_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    table, place = tmp_path / "t", f"delta.`{tmp_path / 't'}`"
    append(table, range(8))
    spark.sql(f"ALTER TABLE {place} SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    spark.sql(f"DELETE FROM {place} WHERE id = 3")
    run(stream(spark, table), tmp_path)
    assert ids(tmp_path / "sink") == [0, 1, 2, 4, 5, 6, 7]
    spark.sql(f"DELETE FROM {place} WHERE id = 4")
    append(table, [8])
    with pytest.raises(StreamingQueryException) as stopped:
        run(stream(spark, table), tmp_path)
    assert "StreamStoppedError: Version 3 of" in str(stopped.value)
    assert "skipChangeCommits=true" in str(stopped.value)
    run(stream(spark, table, skipChangeCommits="true"), tmp_path)
    assert ids(tmp_path / "sink") == [0, 1, 2, 4, 5, 6, 7, 8]


def test_a_query_that_goes_on_takes_what_is_appended_and_ends_at_a_new_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    append(table, range(2))
    df = stream(spark, table, startingVersion="latest")
    begun = df.writeStream.format("memory").queryName("news").option("checkpointLocation", str(tmp_path / "c"))
    query = begun.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        for number in range(2, 5):
            append(table, [number])
            query.processAllAvailable()
        assert [row.id for row in spark.table("news").orderBy("id").collect()] == [2, 3, 4]
        [first] = [row for row in spark.table("news").collect() if row.id == 2]
        assert (first.amount, first.nested.a, first.part) == (Decimal("0.50"), [2, None], "p 0")
        spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMNS (more STRING)")
        with pytest.raises(StreamingQueryException, match="'more' is new"):
            query.processAllAvailable()
    finally:
        query.stop()
    lazydelta.write_arrow(table, pa.table({"id": [5], "part": ["p"], "more": ["x"]}), maintain=False)
    again = stream(spark, table).writeStream.format("memory").queryName("later")
    query = again.option("checkpointLocation", str(tmp_path / "c2")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert {row.more for row in spark.table("later").collect()} == {None, "x"}


def test_pyspark_without_admission_control_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lazydelta.spark.stream_reader", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    with pytest.raises(OptionError, match=r"needs PySpark 4\.2, and this is"):
        LazyDeltaSource({"path": "t"}).streamReader(None)  # type: ignore[arg-type]


def killed_again_and_again(tmp_path: Path, spark: SparkSession, kills: int, seed: int) -> None:
    """Kill drivers at counted changes of the sink's files; the source is written, packed and indexed meanwhile.

    It is written while a driver runs and after it was killed; Delta-Spark packs it, and a sidecar comes and goes.
    """
    rng = random.Random(seed)
    source, sink = tmp_path / "source", tmp_path / "sink"
    number = 0

    def grow() -> None:
        nonlocal number
        for _ in range(rng.choice([1, 2])):
            append(source, range(number, number + 4))
            number += 4

    grow()
    grow()
    work = Stream(tmp_path, source, sink, options={"maintain": False}, reads="lazydelta")
    for kill in range(kills):
        # Some point of the next two micro-batches: as many are left at least.
        at = rng.randrange(1, 2 * CHANGES_OF_A_COMMIT + 1)
        with work.stopping(at) as (driver, stops):
            stops.wait(at, lambda driver=driver: driver.poll() is None)  # type: ignore[misc]
            grow()
        grow()
        if kill % 2 == 0:
            lazydelta.DeltaTable(source).create_checkpoint()
            sidecar.build(str(source))
        else:
            sidecar.drop(str(source))
        if kill % 3 == 1:
            spark.sql(f"OPTIMIZE delta.`{source}`")
    work.finish()
    assert wait_for_maintenance(str(sink), 60)
    assert ids(sink) == list(range(number))
    assert [row["amount"] for row in by_id(read(sink))] == [Decimal(each) / 4 for each in range(number)]


@pytest.mark.timeout(600)
def test_a_kill_of_the_driver_loses_and_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    killed_again_and_again(tmp_path, spark, 1, seed=1)


@pytest.mark.slow
def test_ten_kills_of_the_driver_lose_and_repeat_nothing(spark: SparkSession, tmp_path: Path) -> None:
    killed_again_and_again(tmp_path, spark, 10, seed=2)
