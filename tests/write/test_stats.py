from __future__ import annotations

import datetime as dt
import json
import math
import subprocess
import sys
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from lazydelta.protocol.arrow_types import to_schema_string
from lazydelta.protocol.properties import TableProperties
from lazydelta.protocol.schema import TableSchema
from lazydelta.stats import has_range, ranges_from_json, ranges_from_parsed
from lazydelta.stats.collector import StatsCollector, indexed_columns, stats_columns

LAST = "\U0010ffff"


def stats_of(values: list[Any], kind: pa.DataType, *, split: int | None = None) -> dict[str, Any]:
    """Return the statistics of one column ``c``, taken in one batch or in two."""
    schema = pa.schema([("c", kind)])
    collector = StatsCollector(schema)
    for part in [values] if split is None else [values[:split], values[split:]]:
        collector.update(pa.RecordBatch.from_arrays([pa.array(part, kind)], schema=schema))
    found: dict[str, Any] = json.loads(collector.to_json(len(values)), parse_float=_number)
    return found


def _number(text: str) -> float | Decimal:
    return Decimal(text)


def bounds(values: list[Any], kind: pa.DataType, *, split: int | None = None) -> tuple[Any, Any]:
    found = stats_of(values, kind, split=split)
    return found["minValues"].get("c"), found["maxValues"].get("c")


def test_records_and_nulls_are_counted() -> None:
    found = stats_of([1, None, 3, None], pa.int64(), split=1)
    assert found == {"numRecords": 4, "minValues": {"c": 1}, "maxValues": {"c": 3}, "nullCount": {"c": 2}}


def test_a_column_of_nulls_has_a_count_and_no_bounds() -> None:
    found = stats_of([None, None], pa.string())
    assert found == {"numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"c": 2}}


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()], ids=str)
def test_integers_keep_every_digit(kind: pa.DataType) -> None:
    limit = 2 ** (kind.bit_width - 1)
    assert bounds([-limit, limit - 1, 0], kind) == (-limit, limit - 1)


def test_booleans_are_ordered_false_before_true() -> None:
    assert bounds([True, False], pa.bool_(), split=1) == (False, True)


def test_decimals_are_numbers_with_all_their_digits() -> None:
    digits = Decimal("123456789012345678901234567890123456.78")
    collector = StatsCollector(pa.schema([("c", pa.decimal128(38, 2))]))
    collector.update(
        pa.RecordBatch.from_arrays(
            [pa.array([digits, digits.copy_negate(), Decimal("0.00")], pa.decimal128(38, 2))],
            schema=pa.schema([("c", pa.decimal128(38, 2))]),
        )
    )
    text = collector.to_json(3)
    assert f'"minValues":{{"c":-{digits}}}' in text
    assert f'"maxValues":{{"c":{digits}}}' in text


def test_a_small_decimal_is_written_without_an_exponent() -> None:
    assert '"c":0.00000000000000000001' in _text([Decimal("1e-20")], pa.decimal128(38, 20))


def _text(values: list[Any], kind: pa.DataType) -> str:
    schema = pa.schema([("c", kind)])
    collector = StatsCollector(schema)
    collector.update(pa.RecordBatch.from_arrays([pa.array(values, kind)], schema=schema))
    return collector.to_json(len(values))


def test_single_precision_is_logged_as_the_double_it_equals() -> None:
    assert '"c":0.10000000149011612' in _text([0.1], pa.float32())


def test_zero_is_negative_below_and_positive_above() -> None:
    """Readers that order -0.0 before 0.0 must not lose either."""
    for values in ([0.0], [-0.0], [0.0, -0.0]):
        text = _text(values, pa.float64())
        assert '"minValues":{"c":-0.0}' in text
        assert '"maxValues":{"c":0.0}' in text


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("split", [None, 1, 2])
def test_nan_leaves_a_minimum_and_no_maximum(kind: pa.DataType, split: int | None) -> None:
    assert bounds([1.5, math.nan, 2.5], kind, split=split) == (Decimal("1.5"), None)


def test_a_column_of_nan_has_no_bounds_and_no_nulls() -> None:
    found = stats_of([math.nan, math.nan], pa.float64(), split=1)
    assert (found["minValues"], found["maxValues"], found["nullCount"]) == ({}, {}, {"c": 0})


def test_an_infinity_is_no_bound() -> None:
    assert bounds([math.inf, 1.0], pa.float64(), split=1) == (Decimal("1.0"), None)
    assert bounds([1.0, -math.inf], pa.float64(), split=1) == (None, Decimal("1.0"))
    assert bounds([math.inf, math.inf], pa.float64()) == (None, None)


def test_a_timestamp_is_cut_to_milliseconds_downwards_below_and_upwards_above() -> None:
    values = [1_700_000_000_123_456, 1_700_000_000_123_457]
    assert bounds(values, pa.timestamp("us", "UTC")) == ("2023-11-14T22:13:20.123Z", "2023-11-14T22:13:20.124Z")


def test_a_timestamp_before_1970_is_rounded_the_same_way() -> None:
    assert bounds([-1], pa.timestamp("us", "UTC")) == ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00Z")


def test_a_whole_millisecond_stays_itself() -> None:
    assert bounds([5000], pa.timestamp("us", "UTC")) == ("1970-01-01T00:00:00.005Z",) * 2


def test_a_wall_clock_has_no_zone() -> None:
    assert bounds([0, 5000], pa.timestamp("us")) == ("1970-01-01 00:00:00", "1970-01-01 00:00:00.005")


def test_timestamps_that_no_four_digit_year_can_write_are_no_bounds() -> None:
    year_10000 = 253_402_300_800_000_000
    assert bounds([0, year_10000], pa.timestamp("us", "UTC")) == ("1970-01-01T00:00:00Z", None)
    assert bounds([0, year_10000 - 1], pa.timestamp("us", "UTC"))[1] is None  # rounding up leads there
    assert bounds([-800_000, 0], pa.date32()) == (None, "1970-01-01")


def test_dates_are_written_as_dates() -> None:
    assert bounds([dt.date(1, 1, 1), dt.date(9999, 12, 31)], pa.date32()) == ("0001-01-01", "9999-12-31")


def test_a_string_of_32_characters_is_whole() -> None:
    assert bounds(["ä" * 32], pa.string()) == ("ä" * 32, "ä" * 32)


def test_a_long_string_is_cut_below_and_gets_a_tie_breaker_above() -> None:
    assert bounds(["a" * 40, "b" * 40], pa.string()) == ("a" * 32, "b" * 32 + "\x7f")


def test_the_tie_breaker_exceeds_what_was_cut_off() -> None:
    text = "a" * 32 + "é"
    assert bounds([text], pa.string())[1] == "a" * 32 + LAST


def test_a_maximum_that_cannot_be_cut_soon_is_missing() -> None:
    text = "a" * 32
    assert bounds([text + LAST * 3 + "z"], pa.string())[1] == text + LAST * 3 + "\x7f"
    assert bounds([text + LAST * 100], pa.string())[1] is None


TEXT = st.text(st.sampled_from(["a", "b", "\x7f", "é", "\uffff", LAST, "\0"]), max_size=40) | st.text(max_size=70)


@given(st.lists(st.none() | TEXT, min_size=1, max_size=8), st.integers(0, 8))
def test_no_string_is_outside_its_bounds(values: list[str | None], split: int) -> None:
    low, high = bounds(values, pa.string(), split=min(split, len(values)))
    present = [each.encode() for each in values if each is not None]
    if not present:
        assert (low, high) == (None, None)
        return
    assert low.encode() <= min(present)
    assert high is None or high.encode() >= max(present)


@given(st.lists(st.none() | st.floats(width=32), min_size=1, max_size=8), st.integers(0, 8))
def test_no_float_is_outside_its_bounds(values: list[float | None], split: int) -> None:
    low, high = bounds(values, pa.float32(), split=min(split, len(values)))
    for each in values:
        if each is not None:
            # To Spark NaN is larger than any bound, so there may be none.
            assert high is None or (not math.isnan(each) and each <= float(high))
            assert low is None or math.isnan(each) or each >= float(low)


def test_fields_of_structs_are_nested_and_null_below_a_null_struct() -> None:
    schema = pa.schema([("s", pa.struct([("x", pa.int32()), ("t", pa.struct([("y", pa.string())]))]))])
    collector = StatsCollector(schema)
    rows = [{"s": {"x": 1, "t": {"y": "b"}}}, {"s": None}, {"s": {"x": None, "t": None}}]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    collector.update(batch.slice(0, 1))
    collector.update(batch.slice(1, 2))
    found = json.loads(collector.to_json(3))
    assert found["minValues"] == {"s": {"x": 1, "t": {"y": "b"}}}
    assert found["nullCount"] == {"s": {"x": 2, "t": {"y": 2}}}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.binary(), b"x"),
        (pa.list_(pa.int64()), [1]),
        (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    ],
    ids=str,
)
def test_binary_lists_and_maps_have_no_statistics(kind: pa.DataType, value: object) -> None:
    found = stats_of([value, None], kind)
    assert found == {"numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {}}


WIDE = pa.schema(
    [
        ("p", pa.string()),
        ("a", pa.int64()),
        ("s", pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.int64())]))])),
        ("l", pa.list_(pa.int64())),
        ("b.c", pa.int64()),
    ]
)


def test_the_first_32_leaves_are_indexed_by_default() -> None:
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(40)])
    assert indexed_columns(schema) == [(f"c{number}",) for number in range(32)]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"delta.dataSkippingNumIndexedCols": "2"}, [("a",), ("s", "x")]),
        ({"delta.dataSkippingNumIndexedCols": "0"}, []),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, [("a",), ("s", "x"), ("s", "y", "z"), ("l",), ("b.c",)]),
        ({"delta.dataSkippingStatsColumns": "s.y, A"}, [("a",), ("s", "y", "z")]),
        ({"delta.dataSkippingStatsColumns": "`b.c`,s.x,nothing"}, [("s", "x"), ("b.c",)]),
        ({"delta.dataSkippingStatsColumns": "a", "delta.dataSkippingNumIndexedCols": "3"}, [("a",)]),
    ],
)
def test_properties_choose_the_columns(properties: dict[str, str], expected: list[tuple[str, ...]]) -> None:
    """Partition columns are not counted; a struct stands for its fields; a list counts as one."""
    chosen = TableProperties.parse(properties)
    assert indexed_columns(WIDE, chosen, partition_columns=["p"]) == expected


@pytest.mark.parametrize("properties", [{}, {"delta.dataSkippingStatsColumns": "s.y"}], ids=["first", "named"])
def test_columns_are_chosen_alike_by_the_schema_of_rows_and_of_tables(properties: dict[str, str]) -> None:
    flat = pa.schema([WIDE.field(name) for name in ("p", "a", "s", "l")])
    chosen = TableProperties.parse(properties)
    table = TableSchema.parse(to_schema_string(flat), partition_columns=("p",))
    assert [each.path for each in stats_columns(table, chosen)] == indexed_columns(
        flat, chosen, partition_columns=["p"]
    )


EXAMPLES: dict[str, Any] = {
    "string": "x",
    "long": 1,
    "integer": 1,
    "short": 1,
    "byte": 1,
    "float": 1.5,
    "double": 1.5,
    "decimal(9,2)": Decimal("1.25"),
    "boolean": True,
    "binary": b"x",
    "date": dt.date(2026, 2, 10),
    "timestamp": dt.datetime(2026, 2, 10, tzinfo=dt.UTC),
    "timestamp_ntz": dt.datetime(2026, 2, 10),  # noqa: DTZ001 - the type has no zone
    "void": None,
    '{"type":"array","elementType":"long","containsNull":true}': [1],
    '{"type":"map","keyType":"string","valueType":"long","valueContainsNull":true}': [("k", 1)],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_bounds_are_collected_and_read_of_the_same_types(name: str) -> None:
    kind = name if name.startswith("{") else json.dumps(name)
    schema = TableSchema.parse(
        f'{{"type":"struct","fields":[{{"name":"c","type":{kind},"nullable":true,"metadata":{{}}}}]}}'
    )
    column = next(schema.leaves())
    written = stats_of([EXAMPLES[name], None], column.type.to_arrow())
    assert ("c" in written["minValues"]) == ("c" in written["maxValues"]) == has_range(column)
    text = ranges_from_json(pa.array([json.dumps({"minValues": {"c": 1}, "nullCount": {"c": 1}})]), [column])
    bounds = pa.StructArray.from_arrays([pa.array([EXAMPLES[name]], column.type.to_arrow())], names=["c"])
    counts = pa.array([{"c": 1}])
    typed = pa.StructArray.from_arrays([bounds, counts], names=["minValues", "nullCount"])
    for ranges in (text, ranges_from_parsed(typed, [column])):
        known = ranges.column(column)
        assert known is not None
        assert known.null_count is not None
        assert (known.min is not None) == has_range(column)


def test_statistics_do_not_import_pandas() -> None:
    """Its import takes a second, in each Spark worker anew."""
    program = """
import sys, pyarrow as pa
from lazydelta.runtime.arrays import typed_array
from lazydelta.stats.collector import StatsCollector
schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64()), ("t", pa.timestamp("us"))])
values = [[1, None], ["x", "y"], [1.5, float("nan")], [0, 1]]
arrays = [typed_array(each, field.type) for each, field in zip(values, schema)]
collector = StatsCollector(schema)
collector.update(pa.RecordBatch.from_arrays(arrays, schema=schema))
print(collector.to_json(2).count("x"), "pandas" in sys.modules)
"""
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout == "2 False\n"
