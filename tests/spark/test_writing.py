"""``lazydelta.spark.write``: all of Spark's modes, a result, our sentence first; and what Spark itself refuses."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from lazydelta.errors import OptionError, SchemaMismatchError, TableExistsError, UnsupportedFeatureError, WriteError
from lazydelta.spark import ingest, write
from tests.spark.tables import ids, read, read_by_delta_spark, same

pytestmark = [pytest.mark.xdist_group("spark")]


def rows(spark: SparkSession, first: int, last: int, parts: int = 2) -> DataFrame:
    numbers = spark.range(first, last, numPartitions=2)
    return numbers.select("id", (F.col("id") % parts).cast("int").alias("part"))


def test_every_mode_does_what_spark_calls_it_and_says_what_was_written(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    made = write(rows(spark, 0, 4), table, partition_by=["PART"], user_metadata="made", maintain=False)
    assert made is not None
    assert (made.version, made.rows, made.files, made.rejected, made.already_committed) == (0, 4, 2, 0, False)
    with pytest.raises(TableExistsError, match=r"A table already exists at .* \(pass mode='append'"):
        write(rows(spark, 0, 4), table)
    left = write(rows(spark, 0, 4), table, mode="ignore")
    assert left is not None
    assert (left.version, left.rows, left.already_committed) == (0, 0, True)
    # Names are compared without regard to case.
    more = write(rows(spark, 4, 6).withColumnRenamed("part", "Part"), table, mode="append", maintain=False)
    assert more is not None
    assert (more.version, more.rows) == (1, 2)
    dynamic: dict[str, Any] = {"mode": "overwrite", "partition_overwrite_mode": "dynamic", "maintain": False}
    write(rows(spark, 6, 8, parts=1), table, **dynamic)
    assert ids(Path(table)) == [1, 3, 5, 6, 7]
    write(rows(spark, 9, 10), table, mode="overwrite", overwrite_where="part = 1", maintain=False)
    assert ids(Path(table)) == [6, 7, 9]
    other = spark.range(2).select(F.col("id").cast("string").alias("id"), F.lit("x").alias("name"))
    done = write(other, table, mode="overwrite", overwrite_schema=True, partition_by=[], maintain=False)
    assert done is not None
    assert done.version == 4
    assert read(Path(table)).to_pylist() == [{"id": "0", "name": "x"}, {"id": "1", "name": "x"}]
    noted = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").where("version = 0").collect()[0]
    assert (noted.userMetadata, noted.operationParameters["mode"]) == ("made", "ErrorIfExists")
    with pytest.raises(OptionError, match="mode='upsert' is not valid"):
        write(other, table, mode="upsert")  # type: ignore[arg-type]


def test_errors_begin_with_our_sentence_and_advise_in_sparks_names(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    timestamps = rows(spark, 0, 2).withColumn("at", F.current_timestamp())
    result = ingest(timestamps, table, maintain=False)
    assert result is not None
    assert (result.version, result.rows) == (0, 2)
    with pytest.raises(SchemaMismatchError) as refused:
        write(timestamps.withColumn("more", F.lit(1)), table, mode="append")
    assert str(refused.value).startswith("The data has the column 'more' of type int32, which the table does not")
    assert "set mergeSchema to true" in str(refused.value)
    with pytest.raises(SchemaMismatchError, match=r"^Column 'at' is string .*to_timestamp"):
        write(timestamps.withColumn("at", F.lit("2026-01-01")), table, mode="append")
    # With their sentence first where Spark passes them on itself, and without Spark's marks where we do.
    assert "SQLSTATE" not in str(refused.value)
    with pytest.raises(AnalysisException) as passed:
        timestamps.withColumn("more", F.lit(1)).write.format("lazydelta").mode("append").save(table)
    text = str(passed.value)
    assert 0 < text.index("SchemaMismatchError: The data has the column 'more'") < text.index("Traceback")
    assert text.index("set mergeSchema to true") < text.index("Traceback")
    with pytest.raises(
        SchemaMismatchError, match=r"set overwriteSchema to true to give .*cast\(… AS string\)|try_cast"
    ):
        write(timestamps.withColumn("id", F.lit("x")), table, mode="overwrite")
    with pytest.raises(OptionError, match="There is no option 'mergSchema'"):
        write(timestamps, table, mode="append", mergSchema=True)


def test_what_spark_refuses_before_it_asks_us(spark: SparkSession, tmp_path: Path) -> None:
    """Pinned, because the docs give the line to type instead: if one of these passes one day, they are out of date."""
    table = str(tmp_path / "t")
    df = rows(spark, 0, 2)
    for mode in ("error", "ignore", None):
        writer = df.write.format("lazydelta")
        with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE") as refused:
            (writer if mode is None else writer.mode(mode)).save(table)
        assert "lazydelta" in str(refused.value)
    with pytest.raises(PySparkException, match="partitioning or clustering columns do not match"):
        df.write.format("lazydelta").mode("append").partitionBy("part").save(table)
    assert not Path(table).exists()
    df.write.format("lazydelta").mode("append").option("partitionBy", "part").save(table)
    df.write.format("lazydelta").mode("overwrite").option("partitionOverwriteMode", "dynamic").save(table)
    assert ids(Path(table)) == [0, 1]


@pytest.mark.parametrize("mode", ["name", pytest.param("id", marks=pytest.mark.slow)])
def test_tables_whose_columns_delta_spark_maps_are_written_and_it_reads_them(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    table = tmp_path / "t"
    spark.sql(
        f"CREATE TABLE delta.`{table}` "
        "(id BIGINT, part INT, nested STRUCT<a: DECIMAL(6, 2), b: ARRAY<STRUCT<c: INT>>>) "
        f"USING delta PARTITIONED BY (part) TBLPROPERTIES (delta.columnMapping.mode = '{mode}')"
    )
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT positive CHECK (id >= 0)")
    nested = F.struct(
        F.lit(Decimal("1.25")).cast("decimal(6,2)").alias("a"), F.array(F.struct(F.lit(7).alias("c"))).alias("b")
    )
    df = rows(spark, 0, 4).withColumn("nested", nested)
    done = write(df, str(table), mode="append", maintain=False)
    assert done is not None
    assert done.rows == 4
    write(df.withColumn("more", F.lit("x")), str(table), mode="append", merge_schema=True, maintain=False)
    spark.sql(f"INSERT INTO delta.`{table}` SELECT id + 10, part, nested, 'y' FROM delta.`{table}` WHERE more = 'x'")
    found = read_by_delta_spark(spark, table)
    assert found.num_rows == 12
    assert sorted(found["id"].to_pylist()) == sorted([0, 1, 2, 3] * 2 + [10, 11, 12, 13])
    assert same(found, spark.read.format("delta").load(str(table)).where("nested.b[0].c = 7").toArrow())
    with pytest.raises(WriteError, match=r"^2 rows break the table's CHECK constraint 'positive'"):
        write(df.withColumn("id", F.col("id") - 2), str(table), mode="append")
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT odd CHECK (length(more) < 3 OR more IS NULL)")
    with pytest.raises(UnsupportedFeatureError, match=r"^The table has the CHECK constraint 'odd'"):
        write(df, str(table), mode="append")
