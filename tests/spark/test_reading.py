"""Spark reads tables through both our ways as Delta-Spark reads them, in a session that is not in UTC."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from lazydelta import DeltaTable, write_arrow
from lazydelta.errors import OptionError
from lazydelta.spark import read, write
from tests.spark.delta_tables import MADE, question

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def _rows(frame: DataFrame) -> Counter[str]:
    # As text, because rows hold dictionaries, NaN and bytes.
    return Counter(map(str, frame.collect()))


def _source(spark: SparkSession, table: Path, **options: Any) -> DataFrame:
    return spark.read.format("lazydelta").options(**options).load(str(table))


@contextmanager
def _tasks_of_jobs(spark: SparkSession) -> Iterator[list[int]]:
    """Give the number of tasks of each stage that was run in a block."""
    found: list[int] = []
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    yield found
    for job in sorted(set(tracker.getJobIdsForGroup()) - before):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            about = tracker.getStageInfo(stage)
            found.append(about.numTasks if about else 0)


# What is made differs in seconds: the quick suite has those of which nothing can be read without knowing the log.
QUICK = ("deletion vectors", "column mapping", "type widening")
CASES = [*((name, 2) for name in QUICK), *(pytest.param(name, 100, marks=pytest.mark.slow) for name in MADE)]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_tables_by_delta_spark_read_alike_through_both_ways(
    name: str, number: int, made: Callable[[str], Path], spark: SparkSession
) -> None:
    """The same schema, the same rows, and the same answers to generated questions, with filters pushed and not."""
    table = made(name)
    delta = spark.read.format("delta").load(str(table))
    assert _source(spark, table).schema.simpleString() == delta.schema.simpleString()
    whole = _rows(delta)
    assert _rows(_source(spark, table)) == whole
    assert _rows(read(spark, str(table))) == whole
    rng = random.Random(name)
    matched = 0
    for _ in range(number):
        asked = question(rng)
        expected = _rows(delta.where(asked).select("id", "s", "ts", "st"))
        matched += bool(expected)
        spark.conf.set(PUSHDOWN, rng.choice(["true", "true", "false"]))
        try:
            found = _source(spark, table, pushFilters=rng.random() < 0.7).where(asked).select("id", "s", "ts", "st")
            assert _rows(found) == expected, (name, asked)
            fast = read(spark, str(table), columns=["id", "s", "f", "d", "ts", "n", "day", "b", "st", "p"])
            assert _rows(fast.where(asked).select("id", "s", "ts", "st")) == expected, (name, asked)
        finally:
            spark.conf.unset(PUSHDOWN)
    assert matched


def test_a_dataframe_that_is_used_more_than_once_has_all_its_rows_each_time(
    made: Callable[[str], Path], spark: SparkSession
) -> None:
    """Where filters are pushed, Spark keeps what the last ones left for every other use of a DataFrame or a view."""
    table = made("deletion vectors")
    delta = spark.read.format("delta").load(str(table))
    everything = _rows(delta.select("id"))
    spark.conf.set(PUSHDOWN, "true")
    try:
        for frame in (_source(spark, table), read(spark, str(table))):
            low, high = frame.where("id < 20").select("id"), frame.where("id >= 20").select("id")
            assert 0 < low.count() < everything.total()
            assert _rows(frame.select("id")) == everything
            assert _rows(low.union(high)) == everything
            frame.createOrReplaceTempView("used_often")
            assert spark.sql("SELECT id FROM used_often WHERE p = 1").count() < everything.total()
            assert _rows(spark.sql("SELECT id FROM used_often")) == everything
    finally:
        spark.catalog.dropTempView("used_often")
        spark.conf.unset(PUSHDOWN)


@pytest.mark.parametrize("where", ["p = 1 AND id < 40", [("f", ">", 3.0)], {"s": "k3"}, "f > 500 OR st.x = 5"], ids=str)
def test_the_fast_way_applies_its_condition_exactly(
    where: Any, made: Callable[[str], Path], spark: SparkSession
) -> None:
    """Files with deletion vectors and without, in one DataFrame, beside the rows that the table itself gives."""
    table = made("deletion vectors")
    found = sorted(row.id for row in read(spark, str(table), where=where, columns=["id"]).collect())
    expected = sorted(DeltaTable(table).rows(["id"], where=where).read_all()["id"].to_pylist())
    assert found == expected
    assert expected


def test_explain_says_which_way_rows_come(made: Callable[[str], Path], spark: SparkSession) -> None:
    """Spark's reader over a version, or the data source where it is told not to open files."""
    table = str(made("deletion vectors"))
    plan = _plan(read(spark, table, version=1))
    assert "FileScan parquet" in plan
    assert "lazydelta:/version=1" in plan
    by_source = _plan(read(spark, table, by_spark=False))
    assert "BatchScan lazydelta" in by_source
    assert "FileScan" not in by_source


def _plan(frame: DataFrame) -> str:
    plan: str = frame._jdf.queryExecution().toString()
    return plan


@pytest.mark.parametrize("folder", ["plain 5%20", "odd {table} [1]"])
def test_partition_values_and_names_that_look_like_patterns_are_read_as_they_are(
    folder: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Percent signs, spaces, braces, stars, slashes, an equals sign, an empty text and null."""
    values = ["a b", "50%", "{x,y}", "*", "a/b", "k=v", "ü", "[0]", "?", "007", "", None, "..", "_h"]
    table = tmp_path / folder
    rows = pa.table({"id": pa.array(range(len(values))), "p": pa.array(values)})
    write_arrow(table, rows, partition_by=["p"])
    expected = Counter((row["id"], row["p"] or None) for row in rows.to_pylist())
    assert Counter((row.id, row.p) for row in read(spark, str(table)).collect()) == expected
    assert Counter((row.id, row.p) for row in _source(spark, table).collect()) == expected
    assert [row.id for row in read(spark, str(table), where="p = '*'").collect()] == [3]


def test_an_hour_stays_text_and_no_job_lists_files(spark: SparkSession, tmp_path: Path) -> None:
    """Without a schema Spark would make numbers of `_event_hour=` folders, which look hidden besides."""
    start = dt.datetime(2026, 2, 10, tzinfo=dt.UTC)
    rows = pa.table({"ts": [start + dt.timedelta(minutes=20 * each) for each in range(120)], "id": range(120)})
    write_arrow(tmp_path, rows, timestamp_column="ts")
    assert len(DeltaTable(tmp_path).file_uris()) == 40
    with _tasks_of_jobs(spark) as jobs:
        fast = read(spark, str(tmp_path))
        assert len(fast.inputFiles()) == 40
    assert jobs == [], "Spark listed the files by a job of its own"
    assert sorted(row.id for row in fast.collect()) == list(range(120))
    assert dict(fast.dtypes)["_event_hour"] == "string"
    assert fast.where("_event_hour = '2026021003'").count() == 3
    assert [row.ts for row in fast.where("id = 0").collect()] == [start.astimezone().replace(tzinfo=None)]


def test_an_empty_table_and_a_condition_that_nothing_matches_have_a_schema(spark: SparkSession, tmp_path: Path) -> None:
    """No file, no partition, no rows."""
    write_arrow(tmp_path, pa.table({"id": pa.array([], pa.int64()), "s": pa.array([], pa.string())}))
    for frame in (_source(spark, tmp_path), read(spark, str(tmp_path)), read(spark, str(tmp_path), where="id = 3")):
        assert frame.dtypes == [("id", "bigint"), ("s", "string")]
        assert frame.count() == 0


def test_versions_are_read_by_number_and_by_time(made: Callable[[str], Path], spark: SparkSession) -> None:
    """As Delta-Spark does."""
    table = made("deletion vectors")
    first = spark.read.format("delta").option("versionAsOf", 1).load(str(table)).count()
    assert _source(spark, table, versionAsOf=1).count() == first == read(spark, str(table), version=1).count()
    assert _source(spark, table, timestampAsOf="2999-01-01").count() == _source(spark, table).count()


def test_views_and_sql(made: Callable[[str], Path], spark: SparkSession) -> None:
    """A temporary view over either way, and one made by SQL alone."""
    table = made("type widening")
    _source(spark, table).createOrReplaceTempView("by_source")
    read(spark, str(table)).createOrReplaceTempView("by_spark")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW by_sql USING lazydelta OPTIONS (path '{table}', columns 'id,p')")
    expected = spark.sql(f"SELECT p, count(*) c FROM delta.`{table}` GROUP BY p").collect()
    for view in ("by_source", "by_spark", "by_sql"):
        assert Counter(spark.sql(f"SELECT p, count(*) c FROM {view} GROUP BY p").collect()) == Counter(expected)


def test_an_error_begins_with_our_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """Not after a traceback of workers."""
    with pytest.raises((PySparkException, AnalysisException)) as raised:
        _source(spark, tmp_path / "nothing")
    text = str(raised.value)
    assert "TableNotFoundError" in text
    assert text.index("TableNotFoundError") < text.index("Traceback")


def test_create_table_is_refused_with_what_to_type(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would make an entry that it could not read: it keeps the location from a data source in Python."""
    write_arrow(tmp_path, pa.table({"id": [1]}))
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW v USING lazydelta OPTIONS"):
        spark.sql(f"CREATE TABLE catalogued USING lazydelta LOCATION '{tmp_path}'")
    rows = spark.range(2)
    for ask in (
        lambda: rows.write.format("lazydelta").mode("append").saveAsTable("catalogued"),
        lambda: rows.write.saveAsTable("catalogued", format="lazydelta", mode="append"),
        lambda: rows.writeTo("catalogued").using("lazydelta").create(),
        lambda: spark.readStream.format("rate").load().writeStream.toTable("catalogued", "lazydelta"),
    ):
        with pytest.raises(OptionError, match=r"CREATE TABLE \w+ USING delta LOCATION"):
            ask()
    assert not spark.catalog.tableExists("catalogued")


def test_names_with_spaces_and_empty_names(spark: SparkSession, tmp_path: Path) -> None:
    """Also of the timestamp column; Delta-Spark reads them, in a table with mapped columns as it asks for."""
    rows = spark.sql("SELECT timestamp'2026-02-10T10:00:00Z' `event time`, 1 ``, struct(2 `x;y`) `a,b`")
    mapped = {"delta.columnMapping.mode": "name"}
    write(rows, str(tmp_path / "t"), mode="append", timestamp_column="event time", properties=mapped)
    write(rows, str(tmp_path / "t"), mode="append")
    expected = _rows(spark.read.format("delta").load(str(tmp_path / "t")))
    found = read(spark, str(tmp_path / "t"))
    assert found.where("`event time` > '2026-02-10' AND `a,b`.`x;y` = 2").count() == 2
    assert _rows(found) == _rows(_source(spark, tmp_path / "t")) == expected
    assert sum(expected.values()) == 2
