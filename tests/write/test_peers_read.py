"""What we write is read equally by others: rows, lists of files, and what they skip by statistics."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import lazydelta
from tests.write.peers import Condition, DeltaRs, DuckDb, Ourselves, Peer, Polars, comparable, duckdb_peer, normal
from tests.write.random_tables import conditions, worlds

# Not shrunk: an example takes half a second, so that it would take many minutes.
EXAMPLES = settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def duckdb() -> Iterator[DuckDb]:
    """Return DuckDB with its delta extension."""
    with duckdb_peer() as peer:
        yield peer


@pytest.fixture(scope="module")
def peers(duckdb: DuckDb) -> dict[str, Peer]:
    """Return all readers by name."""
    return {"lazydelta": Ourselves(), "deltalake": DeltaRs(), "polars": Polars(), "duckdb": duckdb}


@pytest.mark.peers
@pytest.mark.timeout(600)
@EXAMPLES
@given(data=st.data())
def test_every_reader_finds_the_same_rows_and_files(peers: dict[str, Peer], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = data.draw(worlds(Path(folder) / "table"))
        expected = comparable(world.expected(), world.schema)
        files = Ourselves().files(world.path)
        for name, peer in peers.items():
            assert comparable(peer.rows(world.path), world.schema) == expected, name
            assert peer.files(world.path) == files, name


@pytest.mark.peers
@pytest.mark.timeout(600)
@EXAMPLES
@given(data=st.data())
def test_no_reader_loses_a_matching_row_to_the_statistics(peers: dict[str, Peer], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = data.draw(worlds(Path(folder) / "table"))
        for _ in range(3):
            where = data.draw(conditions(world))
            if where is None:
                return
            expected = _judged(world.expected(where), world.schema, where)
            for name, peer in peers.items():
                assert _judged(peer.rows(world.path, where), world.schema, where) == expected, (name, where)


def _judged(found: pa.Table, schema: pa.Schema, where: Condition) -> list[str]:
    """Return the rows that all readers agree on: whether NaN is a large number and -0.0 a small one is their affair."""
    rows = comparable(found, schema, ordered=False)
    if pa.types.is_floating(where.kind):
        values = found[where.column].to_pylist()
        rows = [row for row, value in zip(rows, values, strict=True) if value and not math.isnan(value)]
    return sorted(rows)


SKIPPED_BY: dict[str, tuple[pa.DataType, list[list[Any]], Any]] = {
    "integer": (pa.int64(), [[1, 2], [10, 20], [100, None]], 10),
    "string": (pa.string(), [["a" * 40, "b"], ["k" * 40, "l"], ["x", "y" * 40]], "k" * 40),
    "date": (pa.date32(), [[1, 2], [10, 20], [100, None]], dt.date(1970, 1, 11)),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [[1, 2000], [10_001, 20_001], [100_001, None]],
        dt.datetime(1970, 1, 1, 0, 0, 0, 10_001, dt.UTC),
    ),
    "double": (pa.float64(), [[-1.5, 2.5], [10.5, 20.5], [100.5, None]], 10.5),
    "decimal": (pa.decimal128(20, 2), [["1.00"], ["10.00", "20.00"], ["100.00"]], Decimal("10.00")),
}


@pytest.mark.peers
@pytest.mark.parametrize("name", SKIPPED_BY)
def test_every_reader_skips_the_files_that_statistics_exclude(
    peers: dict[str, Peer], name: str, tmp_path: Path
) -> None:
    """Excluded files are deleted, so opening one would fail."""
    kind, batches, value = SKIPPED_BY[name]
    schema = pa.schema([("c", kind)])
    for values in batches:
        array = pa.array(values).cast(kind) if name == "decimal" else pa.array(values, kind)
        lazydelta.write_arrow(tmp_path, pa.Table.from_arrays([array], schema=schema))
    for path in Ourselves().files(tmp_path) - {
        unquote(file.path) for file in lazydelta.DeltaTable(tmp_path).files([("c", "=", value)])
    }:
        (tmp_path / path).unlink()
    assert len(list(tmp_path.glob("*.parquet"))) == 1
    for reader, peer in peers.items():
        if (reader, name) == ("duckdb", "timestamp"):
            continue  # DuckDB hands no comparison of instants to its delta extension, for tables of any writer
        found = peer.rows(tmp_path, Condition("c", kind, "=", value))
        assert [normal(each, kind) for each in found["c"].to_pylist()] == [normal(value, kind)], reader
