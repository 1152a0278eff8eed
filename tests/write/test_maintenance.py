"""What follows a commit: in a safe order, once at a time, and never to the harm of the commit."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import OptionError, StorageError
from lazydelta.log.hint import HINT_PATH, read_hint
from lazydelta.log.snapshot import open_snapshot
from lazydelta.maintenance.after_commit import after_commit
from lazydelta.maintenance.background import BackgroundMaintenance, MaintenanceStatus
from lazydelta.maintenance.policy import is_due
from lazydelta.runtime.cache import shared
from lazydelta.sidecar.building.refresh import refresh_at
from lazydelta.sidecar.format.columns import DELTA_MANIFEST
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, Store, observe, open_store
from tests.oracle.observe import observed_facts
from tests.scan.hand_log import HandLog, Watch, add, remove, watching

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lazydelta.protocol.actions import Metadata
    from tests.support.azurite import Azurite

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


def test_delta_sidecars_are_kept_where_checkpoints_are_far_apart(table: Path) -> None:
    log = history(table, 126, {"delta.checkpointInterval": "1000"})
    store = open_store(table)
    handle, metadata = TableHandle.of(store), metadata_of(store)
    assert [version for version in range(201) if is_due(version, metadata)] == [50, 100, 150, 200]
    for version in range(120, 126):
        after_commit(handle, version, metadata)  # another writer was at version 100
    assert not store.exists(DELTA_MANIFEST)
    after_commit(handle, 150, metadata, sidecar=False)
    assert not store.exists(DELTA_MANIFEST)
    after_commit(handle, 150, metadata)
    assert store.exists(DELTA_MANIFEST)
    shared.clear()
    with watching() as watch:
        stream = DeltaTable(table).files()
        assert sorted(file.path for file in stream) == sorted(path for path, _ in log.state().files)
    assert stream.metrics.delta_commits == 125  # the first one has protocol and metadata
    assert watch.commits == 1


def test_a_commit_after_which_nothing_is_due_makes_no_request(table: Path) -> None:
    history(table, 10)
    store = open_store(table)
    metadata = metadata_of(store)
    with watching() as watch:
        after_commit(TableHandle.of(store), 9, metadata)
    assert watch.requests == []


def test_what_is_due_comes_in_an_order_that_is_safe_to_interrupt(table: Path) -> None:
    log = history(table)
    store = open_store(table)
    with watching() as watch:
        after_commit(TableHandle.of(store), 10, metadata_of(store))
    written = changes(watch)
    assert written.index(CHECKPOINT) < written.index(HINT_PATH) < written.index(MANIFEST)
    hint = read_hint(store)
    assert hint is not None
    assert (hint.version, hint.num_of_add_files) == (10, 10)
    found = DeltaTable(table)
    stream = found.files()
    assert sorted(file.path for file in stream) == sorted(path for path, _ in log.state().files)
    assert stream.metrics.tier == 1


@pytest.mark.parametrize("in_background", [False, True])
def test_the_options_of_the_table_hold_for_its_maintenance(
    table: Path, monkeypatch: pytest.MonkeyPatch, *, in_background: bool
) -> None:
    history(table)
    handle = TableHandle.open(table, options={"delta.commit.parallelism": 3})
    seen: list[int | None] = []

    def watched(given: TableHandle, **keywords: Any) -> Any:
        seen.append(given.options.commit_parallelism)
        return refresh_at(given, **keywords)

    monkeypatch.setattr("lazydelta.maintenance.after_commit.refresh_at", watched)
    if in_background:
        with BackgroundMaintenance(handle) as maintenance:
            maintenance.offer(10, handle.newest().metadata)
    else:
        after_commit(handle, 10, handle.newest().metadata)
    assert seen == [3]
    assert (table / MANIFEST).exists()


def test_the_sidecar_is_left_out_on_request(table: Path) -> None:
    history(table)
    store = open_store(table)
    after_commit(TableHandle.of(store), 10, metadata_of(store), sidecar=False)
    assert store.exists(CHECKPOINT)
    assert not store.exists(MANIFEST)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_log_is_cleaned_where_the_table_wants_it(enabled: bool, table: Path) -> None:  # noqa: FBT001 - a case
    configuration = {"delta.enableExpiredLogCleanup": str(enabled).lower(), "delta.logRetentionDuration": "1 days"}
    log = history(table, 21, configuration)
    store = open_store(table)
    after_commit(TableHandle.of(store), 10, metadata_of(store))
    for file in log.log.iterdir():
        os.utime(file, (time.time() - 5 * 86_400,) * 2)
    expected = log.state().facts
    after_commit(TableHandle.of(store), 20, metadata_of(store))
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
            after_commit(TableHandle.open(table), 10, metadata)
        assert observed_facts(DeltaTable(table)) == expected
        assert (table / CHECKPOINT).exists() or caplog.records
        if not failing.failed:
            break
        number += 1
    assert number > 10
    assert not caplog.records
    after_commit(TableHandle.open(table), 10, metadata)
    assert (table / MANIFEST).exists()


def test_a_checkpoint_that_fails_is_followed_by_nothing(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    history(table)
    store = open_store(table)
    metadata = metadata_of(store)

    def fail(request: Request) -> None:
        if request.path == CHECKPOINT and request.verb == "PUT":
            raise StorageError("the disk is full")

    with watching() as watch, observe(fail):
        after_commit(TableHandle.of(store), 10, metadata)
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
        after_commit(TableHandle.of(store), 10, metadata)
    assert store.exists(CHECKPOINT)
    assert read_hint(store) is not None
    assert "sidecar" in caplog.text


def test_a_property_that_makes_no_sense_is_logged(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    history(table, 11, {"delta.checkpointInterval": "often"})
    store = open_store(table)
    after_commit(TableHandle.of(store), 10, metadata_of(store))
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
        first = threading.Thread(target=after_commit, args=(TableHandle.of(store), 10, metadata), name="first")
        first.start()
        assert inside.wait(30)
        for version in (30, 20):
            after_commit(TableHandle.of(store), version, metadata)
        assert at_once == []
        go_on.set()
        first.join(30)
    assert at_once == [f"{10:020d} by first", f"{30:020d} by first"]
    hint = read_hint(store)
    assert hint is not None
    assert hint.version == 30


def checkpoint_path(version: int) -> str:
    return f"_delta_log/{version:020d}.checkpoint.parquet"


class _Gate:
    """Holds the writing of a checkpoint until it is opened, and notes which ones were begun, and by whom."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.inside, self.opened = threading.Event(), threading.Event()
        self.begun: list[str] = []

    def __call__(self, request: Request) -> None:
        if request.verb == "PUT" and request.path.endswith(".checkpoint.parquet"):
            self.begun.append(request.path)
            if request.path == self._path:
                self.inside.set()
                assert self.opened.wait(30)


def test_an_offer_makes_no_request_and_the_thread_does_all_of_it(table: Path) -> None:
    history(table)
    store = open_store(table)
    metadata = metadata_of(store)
    gate = _Gate(CHECKPOINT)
    threads: list[str] = []
    with (
        observe(gate),
        observe(lambda _: threads.append(threading.current_thread().name)),
        BackgroundMaintenance(table) as maintenance,
    ):
        assert not maintenance.offer(9, metadata)
        assert maintenance.offer(10, metadata)
        assert gate.inside.wait(30)
        assert maintenance.status == MaintenanceStatus(running=10)
        assert not maintenance.wait(0)
        gate.opened.set()
        assert maintenance.wait(30)
    assert threading.current_thread().name not in threads
    assert store.exists(MANIFEST)
    hint = read_hint(store)
    assert hint is not None
    assert hint.version == 10
    assert maintenance.status == MaintenanceStatus(runs=1, last_checkpoint=10, last_sidecar=10)


def test_of_the_versions_that_fall_due_during_a_run_the_newest_follows(table: Path) -> None:
    history(table, 41)
    store = open_store(table)
    metadata = metadata_of(store)
    gate = _Gate(CHECKPOINT)
    with observe(gate), BackgroundMaintenance(TableHandle.of(store)) as maintenance:
        maintenance.offer(10, metadata)
        assert gate.inside.wait(30)
        assert [version for version in range(11, 36) if maintenance.offer(version, metadata)] == [20, 30]
        assert maintenance.status.waiting == 30
        gate.opened.set()
    assert gate.begun == [CHECKPOINT, checkpoint_path(30)]
    assert maintenance.status == MaintenanceStatus(runs=2, last_checkpoint=30, last_sidecar=30)


def test_a_checkpoint_falls_due_though_another_writer_made_the_commit_in_question(table: Path) -> None:
    history(table, 13)
    metadata = metadata_of(open_store(table))
    with BackgroundMaintenance(table) as maintenance:
        assert not maintenance.offer(9, metadata)
        assert maintenance.offer(12, metadata)
        assert not maintenance.offer(11, metadata)
    assert maintenance.status.last_checkpoint == 12


def test_a_checkpoint_that_the_other_writer_made_is_enough(table: Path) -> None:
    history(table, 13)
    store = open_store(table)
    metadata = metadata_of(store)
    after_commit(TableHandle.of(store), 10, metadata, sidecar=False)
    with watching() as watch, BackgroundMaintenance(table) as maintenance:
        maintenance.offer(9, metadata)
        maintenance.offer(12, metadata)
    assert maintenance.status == MaintenanceStatus(runs=1, last_checkpoint=10, last_sidecar=10)
    assert not [path for path in changes(watch) if path.endswith(".checkpoint.parquet")]
    assert store.exists(MANIFEST)


def test_the_end_of_a_stream_may_ask_for_it_out_of_turn(table: Path) -> None:
    history(table, 13)
    metadata = metadata_of(open_store(table))
    with BackgroundMaintenance(table) as maintenance:
        assert maintenance.offer(12, metadata, force=True)
    assert maintenance.status.last_checkpoint == 12


def test_without_waiting_what_has_not_begun_is_dropped(table: Path) -> None:
    history(table, 21)
    store = open_store(table)
    metadata = metadata_of(store)
    gate = _Gate(CHECKPOINT)
    with observe(gate):
        maintenance = BackgroundMaintenance(TableHandle.of(store))
        maintenance.offer(10, metadata)
        assert gate.inside.wait(30)
        maintenance.offer(20, metadata)
        assert not maintenance.close(wait=False)
        assert not maintenance.offer(30, metadata)
        gate.opened.set()
        assert maintenance.wait(30)
    assert gate.begun == [CHECKPOINT]
    assert maintenance.status.last_checkpoint == 10


def test_closing_waits_no_longer_than_it_is_told(table: Path) -> None:
    history(table)
    store = open_store(table)
    gate = _Gate(CHECKPOINT)
    with observe(gate):
        maintenance = BackgroundMaintenance(TableHandle.of(store))
        maintenance.offer(10, metadata_of(store))
        assert not maintenance.close(timeout=0.01)
        gate.opened.set()
        assert maintenance.close()
    assert store.exists(CHECKPOINT)


def test_a_failure_is_logged_and_told_until_a_later_run_goes_well(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history(table, 21)
    store = open_store(table)
    metadata = metadata_of(store)
    maintenance = BackgroundMaintenance(TableHandle.of(store))

    def fail(request: Request) -> None:
        if "_sidecars" in request.path:
            raise StorageError("the network is down")

    with observe(fail):
        maintenance.offer(10, metadata)
        assert maintenance.wait(30)
    assert "the network is down" in caplog.text
    status = maintenance.status
    assert (status.runs, status.failures, status.last_checkpoint, status.last_sidecar) == (1, 1, 10, None)
    assert status.last_error is not None
    assert status.last_error.startswith("refresh the sidecar: the network is down")
    maintenance.offer(20, metadata)
    assert maintenance.close()
    assert maintenance.status == MaintenanceStatus(runs=2, failures=1, last_checkpoint=20, last_sidecar=20)


def test_an_offer_with_properties_that_make_no_sense_is_logged_and_declined(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history(table, 11, {"delta.checkpointInterval": "often"})
    with BackgroundMaintenance(table) as maintenance:
        assert not maintenance.offer(10, metadata_of(open_store(table)))
    assert "delta.checkpointInterval" in caplog.text


def test_the_options_of_an_open_store_are_its_own(table: Path) -> None:
    with pytest.raises(OptionError, match="storage_options"):
        BackgroundMaintenance(TableHandle.open(table), {"key": "value"})


def test_a_writer_leaves_its_maintenance_to_the_thread_that_is_at_it(table: Path) -> None:
    """And one thread of this process waits for the other, however many were made for the table."""
    history(table, 31)
    store = open_store(table)
    metadata = metadata_of(store)
    gate = _Gate(CHECKPOINT)
    with observe(gate), BackgroundMaintenance(TableHandle.of(store)) as first, BackgroundMaintenance(table) as second:
        first.offer(10, metadata)
        assert gate.inside.wait(30)
        second.offer(30, metadata)
        after_commit(TableHandle.of(store), 20, metadata)
        assert gate.begun == [CHECKPOINT]
        gate.opened.set()
    assert gate.begun == [CHECKPOINT, checkpoint_path(20), checkpoint_path(30)]
    assert (first.status.runs, second.status.runs) == (2, 1)


_TOGETHER = """
import sys
from lazydelta.log.snapshot import open_snapshot
from lazydelta.runtime.cache import shared
from lazydelta.sidecar.format.columns import DELTA_MANIFEST
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import open_store
from lazydelta.maintenance.background import BackgroundMaintenance
store = open_store(sys.argv[1])
metadata = open_snapshot(store).metadata
with BackgroundMaintenance(TableHandle.of(store)) as maintenance:
    print("ready", flush=True)
    sys.stdin.readline()
    maintenance.offer(10, metadata)
print(maintenance.status.last_checkpoint, maintenance.status.last_sidecar, maintenance.status.last_error)
"""


def test_two_processes_may_do_it_at_once(table: Path) -> None:
    log = history(table)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _TOGETHER, str(table)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate(timeout=60) for process in processes] == [("10 10 None\n", "")] * 2
    found = DeltaTable(table)
    stream = found.files()
    assert sorted(file.path for file in stream) == sorted(path for path, _ in log.state().files)
    assert stream.metrics.tier == 1
    assert observed_facts(found) == log.state().facts


_PROGRAM = """
import pickle, sys
from lazydelta.log.snapshot import open_snapshot
from lazydelta.runtime.cache import shared
from lazydelta.sidecar.format.columns import DELTA_MANIFEST
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import open_store
from lazydelta.maintenance.background import BackgroundMaintenance
store = pickle.loads(bytes.fromhex(sys.argv[1]))
maintenance = BackgroundMaintenance(TableHandle.of(store))
maintenance.offer(10, open_snapshot(store).metadata)
"""


def _run_to_its_end(store: Store) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, pickle.dumps(store.carrying_credentials()).hex()],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for path in (CHECKPOINT, HINT_PATH, MANIFEST):
        assert store.exists(path)


def test_a_program_ends_only_when_its_maintenance_is_done(table: Path) -> None:
    history(table)
    _run_to_its_end(open_store(table))


def test_a_program_that_writes_to_azure_ends_only_when_its_maintenance_is_done(table: Path, azurite: Azurite) -> None:
    history(table)
    uri = f"abfss://{azurite.container('ending')}@{azurite.account}.dfs.core.windows.net/{uuid.uuid4().hex}"
    store = open_store(uri, azurite.storage_options())
    for file in (table / "_delta_log").iterdir():
        store.put(f"_delta_log/{file.name}", file.read_bytes())
    _run_to_its_end(store)


_FORKED = """
import os, sys
from lazydelta.log.snapshot import open_snapshot
from lazydelta.runtime.cache import shared
from lazydelta.sidecar.format.columns import DELTA_MANIFEST
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import open_store
from lazydelta.maintenance.background import BackgroundMaintenance
store = open_store(sys.argv[1])
metadata = open_snapshot(store).metadata
maintenance = BackgroundMaintenance(TableHandle.of(store))
maintenance.offer(5, metadata)
child = os.fork()
maintenance.offer(20 if child else 10, metadata)
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
        timeout=240,  # an interpreter that compiles everything anew, on a busy machine
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (table / CHECKPOINT).exists()
    assert (table / "_delta_log" / f"{20:020d}.checkpoint.parquet").exists()


def test_the_log_of_a_table_that_we_may_not_write_to_is_left_alone_without_ado(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another writer may switch such a feature on right after our commit."""
    history(table, 11, {"delta.enableRowTracking": "true"})
    with caplog.at_level(logging.INFO), BackgroundMaintenance(table) as maintenance:
        maintenance.offer(10, metadata_of(open_store(table)))
    assert maintenance.status == MaintenanceStatus(runs=1, last_checkpoint=10, last_sidecar=10)
    left = [record for record in caplog.records if "is left as it is" in record.getMessage()]
    assert [record.levelno for record in left] == [logging.INFO]
    assert "rowTracking" in left[0].getMessage()
