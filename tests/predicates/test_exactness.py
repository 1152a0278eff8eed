"""Where the statistics decide, pruning follows them: no file is kept that they exclude."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from lazydelta import DeltaTable
from lazydelta.predicates import NanOrder, all_match, may_match, parse_predicate
from lazydelta.stats import partition_ranges, ranges_from_json
from tests.predicates import worlds

SCHEMA = worlds.schema()
MAP = pa.map_(pa.string(), pa.string())
NOON = dt.datetime(2026, 2, 8, 12, tzinfo=dt.UTC)

DOMAINS: dict[str, list[Any]] = {
    "i": [*range(-3, 4), 2**53, 2**53 + 1, 2**63 - 1],
    "tiny": list(range(-128, -124)),
    "s": ["", "a", "ab", "abc", "b", "é", "x" * 31],
    "d": [dt.date(2026, 2, day) for day in range(1, 6)],
    "m": [Decimal(each) / 100 for each in (-150, -1, 0, 1, 149, 150)],
    "big": [Decimal(each) / 100 for each in (-999999999999999, 0, 1, 999999999999999)],
    "huge": [Decimal(each).scaleb(-4) for each in (-5, 0, 5, 999999999999999)],
    "n.i": list(range(4)),
}


def stats(column: str, low: object, high: object, *, nulls: int = 0, records: int = 4) -> str:
    def section(item: object) -> dict[str, Any]:
        return {"n": {"i": item}} if column == "n.i" else {column: item}

    return worlds._dump(
        {
            "numRecords": records,
            "minValues": section(worlds._logged(low, "exact", up=False)),
            "maxValues": section(worlds._logged(high, "exact", up=True)),
            "nullCount": section(nulls),
        }
    )


def within(low: Any, high: Any, op: str, item: Any) -> bool:
    """Tell whether a value from low to high could satisfy the comparison."""
    if op == "=":
        return bool(low <= item <= high)
    if op == "!=":
        return not low == high == item
    return bool(worlds.OPS[op](low if "<" in op else high, item))


@pytest.mark.parametrize("column", DOMAINS)
def test_a_comparison_keeps_a_file_if_and_only_if_its_range_allows_it(column: str) -> None:
    domain = DOMAINS[column]
    pairs = [(low, high) for low in domain for high in domain if low <= high]
    known = ranges_from_json(pa.array([stats(column, low, high) for low, high in pairs]), [SCHEMA.column(column)])
    for item in domain:
        for op in worlds.OPS:
            predicate = parse_predicate([(column, op, item)], SCHEMA)
            assert predicate is not None
            expected = [within(low, high, op, item) for low, high in pairs]
            assert may_match(predicate, known).to_pylist() == expected, str(predicate)
            opposite = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}[op]
            proven = [not within(low, high, opposite, item) for low, high in pairs]
            assert all_match(predicate, known).to_pylist() == proven, str(predicate)


@pytest.mark.parametrize("column", DOMAINS)
@pytest.mark.parametrize("size", [2, 7, 60])
def test_in_keeps_a_file_if_and_only_if_a_value_lies_in_its_range(column: str, size: int) -> None:
    rng = random.Random(size)
    domain = DOMAINS[column]
    pairs = [(low, high) for low in domain for high in domain if low <= high]
    known = ranges_from_json(pa.array([stats(column, low, high) for low, high in pairs]), [SCHEMA.column(column)])
    for _ in range(5):
        items = [rng.choice(domain) for _ in range(2)]
        while size > 2 and len(set(items)) < min(size, len(domain) // 2):
            items.append(rng.choice(domain))
        predicate = parse_predicate([(column, "in", items)], SCHEMA)
        assert predicate is not None
        expected = [any(low <= item <= high for item in items) for low, high in pairs]
        assert may_match(predicate, known).to_pylist() == expected
        negated = parse_predicate([(column, "not in", items)], SCHEMA)
        assert negated is not None
        assert may_match(negated, known).to_pylist() == [not (low == high and low in items) for low, high in pairs]


def test_long_in_lists_are_searched_and_not_compared_one_by_one() -> None:
    pairs = [(low, low + width) for low in range(0, 4000, 7) for width in (0, 1, 5)]
    items = list(range(3, 4000, 10))
    predicate = parse_predicate([("i", "in", items)], SCHEMA)
    assert predicate is not None
    known = ranges_from_json(pa.array([stats("i", *pair) for pair in pairs]), [SCHEMA.column("i")])
    expected = [any(low <= item <= high for item in items) for low, high in pairs]
    assert may_match(predicate, known).to_pylist() == expected


@pytest.mark.parametrize(
    ("logged", "condition", "kept"),
    [
        ("2026-02-08T12:00:00.000Z", "t > TIMESTAMP '2026-02-08 12:00:00'", True),
        ("2026-02-08T12:00:00.000Z", "t >= TIMESTAMP '2026-02-08 12:00:00.000999'", True),
        ("2026-02-08T12:00:00.000Z", "t >= TIMESTAMP '2026-02-08 12:00:00.001'", False),
        ("2026-02-08T12:00:00.000250Z", "t > TIMESTAMP '2026-02-08 12:00:00.000250'", False),
        ("2026-02-08T13:00:00.000+01:00", "t > TIMESTAMP '2026-02-08 12:00:00.002'", False),
        ("2026-02-08T12:00:00.000Z", "t < TIMESTAMP '2026-02-08 12:00:00'", False),
        ("2026-02-08T12:00:00.000Z", "t != TIMESTAMP '2026-02-08 12:00:00'", True),
    ],
)
def test_a_timestamp_maximum_on_a_millisecond_reaches_up_to_the_next(
    logged: str, condition: str, *, kept: bool
) -> None:
    text = json.dumps({"numRecords": 2, "minValues": {"t": logged}, "maxValues": {"t": logged}, "nullCount": {"t": 0}})
    predicate = parse_predicate(condition, SCHEMA)
    assert predicate is not None
    assert may_match(predicate, ranges_from_json(pa.array([text]), [SCHEMA.column("t")])).to_pylist() == [kept]


@pytest.mark.parametrize(
    ("high", "condition", "kept"),
    [
        ("x" * 31, f"s > '{'x' * 31}'", False),
        ("x" * 32, f"s > '{'x' * 40}'", True),
        ("x" * 32, f"s >= '{'x' * 30}y'", False),
        ("x" * 32 + "\ufffd", f"s = '{'x' * 32}😀'", True),
        ("x" * 31 + "?\ufffd", f"s >= '{'x' * 31}😀'", True),  # half of a pair was lost
        ("😀" * 16 + "\ufffd", f"s >= '{'😀' * 17}'", True),  # 32 units, 16 characters
        ("😀" * 15, f"s >= '{'😀' * 16}'", False),
        ("x" * 32, f"s LIKE '{'x' * 35}%'", True),
        ("x" * 32, "s LIKE 'y%'", False),
        ("x" * 32, f"s <> '{'x' * 32}'", True),
        ("x" * 31, f"s <> '{'x' * 31}'", False),
    ],
)
def test_a_string_maximum_of_32_characters_stands_for_all_that_start_like_it(
    high: str, condition: str, *, kept: bool
) -> None:
    predicate = parse_predicate(condition, SCHEMA)
    assert predicate is not None
    known = ranges_from_json(pa.array([stats("s", high[:32], high)]), [SCHEMA.column("s")])
    assert may_match(predicate, known).to_pylist() == [kept]


@pytest.mark.parametrize(
    ("high", "item", "kept"),
    [
        ("9999999999999.99", "10000000000000.00", False),  # 15 digits survive a double
        ("90071992547409.92", "90071992547409.93", True),  # seen in a table of delta-rs
        ("90071992547409.92", "90071992547410.50", False),
        ("1234567890123456.70", "1234567890123456.78", True),
        ("1234567890123456.70", "1234567890123460.00", False),
    ],
)
def test_decimals_of_16_digits_and_more_are_widened_by_what_a_double_loses(high: str, item: str, *, kept: bool) -> None:
    predicate = parse_predicate(f"big >= {item}", SCHEMA)
    assert predicate is not None
    known = ranges_from_json(pa.array([stats("big", Decimal(0), Decimal(high))]), [SCHEMA.column("big")])
    assert may_match(predicate, known).to_pylist() == [kept]


@pytest.mark.parametrize(
    ("condition", "unordered", "largest", "trusted"),
    [
        ("f > 3", False, True, False),  # NaN > 3 is false by IEEE 754 and true in SQL
        ("f >= 3.5", False, True, False),
        ("NOT (f <= 3)", True, True, False),
        ("f != 3", True, True, True),
        ("f = 'NaN'", False, True, True),
        ("f IN (7, 'NaN')", False, True, True),
        ("f < 'NaN'", False, True, True),
        ("f > 'NaN'", False, False, False),
        ("f < 3", False, False, False),
        ("f <= -0.0", False, False, False),
    ],
)
def test_nan_may_hide_behind_any_bounds_and_its_order_says_when_it_matters(
    condition: str, *, unordered: bool, largest: bool, trusted: bool
) -> None:
    known = ranges_from_json(pa.array([stats("f", 3.0, 3.0)]), [SCHEMA.column("f")])
    for nan, kept in (
        (NanOrder.UNORDERED, unordered),
        (NanOrder.LARGEST, largest),
        (NanOrder.LARGEST_AND_IN_NO_MAXIMUM, trusted),
    ):
        predicate = parse_predicate(condition, SCHEMA, nan=nan)
        assert predicate is not None
        assert may_match(predicate, known).to_pylist() == [kept], nan
        assert all_match(predicate, known).to_pylist() == [False], nan


def test_a_lower_bound_proves_that_all_rows_are_above_nan_included() -> None:
    known = ranges_from_json(pa.array([stats("f", 3.0, 3.0)]), [SCHEMA.column("f")])
    for nan, proven in ((NanOrder.UNORDERED, False), (NanOrder.LARGEST, True)):
        predicate = parse_predicate("f > 2", SCHEMA, nan=nan)
        assert predicate is not None
        assert all_match(predicate, known).to_pylist() == [proven], nan


def test_negative_zero_equals_zero() -> None:
    known = ranges_from_json(pa.array([stats("f", 0.0, 0.0)]), [SCHEMA.column("f")])
    for condition in ("f = -0.0", "f IN (-0.0, 7)", "f <= -0.0", "f >= -0.0"):
        predicate = parse_predicate(condition, SCHEMA)
        assert predicate is not None
        assert may_match(predicate, known).to_pylist() == [True], condition


@pytest.mark.parametrize(
    ("nulls", "condition", "some", "every"),
    [
        (0, "i IS NULL", False, False),
        (0, "i IS NOT NULL", True, True),
        (2, "i IS NULL", True, False),
        (2, "i IS NOT NULL", True, False),
        (4, "i IS NULL", True, True),
        (4, "i IS NOT NULL", False, False),
        (4, "i = 1", False, False),
        (4, "NOT (i = 1)", False, False),
        (4, "i NOT IN (1, 2)", False, False),
        (2, "i >= 0", True, False),
        (0, "i >= 0", True, True),
        (9, "i IS NOT NULL", True, False),  # more nulls than rows tells nothing
    ],
)
def test_null_counts_decide_at_their_two_ends(nulls: int, condition: str, *, some: bool, every: bool) -> None:
    document: dict[str, Any] = {"numRecords": 4, "nullCount": {"i": nulls}}
    if nulls < 4:
        document |= {"minValues": {"i": 0}, "maxValues": {"i": 5}}
    predicate = parse_predicate(condition, SCHEMA)
    assert predicate is not None
    for tight in (True, False):
        known = ranges_from_json(pa.array([json.dumps(document | {"tightBounds": tight})]), [SCHEMA.column("i")])
        assert may_match(predicate, known).to_pylist() == [some]
        assert all_match(predicate, known).to_pylist() == [every]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{}",
        "not json",
        '{"numRecords": 4}',
        '{"numRecords": 4, "minValues": {"i": 9}, "maxValues": {"i": 3}}',
        '{"numRecords": 4, "minValues": {"i": 1.5}, "maxValues": {"i": 3.5}}',
        '{"numRecords": 4, "minValues": {"i": "1"}, "maxValues": {"i": "3"}}',
        '{"numRecords": 4, "minValues": {"i": 99999999999999999999}, "maxValues": {"i": -99999999999999999999}}',
        '{"numRecords": 4, "minValues": {"i": 100}, "maxValues": {"i": 100}, "nullCount": {"i": 4}}',
        '{"numRecords": 4, "minValues": null, "maxValues": null, "nullCount": null}',
        '{"numRecords": 4, "minValues": [], "maxValues": 7}',
        '{"numRecords": 4, "minValues": {"i": 9}, "maxValues": {"i": 9}, "nullCount": {"i": 4}, "x": {}} {}',
    ],
)
def test_missing_or_nonsensical_statistics_keep_the_file(text: str | None) -> None:
    predicate = parse_predicate("i = 100 OR i IS NOT NULL", SCHEMA)
    assert predicate is not None
    good = stats("i", 1, 2)
    known = ranges_from_json(pa.array([good, text, good]), [SCHEMA.column("i")])
    assert may_match(predicate, known).to_pylist() == [True, True, True]
    equal = parse_predicate("i = 100", SCHEMA)
    assert equal is not None
    assert may_match(equal, known).to_pylist() == [False, True, False]


def test_a_file_without_rows_is_pruned_by_any_predicate() -> None:
    known = ranges_from_json(pa.array(['{"numRecords": 0}', '{"numRecords": 1}']), [SCHEMA.column("i")])
    for condition in ("i = 1", "upper(s) = 'A'", "i IS NULL", "TRUE"):
        predicate = parse_predicate(condition, SCHEMA)
        assert predicate is not None
        assert may_match(predicate, known).to_pylist() == [False, True]


def test_a_file_without_rows_but_with_a_range_is_pruned_by_the_range_alone() -> None:
    """One of the two is wrong, and which is unknown; what the range rules out stays ruled out."""
    texts = [
        '{"numRecords": 0, "minValues": {"i": 5}}',
        '{"numRecords": 0, "maxValues": {"i": 5}}',
        '{"numRecords": 0}',
    ]
    known = ranges_from_json(pa.array(texts), [SCHEMA.column("i")])
    for condition, kept in {"i = 5": [True, True, False], "i < 5": [False, True, False], "TRUE": [False] * 3}.items():
        predicate = parse_predicate(condition, SCHEMA)
        assert predicate is not None
        assert may_match(predicate, known).to_pylist() == kept


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("p = 1", [True, False, False, True, True]),
        ("p != 1", [False, True, False, True, True]),
        ("p IS NULL", [False, False, True, True, True]),
        ("p IS NOT NULL", [True, True, False, True, True]),
        ("NOT (p > 1)", [True, False, False, True, True]),
        ("p IN (1, 7)", [True, False, False, True, True]),
        ("p < 1.5", [True, False, False, True, True]),
    ],
)
def test_partition_values_decide_exactly_and_unknown_ones_keep_the_file(condition: str, kept: list[bool]) -> None:
    maps = pa.array([[("p", "1")], [("p", "2")], [("p", "")], [("p", "two")], [("q", "x")]], MAP)
    predicate = parse_predicate(condition, SCHEMA)
    assert predicate is not None
    assert may_match(predicate, partition_ranges(maps, [SCHEMA.column("p")])).to_pylist() == kept


@pytest.mark.parametrize("column", ["q", "u", "v"])
def test_partition_values_need_no_widening(column: str) -> None:
    item = {"q": "x" * 40, "u": NOON, "v": Decimal("12345678901234567.125")}[column]
    maps = pa.array([[(column, worlds.partition_text(item))]], MAP)
    known = partition_ranges(maps, [SCHEMA.column(column)])
    for op, some in {"=": True, "!=": False, ">": False, ">=": True, "<": False}.items():
        predicate = parse_predicate([(column, op, item)], SCHEMA)
        assert predicate is not None
        assert may_match(predicate, known).to_pylist() == [some], op
        assert all_match(predicate, known).to_pylist() == [some], op


@pytest.mark.parametrize("where", ["b = true", "b = false", "b", "NOT b", "b != true", "b IN (true)"])
def test_bounds_of_booleans_are_not_believed_but_their_nulls_are(where: str) -> None:
    logged = [*((value, value, 0) for value in (False, True)), (None, None, 4)]
    wrong = [stats("b", low, high, nulls=nulls) for low, high, nulls in logged]
    ranges = ranges_from_json(pa.array(wrong), [SCHEMA.column("b")])
    predicate = parse_predicate(where, SCHEMA)
    assert predicate is not None
    assert may_match(predicate, ranges).to_pylist() == [True, True, False]
    assert all_match(predicate, ranges).to_pylist() == [False, False, False]


@pytest.mark.parametrize("precision", [19, 20, 38])
@pytest.mark.parametrize("sign", [1, -1])
def test_decimals_that_deltalake_logs_as_the_last_integer_are_found(tmp_path: Path, precision: int, sign: int) -> None:
    kind = pa.decimal128(precision, 0)
    values = [Decimal(sign), Decimal(sign * (10**precision - 1))]
    for part in ([values[0]], values[1:], values):
        deltalake.write_deltalake(str(tmp_path), pa.table({"d": pa.array(part, kind)}), mode="append")
    table = DeltaTable(str(tmp_path))
    beyond = sign * (2**63 + 5000)
    assert table.rows(where=f"d {'<>'[sign > 0]} {beyond}").read_all()["d"].to_pylist() == [values[1]] * 2
    assert table.rows(where=f"d = {values[1]}").read_all()["d"].to_pylist() == [values[1]] * 2
    assert table.count_rows(f"d {'><'[sign > 0]} {beyond}") == 2
