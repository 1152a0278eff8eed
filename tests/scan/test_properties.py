"""Whatever the log, predicate, strategy, limit and version: a scan finds what a plain replay and a plain judge find."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.storage import observe
from tests.oracle.random_log import RandomLog, random_log
from tests.oracle.replay import file_key
from tests.predicates import worlds
from tests.scan.hand_log import key
from tests.scan.judging import Facts, may_keep, must_keep, must_prove
from tests.scan.predicates import FORMS, is_expression, predicate_for, written
from tests.scan.typed_log import COLUMNS, added_at, typed_log
from tests.support.rounds import quick

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lazydelta.scan.file import DataFile
    from lazydelta.storage import Request
    from tests.oracle.replay import Json, Key, Snapshot
    from tests.predicates.worlds import Node

# Some expressions are opaque, which is not what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore::lazydelta.PredicateWarning")

STRATEGIES = ("auto", "reverse", "forward")
LIMITS = (0, 1, 7, 1_000_000)
CHUNKS = 6
# The longest tests go through one of them, and through all as soak tests.
SOME = quick(range(CHUNKS), 1)
LOGS = 8


def random_logs(chunk: int, root: Path) -> Iterator[RandomLog]:
    """Yield the random logs of a chunk, each deleted after use; the seeds are not those of the log's own tests."""
    for seed in range(10_000 + chunk * LOGS, 10_000 + (chunk + 1) * LOGS):
        yield random_log(seed, root / str(seed))
        shutil.rmtree(root / str(seed))


def opened(log: RandomLog, rng: random.Random) -> Iterator[tuple[DeltaTable, Snapshot]]:
    """Yield the newest version and another one."""
    for version in sorted({log.latest, rng.choice(log.readable)}):
        options = {"checksum": "error", "batch_size": rng.choice([1, 3, 8192])}
        pinned = None if version == log.latest else version
        yield DeltaTable(str(log.path), version=pinned, options=options), log.expected(version)


def distinct(files: list[DataFile]) -> set[Key]:
    """Return the keys of files, having checked that none comes twice."""
    counted = Counter(map(key, files))
    assert max(counted.values(), default=1) == 1, counted.most_common(2)
    return set(counted)


def bracket(node: Node, snapshot: Snapshot) -> tuple[set[Key], set[Key]]:
    """Return the keys that must be found and those that may be."""
    facts = {name: Facts.of(add, snapshot) for name, add in snapshot.files.items()}
    must = {name for name, known in facts.items() if must_keep(node, known)}
    return must, {name for name, known in facts.items() if may_keep(node, known)}


def assert_newest_first(files: list[DataFile], added: dict[Key, int]) -> None:
    """Check the order of a reverse scan, and that each file of the tail names the version that added it."""
    tail = [file for file in files if file.tier == 0]
    assert files[: len(tail)] == tail, "a file of the base came before one of the tail"
    known = [file for file in tail if file.version is not None]  # a compaction does not say which version
    assert all(file.version == added[key(file)] for file in known)
    versions = [added[key(file)] for file in known]
    assert versions == sorted(versions, reverse=True)
    assert all(file.version is None for file in files[len(tail) :])


@pytest.mark.parametrize("chunk", SOME)
def test_random_logs_give_the_files_that_the_judge_allows_under_every_strategy(chunk: int, tmp_path: Path) -> None:
    """All strategies agree; nothing is found twice, invented, missed, or kept that the statistics exclude."""
    rng = random.Random(chunk)
    scans = pruned = exact = 0
    for log in random_logs(chunk, tmp_path):
        for table, snapshot in opened(log, rng):
            added = added_at(log, snapshot.version)
            for _ in range(8):
                node, form = predicate_for(rng, snapshot), rng.choice(FORMS)
                must, may = bracket(node, snapshot)
                story = (log.seed, snapshot.version, node, form, log.notes)
                found = {}
                for strategy in STRATEGIES:
                    files = table.files(written(node, form), strategy=strategy).collect()
                    found[strategy] = distinct(files)
                    if strategy == "reverse":
                        assert_newest_first(files, added)
                scans += 3
                assert found["auto"] == found["reverse"] == found["forward"], story
                assert must <= found["auto"] <= set(snapshot.files), story
                if not is_expression(form):
                    assert found["auto"] <= may, (*story, found["auto"] - may)
                    exact += must == may
                pruned += len(snapshot.files) - len(found["auto"])
    assert scans > 250
    assert pruned > 100
    assert exact > 15


@pytest.mark.parametrize("chunk", SOME)
def test_typed_logs_never_lose_a_file_with_a_matching_row(chunk: int, tmp_path: Path) -> None:
    """Rows of every type behind statistics as known writers log them: no file with a matching row is dropped."""
    rng = random.Random(100 + chunk)
    scans = pruned = kept = 0
    for seed in range(chunk * LOGS, (chunk + 1) * LOGS):
        typed = typed_log(seed, tmp_path / str(seed))
        for table, snapshot in opened(typed.log, rng):
            for _ in range(8):
                node, form = worlds.predicate(rng, rng.sample(COLUMNS, 3)), rng.choice(FORMS)
                where, strategy = written(node, form), rng.choice(STRATEGIES)
                found = distinct(table.files(where, strategy=strategy).collect())
                scans += 1
                holding = {
                    name
                    for name, add in snapshot.files.items()
                    if any(worlds.judge(node, row) is True for row in typed.rows_of(add))
                }
                must, may = bracket(node, snapshot)
                story = (seed, snapshot.version, node, form, strategy, typed.log.notes)
                if not _differs_from_sql(node, form):
                    assert holding <= found, (*story, holding - found)
                    assert must <= found, (*story, must - found)
                if not is_expression(form):
                    assert found <= may, (*story, [snapshot.files[name] for name in found - may])
                pruned += len(snapshot.files) - len(found)
                kept += len(found)
        shutil.rmtree(tmp_path / str(seed))
    assert scans > 90
    assert pruned > 300
    assert kept > 300


def _differs_from_sql(node: Node, form: str) -> bool:
    """Tell whether a form has a meaning of its own: to PyArrow an integer and a float are compared as doubles."""
    return is_expression(form) and any(word in repr(node) for word in ("Decimal", "."))


@pytest.mark.parametrize("chunk", quick(range(CHUNKS), 2))
def test_a_limit_gives_so_many_of_the_files_that_there_are(chunk: int, tmp_path: Path) -> None:
    """A limited scan is the beginning of the unlimited one, of the size asked for or of all there are."""
    rng = random.Random(200 + chunk)
    scans = 0
    for log in random_logs(chunk, tmp_path):
        for table, snapshot in opened(log, rng):
            node = predicate_for(rng, snapshot)
            for where in (None, written(node, "dict")):
                for strategy in ("reverse", "forward"):
                    whole = table.files(where, strategy=strategy).collect()
                    for limit in LIMITS:
                        some = table.files(where, strategy=strategy, limit=limit).collect()
                        assert [*map(key, some)] == [*map(key, whole)][:limit], (log.seed, node, strategy, limit)
                        scans += 1
                auto = table.files(where, limit=7)
                found = distinct(auto.collect())
                assert len(found) == min(7, len(whole))
                assert found <= distinct(whole)
                assert auto.metrics.strategy == "reverse"
                scans += 1
    assert scans > 180


@pytest.mark.parametrize("chunk", SOME)
def test_a_row_limit_ends_with_the_file_that_reaches_it(chunk: int, tmp_path: Path) -> None:
    """The files hold the rows asked for, by the rows themselves, and would not without the last file."""
    rng = random.Random(300 + chunk)
    scans = cut = 0
    for seed in range(chunk * LOGS, (chunk + 1) * LOGS):
        typed = typed_log(seed, tmp_path / str(seed))
        for table, snapshot in opened(typed.log, rng):
            for _ in range(4):
                node = rng.choice([None, worlds.predicate(rng, rng.sample(["i", "p", "q", "d", "b", "s"], 2), depth=1)])
                where = None if node is None else written(node, "dict")
                strategy = rng.choice(["reverse", "forward"])
                whole = [key(file) for file in table.files(where, strategy=strategy)]
                for limit in (0, 1, 4, 20):
                    some = [key(file) for file in table.files(where, strategy=strategy, row_limit=limit)]
                    scans += 1
                    story = (seed, snapshot.version, node, strategy, limit, typed.log.notes)
                    assert some == whole[: len(some)], story
                    adds = [snapshot.files[name] for name in some]
                    if len(some) < len(whole):
                        cut += 1
                        assert sum(_matching(node, add, typed.rows_of(add)) for add in adds) >= limit, story
                    proven = [_plainly_proven(node, add, snapshot) for add in adds]
                    assert limit == 0 or sum(proven[:-1]) < limit, story
        shutil.rmtree(tmp_path / str(seed))
    assert scans > 120
    assert cut > 30


def _live(add: Json, records: int) -> int:
    deleted: int = (add.get("deletionVector") or {}).get("cardinality", 0)
    return records - deleted


def _matching(node: Node | None, add: Json, rows: list[worlds.Row]) -> int:
    """Return the live rows of a file whose rows all match, else 0."""
    every = node is None or all(worlds.judge(node, row) is True for row in rows)
    return _live(add, len(rows)) if every else 0


def _plainly_proven(node: Node | None, add: Json, snapshot: Snapshot) -> int:
    facts = Facts.of(add, snapshot)
    if facts.records is None or (node is not None and not must_prove(node, facts)):
        return 0
    return _live(add, facts.records)


@pytest.mark.parametrize("chunk", range(2))
def test_a_checkpoint_may_be_replaced_at_a_random_read_of_a_random_log(chunk: int, tmp_path: Path) -> None:
    """The same files under another layout, which the scan meets in its middle: each comes once, none is missing."""
    rng = random.Random(400 + chunk)
    scans = replaced = 0
    for seed in range(20_000 + chunk * 2 * LOGS, 20_000 + (chunk + 1) * 2 * LOGS):
        log = random_log(seed, tmp_path / str(seed))
        table = DeltaTable(str(log.path), options={"batch_size": 3, "cache_size": 0, "checksum": "error"})
        checkpoints = [path for path in log.log.iterdir() if ".checkpoint." in path.name and path.stat().st_size]
        for strategy in ("reverse", "forward"):
            timestamp = rng.choice([1, 2, 4, 9, 20])
            with observe(_rewriting(timestamp, checkpoints, rng)):
                stream = table.files(strategy=strategy)
                found = distinct(stream.collect())
            assert found == set(log.expected(log.latest).files), (seed, strategy, timestamp, log.notes)
            scans += 1
            replaced += stream.metrics.checkpoints_replaced
        shutil.rmtree(tmp_path / str(seed))
    assert scans == 4 * LOGS
    assert replaced > 3


def _rewriting(timestamp: int, checkpoints: list[Path], rng: random.Random) -> Callable[[Request], None]:
    """Return an observer that writes Parquet checkpoints anew, rows in another order, before the n-th read of one."""
    count = 0

    def hook(request: Request) -> None:
        nonlocal count
        count += request.verb == "GET" and ".checkpoint." in request.path
        if count != timestamp:
            return
        count += 1
        for path in checkpoints:
            if path.suffix == ".parquet":
                rows = pq.read_table(path)
                order = rng.sample(range(rows.num_rows), rows.num_rows)
                fresh = path.with_name(f".{path.name}")
                pq.write_table(rows.take(pa.array(order, pa.int64())), fresh, compression="none", row_group_size=5)
                fresh.replace(path)

    return hook


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_three_ways_of_reading_a_stream_give_the_same_files(strategy: str, tmp_path: Path) -> None:
    """Objects, record batches and asynchronous iteration agree, column by column."""
    import asyncio  # noqa: PLC0415

    async def iterate(table: DeltaTable) -> list[Any]:
        return [_facts(file) async for file in table.files(strategy=strategy, batch_size=3)]

    for seed in range(5):
        table = DeltaTable(str(typed_log(seed, tmp_path / str(seed)).log.path))
        objects = [_facts(file) for file in table.files(strategy=strategy, batch_size=3)]
        assert asyncio.run(iterate(table)) == objects
        rows = [
            row for batch in table.files(strategy=strategy, stats_columns=[]).batches() for row in batch.to_pylist()
        ]
        names = ("path", "size", "modification_time", "num_records", "version", "tier")
        from_batches = [
            (*(row[name] for name in names), dict(row["partition_values"]), row["deletion_vector"]) for row in rows
        ]
        assert from_batches == objects


def _facts(file: DataFile) -> tuple[Any, ...]:
    names = ("path", "size", "modification_time", "num_records", "version", "tier")
    return (*(getattr(file, name) for name in names), file.partition_values, file.deletion_vector)


def test_the_keys_of_the_judge_are_those_of_the_oracle(tmp_path: Path) -> None:
    """What the tests compare by is the protocol's key: canonical path and deletion vector."""
    typed = typed_log(2, tmp_path / "log")
    snapshot = typed.log.expected(typed.log.latest)
    assert {file_key(add) for add in snapshot.files.values()} == set(snapshot.files)
    assert {key(file) for file in DeltaTable(str(typed.log.path)).files()} == set(snapshot.files)
