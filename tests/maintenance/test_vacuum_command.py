"""``lazydelta vacuum`` and ``--within-retention``."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner

from lazydelta import DeltaTable, RetentionWarning, write_arrow
from lazydelta.cli.app import cli
from lazydelta.errors import DataFileError, RetentionGuardError
from lazydelta.log.snapshot import open_snapshot
from lazydelta.scan.request import table_retention_guard
from lazydelta.storage import Request, observe, open_store
from tests.maintenance.old_tables import NOW, OldTable, data_files, days, milliseconds
from tests.scan.hand_log import watching

if TYPE_CHECKING:
    from click.testing import Result


def _invoke(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(each) for each in arguments], prog_name="lazydelta")
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def table(tmp_path: Path) -> OldTable:
    """Return a table of which two files may go by its own retention; NOW is long past."""
    made = OldTable.simple(tmp_path / "table", configuration={"delta.deletedFileRetentionDuration": "interval 1 days"})
    now = datetime.now(UTC)
    for name, age in (("lately", 0.0), ("active", 0.0)):
        os.utime(made.table / "_event_hour=h" / f"{name}.parquet", ((now - timedelta(days=age)).timestamp(),) * 2)
    return made


def test_a_dry_run_lists_what_would_go(table: OldTable) -> None:
    before = data_files(table.table)
    shown = _invoke("vacuum", table.table, "--dry-run").output
    assert "_event_hour=h/gone.parquet\n" in shown
    assert "2 files would be deleted, 8 B; what was removed since 20" in shown
    assert data_files(table.table) == before


def test_json_has_all_of_it(table: OldTable) -> None:
    found = json.loads(_invoke("vacuum", table.table, "--json").output)
    assert sorted(found["paths"]) == ["_event_hour=h/gone.parquet", "_event_hour=h/orphan.parquet"]
    assert (found["dry_run"], found["retention_hours"], found["size_bytes"]) == (False, 24.0, 8)
    assert (found["listed"], found["kept"], found["failed"]) == (4, 1, [])
    assert len(data_files(table.table)) == 2


@pytest.mark.parametrize(("text", "hours"), [("48h", 48), ("2d", 48), ("1.5w", 252), ("interval 3 days", 72)])
def test_a_retention_has_a_unit(table: OldTable, text: str, hours: float) -> None:
    found = json.loads(_invoke("vacuum", table.table, "--json", "--dry-run", "--retention", text).output)
    assert found["retention_hours"] == hours


@pytest.mark.parametrize("text", ["7", "x", "-1h", "1 fortnight", "9e99h", "99999999999999w"])
def test_a_retention_without_sense_is_refused(table: OldTable, text: str) -> None:
    assert "168h" in _invoke("vacuum", table.table, "--retention", text, code=2).output
    assert len(data_files(table.table)) == 4


def test_a_short_retention_needs_a_word(table: OldTable) -> None:
    assert "shorter than the 24 hours" in _invoke("vacuum", table.table, "--retention", "1h", code=2).output
    assert len(data_files(table.table)) == 4
    _invoke("vacuum", table.table, "--retention", "1h", "--no-retention-check", "--keep-version", "0")
    assert len(data_files(table.table)) == 3


def test_a_file_that_stays_against_our_will_is_an_error(table: OldTable) -> None:
    def refuse(request: Request) -> None:
        if request.verb == "DELETE" and "gone" in request.path:
            raise PermissionError(13, "not yours")

    with observe(refuse):
        result = _invoke("vacuum", table.table, "--json", code=2)
    assert "could not be deleted" in result.output
    assert _invoke("vacuum", table.table).output.startswith("_event_hour=h/gone.parquet\n")


# --- jobs that failed before their table was there


def _left_by_a_job(root: Path) -> set[str]:
    """Write a table and take its log away; return the files that are left."""
    rows = pa.table({"p": ["a", None], "id": pa.array([1, 2])})
    write_arrow(root, rows, partition_by=["p"])
    shutil.rmtree(root / "_delta_log")
    left = data_files(root)
    for path in left:
        os.utime(root / path, (1000, 1000))
    return left


def test_what_a_failed_job_left_is_cleared_away(tmp_path: Path) -> None:
    left = _left_by_a_job(tmp_path)
    strange = {"precious.parquet", "p=a/data.csv", "other/part-00000-x.parquet"}
    for path in strange:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(b"x")
        os.utime(tmp_path / path, (1000, 1000))
    assert "2 files would be deleted" in _invoke("vacuum", tmp_path, "--without-log", "--dry-run").output
    assert data_files(tmp_path) == left | strange
    found = json.loads(_invoke("vacuum", tmp_path, "--without-log", "--json").output)
    assert set(found["paths"]) == left
    assert data_files(tmp_path) == strange


def test_young_files_of_a_job_stay(tmp_path: Path) -> None:
    left = _left_by_a_job(tmp_path)
    for path in left:
        os.utime(tmp_path / path)
    _invoke("vacuum", tmp_path, "--without-log")
    assert "shorter" in _invoke("vacuum", tmp_path, "--without-log", "--retention", "0h", code=2).output
    assert data_files(tmp_path) == left


def test_a_place_with_a_log_is_refused(table: OldTable) -> None:
    said = _invoke("vacuum", table.table, "--without-log", "--retention", "0h", "--no-retention-check", code=2).output
    assert "There is a log" in said
    assert len(data_files(table.table)) == 4


# --- the guard of scans


def test_the_guard_refuses_a_version_whose_successor_is_older_than_the_retention(tmp_path: Path) -> None:
    """Versions were written 30, 10 and 3 days ago: the first was replaced before the 7 days of the retention."""
    table = OldTable.simple(tmp_path)
    store = open_store(tmp_path)
    for version, passes in ((0, False), (1, True), (2, True)):
        guard = table_retention_guard(open_snapshot(store, version=version), now=NOW)
        if passes:
            assert guard(0, 0)
        else:
            with pytest.raises(RetentionGuardError, match=r"Version 0 of .* was replaced 10 days"):
                guard(0, 0)
    assert table.version == 2


def test_the_newest_version_passes_however_old_it_is(tmp_path: Path) -> None:
    OldTable.simple(tmp_path)
    now = NOW + timedelta(days=10_000)
    assert table_retention_guard(open_snapshot(open_store(tmp_path)), now=now)(0, 0)


def test_commits_that_carry_their_time_are_believed(tmp_path: Path) -> None:
    table = OldTable(tmp_path)
    table.commit_at(0)
    table.commit_at(0)
    commit = table.log / f"{1:020}.json"
    commit.write_text(json.dumps({"commitInfo": {"inCommitTimestamp": milliseconds(days(8))}}) + "\n")
    with pytest.raises(RetentionGuardError):
        table_retention_guard(open_snapshot(open_store(tmp_path), version=0), now=NOW)(0, 0)


def test_time_travel_to_such_a_version_warns_and_strict_refuses(tmp_path: Path) -> None:
    OldTable.simple(tmp_path)
    old = DeltaTable(tmp_path, 0)
    with pytest.warns(RetentionWarning, match=r"delta\.deletedFileRetentionDuration"):
        assert old.files().collect()
    with pytest.warns(RetentionWarning, match="VACUUM may have deleted some"), contextlib.suppress(DataFileError):
        old.to_arrow()
    with pytest.raises(RetentionGuardError, match="VACUUM may have deleted some"):
        old.files(strict=True).collect()
    newest = DeltaTable(tmp_path)
    assert newest.files(strict=True).collect()
    assert DeltaTable(tmp_path, newest.version()).files(strict=True).collect()


def test_a_young_version_costs_no_look_at_the_log(tmp_path: Path) -> None:
    for number in range(3):
        write_arrow(tmp_path, pa.table({"a": [number]}), maintain=False)
    young = DeltaTable(tmp_path, 1)
    with watching() as watch:
        assert len(young.files(strict=True).collect()) == 2
    assert watch.count(verb="LIST") == 0


@pytest.mark.parametrize("command", ["files", "explain"])
def test_the_command_refuses_such_versions_on_demand(tmp_path: Path, command: str) -> None:
    OldTable.simple(tmp_path)
    _invoke(command, tmp_path, "--version", "0")
    _invoke(command, tmp_path, "--within-retention")
    assert (
        "VACUUM may have deleted some"
        in _invoke(command, tmp_path, "--version", "0", "--within-retention", code=2).output
    )


def test_a_guarded_scan_of_an_old_version_fails_before_its_first_file(tmp_path: Path) -> None:
    OldTable.simple(tmp_path)
    old = DeltaTable(tmp_path, 0)
    with pytest.raises(RetentionGuardError):
        next(iter(old.files(retention_guard=old.retention_guard())))
    newest = DeltaTable(tmp_path)
    assert len(newest.files(retention_guard=newest.retention_guard()).collect()) == 1
