"""A checkpoint that tasks write in parts: what one process writes, and never visible before it is complete."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lazydelta
from lazydelta import DeltaTable
from lazydelta.errors import StorageError, WriteError
from lazydelta.log.checkpoint.reader import Unit
from lazydelta.log.snapshot import open_snapshot
from lazydelta.storage import open_store
from lazydelta.write.checkpoint.distributed import PartWritten, SpreadCheckpoint, preview, write_checkpoint_in_parts
from lazydelta.write.checkpoint.writer import write_checkpoint, write_last_checkpoint
from tests.oracle.observe import observed_facts
from tests.oracle.random_log import random_log
from tests.oracle.replay import file_key
from tests.write.checkpoints import NOW, commits_only
from tests.write.peers import DuckDb

Units = Sequence[tuple[int, Unit]]


def in_turn(job: SpreadCheckpoint, units: Units) -> list[PartWritten]:
    """Write one part after the other, the last first, each as a process of its own would."""
    return [pickle.loads(pickle.dumps(job)).write(*each) for each in reversed(units)]  # noqa: S301 - our own


_WORKER = """
import pickle, sys
job, units = pickle.load(sys.stdin.buffer)
pickle.dump([job.write(*each) for each in units], sys.stdout.buffer)
"""


def elsewhere(job: SpreadCheckpoint, units: Units) -> list[PartWritten]:
    """Write the parts in another process, which has nothing in common with this one but the job."""
    ran = subprocess.run(
        [sys.executable, "-c", _WORKER], input=pickle.dumps((job, units)), capture_output=True, check=True
    )
    found: list[PartWritten] = pickle.loads(ran.stdout)  # noqa: S301 - our own
    return found


def failing(job: SpreadCheckpoint, units: Units) -> list[PartWritten]:
    """Write one part, and fail for good."""
    job.write(*units[0])
    raise StorageError("the executor is gone")


def parts(table: Path, version: int) -> list[Path]:
    return sorted((table / "_delta_log").glob(f"{version:020d}.checkpoint.*.*.parquet"))


def only_parts(table: Path, version: int) -> None:
    """Delete everything of the log that a reader does not need beside the parts and later commits."""
    keep = parts(table, version)
    for file in (table / "_delta_log").iterdir():
        if file.is_file() and file.name[:20].isdigit() and int(file.name[:20]) <= version and file not in keep:
            file.unlink()


def test_the_parts_of_any_log_hold_what_a_plain_replay_gives(tmp_path: Path) -> None:
    in_parts = 0
    for seed in range(20):
        log = random_log(seed, tmp_path / str(seed))
        commits_only(log)
        store = open_store(log.path)
        base = random.Random(seed).randrange(log.latest + 1)
        write_checkpoint(store, base, now=NOW, memory_budget=6)  # so that every batch is a row group
        expected = log.expected(log.latest)
        result = write_checkpoint_in_parts(store, in_turn, unit_rows=1, now=NOW)
        if result.parts is None:
            continue
        in_parts += 1
        assert len(parts(log.path, log.latest)) == result.parts
        only_parts(log.path, log.latest)
        assert observed_facts(DeltaTable(log.path)) == expected.facts, seed
        assert result.num_of_add_files == len(expected.files)
        actions = [row for path in parts(log.path, log.latest) for row in _actions(path)]
        assert result.size == len(actions)
        assert result.size_in_bytes == sum(path.stat().st_size for path in parts(log.path, log.latest))
        adds = {file_key(each["add"]): each["add"] for each in actions if "add" in each}
        assert set(adds) == set(expected.files)
        assert all(adds[key]["stats"] == expected.files[key].get("stats") for key in adds)
        dated = {key for key, each in expected.tombstones.items() if "deletionTimestamp" in each}
        assert {file_key(each["remove"]) for each in actions if "remove" in each} == dated
        assert len([each for each in actions if "remove" in each]) == len(dated)
        assert len([each for each in actions if "protocol" in each or "metaData" in each]) == 2
    assert in_parts > 5


def _actions(path: Path) -> list[dict[str, dict[str, object]]]:
    rows = pq.read_table(path, partitioning=None).to_pylist(maps_as_pydicts="strict")
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table of six commits, with a checkpoint of several row groups at the fourth."""
    root = tmp_path / "t"
    for number in range(6):
        rows = pa.table({"id": [number, number + 100], "p": ["a", "b"]})
        lazydelta.write_arrow(root, rows, partition_by=["p"], maintain=False)
        if number == 3:
            write_last_checkpoint(open_store(root), write_checkpoint(open_store(root), memory_budget=6))
    lazydelta.write_arrow(
        root, pa.table({"id": [7], "p": ["a"]}), mode="overwrite", overwrite_where="p = 'a'", maintain=False
    )
    return root


IDS = sorted([7, *range(100, 106)])
VERSION = 6


def _peers_find_all(table: Path) -> None:
    found = pa.table(deltalake.DeltaTable(table).to_pyarrow_table()).column("id").to_pylist()
    assert sorted(found) == IDS
    assert sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist()) == IDS
    duck = DuckDb()
    try:
        assert sorted(duck.rows(table)["id"].to_pylist()) == IDS
    finally:
        duck.close()


def _base(table: Path) -> int | None:
    checkpoint = open_snapshot(open_store(table)).segment.checkpoint
    return None if checkpoint is None else checkpoint.version


@pytest.mark.peers
def test_others_read_it_and_pass_by_one_that_is_not_complete(table: Path) -> None:
    store = open_store(table)
    with pytest.raises(StorageError):
        write_checkpoint_in_parts(store, failing, unit_rows=1)
    # So there is a part of another number beside it, and one of its own is empty.
    result = write_checkpoint_in_parts(store, elsewhere, unit_rows=1)
    assert result.parts is not None
    assert len(parts(table, VERSION)) == result.parts + 1 > 5
    assert any(pq.read_metadata(path).num_rows == 0 for path in parts(table, VERSION))
    incomplete = table.with_name("incomplete")
    shutil.copytree(table, incomplete)
    assert write_last_checkpoint(store, result)
    hint = json.loads((table / "_delta_log" / "_last_checkpoint").read_text())
    assert (hint["version"], hint["parts"], hint["numOfAddFiles"]) == (VERSION, result.parts, len(IDS))
    assert _base(table) == VERSION
    only_parts(table, VERSION)
    _peers_find_all(table)
    parts(incomplete, VERSION)[2].unlink()
    assert _base(incomplete) == 3
    _peers_find_all(incomplete)
    # And with a hint that names it: as good as none.
    (incomplete / "_delta_log" / "_last_checkpoint").write_text(json.dumps(hint))
    assert sorted(DeltaTable(incomplete).to_pyarrow_table()["id"].to_pylist()) == IDS


def test_nothing_is_visible_before_the_tasks_have_answered(table: Path) -> None:
    store = open_store(table)

    def watched(job: SpreadCheckpoint, units: Units) -> list[PartWritten]:
        done = in_turn(job, units)
        assert len(parts(table, VERSION)) == job.parts - 1
        assert _base(table) == 3
        return done

    assert write_checkpoint_in_parts(store, watched, unit_rows=1).action == "written"
    assert _base(table) == VERSION
    again = write_checkpoint_in_parts(store, watched, unit_rows=1)
    assert (again.action, again.parts) == ("already-there", len(parts(table, VERSION)))


def test_a_job_that_fails_leaves_nothing_that_counts_and_the_next_has_another_number(table: Path) -> None:
    store, jobs = open_store(table), list[tuple[SpreadCheckpoint, Units]]()

    def noted(job: SpreadCheckpoint, units: Units) -> list[PartWritten]:
        jobs.append((job, units))
        return failing(job, units)

    with pytest.raises(StorageError, match="executor"):
        write_checkpoint_in_parts(store, noted, unit_rows=1)
    [(first, units)] = jobs
    assert [path.name.split(".")[2] for path in parts(table, VERSION)] == ["0000000001"]
    assert _base(table) == 3
    done = write_checkpoint_in_parts(store, in_turn, unit_rows=1)
    assert done.parts == first.parts + 1
    # Tasks of the first job that are still at work somewhere complete nothing, though they write all they have to.
    in_turn(first, units)
    assert len([path for path in parts(table, VERSION) if path.name.endswith(f"{first.parts:010d}.parquet")]) == (
        first.parts - 1
    )
    only_parts(table, VERSION)
    assert sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist()) == IDS


def test_attempts_that_come_twice_or_late_change_nothing(table: Path) -> None:
    store, jobs = open_store(table), list[tuple[SpreadCheckpoint, Units]]()

    def twice(job: SpreadCheckpoint, units: Units) -> list[PartWritten]:
        jobs.append((job, units))
        first = in_turn(job, units)
        assert in_turn(job, units) == first
        return first

    result = write_checkpoint_in_parts(store, twice, unit_rows=1)
    before = {path: path.read_bytes() for path in parts(table, VERSION)}
    in_turn(*jobs[0])
    assert {path: path.read_bytes() for path in parts(table, VERSION)} == before
    assert result.num_of_add_files == len(IDS)


def test_parts_of_somebody_else_are_not_taken_for_ours(table: Path) -> None:
    """Another writer with as many parts, as the protocol does not rule out."""
    store = open_store(table)

    def disturbed(job: SpreadCheckpoint, units: Units) -> list[PartWritten]:
        done = in_turn(job, units)
        place = parts(table, VERSION)[-1]
        same = pq.read_table(place, partitioning=None).replace_schema_metadata(None)
        pq.write_table(same, place)
        return done

    with pytest.raises(WriteError, match="another writer"):
        write_checkpoint_in_parts(store, disturbed, unit_rows=1)
    assert _base(table) == 3

    def disturbed_before(job: SpreadCheckpoint, units: Units) -> list[PartWritten]:
        number = units[0][0]
        place = table / "_delta_log" / f"{VERSION:020d}.checkpoint.{number:010d}.{job.parts:010d}.parquet"
        pq.write_table(pa.table({"add": [1]}), place)
        return in_turn(job, units)

    with pytest.raises(WriteError, match="another writer"):
        write_checkpoint_in_parts(store, disturbed_before, unit_rows=1)


def test_a_checkpoint_of_others_that_was_faster_stays(table: Path) -> None:
    store = open_store(table)

    def slow(job: SpreadCheckpoint, units: Units) -> list[PartWritten]:
        write_checkpoint(store, VERSION)
        return in_turn(job, units)

    result = write_checkpoint_in_parts(store, slow, unit_rows=1)
    assert (result.action, result.parts) == ("already-there", None)
    assert len(parts(table, VERSION)) == 1


def test_what_jobs_left_that_were_killed_goes_after_a_day(table: Path) -> None:
    store = open_store(table)

    class Killed(BaseException):
        pass

    def killed(job: SpreadCheckpoint, units: Units) -> list[PartWritten]:
        in_turn(job, units)
        for path in parts(table, VERSION):
            os.utime(path, (time.time() - 90_000,) * 2)
        # A killed driver deletes nothing: what it has written is put back after the block below has.
        saved.update({path: path.read_bytes() for path in parts(table, VERSION)})
        raise Killed

    saved: dict[Path, bytes] = {}
    with pytest.raises(Killed):
        write_checkpoint_in_parts(store, killed, unit_rows=1)
    stranger = table / "_delta_log" / f"{VERSION:020d}.checkpoint.{1:010d}.{77:010d}.parquet"
    pq.write_table(pa.table({"a": [1]}), stranger)
    for path, data in saved.items():
        path.write_bytes(data)
    for path in (*saved, stranger):
        os.utime(path, (time.time() - 90_000,) * 2)
    assert _base(table) == 3
    result = write_checkpoint_in_parts(store, in_turn, unit_rows=1)
    left = set(parts(table, VERSION))
    assert left.isdisjoint(saved)
    assert stranger in left  # whose it is is not known
    assert len(left) == (result.parts or 0) + 1


def test_one_file_is_written_where_parts_are_ruled_out_or_not_worth_it(table: Path) -> None:
    foreseen = preview(open_store(table))
    assert (foreseen.action, foreseen.version, foreseen.actions) == ("write", VERSION, 8 + 2)
    done = write_checkpoint_in_parts(open_store(table), in_turn)
    assert (done.action, done.parts, done.path.endswith(".checkpoint.parquet")) == ("written", None, True)
    assert preview(open_store(table)).action == "keep"
