"""What we write is read equally by others: rows, lists of files, and what they skip by statistics."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.write.peers import Condition, DeltaRs, DuckDb, Ourselves, Peer, Polars, comparable, duckdb_peer
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
