"""An engine over our scan gives what the same engine gives over the same rows in its own native table."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from lazydelta import DeltaTable, QueryBuilder
from tests.engines.engine_queries import SQL_ENGINES, generated_query, shown
from tests.row_scan.made_table import MadeTable, make_rich_table
from tests.support.rounds import quick

QUERIES = 200
_AT_ONCE = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_rich_table(tmp_path_factory.mktemp("rich"), seed=4, files=8, rows=60)


@pytest.fixture(scope="module")
def table(made: MadeTable) -> DeltaTable:
    return DeltaTable(made.uri)


@pytest.mark.parametrize("first", quick(range(0, QUERIES, _AT_ONCE), 2))
@pytest.mark.parametrize("engine", SQL_ENGINES)
def test_generated_queries(made: MadeTable, table: DeltaTable, engine: str, first: int) -> None:
    answer = SQL_ENGINES[engine]
    native = made.table()
    for seed in range(first, first + _AT_ONCE):
        sql = generated_query(seed, engine)
        assert shown(answer(table, sql)) == shown(answer(native, sql)), sql


def polars_predicate(rng: random.Random) -> pl.Expr:
    op = rng.choice(["eq", "ne", "lt", "le", "gt", "ge"])
    column, value = rng.choice(
        [
            ("id", rng.randrange(300)),
            ("n", rng.randrange(-6, 21)),
            ("n", rng.choice([2.5, 3.0])),
            ("x", rng.choice([0.0, -0.0, 1.5, 5.0, float("nan"), 1e300])),
            ("s", rng.choice(["", "a", "abc", "ü"])),
            ("hour", "2026021023"),
            ("late", rng.randrange(100)),
        ]
    )
    simple: pl.Expr = getattr(pl.col(column), op)(value)
    chosen: pl.Expr = rng.choice(
        [
            simple,
            simple,
            simple,
            ~simple,
            pl.col("place").struct.field("row") > rng.randrange(5),
            pl.col("n").is_between(rng.randrange(5), rng.randrange(5, 15), closed=rng.choice(["both", "none", "left"])),
            pl.col("s").str.starts_with("a"),
            pl.col(rng.choice(["late", "hour", "x"])).is_null(),
            pl.col("flag"),
            pl.col("n").is_in([1, 2, 3]),
            pl.col("day") >= pl.date(2026, 2, 10),
            (pl.col("id") % 3) == 1,
        ]
    )
    return chosen


def polars_query(frame: pl.LazyFrame, seed: int) -> pl.LazyFrame:
    rng = random.Random(seed)
    predicate = polars_predicate(rng)
    for _ in range(rng.randrange(3)):
        other = polars_predicate(rng)
        predicate = predicate & other if rng.random() < 0.6 else predicate | other
    filtered = frame.filter(predicate) if rng.random() < 0.9 else frame
    form = rng.randrange(3)
    if form == 0:
        return filtered
    if form == 1:
        return filtered.select("id", "x", pl.col("place").struct.field("name"), "tags")
    return filtered.group_by("hour").agg(pl.len().alias("c"), pl.col("grown").sum(), pl.col("n").max())


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
@pytest.mark.parametrize("first", quick(range(0, QUERIES, 50), 1))
def test_generated_queries_of_polars(made: MadeTable, table: DeltaTable, first: int, engine: Any) -> None:
    native = pl.from_arrow(made.table())
    assert isinstance(native, pl.DataFrame)
    for seed in range(first, first + 50):
        ours = polars_query(table.to_polars(), seed).collect(engine=engine)
        theirs = polars_query(native.lazy(), seed).collect(engine=engine)
        assert ours.schema == theirs.schema
        assert sorted(map(repr, ours.rows())) == sorted(map(repr, theirs.rows())), seed


def test_nan_is_larger_than_every_number_in_engines_and_unordered_in_pyarrow(
    made: MadeTable, table: DeltaTable
) -> None:
    nans = sum(row["x"] != row["x"] for row in made.rows if row["x"] is not None)
    above = sum(row["x"] > 5 for row in made.rows if row["x"] is not None)
    assert nans
    for engine in SQL_ENGINES.values():
        assert engine(table, "SELECT count(*) AS c FROM t WHERE x > 5")["c"].to_pylist() == [nans + above]
    assert table.to_polars().filter(pl.col("x") > 5).collect().height == nans + above
    assert table.to_pyarrow_table(filters=[("x", ">", 5.0)]).num_rows == above


def test_the_query_builder_answers_like_the_session_it_wraps(made: MadeTable, table: DeltaTable) -> None:
    builder = QueryBuilder({"datafusion.execution.batch_size": "100"}).register("t", table)
    for seed in range(30):
        sql = generated_query(seed, "datafusion")
        found = builder.execute(sql).read_all()
        assert isinstance(found, pa.Table)
        assert shown(found) == shown(SQL_ENGINES["datafusion"](made.table(), sql)), sql
    by_function = builder.execute(f"SELECT count(*) AS c FROM delta('{made.uri}')").read_all()
    assert by_function["c"].to_pylist() == [len(made.rows)]
