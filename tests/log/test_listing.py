"""Which files of the log make up a version: every rule of listing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import CorruptLogError, MissingCommitError, TableNotFoundError, VersionNotFoundError
from lazydelta.log import segment as segments
from lazydelta.log.hint import read_hint
from lazydelta.log.segment import list_backward, list_commits, list_from, list_from_hint, load_segment
from lazydelta.protocol.file_names import MAX_VERSION, FileKind, parse_log_file
from lazydelta.storage import ObjectInfo, open_store
from tests.log.support import UUIDS, Log, name_of, part_name, paths, requests, spy_on_listings, versions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIRST, SECOND = UUIDS


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log of the versions 0 to 6."""
    return Log(tmp_path).commits(0, 6)


def never(pause: float) -> None:
    """Fail a load that waits although nothing is missing."""
    pytest.fail(f"waited {pause} s")


def names(files: object) -> list[str]:
    """Return the names of log files in their order."""
    return [each.path.rpartition("/")[2] for each in files]  # type: ignore[attr-defined]


# --- kinds


@pytest.mark.parametrize(
    ("name", "kind", "version", "end", "part", "parts"),
    [
        (name_of(7), FileKind.COMMIT, 7, 7, 1, 1),
        (name_of(7, "crc"), FileKind.CHECKSUM, 7, 7, 1, 1),
        (f"{7:020}.{9:020}.compacted.json", FileKind.COMPACTION, 7, 9, 1, 1),
        (name_of(7, "checkpoint.parquet"), FileKind.CHECKPOINT, 7, 7, 1, 1),
        (part_name(7, 2, 3), FileKind.CHECKPOINT, 7, 7, 2, 3),
        (name_of(7, f"checkpoint.{FIRST}.parquet"), FileKind.CHECKPOINT, 7, 7, 1, 1),
        (name_of(7, f"checkpoint.{FIRST}.json"), FileKind.CHECKPOINT, 7, 7, 1, 1),
        (f"_staged_commits/{7:020}.{FIRST}.json", FileKind.STAGED_COMMIT, 7, 7, 1, 1),
        (name_of(MAX_VERSION), FileKind.COMMIT, MAX_VERSION, MAX_VERSION, 1, 1),
    ],
)
def test_the_kind_of_a_file_is_told_by_its_name(
    name: str, kind: FileKind, version: int, end: int, part: int, parts: int
) -> None:
    file = parse_log_file(ObjectInfo(f"_delta_log/{name}", 1, 0, None))
    assert file is not None
    assert (file.kind, file.version, file.end, file.part, file.parts) == (kind, version, end, part, parts)


@pytest.mark.parametrize(
    "name",
    [
        "_last_checkpoint",
        f".{name_of(7)}",
        f".{name_of(7)}.crc",
        f"{name_of(7)}.tmp",
        "7.json",
        f"{7:021}.json",
        f"{7:020}.JSON",
        f"{2**63:020}.json",
        f"{9:020}.{7:020}.compacted.json",
        f"{7:020}.{7:020}.compacted.json",
        f"{7:020}.{2**63:020}.compacted.json",
        part_name(7, 0, 3),
        part_name(7, 4, 3),
        name_of(7, "checkpoint.json"),
        name_of(7, "checkpoint.anything.parquet"),
        name_of(7, f"checkpoint.{FIRST}.tmp"),
        f"_staged_commits/{name_of(7)}",
        f"_staged_commits/.{7:020}.{FIRST}.json",
        f"_staged_commits/{2**63:020}.{FIRST}.json",
        f"{7:020}.{FIRST}.json",
    ],
)
def test_a_file_of_another_name_is_not_ours_to_read(name: str) -> None:
    assert parse_log_file(ObjectInfo(f"_delta_log/{name}", 1, 0, None)) is None


def test_dot_prefixed_and_unknown_files_do_not_change_the_version(log: Log) -> None:
    for name in (f".{name_of(7)}", f".{name_of(6)}.crc", f"{name_of(7)}.tmp", "notes.txt", "0", f"{7:020}"):
        log.write(name, b"rubbish")
    log.write(f"_staged_commits/{7:020}.{FIRST}.json", b"rubbish")
    segment = load_segment(log.store)
    assert (segment.version, versions(segment)) == (6, [0, 1, 2, 3, 4, 5, 6])


# --- the four listings


def clutter(log: Log) -> None:
    """Give the log one file of each other kind."""
    log.write(name_of(3, "crc"))
    log.write(f"{1:020}.{2:020}.compacted.json")
    log.write(name_of(4, "checkpoint.parquet"))
    log.write(".hidden")


def test_commits_alone_can_be_listed(log: Log) -> None:
    clutter(log)
    assert names(list_commits(log.store, 2, 4)) == [name_of(2), name_of(3), name_of(4)]


def test_everything_from_a_version_is_listed_in_order(log: Log) -> None:
    clutter(log)
    found = names(list_from(log.store, 3, 5))
    expected = [name_of(3, "crc"), name_of(3), name_of(4, "checkpoint.parquet"), name_of(4), name_of(5)]
    assert found == expected


@pytest.mark.parametrize("checkpoint", [None, 3])
def test_a_version_is_the_newest_until_the_log_has_anything_else(checkpoint: int | None, log: Log) -> None:
    if checkpoint is not None:
        log.checkpoint(checkpoint)
    known = load_segment(log.store)
    older = load_segment(log.store, version=5)
    with requests() as seen:
        assert known.is_newest(log.store)
        assert not older.is_newest(log.store)
    assert (seen.lists, seen.gets) == (2, [])
    (log.folder / name_of(6)).write_bytes(b'{"commitInfo": {"operation": "another"}}\n')
    assert not known.is_newest(log.store)
    known = load_segment(log.store)
    steps: list[tuple[Callable[[int], object], int]] = [
        (log.checksum, 6),
        (log.checkpoint, 6),
        (log.commit, 7),
        (log.delete, 7),
    ]
    for step, version in steps:
        step(version)
        assert not known.is_newest(log.store)
        known = load_segment(log.store)
        assert known.is_newest(log.store)


def test_a_hint_lists_from_its_checkpoint_on(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.checkpoint(4, hint=True)
    hint = read_hint(log.store)
    assert hint is not None
    given = spy_on_listings(monkeypatch, log.store, lambda *_: False)
    listing = list_from_hint(log.store, hint)
    assert listing is not None
    assert sorted(listing.commits) == [4, 5, 6]
    assert min(given) == name_of(4, "checkpoint.parquet")


def test_a_listing_from_the_end_goes_down_in_windows_until_a_checkpoint_is_complete(log: Log) -> None:
    log.checkpoint(2)
    with requests() as seen:
        listing = list_backward(log.store, 6, window=2)
    assert seen.lists == 3  # 5-6, 3-4, 1-2
    assert sorted(listing.commits) == [1, 2, 3, 4, 5, 6]


def test_an_incomplete_checkpoint_does_not_end_the_listing_from_the_end(log: Log) -> None:
    log.checkpoint(1)
    log.write(part_name(5, 1, 2), b"PAR1")
    listing = list_backward(log.store, 6, window=2)
    assert sorted(listing.commits) == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_whose_parts_lie_in_the_first_window_ends_the_listing(log: Log) -> None:
    log.writer(6).multipart(2)
    with requests() as seen:
        list_backward(log.store, 6, window=2)
    assert seen.lists == 1


def test_versions_are_opened_through_windows_of_a_thousand(tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 500)
    log.checkpoint(500)
    for version in range(501, 2601):
        log.write(name_of(version), b'{"commitInfo":{}}\n')
    with requests() as seen:
        segment = load_segment(log.store, version=2600)
    assert seen.lists == 3  # 1601-2600, 601-1600, 0-600
    assert (segment.base_version, segment.commits[0].version, len(segment.commits)) == (500, 501, 2100)


def test_the_floor_is_version_zero_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 1)
    for version in range(2, 1202):
        log.write(name_of(version), b'{"commitInfo":{}}\n')
    with requests() as seen:
        segment = load_segment(log.store, version=1200)
    assert seen.lists == 2
    assert (segment.base_version, segment.checkpoint, len(segment.commits)) == (-1, None, 1201)
    assert paths(DeltaTable(tmp_path, version=1200).files()) == ["f0", "f1"]


def test_a_version_far_above_the_newest_is_refused_after_few_listings(log: Log) -> None:
    """The version itself must be there, so one window without it tells; the number must not decide the cost."""

    def limited() -> None:
        with requests() as seen:
            monitored = log.store

            def counting(folder: str, *, after: str = "") -> object:
                assert seen.lists < 10, "a window is listed for every thousand versions"
                return type(monitored).list(monitored, folder, after=after)

            monitored.list = counting  # type: ignore[method-assign,assignment]
            load_segment(monitored, version=10**15, sleep=never)

    with pytest.raises(VersionNotFoundError) as caught:
        limited()
    assert (caught.value.earliest, caught.value.latest) == (0, 6)


# --- the end version


def test_no_page_is_listed_beyond_the_end_version(tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 3)
    for version in range(4, 1100):
        log.write(name_of(version), b'{"commitInfo":{}}\n')
    store = open_store(log.in_memory())
    with requests() as bounded:
        assert load_segment(store, version=3).version == 3
    with requests() as unbounded:
        assert load_segment(store).version == 1099
    assert (bounded.lists, unbounded.lists) == (1, 2)


def test_files_above_the_end_version_are_not_part_of_it(log: Log) -> None:
    log.checkpoint(5)
    log.checksum(6)
    segment = load_segment(log.store, version=4)
    assert (versions(segment), segment.checkpoint, segment.checksum) == ([0, 1, 2, 3, 4], None, None)


def test_a_hint_above_the_end_version_is_left_aside(log: Log) -> None:
    log.checkpoint(2)
    log.checkpoint(5, hint=True)
    with requests() as seen:
        segment = load_segment(log.store, version=4, hint=read_hint(log.store))
    assert (segment.base_version, versions(segment)) == (2, [3, 4])
    assert seen.lists == 1


# --- checkpoints


def test_the_parts_of_a_checkpoint_are_taken_in_order(log: Log) -> None:
    log.writer(6).multipart(3)
    checkpoint = load_segment(log.store).checkpoint
    assert checkpoint is not None
    assert names(checkpoint.files) == [part_name(6, part, 3) for part in (1, 2, 3)]


def test_parts_of_different_writings_are_not_mixed(log: Log) -> None:
    log.checkpoint(2)
    for name in (part_name(6, 1, 2), part_name(6, 2, 3), part_name(6, 3, 3)):
        log.write(name, b"PAR1")
    assert load_segment(log.store).base_version == 2


def test_a_complete_writing_is_used_beside_an_incomplete_one(log: Log) -> None:
    log.writer(6).multipart(3)
    log.write(part_name(6, 2, 2), b"PAR1")
    checkpoint = load_segment(log.store).checkpoint
    assert checkpoint is not None
    assert names(checkpoint.files) == [part_name(6, part, 3) for part in (1, 2, 3)]
    assert paths(DeltaTable(log.root).files()) == [f"f{v}" for v in range(7)]


def test_a_checkpoint_with_a_part_missing_does_not_count(log: Log) -> None:
    log.checkpoint(3)
    log.writer(6).multipart(4)[2].unlink()
    segment = load_segment(log.store)
    assert (segment.base_version, versions(segment)) == (3, [4, 5, 6])


@pytest.mark.parametrize("kind", ["classic", "one of one", "uuid", "uuid json"])
def test_single_uuid_and_one_of_one_checkpoints_are_equivalent(kind: str, tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 6)
    match kind:
        case "classic":
            log.checkpoint(5)
        case "one of one":
            log.writer(5).multipart(1)
        case "uuid":
            log.writer(5).v2(main="parquet", sidecars=0)
        case _:
            log.writer(5).v2(main="json", sidecars=0)
    log.delete(0, 1, 2, 3, 4)
    segment = load_segment(log.store)
    assert (segment.base_version, versions(segment)) == (5, [6])
    assert paths(DeltaTable(tmp_path).files()) == [f"f{v}" for v in range(7)]


def test_several_equivalent_checkpoints_of_a_version_count_once(log: Log) -> None:
    log.checkpoint(5)
    log.writer(5, seed=2).v2(main="parquet", sidecars=0)
    log.writer(5, seed=3).v2(main="json", sidecars=0)
    log.writer(5).multipart(2)
    checkpoint = load_segment(log.store).checkpoint
    assert checkpoint is not None
    assert len(checkpoint.files) == 1
    assert paths(DeltaTable(log.root).files()) == [f"f{v}" for v in range(7)]


def test_the_newest_complete_checkpoint_discards_what_is_older(log: Log) -> None:
    log.checkpoint(1)
    log.checkpoint(4)
    log.compaction(1, 3)
    log.checksum(3)
    segment = load_segment(log.store)
    assert (segment.base_version, versions(segment)) == (4, [5, 6])
    assert (segment.compactions, segment.checksum) == ((), None)


def test_the_commit_at_the_checkpoint_is_kept_for_its_timestamp(log: Log) -> None:
    log.checkpoint(4)
    segment = load_segment(log.store)
    assert segment.checkpoint_commit is not None
    assert segment.checkpoint_commit.version == 4


def test_the_commit_at_the_checkpoint_may_be_gone(log: Log) -> None:
    log.checkpoint(4)
    log.delete(0, 1, 2, 3, 4)
    segment = load_segment(log.store)
    assert (segment.checkpoint_commit, versions(segment)) == (None, [5, 6])


@pytest.mark.parametrize("version", [4, 5, 6])
def test_a_checksum_not_older_than_the_checkpoint_is_kept(version: int, log: Log) -> None:
    log.checkpoint(4)
    log.checksum(version)
    checksum = load_segment(log.store).checksum
    assert checksum is not None
    assert checksum.version == version


def test_of_several_checksums_the_newest_is_taken(log: Log) -> None:
    log.checkpoint(2)
    for version in (3, 5):
        log.checksum(version)
    checksum = load_segment(log.store).checksum
    assert checksum is not None
    assert checksum.version == 5


def test_a_checkpoint_alone_is_a_version(log: Log) -> None:
    log.checkpoint(6)
    log.delete(*range(7))
    segment = load_segment(log.store)
    assert (segment.version, segment.base_version, segment.commits) == (6, 6, ())
    assert paths(DeltaTable(log.root).files()) == [f"f{v}" for v in range(7)]


# --- compactions


def test_compactions_that_begin_at_or_below_the_checkpoint_are_dropped(log: Log) -> None:
    log.checkpoint(2)
    for first, last in ((1, 4), (2, 4), (3, 4)):
        log.compaction(first, last)
    segment = load_segment(log.store)
    assert [(each.version, each.end) for each in segment.compactions] == [(3, 4)]


def test_compactions_that_end_above_the_version_are_dropped(log: Log) -> None:
    for first, last in ((1, 3), (1, 4), (4, 5)):
        log.compaction(first, last)
    segment = load_segment(log.store, version=3)
    assert [(each.version, each.end) for each in segment.compactions] == [(1, 3)]
    assert names(segment.tail()) == [name_of(0), f"{1:020}.{3:020}.compacted.json"]


def test_the_longest_of_overlapping_compactions_is_used(log: Log) -> None:
    for first, last in ((1, 2), (1, 4), (3, 6), (5, 6)):
        log.compaction(first, last)
    tail = load_segment(log.store).tail()
    assert [(each.version, each.end) for each in tail] == [(0, 0), (1, 4), (5, 6)]


def test_a_compaction_does_not_make_up_for_a_missing_commit(log: Log) -> None:
    """Compactions are an aid beside their commits; without the commits the log has a gap."""
    log.compaction(1, 3)
    log.delete(2)
    with pytest.raises(MissingCommitError):
        load_segment(log.store, sleep=lambda _: None)


# --- zero bytes


def test_an_empty_checkpoint_is_skipped_with_a_warning(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.checkpoint(2)
    empty = log.write(name_of(5, "checkpoint.parquet"), b"")
    with caplog.at_level(logging.WARNING, "lazydelta"):
        segment = load_segment(log.store)
    assert segment.base_version == 2
    assert any(empty.name in message and "skipped" in message for message in caplog.messages)


def test_an_empty_part_makes_its_checkpoint_incomplete(log: Log) -> None:
    log.writer(5).multipart(3)[1].write_bytes(b"")
    assert load_segment(log.store).base_version == -1


def test_an_empty_compaction_is_skipped_with_a_warning(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    empty = log.write(f"{1:020}.{4:020}.compacted.json", b"")
    with caplog.at_level(logging.WARNING, "lazydelta"):
        segment = load_segment(log.store)
    assert segment.compactions == ()
    assert any(empty.name in message and "skipped" in message for message in caplog.messages)


def test_an_empty_checksum_is_kept_with_a_warning(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    empty = log.write(name_of(6, "crc"), b"")
    with caplog.at_level(logging.WARNING, "lazydelta"):
        segment = load_segment(log.store)
    assert segment.checksum is not None
    assert segment.checksum.version == 6
    assert any(empty.name in message for message in caplog.messages)


def test_an_empty_commit_is_an_error_that_names_it(log: Log) -> None:
    empty = log.commit(5, content=b"")
    with pytest.raises(CorruptLogError, match=empty.name) as caught:
        load_segment(log.store)
    assert (caught.value.version, caught.value.path) == (5, f"_delta_log/{empty.name}")


def test_an_empty_commit_that_a_checkpoint_discards_does_no_harm(log: Log) -> None:
    """Older commits are discarded by the checkpoint, so what is in them cannot matter."""
    log.checkpoint(4)
    log.commit(2, content=b"")
    assert load_segment(log.store).version == 6


# --- gaps


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_commit_that_is_listed_late_is_waited_for(rounds: int, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    spy_on_listings(monkeypatch, log.store, lambda number, name: number < rounds and name == name_of(3))
    pauses: list[float] = []
    segment = load_segment(log.store, sleep=pauses.append)
    assert versions(segment) == [0, 1, 2, 3, 4, 5, 6]
    assert len(pauses) == rounds


def test_the_pauses_between_listings_grow(log: Log) -> None:
    log.delete(3)
    pauses: list[float] = []
    with pytest.raises(MissingCommitError), requests() as seen:
        load_segment(log.store, sleep=pauses.append)
    assert len(pauses) >= 2
    assert pauses == sorted(set(pauses))
    assert seen.lists == len(pauses) + 1


def test_a_gap_that_stays_is_an_error_that_names_the_commit(log: Log) -> None:
    log.delete(3)
    with pytest.raises(MissingCommitError, match=r"Commit 3 is missing.*version 6 is there") as caught:
        load_segment(log.store, sleep=lambda _: None)
    assert (caught.value.version, caught.value.path) == (3, f"_delta_log/{name_of(3)}")


def test_a_gap_just_above_the_checkpoint_is_an_error(log: Log) -> None:
    log.checkpoint(3, hint=True)
    log.delete(4)
    with pytest.raises(MissingCommitError) as caught:
        load_segment(log.store, hint=read_hint(log.store), sleep=lambda _: None)
    assert caught.value.version == 4


def test_a_gap_below_the_checkpoint_is_no_gap(log: Log) -> None:
    log.checkpoint(4)
    log.delete(1, 3)
    assert versions(load_segment(log.store, sleep=never)) == [5, 6]


def test_a_gap_above_the_version_asked_for_is_no_gap(log: Log) -> None:
    log.delete(5)
    assert load_segment(log.store, version=4, sleep=never).version == 4


def test_commits_without_a_base_are_an_error_that_says_so(log: Log) -> None:
    log.delete(0, 1)
    with pytest.raises(MissingCommitError, match=r"begins at version 2 and has no complete checkpoint"):
        load_segment(log.store, sleep=lambda _: None)


# --- what is not there


def test_a_place_without_a_log_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="no Delta table"):
        DeltaTable(tmp_path)
    assert DeltaTable.is_deltatable(tmp_path) is False


@pytest.mark.parametrize("version", [None, 0, 3])
def test_a_log_without_commits_and_checkpoints_is_no_table(version: int | None, tmp_path: Path) -> None:
    Log(tmp_path).write("notes.txt")
    with pytest.raises(TableNotFoundError):
        load_segment(open_store(tmp_path), version=version, sleep=never)


def test_a_version_above_the_newest_is_an_error_with_the_range(log: Log) -> None:
    with pytest.raises(VersionNotFoundError, match=r"does not exist yet.*0 to 6") as caught:
        load_segment(log.store, version=7, sleep=never)
    assert (caught.value.earliest, caught.value.latest, caught.value.version) == (0, 6, 7)


def test_a_version_that_was_cleaned_up_is_an_error_with_the_range(log: Log) -> None:
    log.checkpoint(3)
    log.delete(0, 1, 2)
    with pytest.raises(VersionNotFoundError, match=r"was cleaned up.*3 to 6") as caught:
        load_segment(log.store, version=2, sleep=never)
    assert (caught.value.earliest, caught.value.latest) == (3, 6)


def test_commits_below_the_oldest_checkpoint_cannot_be_read_after_a_clean_up(log: Log) -> None:
    """A clean-up that stopped half-way leaves commits that nothing supports."""
    log.checkpoint(5)
    log.delete(0, 1)
    with pytest.raises(VersionNotFoundError) as caught:
        load_segment(log.store, version=4, sleep=never)
    assert (caught.value.earliest, caught.value.latest) == (5, 6)


def test_the_windows_of_a_listing_are_a_thousand_versions() -> None:
    assert segments.WINDOW == 1000
