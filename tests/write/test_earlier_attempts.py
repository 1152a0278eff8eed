"""The commit of a job deletes files of its failed attempts, and no others."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pyarrow as pa
import pytest

import lazydelta
from lazydelta.errors import StorageError
from lazydelta.protocol.actions import Add
from lazydelta.storage import atomic_files, open_store
from lazydelta.storage.local import FileStore
from lazydelta.write.job import TaskResult, WriteJob, clear_earlier_attempts
from lazydelta.write.options import WriteOptions
from tests.maintenance.old_tables import data_files
from tests.oracle.replay import replay
from tests.scan.hand_log import watching

ROWS = 2_000


def _batch(task: int, count: int = ROWS) -> pa.RecordBatch:
    ids = list(range(task * count, (task + 1) * count))
    texts = [random.Random(each).randbytes(600).hex() for each in ids]  # too much to travel with the result
    return pa.RecordBatch.from_pydict({"id": ids, "p": [f"p{each % 2}" for each in ids], "text": texts})


def _job(root: Path, **options: object) -> WriteJob:
    given = {"partition_by": ["p"], "target_file_size": 300_000, "maintain": False} | options
    return WriteJob.prepare(str(root), _batch(0, 1).schema, WriteOptions(**given))  # type: ignore[arg-type]


def _attempt(job: WriteJob, task: int, *, again: bool = False) -> TaskResult:
    """Run a task where it was sent to."""
    sent: WriteJob = pickle.loads(pickle.dumps(job))  # noqa: S301 - our own
    return sent.write([_batch(task)], task, run_again=again)


def _active(root: Path) -> set[str]:
    return {path for path, _ in replay(root / "_delta_log").files}


@pytest.mark.parametrize("partitioned", [True, False])
def test_what_attempts_left_that_died_is_gone_with_the_commit(tmp_path: Path, *, partitioned: bool) -> None:
    root = tmp_path / "t"
    options: dict[str, object] = {} if partitioned else {"partition_by": None}
    other = _job(root, **options)
    theirs = [_attempt(other, 0), _attempt(other, 1)]  # another job, which is about to commit
    job = _job(root, **options)
    dead = [_attempt(job, 1), _attempt(job, 1), _attempt(job, 2)]  # none of them was reported
    assert all(len(each.adds) > 2 for each in dead)
    results = [_attempt(job, 0), _attempt(job, 1, again=True), _attempt(job, 2, again=True)]
    job.commit(results)
    assert data_files(root) - {add.path for each in theirs for add in each.adds} == _active(root)
    other.commit(theirs)
    assert data_files(root) == _active(root)
    assert sorted(lazydelta.DeltaTable(root).to_pyarrow_table(columns=["id"]).column("id").to_pylist()) == sorted(
        [*range(3 * ROWS), *range(2 * ROWS)]
    )


def test_a_job_without_such_tasks_lists_nothing_but_the_log(tmp_path: Path) -> None:
    job = _job(tmp_path / "t")
    results = [_attempt(job, 0), _attempt(job, 1)]
    with watching() as seen:
        job.commit(results)
    assert [each.path for each in seen.requests if each.verb == "LIST" and "_delta_log" not in each.path] == []


def test_a_listing_that_fails_does_no_harm_to_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "t"
    job = _job(root)
    dead = _attempt(job, 0)
    results = [_attempt(job, 0, again=True)]
    original = FileStore.list

    def failing(self: FileStore, folder: str, *, after: str = "") -> object:
        if "_delta_log" not in folder:
            raise StorageError("no listing today", path=folder)
        return original(self, folder, after=after)

    monkeypatch.setattr(FileStore, "list", failing)
    assert job.commit(results).rows == ROWS
    assert {add.path for add in dead.adds} <= data_files(root)  # for VACUUM
    assert {add.path for add in results[0].adds} == _active(root)


def test_names_of_one_job_have_half_in_common_and_are_unique(tmp_path: Path) -> None:
    one, two = _job(tmp_path / "t"), _job(tmp_path / "t")
    names = [[add.path for add in _attempt(job, 0).adds] for job in (one, one, two)]
    families = [{path.rpartition("/")[2][11:29] for path in each} for each in names]
    assert families[0] == families[1] != families[2]
    assert all(len(each) == 1 for each in families)
    assert len({path for each in names for path in each}) == sum(map(len, names))


def test_files_of_a_partition_that_shares_its_folder_with_another_spelling_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that folds case lists the files of p=A in p=a, too."""
    opened, listed = atomic_files._entered, FileStore._file
    monkeypatch.setattr(
        atomic_files, "_entered", lambda fd, name, place, *, make: opened(fd, name.lower(), place, make=make)
    )
    monkeypatch.setattr(FileStore, "_file", lambda self, path: listed(self, path.lower()))
    store = open_store(tmp_path)
    names = [f"part-00000-01234567-89ab-cdef-0000-00000000000{number}.c000.parquet" for number in range(3)]
    adds = [
        Add(path=f"p={part}/{name}", size=4, modification_time=1, partition_values={"p": part})
        for part, name in zip("aA", names, strict=False)
    ]
    for path in [*(each.path for each in adds), f"p=A/{names[2]}"]:
        store.put(path, b"rows")
    clear_earlier_attempts(store, [TaskResult(adds=tuple(adds), run_again=True)], adds)
    assert sorted(each.name for each in (tmp_path / "p=a").iterdir()) == names[:2]
