"""Rows by any condition of SQL: what we do not evaluate ourselves is left to DuckDB, and prunes nothing."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lazydelta import DeltaTable, PredicateWarning, write_deltalake
from lazydelta.errors import PredicateError

pytestmark = pytest.mark.filterwarnings("ignore::lazydelta.PredicateWarning")

_AT = dt.datetime(2026, 2, 10, 12, tzinfo=dt.UTC)
ROWS = pa.table(
    {
        "id": list(range(8)),
        "n": [1, 2, None, 4, 5, 6, 1, 0],
        "m": [1, 3, 3, 4, None, 5, 9, 0],
        "f": [-0.0, 0.5, None, math.nan, 1.5, 2.0, math.nan, 7.0],
        "g": [0.0, 1.0, math.nan, math.nan, 1.5, None, -1.0, 7.0],
        "s": ["a", "B", None, "it's", "ab%", "AB", "", "zz"],
        "Odd-name": [0, 1, 2, 3, None, 5, 6, 7],
        "place": [{"row": 1, "name": "x"}, None, {"row": 2, "name": None}, *[{"row": 3, "name": "Y"}] * 5],
        "day": [dt.date(2026, 2, 8 + index) for index in range(8)],
        "at": pa.array([_AT + dt.timedelta(hours=7 * index) for index in range(8)], pa.timestamp("us", "UTC")),
        "p": ["k", "l"] * 4,
    }
)
CONDITIONS = {
    "id % 2 = 1": None,
    "5 % 2 = 1 AND id < 3": None,
    "id % 2 = 1 AND n >= 2": None,
    "n + m > 5": None,
    "n * 2 = m - 1 OR id = 7": None,
    "n / 2 = 0.5": None,
    "upper(s) = 'AB' OR length(s) = 4": None,
    "s ILIKE 'ab%'": None,
    "NOT (s ILIKE 'a%')": None,
    "CASE WHEN n > 3 THEN s = 'it''s' ELSE m = 3 END": None,
    "coalesce(n, 0) = 0": None,
    "abs(n - 4) <= 1": None,
    "n = m": None,
    "f = g": None,
    "f > g": None,
    "NOT (f <= g)": None,
    "f + 1 > 8": None,
    "`Odd-name` % 3 = 1": '"Odd-name" % 3 = 1',
    "place.row + 1 = 4 AND lower(place.name) = 'y'": None,
    "substring(s, 1, 1) IN ('a', 'A')": None,
    "day + 1 = '2026-02-10'": "day + 1 = DATE '2026-02-10'",
    "dayofweek(day) = 1": None,
    "extract(hour FROM at) % 2 = 1": 'extract(hour FROM "at") % 2 = 1',
    "upper(p) = 'K'": None,
    "p || s = 'ka'": None,
    "n <=> m": "n IS NOT DISTINCT FROM m",
    "(n % 2) BETWEEN 1 AND 3": None,
    "n NOT IN (m, 5)": None,
    "s LIKE upper('a') || '%'": None,
    "id % 2 = 1 AND s LIKE '%b'": None,
}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("sql") / "table")
    write_deltalake(root, ROWS.slice(0, 5), partition_by=["p"])
    write_deltalake(root, ROWS.slice(5), mode="append")
    return root


def expected() -> dict[str, list[int]]:
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'UTC'")
        con.register("t", ROWS)
        asked = {each: f"SELECT id FROM t WHERE {other or each}" for each, other in CONDITIONS.items()}
        return {each: sorted(row[0] for row in con.execute(sql).fetchall()) for each, sql in asked.items()}


def test_rows_are_those_that_duckdb_finds(uri: str) -> None:
    table = DeltaTable(uri)
    for condition, ids in expected().items():
        found = table.rows(["id"], where=condition).read_all()["id"].to_pylist()
        assert sorted(found) == ids, condition
    assert table.count_rows("id % 2 = 1") == 4
    assert table.to_pyarrow_table(filters="id % 2 = 1", columns=["id"]).num_rows == 4


def test_what_prunes_beside_it_still_does_and_explain_says_what_does_not(uri: str) -> None:
    with pytest.warns(PredicateWarning, match="No file can be left out by"):
        stream = DeltaTable(uri).rows(where="upper(s) = 'ZZ' AND id >= 6")
    assert [row["id"] for row in stream.read_all().to_pylist()] == [7]
    explained = stream.explain()
    assert explained["plan"]["conditions"] == [
        "upper(s) = 'ZZ': cannot prune, because lazydelta has no range for the function upper()",
        "id >= 6: prunes by statistics",
    ]
    assert explained["rows"]["files_opened"] == 2


def test_rows_are_deleted_and_updated_by_it(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS, partition_by=["p"])
    table = DeltaTable(str(tmp_path))
    assert table.delete("id % 2 = 1 AND coalesce(n, 0) > 1")["num_deleted_rows"] == 3
    table.update({"n": "100"}, predicate="s ILIKE 'ab%'")
    left = {row["id"]: row["n"] for row in table.rows().read_all().to_pylist()}
    assert left == {0: 1, 2: None, 4: 100, 6: 1, 7: 0}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("no_such_function(s) = 1", "DuckDB cannot filter rows by"),
        ("abs(s) = 1", "DuckDB cannot filter rows by"),
        ("random() > n", "Rows cannot be filtered by"),
        ("upper(s) = 'A' AND CASE WHEN at > now() THEN true END", "Rows cannot be filtered by"),
    ],
)
def test_what_duckdb_does_not_take_is_refused_before_anything_is_read(uri: str, where: str, message: str) -> None:
    with pytest.raises(PredicateError, match=message):
        DeltaTable(uri).rows(where=where)


def test_nothing_of_the_machine_can_be_read(uri: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    for where in (f"s = (SELECT content FROM read_text('{tmp_path}/secret'))", "read_text(s) = 'x'"):
        with pytest.raises(PredicateError):
            DeltaTable(uri).rows(where=where)


def test_without_duckdb_the_error_says_what_to_install(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(PredicateError, match=r"pip install 'lazydelta\[duckdb\]'"):
        DeltaTable(uri).rows(where="id % 2 = 1")


def test_a_dataset_with_such_a_filter_travels_to_other_processes(uri: str) -> None:
    dataset: Any = DeltaTable(uri).to_pyarrow_dataset(file_pruning_predicate="id % 2 = 1")
    assert pickle.loads(pickle.dumps(dataset)).count_rows() == 8  # noqa: S301 - made here; it prunes files alone
