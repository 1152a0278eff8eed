"""Writers whose snapshot was left behind: the log after it was checkpointed and cleaned up meanwhile."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

import lazydelta
from lazydelta.errors import (
    CommitConflictError,
    CorruptLogError,
    MissingCommitError,
    RetentionGuardError,
    StorageError,
    VersionNotFoundError,
)
from lazydelta.maintenance.after_commit import checkpoint_at, clean_log
from lazydelta.maintenance.optimize import optimize
from lazydelta.maintenance.vacuum_files import KeptFiles, keep_committed
from lazydelta.protocol.actions import Txn
from lazydelta.scan.request import table_retention_guard
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, Store, observe
from lazydelta.write import publication
from lazydelta.write.file_commit import stage_files
from tests.write.commits import append, begin, files, new_table, put_file, removal, rows, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Give a table with two rows, at version 2."""
    store = new_table(tmp_path / "table")
    append(store, [1])
    append(store, [2])
    return store


def _overtake(store: Store, commits: int = 4, *, removed: int = 0) -> bool:
    """Commit so often, write a checkpoint of the newest version, and clean up everything below it.

    ``removed`` counts the commits that were made beside, by this other writer as well.
    """
    handle = TableHandle.open(store.uri)
    for number in range(commits):
        append(handle.store, [100 + number])
    checkpoint_at(handle.store, handle.newest().version)
    clean_log(handle, now=datetime.now(UTC) + timedelta(days=60))
    assert versions(store) == [2 + commits + removed]
    return True


class _Once:
    """Does something at the first request that ``when`` accepts."""

    def __init__(self, when: Callable[[Request], bool], work: Callable[[], object]) -> None:
        self._when, self._work, self.done = when, work, False

    def __call__(self, request: Request) -> None:
        if not self.done and self._when(request):
            self.done = True
            self._work()


def _is_commit(request: Request) -> bool:
    return request.verb == "PUT" and request.path.endswith(".json")


def _is_list_after_commit() -> Callable[[Request], bool]:
    seen: list[Request] = []

    def is_it(request: Request) -> bool:
        seen.extend([request] if _is_commit(request) else [])
        return bool(seen) and request.verb == "LIST"

    return is_it


def _others() -> list[int]:
    return [1, 2, 100, 101, 102, 103]


@pytest.mark.parametrize("commits", [2, 4])
def test_a_commit_below_the_newest_checkpoint_is_refused(store: Store, commits: int) -> None:
    slow = begin(store)
    slow.add(put_file(store, [9]))
    _overtake(store, commits)
    with pytest.raises(CommitConflictError, match=r"cleaned up.*nothing was committed") as caught:
        slow.commit()
    assert caught.value.version == 3
    assert versions(store) == [2 + commits]
    assert rows(store) == _others()[: 2 + commits]


def test_a_commit_below_a_checkpoint_whose_own_commit_is_gone_is_refused(store: Store) -> None:
    slow = begin(store)
    slow.add(put_file(store, [9]))
    _overtake(store, 1)
    store.delete(f"_delta_log/{3:020}.json")
    with pytest.raises(CommitConflictError, match="cleaned up"):
        slow.commit()
    assert versions(store) == []


def test_a_commit_that_lands_in_a_freed_place_is_taken_back_and_refused(store: Store) -> None:
    """The other writers are at work between the look at the log and the commit itself."""
    slow = begin(store)
    slow.add(put_file(store, [9]))
    with (
        observe(_Once(_is_commit, lambda: _overtake(store))),
        pytest.raises(CommitConflictError, match=r"was taken back.*nothing was committed"),
    ):
        slow.commit()
    assert versions(store) == [6]
    assert rows(store) == _others()


@pytest.mark.parametrize("kind", ["remove", "metadata", "txn"])
def test_a_commit_without_new_files_that_lands_in_a_freed_place_is_refused_as_well(store: Store, kind: str) -> None:
    slow = begin(store, Txn(app_id="app", version=7) if kind == "txn" else None)
    if kind == "remove":
        slow.remove(*map(removal, files(store)))
    elif kind == "metadata":
        assert slow.metadata is not None
        slow.set_metadata(msgspec.structs.replace(slow.metadata, name="other"))
    with observe(_Once(_is_commit, lambda: _overtake(store))), pytest.raises(CommitConflictError, match="taken back"):
        slow.commit()
    assert versions(store) == [6]
    assert rows(store) == _others()


def test_a_commit_that_changes_nothing_is_refused_in_a_freed_place(store: Store) -> None:
    """The records of a VACUUM are such commits."""
    slow = begin(store)
    overtake = _Once(_is_commit, lambda: _overtake(store, 3))
    with observe(overtake), pytest.raises(CommitConflictError, match="taken back"):
        slow.commit()
    assert versions(store) == [5]


def test_a_commit_that_changes_nothing_is_kept_below_a_checkpoint_of_a_log_that_was_not_cleaned(store: Store) -> None:
    record = begin(store)
    with observe(_Once(_is_list_after_commit(), lambda: _overtake_behind(store, clean=False))):
        assert record.commit().version == 3
    assert versions(store) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("both", [False, True])
def test_a_removal_that_another_writer_made_too_is_refused_in_a_freed_place(store: Store, both: bool) -> None:  # noqa: FBT001
    """The checkpoint does not have the files, and yet not because of this commit."""
    slow, first = begin(store), slice(None if both else 1)
    found = files(store)
    slow.remove(*map(removal, found))

    def remove() -> None:
        other = begin(TableHandle.open(store.uri).store)
        time.sleep(0.002)  # it removes them at another time
        other.remove(*map(removal, found[first]))
        other.commit()
        _overtake(store, 2, removed=1)

    with observe(_Once(_is_commit, remove)), pytest.raises(CommitConflictError, match="taken back"):
        slow.commit()
    assert len(rows(store)) == 2 + len(found) - len(found[first])


def test_a_restore_that_lands_in_a_freed_place_is_refused(store: Store) -> None:
    """The file that it brings back has a tombstone in the checkpoint, which is older than the commit."""
    deleting = begin(store)
    deleting.remove(*map(removal, files(store)))
    deleting.commit()
    overtaking = _Once(_is_commit, lambda: _overtake(store, removed=1))
    with observe(overtaking), pytest.raises((CommitConflictError, VersionNotFoundError)):
        lazydelta.DeltaTable(store.uri).restore(2)
    assert overtaking.done
    assert versions(store) == [7]
    assert rows(store) == [100, 101, 102, 103]


def test_a_checkpoint_that_cannot_be_read_decides_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "_PAUSES", (0.0,))
    slow = begin(store)
    slow.add_own([put_file(store, [9])])
    damage = _Once(_is_list_after_commit(), lambda: store.put(f"_delta_log/{3:020}.checkpoint.parquet", b"PAR1"))
    with observe(damage), pytest.raises(CorruptLogError, match=r"version 3 was put, .*keep its data files"):
        slow.commit()
    assert len(list(store.list("p=a"))) == 3


def test_files_of_a_commit_that_could_not_be_taken_back_are_kept(store: Store) -> None:
    slow = begin(store)
    slow.add_own([put_file(store, [9])])

    def refuse(request: Request) -> None:
        if request.verb == "DELETE" and request.path.endswith(f"{3:020}.json") and overtaken:
            raise StorageError("no deletes today", path=request.path)

    overtaken: list[bool] = []
    once = _Once(_is_commit, lambda: overtaken.append(_overtake(store)))
    with observe(once), observe(refuse), pytest.raises(StorageError, match=r"is not part of the table.*kept"):
        slow.commit()
    assert len(list(store.list("p=a"))) == 7


@pytest.mark.parametrize("clean", [False, True])
def test_a_commit_that_others_went_behind_and_checkpointed_at_once_is_acknowledged(store: Store, clean: bool) -> None:  # noqa: FBT001
    slow = begin(store)
    slow.add(put_file(store, [9]))
    with observe(_Once(_is_list_after_commit(), lambda: _overtake_behind(store, clean=clean))):
        assert slow.commit().version == 3
    assert rows(store) == [1, 2, 9, 100]


def test_a_commit_that_was_undone_before_it_was_checked_stays_in_the_log(store: Store) -> None:
    """The checkpoint does not have what it did, and yet the versions after it rest on it."""
    victim = put_file(store, [3])
    first = begin(store)
    first.add(victim)
    assert first.commit().version == 3

    def undo() -> None:
        other = begin(store)
        other.add(victim)
        assert other.commit().version == 5
        checkpoint_at(store, 5)

    slow = begin(store)
    slow.remove(*(removal(each) for each in files(store) if each.path == victim.path))
    with observe(_Once(_is_list_after_commit(), undo)), pytest.raises(StorageError, match="is not known"):
        slow.commit()
    assert versions(store)[-2:] == [4, 5]
    assert rows(store) == [1, 2, 3]


def test_a_commit_whose_files_were_packed_before_it_was_checked_is_acknowledged(store: Store) -> None:
    """Of what it added the checkpoint has a tombstone only."""

    def pack() -> None:
        handle = TableHandle.open(store.uri)
        assert optimize(handle).removed.count == 3
        checkpoint_at(handle.store, handle.newest().version)

    slow = begin(store)
    slow.add(put_file(store, [9]))
    with observe(_Once(_is_list_after_commit(), pack)):
        assert slow.commit().version == 3
    assert rows(store) == [1, 2, 9]


def test_a_slow_append_is_refused_and_its_files_are_left_to_vacuum(store: Store) -> None:
    """Another process may have committed the same files in a version that was cleaned up."""
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [9], "p": ["a"]}, schema)
        _overtake(store)

    with pytest.raises(CommitConflictError, match="left to VACUUM"):
        lazydelta.write_arrow(store.uri, pa.RecordBatchReader.from_batches(schema, batches()))
    assert rows(store) == _others()
    assert len(list(store.list("p=a"))) == 7


def test_optimize_does_not_bring_back_rows_that_were_deleted_in_commits_that_are_gone(store: Store) -> None:
    """The other writer deletes, writes a checkpoint and cleans up while files are rewritten."""

    def delete() -> None:
        transaction = begin(TableHandle.open(store.uri).store)
        transaction.remove(*map(removal, files(store)))
        transaction.commit()
        _overtake(store, 2, removed=1)

    written = _Once(lambda each: each.verb == "PUT" and each.path.endswith(".parquet"), delete)
    with observe(written), pytest.raises(CommitConflictError, match=r"cleaned up to version 5 .* read version 2"):
        optimize(TableHandle.of(store))
    assert rows(store) == [100, 101]
    assert len(list(store.list("p=a"))) == 4


def _changes(table: lazydelta.DeltaTable) -> None:
    table.changes(2).read_all()


def _change_data(table: lazydelta.DeltaTable) -> None:
    table.load_cdf(starting_version=2).read_all()


def _timed_change_data(table: lazydelta.DeltaTable) -> None:
    table.load_cdf(starting_timestamp="2020-01-01").read_all()


@pytest.mark.parametrize("read", [_changes, _change_data, _timed_change_data])
def test_changes_over_a_gap_are_refused(store: Store, read: Callable[[lazydelta.DeltaTable], None]) -> None:
    for number in range(4):
        append(store, [100 + number])
    checkpoint_at(store, 5)
    store.delete(f"_delta_log/{4:020}.json")
    with pytest.raises((VersionNotFoundError, MissingCommitError)):
        read(lazydelta.DeltaTable(store.uri))


def test_vacuum_refuses_a_gap_behind_the_version_that_it_read(store: Store) -> None:
    snapshot = TableHandle.of(store).newest()
    _overtake(store)
    with pytest.raises(VersionNotFoundError, match="cleaned up"):
        keep_committed(snapshot, KeptFiles(store, 1 << 20))


def test_files_stay_where_the_commits_that_may_name_them_are_gone(store: Store) -> None:
    """One that a commit has named which was cleaned up since would be deleted from the table."""
    transaction = begin(TableHandle.open(store.uri).store)
    added = put_file(store, [100])
    transaction.add(added)
    transaction.commit()
    stage_files(store, [added], 3).discard()
    _overtake(store, 2, removed=1)
    stage_files(store, [added], 3).discard()
    assert store.exists(added.path)


def test_history_ends_at_a_gap(store: Store) -> None:
    stray = store.get(f"_delta_log/{1:020}.json")
    _overtake(store)
    store.put(f"_delta_log/{1:020}.json", stray)
    assert [each["version"] for each in lazydelta.DeltaTable(store.uri).history()] == [6]


def test_the_retention_guard_refuses_a_version_whose_successors_are_gone(store: Store) -> None:
    snapshot = TableHandle.of(store).newest()
    guard = table_retention_guard(snapshot)
    assert guard(2, 0)
    _overtake(store)
    with pytest.raises(RetentionGuardError, match="cleaned up"):
        guard(2, 0)


def _overtake_behind(store: Store, *, clean: bool) -> None:
    handle = TableHandle.open(store.uri)
    append(handle.store, [100])
    checkpoint_at(handle.store, handle.newest().version)
    if clean:
        clean_log(handle, now=datetime.now(UTC) + timedelta(days=60))
