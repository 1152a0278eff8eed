"""Files that are known by path are looked for where their folders point, and found wherever they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import OptionError
from lazydelta.scan.scanner import LazyDeltaScanner
from lazydelta.sidecar.reading.discovery import shared_cache
from tests.scan.hand_log import HandLog, add, remove, vector
from tests.sidecar.conftest import Split
from tests.sidecar.sidecars import COLUMNS, DISABLED, Place

PER_HOUR = 10
HOURS = [f"2026021{hour // 24}{hour % 24:02d}" for hour in range(30)]
ODD = "a b/%ö="


def _path(hour: str | None, number: int, *, folder: str | None = None) -> str:
    shown = "__HIVE_DEFAULT_PARTITION__" if hour is None else quote(folder or hour, safe="")
    return f"hour={quote(shown)}/part-{number:05d}.parquet"


@pytest.fixture
def place(tmp_path: Path, split: Split) -> Place:
    """Return a table of 320 files in row groups of 7, 4 a part, most of whose folders tell the truth."""
    split(7, 4)
    log = HandLog(tmp_path / "t", COLUMNS, partitions=["hour"], features=["deletionVectors"])
    values: list[str | None] = [*HOURS, None, ODD]
    adds = [
        add(_path(hour, number), ids=(number, number + 3), records=number + 1, partition={"hour": hour})
        for hour in values
        for number in range(PER_HOUR)
    ]
    adds.append(add(_path(HOURS[3], 77, folder=HOURS[9]), ids=(70, 77), records=1, partition={"hour": HOURS[3]}))
    adds.append(add("plain.parquet", ids=(80, 88), records=1, partition={"hour": HOURS[20]}))
    log.commit(*adds)
    log.checkpoint()
    log.commit(
        remove(_path(HOURS[5], 1)),
        remove(_path(HOURS[6], 1)),
        add(_path(HOURS[6], 1), ids=(600, 601), records=5, partition={"hour": HOURS[6]}, vector=vector("v")),
        add(_path(HOURS[29], 50), ids=(1, 2), records=2, partition={"hour": HOURS[29]}),
    )
    found = Place(str(tmp_path / "t"))
    assert found.build() == "built"
    shared_cache.clear()
    return found


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[LazyDeltaScanner]:
    """Return the scans that were put together, as they come."""
    made: list[LazyDeltaScanner] = []
    converted = LazyDeltaScanner.converted

    def noted(self: LazyDeltaScanner, convert: Any) -> Any:
        made.append(self)
        return converted(self, convert)

    monkeypatch.setattr(LazyDeltaScanner, "converted", noted)
    return made


def truth(place: Place) -> dict[str, dict[str, Any]]:
    """Return the rows of all files as the log has them."""
    stream = place.open(**DISABLED).files(stats_columns=["id"])
    return {row["path"]: row for batch in stream.batches() for row in batch.to_pylist()}


def check(table: DeltaTable, paths: list[str], expected: dict[str, dict[str, Any]]) -> None:
    """Compare rows for paths with those of the log."""
    for row in table.get_stats_for_files(paths, ["id"]).to_pylist():
        assert row == {name: expected[row["path"]][name] for name in row}


@pytest.mark.parametrize("hour", [HOURS[0], HOURS[15], HOURS[29], None, ODD], ids=str)
def test_one_path_reads_one_row_group(place: Place, hour: str | None, scans: list[LazyDeltaScanner]) -> None:
    expected = truth(place)
    scans.clear()
    for number in range(PER_HOUR):
        check(place.open(), [_path(hour, number)], expected)
    assert [scan.metrics.row_groups_read for scan in scans] == [1] * PER_HOUR
    assert all(scan.metrics.row_groups_pruned == 45 for scan in scans)


def test_a_file_of_the_tail_is_found_there(place: Place, scans: list[LazyDeltaScanner]) -> None:
    expected = truth(place)
    scans.clear()
    check(place.open(), [_path(HOURS[6], 1)], expected)
    assert expected[_path(HOURS[6], 1)]["min.id"] == 600
    assert [scan.metrics.row_groups_read for scan in scans] == [0]


def test_several_paths_read_their_row_groups(place: Place, scans: list[LazyDeltaScanner]) -> None:
    expected = truth(place)
    scans.clear()
    check(place.open(), [_path(HOURS[2], 3), _path(HOURS[25], 4), _path(HOURS[2], 3)], expected)
    assert [scan.metrics.row_groups_read for scan in scans] == [2]


@pytest.mark.parametrize("path", [_path(HOURS[3], 77, folder=HOURS[9]), "plain.parquet"])
def test_a_folder_that_lies_or_says_nothing_only_costs_time(
    place: Place, path: str, scans: list[LazyDeltaScanner]
) -> None:
    expected = truth(place)
    scans.clear()
    check(place.open(), [path, _path(HOURS[29], 5)], expected)
    assert sum(scan.metrics.row_groups_read for scan in scans) > 2


def test_a_removed_file_is_not_found(place: Place) -> None:
    found = place.open().get_stats_for_files([_path(HOURS[5], 1)], stat_columns=["id"], missing="null")
    assert found.column("num_records").to_pylist() == [None]


def test_all_paths_at_once(place: Place) -> None:
    expected = truth(place)
    check(place.open(), sorted(expected), expected)


def test_columns_have_two_names_and_one_of_them_is_needed(place: Place) -> None:
    table = place.open()
    path = _path(HOURS[2], 3)
    by_position = table.get_stats_for_files([path], ["id"])
    assert table.get_stats_for_files([path], stat_columns=["id"]) == by_position
    assert table.get_stats_for_files([path], columns=["id"]) == by_position
    neither: dict[str, Any] = {}
    for names in (neither, {"stat_columns": ["id"], "columns": ["id"]}):
        with pytest.raises(OptionError, match="Which columns"):
            table.get_stats_for_files([path], **names)
