"""``_last_checkpoint`` only moves forward, for every writer and from every state."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta.errors import StorageError
from lazydelta.log.checkpoint.reader import CheckpointResult
from lazydelta.log.hint import HINT_PATH, hint_checksum, read_hint
from lazydelta.storage import Request, Store, observe, open_store
from lazydelta.write.checkpoint.writer import write_checkpoint, write_last_checkpoint
from tests.scan.hand_log import HandLog, add
from tests.storage.conftest import make_place

if TYPE_CHECKING:
    from pathlib import Path


def result(version: int, **changes: Any) -> CheckpointResult:
    """Return what writing a checkpoint of nothing would."""
    facts: dict[str, Any] = {"action": "written", "path": "x", "size_in_bytes": 100, "size": 3, "num_of_add_files": 1}
    return CheckpointResult(**(facts | {"version": version} | changes))


def with_checkpoint(store: Store, version: int) -> None:
    """Put an object where the checkpoint of a version is looked for."""
    store.put(f"_delta_log/{version:020d}.checkpoint.parquet", b"PAR1")


@pytest.fixture(params=["local", "memory", "abfss", "s3"])
def store(request: pytest.FixtureRequest) -> Store:
    return make_place(request.param, request).open()


def hinted(store: Store) -> int | None:
    hint = read_hint(store)
    return None if hint is None else hint.version


def test_the_hint_says_what_was_written(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "table")
    log.commit(add("a"), add("b"))
    store = open_store(log.table)
    written = write_checkpoint(store)
    assert write_last_checkpoint(store, written)
    content = json.loads(store.get(HINT_PATH))
    checksum = content["checksum"]
    assert content == {
        "version": 0,
        "size": 4,
        "sizeInBytes": (log.table / written.path).stat().st_size,
        "numOfAddFiles": 2,
        "checksum": checksum,
    }
    assert checksum == hint_checksum(content)


def test_the_hint_of_several_parts_counts_them(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "table")
    log.commit(add("a"), add("b"))
    log.checkpoint(parts=2, hint=False)
    store = open_store(log.table)
    assert write_last_checkpoint(store, write_checkpoint(store))
    assert json.loads(store.get(HINT_PATH))["parts"] == 2


def test_the_hint_moves_forward_and_never_back(store: Store) -> None:
    for version in (10, 20):
        with_checkpoint(store, version)
    assert write_last_checkpoint(store, result(10))
    assert write_last_checkpoint(store, result(20))
    before = store.get(HINT_PATH)
    assert not write_last_checkpoint(store, result(10))
    assert not write_last_checkpoint(store, result(20))
    assert store.get(HINT_PATH) == before
    assert hinted(store) == 20


@pytest.mark.parametrize(
    "found",
    [b"", b"{", b"null", b'{"version":"x"}', b"\xff\xfe", b'{"version":90,"size":1,"checksum":"0"}'],
    ids=["empty", "torn", "null", "text", "binary", "checksum"],
)
def test_a_hint_that_makes_no_sense_is_replaced(found: bytes, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put(HINT_PATH, found)
    assert write_last_checkpoint(store, result(10))
    assert hinted(store) == 10


def test_a_hint_that_leads_nowhere_is_replaced(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put(HINT_PATH, b'{"version":90,"size":1}')
    assert write_last_checkpoint(store, result(10))
    assert hinted(store) == 10


def test_a_checkpoint_of_another_kind_is_left_to_its_writer(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert not write_last_checkpoint(store, result(10, is_v1=False, size=None))
    assert hinted(store) is None


def test_losing_a_race_to_a_newer_hint_leaves_the_newer_one(store: Store) -> None:
    """The other writer comes between our look and our write."""
    for version in (10, 20, 30):
        with_checkpoint(store, version)
    write_last_checkpoint(store, result(10))
    raced: list[bool] = []

    def race(request: Request) -> None:
        if request.verb == "PUT" and request.path == HINT_PATH and not raced:
            raced.append(True)
            raced.append(write_last_checkpoint(store, result(30)))

    with observe(race):
        assert not write_last_checkpoint(store, result(20))
    assert raced == [True, True]
    assert hinted(store) == 30


def test_a_race_for_the_first_hint_is_won_by_the_newer_one(store: Store) -> None:
    for version in (10, 20):
        with_checkpoint(store, version)
    raced: list[bool] = []

    def race(request: Request) -> None:
        if request.verb == "PUT" and request.path == HINT_PATH and not raced:
            raced.append(True)
            write_last_checkpoint(store, result(10))

    with observe(race):
        assert write_last_checkpoint(store, result(20))
    assert hinted(store) == 20


def test_many_writers_at_once_end_with_the_newest(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    versions = list(range(10, 210, 10))
    for version in versions:
        with_checkpoint(store, version)
    start = threading.Barrier(len(versions))
    done: list[int] = []

    def write(version: int) -> None:
        start.wait()
        while True:
            moved = write_last_checkpoint(store, result(version))
            if moved or (hinted(store) or 0) >= version:
                break
        done.append(version)

    threads = [threading.Thread(target=write, args=(version,)) for version in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == versions
    assert hinted(store) == 200


def test_a_store_that_fails_is_an_error_and_no_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with_checkpoint(store, 10)
    write_last_checkpoint(store, result(10))

    def fail(request: Request) -> None:
        if request.verb == "PUT":
            raise StorageError("the network is down")

    with observe(fail), pytest.raises(StorageError, match="network"):
        write_last_checkpoint(store, result(20))
    assert hinted(store) == 10
