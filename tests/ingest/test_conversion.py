"""Parquet files that become a table where they are: what deltalake makes of them, and what is refused."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable, convert_to_deltalake
from lazydelta.errors import DataFileError, OptionError, SchemaMismatchError, TableExistsError, WriteError

ROWS = pa.table(
    {
        "id": [1, 2, 3, 4],
        "p": ["a", "b=c/d", None, "a"],
        "x": [1.5, float("nan"), None, 2.5],
        "at": pa.array([dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3, 4)], pa.timestamp("us", "UTC")),
    }
)


def _partitioned(root: Path, flavor: str | None) -> None:
    fields = pa.schema([("p", pa.string())])
    ds.write_dataset(ROWS, root, format="parquet", partitioning=ds.partitioning(fields, flavor=flavor))


def _rows(root: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        DeltaTable(root).to_pyarrow_table().sort_by("id").select(ROWS.column_names).to_pylist()
    )
    return found


def test_folders_are_partitions(tmp_path: Path) -> None:
    _partitioned(tmp_path, "hive")
    (tmp_path / "_temporary").mkdir()
    pq.write_table(ROWS, tmp_path / "_temporary" / "left.parquet")
    with pytest.raises(WriteError, match="schema of partition columns must be provided"):
        convert_to_deltalake(tmp_path)
    assert not (tmp_path / "_delta_log").exists()
    convert_to_deltalake(tmp_path, partition_by=pa.schema([("p", pa.string())]), partition_strategy="hive", name="n")
    assert repr(_rows(tmp_path)) == repr(ROWS.to_pylist())
    theirs = deltalake.DeltaTable(tmp_path).to_pyarrow_table().sort_by("id").select(ROWS.column_names)
    assert repr(theirs.to_pylist()) == repr(ROWS.to_pylist())
    assert (DeltaTable(tmp_path).metadata().name, DeltaTable(tmp_path).history(1)[0]["operation"]) == ("n", "CONVERT")
    with pytest.raises(TableExistsError):
        convert_to_deltalake(tmp_path)
    convert_to_deltalake(tmp_path, mode="ignore")
    assert DeltaTable(tmp_path).version() == 0


def test_folders_without_names_are_partitions_in_order(tmp_path: Path) -> None:
    pq.write_table(ROWS.drop_columns(["p"]).slice(0, 1), _made(tmp_path / "a") / "1.parquet")
    pq.write_table(ROWS.drop_columns(["p"]).slice(1, 1), _made(tmp_path / "b") / "2.parquet")
    fields = pa.schema([("p", pa.string())])
    convert_to_deltalake(tmp_path, partition_by=fields, partition_strategy="directory")
    assert [row["p"] for row in _rows(tmp_path)] == ["a", "b"]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_footers_leave_files_out(tmp_path: Path) -> None:
    for number in range(4):
        pq.write_table(ROWS.slice(number, 1), tmp_path / f"{number}.parquet", row_group_size=1)
    convert_to_deltalake(tmp_path)
    table = DeltaTable(tmp_path)
    assert len(table.files("id = 3").collect()) == 1
    assert len(table.files("at >= '2026-01-04'").collect()) == 1
    actions = table.get_add_actions(flatten=True)
    assert actions["num_records"].to_pylist() == [1] * 4
    assert "max.x" not in actions.column_names or actions["max.x"].null_count == 4  # a footer does not tell of NaN
    assert table.to_pyarrow_table(filters="x > 2").num_rows == 2  # NaN is the largest


def test_files_may_lack_columns_but_not_have_others_types(tmp_path: Path) -> None:
    pq.write_table(ROWS.select(["id"]), tmp_path / "1.parquet")
    pq.write_table(ROWS, tmp_path / "2.parquet")
    pq.write_table(pa.table({"id": ["text"]}), tmp_path / "3.parquet")
    with pytest.raises(SchemaMismatchError, match="'id'"):
        convert_to_deltalake(tmp_path)
    (tmp_path / "3.parquet").write_bytes(b"no Parquet")
    with pytest.raises(DataFileError):
        convert_to_deltalake(tmp_path)
    (tmp_path / "3.parquet").unlink()
    convert_to_deltalake(tmp_path, collect_stats=False)
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 8
    assert DeltaTable(tmp_path).get_add_actions()["num_records"].null_count == 2


@pytest.mark.parametrize(
    "given", [{"partition_by": pa.schema([])}, {"partition_strategy": "snowflake"}, {"mode": "overwrite"}]
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        convert_to_deltalake(tmp_path, **given)
