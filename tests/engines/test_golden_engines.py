"""Rows of tables that other engines wrote, through each engine, are those that the suite expects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable, QueryBuilder
from lazydelta.engines import duckdb as our_duckdb
from tests.support.golden import golden_names

# Its partition values are timestamps without a zone, which the suite means in the zone of the machine that wrote them.
IN_ANOTHER_ZONE = "tables/data-reader-partition-values"


def by_duckdb(table: DeltaTable) -> pa.Table:
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        our_duckdb.register(con, "t", table)
        return con.sql("SELECT * FROM t").to_arrow_reader().read_all()


def by_datafusion(table: DeltaTable) -> pa.Table:
    return pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t"))


def by_polars(table: DeltaTable) -> pa.Table:
    frame = table.to_polars().collect()
    assert isinstance(frame, pl.DataFrame)
    return frame.to_arrow()


def by_dataset(table: DeltaTable) -> pa.Table:
    return table.to_pyarrow_dataset().to_table()


ENGINES: dict[str, Callable[[DeltaTable], pa.Table]] = {
    "duckdb": by_duckdb,
    "datafusion": by_datafusion,
    "polars": by_polars,
    "pyarrow": by_dataset,
}


def plain(value: object) -> object:
    """Return a value without what engines name differently: a map is a list of its entries, in any of their forms."""
    if isinstance(value, dict):
        return plain(sorted(value.items(), key=repr) if set(value) != {"key", "value"} else tuple(value.values()))
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def shown(table: pa.Table) -> list[str]:
    return sorted(repr(plain([row[name] for name in sorted(row)])) for row in table.to_pylist())


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_are_those_expected(unpack_golden: Callable[[str], Path], engine: str) -> None:
    compared = 0
    for name in golden_names("tables"):
        folder = unpack_golden(name)
        files = sorted((folder / "expected").rglob("*.parquet"))
        if not files or name == IN_ANOTHER_ZONE:
            continue
        expected = pa.concat_tables([pq.read_table(file) for file in files], promote_options="permissive")
        found = ENGINES[engine](DeltaTable(folder / "delta"))
        assert sorted(found.schema.names) == sorted(expected.schema.names), name
        assert _comparable(shown(found)) == _comparable(shown(expected)), name
        compared += 1
    assert compared > 30


def _comparable(rows: list[str]) -> list[str]:
    # Zones and decimals with zeros at their end are written in several ways.
    return [row.replace("zoneinfo.ZoneInfo(key='UTC')", "UTC").replace("datetime.timezone.utc", "UTC") for row in rows]
