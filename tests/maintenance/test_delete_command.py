"""``lazydelta delete``, and the parameters of deltalake's ``delete``."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lazydelta
from lazydelta.cli.app import cli
from lazydelta.storage import Request, observe
from tests.maintenance.old_tables import data_files

if TYPE_CHECKING:
    from click.testing import Result


def _invoke(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(each) for each in arguments], prog_name="lazydelta")
    assert result.exit_code == code, result.output
    return result


def _ids(table: Path) -> list[int]:
    found: list[int] = lazydelta.DeltaTable(table).to_pyarrow_table()["id"].to_pylist()
    return sorted(found)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table of a file in each of two partitions."""
    rows = pa.table({"p": ["a", "a", "b", "b"], "id": pa.array([1, 2, 3, 4])})
    lazydelta.write_arrow(tmp_path, rows, partition_by=["p"])
    return tmp_path


def test_it_says_what_became_of_the_rows(table: Path) -> None:
    asked = ("delete", table, "--where", "id = 2 OR p = 'b'")
    said = _invoke(*asked, "--dry-run").output
    assert said.startswith("3 rows in 2 files would be deleted; 1 file would be copied without them")
    assert lazydelta.DeltaTable(table).version() == 0
    assert _invoke(*asked).output.startswith("Version 1: 3 rows in 2 files deleted; 1 row of 1 file copied to 1 file")
    assert lazydelta.DeltaTable(table).to_pyarrow_table()["id"].to_pylist() == [1]
    assert _invoke(*asked).output == "No row matches: nothing was committed\n"


def test_json_has_all_of_it(table: Path) -> None:
    found = json.loads(_invoke("delete", table, "--json", "--where", '{"id": {">=": 2}}').output)
    assert (found["version"], found["rows"], found["copied_rows"]) == (1, 3, 1)
    assert (found["removed_files"], found["rewritten_files"], found["added_files"]) == (2, 1, 1)


def test_all_rows_go_only_if_that_is_said(table: Path) -> None:
    assert "--where PREDICATE, or --all" in _invoke("delete", table, code=2).output
    assert "--where PREDICATE, or --all" in _invoke("delete", table, "--all", "--where", "id = 1", code=2).output
    assert lazydelta.DeltaTable(table).version() == 0
    assert _invoke("delete", table, "--all").output.startswith("Version 1: 4 rows in 2 files deleted")


def test_a_predicate_that_makes_no_sense_deletes_nothing(table: Path) -> None:
    assert "nothing" in _invoke("delete", table, "--where", "nothing = 1", code=2).output
    assert lazydelta.DeltaTable(table).version() == 0


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_at_any_request_leaves_all_rows_or_none_deleted_and_says_how_to_go_on(
    table: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Before each request in turn, until there is no further one; the same command then deletes what is there."""
    folder, outcomes = tmp_path_factory.mktemp("interrupted"), set()
    for at in range(1, 200):
        copy = folder / str(at)
        shutil.copytree(table, copy)
        asked = ("delete", copy, "--where", "id = 2 OR p = 'b'")
        before, left, in_commit = data_files(copy), at, False

        def interrupt(request: Request) -> None:
            nonlocal left, in_commit
            left -= 1
            if left == 0:
                in_commit = request.verb == "PUT" and request.path.startswith("_delta_log/")
                os.kill(os.getpid(), signal.SIGINT)

        with observe(interrupt):
            result = CliRunner().invoke(cli, [str(each) for each in asked], prog_name="lazydelta")
        if left > 0:
            assert result.exit_code == 0
            break
        assert result.exit_code == 130, (at, result.output)
        version, ids = lazydelta.DeltaTable(copy).version(), _ids(copy)
        outcomes.add((version, tuple(ids)))
        assert ids == sorted(deltalake.DeltaTable(copy).to_pyarrow_table()["id"].to_pylist())
        if version == 0:
            assert "the same command deletes those that are still there" in result.output
            # The files of a commit that was on its way have to stay.
            assert in_commit or data_files(copy) == before, at
        _invoke(*asked)
        assert _ids(copy) == [1]
    assert outcomes == {(0, (1, 2, 3, 4)), (1, (1,))}


def test_delete_takes_what_deltalakes_takes() -> None:
    theirs, ours = (inspect.signature(each.DeltaTable.delete).parameters for each in (deltalake, lazydelta))
    assert [(each.name, each.kind, each.default) for each in ours.values() if each.name != "where"] == [
        (each.name, each.kind, each.default) for each in theirs.values()
    ]


def test_the_metrics_are_those_of_deltalake(table: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("theirs")
    deltalake.write_deltalake(other, lazydelta.DeltaTable(table).to_pyarrow_table(), partition_by=["p"])
    ours = lazydelta.DeltaTable(table).delete("id = 2 OR p = 'b'")
    theirs = deltalake.DeltaTable(other).delete("id = 2 OR p = 'b'")
    assert ours.keys() == theirs.keys()
    counted = ("num_deleted_rows", "num_copied_rows", "num_removed_files", "num_added_files")
    assert {key: ours[key] for key in counted} == {key: theirs[key] for key in counted}
