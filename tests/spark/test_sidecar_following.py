"""Streams that write a table in their own way: the sidecar follows its checkpoints, by listener or by foreachBatch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lazydelta import DeltaTable
from lazydelta.maintenance import BackgroundWatch
from lazydelta.spark import SidecarListener, following_sidecar

pytestmark = [pytest.mark.xdist_group("spark")]

BATCHES = 2


def _source(spark: SparkSession, folder: Path) -> DataFrame:
    folder.mkdir()
    for number in range(BATCHES):
        (folder / f"{number}.json").write_text(f'{{"id": {number}}}\n')
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder))


def _judge(table: Path) -> None:
    found = DeltaTable(table, options={"cache_size": 0})
    stream = found.files()
    assert len(stream.collect()) == BATCHES
    assert stream.metrics.tier == 1
    assert sorted(found.to_pyarrow_table().column("id").to_pylist()) == list(range(BATCHES))


@pytest.mark.slow
def test_a_listener_lets_the_sidecar_follow_what_delta_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    properties = "'delta.checkpointInterval' = '2', 'delta.enableDeletionVectors' = 'false'"
    spark.sql(f"CREATE TABLE delta.`{table}` (id LONG) USING delta TBLPROPERTIES ({properties})")
    writer = _source(spark, tmp_path / "in").writeStream.format("delta").option("path", str(table))
    listener = _listened(spark, writer, table, tmp_path / "c")
    assert listener.watch.metrics.sidecar_version == BATCHES
    _judge(table)


def _listened(spark: SparkSession, writer: DataStreamWriter, table: Path, state: Path) -> SidecarListener:
    """Run a stream to its end beside a listener of its name, and one of another's."""
    mine, other = SidecarListener(str(table), query_name="followed"), SidecarListener(str(table), query_name="other")
    with mine as listener, other:
        spark.streams.addListener(listener)
        spark.streams.addListener(other)
        try:
            named = writer.queryName("followed").option("checkpointLocation", str(state))
            named.trigger(availableNow=True).start().awaitTermination()
            spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(100_000)
        finally:
            spark.streams.removeListener(listener)
            spark.streams.removeListener(other)
    assert listener.watch.metrics.failures == 0
    assert listener.watch.metrics.builds >= 1
    assert other.watch.metrics.looks <= 1  # only that some query has ended
    return listener


def test_a_listener_lets_the_sidecar_follow_what_delta_rs_writes(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "t"
    writer = _source(spark, tmp_path / "in").writeStream.foreachBatch(_write_to(table))
    listener = _listened(spark, writer, table, tmp_path / "c")
    assert listener.watch.metrics.sidecar_version == BATCHES - 1
    _judge(table)


def _write_to(table: Path) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, batch_id: int) -> None:
        deltalake.write_deltalake(table, batch.toArrow(), mode="append")
        if batch_id % 2 == 1:
            deltalake.DeltaTable(table).create_checkpoint()

    return write


def test_a_function_for_each_batch_lets_the_sidecar_follow_what_delta_rs_writes(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "t"

    with BackgroundWatch(table, checksum=True) as watch:
        query = (
            _source(spark, tmp_path / "in")
            .writeStream.foreachBatch(following_sidecar(_write_to(table), watch))
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert watch.metrics.failures == 0
    assert watch.metrics.sidecar_version == BATCHES - 1
    _judge(table)
    assert (table / "_delta_log" / f"{BATCHES - 1:020}.crc").exists()


def test_a_batch_that_fails_is_not_followed(tmp_path: Path) -> None:
    def fail(_batch: DataFrame, _number: int) -> None:
        raise ValueError("no")

    with BackgroundWatch(tmp_path / "t") as watch:
        with pytest.raises(ValueError, match="no"):
            following_sidecar(fail, watch)(None, 0)  # type: ignore[arg-type]  # it is not looked at
        assert watch.metrics.looks == 0
