"""Each engine over our scan of a table and over its own native table of the same rows; and queries made at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta import DeltaTable
from lazydelta.engines import datafusion as our_datafusion
from lazydelta.engines import duckdb as our_duckdb

__all__ = ["SQL_ENGINES", "generated_query", "over_datafusion", "over_duckdb", "shown", "through_parquet"]

Rows = list[tuple[Any, ...]]


def shown(table: pa.Table) -> list[str]:
    """Rows as texts in order: NaN equals itself there, and -0.0 is not 0.0."""
    return sorted(repr(tuple(row.values())) for row in table.to_pylist())


def over_duckdb(table: DeltaTable | pa.Table, sql: str) -> pa.Table:
    """Answer a query over ``t``, which is our scan or a table of DuckDB's own."""
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        if isinstance(table, DeltaTable):
            our_duckdb.register(con, "t", table)
        else:
            con.register("given", table)
            con.execute("CREATE TABLE t AS SELECT * FROM given")
        return con.sql(sql).to_arrow_reader().read_all()


def over_datafusion(table: DeltaTable | pa.Table, sql: str) -> pa.Table:
    """Answer a query over ``t``, which is our scan or a table in DataFusion's memory."""
    from datafusion import SessionContext  # noqa: PLC0415 - slow to import

    ctx = SessionContext()
    if isinstance(table, DeltaTable):
        our_datafusion.register_table(ctx, "t", table)
    else:
        # DataFusion shows what lies below a null struct, which Parquet does not keep and pa.table() makes a zero.
        ctx.register_record_batches("t", [through_parquet(table).to_batches()])
    return pa.table(ctx.sql(sql))


SQL_ENGINES: dict[str, Callable[[DeltaTable | pa.Table, str], pa.Table]] = {
    "duckdb": over_duckdb,
    "datafusion": over_datafusion,
}

_FIELD = {"duckdb": "place.row", "datafusion": "place['row']"}
_NAN = {"duckdb": "'NaN'::DOUBLE", "datafusion": "arrow_cast('NaN', 'Float64')"}


def _condition(rng: random.Random, engine: str) -> str:
    op = rng.choice(["=", "<>", "<", "<=", ">", ">="])
    choices = [
        f"id {op} {rng.randrange(300)}",
        f"n {op} {rng.randrange(-6, 21)}",
        f"x {op} {rng.choice(['0.0', '-0.0', '1.5', '5.0', '-2.25', '1e300', _NAN[engine]])}",
        f"s {op} '{rng.choice(['', 'a', 'abc', 'm', 'ü', 'x' * 40])}'",
        f"hour {op} '{rng.choice(['2026021022', '2026021023', '1999'])}'",
        f"day {op} DATE '2026-02-{rng.randrange(1, 21):02d}'",
        f"\"at\" {op} TIMESTAMPTZ '2026-02-10 {rng.randrange(24):02d}:00:00+00'"
        if engine == "duckdb"
        else f"at {op} arrow_cast('2026-02-10T{rng.randrange(24):02d}:00:00', 'Timestamp(Microsecond, Some(\"UTC\"))')",
        f"price {op} {rng.randrange(-500, 500) / 100:.2f}",
        f"{_FIELD[engine]} {op} {rng.randrange(6)}",
        f"late {op} {rng.randrange(100)}",
        f"grown {op} {rng.randrange(1200)}",
        f"n IN ({rng.randrange(5)}, {rng.randrange(20)}, 7)",
        f"n NOT IN ({rng.randrange(5)}, {rng.randrange(20)})",
        f"x IN (1.5, 0.0, {rng.choice(['5.5', _NAN[engine]])})",
        f"s IN ('a', 'zebra', '{rng.choice(['b', 'ü'])}')",
        f"n BETWEEN {rng.randrange(-5, 5)} AND {rng.randrange(5, 20)}",
        f"x BETWEEN {rng.choice(['-1.0', '0.0'])} AND {rng.choice(['5.0', '6.0'])}",
        f"{rng.choice(['n', 'x', 's', 'late', 'hour', 'flag', 'place', 'tags'])} IS {rng.choice(['', 'NOT '])}NULL",
        "flag",
        "s LIKE 'a%'",
        f"id % {rng.randrange(2, 5)} = 1",
    ]
    return rng.choice(choices)


def _where(rng: random.Random, engine: str, depth: int = 0) -> str:
    if depth > 1 or rng.random() < 0.4:
        found = _condition(rng, engine)
        return f"NOT ({found})" if rng.random() < 0.2 else found
    joint = rng.choice([" AND ", " OR "])
    inner = joint.join(_where(rng, engine, depth + 1) for _ in range(rng.randrange(2, 4)))
    return f"({inner})" if rng.random() < 0.85 else f"NOT ({inner})"


def generated_query(seed: int, engine: str) -> str:
    """Make a query of filters, projections or aggregates whose result does not depend on the order of rows."""
    rng = random.Random(seed)
    where = f" WHERE {_where(rng, engine)}" if rng.random() < 0.9 else ""
    form = rng.randrange(4)
    if form == 0:
        return "SELECT * FROM t" + where
    if form == 1:
        names = rng.sample(["id", "n", "x", "s", "hour", "day", "price", "flag", "late", "grown", "tags"], 3)
        return f"SELECT {', '.join([*names, _FIELD[engine] + ' AS r'])} FROM t{where}"
    if form == 2:
        greatest = "max(CASE WHEN x = 0 THEN 0.0 ELSE x END)"  # which zero it is, is not said
        return f"SELECT count(*), count(n), min(id), max(late), sum(n), min(s), {greatest}, count(x) FROM t{where}"
    key = rng.choice(["hour", "flag", "n", "late"])
    return f"SELECT {key}, count(*) AS c, sum(grown) AS g, max(day) AS d FROM t{where} GROUP BY {key}"


def through_parquet(table: pa.Table) -> pa.Table:
    """Return a table as it comes out of a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return pq.read_table(pa.BufferReader(sink.getvalue())).cast(table.schema)
