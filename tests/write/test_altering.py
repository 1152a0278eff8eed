"""Changes of columns, constraints and properties, and older versions brought back: as deltalake does them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pytest

import lazydelta
from lazydelta import CommitProperties, DeltaTable, Transaction, write_arrow, write_deltalake
from lazydelta.errors import (
    OptionError,
    SchemaMismatchError,
    UnknownColumnError,
    UnsupportedFeatureError,
    VersionNotFoundError,
    WriteError,
)
from lazydelta.protocol.actions import Protocol
from lazydelta.schema import Field, PrimitiveType, StructType
from lazydelta.storage import Request, observe
from lazydelta.write import publication
from lazydelta.write import transaction as transactions
from lazydelta.write.create import with_features


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "x": [f"x{each}" for each in ids]})


def _values(root: Path, version: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(root, version).to_pyarrow_table().sort_by("id").to_pylist()
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a table of two files."""
    for start in (0, 3):
        write_arrow(tmp_path / "t", _rows(*range(start, start + 3)), maintain=False)
    return tmp_path / "t"


def test_columns_are_added_renamed_and_dropped(root: Path) -> None:
    table = DeltaTable(root)
    table.alter.add_columns([Field("n", PrimitiveType("integer")), Field("s", StructType([Field("a", "long")]))])
    table.alter.add_columns(Field("s", StructType([Field("b", "string")])))
    assert table.schema().to_arrow().field("s").type == pa.struct([("a", pa.int64()), ("b", pa.string())])
    with pytest.raises(UnsupportedFeatureError, match="column mapping"):
        table.alter.rename_column("x", "text")
    table.alter.set_table_properties({"delta.columnMapping.mode": "name"})
    assert _values(root)[0] == {"id": 0, "x": "x0", "n": None, "s": None}
    table.alter.rename_column("x", "text")
    table.alter.drop_columns("s")
    write_arrow(root, pa.table({"id": [9], "text": ["new"], "n": pa.array([1], pa.int32())}), maintain=False)
    expected = [{"id": each, "text": f"x{each}", "n": None} for each in range(6)] + [{"id": 9, "text": "new", "n": 1}]
    assert _values(root) == expected
    assert deltalake.DeltaTable(root).count() == 7
    # A dropped column that comes back has no values of its former self.
    table.alter.add_columns(Field("s", StructType([Field("a", "long")])))
    assert {str(each["s"]) for each in _values(root)} == {"None"}


def test_a_column_that_is_named_elsewhere_stays(root: Path) -> None:
    table = DeltaTable(root)
    table.alter.set_table_properties({"delta.columnMapping.mode": "name"})
    table.alter.add_constraint({"small": "id < 100"})
    with pytest.raises(SchemaMismatchError, match="constraints"):
        table.alter.drop_columns(["id"])
    with pytest.raises(UnknownColumnError):
        table.alter.rename_column("nothing", "y")
    with pytest.raises(SchemaMismatchError, match="second"):
        table.alter.rename_column("x", "ID")


def test_a_constraint_holds_for_all_rows(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = DeltaTable(root)
    with pytest.raises(WriteError, match="CHECK constraint 'few'"):
        table.alter.add_constraint({"few": "id < 5"})
    assert table.version() == 1
    real, rivals = publication.publish, [lambda: deltalake.write_deltalake(root, _rows(77), mode="append")]

    def publish(*arguments: Any) -> bool:
        if rivals:
            rivals.pop()()
        return real(*arguments)

    monkeypatch.setattr(transactions, "publish", publish)
    with pytest.raises(WriteError, match="CHECK constraint 'some'"):  # the rival's row breaks it
        table.alter.add_constraint({"some": "id < 50"})
    table.alter.add_constraint({"many": "id < 100"})
    assert table.protocol().min_writer_version == 3
    with pytest.raises(WriteError, match="'many'"):
        write_arrow(root, _rows(100))
    with pytest.raises(WriteError, match="'many'"):
        table.merge(_rows(200), "t.id = s.id", "s", "t").when_not_matched_insert_all().execute()
    with pytest.raises(deltalake.exceptions.DeltaError):
        deltalake.write_deltalake(root, _rows(100), mode="append")
    table.alter.drop_constraint("many")
    write_arrow(root, _rows(100))
    with pytest.raises(WriteError, match="doesn't exist"):
        table.alter.drop_constraint("many")
    table.alter.drop_constraint("many", raise_if_not_exists=False)


def test_properties_names_and_comments(root: Path) -> None:
    table = DeltaTable(root)
    table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    assert (table.protocol().min_writer_version, table.metadata().configuration) == (
        4,
        {"delta.enableChangeDataFeed": "true"},
    )
    table.delete("id = 1")
    assert table.load_cdf(table.version()).read_all().num_rows == 1
    table.alter.unset_table_properties(["delta.enableChangeDataFeed"])
    assert table.metadata().configuration == {}
    version = table.version()
    table.alter.unset_table_properties(["delta.enableChangeDataFeed"])
    assert table.version() == version  # nothing to change
    table.alter.set_table_name("the name")
    table.alter.set_table_description("what it is")
    table.alter.set_column_metadata("x", {"comment": "a text"})
    assert (table.metadata().name, table.metadata().description) == ("the name", "what it is")
    assert next(each for each in table.schema().fields if each.name == "x").metadata == {"comment": "a text"}
    with pytest.raises(WriteError, match="not a Delta table property"):
        table.alter.set_table_properties({"own": "1"})
    with pytest.raises(WriteError, match="true or false"):
        table.alter.set_table_properties({"delta.enableChangeDataFeed": "wrong"})
    with pytest.raises(WriteError, match="not a protocol version"):
        table.alter.set_table_properties({"delta.minWriterVersion": "8"})
    with pytest.raises(OptionError, match="name"):
        table.alter.set_table_name("")
    assert deltalake.DeltaTable(root).metadata().name == "the name"


@pytest.mark.parametrize(
    ("asked", "after"),
    [
        ({"delta.minWriterVersion": "4"}, (1, 4, None, None)),
        ({"delta.minWriterVersion": "1"}, (1, 2, None, None)),
        ({"delta.minReaderVersion": "2", "delta.minWriterVersion": "5"}, (2, 5, None, None)),
        ({"delta.minWriterVersion": "7"}, (1, 7, ["appendOnly", "invariants"], None)),
        ({"delta.minReaderVersion": "3"}, (3, 7, ["appendOnly", "invariants"], [])),
    ],
)
def test_versions_of_the_protocol_are_raised_by_properties_and_not_kept_as_such(
    tmp_path: Path, asked: dict[str, str], after: Any
) -> None:
    for name, by_creation in (("created", True), ("altered", False)):
        table = DeltaTable.create(
            tmp_path / name, pa.schema([("x", pa.int64())]), configuration=asked if by_creation else None
        )
        if not by_creation:
            table.alter.set_table_properties(asked)
        theirs = deltalake.DeltaTable(tmp_path / name)
        assert tuple(table.protocol()) == after
        assert (theirs.protocol().min_reader_version, theirs.protocol().min_writer_version) == after[:2]
        assert theirs.metadata().configuration == {}
        table = DeltaTable(tmp_path / name)
        write_deltalake(table, pa.table({"x": [1]}), mode="append", configuration=asked)
        assert deltalake.DeltaTable(tmp_path / name).to_pyarrow_table().num_rows == 1


def test_a_write_adds_the_feature_that_a_new_column_needs(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"x": [1]}))
    rows = pa.table({"x": [2], "at": pa.array([0], pa.timestamp("us"))})
    write_deltalake(tmp_path, rows, mode="append", schema_mode="merge")
    assert DeltaTable(tmp_path).protocol().reader_features == ["timestampNtz"]
    assert deltalake.DeltaTable(tmp_path).to_pyarrow_table().sort_by("x").column("at").null_count == 1


@pytest.mark.parametrize(
    ("before", "feature", "after"),
    [
        ((1, 2, None, None), "appendOnly", (1, 2, None, None)),
        ((1, 2, None, None), "checkConstraints", (1, 3, None, None)),
        ((1, 2, None, None), "columnMapping", (2, 5, None, None)),
        (
            (1, 2, None, None),
            "deletionVectors",
            (3, 7, ["deletionVectors"], ["appendOnly", "deletionVectors", "invariants"]),
        ),
        ((1, 7, None, ["appendOnly"]), "columnMapping", (3, 7, ["columnMapping"], ["appendOnly", "columnMapping"])),
    ],
)
def test_the_protocol_is_the_lowest_that_has_a_feature(before: Any, feature: str, after: Any) -> None:
    reader, writer, read, written = before
    protocol = Protocol(
        min_reader_version=reader,
        min_writer_version=writer,
        reader_features=None if read is None else tuple(read),
        writer_features=None if written is None else tuple(written),
    )
    found = with_features(protocol, [feature])
    lists = (None if each is None else list(each) for each in (found.reader_features, found.writer_features))
    assert (found.min_reader_version, found.min_writer_version, *lists) == after


def test_a_column_takes_nulls(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.string())])
    write_arrow(tmp_path, _rows(1).cast(schema))
    nulls = pa.table({"id": pa.array([None], pa.int64()), "x": ["a"]})
    with pytest.raises(SchemaMismatchError):
        write_arrow(tmp_path, nulls)
    DeltaTable(tmp_path).alter.drop_column_not_null("id")
    write_arrow(tmp_path, nulls)
    assert DeltaTable(tmp_path).count() == 2


# --- versions brought back


def test_an_older_version_is_restored_with_its_statistics(root: Path) -> None:
    before = _values(root)
    ranges = DeltaTable(root).get_add_actions(flatten=True).select(["path", "num_records", "min.id", "max.id"])
    table = DeltaTable(root)
    table.delete("id = 1")
    table.alter.add_columns(Field("n", PrimitiveType("integer")))
    write_arrow(root, _rows(50))
    table.create_checkpoint()
    metrics = table.restore(1)
    assert metrics == {"numRemovedFile": 2, "numRestoredFile": 1}
    assert _values(root) == before
    found = DeltaTable(root, options={"checksum": "error"}).get_add_actions(flatten=True).select(ranges.schema.names)
    assert found.sort_by("path").to_pylist() == ranges.sort_by("path").to_pylist()
    assert table.history(1)[0]["operation"] == "RESTORE"
    assert sorted(deltalake.DeltaTable(root).to_pyarrow_table()["id"].to_pylist()) == list(range(6))
    with pytest.raises(VersionNotFoundError):
        table.restore(99)


def test_a_version_whose_files_are_gone_is_not_restored(root: Path) -> None:
    table = DeltaTable(root)
    file = Path(table.file_uris(file_pruning_predicate="id = 1")[0])
    table.delete()
    file.unlink()
    with pytest.raises(WriteError, match="is gone"):
        table.restore(1)
    assert table.count() == 0
    table.restore(1, ignore_missing_files=True)
    assert [row["id"] for row in _values(root)] == [3, 4, 5]


@pytest.mark.parametrize(
    "rival",
    [
        lambda root: deltalake.write_deltalake(root, _rows(77), mode="append"),
        lambda root: deltalake.DeltaTable(root).delete("id < 3"),  # a whole file, which both versions have
    ],
    ids=["append", "delete"],
)
def test_a_restoration_undoes_what_others_commit_meanwhile(
    rival: Callable[[Path], Any], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, rivals = publication.publish, [lambda: rival(root)]

    def publish(*arguments: Any) -> bool:
        if rivals:
            rivals.pop()()
        return real(*arguments)

    DeltaTable(root).delete("id = 4")
    monkeypatch.setattr(transactions, "publish", publish)
    DeltaTable(root).restore(1)
    assert [row["id"] for row in _values(root)] == list(range(6))


def test_missing_files_leave_the_log(root: Path) -> None:
    table = DeltaTable(root)
    lost = Path(table.file_uris(file_pruning_predicate="id = 1")[0])
    lost.unlink()
    assert table.repair(dry_run=True) == {"dry_run": True, "files_removed": [lost.name]}
    assert table.repair() == {"dry_run": False, "files_removed": [lost.name]}
    assert [row["id"] for row in _values(root)] == [3, 4, 5]
    version = table.version()
    table.repair()
    assert table.version() == version


def test_manifests_name_the_files_of_each_partition(tmp_path: Path) -> None:
    table = pa.table({"p": ["a", "b", None], "id": [1, 2, 3]})
    write_arrow(tmp_path, table, partition_by=["p"])
    DeltaTable(tmp_path).generate()
    found = {
        each.parent.name: each.read_text().split() for each in (tmp_path / "_symlink_format_manifest").rglob("manifest")
    }
    assert set(found) == {"p=a", "p=b", "p=__HIVE_DEFAULT_PARTITION__"}
    assert duckdb.execute(f"SELECT id FROM read_parquet({found['p=a']})").fetchall() == [(1,)]
    DeltaTable(tmp_path).delete("p = 'a'")
    DeltaTable(tmp_path).generate()
    assert (tmp_path / "_symlink_format_manifest/p=a/manifest").read_text() == ""


def test_a_compaction_of_commits_is_read_instead_of_them(tmp_path: Path) -> None:
    root = tmp_path / "ours"
    for number in range(4):
        once = CommitProperties(app_transactions=[Transaction("me", number)])
        write_deltalake(root, pa.table({"id": [number, number + 10]}), mode="append", commit_properties=once)
    DeltaTable(root).delete("id = 1")
    DeltaTable(root).delete("id >= 10")
    shutil.copytree(root, tmp_path / "theirs")
    DeltaTable(root).compact_logs(1, 5)
    deltalake.DeltaTable(tmp_path / "theirs").compact_logs(1, 5)
    name = f"_delta_log/{1:020}.{5:020}.compacted.json"
    ours, theirs = (
        sorted(
            (kind, body.get("path") or body["appId"])
            for line in (each / name).read_text().splitlines()
            for kind, body in json.loads(line).items()
        )
        for each in (root, tmp_path / "theirs")
    )
    assert ours == theirs
    seen: list[Request] = []
    with observe(seen.append):
        table = DeltaTable(root)
        assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 2, 3]
        assert table.transaction_version("me") == 3
    read = {Path(each.path).name for each in seen if each.verb == "GET" and "_delta_log" in each.path}
    assert read & {f"{version:020}.json" for version in range(1, 6)} <= {f"{5:020}.json"}
    DeltaTable(root).compact_logs(1, 5)
    with pytest.raises(lazydelta.errors.OptionError, match="newest version is 5"):
        DeltaTable(root).compact_logs(1, 6)
