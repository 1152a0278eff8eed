"""What a scan says of the conditions of its predicate, and the window of the last hour."""

from __future__ import annotations

import datetime as dt
import math
import time
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lazydelta import DeltaTable, PredicateWarning, sidecar, write_arrow
from lazydelta.errors import OptionError, PredicateError
from lazydelta.predicates import conjuncts, parse_predicate
from lazydelta.storage import open_store
from lazydelta.write.checkpoint.writer import write_checkpoint
from tests.predicates import worlds

NOON = dt.datetime(2026, 2, 8, 12, tzinfo=dt.UTC)
SCHEMA = worlds.schema()


def hourly(path: Path, count: int = 6, *, end: dt.datetime = NOON, aligned: bool = True, extra: bool = False) -> Path:
    """Write a table with a file for each of the hours before ``end``."""
    for number in range(count):
        timestamp = end - dt.timedelta(hours=count - number)
        columns: dict[str, Any] = {
            "ts": pa.array([timestamp, timestamp + dt.timedelta(minutes=59)], pa.timestamp("us", "UTC")),
            "n": pa.array([number, number]),
            "x": pa.array([float(number), math.nan if number == 0 else 0.5]),
            "s": pa.array([f"s{number}", "t"]),
        }
        if extra:
            columns["seen"] = columns["ts"]
        options: dict[str, Any] = {"timestamp_column": "ts"} if aligned else {}
        write_arrow(path, pa.table(columns), **options)
    return path


def numbers(table: DeltaTable, where: Any = None, **keywords: Any) -> list[int]:
    """Return which of the hours a scan finds, by the minimum of their numbers."""
    batches = table.files(where, stats_columns=["n"], **keywords).batches()
    return sorted(value for batch in batches for value in batch.column("min.n").to_pylist())


def test_the_last_hours_are_found_back_from_now_by_the_column_that_the_table_is_aligned_by(tmp_path: Path) -> None:
    table = DeltaTable(hourly(tmp_path / "t", extra=True))
    assert numbers(table, last="2h", now=NOON) == [4, 5]
    assert numbers(table, last=dt.timedelta(hours=2), now="2026-02-08T12:00:00Z") == [4, 5]
    assert numbers(table, last="2h 30m", now=NOON) == [3, 4, 5]
    # A timestamp that was given ends the window, too.
    assert numbers(table, last="1h", now=NOON - dt.timedelta(hours=2)) == [3, 4]
    assert numbers(table, "n != 5", last="2h", now=NOON) == [4]
    assert numbers(table, [("n", "<", 5)], last="2h", now=NOON) == [4]
    plan = table.files(last="2h", now=NOON).explain().plan
    assert plan["predicate"].startswith("(ts >= TIMESTAMP '2026-02-08 10:00:00+00:00' AND ts <= ")


def test_without_a_timestamp_the_last_hour_is_that_of_the_clock_and_has_no_end(tmp_path: Path) -> None:
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=90)
    table = DeltaTable(hourly(tmp_path / "t", end=soon, aligned=False))
    # The three hours that end 31 minutes ago, in 29 minutes and in 89.
    assert numbers(table, last="1h") == [3, 4, 5]
    assert numbers(table, "ts > current_timestamp - interval 1 hour") == [3, 4, 5]
    assert numbers(table, "ts >= ago(1h)") == [3, 4, 5]


def test_now_in_the_text_is_the_timestamp_of_the_scan(tmp_path: Path) -> None:
    table = DeltaTable(hourly(tmp_path / "t"))
    assert numbers(table, "ts > now() - interval 2 hours", now=NOON) == [4, 5]
    assert numbers(table, "date_trunc('hour', ts) = now() - interval '3' hour", now=NOON) == [3]
    assert numbers(table, "date(ts) = current_date", now=NOON) == [0, 1, 2, 3, 4, 5]
    assert numbers(table, "date(ts) < '2026-02-08'") == []


def test_a_table_whose_only_timestamp_it_is_needs_no_alignment(tmp_path: Path) -> None:
    assert numbers(DeltaTable(hourly(tmp_path / "t", aligned=False)), last="1h", now=NOON) == [5]


@pytest.mark.parametrize(("extra", "named"), [(True, r"several timestamps \(ts, seen\)"), (False, "no timestamp")])
def test_a_table_whose_time_is_not_clear_says_so(tmp_path: Path, *, extra: bool, named: str) -> None:
    path = tmp_path / "t"
    if extra:
        hourly(path, 1, aligned=False, extra=True)
    else:
        write_arrow(path, pa.table({"n": [1]}))
    with pytest.raises(OptionError, match=named):
        DeltaTable(path).files(last="1h")


@pytest.mark.parametrize("last", ["", "soon", "0h", "-1h", "1 eon", 5, dt.timedelta(0)])
def test_a_span_that_is_none_is_refused(tmp_path: Path, last: Any) -> None:
    with pytest.raises(OptionError, match="is not a duration"):
        DeltaTable(hourly(tmp_path / "t", 1)).files(last=last)
    with pytest.raises(OptionError, match="is not a timestamp"):
        DeltaTable(tmp_path / "t").files(last="1h", now="soon")


def test_a_condition_by_which_no_file_can_be_left_out_is_warned_of_once_where_it_was_written(tmp_path: Path) -> None:
    table = DeltaTable(hourly(tmp_path / "t", 2))
    with pytest.warns(PredicateWarning) as caught:
        found = numbers(table, "upper(s) = 'S1' AND n >= 1 AND hour(ts) = 5")
    assert found == [1]
    (warning,) = caught
    assert "upper(s) = 'S1': cannot prune, because lazydelta has no range for the function upper()" in str(
        warning.message
    )
    assert "nor by hour(ts) = 5: cannot prune, because the hour is periodic" in str(warning.message)
    assert warning.filename == __file__
    with pytest.warns(PredicateWarning) as caught:
        assert pa.Table.from_batches(table.rows(where="s LIKE '%1'", columns=["s"]))["s"].to_pylist() == ["s1"]
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_conditions_that_prune_are_not_warned_of(tmp_path: Path) -> None:
    table = DeltaTable(hourly(tmp_path / "t", 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for where in ("n = 1", "s LIKE 's_%'", "n = 1 OR ts > now()", "TRUE", "x > 5", "ts IS NULL", None):
            numbers(table, where, strict=True)


@pytest.mark.parametrize("where", ["upper(s) = 'A'", "n = 1 AND s LIKE '%1'", "n = 1 OR hour(ts) = 3", "n < x"])
def test_strict_makes_such_a_condition_an_error(tmp_path: Path, where: str) -> None:
    table = DeltaTable(hourly(tmp_path / "t", 1))
    with pytest.raises(PredicateError, match="No file can be left out by"):
        table.files(where, strict=True)


def test_missing_statistics_are_no_fault_of_the_predicate(tmp_path: Path) -> None:
    write_arrow(tmp_path / "t", pa.table({"n": [1], "m": [2]}), stats_columns=["m"])
    assert len(DeltaTable(tmp_path / "t").files("n = 7", strict=True).collect()) == 1


def test_explain_has_a_line_for_each_condition(tmp_path: Path) -> None:
    table = DeltaTable(hourly(tmp_path / "t", 2))
    with pytest.warns(PredicateWarning):
        explained = table.files("n >= 1 AND _event_hour > '2026' AND s LIKE '%1'").explain()
    assert explained.plan["conditions"] == [
        "n >= 1: prunes by statistics",
        "_event_hour > '2026': prunes by partition values",
        "s IS NOT NULL: prunes by statistics",
        "s LIKE '%1': cannot prune, because the pattern begins with a wildcard",
    ]
    lines = str(explained).splitlines()
    shown = [line.strip().split("  ")[1] for line in lines if line.strip().startswith("condition ")]
    assert shown == explained.plan["conditions"]


@pytest.mark.parametrize(
    ("where", "how"),
    [
        ("p = 1 OR i = 2", "prunes by partition values and statistics"),
        ("s LIKE 'ab_d%'", "prunes in part, by what stands before its first wildcard"),
        ("i = 1 OR upper(s) = 'A'", "cannot prune, because lazydelta has no range for the function upper()"),
        ("i < tiny", "cannot prune, because two columns are compared"),
        ("1 = 2", "holds for no row"),
        ("f > 1", "prunes files of lazydelta by statistics, and those of other writers by null counts alone"),
        ("f < 1", "prunes by statistics"),
        ({"f": {">": 1}}, "prunes by statistics"),
    ],
)
def test_a_condition_says_how_it_prunes_or_why_not(where: Any, how: str) -> None:
    assert conjuncts(parse_predicate(where, SCHEMA))[-1].how.startswith(how)


def test_rows_are_never_more_than_match(tmp_path: Path) -> None:
    table = DeltaTable(hourly(tmp_path / "t", 3))
    for where, count in {
        "date_trunc('hour', ts) = timestamp '2026-02-08 09:00:00'": 2,
        "hour(ts) = 10 AND minute(ts) = 59": 1,
        "cast(ts as date) = '2026-02-08' AND n IN (0, 2)": 4,
        "x > 0.7": 3,  # 1.0, 2.0 and NaN
        "upper(s) = 'S1' AND n * 2 = 2": 1,  # by DuckDB
    }.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PredicateWarning)
            assert sum(batch.num_rows for batch in table.rows(where=where)) == count, where
    with pytest.raises(PredicateError, match="Rows cannot be filtered by"):
        list(table.rows(where="random() < n"))


def test_a_float_maximum_of_our_own_files_prunes_in_sql(tmp_path: Path) -> None:
    path = hourly(tmp_path / "t", 4)
    # The file with the NaN has no maximum; the others do.
    assert numbers(DeltaTable(path), "x > 2.5", strict=True) == [0, 3]
    assert numbers(DeltaTable(path), [("x", ">", 2.5)]) == [0, 3]
    trusting = DeltaTable(path, options={"float_max": "trust"})
    assert numbers(trusting, "x > 2.5") == [0, 3]
    assert trusting.to_pyarrow_table(filters="x > 2.5").num_rows == 2


def test_a_trusted_maximum_prunes_a_sidecar_alike(tmp_path: Path) -> None:
    path = hourly(tmp_path / "t", 4)
    plain = set(numbers(DeltaTable(path, options={"float_max": "trust"}), "x > 2.5"))
    write_checkpoint(open_store(path))
    sidecar.build(path)
    for options, found in (({"float_max": "trust"}, plain), ({}, plain)):
        table = DeltaTable(path, options=options)
        stream = table.files("x > 2.5", stats_columns=["n"])
        assert {number for batch in stream.batches() for number in batch.column("min.n").to_pylist()} == found
        assert stream.metrics.tier == 1


def test_an_option_that_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="float_max"):
        DeltaTable(tmp_path, options={"float_max": "maybe"})


def test_time_goes_by_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = DeltaTable(hourly(tmp_path / "t"))
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        assert numbers(table, "ts > now() - interval 2 hours", now=NOON) == [4, 5]
        assert numbers(table, "date(ts) = current_date AND n = 0", now=NOON) == [0]
    finally:
        monkeypatch.undo()
        time.tzset()
