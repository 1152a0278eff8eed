"""Commits that a catalog vouches for take precedence; everything else is listed as ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import (
    CorruptLogError,
    MissingCommitError,
    OptionError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lazydelta.log.segment import LogTailCommit, load_segment, log_tail_files
from lazydelta.protocol.file_names import FileKind
from tests.log.support import UUIDS, Log, add, lines, metadata, name_of, paths, protocol, requests, versions

if TYPE_CHECKING:
    from pathlib import Path


def staged_name(version: int, unique: str = UUIDS[0]) -> str:
    return f"_staged_commits/{version:020}.{unique}.json"


def stage(log: Log, version: int, *, path: str | None = None, unique: str = UUIDS[0]) -> str:
    """Write a staged commit that adds one file and return its path in the table."""
    log.write(staged_name(version, unique), lines(add(path or f"s{version}")))
    return f"_delta_log/{staged_name(version, unique)}"


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return the log of a table managed by a catalog: 0 to 3 published, 4 and 5 staged."""
    log = Log(tmp_path)
    log.commit(0, protocol("catalogManaged"), metadata(), add("f0"))
    log.commits(1, 3)
    stage(log, 4)
    stage(log, 5)
    return log


TAIL = [f"_delta_log/{staged_name(4)}", f"_delta_log/{staged_name(5)}"]


def test_staged_commits_are_read_through_the_log_tail(log: Log) -> None:
    table = DeltaTable(log.root, log_tail=TAIL)
    assert table.version() == 5
    assert paths(table.files()) == ["f0", "f1", "f2", "f3", "s4", "s5"]


def test_a_log_tail_may_name_files_relative_to_the_log(log: Log) -> None:
    assert DeltaTable(log.root, log_tail=[staged_name(4)]).version() == 4


def test_sizes_and_times_that_the_catalog_knows_are_taken_over(log: Log) -> None:
    (file,) = log_tail_files([LogTailCommit(staged_name(4), size=77, timestamp=1_770_000_000_123)])
    assert (file.kind, file.info.size, file.info.last_modified) == (FileKind.STAGED_COMMIT, 77, 1_770_000_000_123)


def test_a_catalog_managed_table_is_refused_without_a_log_tail(log: Log) -> None:
    with pytest.raises(UnsupportedFeatureError, match="log_tail") as caught:
        DeltaTable(log.root)
    assert caught.value.features == ("catalogManaged",)


def test_staged_commits_are_not_found_by_listing(tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 3)
    stage(log, 4)
    assert DeltaTable(tmp_path).version() == 3


def test_the_log_tail_takes_precedence_over_published_commits(log: Log) -> None:
    log.commit(4, add("published4"))
    table = DeltaTable(log.root, log_tail=TAIL)
    assert paths(table.files()) == ["f0", "f1", "f2", "f3", "s4", "s5"]


def test_published_commits_above_the_log_tail_do_not_count(log: Log) -> None:
    """The tail ends at the latest version; what was published meanwhile is not ratified for this reader."""
    log.commits(4, 6)
    table = DeltaTable(log.root, log_tail=TAIL)
    assert (table.version(), paths(table.files())) == (5, ["f0", "f1", "f2", "f3", "s4", "s5"])


def test_a_log_tail_may_hold_published_commits(log: Log) -> None:
    tail = [f"_delta_log/{name_of(3)}", *TAIL]
    assert paths(DeltaTable(log.root, log_tail=tail).files()) == ["f0", "f1", "f2", "f3", "s4", "s5"]


def test_the_highest_published_version_is_tracked(log: Log) -> None:
    segment = load_segment(log.store, log_tail=log_tail_files(TAIL))
    assert (segment.version, segment.published_version) == (5, 3)
    log.commit(4)
    assert load_segment(log.store, log_tail=log_tail_files(TAIL)).published_version == 4


def test_other_kinds_are_always_listed(log: Log) -> None:
    log.checkpoint(2)
    log.checksum(3)
    log.compaction(1, 2)
    log.write(f"{3:020}.{4:020}.compacted.json", lines(add("f3"), add("s4")))
    segment = load_segment(log.store, log_tail=log_tail_files(TAIL))
    assert (segment.base_version, versions(segment)) == (2, [3, 4, 5])
    assert segment.checksum is not None
    assert segment.checksum.version == 3
    assert [(each.version, each.end) for each in segment.compactions] == [(3, 4)]


def test_a_checkpoint_inside_the_log_tail_shortens_it(log: Log) -> None:
    log.commit(4, add("s4"))
    log.checkpoint(4)
    segment = load_segment(log.store, log_tail=log_tail_files(TAIL))
    assert (segment.base_version, versions(segment)) == (4, [5])
    assert segment.checkpoint_commit is not None
    assert segment.checkpoint_commit.kind is FileKind.STAGED_COMMIT
    assert paths(DeltaTable(log.root, log_tail=TAIL).files()) == ["f0", "f1", "f2", "f3", "s4", "s5"]


def test_an_older_version_is_read_below_and_inside_the_log_tail(log: Log) -> None:
    assert paths(DeltaTable(log.root, version=2, log_tail=TAIL).files()) == ["f0", "f1", "f2"]
    assert paths(DeltaTable(log.root, version=4, log_tail=TAIL).files()) == ["f0", "f1", "f2", "f3", "s4"]


@pytest.mark.parametrize("published", [3, 6])
def test_a_version_above_the_log_tail_is_an_error_with_the_range_up_to_its_end(published: int, log: Log) -> None:
    log.commits(4, published)
    with pytest.raises(VersionNotFoundError, match="does not exist yet") as caught:
        DeltaTable(log.root, version=6, log_tail=TAIL)
    assert (caught.value.earliest, caught.value.latest) == (0, 5)


def test_a_gap_inside_the_log_tail_is_refused_before_any_request(log: Log) -> None:
    with requests() as seen, pytest.raises(OptionError, match="jumps from version 4 to 6"):
        DeltaTable(log.root, log_tail=[staged_name(4), staged_name(6)])
    assert seen == []


@pytest.mark.parametrize("order", [(5, 4), (4, 4)])
def test_a_log_tail_that_does_not_ascend_is_refused(order: tuple[int, int], log: Log) -> None:
    with pytest.raises(OptionError, match="contiguous"):
        DeltaTable(log.root, log_tail=[staged_name(version) for version in order])


def test_a_gap_between_published_commits_and_the_log_tail_is_an_error(log: Log) -> None:
    stage(log, 6)
    with pytest.raises(MissingCommitError, match="Commit 4 is missing"):
        load_segment(log.store, log_tail=log_tail_files([staged_name(5), staged_name(6)]), sleep=lambda _: None)


def test_a_staged_commit_that_is_not_there_is_an_error_that_names_it(log: Log) -> None:
    missing = staged_name(6, UUIDS[1])
    with pytest.raises(MissingCommitError, match=UUIDS[1]) as caught:
        DeltaTable(log.root, log_tail=[*TAIL, missing]).files().collect()
    assert caught.value.version == 6


@pytest.mark.parametrize("size", [0, -1], ids=["known", "unknown"])
def test_an_empty_staged_commit_is_an_error_that_names_it(size: int, log: Log) -> None:
    """A commit is never empty, whether the catalog knows its size or not."""
    log.write(staged_name(6), b"")
    tail: list[LogTailCommit | str] = [*TAIL, LogTailCommit(staged_name(6), size=size)]
    with pytest.raises(CorruptLogError, match=UUIDS[0]) as caught:
        DeltaTable(log.root, log_tail=tail).files().collect()
    assert caught.value.version == 6


@pytest.mark.parametrize(
    "path",
    [
        "",
        "..",
        f"../{name_of(4)}",
        f"_delta_log/../{name_of(4)}",
        f"_delta_log/../../other/_delta_log/{name_of(4)}",
        f"_delta_log/_staged_commits/../../{name_of(4)}",
        f"_staged_commits/../_staged_commits/{4:020}.{UUIDS[0]}.json",
        f"/somewhere/_delta_log/{name_of(4)}",
        f"file:///somewhere/_delta_log/{name_of(4)}",
        f"s3://elsewhere/_delta_log/{name_of(4)}",
        f"_delta_log/elsewhere/{name_of(4)}",
        f"_delta_log/elsewhere/_staged_commits/{4:020}.{UUIDS[0]}.json",
        f"_delta_log/./{name_of(4)}",
        f"%2e%2e/{name_of(4)}",
        f"_delta_log/{name_of(4, 'crc')}",
        f"_delta_log/{name_of(4, 'checkpoint.parquet')}",
        f"_delta_log/{4:020}.{5:020}.compacted.json",
        f"_delta_log/.{name_of(4)}",
        f"_delta_log/{name_of(4)}\0",
        f"_delta_log/{4:020}.{UUIDS[0]}.json",
        "part-00000.parquet",
    ],
)
def test_a_path_that_is_no_commit_of_this_log_is_refused(path: str) -> None:
    with pytest.raises(OptionError, match="not a commit"):
        log_tail_files([path])


def test_a_table_that_no_catalog_manages_may_be_read_with_a_log_tail(tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 2)
    tail = [stage(log, 3)]
    assert paths(DeltaTable(tmp_path, log_tail=tail).files()) == ["f0", "f1", "f2", "s3"]


def test_history_covers_the_log_tail(log: Log) -> None:
    assert [entry["version"] for entry in DeltaTable(log.root, log_tail=TAIL).history()] == [5, 4, 3, 2, 1, 0]
