"""A writer that dies or whose store fails at any point: nothing acknowledged is lost, nothing half-done is seen."""

from __future__ import annotations

import os
import random
import signal
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

import lazydelta
from lazydelta.errors import StorageError, StorageTimeoutError
from lazydelta.protocol.actions import Txn
from lazydelta.storage import Request, Store, observe
from lazydelta.storage.local import FileStore
from lazydelta.write import publication
from tests.support.points import KINDS, Points
from tests.write.commits import append, begin, files, new_table, parquet, put_file, removal, rows, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lazydelta.write.transaction import Transaction

KILLS = 50
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "_PAUSES", (0.0, 0.0))


def _check(store: Store, expected: list[int]) -> None:
    """Read the table with two readers, then write to it and read again."""
    assert rows(store) == expected
    # The scan compares its totals with the version's checksum: a wrong one is an error here.
    lazydelta.DeltaTable(store.uri, options={"checksum": "error"}).files().collect()
    theirs = deltalake.DeltaTable(store.uri).to_pyarrow_table().column("id").to_pylist()
    assert sorted(theirs) == expected
    append(store, [7_000])
    assert rows(store) == [*expected, 7_000]
    assert versions(store) == list(range(len(versions(store))))


# --- faults of the store at every request


class Fault:
    """Fails the n-th request of a kind, or from it on, before it is made or after it has done its work."""

    def __init__(self, at: int, error: StorageError, *, lasting: bool) -> None:
        self.at = at
        self.error = error
        self.lasting = lasting
        self.seen = 0
        self.hit = False

    def __call__(self) -> None:
        """Count a request, and fail if it is the one."""
        number, self.seen = self.seen, self.seen + 1
        if number == self.at or (self.lasting and number > self.at):
            self.hit = True
            raise type(self.error)(str(self.error))


class AnswerlessStore(FileStore):
    """A store that does what it is asked to write and then may fail to say so."""

    fault: Fault

    def put(self, path: str, data: bytes, *, if_match: str | None = None) -> None:
        """Write, then perhaps fail."""
        super().put(path, data, if_match=if_match)
        self.fault()

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Write, then perhaps fail."""
        super().put_if_absent(path, data)
        self.fault()


def _alone(_: Store) -> None:
    return


def _race(store: Store) -> None:
    append(store, [5])


def _append(store: Store, transaction: Transaction) -> None:
    transaction.add(put_file(store, [9]))


def _replace(store: Store, transaction: Transaction) -> None:
    transaction.remove(*[removal(file) for file in files(store) if file.partition_values["p"] == "a"])
    transaction.add(put_file(store, [9]))


@pytest.mark.parametrize(
    "kind", ["error before", "time-out before", "lasting error", "error after", "time-out after", "lasting error after"]
)
@pytest.mark.parametrize(("work", "others"), [(_append, _alone), (_replace, _alone), (_append, _race)])
@pytest.mark.each_value
def test_a_fault_at_any_request_of_a_commit_loses_nothing(
    tmp_path: Path, kind: str, work: Callable[[Store, Transaction], None], others: Callable[[Store], None]
) -> None:
    for number in range(100):
        acknowledged = _commit_with_fault(tmp_path / str(number), number, kind, work, others)
        if acknowledged is None:
            assert number >= 3, "the fault was never met: nothing was tested"
            return
    pytest.fail("a commit does not take a hundred requests")


def _commit_with_fault(
    place: Path,
    number: int,
    kind: str,
    work: Callable[[Store, Transaction], None],
    others: Callable[[Store], None],
) -> bool | None:
    """Commit with a fault at one request and check what is there; None if there are fewer requests."""
    store = new_table(place)
    append(store, [1])
    error = StorageTimeoutError("injected") if "time-out" in kind else StorageError("injected")
    fault = Fault(number, error, lasting="lasting" in kind)
    txn = Txn(app_id="job", version=0)
    acknowledged = False
    with suppress(StorageError):
        if "after" in kind:
            lossy = AnswerlessStore(store._location, store._settings)
            lossy.fault = fault
            _run(lossy, store, txn, work, others)
        else:
            with observe(_quiet_for_others(fault)):
                _run(store, store, txn, work, others)
        acknowledged = True
    if not fault.hit:
        assert acknowledged
        return None
    kept = [] if work is _replace else [1]
    others_rows = [5] if others is _race and 5 in rows(store) else []
    with_ours = sorted([*kept, *others_rows, 9])
    found = rows(store)
    # Unacknowledged is absent or whole; acknowledged is there.
    assert found == with_ours or (not acknowledged and found == sorted([1, *others_rows]))
    if not acknowledged:
        # A writer without an answer tries again; the application's version makes that harmless.
        transaction = begin(store, txn)
        if not transaction.already_committed:
            work(store, transaction)
            transaction.commit()
    _check(store, with_ours)
    return acknowledged


_busy_elsewhere: list[bool] = []


def _quiet_for_others(fault: Fault) -> Callable[[Request], None]:
    def hook(_: Request) -> None:
        if not _busy_elsewhere:
            fault()

    return hook


def _run(
    store: Store,
    plain: Store,
    txn: Txn,
    work: Callable[[Store, Transaction], None],
    others: Callable[[Store], None],
) -> None:
    transaction = begin(store, txn)
    work(store, transaction)
    _busy_elsewhere.append(True)
    try:
        others(plain)
    finally:
        _busy_elsewhere.clear()
    transaction.commit()


# --- the end of the process


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def _fork(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked child and return the child's id."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def test_a_writer_killed_at_any_request_leaves_a_whole_table(tmp_path: Path) -> None:
    content = parquet([9])
    for number in range(100):
        store = new_table(tmp_path / str(number))
        append(store, [1])
        flag = tmp_path / f"{number}.done"

        def work(store: Store = store, number: int = number, flag: Path = flag) -> None:
            fault = iter(range(number))
            with observe(lambda _: _die() if next(fault, None) is None else None):
                transaction = begin(store)
                transaction.add(put_file(store, [9], content=content))
                transaction.commit()
            flag.touch()

        os.waitpid(_fork(work), 0)
        found = rows(store)
        assert found in ([1], [1, 9])
        _check(store, found)
        if flag.exists():
            assert found == [1, 9]
            assert number >= 5
            return
    pytest.fail("a commit does not take a hundred requests")


@pytest.mark.parametrize(("name", "expected"), [("fsync", [1]), ("link", [1]), ("unlink", [1, 9])])
def test_a_writer_killed_between_the_steps_of_publishing_leaves_a_whole_table(
    tmp_path: Path, name: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the content is on disk, before it gets its name, and before the temporary name is gone."""
    store = new_table(tmp_path)
    append(store, [1])
    added = put_file(store, [9])

    def work() -> None:
        transaction = begin(store)
        transaction.add(added)
        monkeypatch.setattr(os, name, lambda *_, **__: _die())
        transaction.commit()

    os.waitpid(_fork(work), 0)
    _check(store, expected)


def test_a_commit_is_on_the_disk_before_it_is_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content first, then its name in the folder: in this order a loss of power leaves no empty commit."""
    store = new_table(tmp_path / "table")
    steps: list[str] = []
    fsync, link = os.fsync, os.link

    def noted_fsync(fd: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "content")
        fsync(fd)

    def noted_link(source: str, target: str, **keywords: Any) -> None:
        steps.append("name")
        link(source, target, **keywords)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    begin(store).commit()
    # The checksum comes last, and nothing waits for it: readers go on without one that was torn.
    assert steps == ["content", "name", "folder", "name"]
    steps.clear()
    new_table(tmp_path / "another" / "table")
    # A new table's folders are new entries of their parents.
    assert steps[:6] == ["folder", "folder", "folder", "content", "name", "folder"]


def _contents(start: int, count: int) -> Iterator[tuple[int, bytes]]:
    for number in range(start, start + count):
        yield number, parquet([number])


def test_a_writer_killed_at_random_points_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    store = new_table(tmp_path / "table")
    dice = random.Random(6)
    acknowledged: set[int] = set()
    started: set[int] = set()
    for turn in range(KILLS):
        batch = list(_contents(100 * turn, 30))
        started.update(number for number, _ in batch)
        read, write = os.pipe()
        # A commit with its file takes about eight requests, three writes and three publications.
        kind = KINDS[turn % len(KINDS)]
        points = Points(kind, dice.randint(1, {"request": 80, "write": 30, "publication": 30}[kind]))

        def work(batch: list[tuple[int, bytes]] = batch, write: int = write, points: Points = points) -> None:
            with points.counting():
                for number, content in batch:
                    transaction = begin(store)
                    transaction.add(put_file(store, [number], content=content))
                    transaction.commit()
                    os.write(write, f"{number}\n".encode())

        child = _fork(work)
        os.close(write)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the writer came to its end before its point"
        with os.fdopen(read) as pipe:
            acknowledged.update(int(line) for line in pipe)
    found = rows(store)
    assert len(found) == len(set(found))
    assert acknowledged <= set(found) <= started
    assert len(set(found) - acknowledged) <= KILLS  # at most the one that was under way
    assert acknowledged
    _check(store, found)
