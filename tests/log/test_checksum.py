"""The version checksum: it spares the replay of protocol and metadata, and a complete scan is compared with it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import ChecksumMismatchError
from tests.log.support import Log, add, metadata, name_of, paths, protocol, remove, requests
from tests.oracle.replay import replay

if TYPE_CHECKING:
    from pathlib import Path

ALL = [f"f{version}" for version in range(5)]
OTHER = metadata({"who": "the checksum"})["metaData"]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log of the versions 0 to 4."""
    return Log(tmp_path).commits(0, 4)


def property_of(table: DeltaTable, name: str) -> str | None:
    """Return a table property."""
    return (table.metadata().configuration or {}).get(name)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings that lazydelta logged."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


# --- protocol and metadata


def test_protocol_and_metadata_come_from_the_checksum_at_the_version(log: Log) -> None:
    """Seen by a checksum that says something else than the commits, which no writer would do."""
    log.checksum(4, metadata=OTHER)
    with requests() as seen:
        table = DeltaTable(log.root)
    assert property_of(table, "who") == "the checksum"
    assert seen.gets == ["_last_checkpoint", name_of(4, "crc")]


def test_an_older_checksum_is_completed_by_the_commits_after_it(log: Log) -> None:
    log.checksum(2, metadata=OTHER)
    with requests() as seen:
        table = DeltaTable(log.root)
    assert property_of(table, "who") == "the checksum"
    assert sorted(seen.gets) == sorted(["_last_checkpoint", name_of(2, "crc"), name_of(3), name_of(4)])


def test_a_newer_commit_wins_over_an_older_checksum(log: Log) -> None:
    log.checksum(2, metadata=OTHER)
    log.commit(3, metadata({"who": "commit 3"}))
    assert property_of(DeltaTable(log.root), "who") == "commit 3"


def test_protocol_and_metadata_may_come_from_different_places(log: Log) -> None:
    log.checksum(2, metadata=OTHER)
    log.commit(3, protocol("deletionVectors"))
    table = DeltaTable(log.root)
    assert property_of(table, "who") == "the checksum"
    assert table.protocol().reader_features == ["deletionVectors"]


def test_a_checksum_newer_than_the_version_is_not_used(log: Log) -> None:
    log.checksum(4, metadata=OTHER)
    assert property_of(DeltaTable(log.root, version=3), "who") is None


def test_a_checksum_of_the_checkpoints_own_version_is_used(log: Log) -> None:
    log.checkpoint(3, hint=True)
    log.checksum(3, metadata=OTHER)
    with requests() as seen:
        table = DeltaTable(log.root)
    assert property_of(table, "who") == "the checksum"
    assert name_of(3, "checkpoint.parquet") not in seen.gets


def test_transactions_and_domains_come_from_the_checksum_where_it_has_them(log: Log) -> None:
    domain = {"domain": "d", "configuration": "{}", "removed": False}
    log.checksum(4, setTransactions=[{"appId": "a", "version": 0}], domainMetadata=[domain])
    table = DeltaTable(log.root)
    with requests() as seen:
        assert table.transaction_version("a") == 0
        assert table.transaction_version("b") is None
        assert table.domain_metadata() == {"d": "{}"}
    assert seen == []


def test_transactions_of_an_older_checksum_are_not_trusted(log: Log) -> None:
    log.checksum(2, setTransactions=[{"appId": "a", "version": 1}])
    log.commit(3, {"txn": {"appId": "a", "version": 2}})
    assert DeltaTable(log.root).transaction_version("a") == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"{}",
        b'{"tableSizeBytes": "many"}',
        b"[" * 100_000,
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_checksum_that_cannot_be_read_is_ignored_with_a_warning(
    content: bytes, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    log.write(name_of(4, "crc"), content)
    with caplog.at_level(logging.WARNING, "lazydelta"):
        table = DeltaTable(log.root, options={"checksum": "error"})
        assert (table.version(), paths(table.files())) == (4, ALL)
    assert any(name_of(4, "crc") in message for message in warnings(caplog))


@pytest.mark.parametrize(
    "changes",
    [
        {"numMetadata": 0},
        {"numProtocol": 2},
        {"metadata": None},
        {"protocol": {"minReaderVersion": "1"}},
        {"numFiles": -1},
        {"tableSizeBytes": 2**63},
    ],
    ids=str,
)
def test_a_checksum_that_makes_no_sense_is_ignored_with_a_warning(
    changes: dict[str, Any], log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    log.checksum(4, **changes)
    with caplog.at_level(logging.WARNING, "lazydelta"):
        assert paths(DeltaTable(log.root, options={"checksum": "error"}).files()) == ALL
    assert any(name_of(4, "crc") in message for message in warnings(caplog))


def test_unknown_fields_of_a_checksum_are_ignored(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.checksum(4, fileSizeHistogram={"bins": [1]}, allFiles=[])
    with caplog.at_level(logging.WARNING, "lazydelta"), requests() as seen:
        DeltaTable(log.root)
    assert seen.gets == ["_last_checkpoint", name_of(4, "crc")]
    assert warnings(caplog) == []


# --- validation


@pytest.mark.parametrize("changes", [{"numFiles": 6}, {"tableSizeBytes": 1}], ids=str)
def test_a_mismatch_is_a_warning_by_default(
    changes: dict[str, Any], log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    log.checksum(4, **changes)
    with caplog.at_level(logging.WARNING, "lazydelta"):
        assert paths(DeltaTable(log.root).files()) == ALL
    (message,) = warnings(caplog)
    assert name_of(4, "crc") in message
    assert "the log gives 5 files of 50 bytes" in message


@pytest.mark.parametrize("changes", [{"numFiles": 6}, {"tableSizeBytes": 1}], ids=str)
def test_a_mismatch_is_an_error_if_asked_for(changes: dict[str, Any], log: Log) -> None:
    log.checksum(4, **changes)
    with pytest.raises(ChecksumMismatchError, match="the log gives 5 files of 50 bytes") as caught:
        DeltaTable(log.root, options={"checksum": "error"}).files().collect()
    assert (caught.value.version, caught.value.path) == (4, f"_delta_log/{name_of(4, 'crc')}")


def test_a_mismatch_is_not_looked_for_if_so_asked(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.checksum(4, numFiles=6)
    with caplog.at_level(logging.WARNING, "lazydelta"):
        assert paths(DeltaTable(log.root, options={"checksum": "off"}).files()) == ALL
    assert warnings(caplog) == []


@pytest.mark.parametrize("strategy", ["forward", "reverse"])
def test_a_right_checksum_passes_with_removes_and_a_checkpoint(strategy: str, log: Log) -> None:
    log.commit(5, remove("f1"), add("f0", size=99), add("big", size=2**40))
    log.checkpoint(3)
    log.checksum(5)
    assert len(replay(log.folder, 5).files) == 5
    table = DeltaTable(log.root, options={"checksum": "error"})
    assert paths(table.files(strategy=strategy)) == ["big", "f0", "f2", "f3", "f4"]


def test_files_that_a_predicate_pruned_are_counted_in(log: Log) -> None:
    log.checksum(4)
    table = DeltaTable(log.root, options={"checksum": "error"})
    assert table.files("id > 1000").collect() == []


def test_a_scan_that_was_cut_short_is_not_compared(log: Log) -> None:
    log.checksum(4, numFiles=6)
    table = DeltaTable(log.root, options={"checksum": "error"})
    assert len(table.files(limit=2).collect()) == 2


def test_an_older_checksum_is_not_compared(log: Log) -> None:
    log.checksum(3, numFiles=77)
    assert paths(DeltaTable(log.root, options={"checksum": "error"}).files()) == ALL
