"""Each illness is planted in a healthy table: the doctor names it and its cost, and its command mends it."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lazydelta import DeltaTable, sidecar, write_arrow
from lazydelta.cli.app import cli
from lazydelta.maintenance import doctor
from lazydelta.maintenance.doctor import Diagnosis, diagnose
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.storage import open_store
from lazydelta.testing import make_table
from tests.maintenance.deleted_rows import delete_rows
from tests.scan.hand_log import watching

START = datetime(2026, 2, 10, tzinfo=UTC)
LONG_AGO = time.time() - 60 * 86_400


def _append(root: Path, hour: int | None, rows: int = 4, **options: Any) -> None:
    at = None if hour is None else START + timedelta(hours=hour)
    data = [{"ts": at, "n": number} for number in range(rows)]
    if hour is None:
        data[0]["ts"] = START
    write_arrow(root, data, timestamp_column="ts", maintain=False, **options)


def healthy(root: Path, **options: Any) -> Path:
    """Make a table of five hours with checkpoint, hint, checksums and sidecar."""
    for hour in range(5):
        _append(root, hour, **(options if hour == 0 else {}))
    table = DeltaTable(root)
    table.create_checkpoint()
    table.build_sidecar()
    return root


def _log(root: Path, pattern: str) -> list[Path]:
    found = sorted((root / "_delta_log").glob(pattern))
    assert found, pattern
    return found


def _unlink(root: Path, pattern: str) -> None:
    for path in _log(root, pattern):
        path.unlink()


def _age(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (LONG_AGO, LONG_AGO))


def no_checkpoint(root: Path) -> None:
    for hour in range(22):
        _append(root, hour)


def old_checkpoint(root: Path) -> None:
    healthy(root)
    for hour in range(5, 26):
        _append(root, hour)


def wrong_hint(root: Path) -> None:
    _unlink(healthy(root), "_last_checkpoint")


def no_checksum(root: Path) -> None:
    _append(healthy(root), 5)
    _unlink(root, "*.crc")


def no_sidecar(root: Path) -> None:
    make_table(root, files=1000, checksum=True, hours=1000)


def stale_sidecar(root: Path) -> None:
    healthy(root)
    _append(root, 5)
    DeltaTable(root).create_checkpoint(sidecar=False)


def damaged_manifest(root: Path) -> None:
    (manifest,) = _log(healthy(root), "_sidecars/*.manifest.json")
    manifest.write_bytes(manifest.read_bytes()[:-20])


def sidecar_part_missing(root: Path) -> None:
    _log(healthy(root), "_sidecars/*.parquet")[0].unlink()


def no_manifest(root: Path) -> None:
    healthy(root)
    _unlink(root, "_sidecars/*")
    store = open_store(root)
    made = sidecar.build(root)
    assert made.action == "built"
    parts = [each.path for each in store.list("_delta_log/_sidecars") if each.path.endswith(".parquet")]
    (root / parts[0]).rename(root / "_delta_log" / "_sidecars" / f"v{made.version}.parquet")
    _unlink(root, "_sidecars/*.json")


def sidecar_leftovers(root: Path) -> None:
    left = healthy(root) / "_delta_log" / "_sidecars" / "v1-01234567-89ab-cdef-0123-456789abcdef-1.parquet"
    left.write_bytes(b"left by a build that died")
    _age(left)


def small_files(root: Path) -> None:
    healthy(root)
    for _ in range(8):
        _append(root, 3)


def skew(root: Path) -> None:
    healthy(root)
    for _ in range(12):
        _append(root, 2)


def null_partition(root: Path) -> None:
    healthy(root)
    _append(root, None)


def no_statistics(root: Path) -> None:
    healthy(root)
    _append(root, 4)
    commit = _log(root, "*5.json")[0]
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        line.get("add", {}).pop("stats", None)
    commit.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def deleted_rows(root: Path) -> None:
    healthy(root, properties={"delta.enableDeletionVectors": "true"})
    for file in DeltaTable(root).files():
        delete_rows(root, file, [0, 1, 2])


def expired_log(root: Path) -> None:
    for hour in range(12):
        _append(root, hour)
    table = DeltaTable(root)
    table.create_checkpoint()
    table.build_sidecar()
    _age(*_log(root, "0*.json"))


def orphans(root: Path) -> None:
    left = healthy(root) / "_event_hour=2026021001" / "part-left.parquet"
    left.write_bytes(b"left by a writer that died")
    _age(left)


def short_retention(root: Path) -> None:
    healthy(root, properties={"delta.deletedFileRetentionDuration": "interval 1 hours"})


def features(root: Path) -> None:
    healthy(root)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "somethingNew"]}
    (root / "_delta_log" / f"{5:020}.json").write_text(json.dumps({"protocol": protocol}) + "\n")


def time_as_text(root: Path) -> None:
    write_arrow(root, [{"event_time": "2026-02-10T00:00:00Z", "n": 1}])


# What a finding measures, of which the test knows the value.
PLANTED: dict[Callable[[Path], None], dict[str, float]] = {
    no_checkpoint: {"tail_commits": 22},
    old_checkpoint: {"tail_commits": 21},
    wrong_hint: {},
    no_checksum: {},
    no_sidecar: {},
    stale_sidecar: {},
    damaged_manifest: {},
    sidecar_part_missing: {},
    no_manifest: {},
    sidecar_leftovers: {"files": 1, "bytes": 25},
    small_files: {"files": 9, "partitions": 1},
    skew: {"files": 13, "usual": 1},
    null_partition: {"files": 1, "rows": 3},
    no_statistics: {"files": 1},
    deleted_rows: {"deleted": 15, "rows": 20},
    expired_log: {"files": 22},
    orphans: {"files": 1, "bytes": 26},
}
BY_HAND = (short_retention, features, time_as_text)


def _run(*words: str, code: int = 0) -> Result:
    found = CliRunner().invoke(cli, list(words))
    assert found.exit_code == code, found.output
    return found


def _diagnosed(root: Path) -> Diagnosis:
    return DeltaTable(root).doctor(deep=True)


def test_a_healthy_table_has_no_findings(tmp_path: Path) -> None:
    root = healthy(tmp_path / "t")
    found = _diagnosed(root)
    assert (found.findings, found.tier, found.files_looked_at) == ([], 1, 5)
    assert "nothing wrong" in _run("doctor", str(root)).stdout
    assert found._repr_html_().startswith("<pre>")


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_an_illness_is_found_and_its_command_mends_it(plant: Callable[[Path], None], tmp_path: Path) -> None:
    root = tmp_path / "t"
    plant(root)
    before = {each.code: each for each in _diagnosed(root).findings}
    assert set(before) == {plant.__name__}
    finding = before[plant.__name__]
    assert finding.cost
    assert PLANTED[plant].items() <= finding.measured.items()
    assert all(number >= 0 for number in finding.measured.values())
    _run(*shlex.split(finding.command)[1:])
    assert plant.__name__ not in {each.code for each in _diagnosed(root).findings}


@pytest.mark.parametrize("plant", BY_HAND, ids=lambda plant: plant.__name__)
def test_what_only_another_engine_mends_comes_with_its_statement(plant: Callable[[Path], None], tmp_path: Path) -> None:
    plant(tmp_path / "t")
    (finding,) = [each for each in _diagnosed(tmp_path / "t").findings if each.by_hand]
    assert finding.code == plant.__name__
    assert "delta.`" in finding.command


def test_the_command_says_it_by_exit_code_and_json_and_mends_when_told(tmp_path: Path) -> None:
    root = tmp_path / "t"
    stale_sidecar(root)
    found = json.loads(_run("doctor", str(root), "--json", code=1).stdout)
    assert [each["code"] for each in found["findings"]] == ["stale_sidecar"]
    asked = CliRunner().invoke(cli, ["doctor", str(root), "--fix"], input="n\n")
    assert asked.exit_code == 1
    assert "sidecar refresh" in asked.output
    assert [each.code for each in _diagnosed(root).findings] == ["stale_sidecar"]
    _run("doctor", str(root), "--fix", "--yes")
    _run("doctor", str(root))


@pytest.mark.parametrize(("looked_at", "said"), [(20_000, "1,100 files"), (1_050, "at least 1,050 files")])
def test_a_table_without_checksum_is_read_once_and_counted_as_far(
    looked_at: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(tmp_path, files=1_100, hours=1_100)
    monkeypatch.setattr(doctor, "_LOOKED_AT", looked_at)
    scans: list[Snapshot] = []
    scan = Snapshot.scan

    def counted(snapshot: Snapshot, *given: Any, **named: Any) -> Any:
        scans.append(snapshot)
        return scan(snapshot, *given, **named)

    monkeypatch.setattr(Snapshot, "scan", counted)
    (found,) = [each for each in diagnose(TableHandle.open(tmp_path)).findings if each.code == "no_sidecar"]
    assert (len(scans), said in found.what) == (1, True), found.what
    assert all(snapshot.options.memory_budget <= 32 << 20 for snapshot in scans)


def test_its_cost_does_not_grow_with_the_table(tmp_path: Path) -> None:
    """Requests of a table of 30,000 files with a sidecar, beside those of one of 3,000; bytes by the newest files."""
    asked = []
    for files in (3_000, 30_000):
        root = tmp_path / str(files)
        make_table(root, files=files, hours=3_000, checksum=True, order="time")
        sidecar.build(root)
        with watching() as watch:
            found = diagnose(TableHandle.open(root))
        assert found.files_looked_at <= 20_000
        asked.append(len(watch.requests))
    assert asked[1] <= asked[0] + 10
