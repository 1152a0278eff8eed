"""A sidecar built by many tasks: the same files, values and order as one built in one process, whatever tasks do."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lazydelta.errors import ObjectExistsError
from lazydelta.sidecar.building.build import Maker, Progress, build
from lazydelta.sidecar.building.distributed import SpreadBuild, UnitKeys, splitters_of
from lazydelta.sidecar.building.publish import BuildResult, Publication
from lazydelta.sidecar.format.columns import FOLDER, manifest_path
from lazydelta.sidecar.format.manifest import Manifest
from lazydelta.sidecar.verification import verify
from lazydelta.storage import open_store
from tests.scan.hand_log import HandLog, add, vector
from tests.sidecar.conftest import Split

COLUMNS = {"id": "long", "at": "timestamp", "name": "string", "hour": "string"}
Disturb = Callable[[SpreadBuild, int, list[bytes]], None]


def _spread(disturb: Disturb | None = None, unit_rows: int = 40) -> Maker:
    """Carry the tasks as an engine does, in any order, each with a job of its own out of a pickle."""

    def make(publication: Publication, budget: int, progress: Progress | None) -> BuildResult:
        job = SpreadBuild.begin(publication, budget)
        sent, units = pickle.dumps(job), job.units(unit_rows)

        def task() -> SpreadBuild:
            found: SpreadBuild = pickle.loads(sent)  # noqa: S301 - our own
            return found

        sampled = [task().sample(unit) for unit in units]
        splitters = splitters_of(sampled, job.buckets(sum(each.count for each in sampled)))
        pieces: dict[int, list[bytes]] = {number: [] for number in range(len(splitters) + 1)}
        random.Random(1).shuffle(units)
        for unit in units:
            for bucket, piece in task().spread(unit, splitters):
                pieces[bucket].append(piece)
        order = list(pieces)
        random.Random(2).shuffle(order)
        results = []
        for number, bucket in enumerate(order):
            if disturb is not None:
                disturb(task(), bucket, pieces[bucket])
            results.append(task().write(bucket, pieces[bucket], number))
        return job.publish(publication, results)

    return make


def _table(root: Path, files: int = 300, *, partitioned: bool = True, stats: str = "json", parts: int = 1) -> HandLog:
    chance = random.Random(files)
    log = HandLog(root, COLUMNS, partitions=["hour"] if partitioned else [], features=["deletionVectors"])
    actions = []
    for number in range(files):
        at = f"2026-02-{1 + chance.randrange(28):02}T{chance.randrange(24):02}:00:00.000Z"
        low = {"id": number, "at": at, "name": chance.choice("abc")}
        logged = {"minValues": low, "maxValues": low, "nullCount": {"id": 0, "at": 0, "name": 0}}
        hour = chance.choice([None, "", *(f"h{each}" for each in range(9))])
        actions.append(
            add(
                f"f{chance.randrange(10**9)}-{number}",
                partition={"hour": hour} if partitioned else None,
                stats=None if chance.random() < 0.1 else logged,
                vector=vector(f"v{number}") if chance.random() < 0.1 else None,
            )
        )
    log.commit(*actions)
    log.checkpoint(parts=parts, stats=stats)
    return log


def _content(root: Path) -> list[dict[str, Any]]:
    """Return all rows in the order of the manifest, as plain Parquet has them."""
    manifest = Manifest.decode(open_store(root).get(manifest_path(0)))
    return [row for part in manifest.parts for row in pq.read_table(root / part.file, partitioning=None).to_pylist()]


@pytest.mark.parametrize(
    ("partitioned", "stats", "parts"),
    [
        (True, "json", 1),
        (False, "json", 3),
        pytest.param(True, "struct", 3, marks=pytest.mark.slow),
        pytest.param(False, "both", 1, marks=pytest.mark.slow),
    ],
)
def test_the_content_is_that_of_the_builder_in_one_process(
    tmp_path: Path, split: Split, *, partitioned: bool, stats: str, parts: int
) -> None:
    split(5, 4)
    log = _table(tmp_path / "t", partitioned=partitioned, stats=stats, parts=parts)
    build(log.table)
    expected = _content(log.table)
    done = build(log.table, force=True, maker=_spread())
    assert (done.action, done.num_files) == ("built", 300)
    assert done.num_parts > 10
    assert _content(log.table) == expected
    assert verify(log.table).problems == []


def test_a_table_without_files_has_an_empty_sidecar(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", COLUMNS)
    log.commit()
    log.checkpoint()
    done = build(log.table, maker=_spread())
    assert done.num_files == 0
    assert verify(log.table).ok


def test_attempts_that_lost_are_deleted_and_never_named(tmp_path: Path, split: Split) -> None:
    """A second attempt of each bucket writes everything before the first one does, half of them with other rows."""
    split(5, 4)
    log = _table(tmp_path / "t")
    build(log.table)
    expected = _content(log.table)

    def twice(job: SpreadBuild, bucket: int, pieces: list[bytes]) -> None:
        job.write(bucket, pieces[: len(pieces) // 2 + bucket % 2], 1000 + bucket)

    build(log.table, force=True, maker=_spread(twice))
    assert _content(log.table) == expected
    assert verify(log.table).ok
    named = {part.file for part in Manifest.decode(open_store(log.table).get(manifest_path(0))).parts}
    new = {f"{FOLDER}/{path.name}" for path in (log.table / FOLDER).glob("*-*.parquet")}
    old = {path for path in new if _build_of(path) != _build_of(next(iter(named)))}
    assert new - old == named


def _build_of(path: str) -> str:
    return path.rpartition("-")[0]


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, split: Split) -> None:
    split(5, 4)
    log = _table(tmp_path / "t")
    seen: list[int] = []

    def make(publication: Publication, budget: int, progress: Progress | None) -> BuildResult:
        def die(job: SpreadBuild, bucket: int, pieces: list[bytes]) -> None:
            seen.append(bucket)
            if len(seen) == 4:
                job.discard(publication)  # as an engine does when a task fails
                raise ObjectExistsError("died", path="x")

        return _spread(die)(publication, budget, progress)

    with pytest.raises(ObjectExistsError, match="died"):
        build(log.table, maker=make)
    assert len(seen) == 4
    assert list((log.table / FOLDER).iterdir()) == []


@pytest.mark.parametrize("seed", range(5))
def test_splitters_cut_into_buckets_of_about_the_same_size_though_units_differ(seed: int) -> None:
    chance = random.Random(seed)
    units, every = [], []
    for _ in range(chance.randrange(1, 8)):
        low, span, size = chance.random(), chance.random(), chance.randrange(2_000, 30_000)
        keys = [f"{low + span * chance.random():.9f}".encode() for _ in range(size)]
        every += keys
        units.append(UnitKeys(size, keys[:: max(1, size // 1_000)]))
    buckets = chance.randrange(2, 20)
    ends = splitters_of(units, buckets)
    assert ends == sorted(set(ends))
    counts = [sum(low <= key < high for key in every) for low, high in zip([b"", *ends], [*ends, b"~"], strict=True)]
    assert len(counts) == buckets
    assert max(counts) < 1.5 * len(every) / buckets


def test_nothing_to_sample_is_one_bucket() -> None:
    assert splitters_of([UnitKeys(0, [])], 5) == []
    assert splitters_of([UnitKeys(3, [b"a", b"a", b"a"])], 3) == [b"a"]
