"""Versions by number and by timestamp, and what is known about each."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import deltalake
import numpy as np
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lazydelta import DeltaTable
from lazydelta.errors import CorruptLogError, OptionError, VersionNotFoundError
from lazydelta.log.time_travel import milliseconds
from lazydelta.warned import LazyDeltaWarning
from tests.log.support import Log, add, lines, metadata, name_of, paths, protocol, requests

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 2, 10, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ENABLED = {"delta.enableInCommitTimestamps": "true"}


def noon(milliseconds_later: int = 0) -> datetime:
    """Return a timestamp near noon."""
    return NOON + timedelta(milliseconds=milliseconds_later)


def stamp(log: Log, times: dict[int, int]) -> None:
    """Set the modification times of commits, in milliseconds after noon."""
    for version, later in times.items():
        nanoseconds = (milliseconds(NOON) + later) * 1_000_000
        os.utime(log.folder / name_of(version), ns=(nanoseconds, nanoseconds))


def stamped(later: int, *actions: dict[str, Any]) -> bytes:
    """Return a commit with its own timestamp."""
    info = {"commitInfo": {"inCommitTimestamp": milliseconds(NOON) + later, "operation": "WRITE"}}
    return lines(info, *actions)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log of the versions 0 to 4, one second apart from noon on."""
    log = Log(tmp_path).commits(0, 4)
    stamp(log, {version: version * 1000 for version in range(5)})
    return log


def at(log: Log, timestamp: datetime | str) -> int:
    """Return the version that a timestamp means."""
    return DeltaTable(log.root, version=timestamp).version()


# --- by number


@pytest.mark.parametrize("version", range(5))
def test_a_version_is_read_by_its_number(version: int, log: Log) -> None:
    table = DeltaTable(log.root, version=version)
    assert (table.version(), paths(table.files())) == (version, [f"f{v}" for v in range(version + 1)])


@pytest.mark.parametrize("version", [-1, True, False])
def test_a_number_that_is_no_version_is_refused(version: int, log: Log) -> None:
    with pytest.raises(OptionError, match="not a table version"):
        DeltaTable(log.root, version=version)


def test_a_version_that_was_cleaned_up_is_an_error_with_the_range(log: Log) -> None:
    log.checkpoint(2)
    log.delete(0, 1)
    with pytest.raises(VersionNotFoundError, match=r"cleaned up.*versions 2 to 4") as caught:
        DeltaTable(log.root, version=1)
    assert (caught.value.earliest, caught.value.latest, caught.value.version) == (2, 4, 1)


def test_a_version_that_was_never_written_is_an_error_with_the_range(log: Log) -> None:
    with pytest.raises(VersionNotFoundError, match=r"does not exist yet.*versions 0 to 4") as caught:
        DeltaTable(log.root, version=5)
    assert (caught.value.earliest, caught.value.latest) == (0, 4)


def test_another_version_can_be_pinned_later(log: Log) -> None:
    table = DeltaTable(log.root)
    table.load_as_version(1)
    assert (table.version(), paths(table.files())) == (1, ["f0", "f1"])
    table.load_as_version(noon(3500))
    assert table.version() == 3
    log.commit(5)
    table.update_incremental()
    assert table.version() == 5


@pytest.mark.parametrize("wrong", [date(2026, 2, 10), 1.0, True, -1, [1], "1 o'clock"], ids=str)
def test_what_is_no_version_and_no_timestamp_is_refused(log: Log, wrong: Any) -> None:
    """A date is not a timestamp: which time of its day is meant is unknown."""
    table = DeltaTable(log.root, version=2)
    with pytest.raises(OptionError, match=r"is not (a table version|an ISO 8601 timestamp).*2026-02-10T14:00:00Z"):
        table.load_as_version(wrong)
    with pytest.raises(OptionError):
        DeltaTable(log.root, version=wrong)
    assert table.version() == 2


def test_a_version_may_be_a_number_of_numpy(log: Log) -> None:
    assert DeltaTable(log.root, version=np.int64(3)).version() == 3  # type: ignore[arg-type]


def test_a_table_stays_at_its_version_while_commits_arrive(log: Log) -> None:
    table = DeltaTable(log.root)
    log.commit(5)
    assert (table.version(), len(table.files().collect())) == (4, 5)


def test_a_pin_that_fails_leaves_the_table_where_it_was(log: Log) -> None:
    table = DeltaTable(log.root, version=2)
    with pytest.raises(VersionNotFoundError):
        table.load_as_version(9)
    assert (table.version(), len(table.files().collect())) == (2, 3)


# --- by timestamp


@pytest.mark.parametrize(
    ("later", "version"), [(0, 0), (999, 0), (1000, 1), (1001, 1), (3999, 3), (4000, 4), (86_400_000, 4)]
)
def test_a_timestamp_means_the_newest_version_not_younger(later: int, version: int, log: Log) -> None:
    assert at(log, noon(later)) == version


@pytest.mark.parametrize(
    "timestamp",
    [
        "2026-02-10T12:00:02Z",
        "2026-02-10T12:00:02+00:00",
        "2026-02-10T12:00:02",
        "2026-02-10 12:00:02.500",
        " 2026-02-10T14:00:02+02:00 ",
        "2026-02-10T02:00:02.999-10:00",
        datetime(2026, 2, 10, 12, 0, 2),  # noqa: DTZ001 - without a zone on purpose
        datetime(2026, 2, 10, 14, 0, 2, tzinfo=timezone(timedelta(hours=2))),
    ],
    ids=str,
)
def test_text_and_datetimes_are_taken_and_without_a_zone_they_are_utc(timestamp: str | datetime, log: Log) -> None:
    assert at(log, timestamp) == 2


def test_a_date_means_its_midnight_in_utc(log: Log) -> None:
    assert at(log, "2026-02-11") == 4
    with pytest.warns(LazyDeltaWarning, match="as old as 2026-02-10T00:00:00"):
        assert at(log, "2026-02-10") == 0


@pytest.mark.parametrize("text", ["yesterday", "", "3", "2026-13-01", "12:00:00"])
def test_text_that_is_no_timestamp_is_refused(text: str, log: Log) -> None:
    with pytest.raises(OptionError, match="not an ISO 8601 timestamp"):
        DeltaTable(log.root, version=text)


@settings(deadline=None)
@given(st.integers(0, 253_402_300_799_999))
@example(1_099_006_878_916)
@example(2_153_279_526_924)
def test_milliseconds_are_exact(timestamp: int) -> None:
    """A version whose time is asked for to the millisecond must not be missed by a rounding."""
    assert milliseconds(EPOCH + timedelta(milliseconds=timestamp)) == timestamp


def test_a_timestamp_before_the_first_version_opens_that_one_as_deltalake_does_and_warns(log: Log) -> None:
    with pytest.warns(LazyDeltaWarning, match=r"as old as 2026-02-10T11:59:59\.999.* of 2026-02-10T12:00:00\+00:00"):
        assert DeltaTable(log.root, version=noon(-1)).version() == 0
    table = DeltaTable(log.root)
    with pytest.warns(LazyDeltaWarning, match="version 0 is opened"):
        table.load_as_version(noon(-1))
    assert table.version() == 0


def test_a_timestamp_of_a_version_that_was_cleaned_up_is_an_error_with_the_range(log: Log) -> None:
    log.checkpoint(2)
    log.delete(0, 1)
    with pytest.raises(VersionNotFoundError) as caught:
        at(log, noon(1500))
    assert (caught.value.earliest, caught.value.latest) == (2, 4)
    assert at(log, noon(2000)) == 2


def test_commits_below_the_oldest_readable_version_are_not_chosen(log: Log) -> None:
    """Commit 1 is left over, but nothing it could be read from."""
    log.checkpoint(3)
    log.delete(0)
    with pytest.raises(VersionNotFoundError) as caught:
        at(log, noon(1500))
    assert (caught.value.earliest, caught.value.latest) == (3, 4)


@pytest.mark.parametrize("timestamp", [datetime.max, datetime.min, datetime(1969, 7, 20, tzinfo=UTC)], ids=str)  # noqa: DTZ901
def test_a_timestamp_far_away_is_answered_too(timestamp: datetime, log: Log) -> None:
    if timestamp.year > 2026:
        assert at(log, timestamp) == 4
        return
    with pytest.warns(LazyDeltaWarning, match="version 0 is opened"):
        assert at(log, timestamp) == 0


# --- modification times


@pytest.mark.parametrize(("later", "version"), [(0, 0), (299, 0), (300, 1), (301, 2), (302, 3), (999, 3), (1000, 4)])
def test_modification_times_are_made_monotonic(later: int, version: int, log: Log) -> None:
    """A commit counts as at least one millisecond younger than the one before, whatever the clocks say."""
    stamp(log, {0: 0, 1: 300, 2: 200, 3: 300, 4: 1000})
    assert at(log, noon(later)) == version


def test_equal_modification_times_are_told_apart(log: Log) -> None:
    stamp(log, dict.fromkeys(range(5), 0))
    assert [at(log, noon(later)) for later in range(6)] == [0, 1, 2, 3, 4, 4]


def test_deltalake_chooses_the_same_versions_by_time(tmp_path: Path) -> None:
    for _ in range(4):
        deltalake.write_deltalake(tmp_path, pa.table({"a": [1]}), mode="append")
    log = Log(tmp_path)
    stamp(log, {version: version * 1000 for version in range(4)})
    for later in (0, 1, 1500, 2000, 2999, 3000, 60_000):
        theirs = deltalake.DeltaTable(tmp_path)
        theirs.load_as_version(noon(later))
        assert at(log, noon(later)) == theirs.version()


# --- in-commit timestamps


def enable_at(log: Log, version: int, later: int) -> None:
    """Let commits carry their own timestamps from ``version`` on."""
    since = {
        "delta.inCommitTimestampEnablementVersion": str(version),
        "delta.inCommitTimestampEnablementTimestamp": str(milliseconds(NOON) + later),
    }
    log.commit(version, content=stamped(later, metadata(ENABLED | since), add(f"f{version}")))


@pytest.fixture
def mixed(log: Log) -> Log:
    """Return the log with in-commit timestamps since version 3, at odds with all modification times."""
    enable_at(log, 3, 5000)
    log.commit(4, content=stamped(6000, add("f4")))
    stamp(log, {0: 0, 1: 1000, 2: 2000, 3: -90_000, 4: 90_000})
    return log


@pytest.mark.parametrize(
    ("later", "version"), [(0, 0), (1999, 1), (2000, 2), (4999, 2), (5000, 3), (5999, 3), (6000, 4), (10**9, 4)]
)
def test_in_commit_timestamps_count_from_the_version_that_enabled_them(later: int, version: int, mixed: Log) -> None:
    assert at(mixed, noon(later)) == version


def test_a_timestamp_before_all_versions_of_a_mixed_history_opens_the_first(mixed: Log) -> None:
    with pytest.warns(LazyDeltaWarning, match="version 0 is opened"):
        assert at(mixed, noon(-1)) == 0


def test_a_checkpoint_keeps_the_timestamp_of_its_own_version(mixed: Log) -> None:
    mixed.checkpoint(3)
    mixed.delete(0, 1, 2)
    assert at(mixed, noon(5000)) == 3
    with pytest.raises(VersionNotFoundError) as caught:
        at(mixed, noon(4999))
    assert (caught.value.earliest, caught.value.latest) == (3, 4)


def test_timestamps_enabled_from_the_beginning_need_no_enablement_version(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.commit(0, content=stamped(100, protocol(), metadata(ENABLED), add("f0")))
    log.commit(1, content=stamped(200, add("f1")))
    stamp(log, {0: 10**6, 1: 2 * 10**6})
    assert [at(log, noon(later)) for later in (100, 199, 200)] == [0, 0, 1]


def test_in_commit_timestamps_do_not_count_while_they_are_not_enabled(log: Log) -> None:
    log.commit(4, content=stamped(-90_000, add("f4")))
    stamp(log, {4: 4000})
    assert at(log, noon(3999)) == 3


def test_few_of_many_stamped_commits_are_read_to_find_a_timestamp(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.commit(0, content=stamped(0, protocol(), metadata(ENABLED), add("f0")))
    for version in range(1, 200):
        log.commit(version, content=stamped(version * 10, add(f"f{version}")))
    log.checksum(199)
    log.checksum(123)
    table = DeltaTable(tmp_path)
    with requests() as seen:
        table.load_as_version(noon(1234))
    assert table.version() == 123
    assert len([name for name in seen.gets if name.endswith(".json")]) <= 8


def test_a_commit_without_the_timestamp_it_should_have_is_an_error_that_names_it(mixed: Log) -> None:
    mixed.commit(4, add("f4"))
    with pytest.raises(CorruptLogError, match=name_of(4)) as caught:
        at(mixed, noon(5500))
    assert caught.value.version == 4


def test_an_enablement_version_that_is_no_number_is_an_error(log: Log) -> None:
    log.commit(4, metadata(ENABLED | {"delta.inCommitTimestampEnablementVersion": "soon"}))
    with pytest.raises(CorruptLogError, match="soon"):
        at(log, noon(1000))


# --- history


def test_history_is_newest_first_with_version_and_timestamp(log: Log) -> None:
    entries = DeltaTable(log.root).history()
    assert [entry["version"] for entry in entries] == [4, 3, 2, 1, 0]
    assert [entry["timestamp"] for entry in entries] == [milliseconds(NOON) + v * 1000 for v in (4, 3, 2, 1, 0)]


def test_history_gives_the_in_commit_timestamp_where_it_counts(mixed: Log) -> None:
    entries = {entry["version"]: entry["timestamp"] for entry in DeltaTable(mixed.root).history()}
    base = milliseconds(NOON)
    assert entries == {0: base, 1: base + 1000, 2: base + 2000, 3: base + 5000, 4: base + 6000}


def test_history_of_an_older_version_ends_there(log: Log) -> None:
    assert [entry["version"] for entry in DeltaTable(log.root, version=2).history()] == [2, 1, 0]


@pytest.mark.parametrize("limit", [0, 1, 3, 99])
def test_history_reads_no_more_commits_than_asked_for(limit: int, log: Log) -> None:
    log.checkpoint(3, hint=True)
    table = DeltaTable(log.root)
    with requests() as seen:
        assert [entry["version"] for entry in table.history(limit)] == [4, 3, 2, 1, 0][:limit]
    assert len(seen.of("GET")) == min(limit, 5)


def test_a_negative_limit_of_history_is_refused(log: Log) -> None:
    with pytest.raises(OptionError, match="limit=-1"):
        DeltaTable(log.root).history(-1)


def test_history_goes_back_as_far_as_commits_are_kept(log: Log) -> None:
    log.checkpoint(3)
    log.delete(0, 1)
    assert [entry["version"] for entry in DeltaTable(log.root).history()] == [4, 3, 2]


def test_commit_info_is_found_wherever_it_is_in_a_commit(log: Log) -> None:
    many = [add(f"g{index}") for index in range(1000)]
    log.commit(4, *many, {"commitInfo": {"operation": "LAST", "timestamp": 7}})
    log.commit(5, {"commitInfo": {"operation": "FIRST", "timestamp": 8}}, *many)
    entries = DeltaTable(log.root).history(2)
    assert [(entry["operation"], entry["timestamp"]) for entry in entries] == [("FIRST", 8), ("LAST", 7)]


def test_the_head_of_a_large_commit_is_enough_for_its_history(log: Log) -> None:
    log.commit(5, {"commitInfo": {"operation": "WRITE"}}, *[add(f"g{index}") for index in range(5000)])
    table = DeltaTable(log.in_memory())
    with requests() as seen:
        table.history(1)
    (request,) = seen
    assert request.length is not None
    assert request.length <= 64 << 10


# --- against deltalake


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """Return a table of several operations made by deltalake, with a checkpoint in the middle."""
    rows = pa.table({"a": [1, 2, 3]})
    for version in range(3):
        properties = CommitProperties(app_transactions=[Transaction("stream", version), Transaction("once", 7)])
        deltalake.write_deltalake(tmp_path, rows, mode="append", commit_properties=properties)
    table = deltalake.DeltaTable(tmp_path)
    table.create_checkpoint()
    table.delete("a = 2")
    properties = CommitProperties(custom_metadata={"who": "me"}, app_transactions=[Transaction("stream", 40)])
    deltalake.write_deltalake(tmp_path, rows, mode="overwrite", commit_properties=properties)
    return tmp_path


@pytest.mark.parametrize("version", [None, 0, 2, 3])
@pytest.mark.parametrize("app", ["stream", "once", "nobody"])
def test_transaction_versions_are_those_of_deltalake(app: str, version: int | None, real: Path) -> None:
    theirs = deltalake.DeltaTable(real, version=version).transaction_version(app)
    assert DeltaTable(real, version=version).transaction_version(app) == theirs


@pytest.mark.parametrize("limit", [None, 1, 3])
def test_history_is_that_of_deltalake(limit: int | None, real: Path) -> None:
    theirs = deltalake.DeltaTable(real).history(limit)
    ours = DeltaTable(real).history(limit)
    assert len(theirs) == (limit or 5)
    assert json.loads(json.dumps(ours)) == theirs
