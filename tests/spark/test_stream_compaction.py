"""A stream of small micro-batches into a table that compacts itself: few files, every row once, also through kills."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lazydelta
from lazydelta.maintenance.background import last_failure, wait_for_maintenance
from lazydelta.spark import ingest_stream
from tests.spark.streams import Stream, make_source
from tests.spark.tables import ids

pytestmark = [pytest.mark.xdist_group("spark")]

COMPACTING = {"delta.autoOptimize.autoCompact": "true"}
MOST_FILES = 20


def _judge(table: Path, expected: range) -> None:
    assert wait_for_maintenance(str(table), 120)
    assert last_failure(str(table)) is None
    found = lazydelta.DeltaTable(table, options={"checksum": "error"})
    files = found.files().collect()
    assert len(files) <= MOST_FILES
    assert len({file.partition_values["_event_hour"] for file in files}) == 3
    assert ids(table) == list(expected)
    assert "OPTIMIZE" in {each["operation"] for each in found.history()}


def test_twenty_micro_batches_leave_few_files(spark: SparkSession, tmp_path: Path) -> None:
    """Without compaction there would be sixty."""
    expected = make_source(tmp_path / "source", files=20, rows=100)
    files = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    query = ingest_stream(
        files.json(str(tmp_path / "source")),
        str(tmp_path / "t"),
        checkpoint_location=str(tmp_path / "c"),
        trigger={"availableNow": True},
        timestamp_column="ts",
        properties=COMPACTING,
    )
    query.awaitTermination()
    _judge(tmp_path / "t", expected)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_micro_batches_leave_few_files_though_drivers_are_killed(tmp_path: Path) -> None:
    expected = make_source(tmp_path / "source", files=200, rows=1000)
    stream = Stream(tmp_path, tmp_path / "source", tmp_path / "t", options={"properties": COMPACTING})
    for reached in (20, 90, 170):
        with stream.running() as driver:
            while driver.poll() is None and stream.version() < reached:
                time.sleep(0.05)
            assert driver.poll() is None, stream.log()
    stream.finish(1800)
    _judge(tmp_path / "t", expected)
