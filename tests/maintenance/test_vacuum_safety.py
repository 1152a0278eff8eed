"""Whatever stands in a log or lies in a store, VACUUM deletes nothing outside the table and nothing that is named."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from lazydelta.errors import WriteError
from lazydelta.maintenance.optimize import optimize
from lazydelta.maintenance.vacuum import VacuumResult, vacuum
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import observe, open_store
from lazydelta.write.row_changes.statements import delete_rows
from tests.maintenance.old_tables import NOW, OldTable, data_files
from tests.scan.hand_log import publish
from tests.write.commits import append, begin, commit_lines, new_table

HOSTILE = [
    "../precious.parquet",
    "_event_hour=h/../../precious.parquet",
    "%2e%2e/precious.parquet",
    "..%2Fprecious.parquet",
    "file:../precious.parquet",
    "file:///etc/passwd",
    "/etc/passwd",
    "s3://elsewhere/precious.parquet",
    "abfss://container@other.dfs.core.windows.net/precious.parquet",
    "s3:/bucket/precious.parquet",
    "a%00b",
    "%FF.parquet",
    "_delta_log/00000000000000000000.json",
    "https://account.blob.core.windows.net/c/precious.parquet?sig=secret",
]


def run(root: Path) -> VacuumResult:
    """Vacuum a table now NOW, and delete whatever may go at all."""
    handle = TableHandle.open(root)
    return vacuum(handle, retention=timedelta(0), enforce_retention=False, dry_run=False, now=NOW)


@pytest.mark.parametrize("path", HOSTILE)
def test_a_removed_file_of_a_hostile_path_leads_nowhere(tmp_path: Path, path: str) -> None:
    """Only what a listing of the table has shown is deleted; the log can but protect."""
    table = OldTable.simple(tmp_path / "table")
    precious = tmp_path / "precious.parquet"
    precious.write_bytes(b"precious")
    table.commit_at(20, table.remove(path, 20))
    asked: list[str] = []
    with observe(lambda request: asked.append(request.path) if request.verb == "DELETE" else None):
        run(table.table)
    assert precious.read_bytes() == b"precious"
    mine = {f"_event_hour=h/{name}.parquet" for name in ("gone", "lately", "orphan")}
    assert mine <= set(asked) <= {*mine, "_event_hour=h"}  # the folder, if it were empty
    assert (table.log / f"{0:020}.json").exists()


@pytest.mark.parametrize(
    "spelled",
    [
        "../table/_event_hour=h/orphan.parquet",
        "./_event_hour=h/./orphan.parquet",
        "_event_hour%3Dh/orphan.parquet",
        "x/../_event_hour=h/orphan.parquet",
        "file://{root}/_event_hour=h/orphan.parquet",
        "file:{root}/_event_hour=h/orphan.parquet",
        "{root}//_event_hour=h/orphan.parquet",
        "/another/mount/of/table/_event_hour=h/orphan.parquet",
        "abfss://c@alias.dfs.core.windows.net/table/_event_hour=h/orphan.parquet",
        "s3:/bucket/table/_event_hour=h/orphan.parquet",
    ],
)
def test_a_file_is_kept_however_the_log_spells_its_place(tmp_path: Path, spelled: str) -> None:
    table = OldTable.simple(tmp_path / "table")
    table.commit_at(1, table.add(spelled.replace("{root}", str(table.table))))
    assert sorted(run(table.table).paths) == ["_event_hour=h/gone.parquet", "_event_hour=h/lately.parquet"]
    assert "_event_hour=h/orphan.parquet" in data_files(table.table)


def test_a_percent_sign_that_was_never_encoded_keeps_its_file(tmp_path: Path) -> None:
    table = OldTable(tmp_path)
    table.put("50%25.parquet", 30)
    table.put("50%.parquet", 30)
    table.commit_at(30, table.add("50%25.parquet"))
    assert run(tmp_path).paths == []
    assert data_files(tmp_path) == {"50%25.parquet", "50%.parquet"}


# --- links


def test_links_lead_to_nothing_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.parquet").write_bytes(b"x")
    table = OldTable.simple(tmp_path / "table")
    (table.table / "linked").symlink_to(outside)
    (table.table / "file.parquet").symlink_to(outside / "precious.parquet")
    run(table.table)
    assert (outside / "precious.parquet").exists()
    assert (table.table / "file.parquet").is_symlink()


def test_files_that_the_log_knows_by_a_link_stay(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path / "table")
    table.put("real/x.parquet", 30)
    (table.table / "linked").symlink_to(table.table / "real")
    table.commit_at(20, table.add("linked/x.parquet"))
    run(table.table)
    assert (table.table / "linked" / "x.parquet").exists()


# --- other tables


def test_a_table_inside_the_table_is_left_alone(tmp_path: Path) -> None:
    outer = OldTable.simple(tmp_path)
    inner = OldTable.simple(tmp_path / "inner" / "table")
    (tmp_path / "inner" / "junk").write_bytes(b"x")
    outer.set_age("inner/junk", 30)
    assert "inner/junk" in run(tmp_path).paths
    assert len(data_files(inner.table)) == 4


def test_a_table_inside_a_table_of_a_store_is_left_alone(tmp_path: Path) -> None:
    OldTable.simple(tmp_path)
    OldTable.simple(tmp_path / "inner" / "table")
    uri = publish(tmp_path, "memory://nested/table")
    handle = TableHandle.open(uri)
    paths = vacuum(handle, retention=timedelta(0), enforce_retention=False, dry_run=False).paths
    assert len(paths) == 3
    assert not any(path.startswith("inner/") for path in paths)


def test_neighbours_whose_names_begin_alike_are_left_alone(tmp_path: Path) -> None:
    OldTable.simple(tmp_path)
    publish(tmp_path, "memory://alike/table")
    neighbour = open_store("memory://alike/table2")
    neighbour.put("x.parquet", b"x")
    open_store("memory://alike").put("table.parquet", b"x")
    vacuum(TableHandle.open("memory://alike/table"), retention=timedelta(0), enforce_retention=False, dry_run=False)
    assert neighbour.exists("x.parquet")
    assert open_store("memory://alike").exists("table.parquet")


def test_a_log_with_all_of_it_is_decoded(tmp_path: Path) -> None:
    """The hostile paths above are logs that can be read at all, so that the tests test something."""
    table = OldTable.simple(tmp_path)
    for path in HOSTILE:
        table.commit_at(20, table.remove(path, 20))
    lines = (table.log / f"{table.version:020}.json").read_text().splitlines()
    assert json.loads(lines[0])["remove"]["path"] == HOSTILE[-1]
    assert len(run(tmp_path).paths) == 3


# --- file systems that fold names


@pytest.mark.parametrize(("logged", "listed"), [("A", "a"), ("\u00e9", "E\u0301"), ("\u03a3", "\u03c2")])
def test_an_active_file_stays_that_a_file_system_lists_under_another_spelling(
    tmp_path: Path, logged: str, listed: str
) -> None:
    """Where folders fold case or accents, both partitions are one folder, which has the name of the first."""
    table = OldTable(tmp_path / "table")
    table.put(f"_event_hour={listed}/active.parquet", 30)
    table.put(f"_event_hour={listed}/orphan.parquet", 30)
    table.commit_at(30, table.add(quote(f"_event_hour={logged}/active.parquet", safe="/="), hour=logged))
    assert run(table.table).paths == [f"_event_hour={listed}/orphan.parquet"]


# --- clocks


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_file_that_was_removed_lately_stays_whatever_its_writers_clock_said(
    tmp_path: Path, *, checkpointed: bool
) -> None:
    table = OldTable.simple(tmp_path / "table")
    table.commit_at(1, table.remove("_event_hour=h/active.parquet", 11))
    if checkpointed:
        table.write_checkpoint(forget=lambda path: path.endswith("active.parquet"))
    result = vacuum(TableHandle.open(table.table), now=NOW)
    assert result.paths
    assert "_event_hour=h/active.parquet" not in result.paths


def test_a_clock_behind_the_newest_commit_is_refused(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path / "table")
    ahead = time.time() + 10 * 24 * 3600
    os.utime(table.log / f"{table.version:020}.json", (ahead, ahead))
    with pytest.raises(WriteError, match=r"clock of this machine is (9|10) days.* behind the newest commit"):
        vacuum(TableHandle.open(table.table), dry_run=False)


def test_removes_are_no_older_than_the_newest_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_table(tmp_path / "table")
    append(store, [1])
    append(store, [2])
    slow = time.time_ns() - 10 * 24 * 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: slow)
    begun = store.head(f"_delta_log/{2:020}.json").last_modified
    assert optimize(TableHandle.of(store)).version == 3
    assert delete_rows(TableHandle.of(store), "id < 10").version == 4
    append(store, [3])
    overwriting = begin(store)
    overwriting.remove_all()
    overwriting.commit()
    removed = [line["remove"] for version in (3, 4, 6) for line in commit_lines(store, version) if "remove" in line]
    assert len(removed) == 4
    assert all(each["deletionTimestamp"] >= begun for each in removed)
