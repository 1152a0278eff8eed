"""Files of drivers that were killed and of attempts that came late go with the maintenance that follows."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

import lazydelta
from lazydelta.maintenance import after_commit
from lazydelta.maintenance.after_commit import delete_orphaned_files
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, observe
from lazydelta.write.job import TaskResult, WriteJob
from lazydelta.write.options import WriteOptions
from tests.maintenance.old_tables import data_files
from tests.oracle.replay import replay

# A row that is too large to travel with the result of its task.
_TEXT = "x" * 100


def _batch(number: int, rows: int = 30_000) -> pa.RecordBatch:
    ids = list(range(number * rows, (number + 1) * rows))
    return pa.RecordBatch.from_pydict(
        {"id": ids, "p": ["a", "b"] * (rows // 2), "t": [f"{each}{_TEXT}" for each in ids]}
    )


def _job(root: Path, version: int | None = None, **options: object) -> WriteJob:
    """Prepare a job; one with a version is a batch that the log counts."""
    counted = {} if version is None else {"app_id": "app", "app_version": version}
    given = {"partition_by": ["p"], "maintain": False, **counted, **options}
    return WriteJob.prepare(str(root), _batch(0, 2).schema, WriteOptions(**given))  # type: ignore[arg-type]


def _written(job: WriteJob, number: int) -> TaskResult:
    result = job.write([_batch(number)], 0)
    assert result.adds
    return result


def _commit(root: Path, version: int) -> None:
    job = _job(root, version)
    job.commit([_written(job, version)], txn=job.options.txn)


def _active(root: Path) -> set[str]:
    return {path for path, _ in replay(root / "_delta_log").files}


def _clear(root: Path) -> set[str]:
    handle = TableHandle.open(root)
    return set(delete_orphaned_files(handle, handle.newest().version))


def test_what_a_driver_left_that_was_killed_goes_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "t"
    dead = [_written(_job(root, 0), 0)]  # there was no table yet
    _commit(root, 0)
    dead += [_written(_job(root, 1), 1), _written(_job(root, 1), 1)]
    _commit(root, 1)
    late = _job(root, 1)  # a loser of speculation
    unknown = _written(_job(root), 5)  # of a job that the log does not count, which may be about to commit
    waiting = _job(root, 2)
    about = _written(waiting, 2)  # of a batch that is about to be committed
    (root / "p=a" / "stranger.parquet").write_bytes(b"x")
    dead.append(_written(late, 1))
    expected = {add.path for each in dead for add in each.adds}
    assert _clear(root) == expected
    left = {add.path for each in (unknown, about) for add in each.adds} | {"p=a/stranger.parquet"}
    assert data_files(root) == _active(root) | left
    waiting.commit([about], txn=waiting.options.txn)
    assert _clear(root) == set()
    assert lazydelta.DeltaTable(root).to_pyarrow_table(columns=["id"]).num_rows == 3 * 30_000


def test_the_maintenance_that_follows_a_commit_does_it(tmp_path: Path) -> None:
    root = tmp_path / "t"
    properties = {"delta.checkpointInterval": "2"}
    rows = pa.Table.from_batches([_batch(0, 10)])
    written: dict[str, object] = {"partition_by": ["p"], "app_id": "app"}
    lazydelta.write_arrow(root, rows, app_version=0, properties=properties, **written)  # type: ignore[arg-type]
    dead = _written(_job(root, 1), 1)
    lazydelta.write_arrow(root, rows, app_version=1, **written)  # type: ignore[arg-type]
    assert {add.path for add in dead.adds} <= data_files(root)
    lazydelta.write_arrow(root, rows, app_version=2, **written)  # type: ignore[arg-type]
    assert data_files(root) == _active(root)


def test_a_file_that_an_older_commit_may_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is recorded twice where the table has forgotten the first time; both have the same mark."""
    root = tmp_path / "t"
    monkeypatch.setattr(after_commit, "_LOOK_BACK", 2)
    _commit(root, 7)
    first = _active(root)
    for path in first:
        os.utime(root / path, (1_000_000, 1_000_000))
    log = root / "_delta_log"
    text = (log / f"{0:020}.json").read_text().splitlines()
    (log / f"{0:020}.json").write_text("".join(f"{line}\n" for line in text if '"txn"' not in line))
    for checksum in log.glob("*.crc"):
        checksum.unlink()
    _commit(root, 7)
    _commit(root, 8)
    _commit(root, 9)
    assert _clear(root) == set()
    assert first <= data_files(root)
    assert lazydelta.DeltaTable(root).to_pyarrow_table(columns=["id"]).num_rows == 4 * 30_000


def test_tables_whose_batches_nobody_counts_are_not_listed(tmp_path: Path) -> None:
    for _ in range(2):
        lazydelta.write_arrow(tmp_path, pa.Table.from_batches([_batch(0, 10)]), partition_by=["p"])
    asked: list[str] = []

    def note(request: Request) -> None:
        if request.verb == "LIST" and "_delta_log" not in request.path:
            asked.append(request.path)

    with observe(note):
        assert _clear(tmp_path) == set()
    assert asked == []


@pytest.mark.parametrize(("bound", "most"), [("_MOST_FOLDERS", 1), ("_MOST_LISTED", 0)])
def test_what_would_take_long_listings_is_left_to_vacuum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    dead = _written(_job(tmp_path, 0), 0)
    _commit(tmp_path, 0)
    with monkeypatch.context() as patched:
        patched.setattr(after_commit, bound, most)
        assert _clear(tmp_path) == set()
    assert _clear(tmp_path) == {add.path for add in dead.adds}
