"""OPTIMIZE by tasks of Spark: the rows of the table, and as few files as one process leaves."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import lazydelta
from lazydelta.cli.app import cli
from lazydelta.errors import DataFileError
from lazydelta.spark import optimize_table
from lazydelta.spark.session import active_session
from tests.maintenance.deleted_rows import delete_rows
from tests.maintenance.old_tables import data_files
from tests.oracle.replay import replay

pytestmark = [pytest.mark.xdist_group("spark")]

PARTITIONS = ["a", "b/ü", None]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table with three partitions of three files, of which some rows are deleted by vectors."""
    root = tmp_path / "t"
    for number in range(3):
        rows = pa.table({"p": PARTITIONS * 2, "id": pa.array(range(number * 6, number * 6 + 6), pa.int64())})
        properties = {"delta.enableDeletionVectors": "true"}
        lazydelta.write_arrow(root, rows, partition_by=["p"], properties=properties, maintain=False)
    delete_rows(root, lazydelta.DeltaTable(root).files().collect()[0], [1])
    return root


def _ids(root: Path) -> list[int]:
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(root))
    return sorted(pa.table(builder.execute("SELECT id FROM t").read_all()).column("id").to_pylist())


def test_tasks_pack_what_one_process_would(spark: SparkSession, table: Path) -> None:
    expected = _ids(table)
    before = data_files(table)
    assert optimize_table(spark, table, dry_run=True).removed.count == 9
    assert data_files(table) == before
    done = optimize_table(spark, table)
    assert (done.removed.count, done.added.count, done.commits) == (9, 3, 1)
    assert _ids(table) == expected
    active = replay(table / "_delta_log").files
    assert len(active) == 3
    new = {each for each in data_files(table) - before if each.endswith(".parquet")}
    assert new == {path for path, _ in active}
    assert optimize_table(spark, table).version is None


def test_the_command_takes_the_session_that_there_is(spark: SparkSession, table: Path) -> None:
    expected = _ids(table)
    with active_session(spark):
        ran = CliRunner().invoke(cli, ["optimize", str(table), "--engine", "spark", "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.output)["added"]["count"] == 3
    assert _ids(table) == expected
    assert spark.range(3).count() == 3  # it was not stopped


def test_a_task_that_fails_for_good_leaves_nothing(spark: SparkSession, table: Path) -> None:
    path = next(each for each in sorted(data_files(table)) if each.endswith(".parquet"))
    (table / path).write_bytes(b"no Parquet")
    before = data_files(table)
    with pytest.raises(DataFileError):
        optimize_table(spark, table)
    assert data_files(table) == before
