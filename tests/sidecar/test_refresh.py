"""A refreshed sidecar is the one that a build would have made, and costs what the change costs."""

from __future__ import annotations

import importlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable as PeerTable

from lazydelta import sidecar
from lazydelta.errors import OptionError, StorageError
from lazydelta.sidecar import BuildResult
from lazydelta.sidecar.format.columns import FOLDER, manifest_path
from lazydelta.sidecar.format.manifest import Manifest
from lazydelta.storage import Request, observe
from lazydelta.testing import make_table
from tests.scan.hand_log import HandLog, add, remove, vector, watching
from tests.sidecar.conftest import Split
from tests.sidecar.refreshed import COLUMNS, HOURS, Hourly, file_in, gone_from, same
from tests.sidecar.sidecars import Place, rows

refreshing = importlib.import_module("lazydelta.sidecar.building.refresh")


@pytest.fixture
def any_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a change be as large as it likes: small tables change by more than a quarter easily."""
    monkeypatch.setattr(refreshing, "LARGEST_CHANGE", float("inf"))


@pytest.fixture
def hourly(tmp_path: Path, split: Split) -> Hourly:
    """Return the table of ten parts."""
    return Hourly(tmp_path / "t", split)


def test_appended_files_of_a_new_hour_leave_all_full_parts_as_they_are(hourly: Hourly) -> None:
    hourly.log.commit(*(file_in("2026021020", 1000 + number) for number in range(7)))
    result = hourly.refresh()
    assert (result.action, result.reused_parts, result.num_parts, result.num_files) == ("refreshed", 10, 11, 207)
    assert hourly.rewritten() == []
    hourly.check()


def test_a_last_part_that_is_not_full_takes_the_newest_files(hourly: Hourly) -> None:
    hourly.log.commit(*(file_in("2026021020", 1000 + number) for number in range(7)))
    hourly.refresh()
    first = hourly.parts()
    hourly.log.commit(*(file_in("2026021021", 2000 + number) for number in range(20)))
    result = hourly.refresh()
    assert (result.reused_parts, result.num_parts) == (10, 12)
    assert hourly.parts()[:10] == first[:10]
    hourly.check()


def test_a_removed_file_costs_the_part_that_it_was_in(hourly: Hourly) -> None:
    hourly.log.commit(gone_from(HOURS[7], 75))
    result = hourly.refresh()
    assert (result.action, result.reused_parts, result.num_files) == ("refreshed", 9, 199)
    assert hourly.rewritten() == [3]
    hourly.check()


def test_a_removed_file_whose_hour_is_not_told_costs_no_more(hourly: Hourly) -> None:
    """All parts are searched for it, by their paths; still only one is written again."""
    hourly.log.commit(remove("f00075"))
    assert hourly.refresh().reused_parts == 9
    assert hourly.rewritten() == [3]
    hourly.check()


def test_a_late_file_costs_the_part_of_its_hour(hourly: Hourly) -> None:
    """The part was full, and becomes two."""
    hourly.log.commit(file_in(HOURS[12], 1255))
    result = hourly.refresh()
    assert (result.reused_parts, result.num_parts) == (9, 11)
    assert hourly.rewritten() == [6]
    hourly.check()


def test_a_file_of_a_null_hour_goes_behind_all_others(hourly: Hourly) -> None:
    hourly.log.commit(file_in(None, 5000), file_in("", 5001))
    assert hourly.refresh().reused_parts == 10
    hourly.check()
    same(hourly.place, ("hour IS NULL",))


def test_an_updated_deletion_vector_replaces_the_file(hourly: Hourly) -> None:
    """Over two commits: the file is there once, with the last vector, in the part where it was."""
    hourly.log.commit(gone_from(HOURS[4], 41), file_in(HOURS[4], 41, vector=vector("one")))
    hourly.log.commit(gone_from(HOURS[4], 41, vector=vector("one")), file_in(HOURS[4], 41, vector=vector("two", 3)))
    result = hourly.refresh()
    assert (result.reused_parts, result.num_files) == (9, 200)
    assert hourly.rewritten() == [2]
    hourly.check()
    again = [file for file in hourly.place.open().files() if file.path == "f00041"]
    assert [file.deletion_vector["pathOrInlineDv"].lstrip("a") for file in again if file.deletion_vector] == ["two"]


def test_a_file_added_again_without_a_remove_has_its_new_statistics(hourly: Hourly) -> None:
    hourly.log.commit(file_in(HOURS[9], 95, ids=(7000, 7001)))
    result = hourly.refresh()
    assert (result.reused_parts, result.num_files) == (9, 200)
    hourly.check()
    assert [file.path for file in hourly.place.open().files("id = 7000")] == ["f00095"]


def test_a_file_spelled_in_another_way_or_moved_to_another_hour_is_there_once(hourly: Hourly) -> None:
    """Neither its key nor its partition tells where the old row lies: counting notices, and all parts are searched."""
    hourly.log.commit(
        add("f%30%30075", ids=(1, 2), partition={"hour": HOURS[7]}), file_in(HOURS[0], 135), gone_from(HOURS[19], 150)
    )
    result = hourly.refresh()
    assert (result.action, result.num_files) == ("refreshed", 199)
    assert hourly.rewritten() == [0, 3, 6, 7]
    hourly.check()


@pytest.mark.parametrize("hint", ["absent", "silent"])
def test_without_a_count_to_rely_on_nothing_is_overlooked(hourly: Hourly, hint: str) -> None:
    hourly.log.commit(file_in(HOURS[0], 135), file_in("2026021020", 1000))
    hourly.log.checkpoint()
    path = hourly.log.log / "_last_checkpoint"
    path.unlink()
    if hint == "silent":
        path.write_text('{"version": 1, "size": 205}')
    result = sidecar.refresh(hourly.place.uri)
    assert (result.action, result.num_files) == ("refreshed", 201)
    hourly.check()


def test_a_count_that_contradicts_the_commits_makes_it_a_build(hourly: Hourly) -> None:
    hourly.log.commit(file_in("2026021020", 1000))
    hourly.log.checkpoint()
    (hourly.log.log / "_last_checkpoint").write_text('{"version": 1, "size": 205, "numOfAddFiles": 77}')
    result = sidecar.refresh(hourly.place.uri)
    assert result.action == "built"
    assert result.reason == "the log counts 77 files and the commits make it 201"
    hourly.check()


def test_small_neighbours_are_merged_and_not_all_at_once(hourly: Hourly, any_change: None) -> None:
    """Four in five files go: parts of four rows remain, and one refresh merges them because all are written anyway."""
    hourly.log.commit(*(gone_from(HOURS[n // 10], n) for n in range(200) if n % 5))
    result = hourly.refresh()
    assert (result.num_files, result.num_parts, result.reused_parts) == (40, 2, 0)
    hourly.check()


def test_compaction_of_untouched_parts_is_bounded(tmp_path: Path, split: Split) -> None:
    """A sidecar in parts that are all too small: each refresh merges a few, until none is left to merge."""
    split(5, 1)
    log = HandLog(tmp_path / "t", COLUMNS, partitions=["hour"])
    log.commit(*(file_in(HOURS[number // 10], number) for number in range(200)))
    log.checkpoint()
    place = Place(str(tmp_path / "t"))
    counts = [sidecar.build(place.uri).num_parts]
    split(5, 4)
    for number in range(8):
        log.commit(file_in("2026021020", 1000 + number))
        log.checkpoint()
        result = sidecar.refresh(place.uri)
        assert result.action == "refreshed"
        counts.append(result.num_parts)
    assert counts[0] == 40
    assert counts == sorted(counts, reverse=True)
    # Two full parts' worth of rows that nothing else touches, so eight old parts become two.
    assert all(before - after <= 8 for before, after in pairwise(counts))
    assert counts[-1] <= 13
    same(place)


def test_a_long_manifest_stays_right_although_it_leaves_row_groups_to_the_footers(
    hourly: Hourly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("lazydelta.sidecar.format.manifest"), "MANIFEST_LIMIT", 12_000)
    for number in range(2):
        hourly.log.commit(gone_from(HOURS[7], 75 + number))
        assert hourly.refresh().reused_parts == 9
        manifest = Manifest.decode(hourly.place.store.get(manifest_path(hourly.log.version)))
        assert (manifest.row_groups, manifest.num_row_groups) == ((), 40)
        hourly.check()
        assert sidecar.show(hourly.place.uri).num_row_groups == 40


def test_untouched_parts_are_not_read(hourly: Hourly) -> None:
    hourly.log.commit(gone_from(HOURS[7], 75), file_in("2026021020", 1000))
    hourly.log.checkpoint()
    old = hourly.parts(0)
    with watching() as watch:
        assert sidecar.refresh(hourly.place.uri).reused_parts == 9
    read = {number for number, part in enumerate(old) if watch.count(part)}
    assert read == {3}


def test_the_cost_does_not_grow_with_the_table(tmp_path: Path, split: Split) -> None:
    """The same ten commits on a table four times as large make as many requests and write as many bytes."""
    split(500, 4)
    moved, counts = [], []
    for files in (8_000, 32_000):
        path = tmp_path / str(files)
        made = make_table(path, files=files, tail=10, columns=3, hours=files // 100)
        sidecar.build(path)
        PeerTable(path).create_checkpoint()
        requests: list[Request] = []
        with observe(requests.append):
            result = sidecar.refresh(path)
        assert (result.action, result.num_files) == ("refreshed", made.num_files)
        touched = [each for each in requests if FOLDER in each.path and each.path.endswith(".parquet")]
        moved.append(sum(each.length or 0 for each in touched if each.verb == "PUT"))
        counts.append(len(requests))
    assert counts[0] == counts[1]
    assert moved[1] < 1.1 * moved[0]


def test_transactions_and_domains_are_those_of_the_checkpoint(hourly: Hourly) -> None:
    log = hourly.log
    log.commit({"txn": {"appId": "a", "version": 1}}, {"txn": {"appId": "b", "version": 5}})
    log.commit({"domainMetadata": {"domain": "x", "configuration": "1", "removed": False}})
    hourly.refresh()
    log.commit({"txn": {"appId": "a", "version": 2}}, file_in(HOURS[3], 900))
    log.commit({"domainMetadata": {"domain": "x", "configuration": "1", "removed": True}})
    log.commit(
        {"txn": {"appId": "a", "version": 3}},
        {"domainMetadata": {"domain": "y", "configuration": "2", "removed": False}},
    )
    assert hourly.refresh().action == "refreshed"
    manifest = Manifest.decode(hourly.place.store.get(manifest_path(log.version)))
    assert {each.app_id: each.version for each in manifest.txn} == {"a": 3, "b": 5}
    assert [each.domain for each in manifest.domain_metadata] == ["y"]
    hourly.check()


def test_tags_and_row_ids_of_new_files_are_kept(hourly: Hourly) -> None:
    action = file_in(HOURS[3], 900)
    action["add"] |= {
        "tags": {"k": "v", "a": None},
        "baseRowId": 77,
        "defaultRowCommitVersion": 1,
        "clusteringProvider": "z",
    }
    hourly.log.commit(action)
    assert hourly.refresh().action == "refreshed"
    hourly.check()
    batch = next(part for part in _parquet_rows(hourly) if "f00900" in part.column("path").to_pylist())
    row = next(row for row in batch.to_pylist() if row["path"] == "f00900")
    assert (row["base_row_id"], row["default_row_commit_version"], row["clustering_provider"]) == (77, 1, "z")
    assert dict(row["tags"]) == {"k": "v", "a": None}


def _parquet_rows(hourly: Hourly) -> Iterator[pa.Table]:
    parquet = importlib.import_module("pyarrow.parquet")
    for part in hourly.parts():
        yield parquet.read_table(pa.BufferReader(hourly.place.store.get(part)))


# --- when everything is built anew


def _changed_metadata(hourly: Hourly) -> None:
    hourly.log.columns["new"] = "long"
    hourly.log.commit(hourly.log.metadata(), file_in(HOURS[0], 999))


def _commit_gone(hourly: Hourly) -> None:
    for number in (901, 902):
        hourly.log.commit(file_in(HOURS[0], number))
    hourly.log.checkpoint()
    (hourly.log.log / f"{1:020d}.json").unlink()


def _part_gone(hourly: Hourly) -> None:
    hourly.log.commit(file_in(HOURS[0], 901))
    hourly.place.store.delete(hourly.parts(0)[4])


def _part_torn(hourly: Hourly) -> None:
    hourly.log.commit(file_in(HOURS[0], 901))
    path = hourly.parts(0)[4]
    hourly.place.store.put(path, hourly.place.store.get(path)[:-1])


def _part_to_rewrite_damaged(hourly: Hourly) -> None:
    """Flip a bit in the middle of the very part that has to be read."""
    hourly.log.commit(gone_from(HOURS[7], 75))
    path = hourly.parts(0)[3]
    data = bytearray(hourly.place.store.get(path))
    data[len(data) // 3] ^= 4
    hourly.place.store.put(path, bytes(data))


def _too_much(hourly: Hourly) -> None:
    hourly.log.commit(*(gone_from(HOURS[n // 10], n) for n in range(60)))


def _rewound(hourly: Hourly) -> None:
    """Write the checkpoint that the sidecar mirrors again, of the same version and other files."""
    (hourly.log.log / f"{0:020d}.json").unlink()
    hourly.log.version = -1
    hourly.log.commit(*(file_in(HOURS[number // 10], number + 1) for number in range(90)))
    hourly.log.checkpoint()
    hourly.log.commit(file_in(HOURS[0], 901))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_changed_metadata, "metadata changed"),
        (_commit_gone, "commit 1 is missing"),
        (_part_gone, "parts of it are missing"),
        (_part_torn, "parts of it are missing or were replaced"),
        (_part_to_rewrite_damaged, "cannot be read|row group"),
        (_too_much, "of 200 files changed"),
        (_rewound, "the checkpoint that it mirrors is missing or was replaced"),
    ],
)
def test_what_a_refresh_cannot_do_is_built_anew_with_a_reason(hourly: Hourly, change: Any, reason: str) -> None:
    change(hourly)
    hourly.log.checkpoint()
    result = sidecar.refresh(hourly.place.uri)
    assert result.action == "built"
    assert re.search(reason, result.reason or "")
    hourly.check()


def test_the_first_sidecar_is_built_and_the_second_refresh_does_nothing(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", COLUMNS, partitions=["hour"])
    log.commit(file_in(HOURS[0], 1))
    log.checkpoint()
    first, second = sidecar.refresh(tmp_path / "t"), sidecar.refresh(tmp_path / "t")
    assert (first.action, first.reason) == ("built", "there is no earlier sidecar")
    assert (second.action, second.reason) == ("already-valid", None)


def test_an_older_sidecar_serves_where_the_newest_is_damaged(hourly: Hourly) -> None:
    hourly.log.commit(file_in("2026021020", 1000))
    hourly.refresh()
    hourly.place.store.put(manifest_path(1), b"{}")
    hourly.log.commit(gone_from(HOURS[7], 75))
    assert hourly.refresh().action == "refreshed"
    assert hourly.rewritten() == [3]
    hourly.check()


def test_a_table_without_a_checkpoint_cannot_be_refreshed(tmp_path: Path) -> None:
    HandLog(tmp_path / "t", COLUMNS, partitions=["hour"]).commit(file_in(HOURS[0], 1))
    with pytest.raises(OptionError, match="no complete checkpoint"):
        sidecar.refresh(tmp_path / "t")


# --- memory, crashes, races


def test_a_change_beyond_the_memory_budget_goes_through_temporary_files(
    hourly: Hourly, any_change: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = importlib.import_module("lazydelta.sidecar.building.refresh")
    spilled: list[int] = []
    spill = changes.RowSpool._spill

    def noted(spool: Any) -> None:
        spilled.append(len(spool))
        spill(spool)

    monkeypatch.setattr(changes.RowSpool, "_spill", noted)
    for start in range(6):
        hourly.log.commit(*(file_in(f"20260211{(start * 7 + n) % 24:02d}", 1000 + start * 30 + n) for n in range(30)))
    hourly.log.checkpoint()
    result = sidecar.refresh(hourly.place.uri, memory_budget=50 * 10 * 400)
    assert (result.action, result.num_files, result.reused_parts) == ("refreshed", 380, 10)
    assert len(spilled) == 3
    hourly.check()


def test_a_refresh_that_dies_at_any_write_changes_nothing_for_readers(hourly: Hourly) -> None:
    """Whichever write never happened: the log's answer, and the next refresh reuses what it would have."""
    hourly.log.commit(gone_from(HOURS[7], 75), file_in(HOURS[12], 1255), file_in("2026021020", 1000))
    hourly.log.checkpoint()
    before = set(hourly.place.sidecars())
    answer = hourly.place.answer()
    for timestamp in range(5):
        writes = 0

        def die(request: Request, timestamp: int = timestamp) -> None:
            nonlocal writes
            if request.verb == "PUT":
                writes += 1
                if writes > timestamp:
                    message = "the power is gone"
                    raise StorageError(message)

        with observe(die), pytest.raises(StorageError):
            sidecar.refresh(hourly.place.uri)
        assert rows(hourly.place.open())[0] == answer
        sidecar.clean(hourly.place.uri, grace_hours=0)
        assert set(hourly.place.sidecars()) == before
    assert sidecar.refresh(hourly.place.uri).reused_parts == 8
    hourly.check()


@pytest.mark.parametrize("earlier", [False, True], ids=["build", "refresh"])
def test_builders_at_the_same_time_leave_one_valid_sidecar(tmp_path: Path, split: Split, earlier: bool) -> None:  # noqa: FBT001
    """Four at once, ten times over: each reports a success, one manifest wins, and nothing else is left behind."""
    hourly = Hourly(tmp_path / "t", split)
    actions: Counter[str] = Counter()
    for number in range(10):
        hourly.log.commit(file_in(HOURS[number], 900 + number))
        hourly.log.checkpoint()
        if not earlier:
            sidecar.drop(hourly.place.uri)
        barrier = threading.Barrier(4)
        results: list[BuildResult] = []

        def work(barrier: threading.Barrier = barrier, results: list[BuildResult] = results) -> None:
            barrier.wait()
            results.append(sidecar.refresh(hourly.place.uri))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 4
        actions.update(result.action for result in results)
        assert sum(result.action in {"built", "refreshed"} for result in results) == 1
    hourly.check()
    manifests = [path for path in hourly.place.sidecars() if path.endswith(".json")]
    needed = {part.file for path in manifests for part in Manifest.decode(hourly.place.store.get(path)).parts}
    assert set(hourly.place.parquets()) == needed
    assert actions["already-valid"] == 30
