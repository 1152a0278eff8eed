"""``lazydelta optimize``, and the parameters of deltalake's ``compact``."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake.table import TableOptimizer as Theirs

import lazydelta
from lazydelta.cli.app import cli
from lazydelta.deltalake_names.maintenance import TableOptimizer

if TYPE_CHECKING:
    from click.testing import Result


def _invoke(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(each) for each in arguments], prog_name="lazydelta")
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table of three files in each of two partitions."""
    for number in range(3):
        rows = pa.table({"p": ["a", "b"], "id": pa.array([9 - number, number])})
        lazydelta.write_arrow(tmp_path, rows, partition_by=["p"])
    return tmp_path


def test_it_says_what_became_of_the_files(table: Path) -> None:
    assert "6 files in 2 partitions, " in _invoke("optimize", table, "--dry-run").output
    assert lazydelta.DeltaTable(table).version() == 2
    said = _invoke("optimize", table).output
    assert said.startswith("Version 3: 6 files in 2 partitions, ")
    assert " became 2, " in said
    assert _invoke("optimize", table).output == "Nothing to pack: 2 files were considered\n"


def test_json_has_all_of_it(table: Path) -> None:
    found = json.loads(_invoke("optimize", table, "--json", "--where", "p = 'a'").output)
    assert (found["version"], found["partitions"], found["considered"], found["conflicts"]) == (3, 1, 3, 0)
    assert found["removed"]["count"] == 3
    assert found["added"]["count"] == 1
    assert found["added"]["total"] == found["added"]["most"]


def test_rows_are_sorted_on_demand(table: Path) -> None:
    _invoke("optimize", table, "--sort-by", "id", "--target-size", "1", "--memory", "1")
    for file in lazydelta.DeltaTable(table).files():
        ids = pq.read_table(table / file.path).column("id").to_pylist()
        assert ids == sorted(ids)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--where", "id = 1", "partition columns only"), ("--sort-by", "x", "no column"), ("--target-size", "0", "range")],
)
def test_what_makes_no_sense_is_refused(table: Path, option: str, value: str, said: str) -> None:
    assert said in _invoke("optimize", table, option, value, code=2).output
    assert lazydelta.DeltaTable(table).version() == 2


def test_compact_takes_what_deltalakes_takes() -> None:
    theirs, ours = inspect.signature(Theirs.compact).parameters, inspect.signature(TableOptimizer.compact).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, each in theirs.items():
        assert repr(ours[name].default) == repr(each.default), name


def test_few_files_are_packed_here_though_there_is_a_cluster(table: Path) -> None:
    """No server listens at that master: it is not asked."""
    found = json.loads(_invoke("optimize", table, "--master", "spark://127.0.0.1:1", "--json").output)
    assert (found["removed"]["count"], found["added"]["count"]) == (6, 2)


def test_a_master_makes_no_sense_for_work_in_this_process(table: Path) -> None:
    said = _invoke("optimize", table, "--engine", "local", "--master", "local[2]", code=2).output
    assert "--master and --conf cannot be used with --engine local." in said
    assert lazydelta.DeltaTable(table).version() == 2
