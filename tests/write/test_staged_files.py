"""Files that were written for a commit: deleted where it is certain that no commit names them, and only there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import lazydelta
from lazydelta.errors import AccessDeniedError, LazyDeltaError, MissingCommitError, StorageTimeoutError
from lazydelta.protocol.actions import Txn
from lazydelta.storage import open_store
from lazydelta.storage.local import FileStore
from lazydelta.storage.staged_files import StagedFiles
from lazydelta.write import publication
from lazydelta.write.file_commit import named_files
from lazydelta.write.job import TaskResult, WriteJob
from lazydelta.write.options import WriteOptions
from tests.maintenance.old_tables import data_files
from tests.oracle.replay import replay

_FIRST = [0, 1, 2, 50, 51, 52]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "_PAUSES", (0.0, 0.0))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table of three small files, of two rows each."""
    for number in range(3):
        lazydelta.write_arrow(tmp_path / "t", _rows(number, number + 50), maintain=False)
    return tmp_path / "t"


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def _ids(root: Path) -> list[int]:
    return sorted(deltalake.DeltaTable(root).to_pyarrow_table().column("id").to_pylist())


def _active(root: Path) -> set[str]:
    return {path for path, _ in replay(root / "_delta_log").files}


def _job(root: Path, **options: Any) -> WriteJob:
    given = {"target_file_size": 1, "memory_budget": 1, "maintain": False} | options
    return WriteJob.prepare(str(root), _rows().schema, WriteOptions(**given))


def _written(job: WriteJob, value: int, *, again: bool = False) -> TaskResult:
    """Return what the first task wrote to a file of its own."""
    return job.write(_rows(value).to_batches(), 0, run_again=again)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "append": lambda root: lazydelta.write_arrow(root, _rows(9), maintain=False),
    "delete": lambda root: lazydelta.DeltaTable(root).delete("id = 1"),
    "optimize": lambda root: lazydelta.DeltaTable(root).optimize.compact(),
}


def _failing(
    patch: pytest.MonkeyPatch, error: BaseException, *, lands: bool, first: Callable[[str], None] | None = None
) -> None:
    """Let every commit fail, behind what is done ``first``, and behind the put itself where it ``lands``."""
    original = FileStore.put_if_absent

    def put(store: FileStore, path: str, data: bytes) -> None:
        if not path.endswith(".json"):
            original(store, path, data)
            return
        if first is not None:
            first(path)
        if lands:
            original(store, path, data)
        raise error

    patch.setattr(FileStore, "put_if_absent", put)


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), StorageTimeoutError("lost"), OSError("broken")])
@pytest.mark.parametrize("name", WRITERS)
def test_files_of_a_commit_that_may_come_stay(
    table: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException, *, lands: bool
) -> None:
    """A commit that is not there may be on its way: its answer never came."""
    before = data_files(table)
    with monkeypatch.context() as patch:
        _failing(patch, error, lands=lands)
        with suppress(KeyboardInterrupt, MemoryError, LazyDeltaError, OSError):
            WRITERS[name](table)
    assert data_files(table) > before
    assert _active(table) <= data_files(table)
    assert len(_ids(table)) in ({5, 6, 7} if lands else {6})


@pytest.mark.parametrize("name", WRITERS)
def test_files_are_deleted_once_another_commit_has_the_place(
    table: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = data_files(table)

    def rival(path: str) -> None:
        (table / path).write_text('{"commitInfo":{"operation":"SOMETHING ELSE"}}\n')

    with monkeypatch.context() as patch:
        _failing(patch, KeyboardInterrupt(), lands=False, first=rival)
        with pytest.raises(KeyboardInterrupt):
            WRITERS[name](table)
    assert data_files(table) == before
    assert _ids(table) == _FIRST


def test_files_stay_where_the_log_cannot_be_asked(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = data_files(table)

    def deny(store: FileStore, path: str, **_: Any) -> bytes:
        raise AccessDeniedError(f"{path} of {store.uri} may not be read", path=path)

    def rival(path: str) -> None:
        (table / path).write_text('{"commitInfo":{"operation":"SOMETHING ELSE"}}\n')
        monkeypatch.setattr(FileStore, "get", deny)

    with monkeypatch.context() as patch:
        _failing(patch, KeyboardInterrupt(), lands=False, first=rival)
        with pytest.raises(KeyboardInterrupt):
            WRITERS["append"](table)
    assert len(data_files(table)) == len(before) + 1


def test_files_of_tasks_that_another_process_has_committed_are_not_discarded(table: Path) -> None:
    """Spark may call for an abort of what it had committed, or commit the same messages twice."""
    job, txn = _job(table), Txn(app_id="job", version=0)
    results = [_written(job, 10), _written(job, 11)]
    assert all(each.adds for each in results)
    late = _written(job, 12)
    job.commit(results, txn=txn)
    job.discard([*results, late])
    assert job.commit(results, txn=txn).already_committed
    assert _ids(table) == sorted([*_FIRST, 10, 11])
    assert data_files(table) == _active(table)


def test_what_attempts_left_of_a_batch_is_told_from_what_another_batch_of_the_job_has_committed(table: Path) -> None:
    """The names of both begin alike."""
    job = _job(table)
    for number in range(3):
        txn = Txn(app_id="stream", version=number)
        dead = _written(job.of_batch(txn), 20 + number)
        done = _written(job.of_batch(txn), 20 + number, again=True)
        job.commit([done], txn=txn, is_stream=True)
        assert not (table / dead.adds[0].path).exists()
    assert _ids(table) == sorted([*_FIRST, 20, 21, 22])


def test_files_stay_where_the_log_lacks_a_commit_since_the_job_began(table: Path) -> None:
    job = _job(table)
    result = _written(job, 10)
    for number in (11, 12):
        lazydelta.write_arrow(table, _rows(number), maintain=False)
    lazydelta.DeltaTable(table).create_checkpoint()
    (table / "_delta_log" / f"{3:020}.json").unlink()
    with pytest.raises(MissingCommitError, match="Commit 3 is missing"):
        named_files(open_store(table), [result.adds[0].path], first=3)
    job.discard([result])
    assert (table / result.adds[0].path).exists()


def test_some_files_are_given_up_and_the_others_stay(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for name in "abc":
        store.put(name, b"x")
    with suppress(KeyboardInterrupt), StagedFiles(store, ["a", "b"]) as files:
        files.discard(["a"])
        assert data_files(tmp_path) == {"b", "c"}
        raise KeyboardInterrupt
    assert data_files(tmp_path) == {"c"}
