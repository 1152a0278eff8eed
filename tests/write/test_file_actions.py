"""Actions that the caller has made: files of other tools become part of a table, and what is not so is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import CommitProperties, DeltaTable, Transaction, write_arrow
from lazydelta.errors import CommitConflictError, OptionError, SchemaMismatchError, WriteError
from lazydelta.transaction import AddAction, RemoveAction
from tests.maintenance.deleted_rows import delete_rows

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string())])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a table with two files in each of two partitions."""
    for number in range(2):
        rows = pa.table({"id": [number, 10 + number], "p": ["a", "b"]}, schema=SCHEMA)
        properties = {"delta.enableDeletionVectors": "true"}
        write_arrow(tmp_path, rows, partition_by=["p"], properties=properties, maintain=False)
    return tmp_path


def written(root: Path, *ids: int, partition: str = "a", **changed: Any) -> AddAction:
    path = f"p={partition}/made-{ids[0]}.parquet"
    pq.write_table(pa.table({"id": list(ids)}), root / path)
    given: dict[str, Any] = {
        "path": path,
        "size": (root / path).stat().st_size,
        "partition_values": {"p": partition},
        "modification_time": 1,
        "data_change": True,
        "stats": json.dumps({"numRecords": len(ids)}),
    }
    return AddAction(**given | changed)


def ids(root: Path) -> list[int]:
    ours = sorted(DeltaTable(root, options={"checksum": "error"}).to_pyarrow_table()["id"].to_pylist())
    theirs = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(root)).execute("SELECT id FROM t").read_all()
    assert sorted(pa.table(theirs)["id"].to_pylist()) == ours
    return ours


def test_files_are_added_and_removed_together(root: Path) -> None:
    table = DeltaTable(root)
    first = next(file for file in table.files() if file.partition_values == {"p": "a"})
    removed = RemoveAction(
        first.path, data_change=True, deletion_timestamp=5, size=first.size, partition_values={"p": "a"}
    )
    noted = CommitProperties(custom_metadata={"tool": "mine"}, app_transactions=[Transaction("me", 3)])
    table.create_write_transaction([written(root, 20, 21), removed], "append", table.schema(), commit_properties=noted)
    assert (table.version(), table.transaction_version("me"), table.history(1)[0]["tool"]) == (2, 3, "mine")
    assert len(ids(root)) == 5
    assert {20, 21} < set(ids(root))


def test_a_file_with_a_deletion_vector_is_removed_with_it(root: Path) -> None:
    file = DeltaTable(root).files("id = 0").collect()[0]
    delete_rows(root, file, [0])
    DeltaTable(root).create_write_transaction([RemoveAction(file.path, True, 5)], "append", SCHEMA)  # noqa: FBT003
    assert ids(root) == [1, 10, 11]


@pytest.mark.parametrize(("where", "expected"), [(None, [30]), ([("p", "=", "b")], [0, 1, 30])], ids=["all", "one"])
def test_an_overwrite_removes_by_itself(root: Path, where: Any, expected: list[int]) -> None:
    add = written(root, 30, partition="b")
    DeltaTable(root).create_write_transaction([add], "overwrite", SCHEMA, ["p"], where)
    assert ids(root) == expected


def test_what_is_not_so_is_refused_and_nothing_is_committed(root: Path) -> None:
    table, good = DeltaTable(root), written(root, 40)
    active = RemoveAction(table.files().collect()[0].path, True, 5)  # noqa: FBT003
    refused: list[tuple[list[Any], dict[str, Any], type[Exception], str]] = [
        ([written(root, 41, path="p=a/nowhere.parquet")], {}, OptionError, "is not there"),
        ([written(root, 45, path="file:///p=a/made-45.parquet")], {}, OptionError, "relative to the table's root"),
        ([written(root, 42, size=7)], {}, OptionError, "bytes, and the action says 7"),
        ([written(root, 43, partition_values={})], {}, OptionError, "partition columns"),
        ([written(root, 44, stats="nothing")], {}, OptionError, "not a JSON object"),
        ([good, good], {}, ValueError, "same file path"),
        ([good, RemoveAction(good.path, False, 5)], {}, ValueError, "same file path"),  # noqa: FBT003
        ([RemoveAction("p=a/gone.parquet", True, 5)], {}, OptionError, "not part of version 1"),  # noqa: FBT003
        (
            [written(root, 46, path=active.path, size=_size(root, active.path))],
            {},
            OptionError,
            "is already part of version 1",
        ),
        ([active], {"mode": "overwrite"}, ValueError, "overwrite"),
        ([good], {"mode": "merge"}, OptionError, "is not valid"),
        ([good], {"partition_by": ["id"]}, SchemaMismatchError, "partitioned by"),
        ([good], {"schema": pa.schema([("id", pa.int32()), ("p", pa.string())])}, SchemaMismatchError, "columns"),
        ([{"path": "x"}], {}, TypeError, "not an action"),
    ]
    for actions, changed, kind, words in refused:
        given: dict[str, Any] = {"mode": "append", "schema": SCHEMA} | changed
        with pytest.raises(kind, match=words):
            table.create_write_transaction(actions, **given)
    assert DeltaTable(root).version() == 1


def _size(root: Path, path: str) -> int:
    return (root / path).stat().st_size


def test_a_size_that_the_caller_gets_wrong_makes_no_checksum_wrong(root: Path) -> None:
    table = DeltaTable(root)
    removed = RemoveAction(table.files().collect()[0].path, True, 5, size=1, partition_values={"p": "a"})  # noqa: FBT003
    table.create_write_transaction([removed], "append", SCHEMA)
    assert len(ids(root)) == 3


def test_an_append_only_table_and_another_writer_are_respected(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = DeltaTable(root)
    removed = RemoveAction(table.files().collect()[0].path, True, 5)  # noqa: FBT003
    seen = CommitProperties(app_transactions=[Transaction("me", 1)])
    DeltaTable(root).create_write_transaction([written(root, 50)], "append", SCHEMA, commit_properties=seen)
    with pytest.raises(CommitConflictError, match="'me' has committed"):
        table.create_write_transaction([removed], "append", SCHEMA, commit_properties=seen)
    other = tmp_path_factory.mktemp("kept")
    write_arrow(other, pa.table({"id": [1]}), properties={"delta.appendOnly": "true"})
    kept = DeltaTable(other)
    removed = RemoveAction(kept.files().collect()[0].path, True, 5)  # noqa: FBT003
    with pytest.raises(WriteError, match="append-only"):
        kept.create_write_transaction([removed], "append", kept.schema())
