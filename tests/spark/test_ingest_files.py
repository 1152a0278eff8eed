"""Files become a table without a DataFrame between, in batches and as a stream."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from lazydelta.errors import DataFileError, OptionError, SchemaMismatchError, WriteError
from lazydelta.spark import ingest_files, ingest_files_stream
from lazydelta.spark.files import MicroBatch, Progress, start_files_stream
from lazydelta.storage import open_store
from tests.support.azurite import Azurite

pytestmark = [pytest.mark.xdist_group("spark")]

BEGIN = datetime(2026, 2, 10, 22, tzinfo=UTC)
NOW = {"availableNow": True}


def events(first: int, count: int) -> list[dict[str, Any]]:
    """Return one event every ten minutes, across midnight."""
    return [
        {"device": f"d{n % 3}", "ts": (BEGIN + timedelta(minutes=10 * n)).isoformat(), "n": n}
        for n in range(first, first + count)
    ]


def put(folder: Path, name: str, rows: Sequence[Any]) -> None:
    """Let a file of JSON lines come to a folder whole; texts are lines as they are."""
    folder.mkdir(exist_ok=True)
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    (folder / f"_{name}").write_text(text)
    (folder / f"_{name}").rename(folder / name)


def rows_of(table: Path | str, storage_options: dict[str, str] | None = None) -> list[dict[str, Any]]:
    found = deltalake.DeltaTable(table, storage_options=storage_options).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row["n"])


def numbers(table: Path) -> list[int]:
    return [row["n"] for row in rows_of(table)]


def data_files(table: Path) -> set[str]:
    return {str(each.relative_to(table)) for each in table.rglob("*.parquet") if "_delta_log" not in each.parts}


def test_json_files_become_a_table_that_others_read(spark: SparkSession, tmp_path: Path) -> None:
    source, table = tmp_path / "in %20ü", tmp_path / "table"
    for number in range(4):
        put(source, f"{number}.json", events(number * 10, 10))
    progress = Progress()
    done = ingest_files(spark, str(source), str(table), timestamp_column="ts", progress=progress)
    assert (done.version, done.rows, done.rejected) == (0, 40, 0)
    assert (progress.phase, progress.source_files, progress.rows) == ("done", 4, 40)
    rows = rows_of(table)
    assert [(row["device"], row["n"], row["ts"]) for row in rows] == [
        (row["device"], row["n"], datetime.fromisoformat(row["ts"])) for row in events(0, 40)
    ]
    assert all(row["_event_hour"] == f"{row['ts']:%Y%m%d%H}" for row in rows)
    # Few rows: one file an hour, however many tasks there were.
    assert done.files == len({row["_event_hour"] for row in rows}) == len(data_files(table))


def test_parquet_files_keep_their_types_and_are_split_among_tasks(spark: SparkSession, tmp_path: Path) -> None:
    source, table = tmp_path / "in", tmp_path / "table"
    source.mkdir()
    count = 300_000
    timestamps = pa.array([1_770_732_000_000_000 + n * 48_000 for n in range(count)], pa.timestamp("us", "UTC"))
    texts = [f"x{n * 7919}" for n in range(count)]
    whole = pa.table({"n": pa.array(range(count), pa.int32()), "ts": timestamps, "text": texts})
    for number in range(3):
        part = whole.slice(number * 100_000, 100_000)
        pq.write_table(part, source / f"{number}.parquet", row_group_size=20_000, compression="none")
    progress = Progress()
    done = ingest_files(spark, str(source), str(table), timestamp_column="ts", progress=progress)
    assert progress.tasks == 2
    assert done.rows == count
    read = deltalake.DeltaTable(table).to_pyarrow_table().sort_by("n")
    assert read.select(["n", "ts", "text"]).equals(whole)
    again = ingest_files(spark, f"{source}/0.parquet", str(table), mode="overwrite")
    assert again.version == 1
    assert deltalake.DeltaTable(table).to_pyarrow_table().num_rows == 100_000


def test_bad_rows_go_to_the_rejected_table_with_reason_and_place(spark: SparkSession, tmp_path: Path) -> None:
    source, table = tmp_path / "in", tmp_path / "table"
    put(source, "a.json", [*events(0, 3), "broken", {"n": "x"}, {"n": 9, "other": 1}, *events(3, 2), {"n": 7}])
    done = ingest_files(
        spark,
        str(source),
        str(table),
        schema="n int, device string, ts timestamp",
        timestamp_column="ts",
        null_timestamps="reject",
    )
    assert (done.rows, done.rejected) == (5, 4)
    assert numbers(table) == [0, 1, 2, 3, 4]
    rejected = deltalake.DeltaTable(f"{table}_rejected").to_pyarrow_table().sort_by("source").to_pylist()
    assert [(row["source"], row["record"]) for row in rejected] == [
        (f"{source}/a.json:4", "broken"),
        (f"{source}/a.json:5", '{"n": "x"}'),
        (f"{source}/a.json:6", '{"n": 9, "other": 1}'),
        (f"{source}/a.json:9", '{"n": 7}'),
    ]
    assert "timestamp column 'ts'" in rejected[3]["reason"]


def test_a_bad_row_can_fail_it_all_and_then_nothing_is_left_behind(spark: SparkSession, tmp_path: Path) -> None:
    source, table = tmp_path / "in", tmp_path / "table"
    put(source, "a.json", events(0, 3))
    ingest_files(spark, str(source), str(table), timestamp_column="ts")
    before = data_files(table)
    put(source, "b.json", [*events(3, 2), "broken"])
    with pytest.raises(WriteError, match=r"b\.json:3: .*nothing was committed"):
        ingest_files(spark, str(source), str(table), on_bad_rows="fail")
    assert deltalake.DeltaTable(table).version() == 0
    assert data_files(table) == before
    assert not Path(f"{table}_rejected").exists()


def put_csv(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(text.encode())


def test_nothing_of_csv_files_disappears(spark: SparkSession, tmp_path: Path) -> None:
    source, table = tmp_path / "in", tmp_path / "table"
    put_csv(source, "a.csv", 'n,s\r\n0,"x\r\ny"\r\n1,"x"y\r\n2,z\r\n')
    put_csv(source, "b.csv", 'N , S\n3,p\n4,"q\n5,r\n')
    done = ingest_files(spark, str(source), str(table), schema="n int, s string")
    assert (done.rows, done.rejected) == (3, 3)
    assert rows_of(table) == [{"n": 0, "s": "x\r\ny"}, {"n": 2, "s": "z"}, {"n": 3, "s": "p"}]
    rejected = deltalake.DeltaTable(f"{table}_rejected").to_pyarrow_table().sort_by("source").to_pylist()
    assert [(row["source"], row["record"]) for row in rejected] == [
        (f"{source}/a.csv:4", '1,"x"y'),
        (f"{source}/b.csv:3", '4,"q'),
        (f"{source}/b.csv:4", "5,r"),
    ]


def test_a_file_that_is_rejected_entirely_is_an_error_by_default(spark: SparkSession, tmp_path: Path) -> None:
    source, table = tmp_path / "in", tmp_path / "table"
    put_csv(source, "a.csv", "n,s\n0,x\n1,y\n")
    ingest_files(spark, str(source), str(table))
    before = data_files(table)
    put_csv(source, "b.csv", "2,x\n3,y\n")
    sentence = r"2 of 2 rows of .*b\.csv were rejected.*b\.csv:1: the first line is no header.*header=false"
    with pytest.raises(WriteError, match=sentence):
        ingest_files(spark, str(source), str(table))
    with pytest.raises(WriteError, match=sentence):
        ingest_files(spark, str(source), str(table), max_rejected=10)
    assert deltalake.DeltaTable(table).version() == 0
    assert data_files(table) == before
    assert not data_files(Path(f"{table}_rejected"))
    done = ingest_files(spark, str(source), str(table), max_rejected="100%", mode="overwrite")
    assert (done.rows, done.rejected) == (2, 2)
    rejected = deltalake.DeltaTable(f"{table}_rejected").to_pyarrow_table()["record"].to_pylist()
    assert sorted(rejected) == ["2,x", "3,y"]
    done = ingest_files(spark, f"{source}/b.csv", str(table), header=False)
    assert (done.rows, done.rejected) == (2, 0)
    assert numbers(table) == [0, 1, 2, 3]


def test_more_rejected_rows_than_allowed_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    source, table = tmp_path / "in", tmp_path / "table"
    put(source, "a.json", [*events(0, 8), "broken", {"n": "x"}])
    put(source, "b.json", events(8, 10))
    for limit in (1, 0.05, "9.9%"):
        with pytest.raises(WriteError, match=r"2 of 20 rows of 2 files were rejected, .*a\.json:9: .*a\.json:10: "):
            ingest_files(spark, str(source), str(table), timestamp_column="ts", max_rejected=limit)
    assert not (table / "_delta_log").exists()
    assert not data_files(table) | data_files(Path(f"{table}_rejected"))
    done = ingest_files(spark, str(source), str(table), timestamp_column="ts", max_rejected="10%")
    assert (done.rows, done.rejected) == (18, 2)


def test_rejected_rows_of_a_dataframe_are_bounded_as_well(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    rows = spark.createDataFrame([(1, BEGIN), (2, None), (3, None)], "n int, ts timestamp")
    write = rows.write.format("lazydelta").mode("append").option("timestampColumn", "ts")
    write = write.option("nullTimestamps", "reject")
    with pytest.raises(PySparkException, match="2 of 3 rows of the data were rejected, and max_rejected is 50%"):
        write.option("maxRejected", "50%").save(str(table))
    assert not (table / "_delta_log").exists()
    assert not data_files(table) | data_files(Path(f"{table}_rejected"))
    write.option("maxRejected", "2").save(str(table))
    assert numbers(table) == [1]


def test_files_of_finished_tasks_are_deleted_when_another_fails(spark: SparkSession, tmp_path: Path) -> None:
    source, table = tmp_path / "in", tmp_path / "table"
    source.mkdir()
    count = 400_000
    rows = pa.table({"n": range(count), "ts": pa.array([1_770_732_000_000_000] * count, pa.timestamp("us", "UTC"))})
    rows = rows.append_column("text", pa.array([f"{n * 7919}" * 3 for n in range(count)]))
    pq.write_table(rows, source / "a.parquet", compression="none")
    pq.write_table(rows, source / "b.parquet", compression="none")
    damaged = bytearray((source / "b.parquet").read_bytes())
    damaged[-3_000_000:-2_000_000] = bytes(1_000_000)  # the last rows of the file, and not its footer
    (source / "b.parquet").write_bytes(damaged)
    with pytest.raises(DataFileError, match=r"b\.parquet cannot be read"):
        ingest_files(spark, str(source), str(table), timestamp_column="ts")
    assert not (table / "_delta_log").exists()
    assert data_files(table) == set()


def test_a_parquet_file_with_a_column_that_the_table_lacks_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    source, table = tmp_path / "in", tmp_path / "table"
    source.mkdir()
    pq.write_table(pa.table({"n": [1]}), source / "a.parquet")
    ingest_files(spark, str(source), str(table))
    pq.write_table(pa.table({"n": [2], "new": ["x"]}), source / "a.parquet")
    with pytest.raises(SchemaMismatchError, match="the column 'new'"):
        ingest_files(spark, str(source), str(table))
    done = ingest_files(spark, str(source), str(table), merge_schema=True)
    assert done.version == 1
    assert rows_of(table) == [{"n": 1, "new": None}, {"n": 2, "new": "x"}]


def test_a_batch_that_names_itself_is_ingested_once(spark: SparkSession, tmp_path: Path) -> None:
    source, table = tmp_path / "in", tmp_path / "table"
    put(source, "a.json", events(0, 5))
    for expected in (False, True):
        done = ingest_files(spark, str(source), str(table), timestamp_column="ts", app_id="nightly", app_version=0)
        assert done.already_committed is expected
    assert numbers(table) == [0, 1, 2, 3, 4]


def test_what_makes_no_sense_is_refused_in_our_words(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "a.json", events(0, 1))
    (tmp_path / "empty").mkdir()
    source, table = str(tmp_path / "in"), str(tmp_path / "table")
    with pytest.raises(OptionError, match="There is no"):
        ingest_files(spark, str(tmp_path / "nowhere"), table)
    with pytest.raises(OptionError, match="no files to ingest"):
        ingest_files(spark, str(tmp_path / "empty"), table)
    with pytest.raises(OptionError, match="is not Spark's DDL"):
        ingest_files(spark, source, table, schema="n integer number")
    with pytest.raises(OptionError, match="on_bad_rows"):
        ingest_files(spark, source, table, on_bad_rows="ignore")
    with pytest.raises(OptionError, match="no column 'when'"):
        ingest_files(spark, source, table, timestamp_column="when")
    assert not (tmp_path / "table").exists()


def test_a_cancelled_ingestion_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "a.json", events(0, 100))
    progress = Progress()
    assert progress.cancel()
    with pytest.raises(WriteError, match="cancelled"):
        ingest_files(spark, str(tmp_path / "in"), str(tmp_path / "table"), timestamp_column="ts", progress=progress)
    assert not (tmp_path / "table").exists()


def test_source_and_table_may_lie_in_azure(spark: SparkSession, azurite: Azurite, tmp_path: Path) -> None:
    container = azurite.container("spark-files")
    place = f"abfss://{container}@{azurite.account}.dfs.core.windows.net"
    options = azurite.storage_options()
    lines = "".join(json.dumps(row) + "\n" for row in events(0, 20))
    open_store(f"{place}/in", options).put("a b%.json", lines.encode())
    done = ingest_files(spark, f"{place}/in", f"{place}/table", timestamp_column="ts", storage_options=options)
    assert done.rows == 20
    assert [row["n"] for row in rows_of(f"{place}/table", options)] == list(range(20))
    local = ingest_files(
        spark, f"{place}/in/*.json", str(tmp_path / "t"), timestamp_column="ts", source_storage_options=options
    )
    assert local.rows == 20


# --- streams


def test_a_stream_ingests_each_file_once_and_goes_on_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    source, table, notes = tmp_path / "in [1] %20ü", tmp_path / "table", str(tmp_path / "notes")

    def run() -> list[MicroBatch]:
        seen: list[MicroBatch] = []
        stream = start_files_stream(
            spark,
            str(source),
            str(table),
            checkpoint_location=notes,
            trigger=NOW,
            timestamp_column="ts",
            on_batch=seen.append,
            max_files_per_trigger=2,
        )
        stream.query.awaitTermination()
        stream.close()
        return seen

    for number in range(3):
        put(source, f"{number} a%.json", events(number * 5, 5))
    (source / "_hidden.json").write_text("x")
    seen = run()
    assert [(each.number, each.source_files, each.result.rows) for each in seen] == [(0, 2, 10), (1, 1, 5)]
    assert all(each.lag is not None and each.lag >= 0 for each in seen)
    put(source, "3.json", events(15, 5))
    assert [(each.number, each.result.version, each.result.rows) for each in run()] == [(2, 2, 5)]
    assert numbers(table) == list(range(20))
    history = deltalake.DeltaTable(table).history()
    assert {each["operation"] for each in history} == {"STREAMING UPDATE"}


def test_odd_names_and_folders_within_lose_and_double_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source, table = tmp_path / "in {a,b}[1]", tmp_path / "table"
    # To Hadoop some of them are patterns that match others.
    names = ["a{1,2}.json", "a1.json", "a*.json", "b?.json", "b1.json", "c\\d.json", "cd.json"]
    for number, name in enumerate(names):
        put(source, name, events(number, 1))
    (source / "p=1").mkdir()
    put(source / "p=1", "x.json", events(100, 1))
    for most in (1, 3):
        stream = start_files_stream(
            spark,
            str(source),
            f"{table}{most}",
            checkpoint_location=str(tmp_path / f"notes{most}"),
            trigger=NOW,
            timestamp_column="ts",
            max_files_per_trigger=most,
        )
        stream.query.awaitTermination()
        assert numbers(Path(f"{table}{most}")) == list(range(len(names)))


def test_a_replayed_micro_batch_is_recognised_before_it_reads_or_writes(spark: SparkSession, tmp_path: Path) -> None:
    source, table, notes = tmp_path / "in", tmp_path / "table", tmp_path / "notes"
    put(source, "0.json", events(0, 5))

    def run() -> list[MicroBatch]:
        seen: list[MicroBatch] = []
        stream = start_files_stream(
            spark,
            str(source),
            str(table),
            checkpoint_location=str(notes),
            trigger=NOW,
            timestamp_column="ts",
            on_batch=seen.append,
            format="json",
        )
        stream.query.awaitTermination()
        return seen

    run()
    before = data_files(table)
    shutil.rmtree(notes / "commits")  # as if Spark had been killed before it noted that the batch is done
    (source / "0.json").unlink()  # and it was cleaned up
    assert [(each.number, each.result.already_committed) for each in run()] == [(0, True)]
    assert data_files(table) == before
    assert numbers(table) == [0, 1, 2, 3, 4]


def test_a_fresh_checkpoint_location_skips_nothing(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "0.json", events(0, 3))
    for notes in ("first", "second"):
        ingest_files_stream(
            spark,
            str(tmp_path / "in"),
            str(tmp_path / "table"),
            checkpoint_location=str(tmp_path / notes),
            trigger=NOW,
            timestamp_column="ts",
        ).awaitTermination()
    assert numbers(tmp_path / "table") == [0, 0, 1, 1, 2, 2]


def test_a_stream_that_is_stopped_finishes_its_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "0.json", events(0, 3))
    seen: list[MicroBatch] = []
    stream = start_files_stream(
        spark,
        str(tmp_path / "in"),
        str(tmp_path / "table"),
        checkpoint_location=str(tmp_path / "notes"),
        timestamp_column="ts",
        on_batch=seen.append,
    )
    stream.query.processAllAvailable()
    stream.stop()
    stream.close()
    assert not stream.query.isActive
    assert stream.query.exception() is None
    assert numbers(tmp_path / "table") == [0, 1, 2]


def test_a_stream_makes_checkpoints_as_often_as_the_table_says(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        put(tmp_path / "in", f"{number}.json", events(number, 1))
    stream = start_files_stream(
        spark,
        str(tmp_path / "in"),
        str(tmp_path / "table"),
        checkpoint_location=str(tmp_path / "notes"),
        trigger=NOW,
        timestamp_column="ts",
        max_files_per_trigger=1,
        properties={"delta.checkpointInterval": "3"},
    )
    stream.query.awaitTermination()
    stream.close()
    log = tmp_path / "table" / "_delta_log"
    assert (log / f"{3:020}.checkpoint.parquet").exists()
    assert list((log / "_sidecars").glob("v*.manifest.json"))


def test_a_file_that_is_rejected_entirely_ends_a_stream_and_is_read_when_it_is_corrected(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, table = tmp_path / "in", tmp_path / "table"
    put_csv(source, "a.csv", "n;s\n1;x\n")

    def run(**options: Any) -> None:
        ingest_files_stream(
            spark,
            str(source),
            str(table),
            checkpoint_location=str(tmp_path / "notes"),
            trigger=NOW,
            schema="n int, s string",
            **options,
        ).awaitTermination()

    with pytest.raises(StreamingQueryException, match=r"2 of 2 rows of .*a\.csv were rejected.*semicolons"):
        run()
    assert not (table / "_delta_log").exists()
    put_csv(source, "a.csv", "n,s\n1,x\n")
    run(max_rejected=0)
    assert rows_of(table) == [{"n": 1, "s": "x"}]


def test_an_error_in_a_micro_batch_ends_the_query_in_our_words(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", "0.json", ["broken"])
    stream = start_files_stream(
        spark,
        str(tmp_path / "in"),
        str(tmp_path / "table"),
        checkpoint_location=str(tmp_path / "notes"),
        schema="n int",
        on_bad_rows="fail",
        trigger=NOW,
    )
    with pytest.raises(StreamingQueryException, match=r"0\.json:1"):
        stream.query.awaitTermination()
    assert isinstance(stream.failure, WriteError)
    assert not (tmp_path / "table" / "_delta_log").exists()
