"""The edge cases that the design names, and the invariant that tail keys are recorded before pruning."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.errors import (
    FallbackDisabledError,
    MissingCommitError,
    RetentionGuardError,
    UnknownColumnError,
    VersionNotFoundError,
)
from lazydelta.log import keys as remove_set
from lazydelta.log.keys import RemoveSet
from lazydelta.testing import make_table
from tests.oracle.replay import commit_name
from tests.scan.hand_log import HandLog, add, key, paths, remove, vector, watching

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.scan.file import DataFile
    from tests.oracle.replay import Json

STRATEGIES = ("auto", "reverse", "forward")
both = pytest.mark.parametrize("strategy", ["reverse", "forward"])


def found(table: Path, strategy: str = "auto", where: Any = None, **options: Any) -> list[str]:
    """Return the paths of a scan, in its order."""
    return paths(DeltaTable(table, **options).files(where, strategy=strategy))


# Invariant 2: tail keys are recorded before any pruning.


@both
@pytest.mark.parametrize("base", ["checkpoint", "commit"])
def test_a_pruned_newer_add_still_hides_the_older_one(base: str, strategy: str, tmp_path: Path) -> None:
    """The file matched once; its statistics were written anew and exclude it now: it must not come back."""
    log = HandLog(tmp_path)
    log.commit(add("a", ids=(1, 5)), add("b", ids=(1, 5)))
    if base == "checkpoint":
        log.checkpoint()
    log.commit(add("a", ids=(10, 15)))
    assert found(tmp_path, strategy, "id < 6") == ["b"]
    assert found(tmp_path, strategy, "id > 6") == ["a"]


@both
@pytest.mark.parametrize("base", ["checkpoint", "commit"])
def test_a_pruned_newer_add_in_another_partition_still_hides_the_older_one(
    base: str, strategy: str, tmp_path: Path
) -> None:
    log = HandLog(tmp_path, {"id": "long", "p": "string"}, partitions=["p"])
    log.commit(add("a", partition={"p": "x"}), add("b", partition={"p": "x"}))
    if base == "checkpoint":
        log.checkpoint()
    log.commit(add("a", partition={"p": "y"}))
    assert found(tmp_path, strategy, {"p": "x"}) == ["b"]


# Edge case 4: deletion-vector updates over several commits.


@both
@pytest.mark.parametrize("first", [None, vector("one")], ids=["no vector at first", "a vector at first"])
def test_edge_case_4_deletion_vector_updates_over_several_commits(
    first: Json | None, strategy: str, tmp_path: Path
) -> None:
    """Removed and added again with another vector, twice: the file once, with the newest vector."""
    second, third = vector("two", 2), vector("three", 3)
    log = HandLog(tmp_path, features=["deletionVectors"])
    log.commit(add("a", ids=(1, 9), records=9, vector=first), add("other"))
    log.checkpoint()
    log.commit(add("more1"))
    log.commit(add("more2"))
    log.commit(remove("a", vector=first), add("a", ids=(1, 9), records=9, vector=second))
    log.commit(add("more3"))
    log.commit(add("a", ids=(1, 9), records=9, vector=third), remove("a", vector=second))
    files = DeltaTable(tmp_path).files(strategy=strategy).collect()
    (file,) = (each for each in files if each.path == "a")
    assert file.deletion_vector is not None
    assert {name: file.deletion_vector[name] for name in third} == third
    assert file.version == 5
    assert sorted(paths(files)) == ["a", "more1", "more2", "more3", "other"]
    assert {key(each) for each in files} == set(log.state().files)


@both
def test_edge_case_4_the_vector_of_an_older_version_is_found_by_time_travel(strategy: str, tmp_path: Path) -> None:
    log = HandLog(tmp_path, features=["deletionVectors"])
    log.commit(add("a"))
    log.commit(remove("a"), add("a", vector=vector("one")))
    log.commit(remove("a", vector=vector("one")), add("a", vector=vector("two")))
    seen = []
    for version in range(3):
        (file,) = DeltaTable(tmp_path, version=version).files(strategy=strategy)
        seen.append(file.deletion_vector and file.deletion_vector["pathOrInlineDv"])
    assert seen == [None, vector("one")["pathOrInlineDv"], vector("two")["pathOrInlineDv"]]


# Edge case 6: one commit with 1,000,000 adds.

_CHILD = """
import json, sys
import pyarrow.parquet, obstore
import lazydelta
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
stream = lazydelta.DeltaTable(sys.argv[1]).files(json.loads(sys.argv[2]), **json.loads(sys.argv[3]))
files = rows = 0
for batch in stream.batches():
    files += batch.num_rows
print(json.dumps([files, peak() - before, stream.metrics.bytes_read, stream.metrics.files_pruned]))
"""
MILLION = 1_000_000


@pytest.fixture(scope="module")
def million_adds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a table whose second commit adds a million files; a checksum settles its metadata."""
    table = tmp_path_factory.mktemp("million")
    log = HandLog(table)
    log.commit(add("first", ids=(-5, -5)))
    log.checkpoint()
    rest = '"partitionValues":{},"size":10,"modificationTime":1,"dataChange":true'
    stats = r'"stats":"{\"numRecords\":1,\"minValues\":{\"id\":%d},\"maxValues\":{\"id\":%d},\"nullCount\":{\"id\":0}}"'
    line = f'{{"add":{{"path":"part-%08d.parquet",{rest},{stats}}}}}\n'
    with (log.log / commit_name(1)).open("w") as commit:
        for start in range(0, MILLION, 10_000):
            commit.write("".join([line % (number, number, number) for number in range(start, start + 10_000)]))
    log.version = 1
    log.checksum(files=MILLION + 1)
    return table


def _scan_in_child(table: Path, where: Any, **keywords: Any) -> tuple[int, int, int, int]:
    arguments = [str(table), json.dumps(where), json.dumps(keywords)]
    done = subprocess.run([sys.executable, "-c", _CHILD, *arguments], capture_output=True, text=True, check=True)
    files, peak, read, pruned = json.loads(done.stdout)
    return files, peak, read, pruned


@pytest.mark.memory
@pytest.mark.xdist_group("million adds")  # made once
def test_edge_case_6_a_million_adds_in_one_commit_are_scanned_in_bounded_memory(million_adds: Path) -> None:
    """The predicate keeps a thousand files; the keys of all are held, their actions are not."""
    files, peak_kb, _, pruned = _scan_in_child(million_adds, {"id": {">=": 5000, "<": 6000}})
    assert files == 1000
    assert pruned == MILLION + 1 - 1000
    assert peak_kb < 150 * 1024


@pytest.mark.memory
@pytest.mark.xdist_group("million adds")
def test_edge_case_6_a_limit_stops_in_the_middle_of_the_commit(million_adds: Path) -> None:
    files, peak_kb, read, _ = _scan_in_child(million_adds, {"id": {">=": 5000}}, limit=7)
    size = (million_adds / "_delta_log" / commit_name(1)).stat().st_size
    assert files == 7
    assert read < size / 10
    assert peak_kb < 100 * 1024


# Edge case 7: the plain histories.


def test_edge_case_7_append_only_comes_newest_to_oldest_and_whole(tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    for number in range(12):
        log.commit(add(f"f{number}"))
        if number == 4:
            log.checkpoint()
    assert found(tmp_path, "reverse")[:7] == [f"f{number}" for number in range(11, 4, -1)]
    for strategy in STRATEGIES:
        assert sorted(found(tmp_path, strategy)) == sorted(f"f{number}" for number in range(12))


@both
def test_edge_case_7_added_at_10_and_removed_at_12_is_not_returned(strategy: str, tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    for number in range(15):
        log.commit(remove("f10") if number == 12 else add(f"f{number}"))
        if number == 8:
            log.checkpoint()
    expected = {f"f{number}" for number in range(15)} - {"f10", "f12"}
    assert set(found(tmp_path, strategy)) == expected
    assert "f10" in found(tmp_path, strategy, version=11)


@both
def test_edge_case_7_version_20_removes_a_and_adds_b(strategy: str, tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    log.commit(add("a"))
    for _ in range(19):
        log.commit()
    log.checkpoint()
    assert log.version == 19
    log.commit(remove("a"), add("b"))
    assert found(tmp_path, strategy) == ["b"]


@both
def test_edge_case_7_checkpoint_of_three_plus_two_minus_one(strategy: str, tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    log.commit(add("A"), add("B"), add("C"))
    log.checkpoint()
    log.commit(add("D"))
    log.commit(add("E"))
    log.commit(remove("D"))
    assert sorted(found(tmp_path, strategy)) == ["A", "B", "C", "E"]


@both
@pytest.mark.parametrize("order", ["remove first", "add first"])
@pytest.mark.parametrize("base", ["checkpoint", "commit"])
def test_edge_case_7_the_same_path_removed_and_added_in_one_commit_is_there_once(
    base: str, order: str, strategy: str, tmp_path: Path
) -> None:
    log = HandLog(tmp_path)
    log.commit(add("a", records=1, ids=(1, 1)), add("b"))
    if base == "checkpoint":
        log.checkpoint()
    actions = [remove("a"), add("a", records=2, ids=(2, 2))]
    log.commit(*(actions if order == "remove first" else reversed(actions)))
    files = DeltaTable(tmp_path).files(strategy=strategy).collect()
    assert sorted((file.path, file.num_records) for file in files) == [("a", 2), ("b", None)]


# Edge case 8: metaData or protocol in the tail.


def _renamed(table: Path) -> HandLog:
    """Rename a column, and add another one, after the checkpoint."""
    mapping = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}
    columns = {"id": ("long", "c1", 1)}
    log = HandLog(table, columns, features=["columnMapping"], configuration=mapping)
    log.commit(add("old-low", stats=_ids("c1", 1)), add("old-high", stats=_ids("c1", 9)))
    log.checkpoint()
    log.columns = {"number": ("long", "c1", 1), "extra": ("long", "c3", 3)}
    log.commit(log.metadata(), add("new-low", stats=_ids("c1", 2) | {"records": 1}))
    log.commit(add("new-extra", stats=_ids("c3", 7)))
    return log


def _ids(column: str, value: int) -> Json:
    return {"minValues": {column: value}, "maxValues": {column: value}, "nullCount": {column: 0}}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_edge_case_8_a_predicate_on_a_renamed_column_prunes_old_and_new_files(strategy: str, tmp_path: Path) -> None:
    _renamed(tmp_path)
    stream = DeltaTable(tmp_path).files("number < 5", strategy=strategy)
    assert sorted(paths(stream)) == ["new-extra", "new-low", "old-low"]
    assert stream.metrics.fallback_triggered == 1
    with pytest.raises(UnknownColumnError, match="id"):
        DeltaTable(tmp_path).files("id < 5", strategy=strategy)
    assert sorted(found(tmp_path, strategy, "id < 5", version=0)) == ["old-low"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_edge_case_8_a_predicate_on_a_new_column_keeps_files_without_its_statistics(
    strategy: str, tmp_path: Path
) -> None:
    _renamed(tmp_path)
    assert sorted(found(tmp_path, strategy, "extra = 8")) == ["new-low", "old-high", "old-low"]
    assert sorted(found(tmp_path, strategy, "extra = 7")) == ["new-extra", "new-low", "old-high", "old-low"]


def test_edge_case_8_the_fallback_is_counted_and_explained(tmp_path: Path) -> None:
    _renamed(tmp_path)
    stream = DeltaTable(tmp_path).files("number < 5")
    assert stream.metrics.fallback_triggered == 0, "nothing has happened yet"
    stream.collect()
    told = stream.explain()
    assert told.metrics["delta.lazy.fallback_triggered"] == 1
    assert told.plan["changes"] == ["metaData in version 1"]
    assert "metaData in version 1" in str(told)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("action", ["metaData", "protocol"])
def test_edge_case_8_without_fallback_the_scan_names_action_and_version(
    action: str, strategy: str, tmp_path: Path
) -> None:
    """Nothing leaves before the error."""
    log = HandLog(tmp_path)
    log.commit(add("a"))
    log.checkpoint()
    log.commit(add("b"))
    log.commit(log.metadata() if action == "metaData" else log.protocol(), add("c"))
    log.commit(add("d"))
    table = DeltaTable(tmp_path, options={"enable_fallback": False})
    emitted: list[DataFile] = []
    with pytest.raises(FallbackDisabledError, match=f"Version 2 has a {action} action") as caught:
        emitted.extend(table.files(strategy=strategy))
    assert caught.value.version == 2
    assert "enable_fallback" in str(caught.value)
    assert emitted == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_edge_case_8_a_checksum_at_the_version_settles_it_without_fallback(strategy: str, tmp_path: Path) -> None:
    _renamed(tmp_path).checksum()
    with watching() as watch:
        table = DeltaTable(tmp_path, options={"enable_fallback": False, "checksum": "error"})
        assert watch.count("checkpoint.parquet") == 0
    stream = table.files("number < 5", strategy=strategy)
    assert sorted(paths(stream)) == ["new-extra", "new-low", "old-low"]
    assert stream.metrics.fallback_triggered == 0
    assert stream.explain().plan["settled_by"] == "checksum"


def test_edge_case_8_a_change_after_the_newest_checksum_still_trips(tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    log.commit(add("a"))
    log.checkpoint()
    log.commit(log.metadata())
    log.checksum()
    assert found(tmp_path, options={"enable_fallback": False}) == ["a"]
    log.commit(add("b"))
    assert found(tmp_path, options={"enable_fallback": False}) == ["b", "a"]
    log.commit(log.metadata())
    with pytest.raises(FallbackDisabledError, match="Version 3 has a metaData action"):
        found(tmp_path, options={"enable_fallback": False})


def test_edge_case_8_actions_that_change_no_file_do_not_trip(tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    log.commit(add("a"))
    log.checkpoint()
    log.commit({"txn": {"appId": "x", "version": 1}})
    log.commit({"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}})
    log.commit({"cdc": {"path": "_change_data/c", "partitionValues": {}, "size": 1, "dataChange": False}})
    stream = DeltaTable(tmp_path, options={"enable_fallback": False}).files()
    assert paths(stream) == ["a"]
    assert stream.metrics.fallback_triggered == 0


def test_edge_case_8_the_creation_of_the_table_does_not_trip(tmp_path: Path) -> None:
    """Without a checkpoint version 0 is part of the tail, and a compaction of the first versions holds it."""
    log = HandLog(tmp_path)
    log.commit(add("a"))
    log.commit(add("b"))
    log.commit(add("c"))
    options = {"enable_fallback": False}
    assert sorted(found(tmp_path, options=options)) == ["a", "b", "c"]
    lines = [(log.log / commit_name(version)).read_text() for version in (0, 1)]
    (log.log / f"{0:020d}.{1:020d}.compacted.json").write_text("".join(lines))
    assert sorted(found(tmp_path, options=options)) == ["a", "b", "c"]


# Edge case 9: long tails, no checkpoint, log cleanup, retention guard.


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_edge_case_9_more_than_100_commits_since_the_checkpoint(strategy: str, tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    log.commit(add("base", ids=(0, 0)))
    log.checkpoint()
    for number in range(1, 151):
        log.commit(
            add(f"f{number:03d}", ids=(number, number)), *([remove(f"f{number - 1:03d}")] if number % 3 == 0 else [])
        )
    stream = DeltaTable(tmp_path).files("id <= 60 or id > 140", strategy=strategy)
    expected = [f"f{number:03d}" for number in range(150, 0, -1) if number % 3 != 2 and not 60 < number <= 140]
    assert sorted(paths(stream)) == sorted(["base", *expected])
    assert stream.metrics.commits_scanned == 150
    plan = stream.explain().plan
    assert plan["tail_commits"] == 150
    if strategy == "auto":
        assert (plan["strategy"], plan["reason"]) == ("forward", "150 commits since the checkpoint and no limit")
    assert paths(DeltaTable(tmp_path).files(limit=3)) == ["f150", "f148", "f147"]


@pytest.fixture(scope="module")
def uncheckpointed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten thousand commits and no checkpoint: each adds a file, every tenth removes its predecessor."""
    table = tmp_path_factory.mktemp("uncheckpointed")
    log = HandLog(table)
    log.commit(add("f00000"))
    for number in range(1, 10_000):
        log.commit(add(f"f{number:05d}"), *([remove(f"f{number - 1:05d}")] if number % 10 == 0 else []))
    return table


def test_edge_case_9_ten_thousand_commits_without_a_checkpoint(uncheckpointed: Path) -> None:
    table = DeltaTable(uncheckpointed)
    assert paths(table.files(limit=2)) == ["f09999", "f09998"]
    stream = table.files()
    seen = [path for batch in stream.batches() for path in batch.column("path").to_pylist()]
    assert seen == [f"f{number:05d}" for number in range(9_999, -1, -1) if number % 10 != 9 or number == 9_999]
    assert stream.metrics.commits_scanned == 10_000
    assert stream.explain().plan["base_version"] is None


def test_edge_case_9_a_tail_after_a_log_cleanup(tmp_path: Path) -> None:
    """Commits below the checkpoint are gone, its own commit too: the tail and the checkpoint are enough."""
    log = HandLog(tmp_path)
    for number in range(10):
        log.commit(add(f"f{number}"))
    log.checkpoint()
    log.commit(remove("f3"))
    log.commit(add("g"))
    log.checksum()
    for version in range(10):
        (log.log / commit_name(version)).unlink()
    for strategy in STRATEGIES:
        assert sorted(found(tmp_path, strategy)) == ["f0", "f1", "f2", *(f"f{n}" for n in range(4, 10)), "g"]
    with pytest.raises(VersionNotFoundError) as caught:
        DeltaTable(tmp_path, version=8)
    assert (caught.value.earliest, caught.value.latest) == (9, 11)


def test_edge_case_9_a_cleaned_log_without_its_checkpoint_is_an_error(tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    for number in range(5):
        log.commit(add(f"f{number}"))
    for version in range(3):
        (log.log / commit_name(version)).unlink()
    with pytest.raises(MissingCommitError, match="begins at version 3"):
        DeltaTable(tmp_path)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_edge_case_9_the_retention_guard_refuses_a_floor_and_names_it(strategy: str, tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    log.commit(add("a"))
    log.commit(add("b"))
    log.checkpoint()
    log.commit(add("c"))
    asked: list[tuple[int, int]] = []

    def refuse(version: int, timestamp: int) -> bool:
        asked.append((version, timestamp))
        return False

    emitted: list[DataFile] = []
    with watching() as watch:
        table = DeltaTable(tmp_path)
        opening = len(watch.requests)
        with pytest.raises(
            RetentionGuardError, match="rejects version 1 as the start of a scan of version 2"
        ) as caught:
            emitted.extend(table.files(strategy=strategy, retention_guard=refuse))
        assert len(watch.requests) == opening, "a refused scan reads nothing"
    written = (log.log / commit_name(1)).stat().st_mtime_ns // 1_000_000
    assert asked == [(1, written)]
    assert caught.value.version == 1
    assert emitted == []


def test_edge_case_9_the_retention_guard_lets_a_floor_pass(tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    log.commit(add("a"))
    log.commit(add("b"))
    asked: list[int] = []

    def allow(version: int, _: int) -> bool:
        asked.append(version)
        return True

    stream = DeltaTable(tmp_path).files(retention_guard=allow)
    assert paths(stream) == ["b", "a"]
    assert asked == [0], "without a checkpoint, version 0 is the floor"


# Edge case 10: 50,000 removes by one OPTIMIZE commit.


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of a hundred thousand files are compacted into ten, in one commit."""
    table = tmp_path_factory.mktemp("optimized")
    make_table(table, files=100_000, columns=1, tail=1, removes=50_000, adds_per_commit=10)
    return table


@both
@pytest.mark.parametrize("limit", [64 << 20, 100_000], ids=["in memory", "spilled"])
def test_edge_case_10_fifty_thousand_removes_in_one_commit(
    limit: int, strategy: str, optimized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spilled: list[int] = []
    spill = RemoveSet._spill

    def counted(keys: RemoveSet) -> None:
        spilled.append(len(keys))
        spill(keys)

    monkeypatch.setattr(RemoveSet, "_spill", counted)
    monkeypatch.setattr(remove_set, "_LEAST", 1)
    log = optimized / "_delta_log"
    base = pq.ParquetFile(log / f"{10:020d}.checkpoint.parquet").read(columns=["add.path"])["add"].to_pylist()
    actions = [json.loads(line) for line in (log / commit_name(11)).read_text().splitlines()]
    removed = {each["remove"]["path"] for each in actions if "remove" in each}
    expected = {row["path"] for row in base if row is not None} - removed
    expected |= {each["add"]["path"] for each in actions if "add" in each}
    assert (len(removed), len(expected)) == (50_000, 50_010)
    table = DeltaTable(optimized, options={"remove_set_memory_limit": limit})
    stream = table.files(strategy=strategy)
    seen = [path for batch in stream.batches() for path in batch.column("path").to_pylist()]
    assert len(seen) == 50_010
    assert set(seen) == expected
    assert stream.metrics.remove_set_size == 50_010
    assert bool(spilled) == (limit == 100_000)
    assert len(paths(table.files(strategy=strategy, limit=11))) == 11
