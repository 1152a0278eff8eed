"""Rows deleted by deletion vectors: data files stay as they are, and every reader leaves the same rows out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazydelta import DeltaTable, write_arrow
from lazydelta.log.checkpoint.reader import CheckpointReader
from lazydelta.protocol.deletion_vectors import VectorFile, read_deletion_vector
from lazydelta.storage import open_store
from lazydelta.write import publication
from lazydelta.write import transaction as transactions
from tests.write.peers import duckdb_peer


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "p": ["ab"[each % 2] for each in ids]})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a table with vectors and change data, of two files."""
    properties = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
    for start in (0, 10):
        write_arrow(tmp_path / "t", _rows(*range(start, start + 10)), properties=properties, maintain=False)
    return tmp_path / "t"


def _ids(root: Path) -> list[int]:
    table = DeltaTable(root, options={"checksum": "error"})
    found: list[int] = sorted(table.to_pyarrow_table()["id"].to_pylist())
    assert table.count() == len(found)
    return found


def _actions(root: Path, kind: str) -> list[dict[str, Any]]:
    lines = max((root / "_delta_log").glob("*.json")).read_text().splitlines()
    return [action[kind] for line in lines if kind in (action := json.loads(line))]


def _checkpoint(root: Path, version: int) -> Any:
    return DeltaTable(root, version)._snapshot.segment.checkpoint


@pytest.mark.parametrize("positions", [[0], [1, 2, 3], list(range(100_000)), [5, 1 << 33, 1 << 40]])
def test_a_written_vector_is_read_back(tmp_path: Path, positions: list[int]) -> None:
    file = VectorFile()
    vectors = [file.add(np.array(each, np.uint64)) for each in ([7], positions)]
    (tmp_path / file.path).write_bytes(file.data())
    found = read_deletion_vector(open_store(tmp_path), vectors[1], data_file="part.parquet")
    assert found.positions().tolist() == positions
    assert (vectors[1].cardinality, vectors[0].cardinality) == (len(positions), 1)


def test_a_deletion_leaves_data_files_as_they_are(root: Path) -> None:
    before = {each.path for each in DeltaTable(root).files()}
    metrics = DeltaTable(root).delete("id IN (1, 3, 12)")
    assert (metrics["num_deleted_rows"], metrics["num_copied_rows"], metrics["num_added_files"]) == (3, 0, 0)
    DeltaTable(root).delete("id = 5 OR id = 1")
    expected = [each for each in range(20) if each not in {1, 3, 5, 12}]
    assert _ids(root) == expected
    assert {each.path for each in DeltaTable(root).files()} == before
    (add,) = _actions(root, "add")
    assert (add["deletionVector"]["cardinality"], json.loads(add["stats"])["tightBounds"]) == (3, False)
    assert json.loads(add["stats"])["numRecords"] == 10
    changes = DeltaTable(root).load_cdf(DeltaTable(root).version()).read_all()
    assert (changes["id"].to_pylist(), changes["_change_type"].to_pylist()) == ([5], ["delete"])
    DeltaTable(root).delete("id < 10")  # nothing is left of the file
    assert len(DeltaTable(root).files().collect()) == 1
    assert _ids(root) == [each for each in expected if each >= 10]


def test_updates_and_merges_write_only_the_rows_that_change(root: Path) -> None:
    before = {each.path for each in DeltaTable(root).files()}
    DeltaTable(root).update({"id": "id + 100"}, predicate="id = 4 OR id = 14")
    merger = DeltaTable(root).merge(_rows(5, 6, 16, 50), "t.id = s.id", "s", "t")
    merger = merger.when_matched_delete("s.id = 5").when_matched_update({"p": "'new'"})
    metrics = merger.when_not_matched_insert_all().execute()
    assert (metrics["num_target_rows_copied"], metrics["num_output_rows"]) == (0, 3)
    kept = [each for each in range(20) if each not in {4, 14, 5}]
    assert _ids(root) == sorted([*kept, 104, 114, 50])
    assert before < {each.path for each in DeltaTable(root).files()}
    changed = DeltaTable(root).to_pyarrow_table(filters="p = 'new'")["id"].to_pylist()
    assert sorted(changed) == [6, 16]
    kinds = DeltaTable(root).load_cdf(DeltaTable(root).version()).read_all()["_change_type"].to_pylist()
    assert sorted(kinds) == [
        "delete",
        "insert",
        "update_postimage",
        "update_postimage",
        "update_preimage",
        "update_preimage",
    ]
    DeltaTable(root).optimize.purge()
    assert _ids(root) == sorted([*kept, 104, 114, 50])
    assert DeltaTable(root).deletion_vectors().read_all().num_rows == 0


@pytest.mark.peers
def test_duckdb_leaves_the_same_rows_out(root: Path) -> None:
    DeltaTable(root).delete("id IN (1, 3, 12)")
    DeltaTable(root).update({"p": "'u'"}, predicate="id = 7")
    DeltaTable(root).create_checkpoint()
    with duckdb_peer() as peer:
        found = peer.rows(root, None)
    assert sorted(found["id"].to_pylist()) == _ids(root)


def test_two_deletions_in_one_file_are_both_done(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, rivals = publication.publish, [lambda: DeltaTable(root).delete("id = 2")]

    def publish(*arguments: Any) -> bool:
        if rivals:
            rivals.pop()()
        return real(*arguments)

    monkeypatch.setattr(transactions, "publish", publish)
    DeltaTable(root).delete("id = 7")
    assert _ids(root) == [each for each in range(20) if each not in {2, 7}]


def test_a_deletion_that_fails_keeps_every_data_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> bytes:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(transactions.Transaction, "_encoded", full)  # before the commit is tried
        with pytest.raises(OSError, match="no space"):
            DeltaTable(root).delete("id = 7")
    assert _ids(root) == list(range(20))
    assert list(root.glob("deletion_vector_*")) == []


def test_vacuum_keeps_the_vectors_in_use(root: Path) -> None:
    for each in (1, 2, 3):
        DeltaTable(root).delete(f"id = {each}")
    assert len(list(root.glob("deletion_vector_*"))) == 3
    for file in root.glob("*.*"):
        os.utime(file, (1, 1))
    DeltaTable(root).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert len(list(root.glob("deletion_vector_*"))) == 1
    assert _ids(root) == [0, *range(4, 20)]


def test_a_checkpoint_that_lacks_a_vector_rules_its_commit_out(root: Path) -> None:
    """A commit below a checkpoint is part of the table only if the checkpoint shows what it did."""
    store = open_store(root)
    DeltaTable(root).create_checkpoint()
    DeltaTable(root).delete("id = 3")
    data = (root / "_delta_log" / f"{2:020}.json").read_bytes()
    reader = CheckpointReader(store, _checkpoint(root, 1))
    assert publication._is_reflected(reader, data) is False
    DeltaTable(root).create_checkpoint()
    newer = CheckpointReader(store, _checkpoint(root, 2))
    assert publication._is_reflected(newer, data) is True
