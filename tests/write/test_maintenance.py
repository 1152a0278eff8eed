"""What follows a commit: in a safe order, once at a time, and never to the harm of the commit."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import StorageError
from lazydelta.log.hint import HINT_PATH, read_hint
from lazydelta.log.opening import open_snapshot
from lazydelta.storage import Request, Store, observe, open_store
from lazydelta.write.maintenance import MaintenanceRunner, after_commit, background, is_due
from tests.oracle.observe import observed_facts
from tests.scan.hand_log import HandLog, Watch, add, remove, watching

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lazydelta.log.actions import Metadata

MANIFEST = "_delta_log/_sidecars/v10.manifest.json"
CHECKPOINT = f"_delta_log/{10:020d}.checkpoint.parquet"


def history(table: Path, commits: int = 11, configuration: Mapping[str, str] | None = None) -> HandLog:
    """Write a table of so many commits, each with a file more."""
    log = HandLog(table, configuration=configuration)
    for version in range(commits):
        log.commit(add(f"f{version}", ids=(version, version)), *([remove("f0")] if version == 5 else []))
    return log


def metadata_of(store: Store) -> Metadata:
    return open_snapshot(store).metadata


def changes(watch: Watch) -> list[str]:
    """Return the paths written and deleted, in order."""
    return [each.path for each in watch.requests if each.verb in {"PUT", "DELETE"}]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.mark.parametrize(
    ("configuration", "due"), [({}, [10, 20]), ({"delta.checkpointInterval": "7"}, [7, 14, 21])], ids=["ten", "seven"]
)
def test_a_checkpoint_is_due_every_so_many_commits(
    configuration: Mapping[str, str], due: list[int], table: Path
) -> None:
    history(table, 1, configuration)
    metadata = metadata_of(open_store(table))
    assert [version for version in range(25) if is_due(version, metadata)] == due


def test_a_commit_after_which_nothing_is_due_makes_no_request(table: Path) -> None:
    history(table, 10)
    store = open_store(table)
    metadata = metadata_of(store)
    with watching() as watch:
        after_commit(store, 9, metadata)
    assert watch.requests == []


def test_what_is_due_comes_in_an_order_that_is_safe_to_interrupt(table: Path) -> None:
    log = history(table)
    store = open_store(table)
    with watching() as watch:
        after_commit(store, 10, metadata_of(store))
    written = changes(watch)
    assert written.index(CHECKPOINT) < written.index(HINT_PATH) < written.index(MANIFEST)
    hint = read_hint(store)
    assert hint is not None
    assert (hint.version, hint.num_of_add_files) == (10, 10)
    found = DeltaTable(table)
    stream = found.files()
    assert sorted(file.path for file in stream) == sorted(path for path, _ in log.state().files)
    assert stream.metrics.tier == 1


def test_the_sidecar_is_left_out_on_request(table: Path) -> None:
    history(table)
    store = open_store(table)
    after_commit(store, 10, metadata_of(store), sidecar=False)
    assert store.exists(CHECKPOINT)
    assert not store.exists(MANIFEST)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_log_is_cleaned_where_the_table_wants_it(enabled: bool, table: Path) -> None:  # noqa: FBT001 - a case
    configuration = {"delta.enableExpiredLogCleanup": str(enabled).lower(), "delta.logRetentionDuration": "1 days"}
    log = history(table, 21, configuration)
    store = open_store(table)
    after_commit(store, 10, metadata_of(store))
    for file in log.log.iterdir():
        os.utime(file, (time.time() - 5 * 86_400,) * 2)
    expected = log.state().facts
    after_commit(store, 20, metadata_of(store))
    assert (log.log / f"{0:020d}.json").exists() is not enabled
    assert observed_facts(DeltaTable(table)) == expected


class _FailingAt:
    """Fails one request of many, by its number."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.failed = False

    def __call__(self, _: Request) -> None:
        self._left -= 1
        if self._left == -1:
            self.failed = True
            raise StorageError("the network is down")


def test_a_failure_at_any_request_is_logged_and_never_raised(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The table is readable after each, and the next time everything is made good."""
    log = history(table)
    metadata = metadata_of(open_store(table))
    expected = log.state().facts
    number = 0
    while True:
        for file in (table / "_delta_log").rglob("*"):
            if file.is_file() and file.suffix != ".json":
                file.unlink()
        for file in (table / "_delta_log" / "_sidecars").glob("*"):
            file.unlink()
        failing = _FailingAt(number)
        caplog.clear()
        with observe(failing):
            after_commit(open_store(table), 10, metadata)
        assert observed_facts(DeltaTable(table)) == expected
        assert (table / CHECKPOINT).exists() or caplog.records
        if not failing.failed:
            break
        number += 1
    assert number > 10
    assert not caplog.records
    after_commit(open_store(table), 10, metadata)
    assert (table / MANIFEST).exists()


def test_a_checkpoint_that_fails_is_followed_by_nothing(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    history(table)
    store = open_store(table)
    metadata = metadata_of(store)

    def fail(request: Request) -> None:
        if request.path == CHECKPOINT and request.verb == "PUT":
            raise StorageError("the disk is full")

    with watching() as watch, observe(fail):
        after_commit(store, 10, metadata)
    assert changes(watch) == [CHECKPOINT]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "checkpoint 10" in caplog.text
    assert "disk is full" in caplog.text


def test_a_sidecar_that_fails_costs_neither_checkpoint_nor_hint(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    history(table)
    store = open_store(table)
    metadata = metadata_of(store)

    def fail(request: Request) -> None:
        if "_sidecars" in request.path:
            raise StorageError("forbidden")

    with observe(fail):
        after_commit(store, 10, metadata)
    assert store.exists(CHECKPOINT)
    assert read_hint(store) is not None
    assert "sidecar" in caplog.text


def test_a_property_that_makes_no_sense_is_logged(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    history(table, 11, {"delta.checkpointInterval": "often"})
    store = open_store(table)
    after_commit(store, 10, metadata_of(store))
    assert "delta.checkpointInterval" in caplog.text
    assert not store.exists(CHECKPOINT)


def test_one_table_is_worked_on_once_at_a_time_and_the_newest_version_is_not_forgotten(table: Path) -> None:
    """While version 10 is at work, 20 and 30 come: 30 follows, in the run that was there."""
    history(table, 31)
    store = open_store(table)
    metadata = metadata_of(store)
    inside = threading.Event()
    go_on = threading.Event()
    at_once: list[str] = []

    def wait(request: Request) -> None:
        if request.verb == "PUT" and request.path == CHECKPOINT:
            inside.set()
            assert go_on.wait(30)
        if request.verb == "PUT" and request.path.endswith(".checkpoint.parquet"):
            at_once.append(f"{request.path[11:31]} by {threading.current_thread().name}")

    with observe(wait):
        first = threading.Thread(target=after_commit, args=(store, 10, metadata), name="first")
        first.start()
        assert inside.wait(30)
        for version in (30, 20):
            after_commit(store, version, metadata)
        assert at_once == []
        go_on.set()
        first.join(30)
    assert at_once == [f"{10:020d} by first", f"{30:020d} by first"]
    hint = read_hint(store)
    assert hint is not None
    assert hint.version == 30


def test_the_background_runner_does_the_same_behind_the_writers_back(table: Path) -> None:
    history(table)
    store = open_store(table)
    runner = MaintenanceRunner()
    runner.after_commit(store, 9, metadata_of(store))
    runner.after_commit(store, 10, metadata_of(store))
    assert runner.drain(30)
    assert store.exists(CHECKPOINT)
    assert store.exists(MANIFEST)


def test_the_background_runner_survives_a_failure(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    history(table, 21)
    store = open_store(table)
    metadata = metadata_of(store)
    runner = MaintenanceRunner()

    def fail(_: Request) -> None:
        raise StorageError("the network is down")

    with observe(fail):
        runner.after_commit(store, 10, metadata)
        assert runner.drain(30)
    assert "the network is down" in caplog.text
    runner.after_commit(store, 20, metadata)
    assert runner.drain(30)
    assert store.exists(f"_delta_log/{20:020d}.checkpoint.parquet")


def test_there_is_one_background_runner_for_a_process() -> None:
    assert background() is background()


_PROGRAM = """
import sys
from lazydelta.log.opening import open_snapshot
from lazydelta.storage import open_store
from lazydelta.write.maintenance import background
store = open_store(sys.argv[1])
background().after_commit(store, 10, open_snapshot(store).metadata)
"""


def test_a_program_ends_only_when_its_maintenance_is_done(table: Path) -> None:
    history(table)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(table)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (table / CHECKPOINT).exists()
    assert (table / HINT_PATH).exists()
    assert (table / MANIFEST).exists()


_FORKED = """
import os, sys
from lazydelta.log.opening import open_snapshot
from lazydelta.storage import open_store
from lazydelta.write.maintenance import background
store = open_store(sys.argv[1])
metadata = open_snapshot(store).metadata
background().drain()
child = os.fork()
background().after_commit(store, 20 if child else 10, metadata)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_does_its_own_maintenance(table: Path) -> None:
    history(table, 21)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKED, str(table)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (table / CHECKPOINT).exists()
    assert (table / "_delta_log" / f"{20:020d}.checkpoint.parquet").exists()
