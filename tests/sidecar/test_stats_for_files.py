"""``get_stats_for_files``: statistics of files that are known by path, the same from a sidecar as from the log."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from lazydelta.errors import DataFileError, OptionError, UnknownColumnError
from lazydelta.sidecar.reading.discovery import shared_cache
from tests.scan.hand_log import HandLog, add
from tests.sidecar.conftest import Split
from tests.sidecar.sidecars import COLUMNS, DISABLED, Place, hourly

NAMES = ["id", "at", "name"]
TYPES = {"id": pa.int64(), "at": pa.timestamp("us", "UTC"), "name": pa.string()}


@pytest.fixture(params=["sidecar", "sidecar without manifest", "log"])
def place(request: pytest.FixtureRequest, tmp_path: Path, split: Split) -> Place:
    """Return a table with a tail, whose base is read from its sidecar or from its checkpoint."""
    split(7, 3 if request.param == "sidecar" else 1000)
    hourly(tmp_path / "t")
    found = Place(str(tmp_path / "t"))
    if request.param != "log":
        assert found.build() == "built"
    if request.param == "sidecar without manifest":
        found.store.delete("_delta_log/_sidecars/v0.manifest.json")
    shared_cache.clear()
    return found


def expected(place: Place) -> dict[str, dict[str, object]]:
    """Return what the log says of every active file, as the scan of all files reports it."""
    stream = place.open(**DISABLED).files(stats_columns=NAMES)
    return {row["path"]: row for batch in stream.batches() for row in batch.to_pylist()}


def test_a_row_for_each_path_in_the_order_given(place: Place) -> None:
    truth = expected(place)
    paths = list(truth)
    random.Random(3).shuffle(paths)
    table = place.open().get_stats_for_files(paths, NAMES)
    names = [f"{end}.{name}" for name in NAMES for end in ("min", "max", "null_count")]
    assert table.column_names == ["path", "num_records", *names]
    assert table.column("path").to_pylist() == paths
    for row in table.to_pylist():
        logged = truth[row["path"]]
        assert row == {name: logged[name] for name in table.column_names}
    assert [table.schema.field(f"min.{name}").type for name in NAMES] == list(TYPES.values())


def test_few_paths_and_one_column_one_of_them_twice(place: Place) -> None:
    truth = expected(place)
    newest = max(truth)  # of the tail
    paths = [newest, "f00003", newest]
    assert newest.startswith("t")
    table = place.open().get_stats_for_files(paths, ["id"])
    assert table.column_names == ["path", "num_records", "min.id", "max.id", "null_count.id"]
    assert table.column("min.id").to_pylist() == [truth[path]["min.id"] for path in paths]


def test_files_without_statistics_have_nulls(place: Place) -> None:
    """File 13 has none, file 17 has a minimum only."""
    table = place.open().get_stats_for_files(["f00013", "f00017"], ["id"])
    assert table.column("min.id").to_pylist()[0] is None
    assert table.column("min.id").to_pylist()[1] is not None
    assert table.column("max.id").to_pylist() == [None, None]


@pytest.mark.parametrize("path", ["f00000", "nothing", ""])
def test_a_path_that_is_no_active_file_is_an_error_or_a_row_of_nulls(place: Place, path: str) -> None:
    """File 0 was removed in the tail."""
    table = place.open()
    with pytest.raises(DataFileError, match=f"{path!r} is not an active file") as raised:
        table.get_stats_for_files(["f00003", path], ["id"])
    assert raised.value.path == path
    found = table.get_stats_for_files([path, "f00003", path], ["id"], missing="null")
    assert found.column("path").to_pylist() == [path, "f00003", path]
    assert [value is None for value in found.column("num_records").to_pylist()] == [True, False, True]


def test_no_paths_and_no_files_give_tables_of_the_same_columns(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", COLUMNS, partitions=["hour"])
    log.commit()
    log.checkpoint()
    empty = Place(str(tmp_path / "t")).open()
    numbers = [(name, pa.int64()) for name in ("num_records", "min.id", "max.id", "null_count.id")]
    assert empty.get_stats_for_files([], ["id"]).schema == pa.schema([("path", pa.string()), *numbers])
    found = empty.get_stats_for_files(["nothing"], ["id"], missing="null")
    assert found.to_pylist() == [
        {"path": "nothing", "num_records": None, "min.id": None, "max.id": None, "null_count.id": None}
    ]
    log.commit(add("a", ids=(1, 2), partition={"hour": "x"}))
    assert Place(str(tmp_path / "t")).open().get_stats_for_files([], ["id"]).num_rows == 0


def test_what_makes_no_sense_is_refused(place: Place) -> None:
    with pytest.raises(OptionError, match="missing='maybe'"):
        place.open().get_stats_for_files(["f00003"], ["id"], missing="maybe")
    with pytest.raises(UnknownColumnError, match="nonesuch"):
        place.open().get_stats_for_files(["f00003"], ["nonesuch"])
