"""Tables with column mapping by other writers: files, statistics and the log carry the physical names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable, write_arrow, write_deltalake
from lazydelta.errors import CommitConflictError, SchemaMismatchError, UnsupportedFeatureError
from lazydelta.write.job import WriteJob
from lazydelta.write.options import WriteOptions
from tests.oracle.replay import read_commit
from tests.scan.hand_log import HandLog

if TYPE_CHECKING:
    from pathlib import Path

_NESTED = {
    "type": "struct",
    "fields": [
        {
            "name": "inner",
            "type": "long",
            "nullable": True,
            "metadata": {"delta.columnMapping.id": 5, "delta.columnMapping.physicalName": "p-inner"},
        }
    ],
}
_LIST = {"type": "array", "elementType": _NESTED, "containsNull": True}
_COLUMNS = {
    "id": ("long", "p-id", 1),
    "part": ("string", "p-part", 2),
    "nested": (_NESTED, "p-nested", 3),
    "list": (_LIST, "p-list", 4),
}


def mapped(table: Path, mode: str, **properties: str) -> HandLog:
    configuration = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "5", **properties}
    log = HandLog(table, _COLUMNS, partitions=["part"], features=["columnMapping"], configuration=configuration)
    log.commit()
    return log


def rows(*ids: int) -> pa.Table:
    return pa.table(
        {
            "ID": list(ids),  # Delta does not tell names apart by case
            "part": [f"p{each % 2}" for each in ids],
            "nested": [{"inner": each} for each in ids],
            "list": [[{"inner": each}, None] for each in ids],
        }
    )


def adds(log: HandLog, version: int) -> list[dict[str, Any]]:
    return [each["add"] for each in read_commit(log.log, version) if "add" in each]


@pytest.mark.parametrize("mode", ["name", "id"])
def test_files_and_the_log_have_physical_names_and_ids(tmp_path: Path, mode: str) -> None:
    log = mapped(tmp_path / "t", mode, **{"delta.dataSkippingStatsColumns": "nested.inner,unknown"})
    assert write_arrow(log.table, rows(1, 2, 3), maintain=False) == 1
    written = adds(log, 1)
    assert sorted(each["partitionValues"]["p-part"] for each in written) == ["p0", "p1"]
    for each in written:
        stats = json.loads(each["stats"])
        assert set(stats["nullCount"]) == {"p-nested"}
        assert set(stats["minValues"]["p-nested"]) == {"p-inner"}
        stored = pq.read_schema(log.table / each["path"])
        assert stored.names == ["p-id", "p-nested", "p-list"]
        ids = {field.name: field.metadata[b"PARQUET:field_id"] for field in (*stored, *stored.field("p-nested").type)}
        assert ids == {"p-id": b"1", "p-nested": b"3", "p-inner": b"5", "p-list": b"4"}
        assert stored.field("p-list").type.value_type.names == ["p-inner"]
    found = sorted(DeltaTable(log.table).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert found == [{"id": row.pop("ID"), **row} for row in rows(1, 2, 3).to_pylist()]
    assert [file.path for file in DeltaTable(log.table).files("nested.inner = 1")] == [
        each["path"] for each in written if each["partitionValues"]["p-part"] == "p1"
    ]


def test_partitions_are_overwritten_and_new_columns_get_names_and_ids_of_their_own(tmp_path: Path) -> None:
    log = mapped(tmp_path / "t", "name")
    write_arrow(log.table, rows(1, 2), maintain=False)
    write_arrow(log.table, rows(4), mode="overwrite", overwrite_where="part = 'p0'", maintain=False)
    assert sorted(DeltaTable(log.table).to_pyarrow_table()["id"].to_pylist()) == [1, 4]
    more = pa.table({"id": [5], "part": ["p1"], "more": [{"deep": 1.5}]})
    write_arrow(log.table, more, schema_mode="merge", maintain=False)
    [metadata] = [each["metaData"] for each in read_commit(log.log, 3) if "metaData" in each]
    new = json.loads(metadata["schemaString"])["fields"][-1]
    deep = new["type"]["fields"][0]
    assert new["metadata"]["delta.columnMapping.id"] == 6
    assert deep["metadata"]["delta.columnMapping.id"] == 7
    assert metadata["configuration"]["delta.columnMapping.maxColumnId"] == "7"
    physical = new["metadata"]["delta.columnMapping.physicalName"]
    assert physical.startswith("col-")
    assert physical in pq.read_schema(log.table / adds(log, 3)[0]["path"]).names
    found = {
        row["id"]: row["more"] for row in DeltaTable(log.table).to_pyarrow_table(columns=["id", "more"]).to_pylist()
    }
    assert found == {1: None, 4: None, 5: {"deep": 1.5}}


def test_a_batch_that_is_repeated_is_recognised(tmp_path: Path) -> None:
    log = mapped(tmp_path / "t", "name")
    once: dict[str, Any] = {"app_id": "a", "app_version": 1, "maintain": False}
    assert write_arrow(log.table, rows(1, 2), **once) == 1
    assert write_arrow(log.table, rows(1, 2), **once) == 1
    assert DeltaTable(log.table).version() == 1


def test_a_column_that_was_made_anew_meanwhile_is_not_taken_for_the_one_that_files_were_written_for(
    tmp_path: Path,
) -> None:
    log = mapped(tmp_path / "t", "name")
    data = rows(1)
    job = WriteJob.prepare(str(log.table), data.schema, WriteOptions(maintain=False))
    result = job.write(data.to_batches())
    log.columns["id"] = ("long", "p-other", 6)
    log.commit(log.metadata())
    with pytest.raises(CommitConflictError, match=r"meanwhile: id"):
        job.commit([result])


def test_a_mapping_that_the_protocol_does_not_have_is_refused(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", configuration={"delta.columnMapping.mode": "name"})
    log.commit()
    with pytest.raises(UnsupportedFeatureError, match="columnMapping"):
        write_arrow(log.table, pa.table({"id": [1], "name": ["x"]}), maintain=False)


def test_an_id_is_not_given_again_after_deltalake_has_restored_an_older_version(tmp_path: Path) -> None:
    """A restore sets the highest id back; a file of the version in between has a column of that id."""
    configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"}
    columns = {"id": ("long", "p-id", 1)}
    HandLog(tmp_path / "t", columns, features=["columnMapping"], configuration=configuration).commit()
    write_arrow(tmp_path / "t", pa.table({"id": [1], "new": [7]}), schema_mode="merge", maintain=False)
    deltalake.DeltaTable(tmp_path / "t").restore(0)
    write_arrow(tmp_path / "t", pa.table({"id": [2], "new": ["x"]}), schema_mode="merge", maintain=False)
    given = [_mapping(tmp_path / "t", version) for version in (1, 3)]
    assert [each["delta.columnMapping.id"] for each in given] == [2, 3]
    assert given[0]["delta.columnMapping.physicalName"] != given[1]["delta.columnMapping.physicalName"]


def _mapping(table: Path, version: int) -> dict[str, Any]:
    [metadata] = [each["metaData"] for each in read_commit(table / "_delta_log", version) if "metaData" in each]
    found: dict[str, Any] = json.loads(metadata["schemaString"])["fields"][-1]["metadata"]
    return found


@pytest.mark.parametrize(
    ("more", "protocol"),
    [({}, (2, 5)), ({"delta.enableDeletionVectors": "true"}, (3, 7)), ({"delta.minWriterVersion": "7"}, (2, 7))],
)
def test_a_table_is_created_with_mapped_columns(
    tmp_path: Path, more: dict[str, str], protocol: tuple[int, int]
) -> None:
    properties = {"delta.columnMapping.mode": "name"} | more
    write_deltalake(tmp_path, pa.table({"a": [1], "p": ["x"]}), partition_by=["p"], configuration=properties)
    table = DeltaTable(tmp_path)
    assert tuple(table.protocol())[:2] == protocol
    table.alter.rename_column("a", "b")
    write_arrow(tmp_path, pa.table({"b": [2], "p": ["y"]}))
    expected = [{"b": 1, "p": "x"}, {"b": 2, "p": "y"}]
    assert DeltaTable(tmp_path).to_pyarrow_table().sort_by("b").to_pylist() == expected
    theirs = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(tmp_path))
    assert pa.table(theirs.execute("SELECT b, p FROM t ORDER BY b").read_all()).to_pylist() == expected


@pytest.mark.parametrize("name", ["a b", "a,b", "a;b", "a=b", "{a}", "a\n"])
def test_a_name_that_other_readers_refuse_needs_mapped_columns(name: str, tmp_path: Path) -> None:
    """Also within a struct; files have other names then, and deltalake reads the table."""
    rows = pa.table({name: [1], "s": [{name: 2}]})
    with pytest.raises(SchemaMismatchError, match=r"delta\.columnMapping\.mode"):
        write_arrow(tmp_path, rows)
    write_arrow(tmp_path, rows, properties={"delta.columnMapping.mode": "name"})
    assert DeltaTable(tmp_path).to_arrow(where=f'"{name}" = 1').to_pylist() == rows.to_pylist()
    assert [each.name for each in deltalake.DeltaTable(tmp_path).schema().fields] == rows.schema.names
    [file] = tmp_path.glob("*.parquet")
    physical, other = pq.read_schema(file).names
    assert physical.startswith("col-")
    assert other == "s"
    more = pa.table({name: [3], "s": [{name: 4, "x y": 5}], "x y": [6]})
    write_arrow(tmp_path, more, merge_schema=True)
    assert DeltaTable(tmp_path).to_arrow(where=f'"{name}" = 3').to_pylist() == more.to_pylist()
