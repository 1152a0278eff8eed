"""Source files become rows of the table's types, and what is no row is told apart from them exactly."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazydelta.errors import AccessDeniedError, DataFileError, OptionError, SchemaMismatchError, WriteError
from lazydelta.ingest.arrow import write_arrow
from lazydelta.ingest.csv import CsvSplitter, csv_lines
from lazydelta.ingest.files import SourceFormat, tasks_of
from lazydelta.ingest.json import JsonLines
from lazydelta.ingest.lines import BadRow, LineFormat, Lines, Splitter, blocks, rows_of_lines
from lazydelta.ingest.reading import read_units, refuse_rows, required_columns
from lazydelta.ingest.schema import source_schema
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import open_store
from lazydelta.write.plan import WritePlan

UTC_US = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("device", pa.string()), ("ts", UTC_US), ("n", pa.int64()), ("v", pa.float64())])


def read(
    source: str | os.PathLike[str],
    schema: pa.Schema = SCHEMA,
    *,
    file_format: str | None = None,
    required: str | None = None,
) -> tuple[list[dict[str, Any]], list[BadRow]]:
    found = SourceFormat.parse(source)
    files = found.files()
    kind = found.format_of(files, file_format)
    bad: list[BadRow] = []
    rows: list[dict[str, Any]] = []
    for task in tasks_of(found, files, kind, 2):
        for batch in read_units(found.store, task, kind, schema, bad.extend, required_columns(schema, required)):
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows, bad


def lines_of(bad: list[BadRow]) -> list[int]:
    return sorted(int(each.source.rpartition(":")[2]) for each in bad)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


# --- which files


def test_a_folder_stands_for_its_files_but_for_hidden_and_empty_ones(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "_c.json", ".d.json"):
        (tmp_path / name).write_text('{"device":"x"}\n')
    (tmp_path / "empty.json").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "e.json").write_text('{"device":"x"}\n')
    assert [each.path for each in SourceFormat.parse(tmp_path).files()] == ["a.json", "b.json"]


def test_a_file_and_a_pattern_stand_for_themselves(tmp_path: Path) -> None:
    folder = tmp_path / "sp ace%20ü[1]"
    folder.mkdir()
    for name in ("a 1.json", "a%31.json", "b.json", "[x].json"):
        (folder / name).write_text("{}\n")
    found = {
        "file": [each.path for each in SourceFormat.parse(folder / "a%31.json").files()],
        "brackets": [each.path for each in SourceFormat.parse(folder / "[x].json").files()],
        "pattern": [each.path for each in SourceFormat.parse(f"{folder}/a*.json").files()],
        "uri": [each.path for each in SourceFormat.parse(folder.as_uri() + "/a%20*.json").files()],
    }
    assert found == {
        "file": ["a%31.json"],
        "brackets": ["[x].json"],
        "pattern": ["a 1.json", "a%31.json"],
        "uri": ["a 1.json"],
    }


@pytest.mark.parametrize(("name", "hint"), [("nothing", "name a folder"), ("no*thing/x.json", "only the last part")])
def test_a_source_that_does_not_exist_is_named(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(OptionError, match=hint) as caught:
        SourceFormat.parse(tmp_path / name / "deeper").files()
    assert str(tmp_path) in str(caught.value)


def test_names_tell_the_format_if_they_agree(tmp_path: Path) -> None:
    for name in ("a.ndjson", "b.JSONL.gz"):
        (tmp_path / name).write_text("{}\n")
    source = SourceFormat.parse(tmp_path)
    assert source.format_of(source.files()) == "json"
    (tmp_path / "c.csv").write_text("a\n1\n")
    with pytest.raises(OptionError, match="pass the format"):
        source.format_of(source.files())


def test_a_codec_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json.zst").write_text("x")
    source = SourceFormat.parse(tmp_path)
    with pytest.raises(OptionError, match="gzip"):
        source.format_of(source.files(), "json")


def test_objects_of_a_store_are_read_as_files_are() -> None:
    store = open_store("memory://source-files/in")
    store.put("a.json", b'{"device":"a"}\n{"device":5}\n')
    store.put("_skip.json", b"x")
    rows, bad = read("memory://source-files/in/*.json")
    assert [row["device"] for row in rows] == ["a"]
    assert [each.source for each in bad] == ["memory://source-files/in/a.json:2"]
    assert [row["device"] for row in read("memory://source-files/in/a.json")[0]] == ["a"]


# --- how the work is cut


def test_large_parquet_files_are_cut_between_row_groups_and_every_row_is_read_once(tmp_path: Path) -> None:
    for number in range(3):
        values = np.random.default_rng(number).integers(0, 1 << 60, 600_000)
        pq.write_table(pa.table({"n": values}), tmp_path / f"{number}.parquet", row_group_size=50_000)
    source = SourceFormat.parse(tmp_path)
    tasks = tasks_of(source, source.files(), "parquet", 4)
    assert len(tasks) == 4
    weights = [sum(unit.weight for unit in task) for task in tasks]
    assert max(weights) < 1.3 * min(weights)
    assert any(unit.groups not in {None, (0, 12)} for task in tasks for unit in task)
    found = [
        value
        for task in tasks
        for batch in read_units(source.store, task, "parquet", SCHEMA, refuse_rows, {})
        for value in batch.column("n").to_pylist()
    ]
    wanted = [value for number in range(3) for value in pq.read_table(tmp_path / f"{number}.parquet")["n"].to_pylist()]
    assert found == wanted


def test_small_files_make_one_task_and_stay_in_order(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.json").write_text('{"n":1}\n')
    source = SourceFormat.parse(tmp_path)
    (task,) = tasks_of(source, source.files(), "json", 8)
    assert [unit.file.path for unit in task] == [f"{number:02}.json" for number in range(20)]


def test_blocks_hold_whole_lines_and_know_their_numbers() -> None:
    text = b"".join(b"%d" % number * (number % 7 + 1) + b"\n" for number in range(1000)) + b"the end"
    chunks = [text[start : start + 11] for start in range(0, len(text), 11)]
    found = list(blocks(chunks, Lines(), size=100))
    assert b"".join(each.data for each in found) == text
    assert all(each.data.endswith(b"\n") for each in found[:-1])
    numbers = [text[: text.index(each.data)].count(b"\n") + 1 for each in found]
    assert [each.first for each in found] == numbers


@pytest.mark.parametrize("length", [5_000, 3_000_000])
def test_a_line_that_is_too_long_is_rejected_with_all_its_text_and_its_neighbours_are_not(length: int) -> None:
    long = "xé" * (length // 3)
    text = f"a\n{long}\nb\n".encode()
    chunks = [text[start : start + 640] for start in range(0, len(text), 640)]
    found = list(blocks(chunks, Lines(), size=100, longest=1000))
    assert b"".join(each.data for each in found) == text
    assert b"".join(each.data for each in found if each.fault is None) == b"a\nb\n"
    bad: list[BadRow] = []
    rows = list(rows_of_lines([each for each in found if each.fault], JsonLines(SCHEMA), "f", bad.extend, {}))
    assert rows == []
    assert {each.source for each in bad} == {"f:2"}
    assert "".join(each.record for each in bad) == long
    assert all(len(each.record.encode()) <= 1 << 20 for each in bad)
    assert {each.reason for each in bad} == {"the line that begins in line 2 is longer than 1000 bytes"}


# --- JSON


def test_good_lines_around_bad_ones_are_kept_and_each_bad_one_is_told_once(tmp_path: Path) -> None:
    lines = [
        b'{"device":"a","n":1,"v":1.5,"ts":"2026-02-10T14:00:00Z"}',
        b"",
        b"null",  # a line that kills the reader of Arrow
        b'{"device":"b"',
        b'{"device":5}',
        b'{"n":1.5}',
        b'{"n":9223372036854775808}',
        b'{"unknown":1}',
        b'{"v":"1.5"}',
        b'{"ts":1770732000}',
        b'{"ts":"2026-02-30T00:00:00Z"}',
        b'{"ts":"yesterday"}',
        b'{"device":"a"}{"device":"b"}',
        b'{"device":"a","device":"b"}',
        b'{"device":"\xff"}',
        b"[1]",
        b'{"device":"' + b"[" * 5000,
        b'{"v":NaN}',
        b'{"device":"z","v":2}\r',
        b'{"device":null}',
    ]
    (tmp_path / "a.json").write_bytes(b"\n".join(lines))
    rows, bad = read(tmp_path)
    good = [
        {"device": "a", "ts": at("2026-02-10T14:00:00+00:00"), "n": 1, "v": 1.5},
        {"device": "z", "ts": None, "n": None, "v": 2.0},
        {"device": None, "ts": None, "n": None, "v": None},
    ]
    assert rows == good
    assert lines_of(bad) == list(range(3, 19))
    reasons = {int(each.source.rpartition(":")[2]): each.reason for each in bad}
    assert "unknown field `unknown`" in reasons[8]
    assert "ISO 8601" in reasons[10]
    assert {each.record for each in bad} >= {"null", '{"n":1.5}', '{"device":"\\xff"}'}


@pytest.mark.parametrize(
    ("text", "timestamp"),
    [
        ("2026-02-10T14:00:00Z", "2026-02-10T14:00:00+00:00"),
        ("2026-02-10 14:00:00", "2026-02-10T14:00:00+00:00"),
        ("2026-02-10T14:00:00.5", "2026-02-10T14:00:00.500000+00:00"),
        ("2026-02-10T14:00:00.123456+02:00", "2026-02-10T12:00:00.123456+00:00"),
        ("2026-02-10T14:00:00.1234567Z", "2026-02-10T14:00:00.123456+00:00"),
        ("2026-02-10 14:00:00.123456789-0530", "2026-02-10T19:30:00.123456+00:00"),
        ("2026-02-10T14:00+01", "2026-02-10T13:00:00+00:00"),
        ("2026-02-10", "2026-02-10T00:00:00+00:00"),
        ("1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.999999+00:00"),
    ],
)
@pytest.mark.parametrize("beside", [[], ["2026-02-10T14:00:00Z", "2026-02-10 14:00:00"]])
def test_timestamps_are_iso_text_and_utc_without_a_zone(
    tmp_path: Path, text: str, timestamp: str, beside: list[str]
) -> None:
    for kind in ("json", "csv"):
        rows = [text, *beside]
        body = [json.dumps({"ts": each}) for each in rows] if kind == "json" else ["ts", *rows]
        (tmp_path / f"a.{kind}").write_text("\n".join(body))
        found, bad = read(tmp_path / f"a.{kind}")
        assert bad == []
        assert found[0]["ts"] == at(timestamp)


def test_every_type_of_a_table_can_be_read_from_json(tmp_path: Path) -> None:
    inner = pa.struct([("at", UTC_US), ("days", pa.list_(pa.date32()))])
    schema = pa.schema(
        [
            ("b", pa.int8()),
            ("d", pa.date32()),
            ("dec", pa.decimal128(30, 5)),
            ("bin", pa.binary()),
            ("ok", pa.bool_()),
            ("f", pa.float32()),
            ("clock", pa.timestamp("us")),
            ("s", inner),
            ("m", pa.map_(pa.string(), inner)),
        ]
    )
    one = {"at": "2026-02-10T14:00:00+01:00", "days": ["2026-02-10", None]}
    row = {
        "b": -128,
        "d": "2026-02-28",
        "bin": "AAH/",
        "ok": True,
        "f": 0.5,
        "clock": "2026-02-10 14:00:00",
        "s": one,
        "m": {"x": one, "y": None},
    }
    text = json.dumps(row)[:-1] + ',"dec":1234567890123456789012345.12345}'
    (tmp_path / "a.json").write_text(text + '\n{"s":null,"m":{}}\n{"bin":"?"}\n{"b":128}\n{"m":{"x":5}}\n')
    rows, bad = read(tmp_path, schema)
    read_one = {"at": at("2026-02-10T13:00:00+00:00"), "days": [date(2026, 2, 10), None]}
    assert rows[0] == {
        "b": -128,
        "d": date(2026, 2, 28),
        "dec": Decimal("1234567890123456789012345.12345"),
        "bin": b"\x00\x01\xff",
        "ok": True,
        "f": 0.5,
        "clock": datetime(2026, 2, 10, 14),  # noqa: DTZ001 - a clock has no zone
        "s": read_one,
        "m": [("x", read_one), ("y", None)],
    }
    assert rows[1]["m"] == []
    assert rows[1]["s"] is None
    assert (len(rows), lines_of(bad)) == (2, [3, 4, 5])


def test_nulls_below_a_column_that_may_have_none_reject_their_row_only(tmp_path: Path) -> None:
    kind = pa.list_(pa.field("element", pa.int64(), nullable=False))
    (tmp_path / "a.json").write_text('{"l":[1]}\n{"l":[1,null]}\n{"l":null}\n{"l":[2]}\n')
    rows, bad = read(tmp_path, pa.schema([("l", kind)]))
    assert rows == [{"l": [1]}, {"l": None}, {"l": [2]}]
    assert lines_of(bad) == [2]


def test_rows_without_a_value_that_they_need_are_rejected(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), ("ts", UTC_US)])
    (tmp_path / "a.json").write_text('{"n":1,"ts":"2026-02-10"}\n\n{"ts":"2026-02-10"}\n{"n":2}\n{"n":null}\n')
    rows, bad = read(tmp_path, schema, required="ts")
    assert [row["n"] for row in rows] == [1]
    assert lines_of(bad) == [3, 4, 5]
    assert {each.reason for each in bad} == {
        "no value in column 'n', which the table has without nulls",
        "no value in the timestamp column 'ts'",
    }
    rows, bad = read(tmp_path, schema)
    assert [row["n"] for row in rows] == [1, 2]
    assert lines_of(bad) == [3, 5]


@pytest.mark.parametrize("name", ["a.json", "a.csv"])
def test_the_first_bad_row_can_be_an_error_that_names_file_and_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.json").write_text('{"n":1}\n{"n":"x"}\n')
    (tmp_path / "a.csv").write_text("n\nx\n")
    source = SourceFormat.parse(tmp_path / name)
    (task,) = tasks_of(source, source.files(), name[2:], 1)
    with pytest.raises(WriteError, match=f"{name}:2: .*nothing was committed"):
        list(read_units(source.store, task, name[2:], SCHEMA, refuse_rows, {}))


def test_compressed_text_may_have_several_members(tmp_path: Path) -> None:
    members = gzip.compress(b'{"n":1}\n{"n') + gzip.compress(b'":2}\n') + b"\0" * 10
    (tmp_path / "a.json.gz").write_bytes(members)
    assert [row["n"] for row in read(tmp_path)[0]] == [1, 2]


def test_compressed_text_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"n":1}\n' * 10_000)
    (tmp_path / "a.json.gz").write_bytes(whole[:-20])
    with pytest.raises(DataFileError, match=r"a\.json\.gz is not a complete gzip file"):
        read(tmp_path)


# --- CSV


def test_csv_rows_of_the_wrong_width_or_type_are_rejected(tmp_path: Path) -> None:
    text = (
        "\ufeffdevice, n ,ts\r\n"
        'a,1,2026-02-10\r\n"x, ""y""",2,\r\n\r\n,,\r\n"",3,\r\n'
        'b,1.5,\r\nb,1\r\nb,1,,\r\n"x"y,1,\r\nb,1,10.2.2026\r\nc,4,'
    )
    (tmp_path / "a.csv").write_text(text)
    rows, bad = read(tmp_path)
    assert [(row["device"], row["n"], row["ts"]) for row in rows] == [
        ("a", 1, at("2026-02-10T00:00:00+00:00")),
        ('x, "y"', 2, None),
        (None, None, None),
        ("", 3, None),
        ("c", 4, None),
    ]
    assert all(row["v"] is None for row in rows)
    assert lines_of(bad) == [7, 8, 9, 10, 11]


@pytest.mark.parametrize("header", ["device,unknown", "device,device", "device,"])
def test_all_rows_of_a_file_with_a_wrong_header_are_rejected(tmp_path: Path, header: str) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\na,1\nb,2\n")
    (tmp_path / "b.csv").write_text("v,device\n1.5,c\n")
    rows, bad = read(tmp_path)
    assert [(row["device"], row["v"]) for row in rows] == [("c", 1.5)]
    assert [each.record for each in bad] == [header, "a,1", "b,2"]
    assert all("header" in each.reason for each in bad)


# --- Parquet


def test_parquet_rows_without_a_time_are_rejected_as_json_with_their_number(tmp_path: Path) -> None:
    timestamp = at("2026-02-10T14:00:00+00:00")
    table = pa.table({"n": [1, 2, 3], "ts": pa.array([timestamp, None, timestamp], UTC_US)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    rows, bad = read(tmp_path, required="ts")
    assert [row["n"] for row in rows] == [1, 3]
    assert [(json.loads(each.record)["n"], each.source) for each in bad] == [(2, f"{tmp_path}/a.parquet, row 2")]


def test_old_timestamps_of_parquet_are_instants(tmp_path: Path) -> None:
    timestamp = at("2026-02-10T14:00:00.123456+00:00")
    table = pa.table({"ts": pa.array([timestamp], UTC_US)})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    source = SourceFormat.parse(tmp_path)
    schema = source_schema(source, source.files(), "parquet", None, WritePlan.of())
    assert schema == table.schema
    assert read(tmp_path, schema)[0] == [{"ts": timestamp}]


def test_what_is_not_parquet_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("not at all")
    with pytest.raises(DataFileError, match=r"a\.parquet cannot be read as Parquet"):
        read(tmp_path)


# --- columns


def schema_of(source: Path, kind: str, table: Path | None = None, **options: Any) -> pa.Schema:
    found = SourceFormat.parse(source)
    snapshot = None if table is None else TableHandle.open(table).newest()
    given = options.pop("given", None)
    return source_schema(found, found.files(), kind, snapshot, WritePlan.of(**options), given)


def test_columns_of_json_are_guessed_from_several_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"i":1,"x":null,"ts":"2026-02-10"}\nbroken\n{"f":1,"i":2}\n')
    (tmp_path / "b.json").write_text('{"f":1.5,"s":{"l":[true]},"i":"odd one out","when":"2026-02-10"}\n')
    assert schema_of(tmp_path, "json", timestamp_column="ts") == pa.schema(
        [
            ("i", pa.int64()),
            ("x", pa.string()),
            ("ts", UTC_US),
            ("f", pa.float64()),
            ("s", pa.struct([("l", pa.list_(pa.bool_()))])),
            ("when", pa.string()),
        ]
    )


def test_columns_of_csv_are_guessed_from_headers_and_cells(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("i,f,s,b,e,ts\n1,1,x,true,,2026-02-10\n2,1.5,1,FALSE,,\n")
    assert schema_of(tmp_path, "csv", timestamp_column="ts") == pa.schema(
        [
            ("i", pa.int64()),
            ("f", pa.float64()),
            ("s", pa.string()),
            ("b", pa.bool_()),
            ("e", pa.string()),
            ("ts", UTC_US),
        ]
    )


def test_columns_of_parquet_are_those_of_all_footers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([1], pa.int32())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": pa.array([1], pa.int64()), "b": ["x"]}), tmp_path / "b.parquet")
    assert schema_of(tmp_path, "parquet") == pa.schema([("a", pa.int64()), ("b", pa.string())])
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "c.parquet")
    with pytest.raises(SchemaMismatchError, match="do not have the same columns"):
        schema_of(tmp_path, "parquet")


def test_a_table_says_what_its_columns_are_but_for_the_one_that_is_made(tmp_path: Path) -> None:
    rows = pa.table({"n": [1], "ts": pa.array([at("2026-02-10T14:00:00+00:00")], UTC_US)})
    write_arrow(tmp_path / "t", rows, timestamp_column="ts", partition_column="hour")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"n":1,"new":"x"}\n')
    assert schema_of(tmp_path / "in", "json", tmp_path / "t").names == ["n", "ts"]
    assert schema_of(tmp_path / "in", "json", tmp_path / "t", schema_mode="merge").names == ["n", "ts", "new"]
    extra = pa.schema([("N", pa.string()), ("other", pa.string())])
    assert schema_of(tmp_path / "in", "json", tmp_path / "t", given=extra).names == ["n", "ts", "other"]


def test_a_source_without_rows_needs_a_schema(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("\n")
    with pytest.raises(OptionError, match="pass a schema"):
        schema_of(tmp_path, "json")


def test_reading_needs_no_spark() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None; import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'pyspark' else find(name, *rest)\n"
        "import lazydelta.ingest.reading, lazydelta.ingest.schema, lazydelta.write.job\n"
        "print([name for name in sys.modules if name.startswith(('pyspark.', 'py4j'))])"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (child.stdout.strip(), child.returncode) == ("[]", 0), child.stderr


# --- random lines

_TEXT = st.text(max_size=12)
_TIMESTAMPS = st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30))  # noqa: DTZ001 - zones are added
_ZONES = st.sampled_from(["", "Z", "+00:00", "-05:30", "+0200", "+14"])


def _timestamp(timestamp: datetime, zone: str, divider: str, digits: int) -> str:
    text = timestamp.strftime("%H:%M:%S") + (f".{timestamp.microsecond:06}"[: digits + 1] if digits else "")
    return f"{timestamp.year:04}-{timestamp:%m-%d}{divider}{text}{zone}"


_GOOD_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "device": _TEXT,
    "ts": st.builds(_timestamp, _TIMESTAMPS, _ZONES, st.sampled_from("T "), st.integers(0, 6)),
    "n": st.integers(-(1 << 63), (1 << 63) - 1),
    "v": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(1 << 80), 1 << 80),
}
_GOOD = st.fixed_dictionaries({}, optional={name: st.none() | each for name, each in _GOOD_VALUES.items()})
_WRONG = st.fixed_dictionaries({}, optional=_GOOD_VALUES).flatmap(
    lambda row: st.sampled_from(
        [
            {**row, "n": 1.5},
            {**row, "n": 1 << 63},
            {**row, "n": True},
            {**row, "device": 5},
            {**row, "device": ["x"]},
            {**row, "ts": 1770732000},
            {**row, "ts": "2026-13-01"},
            {**row, "ts": "2026-02-30T00:00:00Z"},
            {**row, "ts": "10.2.2026"},
            {**row, "v": "1.5"},
            {**row, "v": {}},
            {**row, "more": None},
        ]
    )
)
_JSON_LINES = st.one_of(
    _GOOD.map(lambda row: (json.dumps(row), row)),
    _GOOD.map(lambda row: (json.dumps(row, ensure_ascii=False, indent=None) + " \r", row)),
    _WRONG.map(lambda row: (json.dumps(row), None)),
    _GOOD.map(lambda row: (json.dumps(row)[:-1], None)),
    st.sampled_from(["null", "5", "[", '"', "{", "}", '{"n":1}{"n":2}', '{"n":1} null', '{"n":NaN}']).map(
        lambda line: (line, None)
    ),
)


def _parsed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a plain Python program makes of an object."""
    found = {name: row.get(name) for name in SCHEMA.names}
    if found["ts"] is not None:
        found["ts"] = _python_timestamp(found["ts"])
    if found["v"] is not None:
        found["v"] = float(found["v"])
    return found


def _python_timestamp(text: str) -> int:
    timestamp = datetime.fromisoformat(text)
    timestamp = timestamp.replace(tzinfo=UTC) if timestamp.tzinfo is None else timestamp
    return (timestamp - datetime(1970, 1, 1, tzinfo=timezone(timedelta(0)))) // timedelta(microseconds=1)


def _read_lines(
    lines: LineFormat, splitter: Splitter, text: bytes, size: int
) -> tuple[list[dict[str, Any]], Counter[str]]:
    bad: list[BadRow] = []
    rows: list[dict[str, Any]] = []
    chunks = [text[start : start + 37] for start in range(0, len(text), 37)]
    for batch in rows_of_lines(blocks(chunks, splitter, size), lines, "f", bad.extend, {}):
        timestamps = batch.column("ts").view(pa.int64())
        rows += batch.set_column(1, "ts", timestamps).to_pylist()
    return rows, Counter(each.source for each in bad)


@settings(max_examples=150, deadline=None)
@given(st.lists(_JSON_LINES, max_size=25), st.sampled_from([1, 200, 1 << 20]))
def test_every_json_line_is_read_as_python_reads_it_or_rejected_once(
    lines: list[tuple[str, dict[str, Any] | None]], size: int
) -> None:
    text = "\n".join(line for line, _ in lines).encode()
    rows, bad = _read_lines(JsonLines(SCHEMA), Lines(), text, size)
    assert bad == Counter(f"f:{number}" for number, (_, row) in enumerate(lines, 1) if row is None)
    assert rows == [_parsed(row) for _, row in lines if row is not None]


_CELLS = st.tuples(
    _TEXT.filter(lambda text: not set(text) & set("\r\n\0") and text.isprintable()),
    _GOOD_VALUES["ts"] | st.just(""),
    _GOOD_VALUES["n"].map(str) | st.just(""),
    st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.just(""),
)
_BAD_CELLS = st.sampled_from(
    [
        ("x", "", "1.5", ""),
        ("x", "2026-02-30", "", ""),
        ("x", "", "", "1.2.3"),
        ("x", "", "", "one"),
        ("x", "", "9223372036854775808", ""),
        ("x", "", ""),
        ("x", "", "", "", ""),
    ]
)
_CSV_LINES = st.one_of(_CELLS.map(lambda cells: (cells, True)), _BAD_CELLS.map(lambda cells: (cells, False)))


def _csv_line(cells: tuple[str, ...]) -> str:
    first = '"' + cells[0].replace('"', '""') + '"'
    return ",".join([first, *cells[1:]])


@settings(max_examples=150, deadline=None)
@given(st.lists(_CSV_LINES, max_size=25), st.sampled_from([1, 200, 1 << 20]))
def test_every_csv_line_is_read_as_python_reads_it_or_rejected_once(
    lines: list[tuple[tuple[str, ...], bool]], size: int
) -> None:
    text = "\n".join(_csv_line(cells) for cells, _ in lines).encode()
    rows, bad = _read_lines(csv_lines(b"device,ts,n,v", SCHEMA), CsvSplitter(), text, size)
    assert bad == Counter(f"f:{number}" for number, (_, good) in enumerate(lines, 1) if not good)
    wanted = [
        {
            "device": device,
            "ts": _python_timestamp(ts) if ts else None,
            "n": int(n) if n else None,
            "v": float(v) if v else None,
        }
        for (device, ts, n, v), good in ((cells, good) for cells, good in lines if good)
    ]
    assert rows == wanted


@pytest.mark.parametrize(
    "source", ["s3:/bucket/in", "dbfs:/in/*.json", "hdfs:/in", "abfss:/c@a.dfs.core.windows.net/in"]
)
def test_a_source_that_is_nearly_a_uri_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="neither a URI nor a path"):
        SourceFormat.parse(source)


def test_a_source_folder_may_hold_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "a.json").write_text("{}")
    assert [file.path for file in SourceFormat.parse("./s3:").files()] == ["a.json"]


@pytest.mark.parametrize(
    ("folder", "options"),
    [
        ("https://corp.blob.core.windows.net/c/in?sv=1&sig=SECRETKEY", {}),
        ("az://c/in", {"account_name": "corp", "account_key": "SECRETKEY"}),
    ],
)
def test_a_source_leaves_its_credentials_behind_unless_it_is_to_carry_them(
    folder: str, options: dict[str, str]
) -> None:
    source = SourceFormat(folder, None, options)
    assert "SECRETKEY" not in repr(source)
    pickled = pickle.dumps(source)
    assert b"SECRETKEY" not in pickled
    with pytest.raises(AccessDeniedError, match="were not sent"):
        pickle.loads(pickled).files()  # noqa: S301 - our own
    carried = pickle.loads(pickle.dumps(source.carrying_credentials()))  # noqa: S301 - our own
    assert (carried.folder, dict(carried.storage_options)) == (folder, options)
    assert "SECRETKEY" not in repr(carried)
