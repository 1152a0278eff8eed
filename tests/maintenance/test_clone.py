"""A shallow clone has the rows of its source, refers to its files, and changes without it."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner

from lazydelta import DeltaTable, write_deltalake
from lazydelta.cli.app import cli
from lazydelta.errors import OptionError, TableExistsError


@pytest.fixture
def source(tmp_path: Path) -> DeltaTable:
    """Return a table with odd paths, deleted rows and three versions."""
    root = tmp_path / "a source%20"
    rows = pa.table({"id": list(range(60)), "part": ["x y", "ä%", None] * 20})
    properties = {"delta.enableDeletionVectors": "true"}
    write_deltalake(root, rows, partition_by=["part"], configuration=properties)
    table = DeltaTable(root)
    table.delete("id < 7")
    write_deltalake(root, rows.slice(0, 5), mode="append")
    return DeltaTable(root)


def rows_of(table: DeltaTable) -> pa.Table:
    return table.to_pyarrow_table().sort_by("id")


def files_below(root: Path) -> list[str]:
    return sorted(str(each) for each in root.rglob("*") if each.is_file())


def test_a_clone_reads_the_files_of_its_source(source: DeltaTable, tmp_path: Path) -> None:
    made = source.shallow_clone(tmp_path / "clone")
    assert not list((tmp_path / "clone").rglob("*.parquet"))
    assert rows_of(made).equals(rows_of(source))
    assert (made.version(), made.metadata().id == source.metadata().id) == (0, False)
    assert made.schema() == source.schema()
    assert len(list(made.files("id > 58"))) == 1  # statistics came along
    again = made.shallow_clone(tmp_path / "clone of a clone")
    assert rows_of(again).equals(rows_of(source))
    source.load_as_version(0)
    assert rows_of(source.shallow_clone(tmp_path / "older")).num_rows == 60


def test_both_change_without_each_other(source: DeltaTable, tmp_path: Path) -> None:
    root = tmp_path / "a source%20"
    before, files = rows_of(source), files_below(root)
    made = source.shallow_clone(tmp_path / "clone")
    made.delete("id = 30")
    made.update(new_values={"id": 99}, predicate="id = 31")
    write_deltalake(tmp_path / "clone", before.slice(0, 3), mode="append")
    made.update_incremental()
    expected = sorted(
        [
            *(99 if each == 31 else each for each in before["id"].to_pylist() if each != 30),
            *before["id"].to_pylist()[:3],
        ]
    )
    assert rows_of(made)["id"].to_pylist() == expected
    made.optimize.compact()
    made.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert rows_of(made)["id"].to_pylist() == expected
    assert files_below(root) == files
    assert rows_of(DeltaTable(root)).equals(before)


def test_the_log_of_a_clone_is_whole_for_others(source: DeltaTable, tmp_path: Path) -> None:
    source.shallow_clone(tmp_path / "clone")
    actions = [json.loads(line) for line in (tmp_path / "clone/_delta_log" / f"{0:020}.json").read_text().splitlines()]
    adds = [each["add"] for each in actions if "add" in each]
    assert all(each["path"].startswith("file:///") and each["stats"] for each in adds)
    assert {each["deletionVector"]["storageType"] for each in adds if each.get("deletionVector")} == {"p"}
    info = next(each["commitInfo"] for each in actions if "commitInfo" in each)
    assert (info["operation"], info["operationParameters"]["sourceVersion"]) == ("CLONE", "2")
    theirs = deltalake.DeltaTable(tmp_path / "clone")
    assert pa.table(theirs.get_add_actions()).num_rows == len(adds)


def test_a_clone_replaces_no_table(source: DeltaTable, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "there", pa.table({"id": [1]}))
    with pytest.raises(TableExistsError):
        source.shallow_clone(tmp_path / "there")
    with pytest.raises(OptionError, match="itself"):
        source.shallow_clone(source.table_uri)


def test_the_command_tells_what_it_made(source: DeltaTable, tmp_path: Path) -> None:
    arguments = ["clone", str(tmp_path / "a source%20"), "--to", str(tmp_path / "clone"), "--version", "0", "--json"]
    done = CliRunner().invoke(cli, arguments, prog_name="lazydelta")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["source_version"], told["version"], told["files"]) == (0, 0, 3)
    assert rows_of(DeltaTable(tmp_path / "clone")).num_rows == 60
