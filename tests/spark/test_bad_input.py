"""What cannot be written is refused with a sentence that helps, and leaves the table as it was."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql import types as T  # noqa: N812 - as everybody calls it

from lazydelta.errors import OptionError, SchemaMismatchError
from lazydelta.spark import ingest, ingest_files, ingest_stream
from lazydelta.spark import write as write_table
from lazydelta.spark.source import arrow_schema
from tests.spark.streams import make_source
from tests.spark.tables import commits, logged, on_disk, write
from tests.support.azurite import Azurite

pytestmark = [pytest.mark.xdist_group("spark")]


def _events(spark: SparkSession, rows: int = 4) -> DataFrame:
    return spark.range(0, rows, 1, 2).select("id", F.timestamp_seconds(F.lit(1_770_000_000)).alias("ts"))


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Path:
    write(_events(spark), tmp_path / "t", timestampColumn="ts")
    return tmp_path / "t"


@pytest.fixture
def untouched(table: Path) -> Iterator[Path]:
    """Return a table that must be the same after the test."""
    files, versions = on_disk(table), commits(table)
    yield table
    assert on_disk(table) == files
    assert commits(table) == versions
    assert not table.with_name("t_rejected").exists()


def _refused(df: DataFrame, table: Path, *sentences: str, **options: str) -> None:
    with pytest.raises(PySparkException) as raised:
        write(df, table, **options)
    for each in sentences:
        assert each in str(raised.value)


def test_a_timestamp_column_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    sentence = "The data has no column 'when' (or has it twice) with timestamps (its columns are: id, ts)"
    _refused(_events(spark), tmp_path / "new", sentence, timestampColumn="when")
    assert not (tmp_path / "new").exists()


def test_data_without_the_timestamp_column_of_the_table_is_refused(spark: SparkSession, untouched: Path) -> None:
    _refused(spark.range(3), untouched, "computes its partition column '_event_hour' from 'ts', which the data lacks")


def test_a_column_that_is_not_a_timestamp_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    sentence = "which is not a timestamp (choose a timestamp or date column, or cast this one with to_timestamp(…))"
    _refused(_events(spark), tmp_path / "new", sentence, timestampColumn="id")
    assert not (tmp_path / "new").exists()


def test_types_that_the_table_cannot_hold_are_refused(spark: SparkSession, untouched: Path) -> None:
    df = _events(spark).withColumn("id", F.col("id").cast("string"))
    _refused(df, untouched, "Column 'id' is string in the data and int64 in the table", "cast it with try_cast(")


_NOT_WRITTEN = {
    "'v' is of Spark's type variant": T.VariantType(),
    "'v.element' is of Spark's type variant": T.ArrayType(T.VariantType()),
    "'v.inner' is of Spark's type variant": T.StructType([T.StructField("inner", T.VariantType())]),
    "'v.value' is of Spark's type variant": T.MapType(T.StringType(), T.VariantType()),
    "'v' is collated (spark.UTF8_LCASE)": T.StringType("UTF8_LCASE"),
    "'v.element' is collated (spark.UTF8_LCASE)": T.ArrayType(T.StringType("UTF8_LCASE")),
    "'v.key' is collated (icu.UNICODE_CI)": T.MapType(T.StringType("UNICODE_CI"), T.LongType()),
    "'v.inner' is collated": T.StructType([T.StructField("inner", T.StringType("UTF8_LCASE"))]),
    "'v' is of Spark's type interval day to second": T.DayTimeIntervalType(),
    "'v' is of Spark's type interval year to month": T.YearMonthIntervalType(),
    "'v' is of Spark's type interval": T.CalendarIntervalType(),
    "'v' is of Spark's type udt": VectorUDT(),
    "'v.element' is of Spark's type udt": T.ArrayType(VectorUDT()),
}
for _name, _arguments in (("TimeType", (6,)), ("GeographyType", (4326,)), ("GeometryType", (4326,))):
    if hasattr(T, _name):  # by the version of PySpark
        _NOT_WRITTEN[f"'v' is of Spark's type {_name[:-4].lower()}"] = getattr(T, _name)(*_arguments)


@pytest.mark.parametrize("sentence", _NOT_WRITTEN)
def test_a_type_that_would_become_something_plainer_is_named(sentence: str) -> None:
    schema = T.StructType([T.StructField("id", T.LongType()), T.StructField("v", _NOT_WRITTEN[sentence])])
    with pytest.raises(SchemaMismatchError) as refused:
        arrow_schema(schema)
    assert str(refused.value).startswith(f"The column {sentence}")
    assert refused.value.hint


def test_names_that_sound_like_such_types_and_texts_of_a_length_are_fine() -> None:
    variant = T.StructType([T.StructField("metadata", T.BinaryType()), T.StructField("value", T.BinaryType())])
    texts = [T.StructField("c", T.CharType(3)), T.StructField("d", T.VarcharType(3))]
    texts += [T.StructField("e", T.StringType(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(3)"})]
    found = arrow_schema(T.StructType([T.StructField("variant", variant), *texts]))
    assert found.names == ["variant", "c", "d", "e"]
    assert {each.type for each in found if each.name != "variant"} == {pa.string()}


def test_variants_and_collated_texts_are_refused_on_every_way(spark: SparkSession, tmp_path: Path) -> None:
    def save(batch: DataFrame, _: int) -> None:
        write_table(batch, str(tmp_path / "t"), mode="append")

    make_source(tmp_path / "source", files=1, rows=3)
    files = spark.readStream.schema("id long, ts timestamp").json(str(tmp_path / "source"))
    for column in (F.expr("to_variant_object(array(id))"), F.expr("'a' COLLATE UTF8_LCASE")):
        df = _events(spark).withColumn("v", column)
        for mode in ("append", "overwrite"):
            with pytest.raises(PySparkException, match="SchemaMismatchError: The column 'v' is "):
                df.write.format("lazydelta").mode(mode).save(str(tmp_path / "t"))
        with pytest.raises(SchemaMismatchError, match=r"^The column 'v' is "):
            write_table(df, str(tmp_path / "t"))
        with pytest.raises(SchemaMismatchError, match=r"^The column 'v' is "):
            ingest(df, str(tmp_path / "t"))
        stream = files.withColumn("v", column)
        writers = (
            stream.writeStream.format("lazydelta").option("path", str(tmp_path / "t")),
            stream.writeStream.foreachBatch(save),
        )
        for writer in writers:
            place = str(tmp_path / f"c-{uuid.uuid4()}")
            query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
            with pytest.raises(PySparkException, match="SchemaMismatchError: The column 'v' is "):
                query.awaitTermination()
    with pytest.raises(SchemaMismatchError, match=r"The column 'v' is of Spark's type variant"):
        ingest_files(spark, str(tmp_path / "source"), str(tmp_path / "t"), schema="id long, v variant")
    assert not (tmp_path / "t").exists()


def test_a_stream_that_does_not_fit_says_why(spark: SparkSession, untouched: Path, tmp_path: Path) -> None:
    make_source(tmp_path / "source", files=1, rows=3)
    files = spark.readStream.schema("id string, ts timestamp").json(str(tmp_path / "source"))
    query = ingest_stream(
        files, str(untouched), checkpoint_location=str(tmp_path / "c"), trigger={"availableNow": True}
    )
    with pytest.raises(PySparkException) as raised:
        query.awaitTermination()
    assert "SchemaMismatchError: Column 'id' is string in the data and int64 in the table" in str(raised.value)
    assert "pickle" not in str(raised.value).partition("SchemaMismatchError")[2]


def test_a_table_that_is_not_ours_to_write_is_left_alone(spark: SparkSession, table: Path) -> None:
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["tintedColumns"]}
    (table / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"protocol": protocol}))
    files = on_disk(table)
    _refused(_events(spark), table, "tintedColumns")
    assert on_disk(table) == files
    assert commits(table) == [0, 1]


def test_a_place_of_no_known_kind_is_refused(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="no store for URIs that begin with hdfs:"):
        ingest(_events(spark), "hdfs://namenode/t")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of three megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"only root can mount a small disk: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["/bin/umount", folder], check=True)


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("existing", [False, True], ids=["new table", "table with rows"])
def test_a_full_disk_is_called_one(existing: bool, tasks: int, spark: SparkSession, small_disk: Path) -> None:  # noqa: FBT001 - a case
    """A task that fails removes its files. One that Spark kills because of it cannot: VACUUM does."""
    table = small_disk / "t"
    if existing:
        write(_events(spark).withColumn("x", F.lit("")), table, timestampColumn="ts")
    before = on_disk(table)
    much = _events(spark, 100_000).withColumn("x", F.sha2(F.col("id").cast("string"), 512)).repartition(tasks)
    _refused(much, table, "the disk is full", "free some space", timestampColumn="ts")
    left = on_disk(table) - before
    assert before <= on_disk(table)
    assert not left or tasks > 1
    assert commits(table) == ([0] if existing else [])
    if existing:
        assert logged(table) == before
        for path in left:
            (table / path).unlink()
        write(_events(spark).withColumn("x", F.lit("")), table)
        assert logged(table) == on_disk(table)


# --- a store that asks who is there


def _options(azurite: Azurite, **changed: str) -> dict[str, str]:
    return {f"storage.{key}": value for key, value in (azurite.storage_options() | changed).items()}


def test_credentials_that_do_not_fit_are_an_error_that_says_so(spark: SparkSession, azurite: Azurite) -> None:
    container = azurite.container("spark")
    uri = f"abfss://{container}@{azurite.account}.dfs.core.windows.net/refused"
    wrong = _options(azurite, azure_storage_account_key="d3Jvbmc=")
    with pytest.raises(PySparkException) as raised:
        _events(spark).write.format("lazydelta").mode("append").options(**wrong).save(uri)
    assert "was denied" in str(raised.value)
    assert "check the credentials in storage_options or the environment" in str(raised.value)
    assert not deltalake.DeltaTable.is_deltatable(uri, azurite.storage_options())


@pytest.mark.parametrize("scheme", ["abfss", "az"])
def test_batches_and_streams_go_to_azure(scheme: str, spark: SparkSession, azurite: Azurite, tmp_path: Path) -> None:
    container = azurite.container("spark")
    place = f"{container}@{azurite.account}.dfs.core.windows.net" if scheme == "abfss" else container
    uri = f"{scheme}://{place}/{scheme}-table"
    write_options = _options(azurite) | {"timestampColumn": "ts", "nullTimestamps": "reject"}
    nulls = spark.range(100, 103).withColumn("ts", F.lit(None).cast("timestamp"))
    _events(spark).union(nulls).write.format("lazydelta").mode("append").options(**write_options).save(uri)
    expected = make_source(tmp_path / "source", files=2, rows=5, first=1000)
    files = spark.readStream.schema("id long, ts timestamp").option("maxFilesPerTrigger", 1)
    ingest_stream(
        files.json(str(tmp_path / "source")),
        uri,
        checkpoint_location=str(tmp_path / "c"),
        trigger={"availableNow": True},
        storage_options=azurite.storage_options(),
    ).awaitTermination()

    def rows(of: str) -> list[int]:
        table = deltalake.DeltaTable(of, storage_options=azurite.storage_options())
        found = table.to_pyarrow_table()
        if "id" in found.column_names:
            return sorted(found["id"].to_pylist())
        return sorted(json.loads(each)["id"] for each in found["record"].to_pylist())

    assert rows(uri) == [0, 1, 2, 3, *expected]
    assert rows(f"{uri}_rejected") == [100, 101, 102]
