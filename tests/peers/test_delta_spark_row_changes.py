"""Rows that we deleted, updated and replaced, as Delta-Spark reads them and the changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lazydelta import DeltaTable, write_arrow
from tests.support.delta_spark import DeltaSpark

pytestmark = [pytest.mark.xdist_group("other sparks"), pytest.mark.timeout(600)]


def _values(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["id"], row.get("name"), row["day"]  # Spark leaves nulls out of what it tells


def test_rows_that_we_changed_and_what_changed_are_read_alike(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    place = f"delta.`{tmp_path}`"
    delta_spark.sql(
        f"CREATE TABLE {place} (id BIGINT, name STRING, day STRING) USING delta PARTITIONED BY (day) TBLPROPERTIES "
        "('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')"
    )
    names = [None if number % 5 == 0 else f"n{number}" for number in range(20)]
    write_arrow(tmp_path, pa.table({"id": range(20), "name": names, "day": ["a", "b"] * 10}))
    delta_spark.sql(f"DELETE FROM {place} WHERE id = 3")  # leaves a deletion vector
    first = DeltaTable(tmp_path).version() + 1
    assert DeltaTable(tmp_path).delete("id < 5 and name is not null")["num_deleted_rows"] == 3
    DeltaTable(tmp_path).update({"name": "'new'"}, predicate="id = 7 or id = 8")
    DeltaTable(tmp_path).delete("day = 'b'")
    new = pa.table({"id": [18, 100], "name": ["x", "y"], "day": ["a", "a"]})
    write_arrow(tmp_path, new, mode="overwrite", overwrite_where="id >= 18")
    last = DeltaTable(tmp_path).version()
    assert last == first + 3
    assert delta_spark.validate(tmp_path) == last

    for version in range(first, last + 1):
        found = delta_spark.sql(f"SELECT id, name, day FROM {place} VERSION AS OF {version}")
        ours = DeltaTable(tmp_path, version=version).to_pyarrow_table(columns=["id", "name", "day"]).to_pylist()
        assert Counter(map(_values, found)) == Counter(map(_values, ours)), version
    now = {row["id"]: row.get("name") for row in delta_spark.sql(f"SELECT * FROM {place}")}
    assert now == {0: None, 6: "n6", 8: "new", 10: None, 12: "n12", 14: "n14", 16: "n16", 18: "x", 100: "y"}

    told = delta_spark.sql(
        "SELECT id, name, _change_type AS kind, _commit_version AS version "
        f"FROM table_changes_by_path('{tmp_path}', {first})"
    )
    changes = Counter((row["version"] - first, row["kind"], row["id"], row.get("name")) for row in told)
    gone = [(0, "delete", number, f"n{number}") for number in (1, 2, 4)]
    images = [
        (1, kind, number, name)
        for number in (7, 8)
        for kind, name in (("update_preimage", f"n{number}"), ("update_postimage", "new"))
    ]
    b = {5: None, 7: "new", **{number: f"n{number}" for number in (9, 11, 13, 17, 19)}, 15: None}
    parted = [(2, "delete", number, name) for number, name in b.items()]
    replaced = [(3, "delete", 18, "n18"), (3, "insert", 18, "x"), (3, "insert", 100, "y")]
    assert changes == Counter([*gone, *images, *parted, *replaced])
    batches = pa.table(DeltaTable(tmp_path).load_cdf(starting_version=first)).to_pylist()
    ours = Counter((row["_commit_version"] - first, row["_change_type"], row["id"], row["name"]) for row in batches)
    assert ours == changes
