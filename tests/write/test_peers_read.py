"""What we write is read equally by others: rows, lists of files, and what they skip by statistics."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from tests.write.peers import DeltaRs, DuckDb, Ourselves, Peer, Polars, comparable, duckdb_peer
from tests.write.random_tables import conditions, worlds

EXAMPLES = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
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
    """Readers differ on whether NaN exceeds other numbers, so rows with NaN may come on top."""
    with tempfile.TemporaryDirectory() as folder:
        world = data.draw(worlds(Path(folder) / "table"))
        for _ in range(3):
            where = data.draw(conditions(world))
            if where is None:
                return
            expected = Counter(comparable(world.expected(where), world.schema))
            for name, peer in peers.items():
                found = peer.rows(world.path, where)
                if pa.types.is_floating(where.kind):
                    numbers = [value is None or not math.isnan(value) for value in found[where.column].to_pylist()]
                    found = found.filter(pa.array(numbers, pa.bool_()))
                missing = expected - Counter(comparable(found, world.schema))
                extra = Counter(comparable(found, world.schema)) - expected
                assert (dict(missing), dict(extra)) == ({}, {}), (name, where)
