"""Arrow values become what JSON can hold, nested and sliced as they may be."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lazydelta.cli import wording as text
from lazydelta.runtime.results import records

NESTED = pa.struct([("tags", pa.map_(pa.string(), pa.int64())), ("marks", pa.list_(pa.float64()))])
COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "decimal": (pa.decimal128(20, 2), [Decimal("1.20"), None, Decimal("-0.01")], ["1.20", None, "-0.01"]),
    "float": (pa.float64(), [float("inf"), float("-inf"), 1.5], ["Infinity", "-Infinity", 1.5]),
    "date": (pa.date32(), [date(2026, 2, 10), None, date(1, 1, 1)], ["2026-02-10", None, "0001-01-01"]),
    "binary": (pa.binary(), [b"\x00\xff", None, b""], ["AP8=", None, ""]),
    "late timestamp": (pa.timestamp("us"), [0, None, 10**18], ["1970-01-01T00:00:00", None, 10**18]),
    "nothing": (pa.null(), [None, None, None], [None, None, None]),
    "map": (
        pa.map_(pa.int32(), pa.string()),
        [[(1, "a"), (2, None)], None, []],
        [{"1": "a", "2": None}, None, {}],
    ),
    "nested": (
        NESTED,
        [{"tags": [("k", 1)], "marks": [float("nan"), 2.0]}, None, {"tags": None, "marks": []}],
        [{"tags": {"k": 1}, "marks": ["NaN", 2.0]}, None, {"tags": None, "marks": []}],
    ),
    "list of structs": (
        pa.list_(NESTED),
        [[{"tags": [], "marks": None}], [], None],
        [[{"tags": {}, "marks": None}], [], None],
    ),
    "empty struct": (pa.struct([]), [{}, None, {}], [{}, None, {}]),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(("start", "length"), [(0, 3), (1, 2), (2, 1), (0, 0)])
def test_a_column_becomes_plain_values(name: str, start: int, length: int) -> None:
    kind, given, expected = COLUMNS[name]
    batch = pa.RecordBatch.from_arrays([pa.array(given, kind)], [name]).slice(start, length)
    values = [record[name] for record in records(batch)]
    assert values == expected[start : start + length]
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_rows_without_columns_are_counted() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert list(records(batch)) == [{}, {}]


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (150_000, "146 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 60, "3,072.0 PiB"),
        (None, "-"),
    ],
)
def test_sizes_are_shown_in_the_largest_fitting_unit(number: int | None, shown: str) -> None:
    assert text.size(number) == shown


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "1970-01-01 00:00:00"),
        (1_770_771_059_999, "2026-02-11 00:50:59"),
        (-1, "1969-12-31 23:59:59"),
        (None, "-"),
        (10**18, str(10**18)),
        ("soon", "soon"),
    ],
)
def test_timestamps_are_utc_and_nonsense_stays_as_it_is(milliseconds: object, shown: str) -> None:
    assert text.timestamp(milliseconds) == shown


@pytest.mark.parametrize(
    ("raw", "shown"),
    [("größe 雪", "größe 雪"), ("a\x1b[31mb", "a\\x1b[31mb"), ("\udcff", "\\udcff"), ("a\u202eb\n", "a\\u202eb\\n")],
)
def test_what_would_move_the_cursor_is_escaped(raw: str, shown: str) -> None:
    assert text.printable(raw) == shown


@pytest.mark.parametrize(
    ("milliseconds", "shown"), [(0.5, "0.5 ms"), (12.34, "12.3 ms"), (1500, "1.5 s"), (90_000, "1 min 30 s")]
)
def test_lengths_of_time_have_about_three_digits(milliseconds: float, shown: str) -> None:
    assert text.duration(milliseconds) == shown
