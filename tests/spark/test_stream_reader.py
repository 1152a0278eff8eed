"""The reader of a stream as Spark calls it, step by step, without a JVM."""

from __future__ import annotations

import json
import pickle
import traceback
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles

import lazydelta
from lazydelta.errors import LazyDeltaError, OptionError, SchemaMismatchError, StreamStoppedError
from lazydelta.rows import stream_source
from lazydelta.spark.errors import error_of_ours, with_spark_names
from lazydelta.spark.source import LazyDeltaSource
from tests.rows.made_table import make_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql.datasource import DataSourceStreamReader


def append(table: Path, *ids: int) -> None:
    rows = {
        "id": pa.array(ids, pa.int64()),
        "part": pa.array([f"{each % 2}" for each in ids]),
        "amount": pa.array([Decimal(each) / 4 for each in ids], pa.decimal128(10, 2)),
        "tags": pa.array([{"k": each} for each in ids], pa.map_(pa.string(), pa.int32())),
        "at": pa.array([None for _ in ids], pa.timestamp("us", "UTC")),
        "list": pa.array([[{"x": 1.5}] for _ in ids], pa.list_(pa.struct([("x", pa.float32())]))),
    }
    lazydelta.write_arrow(table, pa.table(rows), partition_by=["part"], maintain=False)


def reader_of(table: Path, **options: Any) -> DataSourceStreamReader:
    source = LazyDeltaSource({"path": str(table), **{key: str(value) for key, value in options.items()}})
    return source.streamReader(source.schema())


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def rows_between(reader: DataSourceStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Read as tasks do: from pickles of the reader and of each partition."""
    partitions = pickle.loads(pickle.dumps(list(reader.partitions(start, end))))  # noqa: S301 - our own
    task = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own
    wanted = to_arrow_schema(task._struct, timezone="UTC")
    found: list[int] = []
    for each in partitions:
        for batch in task.read(each):
            assert isinstance(batch, pa.RecordBatch)
            assert batch.schema.equals(wanted)
            found += batch["id"].to_pylist()
    return found


@pytest.mark.parametrize("named", [0, 10_000], ids=["ranges", "names"])
def test_what_spark_asks_for_in_its_order(tmp_path: Path, named: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_source.plan_pieces, "__kwdefaults__", {"named": named})
    table = tmp_path / "t"
    append(table, 0, 1, 2, 3)
    append(table, 4, 5)
    reader = reader_of(table, maxFilesPerTrigger=3)
    assert reader.getDefaultReadLimit() == ReadMaxFiles(3)
    start = through_json(reader.initialOffset())
    assert start == {
        "sourceVersion": 1,
        "tableId": lazydelta.DeltaTable(table).metadata().id,
        "version": 1,
        "index": 0,
        "isInitialSnapshot": True,
        "isBeginning": True,
    }
    end = through_json(reader.latestOffset(start, ReadMaxFiles(3)))
    assert (end["index"], end["isInitialSnapshot"], len(end["lastFile"])) == (3, True, 2)
    seen = rows_between(reader, start, end)
    append(table, 6)
    last = through_json(reader.latestOffset(end, ReadAllAvailable()))
    seen += rows_between(reader, end, last)
    assert sorted(seen) == list(range(7))
    assert (last["version"], last["index"], last["isInitialSnapshot"]) == (3, 0, False)
    assert reader.latestOffset(last, ReadAllAvailable()) == last
    assert list(reader.partitions(last, last)) == []


@pytest.mark.parametrize("named", [0, 10_000], ids=["ranges", "names"])
def test_a_large_file_becomes_several_tasks_that_have_each_row_once(
    tmp_path: Path, named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its row groups, of which there are twenty; files that fit stay whole."""
    monkeypatch.setattr(stream_source.plan_pieces, "__kwdefaults__", {"named": named})
    table = tmp_path / "t"
    make_table(table, files=2, rows=1000, group=50)
    lazydelta.write_arrow(table, pa.table({"id": [2000], "part": [7], "text": ["t"]}), maintain=False)
    sizes = sorted(file.size for file in lazydelta.DeltaTable(table).files())
    for name in ("_MOST_BYTES", "_LEAST_BYTES", "_LEAST_SHARE"):
        monkeypatch.setattr(stream_source, name, -(-sizes[2] // 3))
    assert sizes[0] < sizes[2] // 3
    reader = reader_of(table)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    partitions = list(reader.partitions(start, end))
    assert len(partitions) == 3 + 3 + 1
    found = [pa.Table.from_batches(reader.read(each))["id"].to_pylist() for each in partitions]
    assert [len(each) for each in found] == [350, 350, 300, 350, 350, 300, 1]
    assert sorted(row for each in found for row in each) == list(range(2001))


@pytest.mark.parametrize("options", [{}, {"startingVersion": "latest"}], ids=["snapshot", "latest"])
def test_a_driver_that_was_killed_in_the_first_micro_batch_reads_the_same_again(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Spark has noted only where it ends, and asks where a stream begins when the table has gone on."""
    table = tmp_path / "t"
    append(table, 0, 1)
    reader = reader_of(table, **options)
    start = reader.initialOffset()
    append(table, 2)
    end = through_json(reader.latestOffset(start, ReadAllAvailable()))
    first = rows_between(reader, start, end)
    append(table, 3)
    again = reader_of(table, **options)
    assert rows_between(again, through_json(again.initialOffset()), end) == first
    assert sorted(first) == ([2] if options else [0, 1, 2])
    rest = again.latestOffset(end, ReadAllAvailable())
    assert rows_between(again, end, rest) == [3]


def test_available_now_ends_at_the_version_of_its_beginning(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, 0)
    reader = reader_of(table, maxBytesPerTrigger="1b", startingVersion=0)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(1)
    append(table, 1)
    reader.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]
    append(table, 2)
    start, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(start, limit)) != start:
        seen.append(rows_between(reader, start, end))
        start = end
    assert seen == [[0], [1]]


def test_columns_that_changed_after_load_are_told(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append(table, 0)
    source = LazyDeltaSource({"path": str(table)})
    struct = source.schema()
    more = pa.table({"id": [1], "part": ["1"], "new": [1]})
    lazydelta.write_arrow(table, more, schema_mode="merge", maintain=False)
    with pytest.raises(StreamStoppedError, match=r"'new'\], and the DataFrame has .*load it again"):
        source.streamReader(struct).initialOffset()


def test_a_source_without_a_place_and_options_of_batches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"There is no table to read \(name it"):
        LazyDeltaSource({}).schema()
    append(tmp_path / "t", 0)
    with pytest.raises(OptionError, match="startingVersion says where a stream begins"):
        reader_of(tmp_path / "t", versionAsOf=0)
    with pytest.raises(OptionError, match=r"The option 'where' is not valid for a stream \(filter what is loaded"):
        reader_of(tmp_path / "t", where="id = 1")


def test_what_stops_a_stream_is_said_before_the_traceback(tmp_path: Path) -> None:
    """Spark prints what its worker raises as Python does."""
    table = tmp_path / "t"
    append(table, 0)
    append(table, 1)
    reader = reader_of(table, startingVersion=0)
    start = reader.initialOffset()
    (table / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(LazyDeltaError) as raised:
        reader.latestOffset(start, ReadAllAvailable())
    first, *_ = "".join(traceback.format_exception(raised.value)).splitlines()
    assert first.startswith("lazydelta.errors.")
    assert "failOnDataLoss" in first


def test_hints_are_in_sparks_names_and_nothing_else_of_an_error_changes() -> None:
    told = SchemaMismatchError("no", path="p", version=3, hint="drop it, or pass schema_mode='merge' to add it")
    found = with_spark_names(told)
    assert (type(found), str(found), found.path, found.version) == (
        SchemaMismatchError,
        "no (drop it, or set mergeSchema to true to add it)",
        "p",
        3,
    )
    assert told.hint == "drop it, or pass schema_mode='merge' to add it"
    listed = SchemaMismatchError("no", hint="cast the column to list<item: int32> yourself, or drop it")
    assert with_spark_names(listed).hint == "cast it to the type that the table has, or drop it"
    stated = RuntimeError(
        "[PYTHON] Traceback\n  File x\nlazydelta.errors.SchemaMismatchError: no (do this) SQLSTATE: 38000"
    )
    assert str(error_of_ours(stated)) == "no (do this)"
    wrapped = RuntimeError("[PYTHON] Traceback\n  File x\nlazydelta.errors.SchemaMismatchError: no (do this)\n\n\tat y")
    assert (type(error_of_ours(wrapped)), str(error_of_ours(wrapped))) == (SchemaMismatchError, "no (do this)")
