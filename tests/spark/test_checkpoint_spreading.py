"""A checkpoint by tasks of Spark: the table that one process describes, and an error of ours if one of them fails."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import lazydelta
from lazydelta import DeltaTable
from lazydelta.cli.app import cli
from lazydelta.errors import LazyDeltaError
from lazydelta.spark import checkpoint_table
from lazydelta.spark.session import active_session
from lazydelta.storage import open_store
from lazydelta.write.checkpoint.writer import write_checkpoint, write_last_checkpoint
from tests.write.test_spread_checkpoint import only_parts, parts

pytestmark = [pytest.mark.xdist_group("spark")]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table with a checkpoint of several row groups, and commits behind it that add and remove."""
    root = tmp_path / "t"
    for number in range(4):
        rows = pa.table({"id": range(number * 50, number * 50 + 50), "p": [f"{each % 10}" for each in range(50)]})
        lazydelta.write_arrow(root, rows, partition_by=["p"], maintain=False)
    write_last_checkpoint(open_store(root), write_checkpoint(open_store(root), memory_budget=6))
    rows = pa.table({"id": [1000], "p": ["3"]})
    lazydelta.write_arrow(root, rows, mode="overwrite", overwrite_where="p = '3'", maintain=False)
    return root


EXPECTED = sorted([1000, *(each for each in range(200) if each % 10 != 3)])


def test_tasks_write_what_one_process_would(spark: SparkSession, table: Path) -> None:
    done = checkpoint_table(spark, table, files_per_part=1)
    assert done.action == "written"
    assert done.parts == len(parts(table, 4)) > 4
    assert done.num_of_add_files == 37
    hint = json.loads((table / "_delta_log" / "_last_checkpoint").read_text())
    assert (hint["version"], hint["parts"]) == (4, done.parts)
    only_parts(table, 4)
    assert sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist()) == EXPECTED
    assert sorted(pa.table(deltalake.DeltaTable(table).to_pyarrow_table())["id"].to_pylist()) == EXPECTED
    assert (table / "_delta_log" / "_sidecars" / "v4.manifest.json").exists()
    assert checkpoint_table(spark, table, files_per_part=1).action == "already-there"


def test_a_task_that_fails_is_an_error_of_ours_and_nothing_counts(spark: SparkSession, table: Path) -> None:
    [base] = (table / "_delta_log").glob("*.checkpoint.parquet")
    data = bytearray(base.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 400] = bytes(400)
    base.write_bytes(bytes(data))
    with pytest.raises(LazyDeltaError, match=r"checkpoint\.parquet"):
        checkpoint_table(spark, table, files_per_part=1)
    assert {path.name.split(".")[2] for path in parts(table, 4)} <= {f"{1:010d}"}


def test_the_command_takes_the_session_that_there_is(spark: SparkSession, table: Path) -> None:
    with active_session(spark):
        ran = CliRunner().invoke(cli, ["checkpoint", str(table), "--engine", "spark", "--json"])
    assert ran.exit_code == 0, ran.output
    # So few files are not worth parts.
    assert (json.loads(ran.output)["action"], json.loads(ran.output)["parts"]) == ("written", None)
    assert sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist()) == EXPECTED
    assert spark.range(3).count() == 3
