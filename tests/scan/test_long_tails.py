"""Tails of many small commits: joined for speed, exact as one by one, and never piled up."""

from __future__ import annotations

import json
import random
import tracemalloc
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lazydelta import DeltaTable
from lazydelta.log.commits import decode_whole
from lazydelta.log.file_batch import FileBatch
from tests.oracle.replay import commit_name, file_key
from tests.scan.hand_log import HandLog, add, remove, vector, watching

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.oracle.replay import Json

both = pytest.mark.parametrize("strategy", ["reverse", "forward"])


def lively(table: Path, commits: int, seed: int) -> HandLog:
    """Write commits that add, remove, replace and re-add few paths again and again, with and without vectors."""
    rng = random.Random(seed)
    log = HandLog(table, features=["deletionVectors"])
    log.commit(*(add(f"p{number}", ids=(number, number)) for number in range(40)))
    log.checkpoint()
    for _ in range(commits):
        chosen: dict[Any, Json] = {}
        for _ in range(rng.choice([0, 1, 1, 2, 5])):
            path = f"p{rng.randrange(60)}"
            dv = None if rng.random() < 0.6 else vector(f"v{rng.randrange(3)}")
            number = rng.randrange(1000)
            pair = [add(path, ids=(number, number), vector=dv), remove(path, vector=dv)]
            for action in rng.choice([pair[:1], pair[1:], pair, pair[::-1]]):
                ((kind, content),) = action.items()
                chosen[kind, file_key(content)] = action  # a commit has one add and one remove of a key at most
        log.commit(*chosen.values(), {"txn": {"appId": "a", "version": log.version}})
    return log


def actions_of(log: HandLog, version: int) -> Iterator[tuple[str, Json]]:
    """Yield the actions of a commit."""
    for line in (log.log / commit_name(version)).read_text().splitlines():
        yield from json.loads(line).items()


def replayed(log: HandLog) -> dict[Any, tuple[int, int]]:
    """Return the active files with the version that added them and their smallest id, commit by commit."""
    state: dict[Any, tuple[int, int]] = {}
    for version in range(log.version + 1):
        actions = list(actions_of(log, version))
        for kind, content in actions:
            if kind == "remove":
                state.pop(file_key(content), None)
        for kind, content in actions:
            if kind == "add":
                state[file_key(content)] = (version, json.loads(content["stats"])["minValues"]["id"])
    return state


@both
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.each_value
def test_a_long_tail_gives_what_a_plain_replay_gives(seed: int, strategy: str, tmp_path: Path) -> None:
    """Every file once, with the version that added it and the statistics that it had there."""
    log = lively(tmp_path, 200, seed)
    expected = {key: (version or None, low) for key, (version, low) in replayed(log).items()}
    files = DeltaTable(tmp_path).files(strategy=strategy, batch_size=7).collect()
    keys = [file_key({"path": file.path, "deletionVector": file.deletion_vector}) for file in files]
    assert len(keys) == len(set(keys))
    found = zip(keys, files, strict=True)
    assert {key: (file.version, (file.stats or {})["minValues"]["id"]) for key, file in found} == expected
    versions = [file.version for file in files if file.version is not None]
    assert versions == sorted(versions, reverse=True), "newest first, joined or not"


@both
@pytest.mark.parametrize("seed", range(3))
def test_later_scans_of_a_table_know_what_its_short_tail_comes_to(
    seed: int, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second scan remembers the outcome, and later ones decode no commit, also under another predicate or limit."""
    log = lively(tmp_path, 60, seed)
    expected = {key: version or None for key, (version, _) in replayed(log).items()}
    decoded: list[str] = []

    def noted(data: bytes, path: str, version: int) -> Iterator[Any]:
        decoded.append(path)
        return decode_whole(data, path, version)

    monkeypatch.setattr("lazydelta.log.replay.decode_whole", noted)
    table, counts = DeltaTable(tmp_path), []
    for where in ("id >= 0", "id >= 0", "id >= 0 and id < 5000"):
        decoded.clear()
        stream = table.files(where, strategy=strategy)
        files = stream.collect()
        keys = [file_key({"path": file.path, "deletionVector": file.deletion_vector}) for file in files]
        assert len(keys) == len(expected)
        assert {key: file.version for key, file in zip(keys, files, strict=True)} == expected
        counts.append((len(decoded), stream.metrics.commits_scanned))
    assert counts == [(60, 60), (60, 60), (0, 60)]
    few = table.files("id >= 0", strategy=strategy, limit=3).collect()
    assert [(file.path, file.version) for file in few] == [(file.path, file.version) for file in files[:3]]
    assert len(decoded) == 0


@both
def test_record_batches_have_the_version_of_each_file(strategy: str, tmp_path: Path) -> None:
    log = lively(tmp_path, 120, 7)
    expected = sorted(version for version, _ in replayed(log).values() if version)
    batches = DeltaTable(tmp_path).files("id >= 0", strategy=strategy).batches()
    found = [version for batch in batches for version in batch.column("version").to_pylist()]
    assert sorted(version for version in found if version is not None) == expected


@both
def test_small_commits_are_joined(strategy: str, tmp_path: Path) -> None:
    """A thousand commits of one file each become a few dozen batches, and the first leaves alone."""
    log = HandLog(tmp_path)
    log.commit(add("base"))
    log.checkpoint()
    for number in range(1000):
        log.commit(add(f"t{number:04d}"))
    sizes = [batch.num_rows for batch in DeltaTable(tmp_path).files(strategy=strategy).batches()]
    assert sum(sizes) == 1001
    assert sizes[0] == 1
    assert len(sizes) < 60


def test_a_reader_that_stops_has_paid_for_a_quarter_more_than_it_took(tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    log.commit(add("base"))
    log.checkpoint()
    for number in range(400):
        log.commit(add(f"t{number:04d}"), add(f"u{number:04d}"))
    log.checksum(801)
    table = DeltaTable(tmp_path, options={"delta.commit.parallelism": 5})
    with watching() as watch, table.files(strategy="reverse") as stream:
        for number, _ in enumerate(stream, 1):
            assert watch.commits <= 1.3 * (number / 2 + 1) + 5
            if number == 600:
                break


def test_commits_with_long_statistics_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined commits stay below two megabytes, however few actions they have."""
    log = HandLog(tmp_path)
    log.commit(add("base"))
    log.checkpoint()
    long = "x" * 300_000
    for number in range(60):
        stats = {"minValues": {"name": long}, "maxValues": {"name": long}, "nullCount": {"name": 0}}
        log.commit(add(f"t{number:02d}", stats=stats))
    held: list[int] = []
    plain = FileBatch.from_adds.__func__  # type: ignore[attr-defined]

    def watched(cls: type[FileBatch], /, adds: Any, **keywords: Any) -> FileBatch:
        held.append(sum(len(each.stats or "") for each in adds))
        return plain(cls, adds, **keywords)  # type: ignore[no-any-return]

    monkeypatch.setattr(FileBatch, "from_adds", classmethod(watched))
    assert len(DeltaTable(tmp_path).files(strategy="reverse").collect()) == 61
    assert max(held) <= 2_000_000


def test_what_a_tail_of_json_takes_does_not_grow_with_it(tmp_path: Path) -> None:
    """Four times the commits and files, the same memory: nothing is kept of a commit but its keys (see the remove set).

    Both are longer than what is remembered of the commits (8 MB) and what is on its way.
    """
    peaks = []
    for commits in (100, 400):
        log = HandLog(tmp_path / str(commits))
        log.commit(add("base"))
        log.checkpoint()
        for number in range(commits):
            log.commit(*(add(f"{number:04d}/{each}-{'x' * 900}", ids=(number, 999)) for each in range(100)))
        options = {"cache_size": 0, "memory_budget": 16 << 20, "delta.commit.parallelism": 8}
        peak = 0
        tracemalloc.start()
        try:
            files = 0
            for batch in DeltaTable(log.table, options=options).files(strategy="reverse").batches():
                files += batch.num_rows
                peak = max(peak, pa.total_allocated_bytes())
            peak += tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert files == 1 + commits * 100
        peaks.append(peak)
    assert peaks[1] < peaks[0] + (3 << 19)
