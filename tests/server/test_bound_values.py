"""Bound values as constants of SQL, and handles that end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazydelta import DeltaTable
from lazydelta.errors import QueryError
from lazydelta.server.flight_sql.calls import Handles
from lazydelta.server.flight_sql.session import SqlSession, literal

_TIMESTAMPS = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))  # noqa: DTZ001 - zones are added below
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_VALUES = st.one_of(
    st.booleans().map(lambda value: pa.scalar(value, pa.bool_())),
    st.integers(-(2**63), 2**63 - 1).map(lambda value: pa.scalar(value, pa.int64())),
    st.integers(0, 2**64 - 1).map(lambda value: pa.scalar(value, pa.uint64())),
    st.integers(-128, 127).map(lambda value: pa.scalar(value, pa.int8())),
    st.floats().map(lambda value: pa.scalar(value, pa.float64())),
    st.floats(width=32).map(lambda value: pa.scalar(value, pa.float32())),
    _TEXTS.map(lambda value: pa.scalar(value, pa.string())),
    _TEXTS.map(lambda value: pa.scalar(value, pa.large_string())),
    st.binary().map(lambda value: pa.scalar(value, pa.binary())),
    st.dates().map(lambda value: pa.scalar(value, pa.date32())),
    st.times().map(lambda value: pa.scalar(value, pa.time64("us"))),
    _TIMESTAMPS.map(lambda value: pa.scalar(value, pa.timestamp("us"))),
    _TIMESTAMPS.map(lambda value: pa.scalar(value.replace(tzinfo=dt.UTC), pa.timestamp("us", "UTC"))),
    _TIMESTAMPS.map(lambda value: pa.scalar(value.replace(tzinfo=dt.UTC), pa.timestamp("us", "Asia/Tokyo"))),
    st.integers(-(10**18), 10**18).map(lambda value: pa.scalar(value, pa.timestamp("ns"))),
    st.decimals(-(10**15), 10**15, places=4).map(lambda value: pa.scalar(value, pa.decimal128(38, 4))),
    st.timedeltas(dt.timedelta(days=-9999), dt.timedelta(days=9999)).map(
        lambda value: pa.scalar(value, pa.duration("us"))
    ),
    st.sampled_from([pa.int32(), pa.string(), pa.timestamp("us", "UTC"), pa.decimal128(5, 2), pa.null()]).map(
        lambda kind: pa.scalar(None, kind)
    ),
)


@pytest.fixture(scope="module")
def con() -> Iterator[Any]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


@settings(max_examples=300, deadline=None)
@given(value=_VALUES)
def test_a_constant_is_the_value_that_was_bound(con: Any, value: pa.Scalar) -> None:
    """DuckDB says whether the constant is the same as the value that it reads from Arrow itself."""
    con.register("bound", pa.table({"v": pa.chunked_array([_alone(value)])}))
    sql = literal(value)
    same, kinds = con.sql(f"SELECT v IS NOT DISTINCT FROM ({sql}), typeof(v) = typeof({sql}) FROM bound").fetchall()[0]
    assert same, sql
    assert kinds or pa.types.is_null(value.type), sql


def _alone(value: pa.Scalar) -> pa.Array:
    if pa.types.is_timestamp(value.type) or pa.types.is_duration(value.type):
        return pa.array([value.value if value.is_valid else None], pa.int64()).cast(value.type)
    return pa.array([value.as_py()], value.type)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (pa.scalar([1], pa.list_(pa.int64())), "type list"),
        (pa.scalar({"a": 1}, pa.struct([("a", pa.int64())])), "type struct"),
        (pa.scalar(1, pa.duration("ns")), "nanoseconds"),
        (pa.scalar("a\0b"), "zero byte"),
        (pa.scalar(Decimal(1), pa.decimal256(50, 2)), "decimal256"),
    ],
    ids=["list", "struct", "nanoseconds", "zero", "wide"],
)
def test_what_has_no_constant_is_refused(value: pa.Scalar, why: str) -> None:
    with pytest.raises(QueryError, match=why):
        literal(value)


def _no_table(name: str) -> DeltaTable:
    raise AssertionError(name)


# --- handles


def test_handles_end_when_they_are_not_used_and_live_on_while_they_are() -> None:
    now = [0.0]
    handles: Handles[str] = Handles("thing", most=10, seconds=10, clock=lambda: now[0])
    used, idle = handles.add("me", "used"), handles.add("me", "idle")
    assert len(used) == 16
    now[0] = 9
    assert handles.get("me", used) == "used"
    now[0] = 12
    assert handles.get("me", used) == "used"
    with pytest.raises(QueryError, match="not known here, or has expired"):
        handles.get("me", idle)
    assert len(handles) == 1
    with pytest.raises(QueryError, match="not known here, or has expired"):
        handles.get("you", used)
    assert handles.pop("you", used) is None
    assert handles.pop("me", used) == "used"
    assert len(handles) == 0


def test_the_oldest_gives_way_where_it_may() -> None:
    handles: Handles[int] = Handles("thing", most=2, seconds=10, replaces=True)
    first, second, third = (handles.add("me", number) for number in range(3))
    assert handles.add("you", 7) not in {first, second, third}
    assert (handles.get("me", second), handles.get("me", third)) == (1, 2)
    with pytest.raises(QueryError):
        handles.get("me", first)


# --- what people write passes


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 UNION ALL SELECT 2 ORDER BY 1 DESC NULLS LAST LIMIT 5 OFFSET 1",
        "WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM r WHERE a < 5) SELECT sum(a) FROM r",
        "SELECT CASE WHEN a > 1 THEN 'x' ELSE 'y' END, sum(a) OVER (ORDER BY a ROWS 1 PRECEDING) FROM range(5) AS t(a)",
        "SELECT list_transform([1, 2], lambda x: x + 1), [x * 2 FOR x IN [1, 2]], {'a': 1}.a, MAP {1: 2}[1]",
        "SELECT * EXCLUDE (b) REPLACE (a + 1 AS a) FROM (SELECT 1 AS a, 2 AS b)",
        "SELECT a, count(*) FILTER (WHERE a > 1) FROM range(5) AS t(a) GROUP BY CUBE (a) HAVING count(*) > 0",
        "SELECT * FROM (VALUES (1, 2), (3, 4)) AS t(a, b) PIVOT (sum(b) FOR a IN (1, 3))",
        "SELECT (SELECT 1), EXISTS (SELECT 1), 1 IN (SELECT 1), 2 > ALL (SELECT 1)",
        "SELECT date_trunc('hour', TIMESTAMP '2026-01-01 10:30:00'), now() IS NOT NULL, CURRENT_DATE IS NOT NULL",
        "SELECT regexp_extract('abc', 'b'), printf('%d', 3), md5('x'), uuid() IS NOT NULL, random() < 2",
        "SELECT unnest([1, 2]), generate_series(1, 3), json_extract('{\"a\": 1}', '$.a')",
        "SUMMARIZE SELECT 1 AS a",
        "FROM range(3)",
        "SELECT a FROM range(3) AS t(a) QUALIFY row_number() OVER (ORDER BY a) = 1",
        "SELECT DISTINCT ON (a % 2) a FROM range(5) AS t(a) ORDER BY a",
        "SELECT * FROM range(3) AS t(a) ASOF JOIN range(3) AS u(b) ON t.a >= u.b",
        "SELECT string_agg(a::VARCHAR, ',' ORDER BY a DESC), quantile_cont(a, 0.5) FROM range(9) AS t(a)",
    ],
)
def test_queries_that_only_compute_are_let_through_and_mean_the_same(sql: str) -> None:
    session = SqlSession(memory=64 << 20, reading_memory=1 << 20, threads=1)
    try:
        schema, _ = session.described(sql, ("t",), _no_table)
        found = pa.Table.from_batches(session.rows(sql, ("t",), _no_table, None, schema), schema=schema)
    finally:
        session.close()
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        expected = con.sql(sql).to_arrow_table()
    assert found.schema.names == expected.schema.names
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))
