"""VACUUM whose listing tasks of Spark do: the files that one process would delete, and errors as they are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from lazydelta.cli.app import cli
from lazydelta.errors import StorageError
from lazydelta.maintenance.vacuum import vacuum
from lazydelta.maintenance.vacuum_files import Listed, ListingJob
from lazydelta.sidecar.handle import TableHandle
from lazydelta.spark import vacuum_table
from lazydelta.spark.maintenance import listing_on_spark
from lazydelta.spark.session import active_session
from tests.maintenance.old_tables import NOW, data_files
from tests.maintenance.random_past import RandomHistory

pytestmark = [pytest.mark.xdist_group("spark")]


def test_tasks_find_what_one_walk_finds(spark: SparkSession, tmp_path: Path) -> None:
    deleted = 0
    for seed in range(3):
        root = RandomHistory(tmp_path / str(seed), seed).table.table
        (root / "_event_hour=empty").mkdir()
        os.utime(root / "_event_hour=empty", (1000, 1000))
        expected = vacuum(TableHandle.open(root), now=NOW)
        found = vacuum(TableHandle.open(root), now=NOW, lister=listing_on_spark(spark))
        assert sorted(found.paths) == sorted(expected.paths)
        assert (found.listed, found.kept, found.size_bytes) == (expected.listed, expected.kept, expected.size_bytes)
        before = data_files(root)
        done = vacuum_table(spark, root, retention=timedelta(0), enforce_retention=False, dry_run=False, many=1)
        assert data_files(root) == before - set(done.paths)
        assert "_event_hour=empty" in done.folders
        assert not (root / "_event_hour=empty").exists()
        deleted += len(done.paths)
    assert deleted > 5


def test_few_files_are_listed_here(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = RandomHistory(tmp_path / "t", 1).table.table

    def shared_out(job: ListingJob, enough: int) -> None:
        raise AssertionError(job, enough)

    monkeypatch.setattr(ListingJob, "folders", shared_out)
    assert vacuum_table(spark, root).listed > 0
    with pytest.raises(AssertionError):
        vacuum_table(spark, root, many=1)


class RefusedListing(ListingJob):
    """Folders that no task may list."""

    def below(self, folder: str = "") -> Iterator[Listed]:
        """Refuse."""
        raise StorageError(f"{folder} may not be listed", path=folder, hint="ask its owner")


def test_a_folder_that_a_task_cannot_list_is_an_error_of_ours_and_nothing_goes(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = RandomHistory(tmp_path / "t", 2).table.table
    before = data_files(root)

    def refused(job: ListingJob) -> Iterator[Listed]:
        return listing_on_spark(spark)(RefusedListing(job.store, job.names, job.cutoff, job.levels, job.kept))

    with pytest.raises(StorageError, match="may not be listed") as raised:
        vacuum(TableHandle.open(root), now=NOW, dry_run=False, lister=refused)
    # As it was raised, and not as a text of Spark's.
    assert raised.value.path is not None
    assert raised.value.hint == "ask its owner"
    assert data_files(root) == before


def test_the_command_lists_on_the_session_that_there_is(spark: SparkSession, tmp_path: Path) -> None:
    root = RandomHistory(tmp_path / "t", 3).table.table
    here = CliRunner().invoke(cli, ["vacuum", str(root), "--engine", "local", "--dry-run", "--json"])
    with active_session(spark):
        there = CliRunner().invoke(cli, ["vacuum", str(root), "--engine", "spark", "--dry-run", "--json"])
    assert here.exit_code == there.exit_code == 0, there.output
    one, other = json.loads(here.output), json.loads(there.output)
    assert sorted(one.pop("paths")) == sorted(other.pop("paths"))
    assert one.pop("cutoff") <= other.pop("cutoff")
    assert one == other
    assert spark.range(3).count() == 3  # it was not stopped
