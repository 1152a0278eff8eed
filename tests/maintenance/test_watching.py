"""A watched table: its sidecar follows every checkpoint, its checksums equal a plain replay, and looks are cheap."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import OptionError
from lazydelta.maintenance import BackgroundWatch
from lazydelta.maintenance.policy import table_lock
from lazydelta.maintenance.watch import Look, TableWatch, WatchSettings, watch_tables
from lazydelta.sidecar import drop
from lazydelta.sidecar.handle import TableHandle
from lazydelta.write.checkpoint import writer
from tests.oracle.replay import replay
from tests.scan.hand_log import HandLog, add, remove, watching

FRESH = {"cache_size": 0}


def _watch(log: HandLog, **settings: Any) -> TableWatch:
    return TableWatch(TableHandle.open(log.table), WatchSettings(**settings))


def _tier(log: HandLog) -> int:
    stream = DeltaTable(log.table, options=FRESH).files()
    stream.collect()
    return stream.metrics.tier


def _checksum(log: HandLog, version: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((log.log / f"{version:020}.crc").read_text())
    return found


def _grown(table: Path, commits: int = 3) -> HandLog:
    log = HandLog(table)
    for number in range(commits):
        log.commit(add(f"f{number}", ids=(number, number)))
    return log


# --- the sidecar


def test_the_sidecar_follows_each_checkpoint_and_nothing_happens_between(tmp_path: Path) -> None:
    log = _grown(tmp_path / "t")
    watch = _watch(log)
    assert watch.look().state == "waiting"
    log.checkpoint()
    look = watch.look()
    assert (look.state, look.built is not None and look.built.version, look.metrics.lag_commits) == ("done", 2, 0)
    assert _tier(log) == 1
    log.commit(add("g", ids=(9, 9)))
    look = watch.look()
    assert (look.state, look.built, look.metrics.lag_commits, look.metrics.builds) == ("unchanged", None, 1, 1)
    log.checkpoint()
    assert watch.look().state == "done"
    assert _tier(log) == 1
    assert watch.metrics.builds == 2


def test_a_look_at_a_table_that_did_not_change_is_one_listing_and_one_question(tmp_path: Path) -> None:
    log = _grown(tmp_path / "t", 30)
    log.checkpoint()
    for number in range(20):
        log.commit(add(f"tail{number}"))
    watch = _watch(log)
    watch.look()
    with watching() as seen:
        assert watch.look().state == "unchanged"
    assert sorted(each.verb for each in seen.requests) == ["HEAD", "LIST"]


def test_a_checkpoint_that_took_the_place_of_another_gets_its_own_sidecar(tmp_path: Path) -> None:
    log = _grown(tmp_path / "t")
    (path,) = log.checkpoint()
    watch = _watch(log)
    watch.look()
    assert _tier(log) == 1
    path.unlink()
    log.checkpoint(stats="struct")
    assert _tier(log) == 3
    assert watch.look().state == "done"
    assert _tier(log) == 1


def test_a_sidecar_that_somebody_dropped_is_built_again(tmp_path: Path) -> None:
    log = _grown(tmp_path / "t")
    log.checkpoint()
    watch = _watch(log)
    watch.look()
    drop(log.table)
    assert _tier(log) == 3
    assert watch.look().state == "done"
    assert _tier(log) == 1


def test_another_process_at_the_table_is_left_to_it(tmp_path: Path) -> None:
    log = _grown(tmp_path / "t")
    log.checkpoint()
    watch = _watch(log)
    with table_lock(watch.handle) as mine:
        assert mine is not None
        assert watch.look().state == "busy"
    assert (watch.metrics.busy, watch.metrics.builds, watch.metrics.failures) == (1, 0, 0)
    assert watch.look().state == "done"


def test_what_fails_is_counted_told_and_tried_again_ever_more_rarely(tmp_path: Path) -> None:
    log = _grown(tmp_path / "t")
    (path,) = log.checkpoint()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    watch = _watch(log)
    states = [watch.look().state for _ in range(8)]
    assert states == ["failed", "failed", "resting", "failed", "resting", "resting", "resting", "failed"]
    assert watch.metrics.failures == 4
    look = watch.look(patient=False)
    assert look.error is not None
    assert path.name in look.error
    path.write_bytes(whole)
    assert watch.look(patient=False).state == "done"
    assert watch.look().state == "unchanged"
    assert _tier(log) == 1


def test_a_table_that_fails_does_not_keep_others_waiting(tmp_path: Path) -> None:
    good = _grown(tmp_path / "good")
    good.checkpoint()
    stop = threading.Event()
    looks: list[Look] = []

    def note(look: Look) -> None:
        looks.append(look)
        if len(looks) == 4:
            stop.set()

    tables = [TableWatch(TableHandle.open(tmp_path / "none")), _watch(good)]
    watch_tables(tables, note, interval=0, stop=stop)
    assert [look.state for look in looks] == ["failed", "done", "failed", "unchanged"]
    assert _tier(good) == 1


# --- checkpoints and checksums, where they are asked for


def test_a_checkpoint_is_written_after_so_many_commits_without_one(tmp_path: Path) -> None:
    log = _grown(tmp_path / "t", 4)
    watch = _watch(log, checkpoint_every=5)
    assert watch.look().state == "waiting"
    log.commit(add("fifth"))
    look = watch.look()
    assert (look.checkpoint, look.built is not None and look.built.version) == (4, 4)
    log.commit(add("sixth"))
    log.checkpoint()  # by another writer
    for number in range(4):
        log.commit(add(f"x{number}"))
        assert watch.look().checkpoint is None
    log.commit(add("last"))
    assert watch.look().checkpoint == 10
    assert (watch.metrics.checkpoints_written, watch.metrics.lag_commits, _tier(log)) == (2, 0, 1)


def test_no_checkpoint_and_no_checksum_without_being_asked(tmp_path: Path) -> None:
    log = _grown(tmp_path / "t", 30)
    log.checkpoint()
    log.commit(add("tail"))
    _watch(log).look()
    assert len(list(log.log.glob("*.checkpoint*"))) == 1
    assert list(log.log.glob("*.crc")) == []


def test_nonsense_is_refused() -> None:
    with pytest.raises(OptionError, match="every 0 commits"):
        WatchSettings(checkpoint_every=0)


@pytest.mark.parametrize("at_head", [True, False], ids=["checkpoint at the head", "tail"])
def test_a_checksum_is_that_of_a_replay_though_actions_do_not_add_up(tmp_path: Path, *, at_head: bool) -> None:
    log = _grown(tmp_path / "t")
    log.checkpoint()
    log.commit(add("f0", ids=(5, 5)), add("f1"))  # added again without a remove
    log.commit(remove("never there"), remove("f2"))
    if at_head:
        log.checkpoint()
    look = _watch(log, checksum=True).look()
    assert look.checksum == 4
    found = _checksum(log, 4)
    assert (found["numFiles"], found["tableSizeBytes"]) == (2, 20)
    assert DeltaTable(log.table, options={"checksum": "error", **FRESH}).files().collect()


def test_a_checksum_of_the_writer_stays_as_it_is(tmp_path: Path) -> None:
    log = _grown(tmp_path / "t")
    log.checkpoint()
    log.checksum()
    before = _checksum(log, 2)
    assert _watch(log, checksum=True).look().checksum is None
    assert _checksum(log, 2) == before


def test_a_head_that_can_have_no_checksum_is_counted_once(tmp_path: Path) -> None:
    """Its commit was cleaned up, so that nothing tells when it was made."""
    log = _grown(tmp_path / "t")
    log.checkpoint()
    for commit in log.log.glob("*.json"):
        commit.unlink()
    watch = _watch(log, checksum=True)
    assert (watch.look().checksum, list(log.log.glob("*.crc"))) == (None, [])
    with watching() as seen:
        assert watch.look().state == "unchanged"
    assert seen.count(".checkpoint.") == 0
    assert watch.metrics.failures == 0


def test_tables_with_features_that_we_do_not_write_get_no_checksum_and_that_is_no_failure(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", features=["v2Checkpoint", "deletionVectors", "variantType"])
    log.columns["v"] = "variant"
    log.commit(add("f"))
    log.checkpoint()
    watch = _watch(log, checksum=True)
    look = watch.look()
    assert (look.state, look.error, look.checksum) == ("done", None, None)
    assert list(log.log.glob("*.crc")) == []


def test_with_a_checksum_at_the_head_opening_reads_no_commit(tmp_path: Path) -> None:
    log = _grown(tmp_path / "t")
    log.checkpoint()
    for number in range(40):
        log.commit(add(f"tail{number}"))
    with watching() as seen:
        DeltaTable(log.table, options=FRESH).version()
    assert seen.commits == 40
    _watch(log, checksum=True).look()
    with watching() as seen:
        assert DeltaTable(log.table, options=FRESH).version() == 42
    assert seen.commits == 0


@pytest.mark.parametrize("seed", range(6))
def test_after_each_look_the_sidecar_is_in_use_and_the_checksum_true(tmp_path: Path, seed: int) -> None:
    """Any order of commits, re-adds, removes, checkpoints (also replaced ones), drops and looks."""
    chance = random.Random(seed)
    log = _grown(tmp_path / "t", 1)
    watch = _watch(log, checksum=True, checkpoint_every=chance.choice([None, 4]))
    files = [f"n{number}" for number in range(12)]
    for _ in range(25):
        match chance.choice(["commit", "commit", "commit", "checkpoint", "drop", "look"]):
            case "commit":
                log.commit(*(chance.choice([add, add, remove])(path) for path in chance.sample(files, 3)))
            case "checkpoint":
                for path in log.log.glob(f"{log.version:020}.checkpoint*"):
                    path.unlink()
                log.checkpoint(parts=chance.choice([1, 2]), stats=chance.choice(["json", "struct"]))
            case "drop":
                drop(log.table)
            case _:
                look = watch.look()
                assert look.error is None
                state = replay(log.log)
                found = _checksum(log, state.version)
                assert found["numFiles"] == len(state.files)
                assert found["tableSizeBytes"] == sum(each["size"] for each in state.files.values())
                assert _tier(log) == (0 if look.metrics.checkpoint_version is None else 1)
    assert watch.metrics.failures == 0


# --- metrics, threads


def test_lag_counts_from_the_checkpoint_until_its_sidecar_is_there(tmp_path: Path) -> None:
    log = _grown(tmp_path / "t")
    log.checkpoint()
    watch = _watch(log)
    watch.foresee()
    waiting = watch.metrics.lag_ms
    assert waiting is not None
    look = watch.look()
    assert look.metrics.lag_ms is not None
    assert look.metrics.build_ms is not None
    assert look.metrics.sidecar_age_ms is not None
    assert watch.metrics.as_dict()["delta.lazy.watch.sidecar_version"] == 2
    settled = watch.look().metrics
    assert settled.lag_ms == look.metrics.lag_ms
    assert settled.sidecar_age_ms is not None
    assert settled.sidecar_age_ms >= look.metrics.sidecar_age_ms


def test_nudges_of_a_busy_program_are_one_look_more_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _grown(tmp_path / "t")
    log.checkpoint()
    begun, go_on = threading.Event(), threading.Event()
    original = TableWatch.look

    def held(self: TableWatch, *, patient: bool = True) -> Look:
        begun.set()
        go_on.wait()
        return original(self, patient=patient)

    monkeypatch.setattr(TableWatch, "look", held)
    with BackgroundWatch(log.table) as watch:
        watch.nudge()
        begun.wait()
        for _ in range(50):
            watch.nudge()
        go_on.set()
        assert watch.wait()
        assert watch.metrics.looks == 2
    watch.nudge()
    assert watch.metrics.looks == 2
    assert watch.last is not None
    assert _tier(log) == 1


_EXPORTED = """
import json, sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
from lazydelta.sidecar.handle import TableHandle
from lazydelta.maintenance.watch import TableWatch
watch = TableWatch(TableHandle.open(sys.argv[1]))
for _ in range(3):
    watch.look()
TableWatch(TableHandle.open(sys.argv[1] + "/none")).look()
found = {}
for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics:
    for metric in scope.metrics:
        for point in metric.data.data_points:
            value = point.count if hasattr(point, "count") else point.value
            found.setdefault(metric.name, {})[point.attributes["delta.lazy.table"]] = [value, metric.unit]
print(json.dumps(found))
"""


def test_opentelemetry_gets_lag_age_build_time_and_failures_by_table(tmp_path: Path) -> None:
    log = _grown(tmp_path / "t")
    log.checkpoint()
    log.commit(add("tail"))
    ran = subprocess.run(
        [sys.executable, "-c", _EXPORTED, str(log.table)], check=True, capture_output=True, text=True, timeout=120
    )
    found = json.loads(ran.stdout)
    values = {name: {uri[-6:]: value for uri, value in points.items()} for name, points in found.items()}
    here, none = str(log.table)[-6:], "t/none"
    assert values["delta.lazy.watch.looks"] == {here: [3, "{look}"], none: [1, "{look}"]}
    assert values["delta.lazy.watch.builds"][here] == [1, "{build}"]
    assert values["delta.lazy.watch.build_ms"] == {here: [1, "ms"]}
    assert values["delta.lazy.watch.lag_commits"] == {here: [1, "{commit}"]}
    assert values["delta.lazy.watch.lag_ms"].keys() == {here}
    assert values["delta.lazy.watch.sidecar_age_ms"].keys() == {here}
    assert values["delta.lazy.watch.failures"][none] == [1, "{look}"]


def test_a_checkpoint_writer_that_fails_is_a_failure_of_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _grown(tmp_path / "t", 5)
    monkeypatch.setattr(writer, "CheckpointLayout", None)
    look = _watch(log, checkpoint_every=2).look()
    assert (look.state, look.checkpoint) == ("failed", None)
    assert look.error is not None
    assert "write the checkpoint 4" in look.error
