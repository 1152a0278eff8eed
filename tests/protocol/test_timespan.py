"""Spans of time and units of the calendar, held against DuckDB's."""

from __future__ import annotations

import datetime as dt
import random

import duckdb
import pytest

from lazydelta.protocol.time import (
    TRUNCATING_UNITS,
    Timespan,
    floor_to_unit,
    next_unit,
    parse_timespan,
    timespan_of,
    unit_name,
)

HOUR = 3_600 * 10**9


def timestamps(count: int) -> list[int]:
    """Draw microseconds since 1970, ends of months among them."""
    rng = random.Random(1)
    ends = [dt.datetime(2024, 2, 29), dt.datetime(2023, 12, 31, 23, 59), dt.datetime(1900, 2, 28), dt.datetime(1, 3, 1)]  # noqa: DTZ001
    fixed = [int((each - dt.datetime(1970, 1, 1)).total_seconds()) * 10**6 for each in ends]  # noqa: DTZ001
    return fixed + [rng.randrange(-(10**16), 10**17) for _ in range(count)]


@pytest.mark.parametrize("unit", sorted(TRUNCATING_UNITS))
def test_units_begin_and_spans_end_where_duckdb_says(unit: str) -> None:
    connection = duckdb.connect()
    for timestamp in timestamps(25):
        amount = timestamp % 29 - 14
        floor, after, following = connection.execute(
            f"SELECT epoch_us(date_trunc('{unit}', t)), epoch_us(t + INTERVAL ({amount}) {unit}), "
            f"epoch_us(date_trunc('{unit}', t) + INTERVAL 1 {unit}) FROM (SELECT make_timestamp(?::BIGINT) AS t)",
            [timestamp],
        ).fetchall()[0]
        span = timespan_of(amount, unit)
        assert span is not None
        assert floor_to_unit(timestamp * 1_000, unit) == floor * 1_000
        assert next_unit(timestamp * 1_000, unit) == following * 1_000
        assert span.after(timestamp * 1_000) == after * 1_000
    connection.close()


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("1h", Timespan(nanoseconds=HOUR)),
        ("1h30m", Timespan(nanoseconds=3 * HOUR // 2)),
        ("1.5 hours", Timespan(nanoseconds=3 * HOUR // 2)),
        (" 2 DAYS 1 hour ", Timespan(nanoseconds=49 * HOUR)),
        ("-30m", Timespan(nanoseconds=-HOUR // 2)),
        ("1 year 1 mon", Timespan(months=13)),
        (dt.timedelta(hours=1), Timespan(nanoseconds=HOUR)),
    ],
)
def test_spans_are_read(text: str | dt.timedelta, span: Timespan) -> None:
    assert parse_timespan(text) == span


@pytest.mark.parametrize(
    "text",
    ["", " ", "h", "1", "1 eon", "1h x", "1.5 months", "1h,2m", "0.0000000001s", "9" * 40 + "h", "9" * 20 + " months"],
)
def test_what_is_no_span_is_none(text: str) -> None:
    assert parse_timespan(text) is None


def test_units_have_several_names() -> None:
    assert {unit_name(each) for each in ("h", "hr", "Hour", "HOURS")} == {"hour"}
    assert unit_name("ms") == "millisecond"
    assert unit_name("eon") is None
