"""What of a query reaches its tables: counted in files and columns, and as explain tells it."""

# ruff: noqa: E501 - a query is read best on one line

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lazydelta import DeltaTable
from lazydelta.errors import DataFileError, KqlError, StreamClosedError
from lazydelta.kql import query
from lazydelta.kql.execution.query import KqlResult, run
from lazydelta.storage import Request, observe
from tests.kql.tables import NOW

BY_HOUR = (
    "external_table('TelemetryDelta') | where _event_hour between ('2026021000' .. '2026021002')"
    " | summarize avg(value) by bin(timestamp, 1h), device_id"
)


class Opened:
    """Counts the data files that any store of this process is asked for."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}

    def see(self, request: Request) -> None:
        """Remember a request for a data file."""
        if request.path.endswith(".parquet") and "_delta_log" not in request.path:
            self._seen[request.path] = None

    @property
    def paths(self) -> list[str]:
        """The files, each once."""
        return list(self._seen)

    def forget(self) -> None:
        """Begin again."""
        self._seen.clear()


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Return the count of files that a test reads."""
    found = Opened()
    with observe(found.see):
        yield found


def reads(text: str, tables: dict[str, DeltaTable]) -> list[dict[str, Any]]:
    with run(text, tables, now=NOW) as result:
        rows: list[dict[str, Any]] = result.read_all().to_pylist()
    return rows


def test_the_three_queries_of_the_design_run_and_stop_early(tables: dict[str, DeltaTable], opened: Opened) -> None:
    named = {"TelemetryDelta": tables["Telemetry"]}
    rows = reads(
        "external_table('TelemetryDelta') | where _event_hour >= '2026021004' | where device_id == 'sensor-42' | take 100",
        named,
    )
    assert {row["device_id"] for row in rows} == {"sensor-42"}
    assert {row["_event_hour"] for row in rows} == {"2026021004", "2026021005"}
    assert len(opened.paths) == 2

    opened.forget()
    assert len(reads("external_table('TelemetryDelta') | take 40", named)) == 40
    assert len(opened.paths) == 1

    opened.forget()
    rows = reads(BY_HOUR, named)
    assert {row["timestamp"].hour for row in rows if row["timestamp"]} == {0, 1, 2}
    assert list(rows[0]) == ["timestamp", "device_id", "avg_value"]
    assert len(opened.paths) == 3
    with run(BY_HOUR, named) as result:
        columns = result.explain()["tables"][0]["columns"]
    assert sorted(columns) == ["_event_hour", "device_id", "timestamp", "value"]


# A query, how many of the six files it may read at most.
PRUNED = [
    ("Telemetry | where _event_hour == '2026021003'", 1),
    ("Telemetry | where '2026021003' == _event_hour", 1),
    ("Telemetry | where strcmp(_event_hour, '2026021003') >= 0", 3),
    ("Telemetry | where 0 == strcmp('2026021003', _event_hour)", 1),
    ("let h = '2026021003'; Telemetry | where _event_hour == h", 1),
    ("let T = Telemetry | where _event_hour == '2026021003'; T | where n > 0", 1),
    ("let f = (h:string) { Telemetry | where _event_hour == h }; f('2026021003')", 1),
    ("Telemetry | project-rename hour = _event_hour | where hour == '2026021003'", 1),
    ("Telemetry | extend hour = _event_hour | where hour == '2026021003'", 1),
    ("Telemetry | project hour = _event_hour, n | where hour == '2026021003' | project n", 1),
    ("Telemetry | extend x = n + 1 | where _event_hour == '2026021003' and x > 0", 1),
    ("Telemetry | where _event_hour in ('2026021003', '2026021004')", 2),
    ("Telemetry | where _event_hour startswith_cs '202602100' and _event_hour >= '2026021005'", 1),
    ("Telemetry | where _event_hour == '2026021003' or _event_hour == '2026021004'", 2),
    ("Telemetry | where not(_event_hour != '2026021003')", 1),
    ("Telemetry | where timestamp > ago(1h)", 1),
    ("Telemetry | where timestamp >= datetime(2026-02-10 02:00) and timestamp < datetime(2026-02-10 03:00)", 1),
    ("Telemetry | where timestamp between (datetime(2026-02-10 02:00) .. 59m)", 1),
    ("let from_ = startofday(now()) + 5h; Telemetry | where timestamp >= from_", 1),
    ("Telemetry | where timestamp > toscalar(print now() - 1h)", 1),
    ("Telemetry | where _event_hour in ((print '2026021003'))", 1),
    ("Telemetry | summarize max(n) by _event_hour | where _event_hour == '2026021003'", 1),
    ("Telemetry | sort by n | where _event_hour == '2026021003'", 1),
    ("Telemetry | join kind=inner Devices on device_id | where _event_hour == '2026021003'", 1 + 1),
    ("Telemetry | join kind=leftouter Devices on device_id | where _event_hour == '2026021003'", 1 + 1),
    ("union Telemetry, Telemetry | where _event_hour == '2026021003'", 2),
    ("Telemetry | where i == 5", 1),
    ("Telemetry | where day < datetime(2026-02-06)", 1),
    ("Telemetry | where bin(timestamp, 1h) == datetime(2026-02-10 02:00)", 1),
    ("Telemetry | extend h = bin(timestamp, 1h) | where h >= datetime(2026-02-10 05:00)", 1),
    ("Telemetry | summarize count() by h = bin(timestamp, 1h) | where h < datetime(2026-02-10 00:30)", 2),
    ("Telemetry | where startofday(day) < datetime(2026-02-04)", 0),
    ("Telemetry | where bin(n, 10) == 1000", 0),
    ("Telemetry | where false", 0),
    ("Telemetry | where isnull(_event_hour)", 0),
    ("Telemetry | take 0", 0),
    ("Telemetry | take 41", 2),
    ("Telemetry | where _event_hour == '2026021003' | take 3", 1),
    ("Telemetry | project n | extend x = n * 2 | take 5", 1),
    ("Telemetry | getschema", 0),
    ("Telemetry | order by timestamp desc | take 3", 1),
    ("Telemetry | extend x = n + 1 | project at = timestamp, x | order by at desc, x | take 3 | project x", 1),
    ("union Telemetry, Telemetry | top 3 by timestamp", 2),
]  # fmt: skip


@pytest.mark.parametrize(("text", "files"), PRUNED, ids=[text for text, _ in PRUNED])
def test_conditions_and_limits_reach_the_files(
    text: str, files: int, tables: dict[str, DeltaTable], opened: Opened
) -> None:
    reads(text, tables)
    assert len(opened.paths) <= files


# A query whose condition must not reach the files, and how many of the six it reads.
KEPT = [
    ("Telemetry | take 1000 | where _event_hour == '2026021003'", "it comes after take"),
    ("Telemetry | sample 1000 | where _event_hour == '2026021003'", "it comes after sample"),
    ("Telemetry | where device_id has 'sensor'", "ignores case"),
    ("Telemetry | where tolower(device_id) == 'x'", "after tolower"),
    ("Telemetry | where n == i", "another column"),
    ("Telemetry | where n > 5 or strlen(device_id) > 2", "after strlen"),
    ("Telemetry | summarize m = max(n) by _event_hour | where m == 50", "about an aggregate"),
    ("Telemetry | where info.kind == 'A'", "after access"),
    ("Telemetry | where _event_hour =~ '2026021003'", "ignores case"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "why"), KEPT, ids=[text for text, _ in KEPT])
def test_what_does_not_reach_the_files_is_explained(text: str, why: str, tables: dict[str, DeltaTable]) -> None:
    with run(text, tables, now=NOW) as result:
        (table,) = result.explain()["tables"]
    assert table["where"] is None
    assert any(why in each["why"] for each in table["conditions"] if not each["reached"])


def test_explain_shows_what_reached_a_table(tables: dict[str, DeltaTable]) -> None:
    text = "Telemetry | where n != 5 and timestamp > ago(1h) | project device_id | take 3"
    with run(text, tables, now=NOW) as result:
        explained = result.explain()
    (table,) = explained["tables"]
    assert table["columns"] == ["device_id", "timestamp", "n"]
    assert table["where"] == {
        "and": [{"or": [{"n": {"!=": 5}}, {"n": None}]}, {"timestamp": {">": "2026-02-10T05:00:00+00:00"}}]
    }
    assert table["row_limit"] == 3
    assert [each["reached"] for each in table["conditions"]] == [True, True, True]
    assert explained["sql"].startswith("SELECT")


def test_a_limit_does_not_pass_a_condition_that_rows_are_tested_by(tables: dict[str, DeltaTable]) -> None:
    with run("Telemetry | where device_id has 'sensor' | take 3", tables) as result:
        (table,) = result.explain()["tables"]
        assert table["row_limit"] is None
        assert result.read_all().num_rows == 3


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("Telemetry | take 100 | take 3", 3),
        ("Telemetry | take 3 | take 100", 3),
        ("Telemetry | take 100 | where n == 0 | take 3", 100),
        ("Telemetry | take 100 | extend m = n | where m == 0 | project m | take 3", 100),
        ("Telemetry | take 100 | project n | take 3", 3),
        ("Telemetry | sort by n | take 3", None),
        ("Telemetry | take 5 | sort by n | take 3", 5),
        ("Telemetry | distinct n | take 3", None),
        ("Telemetry | sample 5 | take 3", None),
        ("Telemetry | where n == 0 | take 3", 3),
        ("Telemetry | where value == 0.0 | take 3", None),
        ("Telemetry | where not(n > 0) | take 3", None),
    ],
)
def test_a_limit_reaches_the_scan_where_no_row_can_get_lost(
    text: str, limit: int | None, tables: dict[str, DeltaTable]
) -> None:
    with run(text, tables) as pushed, run(text, tables, pushdown=False) as plain:
        (table,) = pushed.explain()["tables"]
        assert table["row_limit"] == limit
        assert pushed.read_all().num_rows == plain.read_all().num_rows


PARSED = "extend s = strcat('a=', n) | parse-kv s as (a: long) with (pair_delimiter=' ', kv_delimiter='=')"


@pytest.mark.parametrize(
    "text",
    [
        "order by timestamp desc | where n > 20 | take 3",
        "order by timestamp desc | extend at = n | where at < 20 | take 3",
        "where n < 20 | top 3 by timestamp",
        "top 3 by timestamp asc",
        "top 3 by timestamp nulls first",
        "order by device_id desc, n, timestamp, value, day, i | take 45",
        "order by timestamp desc | summarize count(), max(n)",
        "take 50 | order by n desc | take 60 | count",
        "top 30 by timestamp | top 3 by n asc",
        PARSED + " | where a >= 30 | take 3 | summarize count(), min(a)",
        PARSED + " | where a < 30 | top 3 by timestamp",
    ],
)
def test_first_rows_of_an_order_are_those_of_all_rows(text: str, tables: dict[str, DeltaTable]) -> None:
    ordered = f"Telemetry | {text}"
    with run(ordered, tables) as pushed, run(ordered, tables, pushdown=False) as plain:
        assert repr(pushed.read_all().to_pylist()) == repr(plain.read_all().to_pylist())  # NaN equals nothing


def test_innerunique_lets_conditions_on_its_keys_through_only(tables: dict[str, DeltaTable]) -> None:
    join = "Telemetry | join Devices on device_id | where "
    with run(join + "device_id == 'sensor-1'", tables) as result:
        assert result.explain()["tables"][0]["where"] == {"device_id": {"=": "sensor-1"}}
    with run(join + "n == 0", tables) as result:
        assert result.explain()["tables"][0]["where"] is None


@pytest.fixture(scope="module")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of 40 files of 3,000 rows."""
    path = tmp_path_factory.mktemp("many") / "t"
    numbers = range(40 * 3000)
    rows = pa.table({"part": [each // 3000 for each in numbers], "x": list(numbers), "s": ["text"] * len(numbers)})
    write_deltalake(path, rows, partition_by=["part"])
    return path


def test_closing_a_result_stops_reading(many_files: Path, opened: Opened) -> None:
    with query("T | where x % 2 == 0 | project x, s", {"T": many_files}) as result:
        assert next(iter(result)).num_rows
    assert len(opened.paths) <= 20
    with pytest.raises(StreamClosedError):
        result.read_all()


@pytest.mark.parametrize("condition", ["s contains 'EX'", "x % 7 == 0", "strlen(s) == 4"])
def test_a_condition_that_rows_are_tested_by_stops_early_too(condition: str, many_files: Path, opened: Opened) -> None:
    with query(f"T | where {condition} | take 5", {"T": many_files}) as result:
        assert result.read_all().num_rows == 5
    assert len(opened.paths) <= 5


def test_an_error_of_a_table_comes_through_as_it_is(table_paths: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(table_paths["Telemetry"], broken)
    for file in broken.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(DataFileError), query("T | count", {"T": broken}) as result:
        result.read_all()


def test_a_result_is_an_arrow_stream_with_names_and_types(tables: dict[str, DeltaTable]) -> None:
    text = "Telemetry | project a = n, b = timestamp, c = now() - timestamp, d = info, A = flag | take 2 | render timechart"
    result: KqlResult = query(text, {"Telemetry": tables["Telemetry"]}, NOW)
    assert result.render == ("timechart", {})
    assert result.kinds == {"a": "long", "b": "datetime", "c": "timespan", "d": "dynamic", "A": "bool"}
    table = pa.table(result)
    assert table.schema.types == [
        pa.int64(),
        pa.timestamp("us", "UTC"),
        pa.duration("us"),
        pa.string(),
        pa.bool_(),
    ]
    assert table.num_rows == 2


def test_queries_of_several_threads_do_not_meet(tables: dict[str, DeltaTable]) -> None:
    def count(hour: str) -> int:
        text = (
            f"let x = toscalar(Telemetry | where _event_hour == '{hour}' | count); Telemetry | take 1 | project y = x"
        )
        (row,) = query(text, {"Telemetry": tables["Telemetry"]}).read_all().to_pylist()
        return int(row["y"])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(count, ["2026021001", "nothing"] * 8)) == [40, 0] * 8


def test_one_query_has_one_now() -> None:
    text = "range x from 1 to 100000 step 1 | extend y = now() | summarize dcount(y), z = max(now() - y)"
    (row,) = query(text).read_all().to_pylist()
    assert row["dcount_y"] == 1
    assert not row["z"]


def test_a_query_reaches_nothing_but_its_tables(tmp_path: Path) -> None:
    """DuckDB itself would open a file whose name stands where a table should be."""
    (tmp_path / "secret.csv").write_text("a\n1\n")
    for name in (f"['{tmp_path}/secret.csv']", f"external_table('{tmp_path}/secret.csv')"):
        with pytest.raises(KqlError, match="there is no table"):
            query(f"{name} | take 1")


def test_a_query_may_name_arrow_tables_and_paths(table_paths: dict[str, Path]) -> None:
    names = pa.table({"device_id": ["sensor-1"], "title": ["first"]})
    text = "T | where _event_hour == '2026021000' | lookup kind=inner N on device_id | summarize count() by title"
    (row,) = query(text, {"T": table_paths["Telemetry"], "N": names}).read_all().to_pylist()
    assert row["title"] == "first"
    assert row["count_"] > 0
