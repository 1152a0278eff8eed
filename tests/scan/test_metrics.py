"""What a scan says it did, on tables where everything can be counted by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import DeltaTable
from lazydelta.scan.scanner import ScanPlan, choose_plan, describe_metric
from lazydelta.testing import make_table
from lazydelta.warned import ChecksumWarning
from tests.scan.hand_log import HandLog, add, paths, remove, watching

if TYPE_CHECKING:
    from pathlib import Path

NAMES = {
    "delta.lazy.commits_scanned",
    "delta.lazy.files_emitted",
    "delta.lazy.fallback_triggered",
    "delta.lazy.remove_set_size",
    "delta.lazy.time_to_first_file_ms",
    "delta.lazy.requests",
    "delta.lazy.bytes_read",
    "delta.lazy.row_groups_read",
    "delta.lazy.row_groups_pruned",
    "delta.lazy.files_pruned",
    "delta.lazy.tier",
    "delta.lazy.sidecar_hits",
    "delta.lazy.cache_hits",
    "delta.lazy.peak_buffer_bytes",
    "delta.lazy.peak_memory_bytes",
}
both = pytest.mark.parametrize("strategy", ["reverse", "forward"])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Ten files in the base, of which the tail removes one; three commits add five."""
    log = HandLog(tmp_path)
    log.commit(*(add(f"base{number}", ids=(number, number), records=3) for number in range(10)))
    log.checkpoint()
    log.commit(add("t1", ids=(1, 1)), add("t2", ids=(2, 2)))
    log.commit(remove("base9"), add("t3", ids=(3, 3)))
    log.commit(add("t4", ids=(4, 4)), add("t5", ids=(5, 5)))
    log.checksum()
    return tmp_path


def test_the_metrics_have_the_names_that_dashboards_know(table: Path) -> None:
    stream = DeltaTable(table).files()
    stream.collect()
    exported = stream.metrics.as_dict()
    assert exported.keys() >= NAMES
    assert all(name.startswith("delta.lazy.") for name in exported)
    assert stream.explain().metrics == exported


@both
def test_a_whole_scan_counts_everything_once(strategy: str, table: Path) -> None:
    with watching() as watch:
        stream = DeltaTable(table).files(strategy=strategy)
        assert len(stream.collect()) == 14
    metrics = stream.metrics
    assert metrics.files_emitted == 14
    assert metrics.files_pruned == 0
    assert metrics.commits_scanned == 3
    assert metrics.remove_set_size == 6, "five adds and one remove"
    assert metrics.fallback_triggered == 0
    assert metrics.tier == 3
    assert metrics.strategy == strategy
    assert metrics.requests == len(watch.requests), "those of opening are among them"
    assert 0 < metrics.open_requests < metrics.requests
    assert metrics.row_groups_read >= 1
    assert metrics.bytes_read > 0
    assert metrics.peak_buffer_bytes > 0
    assert metrics.time_to_first_file_ms is not None


@both
def test_pruned_files_are_counted_in_tail_and_base(strategy: str, table: Path) -> None:
    stream = DeltaTable(table).files("id >= 5 and id < 9", strategy=strategy)
    assert sorted(paths(stream)) == ["base5", "base6", "base7", "base8", "t5"]
    assert stream.metrics.files_emitted == 5
    assert stream.metrics.files_emitted + stream.metrics.files_pruned in {14, 15}, "base9 is removed and excluded"


def test_a_limited_scan_counts_what_it_did_not_what_it_could_have_done(table: Path) -> None:
    stream = DeltaTable(table).files(limit=2)
    assert paths(stream) == ["t4", "t5"]
    assert stream.metrics.files_emitted == 2
    assert stream.metrics.commits_scanned == 1
    assert stream.metrics.row_groups_read == 0
    assert stream.metrics.tier == 0
    assert (stream.metrics.strategy, stream.metrics.reason) == ("reverse", "a limit of 2 files ends the scan early")


def test_the_counters_move_while_the_scan_goes_on(table: Path) -> None:
    stream = DeltaTable(table).files(strategy="reverse", batch_size=1)
    assert (stream.metrics.files_emitted, stream.metrics.requests) == (0, 0)
    assert stream.metrics.time_to_first_file_ms is None
    for number, _ in enumerate(stream, 1):
        assert stream.metrics.files_emitted == number
    assert number == 14


def test_row_groups_are_counted_as_they_are_begun(tmp_path: Path) -> None:
    from lazydelta.testing import make_table  # noqa: PLC0415

    make_table(tmp_path, files=1000, columns=1, row_group_size=100)
    stream = DeltaTable(tmp_path).files(strategy="reverse", batch_size=100)
    batches = stream.batches()
    next(batches)
    assert stream.metrics.row_groups_read <= 2
    assert 800 <= sum(batch.num_rows for batch in batches) < 1000
    assert stream.metrics.row_groups_read == 11, "the actions of the table have a row group of their own"


def test_a_scan_in_the_middle_of_the_log_counts_its_own_tail(table: Path) -> None:
    stream = DeltaTable(table, version=2).files()
    assert sorted(paths(stream)) == [*(f"base{number}" for number in range(9)), "t1", "t2", "t3"]
    assert stream.metrics.commits_scanned == 2


def test_a_compaction_counts_as_the_commits_it_stands_for(table: Path) -> None:
    log = table / "_delta_log"
    lines = [(log / f"{version:020d}.json").read_text() for version in (1, 2)]
    (log / f"{1:020d}.{2:020d}.compacted.json").write_text("".join(lines))
    with watching() as watch:
        stream = DeltaTable(table).files()
        assert len(stream.collect()) == 14
        assert watch.count("compacted.json") == 1
    assert stream.metrics.commits_scanned == 3


def test_explain_tells_the_plan_before_and_the_cost_after(table: Path) -> None:
    stream = DeltaTable(table).files("id = 3", strategy="forward")
    before = stream.explain()
    assert before.plan["strategy"] == "forward"
    assert before.plan["version"] == 3
    assert before.plan["base_version"] == 0
    assert before.plan["tail_commits"] == 3
    assert before.plan["predicate"] == "id = 3"
    assert before.metrics["delta.lazy.files_emitted"] == 0
    stream.collect()
    assert stream.explain().metrics["delta.lazy.files_emitted"] == 2
    assert set(stream.explain().as_dict()) == {"plan", "metrics"}


def test_a_limited_scan_counts_the_commits_that_opening_read(table: Path) -> None:
    """Without a checksum the whole tail was looked at for protocol and metadata; the scan gets it for nothing."""
    (checksum,) = (table / "_delta_log").glob("*.crc")
    checksum.unlink()
    with watching() as watch:
        opened = DeltaTable(table, options={"cache_size": 0})
        first = opened.files(limit=1)
        first.collect()
    assert first.metrics.commits_scanned == 3
    assert first.metrics.requests == len(watch.requests) > 0
    assert first.metrics.bytes_read > 0


def test_opening_is_charged_once(table: Path) -> None:
    """A pinned table is scanned again for what the scan itself takes."""
    opened = DeltaTable(table)
    first = opened.files(limit=1)
    first.collect()
    with watching() as watch:
        second = opened.files(limit=1)
        second.collect()
    assert first.metrics.open_requests > 0
    assert (second.metrics.open_requests, second.metrics.open_ms) == (0, 0.0)
    assert second.metrics.requests == len(watch.requests)


def test_every_row_of_an_explanation_has_a_meaning(table: Path) -> None:
    explanation = DeltaTable(table).files("id = 3").explain()
    for name in (*explanation.plan, *explanation.metrics):
        assert describe_metric(name), name


def test_time_is_that_of_the_scan_and_not_of_its_consumer(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only the consumer moves: nothing of it may be counted."""
    clock = [0.0]
    opened = DeltaTable(table)
    monkeypatch.setattr("lazydelta.runtime.metrics.time.perf_counter", lambda: clock[0])
    stream = opened.files(strategy="reverse", batch_size=1)
    clock[0] += 1000
    for _ in stream:
        clock[0] += 1000
    assert stream.metrics.time_to_first_file_ms == 0.0
    assert stream.metrics.scan_ms == 0.0


def test_time_within_the_scan_is_counted(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counterpart: a clock that moves with every look at it."""
    ticks = iter(range(1, 10_000))
    opened = DeltaTable(table)
    monkeypatch.setattr("lazydelta.runtime.metrics.time.perf_counter", lambda: next(ticks))
    stream = opened.files(strategy="reverse", batch_size=1)
    pulled = len(stream.collect())
    assert stream.metrics.time_to_first_file_ms == 1000.0, "one look when it was pulled, one at the first file"
    assert stream.metrics.scan_ms >= pulled * 1000
    assert stream.metrics.total_ms == stream.metrics.open_ms + stream.metrics.scan_ms


def test_a_mismatch_with_the_checksum_is_counted(table: Path) -> None:
    (checksum,) = (table / "_delta_log").glob("*.crc")
    checksum.write_text(checksum.read_text().replace('"numFiles": 14', '"numFiles": 15'))
    stream = DeltaTable(table, options={"cache_size": 0}).files()
    with pytest.warns(ChecksumWarning, match="counts 15 files"):
        stream.collect()
    assert stream.metrics.checksum_mismatches == 1


def test_files_that_the_tail_hides_are_counted(table: Path) -> None:
    """Ten in the base and five in the tail, of which one of the base is removed."""
    stream = DeltaTable(table).files("id < 4")
    stream.collect()
    metrics = stream.metrics
    assert metrics.files_considered == metrics.files_emitted + metrics.files_pruned + metrics.files_masked == 15


def test_a_hint_that_is_out_of_date_is_told(table: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = table / "_delta_log"
    with caplog.at_level("INFO", "lazydelta"):
        DeltaTable(table, options={"cache_size": 0})
        assert caplog.messages == []
        (log / f"{2:020d}.checkpoint.parquet").write_bytes((log / f"{0:020d}.checkpoint.parquet").read_bytes())
        DeltaTable(table, options={"cache_size": 0})
        assert [each for each in caplog.messages if "out of date" in each and "0" in each and "2" in each]
        (log / "_last_checkpoint").unlink()
        DeltaTable(table, options={"cache_size": 0})
        assert [each for each in caplog.messages if "missing" in each]


def test_the_plan_is_made_once_before_the_scan_and_once_when_it_begins(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def counted(*given: Any) -> ScanPlan:
        made.append(given)
        return choose_plan(*given)

    monkeypatch.setattr("lazydelta.scan.scanner.choose_plan", counted)
    stream = DeltaTable(table).files("id > 2", batch_size=1)
    stream.explain()
    assert len(stream.collect()) > 5
    assert stream.explain().plan["strategy"] == stream.metrics.strategy
    assert len(made) == 2


SCAN_AND_MEASURE = """
import json, re, sys
from lazydelta import DeltaTable
from lazydelta.runtime.metrics import memory_held
list(DeltaTable(sys.argv[1]).files(limit=1))  # what is imported on first use
before = memory_held()
stream = DeltaTable(sys.argv[2]).files()
count = sum(1 for _ in stream)
peak = int(re.search("VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) * 1024
print(json.dumps([count, stream.metrics.peak_memory_bytes, stream.metrics.peak_buffer_bytes, peak - before]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process this way")
def test_the_peak_of_memory_is_that_of_the_process(tmp_path: Path) -> None:
    make_table(tmp_path / "small", files=10, hours=1)
    make_table(tmp_path / "large", files=40_000, hours=24)
    command = [sys.executable, "-c", SCAN_AND_MEASURE, str(tmp_path / "small"), str(tmp_path / "large")]
    count, told, handed_on, grown = json.loads(subprocess.check_output(command))
    assert count == 40_000
    assert handed_on < grown / 2, "the files that are handed on are the smaller part"
    assert grown / 2 < told <= grown
