"""The options of every write: one field each, for every caller."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lazydelta
from lazydelta.errors import OptionError
from lazydelta.storage import open_store
from lazydelta.write.job import WriteJob
from lazydelta.write.options import WriteOptions

DOCS = Path(__file__).resolve().parents[2] / "docs" / "spark-reference.md"
ROWS = pa.table({"id": [1, 2]})
# Something other than the default for each.
GIVEN: dict[str, Any] = {
    "timestamp_column": "at",
    "boundary": "day",
    "partition_column": "_day",
    "partition_format": "%Y-%m-%d",
    "partition_generated": True,
    "partition_by": ("a, b", "c`d"),
    "target_file_size": 1 << 20,
    "memory_budget": 1 << 21,
    "stats_columns": ("id", "at"),
    "compression": "snappy",
    "null_timestamps": "reject",
    "rejected_table": "aside",
    "max_rejected": "1%",
    "merge_schema": True,
    "overwrite_where": "id = 1",
    "app_id": "x",
    "app_version": 0,
    "maintain": False,
    "max_attempts": 3,
    "user_metadata": "noted",
    "create_only": True,
    "name": "n",
    "description": "d",
    "properties": {"delta.checkpointInterval": "7"},
    "storage_options": {"account_name": "corp"},
}
# What cannot stand beside a predicate, nor beside each other.
ALONE: tuple[dict[str, Any], ...] = ({"overwrite_schema": True}, {"partition_overwrite_mode": "dynamic"})
NAMES = set(GIVEN).union(*ALONE)


@pytest.mark.parametrize("alone", [{}, *ALONE], ids=str)
def test_every_option_passes_through_spark_by_the_name_that_the_docs_give_it(alone: dict[str, Any]) -> None:
    assert {each.name for each in fields(WriteOptions)} == NAMES
    chosen = {name: value for name, value in GIVEN.items() if not alone or name != "overwrite_where"} | alone
    given = WriteOptions(**chosen)
    passed = given.to_spark()
    assert len(passed) == len(chosen)
    assert WriteOptions.from_spark({name.lower(): text for name, text in passed.items()}) == given
    docs = DOCS.read_text(encoding="utf-8")
    assert [name for name in passed if "." not in name and f"`{name}`" not in docs] == []


def test_write_arrow_takes_every_option_that_it_can_do_something_with_and_shows_it() -> None:
    shown = inspect.signature(lazydelta.write_arrow).parameters
    others = {"merge_schema", "max_rejected", "rejected_table"}
    assert set(shown) == {"uri", "data", "mode", "schema_mode"} | (NAMES - others)
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in list(shown.values())[2:])


@pytest.mark.parametrize("options", [{"max_rejected": 1}, {"rejected_table": "aside"}])
def test_write_arrow_puts_no_rows_aside(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="not set aside"):
        lazydelta.write_arrow(tmp_path / "t", ROWS, **options)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("given", [pc.field("id") == 1, [("id", "=", 1)]])
def test_a_predicate_that_is_no_text_cannot_be_passed_through_spark(given: Any) -> None:
    with pytest.raises(OptionError, match=r"replaceWhere=.* is not a string"):
        WriteOptions(overwrite_where=given).to_spark()


def test_attempts_that_make_no_sense_are_refused_before_a_file_is_written(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="max_attempts=0"):
        lazydelta.write_arrow(tmp_path / "t", ROWS, max_attempts=0)
    assert not (tmp_path / "t").exists()


def test_a_job_is_sent_without_its_store_and_goes_on_where_it_arrives(tmp_path: Path) -> None:
    job = WriteJob.prepare(str(tmp_path / "t"), ROWS.schema, WriteOptions())
    assert job.store is job.store
    arrived = pickle.loads(pickle.dumps(job))  # noqa: S301
    assert "store" not in vars(arrived)
    result = pickle.loads(pickle.dumps(arrived.write(ROWS.to_batches())))  # noqa: S301
    done = job.commit([result])
    assert (done.version, done.rows, done.rejected_commit) == (0, 2, None)
    assert lazydelta.DeltaTable(tmp_path / "t").to_pyarrow_table().num_rows == 2


def test_a_job_says_what_it_committed_to_the_table_of_rejected_rows(tmp_path: Path) -> None:
    rows = pa.table({"at": pa.array([0, None], pa.timestamp("us", "UTC"))})
    options = WriteOptions(timestamp_column="at", null_timestamps="reject")
    job = WriteJob.prepare(str(tmp_path / "t"), rows.schema, options)
    done = job.commit([job.write(rows.to_batches())])
    assert done.rejected == 1
    assert done.rejected_commit is not None
    assert (done.rejected_commit.version, done.rejected_commit.already_committed) == (0, False)
    assert open_store(tmp_path / "t_rejected").exists(f"_delta_log/{0:020}.json")
