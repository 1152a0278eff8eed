"""What a stream does not pass over in silence, and where it begins."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta.errors import (
    CorruptLogError,
    MissingCommitError,
    OptionError,
    StreamStoppedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lazydelta.rows.stream_options import Admission, StreamOffset, StreamOptions
from lazydelta.rows.stream_source import TableStream
from lazydelta.sidecar.handle import TableHandle
from tests.oracle.replay import commit_name
from tests.rows.followed_log import named
from tests.scan.hand_log import HandLog, add, remove, vector

if TYPE_CHECKING:
    from pathlib import Path


def stream_of(log: HandLog, **options: Any) -> TableStream:
    return TableStream(TableHandle.open(log.table), StreamOptions(**options))


def everything(stream: TableStream, start: StreamOffset | None = None) -> list[str]:
    begin = stream.initial_offset() if start is None else start
    return [path for path, _ in named(stream, begin, stream.latest_offset(begin))]


def moved(action: dict[str, Any]) -> dict[str, Any]:
    next(iter(action.values()))["dataChange"] = False
    return action


@pytest.mark.parametrize(
    ("actions", "passing"),
    [
        ([remove("a")], {"ignore_deletes": [], "ignore_changes": [], "skip_change_commits": []}),
        ([remove("a"), add("b")], {"ignore_changes": ["b"], "skip_change_commits": []}),
        ([remove("a"), add("a", vector=vector("v"))], {"ignore_changes": ["a"], "skip_change_commits": []}),
    ],
    ids=["delete", "change", "deletion-vector"],
)
def test_a_commit_that_removes_rows_stops_the_stream_unless_somebody_has_said_what_to_do(
    tmp_path: Path, actions: list[Any], passing: dict[str, list[str]]
) -> None:
    log = HandLog(tmp_path / "t", features=["deletionVectors"])
    log.commit(add("a"))
    start = StreamOffset(table_id="hand", version=1)
    log.commit(*actions)
    log.commit(add("z"))
    for option in ("ignore_deletes", "ignore_changes", "skip_change_commits"):
        if option in passing:
            assert everything(stream_of(log, **{option: True}), start) == [*passing[option], "z"]
        else:
            with pytest.raises(StreamStoppedError, match=r"Version 1 .* it removes a \(.*skipChangeCommits") as stopped:
                everything(stream_of(log, **{option: True}), start)
            assert stopped.value.version == 1


def test_what_comes_before_the_stop_is_handed_out_first(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    log.commit(add("b"))
    log.commit(remove("a"))
    stream = stream_of(log, starting_version=0)
    start = stream.initial_offset()
    end = stream.latest_offset(start)
    assert [path for path, _ in named(stream, start, end)] == ["a", "b"]
    with pytest.raises(StreamStoppedError, match="Version 2"):
        stream.latest_offset(end)
    # The caller resumes exactly there.
    log.commit(add("c"))
    assert everything(stream_of(log, ignore_deletes=True), end) == ["c"]


def test_files_that_were_only_moved_are_no_news(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a"), add("b"))
    stream = stream_of(log)
    end = stream.latest_offset(stream.initial_offset())
    log.commit(moved(remove("a")), moved(remove("b")), moved(add("ab")))
    assert everything(stream, end) == []
    log.commit(add("c"))
    assert everything(stream, end) == ["c"]


def test_a_new_column_stops_the_stream_and_it_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    stream = stream_of(log)
    start = stream.latest_offset(stream.initial_offset())
    log.commit(add("b"))
    log.columns["more"] = "double"
    log.commit(log.metadata(), add("c"))
    end = stream.latest_offset(start)
    assert [path for path, _ in named(stream, start, end)] == ["b"]
    with pytest.raises(StreamStoppedError, match=r"Version 2 .* 'more' is new \(start the query again"):
        stream.latest_offset(end)
    assert everything(stream_of(log), end) == ["c"]
    # Older rows are read under the new columns, too.
    assert everything(stream_of(log), start) == ["b", "c"]


def test_a_column_that_is_gone_cannot_be_caught_up_with(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    log.commit(add("b"))
    del log.columns["name"]
    log.commit(log.metadata(), add("c"))
    start = StreamOffset(table_id="hand", version=1)
    with pytest.raises(StreamStoppedError, match=r"Rows of version 1 .* the column 'name' is gone .*startingVersion"):
        everything(stream_of(log), start)
    assert everything(stream_of(log), StreamOffset(table_id="hand", version=2)) == ["c"]


def test_metadata_that_leaves_the_columns_alone_is_passed(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    stream = stream_of(log)
    start = stream.latest_offset(stream.initial_offset())
    log.configuration["delta.appendOnly"] = "false"
    log.commit(log.metadata(), add("b"))
    assert everything(stream, start) == ["b"]


def test_another_partitioning_and_a_feature_that_is_not_known_stop_it(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    stream = stream_of(log)
    start = stream.latest_offset(stream.initial_offset())
    log.partitions = ["name"]
    log.commit(log.metadata(), add("b", partition={"name": "x"}))
    with pytest.raises(StreamStoppedError, match="partitioned by"):
        stream.latest_offset(start)
    other = HandLog(tmp_path / "u")
    other.commit(add("a"))
    stream = stream_of(other)
    start = stream.latest_offset(stream.initial_offset())
    other.features = ["futureThing"]
    other.commit(other.protocol(), add("b"))
    with pytest.raises(UnsupportedFeatureError, match="futureThing"):
        stream.latest_offset(start)


def test_versions_that_were_cleaned_up_are_an_error_or_are_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = HandLog(tmp_path / "t")
    for name in "abcd":
        log.commit(add(name))
    log.checkpoint()
    start = StreamOffset(table_id="hand", version=1)
    for version in range(3):
        (log.log / commit_name(version)).unlink()
    with pytest.raises(VersionNotFoundError, match=r"version 1 .* cleaned up.* is left is 3; .*failOnDataLoss"):
        everything(stream_of(log), start)
    with pytest.raises(VersionNotFoundError, match="earliest that is left is 3"):
        stream_of(log, starting_version=1).initial_offset()
    with caplog.at_level(logging.WARNING):
        assert everything(stream_of(log, fail_on_data_loss=False), start) == ["d"]
    assert "versions 1 to 2" in caplog.text


def test_a_commit_that_is_lost_is_never_passed_over(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    for name in "abcd":
        log.commit(add(name))
    stream = stream_of(log, starting_version=0, fail_on_data_loss=False)
    (log.log / commit_name(2)).unlink()
    start = stream.initial_offset()
    with pytest.raises(MissingCommitError, match="Commit 2 is missing"):
        stream.latest_offset(start)


def test_another_table_in_its_place_and_a_log_set_back_are_noticed(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    for name in "abc":
        log.commit(add(name))
    stream = stream_of(log)
    with pytest.raises(StreamStoppedError, match=r"was reading the table other.* is hand"):
        stream.latest_offset(StreamOffset(table_id="other", version=1))
    end = stream.latest_offset(stream.initial_offset())
    for version in (1, 2):
        (log.log / commit_name(version)).unlink()
    with pytest.raises(StreamStoppedError, match="is at version 0, and the stream has read version 2"):
        stream.latest_offset(end)
    replaced = json.loads(json.dumps(log.metadata()).replace('"hand"', '"new"'))
    log.version = 0
    log.commit(replaced, add("x"))
    with pytest.raises(StreamStoppedError, match="belongs to another table"):
        stream.latest_offset(StreamOffset(table_id="hand", version=1))


def test_a_snapshot_that_is_not_what_it_was_is_noticed(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(*(add(name) for name in "abcd"))
    stream = stream_of(log)
    start = stream.initial_offset()
    end = stream.latest_offset(start, Admission(2))
    assert end.last_file == (1_700_000_000_000, "b")
    log.version = -1
    log.commit(*(add(name) for name in "bcd"))
    with pytest.raises(CorruptLogError, match="is not what it was"):
        stream_of(log).latest_offset(end)
    with pytest.raises(CorruptLogError, match="is not the one that the stream had read"):
        named(stream_of(log), start, end)


def test_where_a_stream_begins(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    for number, name in enumerate("abc"):
        log.commit(add(name))
        os.utime(log.log / commit_name(number), (1000 * (number + 1), 1000 * (number + 1)))
    assert everything(stream_of(log)) == ["a", "b", "c"]
    assert everything(stream_of(log, starting_version=1)) == ["b", "c"]
    assert everything(stream_of(log, starting_version="latest")) == []
    for timestamp, found in ((0, "abc"), (1_000_000, "abc"), (1_000_001, "bc"), (3_000_000, "c")):
        assert everything(stream_of(log, starting_timestamp=timestamp)) == list(found)
    with pytest.raises(VersionNotFoundError, match=r"startingTimestamp is after the newest version .* is 2"):
        stream_of(log, starting_timestamp=3_000_001).initial_offset()
    with pytest.raises(VersionNotFoundError, match=r"startingVersion 3 is after .*startingVersion=latest"):
        stream_of(log, starting_version=3).initial_offset()


def test_a_stream_does_not_go_behind_the_version_that_it_was_given(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    for name in "abcd":
        log.commit(add(name))
    stream = stream_of(log, starting_version=0)
    end = stream.latest_offset(stream.initial_offset(), last=1)
    assert (end.version, end.index) == (2, 0)
    assert stream.latest_offset(end, last=1) == end


def test_an_offset_that_names_no_file_is_counted_to(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(*(add(name) for name in "dbca"))
    offset = StreamOffset(table_id="hand", version=0, index=3, is_initial_snapshot=True)
    for window in (1, 2, 100):
        stream = TableStream(TableHandle.open(log.table), window=window)
        assert everything(stream, offset) == ["d"]


@pytest.mark.parametrize(
    "given",
    [
        {"reservoirId": "x", "reservoirVersion": 1, "index": -1, "isStartingVersion": False, "sourceVersion": 1},
        {"tableId": "x", "version": "1"},
        {"tableId": "x", "version": -1},
        {"tableId": "x", "version": 1, "sourceVersion": 2},
    ],
    ids=["deltas", "text", "negative", "later"],
)
def test_what_is_no_offset_of_ours_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="new checkpoint location"):
        StreamOffset.from_dict(given)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"maxFilesPerTriger": "1"}, "maxFilesPerTrigger"),
        ({"maxFilesPerTrigger": "0"}, "a number of at least 1"),
        ({"maxBytesPerTrigger": "ten"}, "128MB"),
        ({"ignoreDeletes": "yes"}, "true or false"),
        ({"startingVersion": "-1"}, "latest"),
        ({"startingVersion": "1", "startingTimestamp": "2026-01-01"}, "mutually exclusive"),
        ({"startingTimestamp": "yesterday"}, "ISO 8601"),
        ({"versionAsOf": "1"}, "startingVersion"),
    ],
    ids=lambda value: next(iter(value)) + "-" + next(iter(value.values())) if isinstance(value, dict) else "",
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        StreamOptions.from_spark(options)


def test_options_are_read_in_any_case() -> None:
    given = {"MAXFILESPERTRIGGER": "5", "maxbytespertrigger": "2 MB", "startingversion": "Latest", "path": "x"}
    found = StreamOptions.from_spark(given | {"storage.key": "v", "failOnDataLoss": "FALSE"})
    assert (found.max_files, found.max_bytes, found.starting_version) == (5, 2 << 20, "latest")
    assert (found.fail_on_data_loss, found.storage_options) == (False, {"key": "v"})
    assert StreamOptions.from_spark({}).max_files == 1000
