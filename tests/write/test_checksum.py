"""Version checksums: written when they are surely right, and never otherwise."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lazydelta
from lazydelta.errors import StorageError
from lazydelta.log.checksum import writer
from lazydelta.log.checksum.writer import TableTotals, write_checksum
from lazydelta.maintenance.vacuum import vacuum
from lazydelta.protocol.actions import Remove, Txn
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, Store, observe, open_store
from lazydelta.write.checkpoint.writer import write_checkpoint
from tests.scan.hand_log import SIZE, HandLog, add, remove, watching
from tests.write.commits import append, begin, commit_info, files, new_table, put_file, removal, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_table(tmp_path / "table")


def checksum(store: Store, version: int) -> dict[str, Any] | None:
    """Return a version's checksum as it was written."""
    path = f"_delta_log/{version:020}.crc"
    return msgspec.json.decode(store.get(path)) if store.exists(path) else None


def totals(store: Store, version: int) -> tuple[int, int] | None:
    """Return how many files and bytes a checksum counts."""
    found = checksum(store, version)
    return None if found is None else (found["numFiles"], found["tableSizeBytes"])


def counted(store: Store) -> tuple[int, int]:
    """Return how many files and bytes the newest version has."""
    found = files(store)
    return len(found), sum(file.size for file in found)


def test_a_checksum_counts_what_the_version_holds(store: Store) -> None:
    assert totals(store, 0) == (0, 0)
    append(store, [1])
    append(store, [2, 3], "b")
    assert totals(store, 2) == counted(store)
    transaction = begin(store)
    transaction.remove(removal(files(store)[0]))
    transaction.add(put_file(store, [4]), put_file(store, [5]))
    transaction.commit()
    assert totals(store, 3) == counted(store)
    transaction = begin(store)
    transaction.remove_all()
    transaction.add(put_file(store, [6]))
    assert transaction.commit().has_checksum
    assert totals(store, 4) == counted(store)


def test_a_checksum_has_what_other_readers_look_for(store: Store) -> None:
    append(store, [1], txn=Txn(app_id="stream", version=3))
    found = checksum(store, 1)
    assert found is not None
    assert (found["numMetadata"], found["numProtocol"]) == (1, 1)
    assert found["txnId"] == commit_info(store, 1)["txnId"]
    assert found["protocol"] == {"minReaderVersion": 1, "minWriterVersion": 2}
    assert found["metadata"]["partitionColumns"] == ["p"]
    assert found["metadata"]["format"] == {"provider": "parquet", "options": {}}
    assert [(each["appId"], each["version"]) for each in found["setTransactions"]] == [("stream", 3)]
    assert found["domainMetadata"] == []


def test_a_checksum_carries_the_in_commit_timestamp(tmp_path: Path) -> None:
    store = new_table(tmp_path, properties={"delta.enableInCommitTimestamps": "true"})
    append(store, [1])
    found = checksum(store, 1)
    assert found is not None
    assert found["inCommitTimestampOpt"] == commit_info(store, 1)["inCommitTimestamp"]


def test_a_checksum_counts_the_winners_that_were_passed(store: Store) -> None:
    """The winner's own checksum may come late, so its commit is added up instead."""
    append(store, [1], txn=Txn(app_id="a", version=1))
    slow = begin(store)
    slow.add(put_file(store, [2]))
    append(store, [3], txn=Txn(app_id="b", version=1))
    store.delete(f"_delta_log/{2:020}.crc")
    assert slow.commit().has_checksum
    assert totals(store, 3) == counted(store)
    found = checksum(store, 3)
    assert found is not None
    assert {each["appId"] for each in found["setTransactions"]} == {"a", "b"}


def test_a_missing_checksum_is_made_up_for_by_the_commits_since(store: Store) -> None:
    for number in range(3):
        append(store, [number])
    for version in (2, 3):
        store.delete(f"_delta_log/{version:020}.crc")
    assert append(store, [9]).has_checksum
    assert totals(store, 4) == counted(store)


def test_a_table_of_another_writer_gets_a_checksum_by_replay(tmp_path: Path) -> None:
    """A key that is added twice counts once, which adding up would get wrong."""
    log = HandLog(tmp_path)
    log.commit(add("a.parquet"), add("b.parquet"))
    log.commit(add("a.parquet"), remove("b.parquet"), add("c.parquet"))
    assert begin(open_store(tmp_path)).commit().has_checksum
    assert totals(open_store(tmp_path), 2) == (2, 2 * SIZE)


def test_no_checksum_is_written_over_a_checkpoint_that_has_none(tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    log.commit(add("a.parquet"))
    log.checkpoint()
    store = open_store(tmp_path)
    assert not begin(store).commit().has_checksum
    assert checksum(store, 1) is None


def test_an_overwrite_needs_no_checksum_before_it(tmp_path: Path) -> None:
    log = HandLog(tmp_path, {"id": "long", "p": "string"}, partitions=["p"])
    log.commit(add("a.parquet", partition={"p": "x"}))
    log.checkpoint()
    store = open_store(tmp_path)
    transaction = begin(store)
    transaction.remove_all()
    transaction.add(put_file(store, [1]))
    assert transaction.commit().has_checksum
    assert totals(store, 1) == counted(store)
    found = checksum(store, 1)
    assert found is not None
    assert "setTransactions" not in found  # the checkpoint was not read for them


@pytest.fixture
def large_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every base count as too large to be counted for one commit."""
    monkeypatch.setattr(writer, "_SMALL_BASE", -1)


@pytest.mark.usefixtures("large_base")
def test_a_remove_without_a_size_ends_the_chain(store: Store) -> None:
    append(store, [1])
    transaction = begin(store)
    transaction.remove(Remove(path=files(store)[0].path))
    assert not transaction.commit().has_checksum
    assert not append(store, [2]).has_checksum


@pytest.mark.usefixtures("large_base")
@pytest.mark.parametrize("operation", ["COMPUTE STATS", "Manual Update"])
def test_commits_whose_files_do_not_add_up_end_the_chain(store: Store, operation: str) -> None:
    append(store, [1])
    line = json.dumps({"commitInfo": {"operation": operation}})
    store.put_if_absent(f"_delta_log/{2:020}.json", f"{line}\n".encode())
    assert not append(store, [2]).has_checksum


def test_transactions_that_expire_are_not_listed(tmp_path: Path) -> None:
    store = new_table(tmp_path, properties={"delta.setTransactionRetentionDuration": "interval 1 day"})
    append(store, [1], txn=Txn(app_id="stream", version=1))
    found = checksum(store, 1)
    assert found is not None
    assert "setTransactions" not in found
    assert begin(store, Txn(app_id="stream", version=1)).already_committed


def test_a_checksum_that_is_there_stays(store: Store) -> None:
    append(store, [1])
    before = store.get(f"_delta_log/{1:020}.crc")
    transaction = begin(store)
    assert transaction.protocol is not None
    assert transaction.metadata is not None
    state = TableTotals(num_files=77)
    assert not write_checksum(store, 1, state, protocol=transaction.protocol, metadata=transaction.metadata)
    assert store.get(f"_delta_log/{1:020}.crc") == before


def test_a_checksum_that_cannot_be_written_is_logged_and_the_commit_stands(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(request: Request) -> None:
        if request.path.endswith(".crc") and request.verb == "PUT":
            raise StorageError("the disk is full", path=request.path)

    with observe(broken), caplog.at_level(logging.WARNING, "lazydelta.write"):
        result = append(store, [1])
    assert (result.version, result.has_checksum) == (1, False)
    assert "the checksum of version 1 was not written: the disk is full" in caplog.text
    assert rows(store) == [1]


# --- commits of other writers, whose actions may not add up


def _foreign(store: Store, version: int, *actions: dict[str, Any]) -> None:
    """Commit as another writer, who writes no checksum."""
    lines = [{"commitInfo": {"engineInfo": "delta-rs:1.0", "operation": "WRITE"}}, *actions]
    store.put_if_absent(f"_delta_log/{version:020}.json", b"".join(msgspec.json.encode(each) + b"\n" for each in lines))


def _again(store: Store) -> dict[str, Any]:
    active = files(store)[0]
    return {
        "add": {
            "path": active.path,
            "size": active.size,
            "modificationTime": 1,
            "dataChange": False,
            "partitionValues": active.partition_values,
        }
    }


def _gone(_: Store) -> dict[str, Any]:
    return {"remove": {"path": "p=a/never.parquet", "size": 7, "deletionTimestamp": 1, "dataChange": True}}


@pytest.mark.parametrize("action", [_again, _gone])
@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("winner", [False, True])
def test_actions_that_do_not_fit_by_identity_never_make_a_checksum_wrong(
    store: Store,
    action: Callable[[Store], dict[str, Any]],
    is_small: bool,  # noqa: FBT001
    winner: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A small base is counted again at the next commit, a large one with the next checkpoint."""
    append(store, [1])
    append(store, [2])
    write_checkpoint(store)
    monkeypatch.setattr(writer, "_SMALL_BASE", 1 << 20 if is_small else -1)
    transaction = begin(store)
    if not winner:
        _foreign(store, 3, action(store))
        transaction = begin(store)
    transaction.add(put_file(store, [3]))
    if winner:
        _foreign(store, 3, action(store))
    assert transaction.commit().has_checksum is (is_small and not winner)
    assert append(store, [4]).has_checksum is is_small
    write_checkpoint(store)
    assert append(store, [5]).has_checksum
    for version in range(4, 7):
        assert totals(store, version) in {None, _counted_at(store, version)}
    assert vacuum(TableHandle.of(store), dry_run=True).paths == []


def _counted_at(store: Store, version: int) -> tuple[int, int]:
    found = lazydelta.DeltaTable(store.uri, version, options={"checksum": "off"}).files().collect()
    return len(found), sum(file.size for file in found)


@pytest.mark.usefixtures("large_base")
def test_a_commit_of_another_writer_without_files_does_not_end_the_chain(store: Store) -> None:
    append(store, [1])
    _foreign(store, 2, {"txn": {"appId": "stream", "version": 4}})
    assert append(store, [2]).has_checksum
    assert totals(store, 3) == counted(store)


# --- after a checkpoint, for which everything was counted


def strangers_table(place: Path, **keywords: Any) -> Store:
    """Make a table of another writer: a checkpoint without a checksum, and two commits since then."""
    log = HandLog(place, {"id": "long", "p": "string"}, partitions=["p"], **keywords)
    log.commit(*[add(f"{name}.parquet", partition={"p": name}) for name in "abc"])
    log.checkpoint()
    log.commit(remove("a.parquet"), {"txn": {"appId": "stream", "version": 4}})
    log.commit(add("b.parquet", partition={"p": "b"}))
    return open_store(place)


def test_a_checkpoint_starts_the_chain_that_other_writers_left_out(tmp_path: Path) -> None:
    """A key that is added twice counts once, and what is removed not at all."""
    store = strangers_table(tmp_path)
    assert not begin(store).commit().has_checksum
    write_checkpoint(store)
    assert totals(store, 3) == counted(store) == (2, 2 * SIZE)
    found = checksum(store, 3)
    assert found is not None
    assert found["txnId"] == commit_info(store, 3)["txnId"]
    assert found["setTransactions"] == [{"appId": "stream", "version": 4}]
    assert append(store, [1]).has_checksum
    assert totals(store, 4) == counted(store)


def test_a_checkpoint_leaves_a_checksum_that_is_there(store: Store) -> None:
    append(store, [1])
    before = store.get(f"_delta_log/{1:020}.crc")
    with watching() as watch:
        write_checkpoint(store)
    assert not [each for each in watch.requests if each.verb == "PUT" and each.path.endswith(".crc")]
    assert store.get(f"_delta_log/{1:020}.crc") == before


def test_a_checksum_after_a_checkpoint_carries_the_in_commit_timestamp(tmp_path: Path) -> None:
    store = new_table(tmp_path, properties={"delta.enableInCommitTimestamps": "true"})
    append(store, [1])
    path = f"_delta_log/{1:020}.crc"
    before = checksum(store, 1)
    store.delete(path)
    write_checkpoint(store)
    assert checksum(store, 1) == before


def test_a_checkpoint_starts_no_chain_on_a_table_that_we_may_not_write_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = strangers_table(tmp_path, configuration={"delta.enableRowTracking": "true"})
    assert write_checkpoint(store).action == "written"
    assert checksum(store, 2) is None
    assert not caplog.records


def test_a_checkpoint_starts_no_chain_without_the_in_commit_timestamp_that_is_due(tmp_path: Path) -> None:
    store = new_table(tmp_path, properties={"delta.enableInCommitTimestamps": "true"})
    store.put_if_absent(f"_delta_log/{1:020}.json", b'{"commitInfo":{"operation":"WRITE"}}\n')
    assert write_checkpoint(store).action == "written"
    assert checksum(store, 1) is None


def test_a_checkpoint_stands_though_its_checksum_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = strangers_table(tmp_path)
    seen: list[Request] = []

    def broken(request: Request) -> None:
        if seen:
            raise StorageError("the network is down")
        if request.verb == "HEAD" and request.path.endswith(f"{2:020}.checkpoint.parquet"):
            seen.append(request)  # the last look before the last bytes

    with observe(broken):
        assert write_checkpoint(store).action == "written"
    assert seen
    assert checksum(store, 2) is None
    assert "the checksum of version 2 was not written" in caplog.text


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["append", "remove", "overwrite", "partition", "lose", "forget"]), max_size=8))
def test_every_checksum_equals_a_full_replay(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    store = new_table(tmp_path_factory.mktemp("table"))
    for number, step in enumerate(steps):
        transaction = begin(store)
        if step == "remove":
            transaction.remove(*[removal(file) for file in files(store)[:1]])
        elif step == "overwrite":
            transaction.remove_all()
        elif step == "partition":
            transaction.remove_partitions("p = 'a'")
        elif step == "lose":
            append(store, [1000 + number], "b")
        if step != "remove" and not (step == "overwrite" and number % 2):
            transaction.add(put_file(store, [number], "ab"[number % 2]))
        result = transaction.commit()
        if step == "forget":
            store.delete(f"_delta_log/{result.version:020}.crc")
        else:
            assert totals(store, result.version) == counted(store)
    # The reader compares every complete scan with the checksum, and here a difference is an error.
    lazydelta.DeltaTable(store.uri, options={"checksum": "error"}).files().collect()
