"""Rows updated by a predicate: the same values as in DuckDB, checked as any row that is written."""

from __future__ import annotations

import datetime as dt
import inspect
import tempfile
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

import lazydelta
from lazydelta import DeltaTable, write_arrow
from lazydelta.errors import LazyDeltaError, OptionError, QueryError, SchemaMismatchError, UnknownColumnError
from tests.write import test_deleting as deleting

_UPDATES = st.sampled_from(
    [
        {"n": "n + 10"},
        {"s": "concat(s, '_new')", "x": "2.5"},
        {"n": "CASE WHEN n > 1 THEN 0 ELSE n END", "s": "NULL"},
        {"p": "'c'"},
        {"p": "s", "n": "0"},
    ]
)


def _in_duckdb(rows: pa.Table, updates: dict[str, str], predicate: str) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        connection.register("given", rows)
        connection.execute("CREATE TABLE t AS SELECT * FROM given")
        sets = ", ".join(f"{name} = {text}" for name, text in updates.items())
        connection.execute(f"UPDATE t SET {sets} WHERE {predicate}")
        found: list[dict[str, Any]] = connection.sql("SELECT * FROM t ORDER BY id").to_arrow_table().to_pylist()
        return found


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(deleting._row, min_size=1, max_size=5), min_size=1, max_size=3),
    deleting._layouts,
    st.lists(st.integers(0, 5), max_size=2),
    _UPDATES,
    deleting._predicates,
)
def test_rows_have_the_values_that_duckdb_gives_them(
    files: list[list[Any]], layout: dict[str, Any], vectors: list[int], updates: dict[str, str], predicate: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "t"
        before = deleting._table(root, files, layout, vectors)
        _, chosen = deleting._in_duckdb(before, predicate)
        table = DeltaTable(root)
        metrics = table.update(updates, predicate=predicate)
        assert metrics["num_updated_rows"] == len(chosen)
        after = DeltaTable(root, options={"checksum": "error"}).to_pyarrow_table().sort_by("id")
        assert repr(after.to_pylist()) == repr(_in_duckdb(before, updates, predicate))
        assert not deleting._left_over(root)
        if chosen and "delta.enableChangeDataFeed" in layout["properties"]:
            changes = table.load_cdf(starting_version=table.version()).read_all()
            pairs = sorted(zip(changes["_change_type"].to_pylist(), changes["id"].to_pylist(), strict=True))
            assert pairs == sorted((f"update_{word}image", each) for word in ("pre", "post") for each in chosen)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a table of one file."""
    columns = {
        "id": pa.array([1, 2, 3], pa.int32()),
        "s": ["a", "b", "c"],
        "at": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * 3, pa.timestamp("us", "UTC")),
        "list": [["x"], None, []],
    }
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            *(pa.field(n, pa.table(columns).schema.field(n).type) for n in ("s", "at", "list")),
        ]
    )
    write_arrow(tmp_path, pa.table(columns, schema=schema), maintain=False)
    return tmp_path


def test_values_of_python_take_the_types_of_the_columns_and_rows_keep_their_places(root: Path) -> None:
    table, timestamp = DeltaTable(root), dt.datetime(2026, 2, 3, 4, 5)  # noqa: DTZ001 - UTC, as everywhere
    table.update(new_values={"S": None, "at": timestamp, "list": ["y", "z"]}, predicate="id = 2")
    found = table.to_pyarrow_table()
    assert found["id"].to_pylist() == [1, 2, 3]
    assert found["s"].to_pylist() == ["a", None, "c"]
    assert found["at"][1].as_py() == timestamp.replace(tzinfo=dt.UTC)
    assert found["list"].to_pylist() == [["x"], ["y", "z"], []]
    told = table.history(1)[0]
    assert (told["operation"], told["operationMetrics"]["numUpdatedRows"]) == ("UPDATE", "1")


def test_what_does_not_fit_is_refused_and_nothing_is_committed(root: Path) -> None:
    table = DeltaTable(root)
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({}, OptionError, "Either updates or new_values"),
        ({"updates": {}, "new_values": {}}, OptionError, "pick one"),
        ({"updates": {}}, OptionError, "no column to update"),
        ({"updates": {"s": 1}}, OptionError, "must all be SQL strings"),
        ({"new_values": {"s": {}}}, OptionError, "Invalid datatype"),
        ({"updates": {"nothing": "1"}}, UnknownColumnError, "nothing"),
        ({"updates": {"id": "'many'"}}, SchemaMismatchError, "does not hold"),
        ({"updates": {"id": "3000000000"}}, SchemaMismatchError, "does not hold"),
        ({"new_values": {"id": "x"}}, SchemaMismatchError, "does not hold"),
        ({"updates": {"id": "NULL"}}, LazyDeltaError, "id"),
        ({"updates": {"id": "max(id)"}}, QueryError, "cannot compute"),
        ({"updates": {"id": "no_such + 1"}}, QueryError, "no_such"),
    ]
    for changed, kind, words in refused:
        with pytest.raises(kind, match=words):
            table.update(**changed)
    assert DeltaTable(root).version() == 0
    assert not deleting._left_over(root)


def test_a_table_that_is_aligned_to_time_stays_so(tmp_path: Path) -> None:
    at = pa.array([0, 1], pa.int64()).cast(pa.timestamp("s", "UTC"))
    write_arrow(tmp_path, pa.table({"at": at, "n": [1, 2]}), timestamp_column="at", maintain=False)
    table = DeltaTable(tmp_path)
    table.update({"n": "n + 1"}, predicate="n = 2")
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == [1, 3]
    with pytest.raises(LazyDeltaError, match="_event_hour"):
        table.update({"at": "at + interval '3 hours'"})
    assert table.version() == 1


def test_update_takes_what_deltalakes_takes_and_tells_what_it_tells(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    theirs, ours = (inspect.signature(each.DeltaTable.update).parameters for each in (deltalake, lazydelta))
    assert [(each.name, each.kind, each.default) for each in ours.values() if each.name != "where"] == [
        (each.name, each.kind, each.default) for each in theirs.values()
    ]
    other = tmp_path_factory.mktemp("theirs")
    deltalake.write_deltalake(other, DeltaTable(root).to_pyarrow_table())
    told, expected = (
        each.update(updates={"s": "concat(s, '!')"}, predicate="id > 1")
        for each in (DeltaTable(root), deltalake.DeltaTable(other))
    )
    assert told.keys() == expected.keys()
    counted = [key for key in told if key.startswith("num_")]
    assert {key: told[key] for key in counted} == {key: expected[key] for key in counted}


def test_a_comment_in_an_expression_hides_nothing_behind_it(tmp_path: Path) -> None:
    write_arrow(tmp_path, pa.table({"id": [1, 2]}))
    DeltaTable(tmp_path).update({"id": "id + 1 -- as it was meant"})
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table().column("id").to_pylist()) == [2, 3]
    with pytest.raises(QueryError):
        DeltaTable(tmp_path).update({"id": "id) AS value FROM rows --"})


def test_values_that_a_column_cannot_hold_are_null_where_the_caller_asks_for_it(tmp_path: Path) -> None:
    write_arrow(tmp_path, pa.table({"id": [1, 2, 3], "x": ["4", "b", "5"]}))
    table = DeltaTable(tmp_path)
    table.update({"id": "x"}, error_on_type_mismatch=False)
    assert table.to_pyarrow_table().sort_by("x").to_pydict() == {"id": [4, 5, None], "x": ["4", "5", "b"]}
