"""Two writers at once: who may go behind whom."""

from __future__ import annotations

import errno
import os
import random
import shutil
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

import lazydelta
from lazydelta.errors import CommitConflictError, LazyDeltaError, StorageError, WriteError
from lazydelta.protocol.actions import DomainMetadata
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Store, atomic_files
from lazydelta.write import publication
from lazydelta.write import transaction as transactions
from lazydelta.write.publication import publish
from lazydelta.write.row_changes.choice import RowChoice
from lazydelta.write.row_changes.rewriter import stage_deletion
from lazydelta.write.row_changes.statements import delete_rows
from tests.write.commits import append, begin, commit_info, files, new_table, put_file, removal, rows, versions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lazydelta.write.transaction import Transaction


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Give a table with a file in each of the partitions a and b."""
    store = new_table(tmp_path / "table")
    append(store, [1], "a")
    append(store, [2], "b")
    return store


def _in(store: Store, partition: str) -> str:
    return next(file.path for file in files(store) if file.partition_values["p"] == partition)


def _remove(store: Store, transaction: Transaction, partition: str) -> None:
    transaction.remove(*[removal(file) for file in files(store) if file.partition_values["p"] == partition])


def append_a(store: Store, transaction: Transaction) -> None:
    transaction.add(put_file(store, [10], "a"))


def append_b(store: Store, transaction: Transaction) -> None:
    transaction.add(put_file(store, [11], "b"))


def remove_a(store: Store, transaction: Transaction) -> None:
    _remove(store, transaction, "a")


def remove_b(store: Store, transaction: Transaction) -> None:
    _remove(store, transaction, "b")


def read_a(store: Store, transaction: Transaction) -> None:
    transaction.read(_in(store, "a"))


def overwrite(_: Store, transaction: Transaction) -> None:
    transaction.remove_all()


def overwrite_a(_: Store, transaction: Transaction) -> None:
    transaction.remove_partitions("p = 'a'")


def metadata(_: Store, transaction: Transaction) -> None:
    assert transaction.metadata is not None
    transaction.set_metadata(msgspec.structs.replace(transaction.metadata, name="new"))


def protocol(_: Store, transaction: Transaction) -> None:
    assert transaction.protocol is not None
    transaction.set_protocol(transaction.protocol)


def nothing(_: Store, transaction: Transaction) -> None:
    assert transaction.snapshot is not None


@pytest.mark.parametrize(
    ("winner", "loser"),
    [
        pytest.param(append_a, append_a, id="append behind append"),
        pytest.param(remove_a, append_a, id="append behind remove"),
        pytest.param(overwrite, append_a, id="append behind overwrite"),
        pytest.param(remove_a, remove_b, id="remove behind remove of another file"),
        pytest.param(append_a, remove_a, id="remove behind append"),
        pytest.param(append_b, overwrite_a, id="overwrite of a partition behind append to another"),
        pytest.param(remove_b, overwrite_a, id="overwrite of a partition behind remove from another"),
        pytest.param(remove_b, read_a, id="reader of a file behind remove of another"),
        pytest.param(nothing, overwrite, id="overwrite behind a commit without files"),
        pytest.param(append_a, metadata, id="change of metadata behind append"),
    ],
)
def test_what_does_not_touch_the_same_files_is_committed_behind_the_winner(
    store: Store, winner: Callable[..., None], loser: Callable[..., None]
) -> None:
    fast, slow = begin(store), begin(store)
    winner(store, fast)
    loser(store, slow)
    assert fast.commit().version == 3
    result = slow.commit()
    assert (result.version, result.attempts) == (4, 1)
    assert commit_info(store, 4)["readVersion"] == 2


@pytest.mark.parametrize(
    ("winner", "loser", "said"),
    [
        pytest.param(remove_a, remove_a, "changed the file", id="both remove one file"),
        pytest.param(overwrite, remove_a, "changed the file", id="remove after overwrite"),
        pytest.param(remove_a, read_a, "changed the file", id="a file that was read is removed"),
        pytest.param(remove_a, overwrite, "changed the file", id="overwrite after remove"),
        pytest.param(append_a, overwrite, "added the file", id="overwrite after append"),
        pytest.param(append_a, overwrite_a, "added the file", id="overwrite of a partition after append to it"),
        pytest.param(overwrite, overwrite, "changed the file", id="both overwrite"),
        pytest.param(metadata, append_a, "metadata", id="append after a change of metadata"),
        pytest.param(protocol, append_a, "protocol", id="append after a change of protocol"),
        pytest.param(metadata, metadata, "metadata", id="both change metadata"),
    ],
)
def test_what_touches_the_same_is_refused_and_leaves_nothing(
    store: Store, winner: Callable[..., None], loser: Callable[..., None], said: str
) -> None:
    fast, slow = begin(store), begin(store)
    winner(store, fast)
    loser(store, slow)
    fast.commit()
    after = rows(store)
    with pytest.raises(CommitConflictError, match=said) as raised:
        slow.commit()
    assert (raised.value.version, raised.value.winner) == (3, f"_delta_log/{3:020}.json")
    assert "read the table again" in str(raised.value)
    assert versions(store) == [0, 1, 2, 3]
    assert rows(store) == after


def test_a_changed_deletion_vector_is_a_change_of_the_file(store: Store) -> None:
    """The winner removes the file's key and adds another key of the same path."""
    slow = begin(store)
    _remove(store, slow, "a")
    path = _in(store, "a")
    vector = '{"storageType":"u","pathOrInlineDv":"aaaaaaaaaaaaaaaaaaaa","sizeInBytes":4,"cardinality":1}'
    fields = f'"path":"{path}","partitionValues":{{"p":"a"}},"size":1,"modificationTime":1,"dataChange":true'
    store.put_if_absent(f"_delta_log/{3:020}.json", f'{{"add":{{{fields},"deletionVector":{vector}}}}}\n'.encode())
    with pytest.raises(CommitConflictError, match="changed the file"):
        slow.commit()


def test_a_path_is_the_same_however_it_is_written(store: Store) -> None:
    slow = begin(store)
    _remove(store, slow, "a")
    odd = _in(store, "a").replace("p=a", "p%3Da")
    store.put_if_absent(f"_delta_log/{3:020}.json", f'{{"remove":{{"path":"{odd}","dataChange":true}}}}\n'.encode())
    with pytest.raises(CommitConflictError, match="changed the file"):
        slow.commit()


def test_domain_metadata_of_others_is_no_conflict(store: Store) -> None:
    slow = begin(store)
    slow.remove_all()
    line = msgspec.json.encode({"domainMetadata": DomainMetadata(domain="x", configuration="{}")})
    store.put_if_absent(f"_delta_log/{3:020}.json", line + b"\n")
    assert slow.commit().version == 4


def test_many_winners_are_passed_in_one_step(store: Store) -> None:
    slow = begin(store)
    slow.add(put_file(store, [99]))
    for number in range(20, 45):
        append(store, [number])
    result = slow.commit()
    assert (result.version, result.attempts) == (28, 1)
    assert rows(store) == [1, 2, *range(20, 45), 99]


def test_the_oldest_conflict_is_the_one_that_is_named(store: Store) -> None:
    slow = begin(store)
    slow.remove_all()
    append(store, [5])
    append(store, [6])
    with pytest.raises(CommitConflictError) as raised:
        slow.commit()
    assert raised.value.version == 3


def test_a_writer_that_always_loses_gives_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_pause", lambda _, __: 0.0)
    slow = begin(store)
    slow.add(put_file(store, [99]))

    def beaten(store: Store, version: int, data: bytes, txn_id: str) -> bool:
        if txn_id == slow.txn_id:
            append(store, [version])
        return publish(store, version, data, txn_id)

    monkeypatch.setattr("lazydelta.write.transaction.publish", beaten)
    with pytest.raises(CommitConflictError, match="3 times in a row"):
        slow.commit(max_attempts=3)
    assert rows(store) == [1, 2, 3, 4, 5]


def test_pauses_are_random_and_bounded() -> None:
    pauses = [transactions._pause(attempt, took=5.0) for attempt in range(1, 40)]
    assert all(0 <= pause <= 2 for pause in pauses)
    assert len(set(pauses)) > 30


@pytest.mark.parametrize("latency", [0.01, 0.1])
def test_no_writer_among_twelve_waits_for_much_longer_than_its_turn(latency: float) -> None:
    """Writers of a simulated clock: to learn of others takes two latencies, to put a commit one."""
    random.seed(3)
    chance = random.Random(3)
    version, now = 0, 0.0
    waits: list[float] = []
    lost: list[int] = []
    # When, who, the version to put (None: about to learn it), since when, how often it lost, since when this attempt.
    events: list[tuple[float, int, int | None, float, int, float]] = [
        (chance.uniform(0, latency), writer, None, 0.0, 0, 0.0) for writer in range(12)
    ]
    left = dict.fromkeys(range(12), 20)
    while events:
        events.sort(reverse=True, key=lambda event: event[0])
        now, writer, seen, since, losses, began = events.pop()
        if seen is None:
            events.append((now + latency * chance.uniform(0.5, 1.5), writer, version, since, losses, began))
        elif seen < version:
            learned = now + 2 * latency * chance.uniform(0.5, 1.5)
            again = learned + transactions._pause(losses + 1, learned - began)
            events.append((again, writer, None, since, losses + 1, again))
        else:
            version += 1
            waits.append(now - since)
            lost.append(losses)
            left[writer] -= 1
            if left[writer]:
                begin_next = now + 2 * latency * chance.uniform(0.5, 1.5)
                events.append((begin_next, writer, None, begin_next, 0, begin_next))
    assert version == 240
    # A turn of all twelve, one after the other, takes 36 latencies.
    assert max(waits) < 3 * 36 * latency
    assert max(lost) < 15  # as often as a commit is tried


def test_a_damaged_winner_stops_the_writer(store: Store) -> None:
    slow = begin(store)
    slow.add(put_file(store, [99]))
    store.put_if_absent(f"_delta_log/{3:020}.json", b"{ this is no commit\n")
    with pytest.raises(LazyDeltaError, match="cannot be decoded at line 1"):
        slow.commit()
    assert versions(store) == [0, 1, 2, 3]


@pytest.mark.parametrize("level", [None, "WriteSerializable", "Serializable"])
def test_a_blind_append_rules_out_a_deletion_that_would_have_read_it_where_the_table_asks_for_it(
    tmp_path: Path, level: str | None
) -> None:
    """Under the weaker level the append counts as if it came after the deletion."""
    store = new_table(tmp_path / "levels", properties={} if level is None else {"delta.isolationLevel": level})
    append(store, [1])
    slow = begin(store)
    assert slow.snapshot is not None
    stage_deletion(slow, RowChoice.of("id < 10", slow.snapshot.schema))
    append(store, [3])
    if level == "Serializable":
        with pytest.raises(CommitConflictError, match="may hold rows that it selects"):
            slow.commit()
        assert delete_rows(TableHandle.of(store), "id < 10").version == 3
        assert rows(store) == []
    else:
        slow.commit()
        assert rows(store) == [3]


def test_a_level_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"delta.isolationLevel is 'Loose'.*WriteSerializable"):
        new_table(tmp_path / "loose", properties={"delta.isolationLevel": "Loose"})


# --- another table at the same place


def _make_again(root: Path, versions: int) -> None:
    shutil.rmtree(root)
    if versions:
        store = new_table(root)
        for number in range(1, versions):
            append(store, [500 + number])


@pytest.mark.parametrize("versions", [0, 2, 3, 5])
def test_nothing_is_committed_to_a_table_that_took_the_place_of_the_one_that_was_read(
    tmp_path: Path, versions: int
) -> None:
    """The place has no table, or one that is shorter, as long, or longer."""
    root = tmp_path / "table"
    store = new_table(root)
    append(store, [1])
    append(store, [2])
    slow = begin(store)
    _make_again(root, versions)
    slow.add(put_file(store, [9]))
    with pytest.raises(CommitConflictError, match=r"was deleted since|Another table was created|created the table"):
        slow.commit()
    assert not (root / "_delta_log" / f"{max(versions, 3):020}.json").exists()
    if versions:
        assert rows(store) == [500 + number for number in range(1, versions)]


def test_a_log_that_was_copied_meanwhile_is_the_same_table(tmp_path: Path) -> None:
    root = tmp_path / "table"
    store = new_table(root)
    append(store, [1])
    slow = begin(store)
    slow.add(put_file(store, [9]))
    shutil.copytree(root, tmp_path / "copy")
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "copy", root)
    os.utime(root / "_delta_log" / f"{1:020}.json", (1, 1))
    slow.commit()
    assert rows(store) == [1, 9]


# --- a full disk


def test_a_commit_for_which_the_disk_has_no_room_leaves_no_data_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each attempt would take more of a disk on which not even VACUUM can record its start."""
    monkeypatch.setattr(publication, "_PAUSES", (0.0, 0.0))
    lazydelta.write_arrow(tmp_path / "t", pa.table({"id": [1]}))
    real = atomic_files.flush

    def flush(path: str, fd: int | None = None) -> None:
        if path.endswith(".json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, fd)

    monkeypatch.setattr(atomic_files, "flush", flush)
    with pytest.raises(StorageError, match=r"the disk is full.*nothing was committed") as caught:
        lazydelta.write_arrow(tmp_path / "t", pa.table({"id": [2]}))
    assert caught.value.is_full
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 1
    assert lazydelta.DeltaTable(tmp_path / "t").count() == 1
