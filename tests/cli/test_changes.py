"""``lazydelta merge``, ``alter``, ``restore``, ``repair`` and ``generate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from lazydelta import DeltaTable, write_arrow
from lazydelta.cli.app import cli
from lazydelta.maintenance.restore import repair_table, restore_table, shallow_clone, write_manifests
from lazydelta.sidecar.handle import TableHandle
from lazydelta.write.row_changes.merge_clauses import assignments
from lazydelta.write.row_changes.statements import DeleteSettings, delete_rows


def _run(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [str(each) for each in arguments], prog_name="lazydelta")
    assert result.exit_code == code, result.output
    return result.output


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "x": [f"x{each}" for each in ids]})


def _values(root: Path) -> dict[int, Any]:
    return {row["id"]: row["x"] for row in DeltaTable(root).to_pyarrow_table().to_pylist()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a table, beside a file of rows to merge."""
    write_arrow(tmp_path / "t", _rows(1, 2, 3))
    pq.write_table(pa.table({"id": [2, 3, 9], "x": ["new", "gone", "fresh"]}), tmp_path / "source.parquet")
    return tmp_path / "t"


def test_rows_are_merged_from_a_file_and_from_a_table(root: Path) -> None:
    asked: list[str | Path] = [
        "merge",
        root,
        "--on",
        "target.id = source.id",
        "--when-matched",
        "source.x = 'gone' then delete",
    ]
    asked += ["--when-matched", "update set x = concat(source.x, ', ', target.x)", "--when-not-matched", "insert"]
    source: list[str | Path] = ["--source", root.parent / "source.parquet"]
    foreseen = json.loads(_run(*asked, *source, "--dry-run", "--json"))
    assert (foreseen["updated"], foreseen["deleted"], foreseen["inserted"], foreseen["version"]) == (1, 1, 1, None)
    assert DeltaTable(root).version() == 0
    assert "Version 1: 1 updated, 1 deleted, 1 inserted" in _run(*asked, *source)
    assert _values(root) == {1: "x1", 2: "new, x2", 9: "fresh"}
    write_arrow(root.parent / "other", _rows(1))
    gone = ["--when-not-matched-by-source", "target.id > 5 then delete"]
    _run("merge", root, "--on", "target.id = source.id", "--source", root.parent / "other", *gone)
    assert _values(root) == {1: "x1", 2: "new, x2"}


@pytest.mark.parametrize("clause", ["upsert", "update where", "insert", "then", ""])
def test_a_clause_that_makes_no_sense_is_refused(root: Path, clause: str) -> None:
    said = _run(
        "merge", root, "--source", root.parent / "source.parquet", "--on", "true", "--when-matched", clause, code=2
    )
    assert "is not valid" in said


def test_assignments_are_split_at_their_commas() -> None:
    assert assignments("a = coalesce(source.a, 0), `b c` = 'x, y'") == {
        "`a`": "coalesce(`source`.`a`, 0)",
        "`b c`": "'x, y'",
    }


def test_a_table_is_altered_and_restored(root: Path) -> None:
    assert "would change" in _run("alter", root, "--add", "n:integer", "--dry-run")
    _run("alter", root, "--add", "n:integer")
    _run("alter", root, "--set", "delta.columnMapping.mode=name")
    _run("alter", root, "--rename", "x=text")
    _run("alter", root, "--drop", "n")
    _run("alter", root, "--comment", "text=what it says")
    _run("alter", root, "--constraint", "few=id < 10")
    assert "is so already" in _run("alter", root, "--unset", "delta.appendOnly")
    assert DeltaTable(root).schema().to_arrow().names == ["id", "text"]
    _run("alter", root, "--drop-constraint", "none", code=2)
    _run("alter", root, "--name", "a", "--unset", "b", code=2)
    DeltaTable(root).delete("id = 1")
    assert "would come back" in _run("restore", root, "--version", "0", "--dry-run")
    told = json.loads(_run("restore", root, "--version", "0", "--json"))
    assert (told["restored_files"], told["removed_files"], told["missing"]) == (1, 1, [])
    assert _values(root) == {1: "x1", 2: "x2", 3: "x3"}
    _run("restore", root, code=2)


def test_missing_files_are_found_and_manifests_written(root: Path) -> None:
    write_arrow(root, _rows(7))
    (lost,) = DeltaTable(root).file_uris(file_pruning_predicate="id = 7")
    assert _run("generate", root, "--dry-run") == _run("generate", root, "--dry-run")
    assert not (root / "_symlink_format_manifest").exists()
    assert "manifest" in _run("generate", root)
    Path(lost).unlink()
    assert "nothing was committed" in _run("repair", root, "--dry-run")
    assert json.loads(_run("repair", root, "--json"))["files_removed"] == [Path(lost).name]
    assert sorted(_values(root)) == [1, 2, 3]


def test_a_dry_run_of_a_clone_or_a_conversion_makes_no_table(root: Path, tmp_path: Path) -> None:
    other, folder = tmp_path / "clone", tmp_path / "folder"
    folder.mkdir()
    pq.write_table(pa.table({"x": [1]}), folder / "a.parquet")
    for place, command in ((other, ("clone", root, "--to", other)), (folder, ("convert", folder))):
        dry = json.loads(_run(*command, "--dry-run", "--json"))
        assert not DeltaTable.is_deltatable(str(place))
        assert json.loads(_run(*command, "--json")) == dry | {"dry_run": False, "version": 0}
        assert dry["files"] == len(DeltaTable(place).file_uris())


@pytest.mark.parametrize(
    ("run", "files"),
    [
        (lambda table, tell, _: repair_table(table, progress=tell), 3),
        (lambda table, tell, _: write_manifests(table, progress=tell), 3),
        (lambda table, tell, place: shallow_clone(table.newest(), TableHandle.open(place), progress=tell), 3),
        (lambda table, tell, _: restore_table(table, 0, progress=tell), 2),
        (lambda table, tell, _: delete_rows(table, "id > 0", DeleteSettings(progress=tell)), 2),
        (lambda table, tell, _: delete_rows(table, "id > 0", DeleteSettings(progress=tell), dry_run=True), 2),
    ],
)
def test_long_commands_tell_how_many_files_are_done(tmp_path: Path, run: Any, files: int) -> None:
    for number in range(3):
        write_arrow(tmp_path / "T", {"id": [number], "x": [0]})
    told: list[int] = []
    run(TableHandle.open(str(tmp_path / "T")), lambda done, _: told.append(done), str(tmp_path / "clone"))
    assert told[-1] == files
