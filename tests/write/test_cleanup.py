"""Log cleanup: what is old goes, what a version within the retention needs stays."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import deltalake
import pytest

import lazydelta
from lazydelta.errors import CorruptLogError, LazyDeltaError, VersionNotFoundError
from lazydelta.maintenance.after_commit import CleanupResult, clean_log
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, observe
from tests.scan.hand_log import HandLog, add

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NOW = datetime(2026, 3, 31, 15, 30, tzinfo=UTC)


def _table(
    folder: Path,
    versions: int,
    checkpoints: tuple[int, ...],
    *,
    properties: Mapping[str, str] | None = None,
    per_day: int = 1,
) -> HandLog:
    """Write a log whose newest version is of the day NOW, and every older one of an earlier timestamp."""
    log = HandLog(folder, configuration=properties)
    for version in range(versions):
        log.commit(add(f"f{version}.parquet"))
        if version in checkpoints:
            log.checkpoint()
    for file in log.log.iterdir():
        if file.name[:20].isdigit():
            age = timedelta(days=(versions - 1 - int(file.name[:20])) / per_day)
            timestamp = (NOW - age).timestamp()
            os.utime(file, (timestamp, timestamp))
    return log


def _clean(log: HandLog, **keywords: bool) -> CleanupResult:
    return clean_log(TableHandle.open(log.table), now=NOW, **keywords)


def _names(log: HandLog) -> list[str]:
    return sorted(file.name for file in log.log.iterdir() if file.name[:20].isdigit())


def _readable(log: HandLog) -> list[int]:
    found = []
    for version in range(log.version + 1):
        try:
            table = lazydelta.DeltaTable(log.table, version)
        except VersionNotFoundError:
            continue
        assert len(table.files().collect()) == version + 1
        found.append(version)
    return found


def test_everything_below_the_last_checkpoint_outside_the_retention_goes(tmp_path: Path) -> None:
    log = _table(tmp_path, 61, (10, 20, 25, 40))
    result = _clean(log)
    # 30 days before the midnight of version 60's day: version 29 is the newest that is not younger.
    assert result.floor == 25
    assert _names(log)[0] == f"{25:020}.checkpoint.parquet"
    assert f"{25:020}.json" in _names(log)
    assert _readable(log) == list(range(25, 61))
    assert deltalake.DeltaTable(tmp_path).version() == 60
    assert len(result.paths) == 25 + 2


def test_a_version_within_the_retention_keeps_the_commits_it_is_read_from(tmp_path: Path) -> None:
    log = _table(tmp_path, 16, (3, 9, 10), properties={"delta.logRetentionDuration": "interval 6 days"})
    assert _clean(log).floor == 3
    assert _readable(log) == list(range(3, 16))


@pytest.mark.parametrize("versions", [1, 20])
def test_a_young_log_stays_whole(tmp_path: Path, versions: int) -> None:
    log = _table(tmp_path, versions, (5, 10))
    before = _names(log)
    assert _clean(log) == CleanupResult()
    assert _names(log) == before


def test_a_log_without_a_checkpoint_stays_whole(tmp_path: Path) -> None:
    log = _table(tmp_path, 50, ())
    before = _names(log)
    assert _clean(log).paths == ()
    assert _names(log) == before


def test_an_incomplete_checkpoint_is_none(tmp_path: Path) -> None:
    log = _table(tmp_path, 16, (3,), properties={"delta.logRetentionDuration": "interval 6 days"})
    torn = log.log / f"{6:020}.checkpoint.{1:010}.{2:010}.parquet"
    torn.write_bytes(b"half")
    os.utime(torn, (0, 0))
    assert _clean(log).floor == 3
    assert _readable(log) == list(range(3, 16))


def test_a_checkpoint_that_cannot_be_read_is_no_reason_to_delete_anything(tmp_path: Path) -> None:
    log = _table(tmp_path, 61, (20,))
    (log.log / f"{20:020}.checkpoint.parquet").write_bytes(b"PAR1 this is not one PAR1")
    before = _names(log)
    with pytest.raises(CorruptLogError):
        _clean(log)
    assert _names(log) == before


def test_a_dry_run_tells_and_deletes_nothing(tmp_path: Path) -> None:
    log = _table(tmp_path, 61, (25,))
    before = _names(log)
    dry = _clean(log, dry_run=True)
    assert _names(log) == before
    wet = _clean(log)
    assert (dry.paths, dry.size, dry.dry_run) == (wet.paths, wet.size, True)
    assert wet.size > 0


def test_cleaning_twice_finds_nothing_more(tmp_path: Path) -> None:
    log = _table(tmp_path, 61, (25,))
    _clean(log)
    assert _clean(log) == CleanupResult(floor=25)


def test_an_idle_table_keeps_its_newest_version(tmp_path: Path) -> None:
    log = _table(tmp_path, 12, (5, 10), per_day=1000)
    result = clean_log(TableHandle.open(tmp_path), now=NOW + timedelta(days=400))
    assert result.floor == 10
    assert _readable(log) == [10, 11]


def test_the_retention_is_the_tables_own(tmp_path: Path) -> None:
    log = _table(tmp_path, 61, (10, 45, 55), properties={"delta.logRetentionDuration": "interval 10 days"})
    assert _clean(log).floor == 45


def test_a_table_may_keep_its_whole_log(tmp_path: Path) -> None:
    log = _table(tmp_path, 61, (25,), properties={"delta.enableExpiredLogCleanup": "false"})
    assert _clean(log) == CleanupResult()


def test_checksums_and_compactions_go_with_their_versions(tmp_path: Path) -> None:
    log = _table(tmp_path, 61, (25,))
    content = (log.log / f"{1:020}.json").read_text()
    names = [f"{3:020}.crc", f"{20:020}.{30:020}.compacted.json", f"{26:020}.{30:020}.compacted.json", f"{30:020}.crc"]
    for name in names:
        (log.log / name).write_text(content)
    result = _clean(log)
    assert [name for name in names if f"_delta_log/{name}" in result.paths] == names[:2]


def test_strangers_in_the_log_are_left_alone(tmp_path: Path) -> None:
    log = _table(tmp_path, 61, (25,))
    for name in ("readme.txt", f"{3:020}.json.bak", "_last_checkpoint.old", "_sidecars/v3.parquet"):
        (log.log / name).parent.mkdir(exist_ok=True)
        (log.log / name).write_text("mine")
    _clean(log)
    assert sorted(file.name for file in log.log.rglob("*") if file.is_file() and file.read_bytes() == b"mine") == [
        f"{3:020}.json.bak",
        "_last_checkpoint.old",
        "readme.txt",
        "v3.parquet",
    ]


@pytest.mark.parametrize("stop_at", [0, 1, 4, 6])
def test_a_cleanup_that_stops_half_way_does_no_harm_and_goes_on_later(tmp_path: Path, stop_at: int) -> None:
    log = _table(tmp_path, 16, (3, 6), properties={"delta.logRetentionDuration": "interval 6 days"})
    seen: list[str] = []

    def stop(request: Request) -> None:
        if request.verb == "DELETE":
            seen.append(request.path)
            if len(seen) > stop_at:
                raise LazyDeltaError("stopped")

    with observe(stop), pytest.raises(LazyDeltaError, match="stopped"):
        _clean(log)
    assert set(range(6, 16)) <= set(_readable(log))
    assert _clean(log).floor == 6
    assert _readable(log) == list(range(6, 16))


def test_times_inside_commits_go_before_those_of_the_store(tmp_path: Path) -> None:
    """Copied to another place, all files of a log are young; in-commit timestamps tell how old versions are."""
    properties = {"delta.enableInCommitTimestamps": "true"}
    log = _table(tmp_path, 61, (25,), properties=properties)
    for version in range(61):
        commit = log.log / f"{version:020}.json"
        stamp = int((NOW - timedelta(days=60 - version)).timestamp() * 1000)
        lines = commit.read_text().splitlines()[:-1]
        info = f'{{"commitInfo":{{"operation":"WRITE","inCommitTimestamp":{stamp}}}}}'
        commit.write_text("\n".join([info, *lines]) + "\n")
    assert _clean(log).floor == 25


@pytest.mark.parametrize(("before", "floor"), [(26, None), (25, 25), (0, 25)])
def test_what_checkpoint_protection_guards_goes_as_a_whole_or_stays(
    tmp_path: Path, before: int, floor: int | None
) -> None:
    log = _table(tmp_path, 61, (25,))
    log.configuration["delta.requireCheckpointProtectionBeforeVersion"] = str(before)
    guarded = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["checkpointProtection"]}
    lines = [json.dumps({"protocol": guarded}), json.dumps(log.metadata())]
    (log.log / f"{61:020}.json").write_text("\n".join(lines) + "\n")
    assert _clean(log).floor == floor
    assert (f"{0:020}.json" in _names(log)) == (floor is None)
