"""What a stream may not ask for, because Spark would drop it without a word."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import LongType, StructField, StructType

from lazydelta.errors import OptionError, WriteError
from lazydelta.spark import ingest_files_stream, ingest_stream
from lazydelta.spark.session import checked_trigger
from lazydelta.spark.source import LazyDeltaSource, _Message
from tests.spark.tables import actions, on_disk

pytestmark = [pytest.mark.xdist_group("spark")]


def _rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", 100).option("numPartitions", 1).load()


# --- the continuous trigger, under which Spark hands over no row


def test_a_continuous_trigger_is_refused_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    place, notes = str(tmp_path / "t"), str(tmp_path / "notes")
    trigger = {"continuous": "1 second"}
    starts: list[Callable[[], Any]] = [
        lambda: ingest_stream(_rate(spark), place, checkpoint_location=notes, trigger=trigger),
        lambda: ingest_files_stream(
            spark, str(tmp_path / "source"), place, checkpoint_location=notes, trigger=trigger, format="json"
        ),
    ]
    for start in starts:
        with pytest.raises(OptionError, match="continuous='1 second' would lose every row"):
            start()
    assert not Path(notes).exists()
    assert spark.streams.active == []


def test_nothing_is_noted_as_done_under_a_continuous_trigger_of_spark_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    writer = _rate(spark).writeStream.format("lazydelta").option("checkpointLocation", str(notes))
    query = writer.trigger(continuous="100 milliseconds").start(str(tmp_path / "t"))
    try:
        deadline = time.monotonic() + 60
        # Spark begins an epoch without waiting for the commit of the one before.
        while not (notes / "offsets" / "30").exists() and query.isActive and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        query.stop()
    assert [each.name for each in (notes / "commits").iterdir() if each.name.isdigit()] == []


@pytest.mark.parametrize("streams", [False, True], ids=["batch", "stream"])
@pytest.mark.parametrize("alone", [False, True], ids=["beside another", "alone"])
def test_a_task_without_a_message_is_an_error(alone: bool, streams: bool, tmp_path: Path) -> None:  # noqa: FBT001 - cases
    source = LazyDeltaSource({"path": str(tmp_path / "t")})
    schema = StructType([StructField("id", LongType())])
    job = source.stream_job(schema, overwrite=False)
    messages: list[WriterCommitMessage | None] = [None]
    if not alone:
        messages.append(_Message(job.write([pa.record_batch({"id": [1]})]), job))

    def commit() -> None:
        if streams:
            source.streamWriter(schema, overwrite=False).commit(messages, 0)
        else:
            source.writer(schema, overwrite=False).commit(messages)

    with pytest.raises(WriteError, match=f"1 of {len(messages)} tasks did not report what they wrote"):
        commit()
    assert not (tmp_path / "t" / "_delta_log").exists()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {}),
        ({"availableNow": True}, {"availableNow": True}),
        ({"processingTime": "1 second", "continuous": None}, {"processingTime": "1 second"}),
    ],
)
def test_the_triggers_of_micro_batches_are_passed_on(given: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    assert checked_trigger(given) == expected


def test_an_unknown_trigger_is_named() -> None:
    with pytest.raises(OptionError, match=r"no trigger 'availablenow'.*processingTime"):
        checked_trigger({"availablenow": True})


# --- partition columns


def test_a_stream_may_name_its_partition_columns_in_three_ways(spark: SparkSession, tmp_path: Path) -> None:
    """Spark tells a data source in Python nothing of its own ``partitionBy``."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.json").write_text('{"id": 1, "dev": "x"}\n{"id": 2, "dev": "y"}')
    stream = spark.readStream.schema("id long, dev string").json(str(tmp_path / "source"))

    def columns(name: str, *by_call: Any, **options: str) -> list[str]:
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / f"{name} notes"))
        if by_call:
            writer = writer.partitionBy(*by_call)
        writer = writer.format("lazydelta").options(**options).trigger(availableNow=True)
        writer.start(str(tmp_path / name)).awaitTermination()
        found: list[str] = actions(tmp_path / name, 0, "metaData")[0]["partitionColumns"]
        return found

    assert columns("by call", "dev") == ["dev"]
    assert columns("by a list", ["dev"]) == ["dev"]
    assert columns("by option", partitionBy="dev") == ["dev"]
    with pytest.raises(PySparkException, match="differ"):
        columns("by both", "dev", partitionBy="id")
    ingest_stream(
        stream,
        str(tmp_path / "by function"),
        checkpoint_location=str(tmp_path / "notes"),
        trigger={"availableNow": True},
        partition_by=["dev"],
    ).awaitTermination()
    assert {each.split("/")[0] for each in on_disk(tmp_path / "by function")} == {"dev=x", "dev=y"}
