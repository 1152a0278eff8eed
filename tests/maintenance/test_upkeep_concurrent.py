"""OPTIMIZE and VACUUM beside writers that append and delete, and readers: no row is lost, doubled or back again."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lazydelta
from lazydelta.errors import CommitConflictError
from lazydelta.maintenance.optimize import OptimizeSettings, optimize
from lazydelta.maintenance.vacuum import vacuum
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import open_store
from tests.maintenance.deleted_rows import delete_rows
from tests.maintenance.old_tables import data_files
from tests.oracle.replay import replay
from tests.write.commits import begin, files_of

ROWS = 6


class _Work:
    """Two writers, and what they were told: ids that are there, and ids that are about to go or gone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.written: set[int] = set()
        self.doomed: set[int] = set()
        self.errors: list[BaseException] = []
        self.turned = threading.Semaphore(0)

    def append(self, turns: int) -> None:
        try:
            for turn in range(turns):
                ids = range(turn * ROWS, (turn + 1) * ROWS)
                table = pa.table({"p": ["a", "b", None] * 2, "id": pa.array(ids, pa.int64())})
                lazydelta.write_arrow(self.root, table, max_attempts=100)
                self.written |= set(ids)
                self.turned.release()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.errors.append(error)

    def delete(self, turns: int, dice: random.Random) -> None:
        try:
            for _ in range(turns):
                transaction = begin(open_store(self.root))
                self.turned.release()
                plain = [each for each in files_of(transaction) if each.deletion_vector is None]
                if not plain:
                    transaction.close()
                    continue
                file = dice.choice(plain)
                ids: list[int] = pq.read_table(self.root / file.path).column("id").to_pylist()
                position = dice.randrange(len(ids))
                self.doomed.add(ids[position])
                try:
                    delete_rows(self.root, file, [position], transaction)
                except CommitConflictError:
                    self.doomed.discard(ids[position])  # another writer has changed the file: nothing was deleted
        except BaseException as error:  # noqa: BLE001
            self.errors.append(error)

    def table(self) -> lazydelta.DeltaTable:
        return lazydelta.DeltaTable(self.root, options={"checksum": "error"})

    def read(self) -> set[int]:
        """Read all rows; those that existed before and are not deleted must be there, each once."""
        before = set(self.written)
        found: list[int] = self.table().to_pyarrow_table(columns=["id"]).column("id").to_pylist()
        assert len(found) == len(set(found))
        assert before - self.doomed - set(found) == set()
        return set(found)


def _work(root: Path, turns: int) -> None:
    rows = pa.table({"p": ["a"], "id": pa.array([-1], pa.int64())})
    lazydelta.write_arrow(root, rows, partition_by=["p"], properties={"delta.enableDeletionVectors": "true"})
    work = _Work(root)
    work.written.add(-1)
    writers = [
        threading.Thread(target=work.append, args=(turns,)),
        threading.Thread(target=work.delete, args=(turns // 2, random.Random(1))),
    ]
    for each in writers:
        each.start()
    handle, packed, vacuumed = TableHandle.open(root), 0, 0
    over = False
    while not over:
        over = not any(each.is_alive() for each in writers)
        orphan = root / "p=a" / f"orphan-{packed}.parquet"
        orphan.write_bytes(b"x")
        os.utime(orphan, (1000, 1000))
        packed += optimize(handle, settings=OptimizeSettings(sort_by=["id"])).removed.count
        vacuumed += len(vacuum(handle, dry_run=False).paths)
        work.read()
        # Upkeep that never rests is faster than any writer, who then never gets a version: it waits for one to move on.
        work.turned.acquire(timeout=2)
    assert work.errors == []
    assert packed > 0
    assert vacuumed > 0
    assert work.read() == work.written - work.doomed
    # What was removed is younger than the retention: every file that any version had is still there.
    for version in range(work.table().version() + 1):
        assert {path for path, _ in replay(root / "_delta_log", version).files} <= data_files(root)


def test_writers_and_readers_beside_upkeep(tmp_path: Path) -> None:
    _work(tmp_path, 12)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_writers_and_readers_beside_upkeep_for_long(tmp_path: Path) -> None:
    _work(tmp_path, 300)
