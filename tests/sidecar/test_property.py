"""Random logs with sidecars at random checkpoints: every scan finds what it finds without them, as a replay does."""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import OptionError, VersionNotFoundError
from lazydelta.sidecar.building.build import build
from lazydelta.sidecar.format.columns import FOLDER
from lazydelta.sidecar.reading.discovery import shared_cache
from tests.oracle.observe import observed_facts
from tests.oracle.random_log import RandomLog, random_log
from tests.predicates import worlds
from tests.scan.hand_log import HandLog, add, key, remove, vector
from tests.scan.predicates import FORMS, predicate_for, written
from tests.scan.typed_log import COLUMNS, typed_log
from tests.sidecar.conftest import Form, Split
from tests.sidecar.sidecars import DISABLED, Answer, Place, checkpoint, rows
from tests.support.rounds import quick

# Some expressions are opaque, which is not what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::lazydelta.PredicateWarning")

STRATEGIES = ("auto", "reverse", "forward")
CHUNKS = 4
LOGS = 7
OPERATORS = ("=", "!=", "<", ">=")
SIZES = ((1, 1000), (2, 3), (3, 1), (5, 2), (10_000, 16))


def checkpoint_versions(log: RandomLog) -> list[int]:
    """Return the versions of which there is something like a checkpoint."""
    found = (re.match(r"(\d{20})\.checkpoint\.", path.name) for path in log.log.iterdir())
    return sorted({int(match[1]) for match in found if match})


def build_some(log: RandomLog, rng: random.Random) -> set[int]:
    """Build sidecars at random checkpoints and return of which versions there is one now."""
    built = set()
    for version in checkpoint_versions(log):
        if rng.random() < 0.8:
            try:
                assert build(str(log.path), version).action == "built"
            except (OptionError, VersionNotFoundError):
                continue  # zero bytes, or not all of its parts: no checkpoint of this version
            built.add(version)
    return built


def both_ways(log: RandomLog, version: int | None, where: Any, **keywords: Any) -> tuple[Answer, Answer, Any]:
    """Return what a scan gives with sidecars, what it gives without, and the metrics of the first."""
    found, metrics = rows(DeltaTable(log.path, version=version), where, **keywords)
    return found, rows(DeltaTable(log.path, version=version, options=DISABLED), where, **keywords)[0], metrics


@pytest.mark.parametrize("chunk", quick(range(CHUNKS), 2))
def test_random_logs_give_the_same_files_with_and_without_sidecars(
    chunk: int, split: Split, form: Form, tmp_path: Path
) -> None:
    """Strategies, predicates, versions, one file or parts: the same rows, and those of a plain replay."""
    rng = random.Random(chunk)
    used = scans = 0
    for seed in range(20_000 + chunk * LOGS, 20_000 + (chunk + 1) * LOGS):
        log = random_log(seed, tmp_path / str(seed))
        form(seed)
        split(*rng.choice(SIZES))
        build_some(log, rng)
        for version in sorted({log.latest, rng.choice(log.readable)}):
            shared_cache.clear()
            snapshot = log.expected(version)
            table = DeltaTable(log.path, version=version, options={"checksum": "error"})
            story = (seed, version, log.notes)
            assert observed_facts(table) == snapshot.facts, story
            for _ in range(4):
                node, writing, strategy = predicate_for(rng, snapshot), rng.choice(FORMS), rng.choice(STRATEGIES)
                columns = rng.sample([field["name"] for field in snapshot.fields], 1)
                where = written(node, writing)
                found, expected, metrics = both_ways(log, version, where, strategy=strategy, stats_columns=columns)
                assert found == expected, (*story, node, writing, strategy)
                used += metrics.tier in {1, 2}
                scans += 1
        shutil.rmtree(tmp_path / str(seed))
    assert scans > 35
    assert used > 10


@pytest.mark.parametrize("chunk", quick(range(CHUNKS), 1))
def test_typed_logs_give_the_same_files_with_and_without_sidecars(
    chunk: int, split: Split, form: Form, tmp_path: Path
) -> None:
    """Columns and partitions of every type, logged as known writers do, with and without the manifest."""
    rng = random.Random(100 + chunk)
    used: Counter[int] = Counter()
    for seed in range(1000 + chunk * LOGS, 1000 + (chunk + 1) * LOGS):
        typed = typed_log(seed, tmp_path / str(seed))
        log = typed.log
        form(seed)
        split(*rng.choice(SIZES))
        build_some(log, rng)
        if rng.random() < 0.3:
            for path in (log.path / FOLDER).glob("*.manifest.json"):
                path.unlink()
        for version in sorted({log.latest, rng.choice(log.readable)}):
            snapshot = log.expected(version)
            assert observed_facts(DeltaTable(log.path, version=version)) == snapshot.facts
            for _ in range(4):
                node, writing = worlds.predicate(rng, rng.sample(COLUMNS, 3)), rng.choice(FORMS)
                strategy, columns = rng.choice(STRATEGIES), rng.sample(COLUMNS, 2)
                where = written(node, writing)
                found, expected, metrics = both_ways(log, version, where, strategy=strategy, stats_columns=columns)
                assert found == expected, (seed, version, node, writing, strategy, log.notes)
                used[metrics.tier] += 1
        shutil.rmtree(tmp_path / str(seed))
    assert used[1] + used[2] > 5


@pytest.mark.parametrize("chunk", quick(range(3), 2))
def test_limits_give_so_many_of_the_same_files(chunk: int, split: Split, tmp_path: Path) -> None:
    """A limited scan is the beginning of the unlimited one; rows counted for a row limit are the same ones."""
    rng = random.Random(200 + chunk)
    used = 0
    for seed in range(2000 + chunk * 5, 2000 + (chunk + 1) * 5):
        typed = typed_log(seed, tmp_path / str(seed))
        split(*rng.choice(SIZES))
        build_some(typed.log, rng)
        table = DeltaTable(typed.log.path)
        plain = DeltaTable(typed.log.path, options=DISABLED)
        node = rng.choice([None, worlds.predicate(rng, rng.sample(["i", "p", "q", "d"], 2), depth=1)])
        where = None if node is None else written(node, "dict")
        for strategy in ("reverse", "forward"):
            stream = table.files(where, strategy=strategy)
            whole = [key(file) for file in stream]
            assert Counter(whole) == Counter(map(key, plain.files(where, strategy=strategy)))
            used += stream.metrics.tier == 1
            for limit in (0, 1, 7, 1000):
                some = [key(file) for file in table.files(where, strategy=strategy, limit=limit)]
                assert some == whole[:limit]
            for limit in (1, 9, 10**6):
                some = [key(file) for file in table.files(where, strategy=strategy, row_limit=limit)]
                assert some == whole[: len(some)]
                if limit == 10**6:
                    assert some == whole
        shutil.rmtree(tmp_path / str(seed))
    assert used > 1


def test_random_logs_without_a_checkpoint_are_what_they_were(tmp_path: Path) -> None:
    """No sidecar can be built, nothing is looked for, and the answer is the replay's."""
    seen = 0
    for seed in range(30_000, 30_060):
        log = random_log(seed, tmp_path / str(seed))
        if checkpoint_versions(log):
            continue
        seen += 1
        with pytest.raises(OptionError, match="no complete checkpoint"):
            build(str(log.path))
        assert observed_facts(DeltaTable(log.path)) == log.expected(log.latest).facts
        assert not list((log.path / "_delta_log").glob("_sidecars/v*"))
    assert seen > 3


# Tables with odd columns.


def assert_same(place: Place, queries: list[Any], columns: list[str], *, tier: int = 1) -> int:
    """Compare all queries with and without the sidecar; return how many row groups were pruned."""
    pruned = 0
    for where in queries:
        for strategy in ("reverse", "forward"):
            found, metrics = rows(place.open(), where, strategy=strategy, stats_columns=columns)
            assert found == place.answer(where, stats_columns=columns), where
            assert metrics.tier == tier
            pruned += metrics.row_groups_pruned
    return pruned


@pytest.mark.parametrize("size", SIZES)
def test_colliding_names_are_told_apart(size: tuple[int, int], split: Split, tmp_path: Path) -> None:
    """Columns called like those of the sidecar, and a column ``a.b`` beside a nested one."""
    split(*size)
    inner = {"type": "struct", "fields": [{"name": "b", "type": "long", "nullable": True, "metadata": {}}]}
    columns: dict[str, Any] = {
        "size": "long",
        "path": "string",
        "a.b": "long",
        "a": inner,
        "min.a.b": "long",
        "num_records": "long",
        "dv.offset": "integer",
        "tags": "string",
        "lazydelta.footer_sha256": "string",
    }
    log = HandLog(tmp_path / "t", columns, partitions=["size", "path", "num_records"])
    files = []
    for n in range(30):
        low = {"a.b": n, "a": {"b": 100 + n}, "min.a.b": 200 + n, "dv.offset": n, "tags": f"t{n:02d}"}
        low["lazydelta.footer_sha256"] = "0" * 64
        nulls = {name: 0 for name in low if name != "a"} | {"a": {"b": 0}}
        stats = {"minValues": low, "maxValues": low, "nullCount": nulls}
        values = {"size": str(n % 4), "path": f"p{n % 3}", "num_records": None if n % 5 == 0 else str(n % 5)}
        files.append(add(f"f{n:02d}", records=n, partition=values, stats=stats))
    log.commit(*files)
    checkpoint(log)
    log.commit(remove("f03"), add("f99", partition={"size": "1", "path": "p1", "num_records": "1"}))
    place = Place(str(tmp_path / "t"))
    place.build()
    queries = [
        None,
        "size = 2",
        "path = 'p1' AND size = 1",
        "num_records IS NULL",
        "num_records > 3",
        "`a.b` < 5",
        "a.b < 105",
        "`min.a.b` >= 225",
        "`dv.offset` = 7",
        "tags = 't11'",
    ]
    named = ["a.b", "min.a.b", "dv.offset", "tags"]
    pruned = assert_same(place, queries, named)
    assert pruned > 0 or size[0] > 30


@pytest.mark.parametrize("size", quick(SIZES, 2))
@pytest.mark.parametrize("stats", ["json", "struct"])
@pytest.mark.each_value
def test_column_mapping_by_name_with_vectors_and_odd_values(
    size: tuple[int, int], stats: str, split: Split, tmp_path: Path
) -> None:
    """Physical names in the sidecar, logical ones in queries; a column renamed after the checkpoint."""
    split(*size)
    columns: dict[str, Any] = {"id": ("long", "c1", 1), "day": ("date", "c2", 2), "part": ("string", "c3", 3)}
    log = HandLog(
        tmp_path / "t",
        columns,
        partitions=["part", "day"],
        features=["columnMapping", "deletionVectors"],
        configuration={"delta.columnMapping.mode": "name"},
    )
    texts = ["a", "", None, "with space", "50%", "日本", "a/b"]
    files = []
    for n in range(40):
        bounds = {"minValues": {"c1": n}, "maxValues": {"c1": n + 5}, "nullCount": {"c1": 0}}
        values = {"c3": texts[n % 7], "c2": None if n % 6 == 0 else f"2026-02-{n % 6:02d}"}
        gone = vector(f"v{n}", 2) if n % 4 == 0 else None
        files.append(add(f"f{n:02d}", records=10, partition=values, stats=bounds, vector=gone))
    log.commit(*files)
    checkpoint(log, stats=stats, parsed_partitions=stats == "struct")
    log.columns = {"number": ("long", "c1", 1), "day": ("date", "c2", 2), "part": ("string", "c3", 3)}
    log.commit(log.metadata(), remove("f04", vector=vector("v4", 2)), add("f04", vector=vector("new", 3)))
    place = Place(str(tmp_path / "t"))
    place.build(0)
    queries = [
        None,
        "number < 7",
        "part = 'a'",
        "part IS NULL",
        "part = ''",
        "day = '2026-02-03'",
        "day IS NULL AND number > 20",
        "part IN ('日本', '50%') OR number = 3",
    ]
    assert_same(place, queries, ["number"])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
@pytest.mark.each_value
def test_unpartitioned_tables_are_sorted_by_a_timestamps_minimum(
    size: tuple[int, int], kind: str, split: Split, tmp_path: Path
) -> None:
    """Row groups are pruned by the time, missing minima come last, and the upper bound counts with its millisecond."""
    split(*size)
    log = HandLog(tmp_path / "t", {"id": "long", "at": kind}, features=["timestampNtz"])
    zone = "Z" if kind == "timestamp" else ""
    files = []
    for n in range(60):
        minute = n * 7 % 60
        timestamp = f"2026-02-10T14:{minute:02d}:00.123{zone}"
        stats: Any = {"minValues": {"at": timestamp}, "maxValues": {"at": timestamp}, "nullCount": {"at": 0}}
        if n % 11 == 0:
            stats = None
        elif n % 13 == 0:
            stats = {"nullCount": {"at": 5}}
        files.append(add(f"f{n:02d}", records=5, stats=stats))
    log.commit(*files)
    checkpoint(log)
    place = Place(str(tmp_path / "t"))
    place.build()
    queries = [
        None,
        f"at > '2026-02-10T14:50:00.123{zone}'",
        f"at = '2026-02-10T14:10:00.123456{zone}'",
        f"at < '2026-02-10T14:05:00{zone}'",
        "at IS NULL",
        "at IS NOT NULL",
    ]
    pruned = assert_same(place, queries, ["at", "id"])
    assert pruned > 0 or size[0] > 60


@pytest.mark.parametrize("size", SIZES[:3])
def test_long_manifests_leave_row_groups_to_the_footers(
    size: tuple[int, int], split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the limit the manifest keeps parts only: fewer requests are saved, and the answers are the same."""
    monkeypatch.setattr("lazydelta.sidecar.format.manifest.MANIFEST_LIMIT", 100)
    split(*size)
    log = HandLog(tmp_path / "t", {"id": "long", "p": "integer"}, partitions=["p"])
    log.commit(*(add(f"f{n:02d}", ids=(n, n + 3), partition={"p": str(n % 9)}) for n in range(30)))
    checkpoint(log)
    place = Place(str(tmp_path / "t"))
    place.build()
    pruned = assert_same(place, [None, "p = 4", "id < 6", "p > 7 AND id > 20"], ["id"])
    assert pruned > 0


CONTRADICTIONS: list[tuple[int, dict[str, Any]]] = [
    (0, {"minValues": {"id": 5}, "nullCount": {"id": 0, "name": 0}}),
    (0, {"maxValues": {"id": 5}, "nullCount": {"id": 0, "name": 0}}),
    (0, {"minValues": {"id": 5}, "maxValues": {"id": 5}, "nullCount": {"id": 0, "name": 0}}),
    (0, {"minValues": {"name": "b"}, "nullCount": {"id": 0, "name": 0}}),
    (0, {"nullCount": {"id": 0, "name": 0}}),
    (3, {"minValues": {"id": 5}, "nullCount": {"id": 3, "name": 0}}),
    (3, {"maxValues": {"id": 5}, "nullCount": {"id": 3, "name": 3}}),
    (3, {"minValues": {"id": 9}, "maxValues": {"id": 1}, "nullCount": {"id": 3}}),
    (3, {"nullCount": {"id": 3, "name": 3}}),
    (3, {}),
]


@pytest.mark.parametrize("groups", [1, 2, 10])
def test_statistics_that_contradict_themselves_decide_alike_in_every_tier(
    groups: int, split: Split, tmp_path: Path
) -> None:
    """No rows but a range, nothing but nulls but a bound: ranges of row groups are made of them, too."""
    split(groups, 20)
    log = HandLog(tmp_path / "t")
    log.commit(*(add(f"f{n}", records=count, stats=stats) for n, (count, stats) in enumerate(CONTRADICTIONS)))
    checkpoint(log)
    place = Place(str(log.table))
    assert place.build() == "built"
    conditions = [f"{column} {op} {value}" for column, value in {"id": 5, "name": "'b'"}.items() for op in OPERATORS]
    conditions += ["id IS NULL", "name IS NOT NULL", "id IN (4, 5)"]
    conditions += [f"{one} {both} {other}" for one in conditions for other in conditions for both in ("AND", "OR")]
    conditions += [f"NOT ({each})" for each in conditions]
    for where in random.Random(groups).sample(conditions, 120):
        shared_cache.clear()
        found, metrics = rows(place.open(), where)
        assert metrics.tier == 1
        assert found == place.answer(where), where
