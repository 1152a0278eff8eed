"""Real, random and lively tables, refreshed again and again: the sidecar never drifts away from the log."""

from __future__ import annotations

import importlib
import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable as PeerTable
from deltalake import write_deltalake

from lazydelta import DeltaTable, sidecar
from lazydelta.errors import OptionError, VersionNotFoundError
from lazydelta.sidecar.reading.discovery import shared_cache
from tests.oracle.random_log import RandomLog, random_log
from tests.scan.hand_log import HandLog, add, remove, vector
from tests.scan.predicates import FORMS, predicate_for, written
from tests.sidecar.conftest import Form, Split
from tests.sidecar.refreshed import COLUMNS, HOURS, same
from tests.sidecar.sidecars import DISABLED, Place, rows
from tests.support.rounds import quick

refreshing = importlib.import_module("lazydelta.sidecar.building.refresh")


# Some expressions are opaque, which is not what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::lazydelta.PredicateWarning")


@pytest.fixture(autouse=True)
def any_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a change be as large as it likes: small tables change by more than a quarter easily."""
    monkeypatch.setattr(refreshing, "LARGEST_CHANGE", float("inf"))


def test_a_table_of_deltalake_with_deletes_and_optimize(tmp_path: Path, split: Split) -> None:
    split(2, 3)
    place = Place(str(tmp_path / "t"))

    def append(hour: str, first: int) -> None:
        for start in range(first, first + 4):
            data = pa.table({"id": [start, start + 1], "name": ["a", None], "hour": [hour, hour]})
            write_deltalake(place.uri, data, mode="append", partition_by=["hour"])

    actions = []
    for number, hour in enumerate(HOURS[:6]):
        append(hour, 10 * number)
        if number == 2:
            PeerTable(place.uri).delete("id = 11 OR id = 2")
        if number == 4:
            PeerTable(place.uri).optimize.compact(partition_filters=[("hour", "=", HOURS[3])])
        PeerTable(place.uri).create_checkpoint()
        actions.append(sidecar.refresh(place.uri).action)
        same(place, (None, f"hour = '{hour}'", "id = 11", "id >= 30", "name IS NULL"))
        peer = {path.removeprefix("./") for path in PeerTable(place.uri).file_uris()}
        assert {file.uri for file in place.open().files()} == peer
    assert actions == ["built", *["refreshed"] * 5]


def checkpoints_of(log: RandomLog) -> list[int]:
    """Return the versions of which there is something like a checkpoint."""
    found = (re.match(r"(\d{20})\.checkpoint\.", path.name) for path in log.log.iterdir())
    return sorted({int(match[1]) for match in found if match})


@pytest.mark.parametrize("chunk", quick(range(12), 1))
def test_random_logs_refreshed_from_any_earlier_checkpoint(
    chunk: int, tmp_path: Path, split: Split, form: Form
) -> None:
    """Removes, vectors, re-adds and odd spellings between two checkpoints: the refreshed sidecar equals the log."""
    rng = random.Random(chunk)
    done: Counter[str] = Counter()
    # The first chunk is in every run of the tests; by chance there may be no refresh at all in so few logs.
    for seed in range(20) if chunk == 0 else range(chunk * 40 - 20, chunk * 40 + 20):
        log = random_log(seed, tmp_path / str(seed))
        versions = checkpoints_of(log)
        if len(versions) > 1:
            split(*rng.choice([(1, 2), (2, 2), (3, 4)]))
            form(rng.randrange(3))
            try:
                sidecar.build(log.path, versions[0])
                form(rng.randrange(3))
                result = sidecar.refresh(log.path, memory_budget=rng.choice([1, 10_000, 1 << 29]))
            except (OptionError, VersionNotFoundError):
                result = None  # zero bytes, or not all of its parts: no checkpoint of this version
            if result is not None:
                done[result.action] += 1
                report = sidecar.verify(log.path)
                assert report.ok, (seed, report.problems, log.notes)
                _same_answers(log, rng)
        shutil.rmtree(tmp_path / str(seed))
    assert done["refreshed"] >= 1


def _same_answers(log: RandomLog, rng: random.Random) -> None:
    for number in range(5):
        shared_cache.clear()
        where = None if number == 0 else written(predicate_for(rng, log.expected(log.latest)), rng.choice(FORMS))
        found = rows(DeltaTable(log.path), where)[0]
        assert found == rows(DeltaTable(log.path, options=DISABLED), where)[0], (log.seed, where, log.notes)


@pytest.mark.parametrize("partitions", quick([["hour"], []], 1), ids=["by hour", "by minimum"])
@pytest.mark.parametrize("seed", quick(range(2), 1))
def test_a_lively_table_refreshed_at_every_checkpoint(
    partitions: list[str], seed: int, tmp_path: Path, split: Split
) -> None:
    """Eight refreshes one upon the other, each after a few commits of everything: none drifts away from the log."""
    split(3, 4)
    rng = random.Random(seed)
    log = HandLog(tmp_path / "t", COLUMNS, partitions=partitions, features=["deletionVectors"])
    place = Place(str(tmp_path / "t"))
    live: dict[int, Any] = {}
    log.commit(*(_new(live, rng, number, partitions) for number in range(60)))
    log.checkpoint()
    sidecar.build(place.uri)
    number, reused = 60, 0
    for _ in range(8):
        for _ in range(rng.randint(1, 3)):
            actions = []
            for chosen in rng.sample(sorted(live), 3):
                old = live.pop(chosen)["add"]
                gone = remove(old["path"], vector=old.get("deletionVector"))
                if rng.random() < 0.5:
                    gone["remove"] |= {"extendedFileMetadata": True, "partitionValues": old["partitionValues"]}
                kind = rng.choice(["remove", "vector", "again"])
                if kind != "again":
                    actions.append(gone)
                if kind == "vector":
                    actions.append(_new(live, rng, chosen, partitions, vector=vector(f"{number}x{chosen}")))
                elif kind == "again":
                    actions.append(_new(live, rng, chosen, partitions, vector=old.get("deletionVector")))
            for _ in range(rng.randint(0, 6)):
                actions.append(_new(live, rng, number, partitions))
                number += 1
            log.commit(*actions)
        log.checkpoint()
        result = sidecar.refresh(place.uri)
        assert (result.action, result.num_files) == ("refreshed", len(live))
        reused += result.reused_parts
        same(place, (None, "hour >= '2026021010'", "id < 40", "at >= '2026-02-10T11:00:00Z'"))
    assert reused > 5


def _new(live: dict[int, Any], rng: random.Random, number: int, partitions: list[str], **keywords: Any) -> Any:
    """Return the add of a file, whose hour never changes; its statistics may."""
    hour = HOURS[number * 7 % 20] if number % 19 else None
    low = rng.randrange(200)
    at = f"2026-02-10T{(number * 7 + rng.randrange(2)) % 24:02d}:00:00.000Z"
    stats = None
    if rng.random() < 0.9:
        names: dict[str, Any] = {"id": low, "at": at} | ({} if partitions else {"hour": hour or "2026021003"})
        stats = {"minValues": names, "maxValues": names | {"id": low + 5}, "nullCount": dict.fromkeys(names, 0)}
    action = add(f"f{number:05d}", records=5, stats=stats, partition={"hour": hour} if partitions else None, **keywords)
    live[number] = action
    return action
