"""deltalake and DuckDB on tables with sidecars: they read, vacuum and clean up as if there were none, and harm none."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from lazydelta import DeltaTable, sidecar, write_arrow
from lazydelta.sidecar.reading.discovery import shared_cache
from tests.sidecar.conftest import set_sizes
from tests.write.peers import Condition, DeltaRs, DuckDb, Peer, Polars, comparable, duckdb_peer

pytestmark = [pytest.mark.peers, pytest.mark.timeout(300)]

START = dt.datetime(2026, 2, 10, 18, 0, tzinfo=dt.UTC)
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("_event_hour", pa.string())])
HOUR = Condition("_event_hour", pa.string(), "=", "2026021019")
COMMITS, ROWS = 4, 30


@pytest.fixture(scope="module")
def duckdb() -> Iterator[DuckDb]:
    """Return DuckDB with its delta extension."""
    with duckdb_peer() as peer:
        yield peer


@pytest.fixture(params=["in parts", "in one file"])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a table of four commits over five hours, with a checkpoint and its sidecar."""
    if request.param == "in parts":
        set_sizes(monkeypatch, 2, 2)
    for number in range(COMMITS):
        write_arrow(tmp_path, rows(number * ROWS), timestamp_column="at", maintain=False)
    deltalake.DeltaTable(tmp_path).create_checkpoint()
    assert sidecar.build(tmp_path).num_parts == (5 if request.param == "in parts" else 1)
    return tmp_path


def rows(first: int) -> pa.Table:
    """Return rows of five hours."""
    return pa.table(
        {
            "id": pa.array(range(first, first + ROWS), pa.int64()),
            "at": pa.array([START + dt.timedelta(minutes=10 * each) for each in range(ROWS)], SCHEMA.field("at").type),
        }
    )


def sidecars(table: Path) -> dict[str, bytes]:
    """Return all files of ours, byte by byte."""
    return {each.name: each.read_bytes() for each in (table / "_delta_log" / "_sidecars").iterdir()}


def answers(table: Path, *, tier: int) -> set[str]:
    """Return the files that we find, having made sure that they are found in this tier and are those of the log."""
    shared_cache.clear()
    stream = DeltaTable(table).files()
    found = {file.path for file in stream}
    assert stream.metrics.tier == tier
    assert found == {file.path for file in DeltaTable(table, options={"delta.sidecar.enabled": False}).files()}
    assert found == DeltaRs().files(table)
    return found


def test_readers_do_not_notice_a_sidecar(table: Path, duckdb: DuckDb) -> None:
    before = sidecars(table)
    files = answers(table, tier=1)
    expected = comparable(DeltaTable(table).to_pyarrow_table(), SCHEMA)
    peers: dict[str, Peer] = {"deltalake": DeltaRs(), "polars": Polars(), "duckdb": duckdb}
    for name, peer in peers.items():
        assert comparable(peer.rows(table), SCHEMA) == expected, name
        assert len(peer.rows(table, HOUR)) == COMMITS * 6, name
        assert peer.files(table) == files, name
    assert sidecars(table) == before


def _append(table: deltalake.DeltaTable) -> None:
    hours = pa.array([f"2026021{1 if each < 6 else 2}23" for each in range(ROWS)])
    deltalake.write_deltalake(table, rows(1000).append_column("_event_hour", hours), mode="append")


def _append_and_checkpoint(table: deltalake.DeltaTable) -> None:
    _append(table)
    table.create_checkpoint()


def _forget_the_log(table: deltalake.DeltaTable) -> None:
    """Let everything before the newest checkpoint expire, and clean it up."""
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    table.create_checkpoint()
    table.cleanup_metadata()


DEEDS: dict[str, tuple[Callable[[deltalake.DeltaTable], object], int]] = {
    "append": (_append, 1),
    "delete": (lambda table: table.delete("id < 60"), 1),
    "vacuum": (lambda table: table.vacuum(0, dry_run=False, enforce_retention_duration=False), 1),
    "full vacuum": (lambda table: table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True), 1),
    "clean up the log": (lambda table: table.cleanup_metadata(), 1),
    "checkpoint": (_append_and_checkpoint, 3),
    "compact": (lambda table: table.optimize.compact(), 1),
    "z-order": (lambda table: table.optimize.z_order(["id"]), 1),
    "compact, then vacuum": (
        lambda table: (
            table.optimize.compact(),
            table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True),
        ),
        1,
    ),
    "expire the log": (_forget_the_log, 3),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_deltalake_maintains_a_table_and_leaves_its_sidecar_alone(table: Path, deed: str, duckdb: DuckDb) -> None:
    """Our answer is right afterwards, by the sidecar where the checkpoint is still the newest; a refresh goes on."""
    work, tier = DEEDS[deed]
    before = sidecars(table)
    work(deltalake.DeltaTable(table))
    assert sidecars(table) == before
    files = answers(table, tier=tier)
    assert duckdb.files(table) == files
    expected = comparable(DeltaRs().rows(table), SCHEMA)
    assert comparable(DeltaTable(table).to_pyarrow_table(), SCHEMA) == expected
    assert comparable(duckdb.rows(table), SCHEMA) == expected
    deltalake.DeltaTable(table).create_checkpoint()
    sidecar.refresh(table)
    assert sidecar.verify(table).ok
    assert answers(table, tier=1) == files
