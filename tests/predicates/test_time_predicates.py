"""Time as people ask for it: functions, intervals and ``now()``, held against DuckDB over the rows themselves."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lazydelta.errors import PredicateError
from lazydelta.predicates import (
    Predicate,
    all_match,
    may_match,
    parse_predicate,
    partition_columns,
    stats_columns,
    to_arrow_expression,
)
from lazydelta.predicates.tree import And, Compare, Opaque
from lazydelta.protocol.schema import TableSchema
from lazydelta.stats import combine, partition_ranges, ranges_from_json

COLUMNS = {
    "t": "timestamp",
    "ntz": "timestamp_ntz",
    "d": "date",
    "f": "double",
    "g": "float",
    "p": "date",
    "u": "timestamp",
}
PARTITIONS = ("p", "u")
SCHEMA = TableSchema.parse(
    json.dumps(
        {
            "type": "struct",
            "fields": [{"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in COLUMNS.items()],
        }
    ),
    partition_columns=PARTITIONS,
)
NOW = dt.datetime(2026, 2, 8, 10, 30, 0, 123456, tzinfo=dt.UTC)
NANOSECONDS = int(NOW.timestamp()) * 10**9 + 123_456_000
TIMESTAMPS = [
    dt.datetime(2026, 2, 8, 10, tzinfo=dt.UTC),
    dt.datetime(2026, 2, 8, tzinfo=dt.UTC),
    dt.datetime(2026, 2, 2, tzinfo=dt.UTC),  # a Monday
    dt.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=dt.UTC),
    dt.datetime(2025, 12, 31, 23, 30, tzinfo=dt.UTC),
    dt.datetime(1969, 12, 31, 23, 30, tzinfo=dt.UTC),
    dt.datetime(1601, 3, 1, tzinfo=dt.UTC),
    NOW,
]
UNITS = ["microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year"]
FIXED = ["1 hour", "90 minutes", "1 day", "2 weeks", "30 seconds"]
ANY = [*FIXED, "1 month", "5 quarters", "1 year"]


def timestamp(rng: random.Random) -> dt.datetime:
    """Draw a timestamp near one of a few."""
    hours = rng.choice([0, 0, 1, -1, 24, -24, 24 * 31, -24 * 366])
    micros = rng.choice([0, 0, 1, -1, 999, 1_000, 59_000_000])
    return rng.choice(TIMESTAMPS) + dt.timedelta(hours=hours, microseconds=micros)


def value(rng: random.Random, column: str) -> Any:
    """Draw a value of a column."""
    if column in {"f", "g"}:
        return rng.choice([math.nan, math.nan, 0.0, -0.0, 1.5, -2.5, 1e30, math.inf, -math.inf])
    drawn = timestamp(rng)
    if COLUMNS[column] == "date":
        return drawn.date()
    return drawn.replace(tzinfo=None) if column == "ntz" else drawn


def rows(rng: random.Random) -> list[dict[str, Any]]:
    """Draw the rows of a file."""
    shared = {name: None if rng.random() < 0.2 else value(rng, name) for name in PARTITIONS}
    nulls = {name: rng.choice([0.0, 0.0, 0.3, 1.0]) for name in COLUMNS if name not in PARTITIONS}
    spread = {name: [value(rng, name) for _ in range(rng.randint(1, 2))] for name in nulls}
    return [
        shared | {name: None if rng.random() < nulls[name] else rng.choice(spread[name]) for name in nulls}
        for _ in range(rng.randint(1, 4))
    ]


def logged(file: list[dict[str, Any]]) -> str:
    """Write statistics: timestamps cut to milliseconds, NaN in no bound."""
    stats: dict[str, Any] = {"numRecords": len(file), "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in COLUMNS:
        if name in PARTITIONS:
            continue
        present = [row[name] for row in file if row[name] is not None]
        stats["nullCount"][name] = len(file) - len(present)
        ordered = [each for each in present if each == each]  # noqa: PLR0124 - NaN
        if ordered:
            stats["minValues"][name], stats["maxValues"][name] = _text(min(ordered)), _text(max(ordered))
    return json.dumps(stats)


def _text(item: Any) -> Any:
    if isinstance(item, dt.datetime):
        return item.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(item, float) and math.isinf(item):
        return "Infinity" if item > 0 else "-Infinity"
    return item.isoformat() if isinstance(item, dt.date) else item


def partition_text(item: Any) -> str | None:
    """Write a partition value."""
    if item is None:
        return None
    return item.strftime("%Y-%m-%d %H:%M:%S.%f") if isinstance(item, dt.datetime) else str(item)


def constant(rng: random.Random) -> tuple[str, str]:
    """Draw a timestamp that is no column: our text, and DuckDB's with the same ``now``."""
    stamp, today = f"TIMESTAMPTZ '{NOW.isoformat(' ')}'", f"DATE '{NOW.date()}'"
    span = rng.choice(ANY)
    drawn = timestamp(rng)
    text = drawn.replace(tzinfo=None).isoformat(" ")
    return rng.choice(
        [
            ("current_timestamp", stamp),
            (f"now() - interval {span}", f"{stamp} - interval {span}"),
            (f"current_timestamp() + INTERVAL '{span}'", f"{stamp} + INTERVAL '{span}'"),
            ("current_date - 1", f"{today} - 1"),
            ("current_date", today),
            (f"current_date - interval {span}", f"{today} - interval {span}"),
            ("ago(1h)", f"{stamp} - interval 1 hour"),
            (f"TIMESTAMP '{text}'", f"TIMESTAMP '{text}'"),
            (f"datetime({text})", f"TIMESTAMP '{text}'"),
            (f"DATE '{drawn.date()}'", f"DATE '{drawn.date()}'"),
            (f"date_trunc('hour', now() - interval {span})", f"date_trunc('hour', {stamp} - interval {span})"),
        ]
    )


def operand(rng: random.Random) -> tuple[str, str]:
    """Draw a function of a column: our text and DuckDB's."""
    column = rng.choice(["t", "ntz", "u", "d", "p"])
    unit, span = rng.choice(UNITS), rng.choice(FIXED)
    both = [
        column,
        f"CAST({column} AS DATE)",
        f"date_trunc('{unit}', {column})",
        f"{column} - INTERVAL {span}",
        f"date_trunc('{unit}', {column} + INTERVAL {span})",
        f"CAST(date_trunc('{unit}', {column}) AS DATE)",
    ]
    pairs = [(each, each) for each in both]
    pairs += [(f"date({column})", f"CAST({column} AS DATE)"), (f"to_date({column})", f"CAST({column} AS DATE)")]
    if column in {"d", "p"}:
        pairs += [(f"{column} + 3", f"{column} + 3"), (f"date_sub({column}, 2)", f"{column} - 2")]
    return rng.choice(pairs)


def condition(rng: random.Random, depth: int = 2) -> tuple[str, str]:
    """Draw a condition: our text and DuckDB's."""
    kind = rng.random()
    if depth and kind < 0.3:
        word = rng.choice(["AND", "OR"])
        parts = [condition(rng, depth - 1) for _ in range(2)]
        both = [f" {word} ".join(texts) for texts in zip(*parts, strict=True)]
        return f"({both[0]})", f"({both[1]})"
    if depth and kind < 0.4:
        ours, theirs = condition(rng, depth - 1)
        return f"NOT {ours}", f"NOT {theirs}"
    op = rng.choice(["=", "!=", "<", "<=", ">", ">="])
    if kind < 0.5:
        column = rng.choice(["t", "ntz", "u", "d", "p"])
        part = rng.choice(["year", "year", "year", "month", "day", "quarter", "dayofyear"])
        if column not in {"d", "p"} and rng.random() < 0.4:
            part = rng.choice(["hour", "minute", "second"])
        asked = f"{part}({column})"
        if part not in {"dayofyear", "second"} and rng.random() < 0.5:
            asked = f"extract({part} FROM {column})"
        return (f"({asked} {op} {rng.choice([2026, 2025, 2, 1601, 23, 30, 59, 60])})",) * 2
    if kind < 0.6:
        column = rng.choice(["d", "p", "CAST(t AS DATE)"])
        text = rng.choice([str(timestamp(rng).date()), "2026-02", "2026", "202", "abc", "2026-02-30"])
        test = rng.choice([f"{op} '{text}'", f"LIKE '{text}%'", f"NOT LIKE '{text}%'", f"IN ('{text}', '2026-02-08')"])
        return (f"(CAST({column} AS STRING) {test})",) * 2
    if kind < 0.7:
        column = rng.choice(["f", "g"])
        number = rng.choice(["0", "1.5", "1e30", "'NaN'", "'Infinity'"])
        test = rng.choice([f"{op} {number}", f"IN (1.5, {number})", f"NOT IN (1.5, {number})"])
        return (f"({column} {test})",) * 2
    if kind < 0.8:
        (ours, theirs), (low, their_low), (high, their_high) = operand(rng), constant(rng), constant(rng)
        return f"({ours} BETWEEN {low} AND {high})", f"({theirs} BETWEEN {their_low} AND {their_high})"
    (ours, theirs), (end, their_end) = operand(rng), constant(rng)
    return f"({ours} {op} {end})", f"({theirs} {op} {their_end})"


def ranges(files: list[list[dict[str, Any]]], predicate: Predicate) -> Any:
    maps = [[(name, partition_text(file[0][name])) for name in PARTITIONS] for file in files]
    known = partition_ranges(pa.array(maps, pa.map_(pa.string(), pa.string())), partition_columns(predicate))
    return combine([known, ranges_from_json(pa.array([logged(file) for file in files]), stats_columns(predicate))])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.one_in(3)
def test_functions_of_time_filter_rows_as_duckdb_does_and_prune_no_file_that_has_one(seed: int) -> None:
    rng = random.Random(seed)
    files = [rows(rng) for _ in range(60)]
    every = [row | {"file": number} for number, file in enumerate(files) for row in file]
    schema = SCHEMA.to_arrow().append(pa.field("file", pa.int64()))
    table = pa.Table.from_pylist(every, schema=schema).append_column("row", pa.array(range(len(every))))
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    # DuckDB 2.0 itself turns date_trunc('hour', a date) != … into a wrong range; without its optimizer it computes.
    connection.execute("PRAGMA disable_optimizer")
    connection.register("rows", table)
    pruned = proven = 0
    for _ in range(80):
        ours, theirs = condition(rng)
        predicate = parse_predicate(ours, SCHEMA, now=NANOSECONDS)
        assert predicate is not None
        expected = connection.execute(f"SELECT row, file FROM rows WHERE {theirs} ORDER BY row").fetchall()
        kept = table.filter(to_arrow_expression(predicate, SCHEMA))["row"].to_pylist()
        assert kept == [row for row, _ in expected], (ours, str(predicate))
        matching = [0] * len(files)
        for _, number in expected:
            matching[number] += 1
        known = ranges(files, predicate)
        may, surely = may_match(predicate, known).to_pylist(), all_match(predicate, known).to_pylist()
        for file, count, some, proof in zip(files, matching, may, surely, strict=True):
            assert some or not count, (ours, str(predicate), file)
            assert not proof or count == len(file), (ours, str(predicate), file)
        pruned += may.count(False)
        proven += surely.count(True)
    connection.close()
    assert pruned > 800
    assert proven > 100


@pytest.mark.parametrize(
    ("where", "meaning"),
    [
        ("t > current_timestamp - interval 1 hour", "t > TIMESTAMP '2026-02-08 09:30:00.123456+00:00'"),
        ("t > now() - interval '1' hour", "t > TIMESTAMP '2026-02-08 09:30:00.123456+00:00'"),
        ("t >= ago(1h)", "t >= TIMESTAMP '2026-02-08 09:30:00.123456+00:00'"),
        ("t >= ago(1.5h)", "t >= TIMESTAMP '2026-02-08 09:00:00.123456+00:00'"),
        ("t < datetime(2026-02-08)", "t < TIMESTAMP '2026-02-08 00:00:00+00:00'"),
        ("t < datetime(2026-02-08T10:00:00Z)", "t < TIMESTAMP '2026-02-08 10:00:00+00:00'"),
        ("d >= current_date - 1", "d >= DATE '2026-02-07'"),
        ("p >= current_date() - interval 1 month", "p >= DATE '2026-01-08'"),
        (
            "date(t) = '2026-02-08'",
            "(t >= TIMESTAMP '2026-02-08 00:00:00+00:00' AND t < TIMESTAMP '2026-02-09 00:00:00+00:00')",
        ),
        ("cast(t as date) < '2026-02-08'", "t < TIMESTAMP '2026-02-08 00:00:00+00:00'"),
        ("cast(t as date) > '2026-02-08'", "t >= TIMESTAMP '2026-02-09 00:00:00+00:00'"),
        (
            "date_trunc('hour', t) = '2026-02-08 10:00:00'",
            "(t >= TIMESTAMP '2026-02-08 10:00:00+00:00' AND t < TIMESTAMP '2026-02-08 11:00:00+00:00')",
        ),
        ("date_trunc('hour', t) = '2026-02-08 10:30:00'", "FALSE"),
        ("cast(d as string) = '2026-02-08'", "d = DATE '2026-02-08'"),
        ("cast(p as string) LIKE '2026-02%'", "(p >= DATE '2026-02-01' AND p < DATE '2026-03-01')"),
        ("extract(year from d) = 2026", "(d >= DATE '2026-01-01' AND d < DATE '2027-01-01')"),
        ("year(d) >= 2026", "d >= DATE '2026-01-01'"),
        ("year(t) = 300000", "FALSE"),
        ("date_trunc('month', t) IS NULL", "t IS NULL"),
        ("d = cast(date_trunc('month', now()) as date)", "d = DATE '2026-02-01'"),
        ("t + interval 1 hour > now()", "t >= TIMESTAMP '2026-02-08 09:30:00.123457+00:00'"),
        ("now() > timestamp '2026-01-01'", "TRUE"),
        ("d < timestamp '2026-01-31' + interval 1 month", "d < DATE '2026-02-28'"),
    ],
)
def test_time_is_folded_into_ranges(where: str, meaning: str) -> None:
    assert str(parse_predicate(where, SCHEMA, now=NANOSECONDS)) == meaning


def test_texts_of_hours_are_made_from_now() -> None:
    schema = TableSchema.parse(
        '{"type":"struct","fields":[{"name":"hour","type":"string","nullable":true,"metadata":{}}]}',
        partition_columns=("hour",),
    )
    text = "hour >= date_format(now() - interval 2 hours, 'yyyyMMddHH') AND hour < cast(current_date + 1 as string)"
    assert str(parse_predicate(text, schema, now=NANOSECONDS)) == "(hour >= '2026020808' AND hour < '2026-02-09')"


def test_now_is_the_same_timestamp_wherever_it_stands() -> None:
    predicate = parse_predicate("t >= now() AND t <= current_timestamp", SCHEMA)
    assert isinstance(predicate, And)
    first, last = (each.value for each in predicate.parts if isinstance(each, Compare))
    assert first == last


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("hour(t) = 5", "is periodic"),
        ("t + interval 1 month > now()", "months differ in length"),
        ("t > ntz", "two columns"),
        ("cast(t as string) = 'x'", "a cast of type timestamp to STRING"),
        ("date_trunc('eon', t) = now()", "does not know the unit 'eon'"),
        ("extract(second from t) = 5", "engines differ"),
        ("upper('a') = 'A'", "no range for the function upper()"),
        ("cast(d as string) < '0000'", "do not sort as strings"),
    ],
)
def test_what_has_no_range_says_why(where: str, reason: str) -> None:
    predicate = parse_predicate(where, SCHEMA, now=NANOSECONDS)
    assert isinstance(predicate, Opaque)
    assert reason in predicate.reason


@pytest.mark.parametrize(
    "where",
    [
        f"t > now() - interval {'9' * 30} months",
        f"t > now() - interval '{'9' * 30}' hours",
        f"date_trunc('month', t) > date_trunc('month', current_date + {'9' * 30})",
        f"year(d) = {'9' * 30}",
        f"d + {'9' * 30} > current_date",
        "date_trunc('year', t) > '+9999999-12-31'",
        f"t - interval {'9' * 9} weeks < now()",
        "year(t) <= 2147483647",
    ],
)
def test_numbers_beyond_every_calendar_lose_nothing(where: str) -> None:
    predicate = parse_predicate(where, SCHEMA, now=NANOSECONDS)
    assert predicate is not None
    known = ranges([rows(random.Random(1))], predicate)
    assert may_match(predicate, known).to_pylist() in ([True], [False])


@pytest.mark.parametrize("where", ["t > date 'soon'", "t > datetime(2026-13-01)", "t > to_timestamp('never')"])
def test_a_timestamp_that_is_none_is_an_error(where: str) -> None:
    with pytest.raises(PredicateError, match=r"is not a (date|timestamp)"):
        parse_predicate(where, SCHEMA)
