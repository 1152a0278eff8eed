"""``partition_format``: partition values as strftime writes them, if they sort as time."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from lazydelta import DeltaTable, write_arrow
from lazydelta.cli.app import cli
from lazydelta.errors import OptionError, SchemaMismatchError
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
        ("hour", "%Y%m%d", "does not tell one hour from the next"),
        ("day", "%Y %B", "%B after %Y"),
        ("day", "%Y%m%d%", "a single % at its end"),
        ("month", "always", "does not tell one month from the next"),
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
    with pytest.raises(OptionError, match="partition_format says how a time is cut off"):
        write_arrow(tmp_path / "u", _rows(8), partition_format="%F %H")
