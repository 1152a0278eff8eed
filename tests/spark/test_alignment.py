"""No way into a table that is aligned to time lets a row choose its hour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import lazydelta
from lazydelta.errors import WriteError
from lazydelta.spark import ingest_files, ingest_stream
from tests.spark.tables import commits, on_disk, read, write

pytestmark = [pytest.mark.xdist_group("spark")]

_UTC = pa.timestamp("us", "UTC")
_SCHEMA = pa.schema([("id", pa.int64()), ("ts", _UTC)])
_SAYS = "has 'hello' in place of '1970010101'"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table that was created before anybody writes to it."""
    lazydelta.create_table(tmp_path / "t", _SCHEMA, timestamp_column="ts")
    return tmp_path / "t"


def _hours(table: Path) -> list[str | None]:
    found: list[str | None] = sorted(read(table)["_event_hour"].to_pylist(), key=repr)
    return found


def _source(folder: Path, name: str, hour: str | None) -> str:
    folder.mkdir(exist_ok=True)
    row: dict[str, Any] = {"id": 1, "ts": "1970-01-01T01:00:00Z"} | ({} if hour is None else {"_event_hour": hour})
    (folder / name).write_text(json.dumps(row))
    return str(folder)


def test_a_batch_is_checked_and_filled(spark: SparkSession, table: Path) -> None:
    rows = spark.range(1).select("id", F.timestamp_seconds(F.lit(3600)).alias("ts"))
    write(rows, table)
    write(rows.withColumn("_event_hour", F.lit("1970010101")), table)
    write(rows.withColumn("_event_hour", F.lit(None).cast("string")), table)
    assert _hours(table) == ["1970010101"] * 3
    before = on_disk(table)
    for hour in ("hello", "1999010100"):
        with pytest.raises(PySparkException, match=f"has '{hour}' in place of '1970010101'"):
            write(rows.withColumn("_event_hour", F.lit(hour)), table)
    assert on_disk(table) == before
    assert commits(table) == [0, 1, 2, 3]


@pytest.mark.parametrize("hour", [None, "1970010101", "hello"])
def test_a_stream_is_checked_and_filled(hour: str | None, spark: SparkSession, table: Path, tmp_path: Path) -> None:
    files = spark.readStream.schema("id long, ts timestamp, _event_hour string")
    query = ingest_stream(
        files.json(_source(tmp_path / "source", "a.json", hour)),
        str(table),
        checkpoint_location=str(tmp_path / "notes"),
        trigger={"availableNow": True},
    )
    if hour == "hello":
        with pytest.raises(StreamingQueryException, match=_SAYS):
            query.awaitTermination()
        assert commits(table) == [0]
    else:
        query.awaitTermination()
        assert _hours(table) == ["1970010101"]


def test_files_are_checked(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    ingest_files(spark, _source(source, "a.json", None), str(table))
    (source / "a.json").unlink()
    # Of a text, what is not a column of the source is a bad row.
    done = ingest_files(spark, _source(source, "b.json", "hello"), str(table), max_rejected="100%")
    assert (done.rows, done.rejected) == (0, 1)
    with pytest.raises(WriteError, match=_SAYS):
        ingest_files(spark, str(source), str(table), merge_schema=True)
    (source / "b.json").unlink()
    pq.write_table(
        pa.table({"id": [1, 2], "ts": pa.array([3_600_000_000] * 2, _UTC), "_event_hour": ["1970010101", "hello"]}),
        source / "c.parquet",
    )
    with pytest.raises(WriteError, match=_SAYS):
        ingest_files(spark, str(source), str(table))
    assert _hours(table) == ["1970010101"]


def test_files_do_not_go_to_the_null_hour_of_a_table_that_does_not_say_how_it_is_aligned(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = _SCHEMA.append(pa.field("_event_hour", pa.string()))
    lazydelta.create_table(tmp_path / "t", schema, partition_by=["_event_hour"])
    source = _source(tmp_path / "source", "a.json", None)
    with pytest.raises(WriteError, match="1 rows have a time but no value in the partition column '_event_hour'"):
        ingest_files(spark, source, str(tmp_path / "t"))
    ingest_files(spark, source, str(tmp_path / "t"), timestamp_column="ts")
    assert _hours(tmp_path / "t") == ["1970010101"]
