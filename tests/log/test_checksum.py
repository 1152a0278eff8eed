"""The version checksum: it spares the replay of protocol and metadata, and a complete scan is compared with it."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import ChecksumMismatchError
from lazydelta.sidecar import build
from lazydelta.warned import ChecksumWarning
from tests.log.support import Log, add, metadata, name_of, paths, protocol, remove, requests
from tests.oracle.random_log import random_log
from tests.oracle.replay import replay

if TYPE_CHECKING:
    from pathlib import Path

    from tests.oracle.replay import Json

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
    stream = DeltaTable(log.root).files()
    with caplog.at_level(logging.WARNING, "lazydelta"), pytest.warns(ChecksumWarning, match="the log gives 5") as seen:
        assert paths(stream) == ALL
    (message,) = warnings(caplog)
    assert [str(each.message) for each in seen] == [message]
    assert name_of(4, "crc") in message
    assert stream.metrics.checksum_mismatches == 1
    assert "checksum mismatches  1  (" in str(stream.explain())
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


# --- all that a checksum says

EXACT: Json = {
    "setTransactions": [{"appId": "a", "version": 7}, {"appId": "b", "version": 1, "lastUpdated": 5}],
    "domainMetadata": [{"domain": "d", "configuration": "{}", "removed": False}],
}
SCHEMA = '{"type":"struct","fields":[]}'
LIES: dict[str, tuple[Json, str]] = {
    "schema": ({"metadata": metadata()["metaData"] | {"schemaString": SCHEMA}}, "metaData .* schemaString"),
    "properties": ({"metadata": OTHER}, "metaData .* configuration"),
    "protocol": ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 3}}, "protocol .* minWriterVersion"),
    "an older transaction": (
        {"setTransactions": [{"appId": "a", "version": 6}, {"appId": "b", "version": 1}]},
        "application 'a' at 6, the log at 7",
    ),
    "a transaction left out": ({"setTransactions": [{"appId": "a", "version": 7}]}, "'b' at 'nothing', the log at 1"),
    "no transactions": ({"setTransactions": []}, "application"),
    "a domain left out": ({"domainMetadata": []}, "domain 'd' at 'nothing'"),
    "another domain": (
        {"domainMetadata": [{"domain": "d", "configuration": "[]", "removed": False}]},
        "domain 'd' at '\\[\\]'",
    ),
    "a removed domain": (
        {"domainMetadata": [*EXACT["domainMetadata"], {"domain": "gone", "configuration": "x", "removed": False}]},
        "domain 'gone' at 'x', the log at 'nothing'",
    ),
}


@pytest.fixture(params=["commits", "checkpoint", "compaction"])
def eventful(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    """Return a log of the versions 0 to 6 in which applications and domains came, changed and went."""
    log = Log(tmp_path).commits(0, 6)
    gone = {"domain": "gone", "configuration": "x", "removed": False}
    log.commit(1, add("f1"), {"txn": {"appId": "a", "version": 3}}, {"domainMetadata": gone})
    log.commit(2, add("f2"), {"domainMetadata": EXACT["domainMetadata"][0]}, {"txn": {"appId": "b", "version": 1}})
    log.commit(4, add("f4"), {"txn": {"appId": "a", "version": 6}}, {"domainMetadata": gone | {"removed": True}})
    log.commit(5, add("f5"), {"txn": {"appId": "a", "version": 7}})
    if request.param == "checkpoint":
        log.checkpoint(3, hint=True)
    elif request.param == "compaction":
        log.compaction(4, 5)
    return log


@pytest.mark.parametrize("strategy", ["forward", "reverse"])
def test_a_checksum_that_is_right_in_all_that_it_says_passes(strategy: str, eventful: Log) -> None:
    eventful.checksum(6, **EXACT)
    table = DeltaTable(eventful.root, options={"checksum": "error"})
    assert len(table.files(strategy=strategy).collect()) == 7


@pytest.mark.parametrize("lie", LIES)
def test_a_checksum_that_lies_about_the_table_is_found_out(lie: str, eventful: Log) -> None:
    changes, message = LIES[lie]
    eventful.checksum(6, **(EXACT | changes))
    with pytest.raises(ChecksumMismatchError, match=message):
        DeltaTable(eventful.root, options={"checksum": "error"}).files().collect()
    stream = DeltaTable(eventful.root).files()
    with pytest.warns(ChecksumWarning, match=message):
        assert len(stream.collect()) == 7
    assert stream.metrics.checksum_mismatches == 1
    assert len(DeltaTable(eventful.root, options={"checksum": "off"}).files().collect()) == 7


def test_lists_that_a_checksum_leaves_out_are_not_compared(eventful: Log) -> None:
    eventful.checksum(6)
    assert len(DeltaTable(eventful.root, options={"checksum": "error"}).files().collect()) == 7


def test_transactions_that_expire_are_not_compared(tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 2)
    log.commit(1, metadata({"delta.setTransactionRetentionDuration": "interval 1 day"}))
    log.checksum(2, setTransactions=[{"appId": "expired long ago", "version": 1}])
    assert len(DeltaTable(log.root, options={"checksum": "error"}).files().collect()) == 2


def test_a_checkpoint_that_cannot_be_read_proves_nothing_against_a_checksum(log: Log) -> None:
    """Files come from the sidecar then, and the answer is as good."""
    log.checkpoint(4, hint=True)
    log.checksum(4)
    build(log.root)
    checkpoint = log.folder / name_of(4, "checkpoint.parquet")
    data = checkpoint.read_bytes()
    table = DeltaTable(log.root, options={"checksum": "error"})
    stat = checkpoint.stat()
    checkpoint.write_bytes(b"\0" * len(data))
    os.utime(checkpoint, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    stream = table.files()
    assert paths(stream) == ALL
    assert stream.metrics.sidecar_hits == 1


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.one_in(4)
def test_exact_checksums_of_random_logs_pass_and_inexact_ones_do_not(seed: int, tmp_path: Path) -> None:
    made = random_log(seed, tmp_path)
    for version in {made.earliest, made.latest}:
        state = made.expected(version)
        exact: Json = {
            "tableSizeBytes": sum(each["size"] for each in state.files.values()),
            "numFiles": len(state.files),
            "numMetadata": 1,
            "numProtocol": 1,
            "metadata": state.metadata,
            "protocol": state.protocol,
            "setTransactions": list(state.transactions.values()),
            "domainMetadata": [each for each in state.domains.values() if not each["removed"]],
        }
        path = made.log / name_of(version, "crc")
        path.write_text(json.dumps(exact))
        found = DeltaTable(made.path, version=version, options={"checksum": "error"}).files().collect()
        assert len(found) == exact["numFiles"]
        for changes in _lies_about(exact):
            path.write_text(json.dumps(exact | changes))
            with pytest.raises(ChecksumMismatchError):
                DeltaTable(made.path, version=version, options={"checksum": "error"}).files().collect()
        path.unlink()


def _lies_about(exact: Json) -> list[Json]:
    domain = {"domain": "nowhere", "configuration": "", "removed": False}
    return [
        {"numFiles": exact["numFiles"] + 1},
        {"tableSizeBytes": exact["tableSizeBytes"] + 1},
        {"metadata": exact["metadata"] | {"description": "another"}},
        {"protocol": exact["protocol"] | {"minWriterVersion": exact["protocol"]["minWriterVersion"] - 1}},
        {"setTransactions": [*exact["setTransactions"], {"appId": "nobody", "version": 1}]},
        {"domainMetadata": [*exact["domainMetadata"], domain]},
    ]
