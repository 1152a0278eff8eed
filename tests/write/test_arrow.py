from __future__ import annotations

import datetime as dt
import io
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import csv

import lazydelta
from lazydelta.errors import (
    CommitConflictError,
    OptionError,
    SchemaMismatchError,
    StorageError,
    UnsupportedFeatureError,
    WriteError,
)
from lazydelta.storage import Request, observe
from lazydelta.write.create import create_table
from tests.support.azurite import Azurite

UTC = pa.timestamp("us", "UTC")
HOUR = 3_600_000_000


def events(*hours: int | None) -> pa.Table:
    """Return one row for each hour since 1970."""
    at = pa.array([None if hour is None else hour * HOUR + 1 for hour in hours], UTC)
    return pa.table({"at": at, "n": pa.array(range(len(hours)), pa.int64())})


def rows(table: Path | str, *columns: str, **options: Any) -> list[Any]:
    found = lazydelta.DeltaTable(table, **options).to_pyarrow_table(columns=list(columns) or None)
    return sorted(found.to_pylist(), key=repr)


def numbers(table: Path | str, **options: Any) -> list[int]:
    return sorted(row["n"] for row in rows(table, "n", **options))


def data_files(table: Path) -> list[Path]:
    return [path for path in table.rglob("*.parquet") if "_delta_log" not in path.parts]


def commit(table: Path, version: int) -> list[dict[str, Any]]:
    text = (table / "_delta_log" / f"{version:020}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_column_may_have_no_name(tmp_path: Path) -> None:
    """As Delta-Spark and deltalake write it; it prunes like any other."""
    for value in (1, 2):
        lazydelta.write_arrow(tmp_path, pa.table({"": [value], "n": [value]}))
    assert lazydelta.DeltaTable(tmp_path).files([("", "=", 2)]).count() == 1
    assert rows(tmp_path) == deltalake.DeltaTable(tmp_path).to_pyarrow_table().sort_by("n").to_pylist()


def test_a_table_that_does_not_exist_is_created_by_the_commit_that_fills_it(tmp_path: Path) -> None:
    properties = {"delta.checkpointInterval": "5"}
    version = lazydelta.write_arrow(tmp_path, events(0, 1), properties=properties, name="events", description="what")
    table = lazydelta.DeltaTable(tmp_path)
    assert (version, table.version()) == (0, 0)
    assert (table.metadata().name, table.metadata().description) == ("events", "what")
    assert table.metadata().configuration == properties
    assert numbers(tmp_path) == [0, 1]


def test_appending_returns_the_next_version_and_keeps_what_was_there(tmp_path: Path) -> None:
    assert [lazydelta.write_arrow(tmp_path, events(0, 1)) for _ in range(3)] == [0, 1, 2]
    assert numbers(tmp_path) == [0, 0, 0, 1, 1, 1]


def test_rows_are_partitioned_by_the_hour_of_a_timestamp(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(0, 1, 1, None), timestamp_column="at")
    table = lazydelta.DeltaTable(tmp_path)
    assert table.metadata().partition_columns == ["_event_hour"]
    assert {file.partition_values["_event_hour"]: file.num_records for file in table.files(stats_columns=[])} == {
        "1970010100": 1,
        "1970010101": 2,
        None: 1,
    }
    assert [file.path.split("/")[0] for file in table.files("_event_hour = '1970010101'")] == ["_event_hour=1970010101"]


@pytest.mark.parametrize(
    ("boundary", "value"),
    [
        ("month", "197001"),
        ("day", "19700101"),
        ("hour", "1970010102"),
        ("minute", "197001010200"),
        ("second", "19700101020000"),
    ],
)
def test_every_boundary_has_its_column(boundary: str, value: str, tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(2), timestamp_column="at", boundary=boundary)
    assert rows(tmp_path, f"_event_{boundary}") == [{f"_event_{boundary}": value}]


def test_an_append_by_hour_may_name_the_timestamps_again(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(0), timestamp_column="at")
    lazydelta.write_arrow(tmp_path, events(5), timestamp_column="at")
    lazydelta.write_arrow(tmp_path, events(6))
    assert {row["_event_hour"] for row in rows(tmp_path)} == {"1970010100", "1970010105", "1970010106"}
    with pytest.raises(SchemaMismatchError, match=r'expected: \["_event_hour"\], got: \["_event_day"\]'):
        lazydelta.write_arrow(tmp_path, events(5), timestamp_column="at", boundary="day")


def test_further_partition_columns_come_after_the_hour(tmp_path: Path) -> None:
    data = events(0).append_column("region", pa.array(["eu"]))
    lazydelta.write_arrow(tmp_path, data, timestamp_column="at", partition_by=["region"])
    table = lazydelta.DeltaTable(tmp_path)
    assert table.metadata().partition_columns == ["_event_hour", "region"]
    assert [file.path.rsplit("/", 1)[0] for file in table.files()] == ["_event_hour=1970010100/region=eu"]


def test_rows_without_a_timestamp_may_be_refused(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="1 rows have no value in the timestamp column 'at'"):
        lazydelta.write_arrow(tmp_path, events(0, None), timestamp_column="at", null_timestamps="reject")
    assert not lazydelta.DeltaTable.is_deltatable(tmp_path)
    assert data_files(tmp_path) == []


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from table.to_batches(max_chunksize=1)


@pytest.mark.parametrize(
    "form",
    [
        lambda table: table,
        lambda table: table.to_batches()[0],
        lambda table: table.to_reader(max_chunksize=1),
        lambda table: table.to_batches(max_chunksize=1),
        _batches,
        pl.from_arrow,
    ],
    ids=["table", "batch", "reader", "list", "generator", "polars"],
)
def test_rows_may_come_in_any_form_of_arrow(form: Callable[[pa.Table], Any], tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, form(events(0, 1, 2)))
    assert rows(tmp_path) == events(0, 1, 2).to_pylist()


@pytest.mark.parametrize("data", [None, 5, "rows", {"a": 1}, [5]], ids=str)
def test_what_is_not_arrow_is_refused(data: object, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"Rows cannot be read from|is not a record batch|do not make columns"):
        lazydelta.write_arrow(tmp_path, data)


def test_an_empty_table_makes_an_empty_table_and_an_empty_commit(tmp_path: Path) -> None:
    nothing = events().slice(0, 0)
    assert [lazydelta.write_arrow(tmp_path, nothing), lazydelta.write_arrow(tmp_path, nothing)] == [0, 1]
    assert rows(tmp_path) == []
    with pytest.raises(OptionError, match="no batches"):
        lazydelta.write_arrow(tmp_path, iter([]))


def test_an_overwrite_replaces_the_whole_table(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(0, 1), timestamp_column="at")
    lazydelta.write_arrow(tmp_path, events(7), timestamp_column="at", mode="overwrite")
    assert [row["_event_hour"] for row in rows(tmp_path)] == ["1970010107"]
    assert numbers(tmp_path, version=0) == [0, 1]


def test_an_overwrite_by_predicate_replaces_the_partitions_it_selects(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(0, 1, 2), timestamp_column="at")
    lazydelta.write_arrow(
        tmp_path, events(1, 1), timestamp_column="at", mode="overwrite", overwrite_where="_event_hour >= '1970010101'"
    )
    assert [row["_event_hour"] for row in rows(tmp_path, "_event_hour")] == ["1970010100", "1970010101", "1970010101"]


def test_an_overwrite_by_predicate_writes_no_row_outside_of_it(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(0, 1), timestamp_column="at")
    before = data_files(tmp_path)
    options: dict[str, Any] = {"mode": "overwrite", "overwrite_where": "_event_hour = '1970010101'"}
    with pytest.raises(WriteError, match=r"Invalid data found: 1 rows .* not selected by overwrite_where"):
        lazydelta.write_arrow(tmp_path, events(1, 2), timestamp_column="at", **options)
    assert data_files(tmp_path) == before
    assert numbers(tmp_path) == [0, 1]


def test_an_overwrite_by_a_column_that_is_no_partition_replaces_rows_inside_of_files(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, pa.concat_tables([events(0), events(1), events(0)]), timestamp_column="at")
    before = lazydelta.DeltaTable(tmp_path).to_pyarrow_table()
    chosen: list[Any] = [("n", "=", 0)]
    lazydelta.write_arrow(tmp_path, events(0), timestamp_column="at", mode="overwrite", overwrite_where=chosen)
    after = lazydelta.DeltaTable(tmp_path).to_pyarrow_table()
    kept = [each for each in before["n"].to_pylist() if each != 0]
    assert sorted(after["n"].to_pylist()) == sorted([*kept, *events(0)["n"].to_pylist()])


def test_an_append_only_table_is_not_overwritten(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(0), properties={"delta.appendOnly": "true"})
    with pytest.raises(WriteError, match="append-only"):
        lazydelta.write_arrow(tmp_path, events(1), mode="overwrite")
    assert len(data_files(tmp_path)) == 1


def test_a_table_with_a_feature_that_we_do_not_write_is_refused_before_any_file(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(0))
    log = tmp_path / "_delta_log"
    lines = commit(tmp_path, 0)
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}}
    changed = [protocol if "protocol" in line else line for line in lines]
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, changed)))
    (log / f"{0:020}.crc").unlink(missing_ok=True)
    with pytest.raises(UnsupportedFeatureError, match="rowTracking"):
        lazydelta.write_arrow(tmp_path, events(1))
    assert len(data_files(tmp_path)) == 1


def test_a_replayed_write_is_made_once(tmp_path: Path) -> None:
    def write(version: int) -> int:
        return lazydelta.write_arrow(tmp_path, events(0), app_id="stream", app_version=version)

    assert [write(0), write(0), write(1), write(0)] == [0, 0, 1, 1]
    assert numbers(tmp_path) == [0, 0]
    assert len(data_files(tmp_path)) == 2


def test_a_replay_that_races_with_its_twin_is_made_once_and_leaves_no_file(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(0))

    def slow() -> Iterator[pa.RecordBatch]:
        yield from events(1).to_batches()
        lazydelta.write_arrow(tmp_path, events(1), app_id="stream", app_version=3)

    lazydelta.write_arrow(tmp_path, slow(), app_id="stream", app_version=3)
    assert len(numbers(tmp_path)) == 2
    assert len(data_files(tmp_path)) == 2


def test_an_append_goes_behind_what_others_committed_meanwhile(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(0))

    def slow() -> Iterator[pa.RecordBatch]:
        yield from events(1).to_batches()
        for _ in range(3):
            lazydelta.write_arrow(tmp_path, events(2))

    assert lazydelta.write_arrow(tmp_path, slow()) == 4
    assert len(rows(tmp_path)) == 5


def test_an_overwrite_that_lost_a_race_leaves_no_file(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(0))

    def slow() -> Iterator[pa.RecordBatch]:
        yield from events(1, 2).to_batches()
        lazydelta.write_arrow(tmp_path, events(5))

    with pytest.raises(CommitConflictError):
        lazydelta.write_arrow(tmp_path, slow(), mode="overwrite")
    assert len(data_files(tmp_path)) == 2
    assert len(rows(tmp_path)) == 2


def test_writers_that_create_one_table_at_once_all_succeed(tmp_path: Path) -> None:
    barrier = threading.Barrier(4)

    def write(number: int) -> int:
        def together() -> Iterator[pa.RecordBatch]:
            yield from events(number).to_batches()
            barrier.wait(30)

        return lazydelta.write_arrow(tmp_path, together(), timestamp_column="at")

    with ThreadPoolExecutor(4) as pool:
        versions = sorted(pool.map(write, range(4)))
    assert versions == [0, 1, 2, 3]
    assert len(rows(tmp_path)) == 4


def test_a_table_that_somebody_else_created_with_other_columns_is_not_touched(tmp_path: Path) -> None:
    def slow() -> Iterator[pa.RecordBatch]:
        yield from events(1).to_batches()
        lazydelta.write_arrow(tmp_path, pa.table({"x": [1]}))

    with pytest.raises(CommitConflictError, match="meanwhile"):
        lazydelta.write_arrow(tmp_path, slow())
    assert rows(tmp_path) == [{"x": 1}]
    assert len(data_files(tmp_path)) == 1


def test_rows_that_cannot_be_read_to_their_end_leave_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from events(*range(100)).to_batches()
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError, match="the source is gone"):
        lazydelta.write_arrow(tmp_path, broken(), timestamp_column="at", memory_budget=1)
    reader = csv.open_csv(io.BytesIO(b"a,b\n1,2\n3\n"), csv.ReadOptions(block_size=8))
    with pytest.raises(WriteError, match=r"could not be read.*Expected 2 columns"):
        lazydelta.write_arrow(tmp_path, reader)
    assert data_files(tmp_path) == []
    assert not lazydelta.DeltaTable.is_deltatable(tmp_path)


def test_files_stay_where_it_is_not_known_whether_the_commit_arrived(tmp_path: Path) -> None:
    """Deleting them would damage the table if it did."""
    lazydelta.write_arrow(tmp_path, events(0))

    def hook(request: Request) -> None:
        if "_delta_log" in request.path and request.path.endswith("1.json") and request.verb in {"PUT", "GET"}:
            raise StorageError("the network is gone", path=request.path)

    with observe(hook), pytest.raises(StorageError, match="not known"):
        lazydelta.write_arrow(tmp_path, events(1))
    assert len(data_files(tmp_path)) == 2


def test_the_commit_says_what_was_done(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(0, 1), timestamp_column="at")
    info = commit(tmp_path, 0)[0]["commitInfo"]
    assert info["operation"] == "WRITE"
    assert info["operationParameters"] == {"mode": "Append", "partitionBy": '["_event_hour"]'}
    assert info["operationMetrics"]["numOutputRows"] == "2"


def test_a_checkpoint_is_written_when_it_is_due(tmp_path: Path) -> None:
    properties = {"delta.checkpointInterval": "2"}
    for _ in range(3):
        lazydelta.write_arrow(tmp_path, events(0), timestamp_column="at", properties=properties)
    assert (tmp_path / "_delta_log" / f"{2:020}.checkpoint.parquet").exists()
    assert numbers(tmp_path) == [0, 0, 0]


def test_properties_of_a_table_that_exists_cannot_be_given(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(0), properties={"a": "b"})
    lazydelta.write_arrow(tmp_path, events(0), properties={"a": "b"})
    with pytest.raises(OptionError, match="its property a is 'b', not 'c'"):
        lazydelta.write_arrow(tmp_path, events(0), properties={"a": "c"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "replace"}, "mode='replace'"),
        ({"schema_mode": "overwrite"}, "schema_mode='overwrite'"),
        ({"overwrite_where": "n = 1"}, "needs mode='overwrite'"),
        ({"timestamp_column": "when"}, "no column 'when'"),
        ({"timestamp_column": "n"}, "not a timestamp"),
        ({"timestamp_column": "at", "boundary": "week"}, "boundary='week'"),
        ({"boundary": "day"}, "there is no timestamp column"),
        ({"partition_column": "day"}, "there is no timestamp column"),
        ({"null_timestamps": "drop"}, "null_timestamps='drop'"),
        ({"app_id": "x"}, "belong together"),
        ({"compression": "bzip"}, "compression='bzip'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        lazydelta.write_arrow(tmp_path, events(0), **options)
    assert data_files(tmp_path) == []


def test_an_empty_value_of_a_partition_column_without_nulls_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("p", pa.string(), nullable=False), ("n", pa.int64())])
    create_table(tmp_path, schema, partition_by=["p"])
    with pytest.raises(SchemaMismatchError, match="'p' has empty values"):
        lazydelta.write_arrow(tmp_path, pa.table({"p": ["a", ""], "n": [1, 2]}))


def test_statistics_follow_the_properties_of_the_table(tmp_path: Path) -> None:
    data = pa.table({"a": [1], "b": [2]})
    lazydelta.write_arrow(tmp_path, data, properties={"delta.dataSkippingStatsColumns": "b"})
    (add,) = [line["add"] for line in commit(tmp_path, 0) if "add" in line]
    assert json.loads(add["stats"])["minValues"] == {"b": 2}


def test_a_write_to_azure_is_the_same(azurite: Azurite) -> None:
    place = f"az://{azurite.container('arrow')}/{uuid.uuid4().hex}"
    options = azurite.storage_options()
    for hour in (0, 1):
        lazydelta.write_arrow(place, events(hour), timestamp_column="at", storage_options=options)
    assert numbers(place, storage_options=options) == [0, 0]


def test_times_of_the_rows_do_not_depend_on_their_zone(tmp_path: Path) -> None:
    paris = pa.timestamp("s", "Europe/Paris")
    timestamp = dt.datetime(2026, 7, 1, 12, 0, tzinfo=dt.UTC)
    lazydelta.write_arrow(tmp_path, pa.table({"at": pa.array([timestamp], paris)}), timestamp_column="at")
    assert rows(tmp_path) == [{"at": timestamp, "_event_hour": "2026070112"}]
