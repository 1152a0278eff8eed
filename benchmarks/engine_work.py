"""What engines are measured at over lazydelta's scanner of rows."""

from __future__ import annotations

import os

import duckdb

from lazydelta import DeltaTable
from lazydelta.engines import duckdb as lazy
from lazydelta.rows.flow import ReadingPool

_THREADS, _MEMORY = 4, 64 << 20


def limited(uri: str, hour: str, limit: int) -> int:
    """Take rows of one hour through DuckDB."""
    con = duckdb.connect()
    lazy.register(con, "t", uri)
    sql = f"SELECT device_id, value, sequence FROM t WHERE _event_hour = '{hour}' LIMIT {limit}"  # noqa: S608
    return int(sum(batch.num_rows for batch in con.sql(sql).to_arrow_reader()))


def limited_polars(uri: str, hour: str, limit: int) -> int:
    """Take rows of one hour through Polars."""
    import polars as pl  # noqa: PLC0415 - only where it is measured

    frame = DeltaTable(uri).to_polars().filter(pl.col("_event_hour") == hour)
    return frame.select("device_id", "value", "sequence").head(limit).collect(engine="streaming").height


def discover(uri: str, since: str) -> int:
    """Find the files that an aggregation reads, and read none."""
    return sum(batch.num_rows for batch in DeltaTable(uri).files([("_event_hour", ">=", since)]).batches())


def aggregate(uri: str, since: str) -> int:
    """Aggregate all rows of some hours, in groups."""
    con = duckdb.connect()
    lazy.register(con, "t", uri)
    sql = f"SELECT device_id, count(*) AS n, avg(value) FROM t WHERE _event_hour >= '{since}' GROUP BY 1"  # noqa: S608
    return int(con.sql(f"SELECT sum(n) FROM ({sql})").fetchall()[0][0])  # noqa: S608


def discover_on_one_core(uri: str, since: str) -> int:
    """Find the files with half of two cores."""
    _keep_to_one_core()
    return discover(uri, since)


def aggregate_on_one_core(uri: str, since: str) -> int:
    """Aggregate with half of two cores."""
    _keep_to_one_core()
    return aggregate(uri, since)


def _keep_to_one_core() -> None:
    # Threads of this process that begin later are kept to it as well.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def join(left: str, right: str, since: str) -> int:
    """Join two tables in one pool, whose threads and memory bound both."""
    with ReadingPool(_THREADS, _MEMORY) as pool:
        con = duckdb.connect()
        for name, uri in (("a", left), ("b", right)):
            lazy.register(con, name, uri, pool=pool)
        sql = f"SELECT count(*) FROM a JOIN b USING (sequence) WHERE a._event_hour >= '{since}'"  # noqa: S608
        sql += f" AND b._event_hour >= '{since}'"
        found = int(con.sql(sql).fetchall()[0][0])
        # What a consumer waits for is decoded at any rate, once for each of the two.
        most = _MEMORY + 2 * (32 << 20)
        if pool.most_at_once > _THREADS or pool.peak > most or pool.held:
            raise RuntimeError(f"{pool.most_at_once} at once, {pool.peak} bytes at the peak, {pool.held} kept")
        return found
