"""A new checkpoint without a sidecar yet: scans use the sidecar of an older one and the commits since, exactly."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lazydelta import DeltaTable
from lazydelta.sidecar.building.build import build
from lazydelta.sidecar.format.columns import manifest_path
from lazydelta.sidecar.reading import base, delta_spans
from lazydelta.sidecar.reading.discovery import shared_cache
from tests.oracle.replay import replay
from tests.scan.hand_log import HandLog, add, key, remove, vector, watching
from tests.sidecar.conftest import Form, Split
from tests.sidecar.deltas import cover
from tests.sidecar.sidecars import COLUMNS, DISABLED, QUERIES, hourly, rows
from tests.support.rounds import quick

VERSIONS = 9
HOURS = ("2026021003", "2026021005", "2026021022", None)


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let small checkpoints be worth a look, and requests cost nothing unless a test says so."""
    monkeypatch.setattr(base, "_WORTH_A_LOOK", 0)
    monkeypatch.setattr(base, "_REQUEST_BYTES", -(1 << 30))
    return lambda size: monkeypatch.setattr(base, "_REQUEST_BYTES", size)


def lively(table: Path, rng: random.Random) -> HandLog:
    """Write a history with a checkpoint at every version: files come, go, return and get vectors, columns are added."""
    log = HandLog(table, COLUMNS, partitions=["hour"], features=["deletionVectors"])
    live: dict[str, Any] = {}
    for version in range(VERSIONS):
        gone = rng.sample(sorted(live), rng.randrange(len(live) + 1) // 2)
        actions = [remove(name, vector=live.pop(name)) for name in gone]
        for number in range(rng.randrange(1, 5)):
            name = f"f{rng.randrange(12):02d}" if rng.random() < 0.6 else f"g{version}-{number}"
            if name in live or any(each.get("add", {}).get("path") == name for each in actions):
                continue
            low = rng.randrange(200)
            live[name] = vector(f"v{version}-{number}") if rng.random() < 0.3 else None
            hour = rng.choice(HOURS)
            actions.append(add(name, ids=(low, low + 20), records=9, partition={"hour": hour}, vector=live[name]))
        if version and rng.random() < 0.2:
            log.columns[f"new{version}"] = "long"
            actions.append(log.metadata())
        rng.shuffle(actions)
        log.commit(*actions)
        log.checkpoint(parts=rng.choice([1, 1, 2]))
    return log


@pytest.mark.parametrize("seed", quick(range(40), 4))
def test_every_version_has_the_same_files_on_any_older_sidecar(
    seed: int, split: Split, form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(delta_spans, "LONG_TAIL", rng.choice([2, 4, 100]))
    log = lively(tmp_path / "t", rng)
    split(*rng.choice([(2, 2), (3, 1), (10_000, 16)]))
    form(seed)
    built = sorted(rng.sample(range(VERSIONS), rng.randrange(1, 3)))
    for version in built:
        build(str(log.table), version)
    if rng.random() < 0.5:
        cover(log.table, rng, range(1, VERSIONS))
    used: Counter[str] = Counter()
    for version in range(VERSIONS):
        expected = Counter(list(replay(log.log, version).files))
        for strategy in ("forward", "reverse"):
            for where in (None, rng.choice(QUERIES[1:])):
                stream = DeltaTable(log.table, version=version).files(where, strategy=strategy)
                found = Counter(map(key, stream))
                plain = DeltaTable(log.table, version=version, options=DISABLED).files(where, strategy=strategy)
                assert found == (expected if where is None else Counter(map(key, plain))), (version, built, where)
                newest = max((each for each in built if each <= version), default=None)
                assert stream.metrics.tier == (3 if newest is None else 1), (version, built)
                if newest not in {None, version}:
                    assert f"version {newest}, by its manifest, with the commits up to" in stream.metrics.sidecar
                    used["older"] += 1
    assert used["older"] or built[0] == VERSIONS - 1


def newer_checkpoint(log: HandLog) -> None:
    """Build a sidecar of the checkpoint, and let a newer one follow its tail without a sidecar."""
    build(str(log.table))
    log.checkpoint()
    log.commit(add("late", ids=(1, 2), partition={"hour": "2026021023"}))


def test_it_is_used_only_where_it_is_cheaper(tmp_path: Path, cheap: Callable[[int], None]) -> None:
    log = hourly(tmp_path / "t")
    newer_checkpoint(log)
    answer = rows(DeltaTable(log.table, options=DISABLED), "hour = '2026021005'")[0]
    cheap(0)
    found, metrics = rows(DeltaTable(log.table), "hour = '2026021005'")
    assert metrics.tier == 1
    assert metrics.sidecar == "version 0, by its manifest, with the commits up to checkpoint 3, which has none yet"
    assert metrics.commits_scanned == 4
    assert [each[0] for each in found] == [each[0] for each in answer]
    shared_cache.clear()
    cheap(1 << 20)
    found, metrics = rows(DeltaTable(log.table), "hour = '2026021005'")
    assert (found, metrics.tier) == (answer, 3)


def test_explain_tells_it_and_later_scans_of_the_table_look_no_more(tmp_path: Path) -> None:
    log = hourly(tmp_path / "t")
    newer_checkpoint(log)
    table = DeltaTable(log.table)
    with watching() as watch:
        stream = table.files()
        stream.collect()
        first = watch.count("", verb="LIST")
        assert "up to checkpoint 3, which has none yet" in str(stream.explain())
        assert stream.explain().plan["base_version"] == 3
        table.files().collect()
        assert (first, watch.count("", verb="LIST")) == (2, 2)


@pytest.mark.parametrize("gone", ["commit", "checkpoint", "manifest", "another table"])
def test_without_all_of_it_the_newest_checkpoint_is_read(tmp_path: Path, gone: str) -> None:
    log = hourly(tmp_path / "t")
    newer_checkpoint(log)
    answer = rows(DeltaTable(log.table, options=DISABLED))[0]
    if gone == "commit":
        (log.log / f"{2:020d}.json").unlink()
    elif gone == "checkpoint":
        for path in log.log.glob(f"{0:020d}.checkpoint*"):
            path.unlink()
    else:
        path = log.table / manifest_path(0)
        path.write_bytes(b"{}" if gone == "manifest" else path.read_bytes().replace(b'"hand"', b'"hund"'))
    found, metrics = rows(DeltaTable(log.table))
    assert (found, metrics.tier) == (answer, 3)


def test_an_older_sidecar_that_fails_in_the_middle_leaves_the_answer(tmp_path: Path, split: Split) -> None:
    split(5, 2)
    log = hourly(tmp_path / "t")
    newer_checkpoint(log)
    for path in sorted((log.table / "_delta_log" / "_sidecars").glob("*.parquet"))[1:]:
        path.unlink()
    stream = DeltaTable(log.table).files(strategy="reverse")
    assert Counter(map(key, stream)) == Counter(list(replay(log.log).files))
    assert (stream.metrics.tier, stream.metrics.sidecar_failure) == (3, "storage")


def test_delta_sidecars_stand_for_the_commits_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_spans, "LONG_TAIL", 3)
    log = hourly(tmp_path / "t", tail=6)
    cover(log.table, random.Random(3), range(1, 7))
    newer_checkpoint(log)
    stream = DeltaTable(log.table).files()
    assert Counter(map(key, stream)) == Counter(list(replay(log.log).files))
    assert stream.metrics.tier == 1
    assert stream.metrics.delta_commits + stream.metrics.commits_scanned == 7
