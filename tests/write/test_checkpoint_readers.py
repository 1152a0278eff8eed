"""Our checkpoints, read by others and from every kind of store."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from lazydelta import DeltaTable
from lazydelta.storage import open_store
from lazydelta.write.checkpoint.writer import write_checkpoint
from tests.oracle.observe import observed_facts
from tests.oracle.random_log import random_log
from tests.oracle.replay import Json, canonical_path, commit_name, file_key
from tests.scan.hand_log import HandLog, add, publish, remove
from tests.storage.conftest import make_place
from tests.support import unavailable
from tests.write.checkpoints import commits_only, only_checkpoint, rows

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


# --- other readers and stores


def _written_by_deltalake(table: Path) -> None:
    for number in range(4):
        data = pa.table(
            {
                "id": pa.array([number * 10, number * 10 + 5], pa.int64()),
                "name": [f"n{number}", None],
                "day": [f"d{number % 2}", "d2"],
            }
        )
        deltalake.write_deltalake(table, data, mode="append", partition_by=["day"])
    deltalake.DeltaTable(table).delete("id = 10")


def test_deltalake_reads_the_same_files_and_rows_from_our_checkpoint(table: Path) -> None:
    _written_by_deltalake(table)
    before = deltalake.DeltaTable(table)
    files, data = sorted(before.file_uris()), before.to_pyarrow_table().sort_by("id")
    actions = pa.table(before.get_add_actions(flatten=True)).sort_by("path").to_pylist()
    result = write_checkpoint(open_store(table))
    only_checkpoint(table, result.version)
    after = deltalake.DeltaTable(table)
    assert after.version() == result.version
    assert sorted(after.file_uris()) == files
    assert after.to_pyarrow_table().sort_by("id") == data
    found = pa.table(after.get_add_actions(flatten=True)).sort_by("path").to_pylist()
    assert [_known(row) for row in found] == [_known(row) for row in actions]


def _known(row: Json) -> Json:
    return {name: value for name, value in row.items() if value is not None and name != "data_change"}


def test_deltalake_writes_on_after_our_checkpoint(table: Path) -> None:
    _written_by_deltalake(table)
    rows_before = deltalake.DeltaTable(table).to_pyarrow_table().num_rows
    result = write_checkpoint(open_store(table))
    for version in range(result.version):
        (table / "_delta_log" / commit_name(version)).unlink()
    more = pa.table({"id": pa.array([99], pa.int64()), "name": ["z"], "day": ["d9"]})
    deltalake.write_deltalake(table, more, mode="append")
    assert deltalake.DeltaTable(table).to_pyarrow_table().num_rows == rows_before + 1


def test_our_checkpoint_and_deltalakes_own_have_the_same_files(table: Path, tmp_path: Path) -> None:
    _written_by_deltalake(table)
    ours = write_checkpoint(open_store(table))
    found = {file_key(row): row["size"] for row in rows(table, ours.version, "add")}
    (table / ours.path).unlink()
    deltalake.DeltaTable(table).create_checkpoint()
    theirs = rows(table, ours.version, "add")
    assert found == {file_key(row): row["size"] for row in theirs}


def test_deltalake_reads_checkpoints_of_any_log(tmp_path: Path) -> None:
    read = 0
    for seed in range(30):
        log = random_log(seed, tmp_path / str(seed))
        if not log.deltalake_reads:
            continue  # it compares paths by their spelling and fails on statistics that do not parse
        commits_only(log)
        write_checkpoint(open_store(log.path))
        only_checkpoint(log.path, log.latest)
        actions = pa.table(deltalake.DeltaTable(log.path).get_add_actions())
        found = sorted(canonical_path(path) for path in actions.column("path").to_pylist())
        assert found == sorted(path for path, _ in log.expected(log.latest).files), seed
        read += 1
    assert read > 8


_DUCKDB = """
import sys, pathlib, duckdb, duckdb_extension_delta
file = next(pathlib.Path(duckdb_extension_delta.__file__).parent.rglob("*.duckdb_extension"))
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.load_extension(str(file))
connection.execute("SET enable_progress_bar=false")
print(connection.sql(f"SELECT count(*), sum(id), count(name) FROM delta_scan('{sys.argv[1]}')").fetchall()[0])
"""


@pytest.mark.peers
def test_duckdb_reads_the_rows_behind_our_checkpoint(table: Path, pytestconfig: pytest.Config) -> None:
    python = pytestconfig.rootpath / ".venv-peers" / "bin" / "python"
    if not python.exists():
        unavailable("the environment of the peers is not installed: run `make setup`")
    _written_by_deltalake(table)
    data = deltalake.DeltaTable(table).to_pyarrow_table()
    result = write_checkpoint(open_store(table))
    only_checkpoint(table, result.version)
    done = subprocess.run([str(python), "-c", _DUCKDB, str(table)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = data.column("name")
    assert done.stdout.strip() == str(
        (data.num_rows, sum(data.column("id").to_pylist()), len(names) - names.null_count)
    )


@pytest.mark.parametrize("kind", ["memory", "abfss", "s3"])
def test_a_checkpoint_is_written_to_any_store(kind: str, table: Path, request: pytest.FixtureRequest) -> None:
    log = HandLog(table)
    log.commit(*(add(f"f{number:05d}", ids=(number, number)) for number in range(3_000)))
    log.commit(remove("f00001"))
    place = make_place(kind, request)
    publish(table, place.uri, place.options)
    store = place.open()
    result = write_checkpoint(store, memory_budget=1 << 20)
    store.delete(f"_delta_log/{commit_name(0)}")
    store.delete(f"_delta_log/{commit_name(1)}")
    assert store.head(result.path).size == result.size_in_bytes
    assert observed_facts(DeltaTable(place.uri, storage_options=place.options)) == log.state().facts
