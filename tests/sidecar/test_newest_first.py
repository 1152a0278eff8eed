"""Newest first, file by file: the order of a reverse scan over a sidecar, compared with the log's own replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.oracle.replay import replay
from tests.scan.hand_log import HandLog, add
from tests.sidecar.sidecars import DISABLED, Place, checkpoint, hourly, rest, until_base

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.scan.stream import FileStream
    from tests.oracle.replay import Json
    from tests.sidecar.conftest import Split

SIZES = ((3, 2), (7, 1000), (10_000, 16))
WHERE = (None, "hour >= '2026021020'", "hour IS NULL", "id < 300")


def newest_first(adds: list[Json], column: str = "hour") -> list[str]:
    """Return paths by hour and path, descending; files without an hour come last, by path descending."""
    dated = [each for each in adds if each["partitionValues"][column] is not None]
    undated = [each["path"] for each in adds if each["partitionValues"][column] is None]
    ordered = sorted(dated, key=lambda each: (each["partitionValues"][column], each["path"]), reverse=True)
    return [each["path"] for each in ordered] + sorted(undated, reverse=True)


def expected(log: HandLog, where: str | None, place: Place) -> list[str]:
    """Return the base files that a scan without the sidecar finds, in the order that is promised."""
    found = {file.path for file in place.open(**DISABLED).files(where) if file.version is None}
    return newest_first([each for each in adds_of(log) if each["path"] in found])


def adds_of(log: HandLog) -> list[Json]:
    """Return the files of the newest version by plain replay."""
    return list(replay(log.log).files.values())


def base_paths(stream: FileStream) -> list[str]:
    """Return the paths of the base in the order in which they come."""
    return [file.path for file in stream if file.version is None]


@pytest.mark.parametrize("long_manifest", [False, True], ids=["groups in the manifest", "groups in footers"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.each_value
def test_a_reverse_scan_gives_the_base_newest_first_file_by_file(
    seed: int,
    sizes: tuple[int, int],
    long_manifest: bool,  # noqa: FBT001 - a parameter of the test
    split: Split,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Inside row groups as between them and between parts; files without an hour come last, whatever the sizes."""
    split(*sizes)
    if long_manifest:
        monkeypatch.setattr("lazydelta.sidecar.format.manifest.MANIFEST_LIMIT", 100)
    log, place = hourly(tmp_path, seed=seed), Place(str(tmp_path))
    assert place.build() == "built"
    for where in WHERE:
        stream = place.open().files(where, strategy="reverse")
        order = expected(log, where, place)
        assert base_paths(stream) == order, where
        assert order
        assert stream.metrics.tier == 1


def test_the_same_order_without_a_manifest(split: Split, tmp_path: Path) -> None:
    split(7, 1000)
    log, place = hourly(tmp_path), Place(str(tmp_path))
    place.build()
    (manifest,) = (path for path in place.sidecars() if path.endswith(".json"))
    (tmp_path / manifest).unlink()
    stream = place.open().files(strategy="reverse")
    assert base_paths(stream) == expected(log, None, place)
    assert stream.metrics.tier == 2


@pytest.mark.parametrize("count", [1, 4, 9, 40, 119])
def test_a_limit_gives_the_newest_files(count: int, split: Split, tmp_path: Path) -> None:
    split(16, 2)
    log, place = hourly(tmp_path, tail=0), Place(str(tmp_path))
    place.build()
    found = [file.path for file in place.open().files(limit=count)]
    assert found == newest_first(adds_of(log))[:count]


def test_the_statistics_of_files_that_were_turned_around_are_their_own(split: Split, tmp_path: Path) -> None:
    """They are read afterwards, for row groups in their stored order."""
    split(10, 2)
    log, place = hourly(tmp_path), Place(str(tmp_path))
    place.build()
    known = {file.path: (file.num_records, file.stats) for file in place.open().files(strategy="forward")}
    found = place.open().files(strategy="reverse").collect()
    assert {file.path: (file.num_records, file.stats) for file in found} == known
    assert len(found) == len(adds_of(log))


@pytest.mark.parametrize("pulled", [0, 1, 9, 30, 100, 110, 112])
@pytest.mark.parametrize("rows_per_group", [5, 40])
@pytest.mark.each_value
def test_a_sidecar_that_goes_in_the_middle_costs_no_file_and_gives_none_twice(
    pulled: int, rows_per_group: int, split: Split, tmp_path: Path
) -> None:
    """Also behind the row group that is sent in two pieces, whose second one had not left."""
    split(rows_per_group, 2)
    log, place = hourly(tmp_path), Place(str(tmp_path))
    place.build()
    stream = place.open(**{"delta.sidecar.row_groups_per_batch": 1}).files(strategy="reverse", batch_size=1)
    files = until_base(stream) + [next(stream) for _ in range(pulled)]
    for path in place.sidecars():
        (tmp_path / path).unlink()
    found = sorted(file.path for file in files + rest(stream))
    assert found == sorted(each["path"] for each in adds_of(log))


def test_tables_that_are_sorted_by_the_minimum_of_a_column_are_newest_first_too(split: Split, tmp_path: Path) -> None:
    split(4, 2)
    log = HandLog(tmp_path, {"id": "long", "at": "timestamp"})
    timestamps = [f"2026-02-{1 + (7 * number) % 27:02d}T10:00:00.000Z" for number in range(50)]
    log.commit(*(add(f"f{number:02d}", stats=_timestamp(number, at)) for number, at in enumerate(timestamps)))
    checkpoint(log)
    place = Place(str(tmp_path))
    place.build()
    dated = {f"f{number:02d}": at for number, at in enumerate(timestamps) if _timestamp(number, at)["minValues"]}
    stream = place.open().files(strategy="reverse")
    found = [file.path for file in stream]
    assert found[: len(dated)] == sorted(dated, key=lambda path: (dated[path], path), reverse=True)
    assert sorted(found) == [f"f{number:02d}" for number in range(50)]
    assert stream.explain().plan["base_order"] == "by the minimum of at, path, descending"


def _timestamp(number: int, at: str) -> dict[str, Any]:
    bounds = {} if number % 11 == 3 else {"at": at}
    return {"minValues": bounds, "maxValues": bounds, "nullCount": {"at": 0}}


def test_explain_says_in_which_order_the_base_comes(split: Split, tmp_path: Path) -> None:
    """Without a sidecar it is that of the checkpoint, which a reverse scan cannot mend."""
    split(10, 2)
    hourly(tmp_path)
    place = Place(str(tmp_path))
    before = place.open().files(strategy="reverse")
    assert "base_order" not in {name for name, value in before.explain().plan.items() if value}
    before.collect()
    assert before.explain().plan["base_order"] == "as stored: a checkpoint is not sorted"
    place.build()
    orders = {}
    for strategy in ("reverse", "forward"):
        stream = place.open().files(strategy=strategy)
        stream.collect()
        orders[strategy] = stream.explain().plan["base_order"]
    assert orders == {"reverse": "by hour, path, descending", "forward": "by hour, path"}
