"""MERGE: the rows that DuckDB's own MERGE gives, from no more files than can hold a match, without lost updates."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import hypothesis.strategies as st
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings

from lazydelta import DeltaTable, write_arrow, write_deltalake
from lazydelta.errors import LazyDeltaError, OptionError, PredicateError, QueryError, UnknownColumnError, WriteError
from lazydelta.storage import observe
from lazydelta.write import publication
from lazydelta.write import transaction as transactions
from tests.write import test_deleting as deleting

SOURCE = pa.schema([("id", pa.int64()), ("p", pa.string()), ("n", pa.int32()), ("s", pa.string()), ("op", pa.string())])
_source_rows = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 12)),
        st.sampled_from([None, "a", "b"]),
        st.sampled_from([None, -1, 0, 1, 2]),
        st.sampled_from([None, "a", "new"]),
        st.sampled_from([None, "u", "d"]),
    ),
    max_size=6,
    unique_by=lambda row: row[0] if row[0] is not None else object(),
)
_CLAUSES = {
    "matched": [
        "WHEN MATCHED AND {} THEN UPDATE SET n = s.n + 10, s = concat(t.s, s.s)",
        "WHEN MATCHED AND {} THEN UPDATE SET p = s.p, x = 0.5",
        "WHEN MATCHED AND {} THEN DELETE",
    ],
    "not matched": [
        "WHEN NOT MATCHED AND {} THEN INSERT (id, p, n) VALUES (s.id, s.p, s.n)",
        "WHEN NOT MATCHED AND {} THEN INSERT (id, s, x) VALUES (s.id + 100, 'made', 1.5)",
    ],
    "not matched by source": [
        "WHEN NOT MATCHED BY SOURCE AND {} THEN UPDATE SET n = t.n - 1",
        "WHEN NOT MATCHED BY SOURCE AND {} THEN DELETE",
    ],
}
_CONDITIONS = {
    "matched": ["true", "s.op = 'u'", "t.n > s.n", "t.s IS NULL OR s.op = 'd'"],
    "not matched": ["true", "s.n > 0", "s.op IS NOT NULL"],
    "not matched by source": ["true", "t.n >= 1", "t.p = 'a'", "t.s LIKE 'a%'"],
}
_clauses = st.lists(
    st.sampled_from(list(_CLAUSES)).flatmap(
        lambda kind: st.builds(str.format, st.sampled_from(_CLAUSES[kind]), st.sampled_from(_CONDITIONS[kind]))
    ),
    min_size=1,
    max_size=4,
)
_matches = st.sampled_from(
    ["t.id = s.id", "s.id = t.id AND t.p = s.p", "t.id = s.id + 1 AND t.n <= s.n", "t.id = s.id AND t.p IN ('a')"]
)


def _merged_by_duckdb(rows: pa.Table, source: pa.Table, condition: str, clauses: list[str]) -> list[str]:
    with duckdb.connect() as connection:
        connection.register("given", rows)
        connection.register("s", source)
        connection.execute("CREATE TABLE t AS SELECT * FROM given")
        connection.execute(f"MERGE INTO t USING s ON ({condition}) {' '.join(clauses)}")
        return sorted(map(repr, connection.sql("SELECT id, p, n, x, s FROM t").fetchall()))


def _run(table: DeltaTable, source: Any, condition: str, clauses: list[str], **more: Any) -> dict[str, Any]:
    """Build a merge from SQL, which the builder takes apart."""
    merger = table.merge(source, condition, source_alias="s", target_alias="t", **more)
    for clause in clauses:
        head, deed = clause.split(" THEN ")
        kind, predicate = head.removeprefix("WHEN ").split(" AND ", 1)
        method = f"when_{kind.lower().replace(' ', '_')}_{deed.split()[0].lower()}"
        arguments: dict[str, Any] = {"predicate": predicate}
        if deed.startswith("UPDATE"):
            sets = deed.removeprefix("UPDATE SET ").split(", ", 1) if "concat" in deed else deed[11:].split(", ")
            arguments["updates"] = dict(each.split(" = ", 1) for each in sets)
        elif deed.startswith("INSERT"):
            names, values = deed.removeprefix("INSERT (").rstrip(")").split(") VALUES (")
            arguments["updates"] = dict(zip(names.split(", "), values.split(", "), strict=True))
        merger = getattr(merger, method)(**arguments)
    return merger.execute()


def _check(
    files: list[list[Any]], layout: dict[str, Any], vectors: list[int], given: Any, condition: str, clauses: list[str]
) -> None:
    columns = list(zip(*given, strict=True)) or [()] * len(SOURCE)
    source = pa.Table.from_arrays(
        [pa.array(list(c), f.type) for c, f in zip(columns, SOURCE, strict=True)], schema=SOURCE
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "t"
        before = deleting._table(root, files, layout, vectors)
        table = DeltaTable(root)
        version = table.version()
        metrics = _run(
            table,
            iter(source.to_batches(max_chunksize=2) or [pa.RecordBatch.from_pylist([], SOURCE)]),
            condition,
            clauses,
        )
        expected = _merged_by_duckdb(before, source, condition, clauses)
        found = DeltaTable(root, options={"checksum": "error"}).to_pyarrow_table()
        assert sorted(repr(tuple(each.values())) for each in found.to_pylist()) == expected
        changed = sum(metrics[f"num_target_rows_{each}"] for each in ("inserted", "updated", "deleted"))
        assert (table.version() > version) is bool(changed)
        assert metrics["num_source_rows"] == source.num_rows
        assert not deleting._left_over(root)
        if changed and "delta.enableChangeDataFeed" in layout["properties"]:
            _check_changes(table, before, found)


def _check_changes(table: DeltaTable, before: pa.Table, after: pa.Table) -> None:
    """See that the change data of the last version leads from the rows before to those after."""
    rows = [repr(tuple(each.values())) for each in before.to_pylist()]
    changes = table.load_cdf(starting_version=table.version()).read_all().to_pylist()
    for each in changes:
        if each["_change_type"] in {"delete", "update_preimage"}:
            rows.remove(repr(tuple(each.values())[:5]))
    made = [each for each in changes if each["_change_type"] in {"insert", "update_postimage"}]
    rows += [repr(tuple(each.values())[:5]) for each in made]
    assert sorted(rows) == sorted(repr(tuple(each.values())) for each in after.to_pylist())


_histories = given(
    st.lists(st.lists(deleting._row, min_size=1, max_size=5), min_size=1, max_size=3),
    deleting._layouts,
    st.lists(st.integers(0, 5), max_size=2),
    _source_rows,
    _matches,
    _clauses,
)
test_rows_are_those_of_duckdbs_merge = settings(max_examples=12, deadline=None)(_histories(_check))
test_rows_are_those_of_duckdbs_merge_in_many_histories = pytest.mark.slow(
    settings(max_examples=1200, deadline=None)(_histories(_check))
)


# --- files and conflicts


def _rows(*ids: int, **more: Any) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "x": [f"x{each}" for each in ids], **more})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a table of four files with ten ids each."""
    for start in range(0, 40, 10):
        write_arrow(tmp_path / "t", _rows(*range(start, start + 10)), maintain=False)
    return tmp_path / "t"


def test_files_without_a_match_are_not_read(root: Path) -> None:
    read: set[str] = set()
    with observe(lambda request: read.add(request.path)):
        metrics = (
            DeltaTable(root)
            .merge(_rows(12, 15, 99), "target.id = source.id", "source", "target")
            .when_matched_update({"x": "source.x || '!'"})
            .when_not_matched_insert_all()
            .execute()
        )
    assert metrics["num_target_files_scanned"] == 1
    assert metrics["num_target_files_skipped_during_scan"] == 3
    assert (metrics["num_target_rows_updated"], metrics["num_target_rows_inserted"]) == (2, 1)
    assert metrics["num_target_rows_copied"] == 8
    # The file with matches, and the new one.
    assert len({each for each in read if each.endswith(".parquet") and "checkpoint" not in each}) == 2
    assert len(DeltaTable(root).files().collect()) == 4
    assert DeltaTable(root).to_pyarrow_table(filters="id = 15")["x"].to_pylist() == ["x15!"]


def test_a_range_of_many_keys_leaves_files_out(root: Path) -> None:
    source = pa.table({"id": pa.array(range(30, 2030), pa.int64()), "x": ["n"] * 2000})
    merger = DeltaTable(root).merge(source, "t.id = s.id", "s", "t")
    metrics = merger.when_matched_update_all().execute()
    assert (metrics["num_target_files_scanned"], metrics["num_target_rows_updated"]) == (1, 10)


def test_all_readers_agree_on_the_result(root: Path) -> None:
    merger = DeltaTable(root).merge(_rows(3, 33, 77), "t.id = s.id", "s", "t")
    merger.when_matched_delete("s.id = 3").when_matched_update(
        {"x": "'changed'"}
    ).when_not_matched_insert_all().execute()
    expected = sorted(DeltaTable(root).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert len(expected) == 40
    for rows in (deltalake.DeltaTable(root).to_pyarrow_table(), pl.read_delta(str(root)).to_arrow()):
        assert sorted(rows.to_pylist(), key=lambda row: row["id"]) == expected


def test_two_rows_for_one_are_an_error(root: Path) -> None:
    table = DeltaTable(root)
    with pytest.raises(WriteError, match="duplicate relevant WHEN MATCHED"):
        table.merge(_rows(3, 3), "t.id = s.id", "s", "t").when_matched_update_all().execute()
    assert DeltaTable(root).version() == 3
    assert not deleting._left_over(root)
    metrics = table.merge(_rows(3, 3), "t.id = s.id", "s", "t").when_matched_delete().execute()
    assert metrics["num_target_rows_deleted"] == 1


def test_a_merge_that_only_inserts_is_no_blind_append(root: Path) -> None:
    DeltaTable(root).merge(_rows(1, 500), "t.id = s.id", "s", "t").when_not_matched_insert_all().execute()
    commit = max((root / "_delta_log").glob("*.json")).read_text().splitlines()
    actions = [json.loads(line) for line in commit]
    assert actions[0]["commitInfo"]["isBlindAppend"] is False
    assert actions[0]["commitInfo"]["operation"] == "MERGE"
    assert sum("remove" in each for each in actions) == 0


def test_an_append_only_table_takes_inserts(tmp_path: Path) -> None:
    write_arrow(tmp_path, _rows(1), properties={"delta.appendOnly": "true"})
    merger = DeltaTable(tmp_path).merge(_rows(1, 2), "t.id = s.id", "s", "t")
    merger.when_not_matched_insert_all().execute()
    assert DeltaTable(tmp_path).count() == 2
    with pytest.raises(WriteError, match="append-only"):
        DeltaTable(tmp_path).merge(_rows(1), "t.id = s.id", "s", "t").when_matched_delete().execute()


def test_a_merge_begins_again_behind_a_change_of_its_rows(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, rivals = (
        publication.publish,
        [lambda: deltalake.DeltaTable(root).update({"x": "'rival'"}, predicate="id = 5")],
    )

    def publish(*arguments: Any) -> bool:
        if rivals:
            rivals.pop()()
        return real(*arguments)

    monkeypatch.setattr(transactions, "publish", publish)
    source = iter(_rows(5, 60).to_batches())  # can be read only once
    merger = DeltaTable(root).merge(source, "t.id = s.id", "s", "t")
    merger.when_matched_update({"x": "t.x || '+'"}).when_not_matched_insert_all().execute()
    found = {row["id"]: row["x"] for row in DeltaTable(root).to_pyarrow_table().to_pylist()}
    assert (found[5], found[60], len(found)) == ("rival+", "x60", 41)
    assert DeltaTable(root).version() == 5


def test_new_columns_are_added(root: Path) -> None:
    merger = DeltaTable(root).merge(_rows(5, 60, more=[1, 2]), "t.id = s.id", "s", "t", merge_schema=True)
    merger.when_matched_update_all().when_not_matched_insert_all().execute()
    found = {row["id"]: row["more"] for row in DeltaTable(root).to_pyarrow_table().to_pylist()}
    assert (found[5], found[60], found[6]) == (1, 2, None)
    with pytest.raises(UnknownColumnError, match="'other'"):
        DeltaTable(root).merge(_rows(5), "t.id = s.id", "s", "t").when_matched_update({"other": "1"}).execute()


def test_rows_move_with_the_timestamp_that_their_partition_is_made_from(tmp_path: Path) -> None:
    timestamps = pa.array([0, 3_600_000_000], pa.timestamp("us", "UTC"))
    write_arrow(tmp_path, _rows(1, 2, at=timestamps), timestamp_column="at")
    later = pa.array([7_200_000_000, 10_800_000_000], pa.timestamp("us", "UTC"))
    merger = DeltaTable(tmp_path).merge(_rows(2, 3, at=later), "t.id = s.id", "s", "t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()
    found = DeltaTable(tmp_path).to_pyarrow_table().sort_by("id").to_pylist()
    assert [row["_event_hour"][-2:] for row in found] == ["00", "02", "03"]


def test_a_small_memory_budget_spills(tmp_path: Path) -> None:
    rows = 200_000
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "x": [os.urandom(8).hex() for _ in range(rows)]})
    write_deltalake(tmp_path, table)
    changed = table.set_column(1, "x", pa.array(["new"] * rows))
    merger = DeltaTable(tmp_path).merge(changed, "t.id = s.id", "s", "t", max_spill_size=1 << 20)
    assert merger.when_matched_update_all().execute()["num_target_rows_updated"] == rows
    assert set(DeltaTable(tmp_path).to_pyarrow_table()["x"].to_pylist()) == {"new"}


@pytest.mark.parametrize(
    ("predicate", "updates", "error", "text"),
    [
        ("id = s.id", {"x": "'a'"}, PredicateError, "is ambiguous"),
        ("t.id = s.nothing", {"x": "'a'"}, UnknownColumnError, "'nothing'"),
        ("t.id = s.id", {"x": "no_such_function(t.id)"}, QueryError, "no_such_function"),
        ("t.id = s.id", {"id": "'text'"}, LazyDeltaError, "int64"),
        ("t.id = s.id", {"id": "(SELECT 1)"}, PredicateError, "contains a subquery"),
        ("t.id =", {"x": "'a'"}, PredicateError, "not valid SQL"),
        ("t.id = s.id", {"x": "'a'", "t.x": "'b'"}, OptionError, "two values"),
        ("t.id = s.id", {}, OptionError, "sets no columns"),
    ],
)
def test_what_cannot_be_done_is_refused(
    root: Path, predicate: str, updates: dict[str, str], error: type[Exception], text: str
) -> None:
    merger = DeltaTable(root).merge(_rows(5), predicate, "s", "t").when_matched_update(updates)
    with pytest.raises(error, match=text):
        merger.execute()
    assert DeltaTable(root).version() == 3
    assert not deleting._left_over(root)


def test_values_that_do_not_fit_become_null_where_that_is_asked_for(root: Path) -> None:
    source = pa.table({"id": pa.array([5, 6], pa.int64()), "new": ["12", "no number"]})
    merger = DeltaTable(root).merge(source, "t.id = s.id", "s", "t", error_on_type_mismatch=False)
    merger.when_matched_update({"id": "s.new"}).execute()
    ids = DeltaTable(root).to_pyarrow_table()["id"].to_pylist()
    assert (ids.count(None), ids.count(12)) == (1, 2)


def test_now_is_the_same_for_all_rows(tmp_path: Path) -> None:
    when = pa.array([None] * 3, pa.timestamp("us", "UTC"))
    write_arrow(tmp_path, _rows(1, 2, 3, at=when))
    merger = DeltaTable(tmp_path).merge(_rows(1, 9), "t.id = s.id", "s", "t")
    merger = merger.when_matched_update({"at": "now()"}).when_not_matched_insert(
        {"id": "id", "at": "current_timestamp"}
    )
    merger.when_not_matched_by_source_update({"at": "now()"}).execute()
    found = DeltaTable(tmp_path).to_pyarrow_table()["at"].to_pylist()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_a_merge_needs_a_clause_and_runs_once(root: Path) -> None:
    with pytest.raises(OptionError, match="no clause"):
        DeltaTable(root).merge(_rows(5), "t.id = s.id", "s", "t").execute()
    merger = DeltaTable(root).merge(_rows(5), "t.id = s.id", "s", "t").when_matched_delete()
    merger.execute()
    with pytest.raises(OptionError, match="has already run"):
        merger.execute()
