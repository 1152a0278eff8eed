from __future__ import annotations

import datetime as dt
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from lazydelta.errors import OptionError, WriteError
from lazydelta.protocol.values import folder_name, logged_path, partition_texts
from lazydelta.write.alignment import BOUNDARIES, boundary_of

FORMATS = {"month": "%Y%m", "day": "%Y%m%d", "hour": "%Y%m%d%H", "minute": "%Y%m%d%H%M", "second": "%Y%m%d%H%M%S"}
UTC = pa.timestamp("us", "UTC")


def values(timestamps: list[Any], boundary: str, kind: pa.DataType = UTC) -> list[str | None]:
    found: list[str | None] = boundary_of(boundary).values(pa.array(timestamps, kind)).to_pylist()
    return found


@pytest.mark.parametrize(
    ("boundary", "expected"),
    [
        ("month", "202602"),
        ("day", "20260210"),
        ("hour", "2026021014"),
        ("minute", "202602101407"),
        ("second", "20260210140709"),
    ],
)
def test_a_boundary_writes_its_own_digits(boundary: str, expected: str) -> None:
    assert values([dt.datetime(2026, 2, 10, 14, 7, 9, 999_999, dt.UTC)], boundary) == [expected]


def test_the_partition_columns_are_named_after_their_boundary() -> None:
    assert [each.column for each in BOUNDARIES.values()] == [
        "_event_month",
        "_event_day",
        "_event_hour",
        "_event_minute",
        "_event_second",
    ]


TIMESTAMPS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999))  # noqa: DTZ001 - made UTC below


@given(st.lists(st.none() | TIMESTAMPS, max_size=10), st.sampled_from(list(FORMATS)))
def test_every_timestamp_gets_the_digits_that_python_writes(
    timestamps: list[dt.datetime | None], boundary: str
) -> None:
    expected = [
        None if each is None else each.strftime(FORMATS[boundary]).zfill(len(boundary_of(boundary).pattern))
        for each in timestamps
    ]
    aware = [None if each is None else each.replace(tzinfo=dt.UTC) for each in timestamps]
    assert values(aware, boundary) == expected
    assert values(timestamps, boundary, pa.timestamp("us")) == expected


def test_the_last_instant_of_an_hour_before_1970_belongs_to_that_hour() -> None:
    assert values([-1, 0], "hour") == ["1969123123", "1970010100"]


def test_a_leap_day_is_a_day() -> None:
    assert values([dt.datetime(2024, 2, 29, 23, 59, tzinfo=dt.UTC)], "day") == ["20240229"]


def test_an_hour_that_clocks_repeat_is_two_hours_of_utc() -> None:
    """In Paris, 2026-10-25 02:30 comes twice."""
    first = int(dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC).timestamp())
    assert values([first, first + 3600], "hour", pa.timestamp("s", "Europe/Paris")) == ["2026102500", "2026102501"]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_every_unit_of_time_gives_the_same(unit: str, factor: int) -> None:
    assert values([-7200 * factor], "hour", pa.timestamp(unit)) == ["1969123122"]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()], ids=str)
def test_a_date_is_its_midnight(kind: pa.DataType) -> None:
    assert values([dt.date(1969, 7, 20), None], "day", kind) == ["19690720", None]


def test_a_slice_gives_the_values_of_the_slice() -> None:
    timestamps = pa.array([0, None, 3_600_000_000, 7_200_000_000], UTC).slice(1, 2)
    assert boundary_of("hour").values(timestamps).to_pylist() == [None, "1970010101"]


def test_null_timestamps_may_be_refused() -> None:
    with pytest.raises(WriteError, match=r"1 rows have no value in the timestamp column 'at'.*null-partition"):
        boundary_of("hour").values(pa.array([None, 0], UTC), nulls="reject", column="at")


@pytest.mark.parametrize("timestamp", [253_402_300_800_000_000, -62_167_219_200_000_001])
def test_a_year_that_four_digits_cannot_write_is_refused(timestamp: int) -> None:
    with pytest.raises(WriteError, match="outside the years 0 to 9999"):
        values([timestamp], "hour")


def test_a_column_that_is_no_timestamp_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'c' has type int64, which is not a timestamp"):
        boundary_of("hour").values(pa.array([1]), column="c")


def test_an_unknown_boundary_is_refused() -> None:
    with pytest.raises(OptionError, match=r"boundary='week'.*month, day, hour"):
        boundary_of("week")


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("a b/c", pa.string(), "a b/c"),
        ("", pa.string(), None),
        (None, pa.int64(), None),
        (-5, pa.int8(), "-5"),
        (True, pa.bool_(), "true"),
        (1.5, pa.float64(), "1.5"),
        (-0.0, pa.float64(), "0.0"),
        (float("nan"), pa.float64(), "NaN"),
        (float("-inf"), pa.float32(), "-Infinity"),
        (dt.date(2026, 2, 10), pa.date32(), "2026-02-10"),
        (3_000_000, pa.date32(), "+10183-09-21"),
        (0, pa.timestamp("us", "UTC"), "1970-01-01T00:00:00Z"),
        (-1, pa.timestamp("us", "UTC"), "1969-12-31T23:59:59.999999Z"),
        (-1, pa.timestamp("us"), "1969-12-31 23:59:59.999999"),
        (b"\x01a", pa.binary(), "\x01a"),
    ],
)
def test_a_partition_value_is_written_as_the_protocol_says(value: object, kind: pa.DataType, text: str | None) -> None:
    """An empty text is null to every reader, so it is written as null."""
    assert partition_texts(pa.array([value], kind), "p") == [text]


def test_a_decimal_partition_value_keeps_its_digits() -> None:
    assert partition_texts(pa.array(["-0.00000001"]).cast(pa.decimal128(20, 8)), "p") == ["-0.00000001"]


def test_a_binary_partition_value_that_is_no_text_is_refused() -> None:
    with pytest.raises(WriteError, match=r"partition column 'p' is not UTF-8"):
        partition_texts(pa.array([b"\xff"]), "p")


def test_a_folder_is_escaped_as_hive_does_and_its_path_as_a_uri() -> None:
    folder = folder_name({"p q": 'a/b:c%d="e"', "n": None, "u": "ä b"})
    assert folder == "p q=a%2Fb%3Ac%25d%3D%22e%22/n=__HIVE_DEFAULT_PARTITION__/u=ä b"
    assert logged_path(folder) == (
        "p%20q=a%252Fb%253Ac%2525d%253D%2522e%2522/n=__HIVE_DEFAULT_PARTITION__/u=%C3%A4%20b"
    )


def test_a_value_that_no_file_system_takes_as_a_name_is_refused() -> None:
    with pytest.raises(WriteError, match=r"of partition column 'p' is too long for a folder's name"):
        folder_name({"p": "ä%" * 100})
