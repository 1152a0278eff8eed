"""When a checkpoint is written and when not, and what is left when writing it fails or is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.errors import CorruptLogError, StorageError, UnsupportedFeatureError
from lazydelta.storage import Request, Store, observe, open_store
from lazydelta.write.checkpoint.writer import write_checkpoint
from tests.oracle.observe import observed_facts
from tests.scan.hand_log import HandLog, add, remove
from tests.write.checkpoints import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


# --- when, and when not


def test_a_checkpoint_that_is_there_is_left_alone(table: Path) -> None:
    log = HandLog(table)
    log.commit(add("a"), add("b"))
    store = open_store(table)
    first = write_checkpoint(store)
    before = (table / first.path).stat()
    second = write_checkpoint(store)
    assert (first.action, second.action) == ("written", "already-there")
    assert (table / first.path).stat().st_ino == before.st_ino
    same = ("version", "path", "size", "size_in_bytes", "num_of_add_files", "is_v1")
    assert [getattr(first, name) for name in same] == [getattr(second, name) for name in same]


def test_a_checkpoint_of_several_parts_counts_as_one(table: Path) -> None:
    log = HandLog(table)
    log.commit(*(add(f"f{number}") for number in range(9)))
    log.checkpoint(parts=3)
    result = write_checkpoint(open_store(table))
    assert (result.action, result.parts, result.size, result.num_of_add_files) == ("already-there", 3, 11, 9)


def test_an_empty_file_in_its_place_is_replaced(table: Path) -> None:
    log = HandLog(table)
    log.commit(add("a"))
    (table / "_delta_log" / f"{0:020d}.checkpoint.parquet").touch()
    assert write_checkpoint(open_store(table)).action == "written"
    assert [row["path"] for row in rows(table, 0, "add")] == ["a"]


def test_a_damaged_checkpoint_is_an_error_that_names_it(table: Path) -> None:
    log = HandLog(table)
    log.commit(add("a"))
    result = write_checkpoint(open_store(table))
    file = table / result.path
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CorruptLogError, match=r"checkpoint\.parquet"):
        write_checkpoint(open_store(table))


def test_another_writer_that_is_faster_keeps_its_checkpoint(table: Path) -> None:
    log = HandLog(table)
    log.commit(add("a"))
    store = open_store(table)
    theirs: list[bytes] = []

    def race(request: Request) -> None:
        if request.verb == "PUT" and not theirs:
            theirs.append(b"")
            theirs[0] = (table / write_checkpoint(open_store(table)).path).read_bytes()

    with observe(race):
        ours = write_checkpoint(store)
    assert ours.action == "already-there"
    assert (table / ours.path).read_bytes() == theirs[0]
    assert not list((table / "_delta_log").glob(".*"))


def test_a_table_with_unknown_writer_features_is_refused_by_name(table: Path) -> None:
    log = HandLog(table)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "newest"]}
    log.commit()
    log.commit({"protocol": protocol})
    with pytest.raises(UnsupportedFeatureError, match="newest") as caught:
        write_checkpoint(open_store(table))
    assert caught.value.features == ("newest",)
    assert not list((table / "_delta_log").glob("*.parquet"))


def test_progress_counts_the_files(table: Path) -> None:
    HandLog(table).commit(*(add(f"f{number}") for number in range(50)))
    seen: list[tuple[int, int | None]] = []
    write_checkpoint(open_store(table), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(50, None)]


def test_a_small_budget_makes_more_row_groups_and_the_same_checkpoint(table: Path) -> None:
    log = HandLog(table)
    log.commit(*(add(f"f{number:05d}", ids=(number, number)) for number in range(5_000)))
    store = open_store(table)
    result = write_checkpoint(store, memory_budget=1 << 20)
    metadata = pq.read_metadata(table / result.path)
    assert metadata.num_row_groups > 1
    assert [row["path"] for row in rows(table, 0, "add")] == [f"f{number:05d}" for number in range(5_000)]


# --- failures


def _requests(store: Store) -> list[str]:
    seen: list[str] = []
    with observe(lambda request: seen.append(request.verb)):
        write_checkpoint(store)
    return seen


def test_a_failure_at_any_request_leaves_the_table_as_it_was(table: Path) -> None:
    log = HandLog(table)
    log.commit(add("a"), add("b"))
    log.checkpoint()
    log.commit(add("c"), remove("a"))
    log.checksum()  # else it comes after the checkpoint, and its failure is no failure of that
    file = table / "_delta_log" / f"{1:020d}.checkpoint.parquet"
    count = len(_requests(open_store(table)))
    file.unlink()
    expected = log.state().facts
    for number in range(count):
        made = iter(range(count))

        def fail(_: Request, made: Iterator[int] = made, number: int = number) -> None:
            if next(made) == number:
                raise StorageError("the network is down")

        with observe(fail), pytest.raises(StorageError, match="network"):
            write_checkpoint(open_store(table))
        assert not file.exists()
        assert observed_facts(DeltaTable(table)) == expected
    assert write_checkpoint(open_store(table)).action == "written"


_KILLED = """
import json, sys
from lazydelta.storage import open_store
from lazydelta.write.checkpoint.writer import write_checkpoint
from tests.support.points import Points
with Points(sys.argv[2], int(sys.argv[3])).counting() as points:
    write_checkpoint(open_store(sys.argv[1]), memory_budget=1 << 20)
print(json.dumps(points.counts))
"""


def _killed(table: Path, kind: str, at: int) -> tuple[int, str]:
    """Write a checkpoint in a process that ends at a point; return how it ended, and what it said."""
    arguments = [sys.executable, "-c", _KILLED, str(table), kind, str(at)]
    child = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    return child.returncode, child.stdout


def test_a_writer_that_is_killed_leaves_a_readable_table(table: Path) -> None:
    log = HandLog(table)
    log.commit(*(add(f"f{number:06d}", ids=(number, number)) for number in range(30_000)))
    log.commit(*(remove(f"f{number:06d}") for number in range(100)))
    checkpoint = table / "_delta_log" / f"{1:020d}.checkpoint.parquet"
    code, said = _killed(table, "", 0)  # one is left alone, to learn where the others have to be killed
    assert code == 0
    counts = json.loads(said)
    checkpoint.unlink()
    (table / "_delta_log" / f"{1:020d}.crc").unlink()  # which comes with the checkpoint
    written = 0
    for kind, at in [
        ("request", 1 + counts["request"] // 2),
        ("write", 1),
        ("write", counts["write"] // 2),
        ("write", counts["write"] - 1),
        ("publication", 1),
        ("request", counts["request"]),
    ]:
        assert counts[kind] >= at >= 1
        code, _ = _killed(table, kind, at)
        assert code == -signal.SIGKILL, f"the process reached its end before {kind} {at}"
        assert sum(1 for _ in DeltaTable(table).files()) == 29_900
        assert deltalake.DeltaTable(table).version() == 1
        if checkpoint.exists():
            written += 1
            assert pq.read_metadata(checkpoint).num_rows > 29_900
            checkpoint.unlink()
    assert written == 1, "only the last one comes after the checkpoint"
    assert write_checkpoint(open_store(table)).num_of_add_files == 29_900


_LIGHT = """
import sys
from lazydelta.storage import open_store
from lazydelta.write.checkpoint.writer import write_checkpoint
write_checkpoint(open_store(sys.argv[1]))
print("pandas" in sys.modules)
"""


def test_a_checkpoint_does_not_load_pandas_into_the_writers_process(table: Path) -> None:
    """A second and 48 MB, in the middle of another writer's commits."""
    log = HandLog(table)
    log.commit(add("a", ids=(1, 2)), add("b"))
    log.checkpoint()
    log.commit(remove("a"), add("c", ids=(1, 2)), {"txn": {"appId": "app", "version": 1}})
    done = subprocess.run([sys.executable, "-c", _LIGHT, str(table)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
