"""A table that wants it is compacted while it is written to: few files, every row once."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pytest

import lazydelta
from lazydelta.ingest.arrow import commit_arrow
from lazydelta.maintenance import BackgroundMaintenance, background
from lazydelta.maintenance.after_commit import after_commit
from lazydelta.maintenance.background import maintain_now, start_maintenance, wait_for_maintenance
from lazydelta.maintenance.policy import MaintenancePolicy, due_after
from lazydelta.protocol.actions import Metadata
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, observe, open_store
from lazydelta.write.options import WriteOptions

AUTO = {"delta.autoOptimize.autoCompact": "true"}
HOURS = 3


def append(root: Path, number: int, properties: dict[str, str] | None = None, *, maintain: bool = True) -> Any:
    """Append a small batch of rows of three hours."""
    rows = pa.table(
        {"hour": [f"h{each}" for each in range(HOURS)], "id": pa.array([number * HOURS + i for i in range(3)])}
    )
    options = WriteOptions(
        partition_by=["hour"], properties=AUTO if properties is None else properties, maintain=maintain
    )
    return commit_arrow(root, rows, options)


def ids(root: Path) -> list[int]:
    found: list[int] = deltalake.DeltaTable(root).to_pyarrow_table().column("id").to_pylist()
    return sorted(found)


def active(root: Path) -> int:
    return len(lazydelta.DeltaTable(root, options={"checksum": "error"}).files().collect())


def operations(root: Path) -> list[str]:
    return [each["operation"] for each in lazydelta.DeltaTable(root).history()]


@pytest.mark.parametrize("commits", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_many_small_commits_leave_few_files_at_any_time(tmp_path: Path, commits: int) -> None:
    for number in range(commits):
        append(tmp_path, number)
        assert active(tmp_path) <= 20
    assert ids(tmp_path) == list(range(commits * HOURS))
    assert operations(tmp_path).count("OPTIMIZE") >= commits // 5


def test_tables_that_do_not_say_so_are_left_alone(tmp_path: Path) -> None:
    for number in range(11):
        append(tmp_path, number, {})
    assert active(tmp_path) == 33


@pytest.mark.parametrize(
    ("text", "due"),
    [("true", True), ("auto", True), ("TRUE", True), ("false", False), ("legacy", False), (None, False)],
)
def test_the_property_says_it(text: str | None, *, due: bool) -> None:
    metadata = Metadata(id="", schema_string="", configuration={"delta.autoOptimize.autoCompact": text})
    found = due_after(5, metadata)
    assert (found is not None and found.compacts) is due


def test_compaction_falls_due_with_every_fifth_version_and_checkpoints_as_ever() -> None:
    metadata = Metadata(id="", schema_string="", configuration=dict(AUTO))
    found = [due_after(version, metadata) for version in range(11)]
    assert [each.version for each in found if each] == [5, 10]
    assert found[5] == MaintenancePolicy(5, None, cleans_log=False, compacts=True)
    assert found[10] == MaintenancePolicy(10, 10, cleans_log=True, compacts=True)
    assert due_after(7, metadata, since=4) == MaintenancePolicy(7, None, cleans_log=False, compacts=True)
    assert due_after(7, metadata, since=5) is None


def test_a_checkpoint_that_waits_is_not_forgotten_for_a_compaction_that_comes_later() -> None:
    waiting, later = (
        MaintenancePolicy(10, 10, cleans_log=True),
        MaintenancePolicy(15, None, cleans_log=False, compacts=True),
    )
    assert later.after(waiting) == MaintenancePolicy(15, 10, cleans_log=True, compacts=True)
    assert MaintenancePolicy(20, 20, cleans_log=True).after(later) == MaintenancePolicy(
        20, 20, cleans_log=True, compacts=True
    )
    assert later.after(None) is later


def test_a_writer_that_goes_on_gets_its_checkpoint_though_compactions_fall_due_behind_it(tmp_path: Path) -> None:
    """The run of version 5 is held up until 10 and 15 were offered: what was due with 10 is left to 15."""
    commits = [append(tmp_path, number, maintain=False) for number in range(16)]
    released = threading.Event()

    def gate(request: Request) -> None:
        if request.verb == "PUT" and request.path.endswith(".json"):
            assert released.wait(100)

    with observe(gate), BackgroundMaintenance(tmp_path) as maintenance:
        for number in (5, 10, 15):
            maintenance.offer(commits[number].version, commits[number].metadata)
        released.set()
    assert maintenance.status.last_error is None
    assert maintenance.status.last_checkpoint is not None
    assert ids(tmp_path) == list(range(16 * HOURS))


def test_a_compaction_whose_commit_makes_the_checkpoint_due_brings_it(tmp_path: Path) -> None:
    """Version 5 makes compaction due, which is version 6, and with it the checkpoint of every sixth."""
    for number in range(6):
        append(tmp_path, number, AUTO | {"delta.checkpointInterval": "6"})
    assert operations(tmp_path)[0] == "OPTIMIZE"
    assert (tmp_path / "_delta_log" / f"{6:020}.checkpoint.parquet").exists()


def test_only_partitions_that_were_written_to_lately_are_looked_at(tmp_path: Path) -> None:
    for number in range(4):
        append(tmp_path, number, maintain=False)
    old = pa.table({"hour": ["old"], "id": pa.array([-1])})
    for _ in range(3):
        lazydelta.write_arrow(tmp_path, old, maintain=False)
    for number in range(4, 27):
        append(tmp_path, number, maintain=False)
    done = append(tmp_path, 27, maintain=False)
    assert done.version == 30
    maintain_now(TableHandle.open(tmp_path), done.version, done.metadata)
    table = lazydelta.DeltaTable(tmp_path)
    assert len(table.files("hour = 'old'").collect()) == 3
    assert len(table.files("hour != 'old'").collect()) == HOURS


def test_a_thread_and_a_process_of_its_own_do_it_too(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for root in (first, second):
        for number in range(5):
            append(root, number, maintain=False)
        done = append(root, 5, maintain=False)
    with BackgroundMaintenance(first) as maintenance:
        assert maintenance.offer(done.version, done.metadata)
    assert maintenance.status.last_error is None
    start_maintenance(TableHandle.open(second))
    assert wait_for_maintenance(str(second), 100)
    for process in background._started:
        process.wait(100)
    for root in (first, second):
        assert active(root) == HOURS
        assert ids(root) == list(range(6 * HOURS))


def test_rows_that_others_append_meanwhile_are_there(tmp_path: Path) -> None:
    for number in range(5):
        append(tmp_path, number, maintain=False)
    done: list[int] = []

    def interrupt(request: Request) -> None:
        if request.verb == "PUT" and request.path.endswith(f"{6:020}.json") and not done:
            done.append(1)
            append(tmp_path, 6, maintain=False)

    with observe(interrupt):
        append(tmp_path, 5)
    assert done
    assert ids(tmp_path) == list(range(7 * HOURS))
    assert active(tmp_path) == 2 * HOURS


def test_a_failure_never_reaches_the_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        append(tmp_path, number, maintain=False)
    wrote: list[str] = []

    def refuse(request: Request) -> None:
        if request.verb == "PUT" and request.path.endswith(".parquet"):
            wrote.append(request.path)
            if len(wrote) > HOURS:
                raise PermissionError(13, "not yours")

    with observe(refuse), caplog.at_level(logging.ERROR):
        assert append(tmp_path, 5).version == 5
    assert "Could not compact the files" in caplog.text
    assert ids(tmp_path) == list(range(6 * HOURS))
    assert len(list(open_store(tmp_path).walk(lambda path: path == "_delta_log"))) == 6 * HOURS


def test_a_table_that_we_do_not_write_to_is_left_to_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        append(tmp_path, number, maintain=False)
    done = append(tmp_path, 5, maintain=False)
    store = open_store(tmp_path)
    metadata = msgspec.structs.replace(
        done.metadata, configuration=AUTO | {"delta.constraints.positive": "id > 0", "delta.checkpointInterval": "100"}
    )
    line = {"metaData": msgspec.to_builtins(metadata)}
    store.put(f"_delta_log/{6:020}.json", msgspec.json.encode(line))
    with caplog.at_level(logging.INFO):
        after_commit(TableHandle.of(store), 10, metadata)
    assert "are left as they are" in caplog.text
    assert "Could not" not in caplog.text
    assert active(tmp_path) == 6 * HOURS


def test_files_near_the_target_are_not_rewritten_again_and_again(tmp_path: Path) -> None:
    """Whatever is a fourth of the target or more is left to OPTIMIZE."""
    for number in range(6):
        append(tmp_path, number, AUTO | {"delta.targetFileSize": "400"})
    assert active(tmp_path) == 6 * HOURS
    assert lazydelta.DeltaTable(tmp_path).version() == 5


def test_spark_passes_the_property_on() -> None:
    given = WriteOptions.from_spark({"delta.autooptimize.autocompact": "true", "delta.targetfilesize": "1mb"})
    assert given.properties == AUTO | {"delta.targetFileSize": "1mb"}
