"""``partition_format``: partition values as strftime writes them, if they sort as time."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from lazydelta import DeltaTable, write_arrow, write_deltalake
from lazydelta.cli.app import cli
from lazydelta.errors import OptionError, SchemaMismatchError, WriteError
from lazydelta.write.alignment import boundary_of
from lazydelta.write.create import create_table

FORMATS = [
    ("month", "%Y/%m"),
    ("day", "%F"),
    ("day", "d%Y.%j"),
    ("hour", "%Y-%m-%d-%H"),
    ("hour", "%FT%H:00"),
    ("minute", "%Y%m%d %R"),
    ("second", "%F %T"),
    ("hour", "%Y%j%H%M 100%%"),
]
STEPS = {"month": 32 * 86_400, "day": 86_400, "hour": 3600, "minute": 60, "second": 1}


@pytest.mark.parametrize(("name", "text"), FORMATS)
def test_values_are_those_of_strftime_and_sort_as_time(name: str, text: str) -> None:
    rng = random.Random(text)
    times = sorted(
        datetime(1000, 1, 1, tzinfo=UTC) + timedelta(seconds=rng.randrange(280_000_000_000)) for _ in range(300)
    )
    times += [times[-1] + timedelta(seconds=STEPS[name] * number) for number in range(1, 200)]
    boundary = boundary_of(name, text)
    values = boundary.values(pa.array(times, pa.timestamp("us", tz="UTC"))).cast(pa.string()).to_pylist()
    cut = {"month": {"day": 1, "hour": 0}, "day": {"hour": 0}, "hour": {}, "minute": {}, "second": {}}[name]
    zero = {"minute": 0, "second": 0} if name not in {"minute", "second"} else {}
    zero = {"second": 0} if name == "minute" else zero
    assert values == [each.replace(**cut, **zero).strftime(text) for each in times]  # type: ignore[arg-type]
    assert values == sorted(values)
    usual = boundary_of(name).values(pa.array(times, pa.timestamp("us", tz="UTC"))).cast(pa.string()).to_pylist()
    assert len(set(zip(usual, values, strict=True))) == len(set(usual)) == len(set(values)), "one for each"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("hour", "%d-%m-%Y-%H", "%d after % nothing"),
        ("hour", "%Y-%m-%H", "%H after %m"),
        ("hour", "%y%m%d%H", "%y after % nothing"),
        ("hour", "%Y%m%d%I", "%I after %d"),
        ("hour", "%Y%m%d", "does not distinguish one hour from the next"),
        ("day", "%Y %B", "%B after %Y"),
        ("day", "%Y%m%d%", "a single % at its end"),
        ("month", "always", "does not distinguish one month from the next"),
    ],
)
def test_what_does_not_sort_as_time_is_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        boundary_of(name, text)


def _rows(*hours: int) -> pa.Table:
    times = [datetime(2026, 2, 10, hour, 30, tzinfo=UTC) for hour in hours]
    return pa.table({"at": pa.array(times, pa.timestamp("us", tz="UTC")), "n": pa.array(hours, pa.int64())})


@pytest.mark.parametrize("made_by", ["write", "create", "command"])
def test_a_table_records_its_format_and_prunes_by_it(made_by: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    layout: dict[str, Any] = {"timestamp_column": "at", "partition_format": "%Y-%m-%d-%H"}
    if made_by == "create":
        create_table(uri, _rows().schema, **layout)
    elif made_by == "command":
        columns = ["--column", "at:timestamp", "--column", "n:bigint"]
        options = ["--timestamp-column", "at", "--partition-format", layout["partition_format"]]
        done = CliRunner().invoke(cli, ["create", uri, *columns, *options], prog_name="lazydelta")
        assert done.exit_code == 0, done.output
    write_arrow(uri, _rows(5, 6), **(layout if made_by == "write" else {}))
    write_arrow(uri, _rows(7), boundary="hour")
    table = DeltaTable(uri)
    assert table.metadata().configuration["lazydelta.partitionFormat"] == layout["partition_format"]
    hours = {file.partition_values["_event_hour"] for file in table.files()}
    assert hours == {f"2026-02-10-{hour:02d}" for hour in (5, 6, 7)}
    assert len(list(table.files("_event_hour >= '2026-02-10-06'"))) == 2
    other: dict[str, Any] = {"timestamp_column": "at", "partition_format": "%Y%m%d%H"}
    with pytest.raises(SchemaMismatchError, match="yyyy-MM-dd-HH, not as yyyyMMddHH"):
        write_arrow(uri, _rows(8), **other)
    with pytest.raises(OptionError, match="partition_format defines a time boundary"):
        write_arrow(tmp_path / "u", _rows(8), partition_format="%F %H")


def _expression(uri: Path) -> object:
    field = next(each for each in DeltaTable(uri).schema().fields if each.name == "_event_hour")
    return field.metadata.get("delta.generationExpression")


@pytest.mark.parametrize("made_by", ["write", "create", "command"])
def test_the_partition_column_is_a_generated_column_where_asked(made_by: str, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    layout: dict[str, Any] = {"timestamp_column": "at", "partition_generated": True}
    if made_by == "create":
        create_table(uri, _rows().schema, **layout)
    elif made_by == "command":
        columns = ["--column", "at:timestamp", "--column", "n:bigint"]
        options = ["--timestamp-column", "at", "--partition-generated"]
        done = CliRunner().invoke(cli, ["create", str(uri), *columns, *options], prog_name="lazydelta")
        assert done.exit_code == 0, done.output
    write_arrow(uri, _rows(5, 6), **(layout if made_by == "write" else {}))
    write_arrow(uri, _rows(7))
    assert _expression(uri) == "date_format(`at`, 'yyyy-MM-dd-HH')"
    assert DeltaTable(uri).protocol().min_writer_version == 4

    table = DeltaTable(uri)
    later = datetime(2026, 2, 10, 9, tzinfo=UTC)
    table.update(new_values={"at": later}, predicate="n = 5")
    merger = table.merge(_rows(6, 8).set_column(0, "at", pa.array([later] * 2)), "s.n = t.n", "s", "t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()
    write_deltalake(uri, _rows(11).append_column("_event_hour", pa.array(["2026-02-10-11"])), mode="append")
    found = DeltaTable(uri).to_pyarrow_table().sort_by("n").select(["n", "_event_hour"]).to_pydict()
    hours = [9, 9, 7, 9, 11]
    assert found == {"n": [5, 6, 7, 8, 11], "_event_hour": [f"2026-02-10-{hour:02d}" for hour in hours]}
    with pytest.raises(WriteError, match="1 rows have another value"):
        write_arrow(uri, _rows(5).append_column("_event_hour", pa.array(["2026-02-10-11"])))

    write_arrow(uri, _rows(1).append_column("more", pa.array([1])), mode="overwrite", overwrite_schema=True)
    assert _expression(uri) == "date_format(`at`, 'yyyy-MM-dd-HH')"
    assert DeltaTable(uri).to_pyarrow_table()["_event_hour"].to_pylist() == ["2026-02-10-01"]


def test_a_generated_partition_column_is_made_of_new_tables_only(tmp_path: Path) -> None:
    write_arrow(tmp_path / "t", _rows(5), timestamp_column="at")
    with pytest.raises(SchemaMismatchError, match="is not a generated column"):
        write_arrow(tmp_path / "t", _rows(5), timestamp_column="at", partition_generated=True)
    write_arrow(tmp_path / "u", _rows(5))
    with pytest.raises(SchemaMismatchError, match="is not a generated column"):
        write_arrow(tmp_path / "u", _rows(5), timestamp_column="at", partition_generated=True)
    with pytest.raises(OptionError, match="partition_generated"):
        write_arrow(tmp_path / "v", _rows(5), partition_generated=True)
    with pytest.raises(OptionError, match="letters"):
        write_arrow(tmp_path / "v", _rows(5), timestamp_column="at", partition_format="%FT%H", partition_generated=True)
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize(
    ("boundary", "value"), [("month", "2026-02"), ("day", "2026-02-10"), ("minute", "202602100530")]
)
def test_generated_partitions_have_the_formats_that_delta_spark_knows(
    tmp_path: Path, boundary: str, value: str
) -> None:
    write_arrow(tmp_path, _rows(5), timestamp_column="at", boundary=boundary, partition_generated=True)
    [file] = DeltaTable(tmp_path).files()
    assert list(file.partition_values.values()) == [value]


def test_the_alignment_of_a_table_that_generates_its_column_otherwise_is_refused(tmp_path: Path) -> None:
    hours = pa.field(
        "_event_hour", pa.string(), metadata={"delta.generationExpression": 'DATE_FORMAT(at, "yyyyMMddHH")'}
    )
    create_table(tmp_path, _rows().schema.append(hours), partition_by=["_event_hour"])
    write_arrow(tmp_path, _rows(5))
    write_arrow(tmp_path, _rows(5), timestamp_column="at")
    assert {file.partition_values["_event_hour"] for file in DeltaTable(tmp_path).files()} == {"2026021005"}
    with pytest.raises(SchemaMismatchError, match="omit timestamp_column"):
        write_arrow(tmp_path, _rows(5), timestamp_column="at", partition_format="%Y-%m-%d-%H")
