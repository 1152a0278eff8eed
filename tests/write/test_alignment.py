"""No row of a table that is aligned to time lies where a question about its hour does not look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lazydelta
from lazydelta.errors import OptionError, SchemaMismatchError, WriteError
from lazydelta.write.create import create_table

UTC = pa.timestamp("us", "UTC")
HOUR = 3_600_000_000
SCHEMA = pa.schema([("at", UTC), ("n", pa.int64())])


def data(*timestamps: float | None, **more: list[str | None]) -> pa.Table:
    at = [None if hour is None else round(hour * HOUR) for hour in timestamps]
    return pa.table({"at": pa.array(at, UTC), "n": pa.array(range(len(at)), pa.int64()), **more})


def hours(table: Path, column: str = "_event_hour") -> list[str | None]:
    return sorted(lazydelta.DeltaTable(table).to_pyarrow_table()[column].to_pylist(), key=repr)


def data_files(table: Path) -> list[Path]:
    return [each for each in table.rglob("*.parquet") if "_delta_log" not in each.parts]


# --- tables that are created before they are filled


@pytest.mark.parametrize(
    ("options", "column", "expected"),
    [
        ({}, "_event_hour", "1970010105"),
        ({"boundary": "day"}, "_event_day", "19700101"),
        ({"boundary": "minute", "partition_column": "slot"}, "slot", "197001010500"),
    ],
    ids=["hour", "day", "named"],
)
def test_a_table_remembers_from_its_creation_how_it_is_aligned(
    options: dict[str, str], column: str, expected: str, tmp_path: Path
) -> None:
    create_table(tmp_path, SCHEMA, timestamp_column="at", **options)  # type: ignore[arg-type]
    lazydelta.write_arrow(tmp_path, data(5, None))
    assert hours(tmp_path, column) == [expected, None]
    assert lazydelta.DeltaTable(tmp_path).metadata().partition_columns == [column]


def test_a_table_may_be_created_with_the_column_that_is_made(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("_event_hour", pa.string())).append(pa.field("site", pa.string()))
    create_table(tmp_path, schema, timestamp_column="at", partition_by=["site", "_event_hour"])
    lazydelta.write_arrow(tmp_path, data(5, site=["x"]))
    assert lazydelta.DeltaTable(tmp_path).metadata().partition_columns == ["site", "_event_hour"]
    assert hours(tmp_path) == ["1970010105"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestamp_column": "when"}, "no column 'when'"),
        ({"timestamp_column": "n"}, "not a timestamp"),
        ({"timestamp_column": "at", "boundary": "week"}, "boundary='week'"),
        ({"timestamp_column": "at", "partition_column": "n"}, "is text, but here it is int64"),
        ({"boundary": "day"}, "needs a timestamp column"),
        ({"partition_column": "day"}, "needs a timestamp column"),
    ],
)
def test_an_alignment_that_makes_no_sense_creates_nothing(
    options: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=message):
        create_table(tmp_path / "t", SCHEMA, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "t").exists()


def test_rows_with_a_time_do_not_go_to_the_null_hour_of_a_table_that_does_not_say_how_it_is_aligned(
    tmp_path: Path,
) -> None:
    # As other writers make such tables.
    schema = SCHEMA.append(pa.field("_event_hour", pa.string()))
    create_table(tmp_path, schema, partition_by=["_event_hour"])
    nulls: list[str | None] = [None, ""]
    for lost in (data(1, 2), data(1, 2, _event_hour=nulls)):
        with pytest.raises(WriteError, match="2 rows have a time but no value in the partition column '_event_hour'"):
            lazydelta.write_arrow(tmp_path, lost)
    assert data_files(tmp_path) == []
    lazydelta.write_arrow(tmp_path, data(1, None), timestamp_column="at")
    lazydelta.write_arrow(tmp_path, data(2, None, _event_hour=["1970010102", None]))
    assert hours(tmp_path) == ["1970010101", "1970010102", None, None]


# --- rows that bring the column


@pytest.mark.parametrize("value", ["hello", "1999010100", "1970010100", "19700101010"])
@pytest.mark.parametrize("options", [{}, {"timestamp_column": "at"}], ids=["remembered", "named"])
def test_an_hour_that_is_not_that_of_the_time_is_refused(options: dict[str, str], value: str, tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, data(1), timestamp_column="at")
    wrong = data(1, 1, _event_hour=["1970010101", value])
    with pytest.raises(WriteError, match=f"1 rows have another value.*has '{value}' in place of '1970010101'"):
        lazydelta.write_arrow(tmp_path, wrong, **options)  # type: ignore[arg-type]
    assert lazydelta.DeltaTable(tmp_path).version() == 0
    assert len(data_files(tmp_path)) == 1


def test_an_hour_without_a_time_is_refused(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, data(1), timestamp_column="at")
    with pytest.raises(WriteError, match="has '1970010101' in place of None"):
        lazydelta.write_arrow(tmp_path, data(None, _event_hour=["1970010101"]))
    with pytest.raises(SchemaMismatchError, match="from 'at', which the data lacks"):
        lazydelta.write_arrow(tmp_path, pa.table({"n": [1], "_event_hour": ["1970010101"]}))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str
)
@pytest.mark.parametrize("existing", [False, True], ids=["new table", "table with rows"])
def test_the_right_hour_and_none_are_taken(existing: bool, kind: pa.DataType, tmp_path: Path) -> None:  # noqa: FBT001 - a case
    if existing:
        lazydelta.write_arrow(tmp_path, data(9), timestamp_column="at")
    values = pa.array(["1970010101", None, "", None], pa.string()).cast(kind)
    brought = data(1, 2, 3, None).append_column("_EVENT_HOUR", values)
    lazydelta.write_arrow(tmp_path, brought, timestamp_column="at")
    made = ["1970010101", "1970010102", "1970010103", *(["1970010109"] if existing else []), None]
    assert hours(tmp_path) == made
    assert "_EVENT_HOUR" not in lazydelta.DeltaTable(tmp_path).schema().names


def test_a_column_of_nulls_without_a_type_is_filled(tmp_path: Path) -> None:
    brought = data(1).append_column("_event_hour", pa.nulls(1))
    for _ in range(2):
        lazydelta.write_arrow(tmp_path, brought, timestamp_column="at")
    assert hours(tmp_path) == ["1970010101"] * 2


def test_a_column_that_is_no_text_cannot_be_the_hour(tmp_path: Path) -> None:
    brought = data(1).append_column("_event_hour", pa.array([1970010101]))
    with pytest.raises(OptionError, match="is text, but here it is int64"):
        lazydelta.write_arrow(tmp_path, brought, timestamp_column="at")


def test_the_time_may_be_spelled_in_another_case(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, data(1), timestamp_column="at")
    lazydelta.write_arrow(tmp_path, data(2).rename_columns(["AT", "n"]))
    lazydelta.write_arrow(tmp_path, data(3), timestamp_column="At")
    assert hours(tmp_path) == ["1970010101", "1970010102", "1970010103"]


def test_a_table_that_lost_the_column_is_no_longer_taken_for_aligned(tmp_path: Path) -> None:
    properties = {
        "lazydelta.timestampColumn": "at",
        "lazydelta.partitionColumn": "_event_hour",
        "lazydelta.boundary": "hour",
    }
    create_table(tmp_path, SCHEMA, properties=properties)
    lazydelta.write_arrow(tmp_path, data(1))
    assert lazydelta.DeltaTable(tmp_path).to_pyarrow_table().num_rows == 1


def test_a_table_that_another_writer_aligned_otherwise_meanwhile_is_not_written_to(tmp_path: Path) -> None:
    both = pa.table({"at": pa.array([HOUR], UTC), "seen": pa.array([5 * HOUR], UTC)})

    def slow() -> Iterator[pa.RecordBatch]:
        yield from both.to_batches()
        lazydelta.write_arrow(tmp_path, both, timestamp_column="seen")

    with pytest.raises(WriteError, match="aligned by its column 'seen'"):
        lazydelta.write_arrow(tmp_path, slow(), timestamp_column="at")
    assert hours(tmp_path) == ["1970010105"]
    assert len(data_files(tmp_path)) == 1
