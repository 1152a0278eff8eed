"""Rows deleted and replaced by a predicate: the same rows stay as in DuckDB, without lost updates."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import deltalake
import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.compute as pa_compute
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from lazydelta import CommitProperties, DeltaTable, write_arrow, write_deltalake
from lazydelta.errors import CommitConflictError, PredicateError, StorageError, UnsupportedFeatureError, WriteError
from lazydelta.maintenance.vacuum import vacuum
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import observe
from lazydelta.write import transaction as transactions
from lazydelta.write.job import WriteJob
from lazydelta.write.options import WriteOptions
from lazydelta.write.publication import publish as publication
from lazydelta.write.row_changes import rewriter
from lazydelta.write.row_changes.choice import touched_files
from lazydelta.write.row_changes.statements import delete_rows
from tests.maintenance.deleted_rows import delete_rows as delete_by_vector
from tests.maintenance.old_tables import data_files
from tests.write.test_mapped_columns import adds, mapped
from tests.write.test_mapped_columns import rows as mapped_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
_TEXTS = [None, "a", "b", "ab", "b%", "z"]
_NUMBERS = [None, -1, 0, 1, 2, 3]
_FLOATS = [None, -1.5, -0.0, 0.0, 2.0, float("nan"), float("inf")]

_row = st.tuples(
    st.sampled_from([None, "a", "b"]), st.sampled_from(_NUMBERS), st.sampled_from(_FLOATS), st.sampled_from(_TEXTS)
)
_order = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
_leaf = st.one_of(
    st.builds("p {} '{}'".format, _order, st.sampled_from(["a", "b", "c"])),
    st.builds("n {} {}".format, _order, st.integers(-1, 3)),
    st.builds("x {} {}".format, _order, st.sampled_from(["-1.5", "0.0", "2.0", "1e300"])),
    st.builds("s {} '{}'".format, _order, st.sampled_from(["a", "ab", "b"])),
    st.sampled_from(["n IN (1, 3)", "n NOT IN (0, 2)", "s LIKE 'a%'", "s NOT LIKE 'b%'", "n BETWEEN 0 AND 2"]),
    st.sampled_from([f"{name} IS {word}" for name in "pnxs" for word in ("NULL", "NOT NULL")]),
)
_predicates = st.recursive(
    _leaf,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=4,
)
_layouts = st.fixed_dictionaries(
    {
        "partition_by": st.sampled_from([(), ("p",)]),
        "properties": st.sampled_from(
            [
                {},
                {"delta.dataSkippingNumIndexedCols": "0"},
                {"delta.enableChangeDataFeed": "true"},
            ]
        ),
    }
)


def _batches(files: list[list[Any]]) -> Iterator[pa.Table]:
    number = 0
    for rows in files:
        values = [(number + index, *row) for index, row in enumerate(rows)]
        number += len(rows)
        columns = [
            pa.array(list(column), field.type) for column, field in zip(zip(*values, strict=True), SCHEMA, strict=True)
        ]
        yield pa.Table.from_arrays(columns, schema=SCHEMA)


def _table(root: Path, files: list[list[Any]], layout: dict[str, Any], vectors: list[int]) -> pa.Table:
    """Write a table, delete some first rows of its files by vectors, and return the rows that it has."""
    properties = layout["properties"] | {"delta.enableDeletionVectors": "true"}
    for batch in _batches(files):
        write_arrow(root, batch, partition_by=layout["partition_by"], properties=properties, maintain=False)
    found = sorted(DeltaTable(root).files().collect(), key=lambda each: each.path)
    for number in sorted({each % len(found) for each in vectors}):
        delete_by_vector(root, found[number], [0])
    if len(files[0]) % 2:  # files are copied where vectors are not written
        DeltaTable(root).alter.set_table_properties({"delta.enableDeletionVectors": "false"})
    return DeltaTable(root).to_pyarrow_table()


def _in_duckdb(rows: pa.Table, predicate: str) -> tuple[list[int], list[int]]:
    """Return the ids of rows that a DELETE leaves and of those that it takes."""
    with duckdb.connect() as connection:
        connection.register("given", rows)
        connection.execute("CREATE TABLE t AS SELECT * FROM given")
        connection.execute(f"DELETE FROM t WHERE {predicate}")
        kept = {each for (each,) in connection.execute("SELECT id FROM t").fetchall()}
    ids = rows.column("id").to_pylist()
    return sorted(kept), sorted(set(ids) - kept)


def _ids(root: Path) -> list[int]:
    return sorted(DeltaTable(root, options={"checksum": "error"}).to_pyarrow_table()["id"].to_pylist())


def _named(root: Path) -> set[str]:
    found: set[str] = set()
    for commit in (root / "_delta_log").glob("[0-9]*.json"):
        for line in commit.read_text().splitlines():
            found |= {
                unquote(body["path"]) for kind, body in json.loads(line).items() if kind in {"add", "remove", "cdc"}
            }
    return found


def _left_over(root: Path) -> set[str]:
    """Return the files that no commit names."""
    return {each for each in data_files(root) if each.endswith(".parquet")} - _named(root)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(_row, min_size=1, max_size=5), min_size=1, max_size=3),
    _layouts,
    st.lists(st.integers(0, 5), max_size=2),
    _predicates,
)
def test_the_same_rows_stay_as_in_duckdb(
    files: list[list[Any]], layout: dict[str, Any], vectors: list[int], predicate: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "t"
        before = _table(root, files, layout, vectors)
        kept, gone = _in_duckdb(before, predicate)
        table = DeltaTable(root)
        told = delete_rows(TableHandle.open(root), predicate, dry_run=True).deleted
        metrics = table.delete(predicate)
        assert _ids(root) == kept
        after = table.to_pyarrow_table().sort_by("id")
        assert repr(after.to_pylist()) == repr(
            [each for each in before.sort_by("id").to_pylist() if each["id"] in kept]
        )
        assert metrics.get("num_deleted_rows", len(gone)) == len(gone)
        assert told.rows in {None, len(gone)}
        assert told.removed_files == metrics["num_removed_files"]
        assert not _left_over(root)
        if gone and "delta.enableChangeDataFeed" in layout["properties"]:
            changes = table.load_cdf(starting_version=table.version()).read_all()
            assert set(changes["_change_type"].to_pylist()) == {"delete"}
            assert sorted(changes["id"].to_pylist()) == gone


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(_row, min_size=1, max_size=5), min_size=1, max_size=3),
    _layouts,
    st.lists(_row, min_size=1, max_size=4),
    _predicates,
)
def test_rows_that_match_are_replaced_by_those_that_match(
    files: list[list[Any]], layout: dict[str, Any], new: list[Any], predicate: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "t"
        before = _table(root, files, layout, [])
        kept, gone = _in_duckdb(before, predicate)
        fresh = next(_batches([new])).set_column(0, SCHEMA.field(0), pa.array(range(100, 100 + len(new)), pa.int64()))
        outside, inside = _in_duckdb(fresh, predicate)
        version = DeltaTable(root).version()
        if outside:
            with pytest.raises(WriteError, match=f"Invalid data found: {len(outside)} rows"):
                write_deltalake(root, fresh, mode="overwrite", predicate=predicate)
            assert DeltaTable(root).version() == version
            assert not _left_over(root)
        matching = fresh.filter(pa_compute.is_in(fresh["id"], pa.array(inside, pa.int64())))
        write_deltalake(root, matching, mode="overwrite", predicate=predicate)
        assert _ids(root) == sorted([*kept, *inside])
        assert not _left_over(root)
        if "delta.enableChangeDataFeed" in layout["properties"]:
            changes = DeltaTable(root).load_cdf(starting_version=version + 1).read_all()
            pairs = sorted(zip(changes["_change_type"].to_pylist(), changes["id"].to_pylist(), strict=True))
            assert pairs == sorted([("delete", each) for each in gone] + [("insert", each) for each in inside])


def _simple(root: Path, *groups: list[int], **options: Any) -> Path:
    for ids in groups:
        write_arrow(root, pa.table({"id": pa.array(ids, pa.int64())}), maintain=False, **options)
    return root


def test_files_that_the_log_decides_are_not_read(tmp_path: Path) -> None:
    root = _simple(tmp_path / "t", [1, 2], [3, 4], [5, 6])
    read: list[str] = []
    with observe(lambda request: read.append(request.path)):
        metrics = DeltaTable(root).delete("id > 4 OR id <= 2")
    assert not [path for path in read if path.endswith(".parquet")]
    assert (metrics["num_removed_files"], metrics["num_added_files"], metrics["num_deleted_rows"]) == (2, 0, 4)
    assert _ids(root) == [3, 4]


def test_a_file_without_a_match_stays_as_it_is(tmp_path: Path) -> None:
    root = _simple(tmp_path / "t", [1, 5], [1, 3, 5])
    paths = set(DeltaTable(root).file_uris())
    table = DeltaTable(root)
    assert table.delete("id = 3")["num_copied_rows"] == 2
    assert len(paths & set(table.file_uris())) == 1
    version = table.version()
    assert table.delete("id = 4")["num_removed_files"] == 0
    assert table.version() == version


def test_the_commit_tells_what_was_done(tmp_path: Path) -> None:
    table = DeltaTable(_simple(tmp_path / "t", [1, 2, 3]))
    table.delete("id = 2", commit_properties=CommitProperties(custom_metadata={"userName": "Mia"}))
    told = table.history(1)[0]
    assert (told["operation"], told["userName"]) == ("DELETE", "Mia")
    assert told["operationParameters"] == {"predicate": '["id = 2"]'}
    assert {key: told["operationMetrics"][key] for key in ("numDeletedRows", "numCopiedRows", "numAddedFiles")} == {
        "numDeletedRows": "1",
        "numCopiedRows": "2",
        "numAddedFiles": "1",
    }
    actions = [
        json.loads(line) for line in (tmp_path / "t/_delta_log/00000000000000000001.json").read_text().splitlines()
    ]
    assert all(each[kind]["dataChange"] for each in actions for kind in ("add", "remove") if kind in each)


def test_all_rows_go_without_a_predicate_and_none_by_an_empty_one(tmp_path: Path) -> None:
    table = DeltaTable(_simple(tmp_path / "t", [1], [2]))
    nothings: list[Any] = [[], {}]
    for empty in nothings:
        with pytest.raises(PredicateError, match="would select every row"):
            table.delete(empty)
    assert table.delete()["num_deleted_rows"] == 2
    assert table.count() == 0


def test_what_must_not_be_deleted_is_refused_by_name(tmp_path: Path) -> None:
    kept = DeltaTable(_simple(tmp_path / "kept", [1, 2], properties={"delta.appendOnly": "true"}))
    for predicate in (None, "id = 1"):
        with pytest.raises(WriteError, match="append-only"):
            kept.delete(predicate)
    with pytest.raises(WriteError, match="append-only"):
        delete_rows(TableHandle.open(tmp_path / "kept"), "id = 1", dry_run=True)
    root = _simple(tmp_path / "tracked", [1, 2])
    commit = root / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}
    commit.write_text("".join(json.dumps(each) + "\n" for each in actions))
    commit.with_suffix(".crc").unlink()
    with pytest.raises(UnsupportedFeatureError, match="rowTracking"):
        DeltaTable(root).delete("id = 1")


def _meanwhile(monkeypatch: pytest.MonkeyPatch, *deeds: Callable[[], object]) -> list[int]:
    """Let others do something between the copying and the commit, once for each attempt; return the attempts."""
    attempts: list[int] = []
    real, waiting, lock = publication, list(deeds), threading.Lock()

    def publish(*given: Any) -> bool:
        with lock:
            deed = waiting.pop(0) if waiting else None
        if deed is not None:
            deed()
            attempts.append(1)
        return real(*given)

    monkeypatch.setattr(transactions, "publish", publish)
    return attempts


def test_a_blind_append_is_no_conflict_and_comes_after_the_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _simple(tmp_path / "t", [1, 2, 3])
    staged = _counted_stagings(monkeypatch)
    _meanwhile(monkeypatch, lambda: _simple(root, [2, 4]))
    DeltaTable(root).delete("id = 2")
    assert _ids(root) == [1, 2, 3, 4]
    assert len(staged) == 1


def _counted_stagings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    real = touched_files

    def counted(*given: Any, **named: Any) -> Any:
        found.append(1)
        return real(*given, **named)

    monkeypatch.setattr(rewriter, "touched_files", counted)
    return found


@pytest.mark.parametrize("deed", ["compacted", "deleted too", "copied rows"])
def test_a_deletion_begins_again_where_others_changed_what_it_rests_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str
) -> None:
    root = _simple(tmp_path / "t", [1, 2], [2, 3])
    staged = _counted_stagings(monkeypatch)
    deeds: dict[str, Callable[[], object]] = {
        "compacted": DeltaTable(root).optimize.compact,
        "deleted too": lambda: DeltaTable(root).delete("id = 3"),
        # An overwrite rests on the table, so rows that it adds come before the deletion and not after it.
        "copied rows": lambda: write_deltalake(
            root, pa.table({"id": [2, 9]}), mode="overwrite", predicate="id IN (2, 9)"
        ),
    }
    _meanwhile(monkeypatch, deeds[deed])
    DeltaTable(root).delete("id = 2")
    assert _ids(root) == {"compacted": [1, 3], "deleted too": [1], "copied rows": [1, 3, 9]}[deed]
    assert len(staged) > 1
    assert not _left_over(root)


def test_a_deletion_that_always_loses_is_a_conflict_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _simple(tmp_path / "t", [1, 2])
    real = publication

    def publish(store: Any, version: int, data: bytes, txn_id: str) -> bool:
        if b'"DELETE"' in data:  # another writer overwrites the table each time
            _simple(root, [1, 2], mode="overwrite")
        return real(store, version, data, txn_id)

    monkeypatch.setattr(transactions, "publish", publish)
    with pytest.raises(CommitConflictError, match=r"changed the file .* transaction deleted data this operation read"):
        DeltaTable(root).delete("id = 2")
    assert _ids(root) == [1, 2]
    assert not _left_over(root)


def test_an_overwrite_by_rows_is_ruled_out_by_an_append_of_such_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _simple(tmp_path / "t", [1, 2])
    _meanwhile(monkeypatch, lambda: _simple(root, [2]))
    with pytest.raises(CommitConflictError, match="may hold rows that it selects"):
        write_deltalake(root, pa.table({"id": [2]}), mode="overwrite", predicate="id = 2")
    assert _ids(root) == [1, 2, 2]
    assert not _left_over(root)
    _meanwhile(monkeypatch, lambda: _simple(root, [7]))
    write_deltalake(root, pa.table({"id": [2]}), mode="overwrite", predicate="id = 2")
    assert _ids(root) == [1, 2, 7]


def test_files_stay_where_it_is_not_known_whether_the_commit_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _simple(tmp_path / "t", [1, 2])

    def publish(*_: object) -> bool:
        raise StorageError("the line is dead", path="x")

    monkeypatch.setattr(transactions, "publish", publish)
    with pytest.raises(StorageError, match="the line is dead"):
        DeltaTable(root).delete("id = 2")
    assert len(_left_over(root)) == 1


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_stay_mapped_and_change_data_too(tmp_path: Path, mode: str) -> None:
    log = mapped(tmp_path / "t", mode, **{"delta.enableChangeDataFeed": "true"})
    write_arrow(log.table, mapped_rows(*range(8)), maintain=False)
    table = DeltaTable(log.table)
    assert table.delete("nested.inner IN (2, 5)")["num_deleted_rows"] == 2
    assert _ids(log.table) == [0, 1, 3, 4, 6, 7]
    for add in adds(log, 2):
        assert {"p-id", "p-nested"} <= set(pq.read_schema(log.table / add["path"]).names)
    changes = table.load_cdf(starting_version=2).read_all()
    assert sorted(zip(changes["id"].to_pylist(), changes["_change_type"].to_pylist(), strict=True)) == [
        (2, "delete"),
        (5, "delete"),
    ]


def test_deltalake_reads_the_rows_and_the_changes_and_vacuum_keeps_them(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array(range(8), pa.int64()), "p": ["a", "b"] * 4})
    properties = {"delta.enableChangeDataFeed": "true"}
    write_arrow(tmp_path, rows, partition_by=["p"], properties=properties, maintain=False)
    table = DeltaTable(tmp_path)
    table.delete("id IN (1, 3, 4)")
    table.update({"id": "id + 100"}, predicate="id = 2")
    write_deltalake(table, pa.table({"id": [5, 5], "p": ["b", "a"]}), mode="overwrite", predicate="id = 5")
    assert not vacuum(TableHandle.open(tmp_path), dry_run=False).paths
    theirs = deltalake.DeltaTable(tmp_path)
    found = deltalake.QueryBuilder().register("t", theirs).execute("SELECT id FROM t").read_all()
    assert sorted(pa.table(found)["id"].to_pylist()) == _ids(tmp_path) == [0, 5, 5, 6, 7, 102]
    columns = ["id", "p", "_change_type", "_commit_version"]
    changes = pa.table(theirs.load_cdf(starting_version=1, columns=columns).read_all())
    told = sorted(tuple(each[name] for name in columns) for each in changes.to_pylist())
    assert told == [
        (1, "b", "delete", 1),
        (2, "a", "update_preimage", 2),
        (3, "b", "delete", 1),
        (4, "a", "delete", 1),
        (5, "a", "insert", 3),
        (5, "b", "delete", 3),
        (5, "b", "insert", 3),
        (102, "a", "update_postimage", 2),
    ]


def test_a_job_of_many_tasks_replaces_rows_when_it_is_committed(tmp_path: Path) -> None:
    root = _simple(tmp_path / "t", [1, 2, 3], [4, 5], properties={"delta.enableChangeDataFeed": "true"})
    data = pa.table({"id": pa.array([2, 2, 4], pa.int64())})
    job = WriteJob.prepare(str(root), data.schema, WriteOptions(overwrite_where="id IN (2, 4)"), "overwrite")
    results = [job.write(data.slice(0, 2).to_batches(), 0), job.write(data.slice(2).to_batches(), 1)]
    _simple(root, [9])
    job.commit(results)
    assert _ids(root) == [1, 2, 2, 3, 4, 5, 9]
    assert not _left_over(root)
    changes = DeltaTable(root).load_cdf(starting_version=3).read_all()
    pairs = sorted(zip(changes["_change_type"].to_pylist(), changes["id"].to_pylist(), strict=True))
    assert pairs == [("delete", 2), ("delete", 4), ("insert", 2), ("insert", 2), ("insert", 4)]


def test_copies_keep_the_ranges_of_their_files(tmp_path: Path) -> None:
    for start in (0, 10, 20):
        rows = pa.table({"id": pa.array(range(start, start + 10), pa.int64()), "k": [0, 1] * 5})
        write_arrow(tmp_path, rows, maintain=False)
    table = DeltaTable(tmp_path)
    assert table.delete("k = 1")["num_added_files"] == 3
    told = table.delete("id < 10")
    assert (told["num_removed_files"], told["num_copied_rows"], told["num_deleted_rows"]) == (1, 0, 5)


def test_a_condition_with_another_value_for_each_attempt_is_refused(tmp_path: Path) -> None:
    table = DeltaTable(_simple(tmp_path / "t", [1, 2, 3, 4]))
    with pytest.raises(PredicateError, match=r"random\(\) < id.*PyArrow expression"):
        table.delete("random() < id")
    assert table.delete("id * 2 = 6")["num_deleted_rows"] == 1
    assert table.delete(pa_compute.field("id") * 2 == 8)["num_deleted_rows"] == 1
    assert _ids(tmp_path / "t") == [1, 2]
