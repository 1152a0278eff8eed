from __future__ import annotations

import datetime as dt
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.measure import measure
from lazydelta.errors import OptionError, StorageError, WriteError
from lazydelta.runtime.threads import Task
from lazydelta.storage import Request, observe, open_store
from lazydelta.write import data_files
from lazydelta.write.data_files import DataFileWriter

SCHEMA = pa.schema([("n", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("p", pa.string())])


def batch(numbers: list[int], partitions: list[str | None] | None = None) -> pa.RecordBatch:
    timestamp = dt.datetime(2026, 2, 10, tzinfo=dt.UTC)
    columns = {"n": numbers, "t": [timestamp] * len(numbers), "p": partitions or ["a"] * len(numbers)}
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def rows_of(folder: Path, path: str) -> list[int]:
    found: list[int] = pq.ParquetFile(folder / unquote(path)).read().column("n").to_pylist()
    return found


def test_each_file_holds_one_partition_and_keeps_the_order_of_its_rows(tmp_path: Path) -> None:
    with DataFileWriter(open_store(tmp_path), SCHEMA, ["p"]) as writer:
        writer.write(batch([1, 2, 3, 4], ["b", "a", None, "b"]))
        writer.write(batch([5, 6], ["a", ""]))
        adds = writer.close()
    assert {add.partition_values["p"]: rows_of(tmp_path, add.path) for add in adds} == {
        "a": [2, 5],
        "b": [1, 4],
        None: [3, 6],
    }


def test_an_add_tells_name_size_statistics_and_time(tmp_path: Path) -> None:
    before = dt.datetime.now(dt.UTC).timestamp() * 1000
    with DataFileWriter(open_store(tmp_path), SCHEMA, ["p"], first_number=7) as writer:
        writer.write(batch([1, 2], ["x y%", "x y%"]))
        (add,) = writer.close()
    assert re.fullmatch(r"p=x%20y%2525/part-00007-[0-9a-f-]{36}\.ld1\.zstd\.parquet", add.path)
    assert add.size == (tmp_path / unquote(add.path)).stat().st_size
    assert add.partition_values == {"p": "x y%"}
    assert add.data_change
    assert before - 1 <= add.modification_time <= before + 60_000
    assert json.loads(add.stats or "") == {
        "numRecords": 2,
        "minValues": {"n": 1, "t": "2026-02-10T00:00:00Z"},
        "maxValues": {"n": 2, "t": "2026-02-10T00:00:00Z"},
        "nullCount": {"n": 0, "t": 0},
    }


def test_files_have_microseconds_page_checksums_and_no_partition_columns(tmp_path: Path) -> None:
    with DataFileWriter(open_store(tmp_path), SCHEMA, ["p"], compression="snappy") as writer:
        writer.write(batch([1]))
        (add,) = writer.close()
    assert add.path.endswith(".ld1.snappy.parquet")
    file = pq.ParquetFile(tmp_path / add.path, page_checksum_verification=True)
    assert file.schema.names == ["n", "t"]
    kind = json.loads(file.schema.column(1).logical_type.to_json())
    assert (kind["timeUnit"], kind["isAdjustedToUTC"]) == ("microseconds", True)
    assert file.schema.column(1).physical_type == "INT64"
    assert file.metadata.row_group(0).column(0).compression == "SNAPPY"
    content = bytearray((tmp_path / add.path).read_bytes())
    column = file.metadata.row_group(0).column(0)
    for position in range(column.data_page_offset, column.data_page_offset + column.total_compressed_size):
        content[position] ^= 0x10
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(content)
    with pytest.raises((OSError, pa.ArrowException)):
        pq.ParquetFile(broken, page_checksum_verification=True).read(["n"])


def test_dictionaries_are_for_values_that_repeat_and_codecs_for_what_gets_smaller(tmp_path: Path) -> None:
    count = 20_000
    rows = pa.table(
        {
            "few": [f"device-{number % 50}" for number in range(count)],
            "many": [number * 7919 for number in range(count)],
            "noise": random.Random(1).sample(range(1 << 62), count),
            "nested": [{"a": [number % 3]} for number in range(count)],
        }
    )
    schema = pa.schema([*rows.schema.remove(3), ("nested", pa.struct([("a", pa.list_(pa.int64()))]))])
    with DataFileWriter(open_store(tmp_path), schema) as writer:
        writer.write(rows.cast(schema).combine_chunks().to_batches()[0])
        (add,) = writer.close()
    group = pq.ParquetFile(tmp_path / add.path).metadata.row_group(0)
    chunks = {(chunk := group.column(index)).path_in_schema: chunk for index in range(4)}
    encoded = {name: (chunk.has_dictionary_page, chunk.compression) for name, chunk in chunks.items()}
    assert encoded == {
        "few": (True, "ZSTD"),
        "many": (False, "ZSTD"),
        "noise": (False, "UNCOMPRESSED"),
        "nested.a.list.element": (True, "ZSTD"),
    }


def test_partition_columns_may_come_encoded_by_a_dictionary(tmp_path: Path) -> None:
    values = pa.array(["y", None, "y", "x"]).dictionary_encode()
    schema = pa.schema([("n", pa.int64()), ("p", pa.string())])
    with DataFileWriter(open_store(tmp_path), schema, ["p"]) as writer:
        writer.write(pa.RecordBatch.from_arrays([pa.array([1, 2, 3, 4]), values], ["n", "p"]))
        adds = writer.close()
    found = {add.partition_values["p"]: pq.read_table(tmp_path / add.path)["n"].to_pylist() for add in adds}
    assert found == {"y": [1, 3], None: [2], "x": [4]}


def test_a_file_that_is_full_is_followed_by_another(tmp_path: Path) -> None:
    target = 100_000
    with DataFileWriter(open_store(tmp_path), SCHEMA, ["p"], target_file_size=target) as writer:
        for start in range(0, 400_000, 50_000):
            writer.write(batch([number * 7919 % 1_000_003 for number in range(start, start + 50_000)]))
        adds = writer.close()
    assert len(adds) > 2
    assert max(add.size for add in adds) < 1.2 * target
    assert sum(len(rows_of(tmp_path, add.path)) for add in adds) == 400_000
    counted = [json.loads(add.stats or "")["numRecords"] for add in adds]
    assert counted == [len(rows_of(tmp_path, add.path)) for add in adds]


def test_one_huge_batch_is_cut_into_several_row_groups(tmp_path: Path) -> None:
    with DataFileWriter(open_store(tmp_path), SCHEMA, []) as writer:
        writer.write(batch(list(range(1_500_000))))
        adds = writer.close()
    (add,) = adds
    file = pq.ParquetFile(tmp_path / add.path)
    assert file.metadata.num_rows == 1_500_000
    assert file.metadata.num_row_groups > 1


def test_nothing_is_written_for_no_rows(tmp_path: Path) -> None:
    with DataFileWriter(open_store(tmp_path), SCHEMA, ["p"]) as writer:
        writer.write(batch([]))
        assert writer.close() == []
    assert files_in(tmp_path) == []


def test_aborting_deletes_what_was_written_also_after_the_files_were_closed(tmp_path: Path) -> None:
    writer = DataFileWriter(open_store(tmp_path), SCHEMA, ["p"])
    writer.write(batch([1, 2], ["a", "b"]))
    writer.close()
    assert len(files_in(tmp_path)) == 2
    writer.abort()
    assert files_in(tmp_path) == []


def test_leaving_the_block_without_closing_deletes_what_was_written(tmp_path: Path) -> None:
    with DataFileWriter(open_store(tmp_path), SCHEMA, ["p"], target_file_size=1) as writer:
        writer.write(batch([1, 2], ["a", "b"]))
    assert files_in(tmp_path) == []


def _failing(verb: str, number: int) -> Callable[[Request], None]:
    seen = iter(range(1000))

    def hook(request: Request) -> None:
        if request.verb == verb and next(seen) == number:
            raise StorageError("the disk is full", path=request.path)

    return hook


@pytest.mark.parametrize("number", range(4))
def test_a_file_that_cannot_be_written_takes_the_others_with_it(number: int, tmp_path: Path) -> None:
    writer = DataFileWriter(open_store(tmp_path), SCHEMA, ["p"])
    writer.write(batch([1, 2, 3, 4], ["a", "b", "c", "d"]))
    with observe(_failing("PUT", number)), pytest.raises(StorageError, match="disk is full"):
        writer.close()
    assert files_in(tmp_path) == []


def test_a_file_that_cannot_be_deleted_is_no_error_but_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = DataFileWriter(open_store(tmp_path), SCHEMA, ["p"])
    writer.write(batch([1, 2], ["a", "b"]))
    writer.close()
    with observe(_failing("DELETE", 0)):
        writer.abort()
    assert len(files_in(tmp_path)) == 1
    assert "no version of the table refers to" in caplog.text


def test_a_closed_writer_takes_no_more_rows(tmp_path: Path) -> None:
    writer = DataFileWriter(open_store(tmp_path), SCHEMA)
    writer.close()
    with pytest.raises(WriteError, match="was closed"):
        writer.write(batch([1]))


def test_a_batch_of_another_schema_is_refused(tmp_path: Path) -> None:
    with (
        DataFileWriter(open_store(tmp_path), SCHEMA) as writer,
        pytest.raises(WriteError, match=r"n: int32.*n: int64"),
    ):
        writer.write(pa.RecordBatch.from_pydict({"n": pa.array([1], pa.int32())}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_columns": ["x"]}, "'x' is not in the schema"),
        ({"partition_columns": ["p", "p"]}, "named twice"),
        ({"partition_columns": ["n", "t", "p"]}, "All columns are partition columns"),
        ({"compression": "lz4"}, "compression='lz4'"),
        ({"target_file_size": 0}, "must be positive"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        DataFileWriter(open_store(tmp_path), SCHEMA, **options)


def test_a_small_budget_makes_more_files_and_loses_no_row(tmp_path: Path) -> None:
    with DataFileWriter(open_store(tmp_path), SCHEMA, ["p"], memory_budget=200_000) as writer:
        for start in range(0, 50_000, 5_000):
            numbers = list(range(start, start + 5_000))
            writer.write(batch(numbers, [f"{number % 7}" for number in numbers]))
        adds = writer.close()
    assert len(adds) > 7
    found = sorted(number for add in adds for number in rows_of(tmp_path, add.path))
    assert found == list(range(50_000))


@pytest.mark.memory
def test_work_for_many_partitions_is_in_proportion_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of each partition come by themselves, as they do when tasks of a cluster set them aside."""
    looked_at = 0
    is_done, held = Task.done, vars(data_files._OpenFile)["held_bytes"].fget

    def done(task: Task[Any]) -> bool:
        nonlocal looked_at
        looked_at += 1
        return is_done(task)

    def held_bytes(file: Any) -> int:
        nonlocal looked_at
        looked_at += 1
        size: int = held(file)
        return size

    monkeypatch.setattr(Task, "done", done)
    monkeypatch.setattr(data_files._OpenFile, "held_bytes", property(held_bytes))
    count = 300
    rows = pa.record_batch({"v": [1]})
    with DataFileWriter(open_store(tmp_path), pa.schema({"v": pa.int64(), "p": pa.string()}), ["p"]) as writer:
        for index in range(count):
            writer.write_partition((str(index),), rows)
        assert len(writer.close()) == count
    assert looked_at < 10 * count


@pytest.mark.parametrize("hours", [100, pytest.param(1, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_rows(hours: int, tmp_path: Path) -> None:
    """64 MB may be held at once; the encoder and the batches themselves come on top, whatever the number of rows."""
    imports = ("lazydelta.ingest.arrow", "pyarrow.parquet")
    peaks = []
    for count in (60, 240):
        measured = measure(
            "tests.write.arrow_work:write", str(tmp_path / str(count)), count, hours, 64 << 20, imports=imports
        )
        assert measured.failure is None
        assert measured.peak_bytes is not None
        peaks.append(measured.peak_bytes)
    assert peaks[1] < 1.3 * peaks[0], peaks
    assert peaks[1] < 300 << 20, peaks
