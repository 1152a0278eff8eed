"""A stream over random logs, stopped and started anywhere, beside a plain replay."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import sidecar
from lazydelta.rows.stream_options import Admission, StreamOffset, StreamOptions
from lazydelta.rows.stream_source import TableStream, next_files, plan_pieces
from lazydelta.scan.request import ScanRequest
from lazydelta.sidecar.handle import Snapshot, TableHandle
from tests.rows.followed_log import FollowedLog, named
from tests.scan.hand_log import HandLog, add

if TYPE_CHECKING:
    from pathlib import Path


def stream_of(table: Path, options: StreamOptions | None = None, **keywords: int) -> TableStream:
    return TableStream(TableHandle.open(table), options, **keywords)


def noted(offset: StreamOffset) -> StreamOffset:
    """Return an offset as it comes back from a checkpoint location."""
    return StreamOffset.from_dict(json.loads(json.dumps(offset.to_dict())))


def another_tier(log: FollowedLog, rng: random.Random) -> None:
    """Build or drop a sidecar, or write a checkpoint: what the files are read from becomes another."""
    choice = rng.randrange(4)
    if choice == 0:
        log.log.checkpoint(parts=rng.choice([1, 2]))
    elif choice == 1:
        log.log.checkpoint()
        sidecar.build(str(log.table))
    elif choice == 2:
        sidecar.drop(str(log.table))


def followed_to_the_end(log: FollowedLog, seed: int, options: StreamOptions, rule: str = "append") -> None:
    rng = random.Random(f"stream-{seed}")
    stream = stream_of(log.table, options, window=rng.choice([3, 7, 100]))
    start = begin = noted(stream.initial_offset())
    seen: list[tuple[str, str | None]] = []
    growth = 8
    while True:
        if rng.random() < 0.4:  # the driver is killed, and another goes on with what was noted
            another_tier(log, rng)
            stream = stream_of(log.table, options, window=rng.choice([3, 7, 100]))
        if growth and rng.random() < 0.5:
            growth -= 1
            log.grow()
        most_files, most_bytes = rng.choice([None, 1, 2, 5]), rng.choice([None, 1, 500, 5000])
        end = noted(stream.latest_offset(start, Admission(most_files, most_bytes)))
        if end == start:
            if growth:
                continue
            break
        found = named(stream, start, end)
        assert most_files is None or len(found) <= most_files
        if rng.random() < 0.4 or start == begin:  # killed before it was done: the same again, from another tier
            another_tier(log, rng)
            again = stream_of(log.table, options, window=5)
            if start == begin:  # Spark has not noted where the first one began, and asks once more
                log.grow()
                again = stream_of(log.table, options, window=5)
                start = noted(again.initial_offset())
            assert named(again, start, end) == found
        tasks = plan_pieces(stream, start, end, named=rng.choice([0, 10_000]))
        task = stream_of(log.table, options)
        assert [each.path for piece in tasks for each in piece.files_of(task)] == [path for path, _ in found]
        seen += found
        start = end
    assert seen == log.expected(begin, rule)
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("seed", range(3))
def test_a_stream_that_is_stopped_anywhere_brings_each_file_once_in_its_order(seed: int, tmp_path: Path) -> None:
    log = FollowedLog(tmp_path / "t", seed)
    log.grow(6)
    followed_to_the_end(log, seed, StreamOptions())


@pytest.mark.parametrize("seed", range(2))
def test_commits_that_change_are_passed_over_or_handed_out_as_was_said(seed: int, tmp_path: Path) -> None:
    kinds = "append append rewrite delete change vector"
    log = FollowedLog(tmp_path / "skip", seed, kinds)
    log.grow(6)
    followed_to_the_end(log, seed, StreamOptions(skip_change_commits=True), "skip")
    log = FollowedLog(tmp_path / "ignore", seed, kinds)
    log.grow(6)
    followed_to_the_end(log, seed, StreamOptions(ignore_changes=True), "ignore")
    log = FollowedLog(tmp_path / "from", seed, "append append rewrite delete")
    log.grow(6)
    followed_to_the_end(log, seed, StreamOptions(ignore_deletes=True, starting_version=seed), "ignore")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_streams_that_are_stopped_anywhere(seed: int, tmp_path: Path) -> None:
    log = FollowedLog(tmp_path / "t", seed)
    log.grow(seed % 15)
    followed_to_the_end(log, seed, StreamOptions())


@pytest.mark.parametrize("window", [1, 10, 300])
def test_finding_the_next_files_of_a_snapshot_holds_no_more_than_two_windows_and_a_batch(
    window: int, tmp_path: Path
) -> None:
    """Counted, not measured: a table ten times as large holds the same."""
    for files in (500, 5000):
        log = HandLog(tmp_path / f"t{files}-{window}")
        rng = random.Random(files)
        actions = [add(f"f{number}") for number in range(files)]
        for action in actions:
            action["add"]["modificationTime"] = rng.randrange(100)
        log.commit(*actions)
        stream = stream_of(log.table)
        scanner = stream.pinned.scan(ScanRequest(batch_size=64))
        found = next_files(scanner.batches(), None, window)
        ordered = sorted((each["add"]["modificationTime"], each["add"]["path"]) for each in actions)
        assert found.files.path.to_pylist() == [path for _, path in ordered[:window]]
        assert found.most_held <= 2 * window + 64


def test_a_window_serves_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 steps of ten files only three read the list of files: as many as there are windows."""
    log = HandLog(tmp_path / "t")
    log.commit(*(add(f"f{number}") for number in range(3000)))
    stream = stream_of(log.table, window=1000)
    scans = 0
    scan = Snapshot.scan

    def counted(self: Snapshot, *args: Any, **keywords: Any) -> object:
        nonlocal scans
        scans += 1
        return scan(self, *args, **keywords)

    monkeypatch.setattr(Snapshot, "scan", counted)
    start, steps, seen = stream.initial_offset(), 0, 0
    while (end := stream.latest_offset(start, Admission(10))) != start:
        seen += len(named(stream, start, end))
        start, steps = end, steps + 1
    assert (seen, steps, scans) == (3000, 300, 3)
