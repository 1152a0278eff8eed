"""Queries give the rows of SQL that was written by hand, with pruning and without."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pytest

from lazydelta import DeltaTable
from lazydelta.kql.execution.query import run
from tests.kql.pairs import PAIRS, Pair, random_pairs
from tests.kql.tables import NOW, devices, telemetry


def plain(value: Any) -> tuple[str, str]:
    """Return a value that equals and sorts as Kusto's values do, whatever width its type has."""
    if value is None:
        return ("", "")
    if isinstance(value, bool | str):
        return (type(value).__name__, str(value))
    if isinstance(value, int | float | Decimal):
        return ("number", "NaN" if isinstance(value, float) and math.isnan(value) else f"{float(value):.9g}")
    return (type(value).__name__, str(value))


@pytest.fixture(scope="module")
def oracle() -> Iterator[duckdb.DuckDBPyConnection]:
    """Return DuckDB with the plain rows, and nothing of ours."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("t_rows", telemetry())
    connection.register("u_rows", devices())
    connection.execute("CREATE TABLE t AS SELECT * FROM t_rows")
    connection.execute("CREATE TABLE u AS SELECT * FROM u_rows")
    yield connection
    connection.close()


def answer(pair: Pair, tables: dict[str, DeltaTable], *, pushdown: bool = True) -> list[tuple[Any, ...]]:
    with run(pair.kql, tables, now=NOW, pushdown=pushdown) as result:
        table = result.read_all()
    rows = [tuple(map(plain, row)) for row in zip(*(each.to_pylist() for each in table.columns), strict=True)]
    return rows if pair.ordered else sorted(rows)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.kql[:100])
def test_kql_gives_the_rows_of_the_sql_with_and_without_pruning(
    pair: Pair, tables: dict[str, DeltaTable], oracle: duckdb.DuckDBPyConnection
) -> None:
    expected = [tuple(map(plain, row)) for row in oracle.execute(pair.sql).fetchall()]
    expected = expected if pair.ordered else sorted(expected)
    assert answer(pair, tables) == expected
    assert answer(pair, tables, pushdown=False) == expected


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_conditions_give_the_rows_of_the_sql(
    seed: int, tables: dict[str, DeltaTable], oracle: duckdb.DuckDBPyConnection
) -> None:
    for pair in random_pairs(1000 + seed, 50):
        expected = sorted(tuple(map(plain, row)) for row in oracle.execute(pair.sql).fetchall())
        assert answer(pair, tables) == expected, pair.kql
        assert answer(pair, tables, pushdown=False) == expected, pair.kql


def test_there_are_two_hundred_queries() -> None:
    assert len({pair.kql for pair in PAIRS}) >= 200
