from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.errors import OptionError, StorageError
from lazydelta.testing import MadeTable, make_table

if TYPE_CHECKING:
    from pathlib import Path

FILES = 2_000
TAIL: dict[str, Any] = {"tail": 7, "adds_per_commit": 5, "removes": 100}
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "by time": {"order": "time"},
    "many row groups": {"row_group_size": 300},
    "many columns": {"columns": 19},
    "tail": TAIL,
    "tail after multipart": {**TAIL, "checkpoint": "multipart", "parts": 3},
    "tail after v2": {**TAIL, "checkpoint": "v2"},
    "deletion vectors": {**TAIL, "deletion_vectors": 0.2},
    "deletion vectors in v2 row groups": {
        **TAIL,
        "deletion_vectors": 0.2,
        "checkpoint": "v2",
        "row_group_size": 100,
        "stats": "both",
    },
    "struct stats": {**TAIL, "stats": "struct", "deletion_vectors": 0.1},
    "no stats": {**TAIL, "stats": "none"},
    "no checkpoint": {**TAIL, "checkpoint": "none", "adds_per_commit": 300, "deletion_vectors": 0.2},
    "removes only": {"tail": 3, "adds_per_commit": 0, "removes": 1_999},
}


def _made(folder: Path, **recipe: Any) -> MadeTable:
    return make_table(folder, files=FILES, checksum=True, **recipe)


def _deltalake_files(folder: Path) -> dict[str, int]:
    actions = deltalake.DeltaTable(folder).get_add_actions()
    return dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))


@pytest.mark.parametrize("recipe", LAYOUTS.values(), ids=LAYOUTS)
def test_deltalake_and_lazydelta_find_the_same_files(recipe: dict[str, Any], tmp_path: Path) -> None:
    made = _made(tmp_path, **recipe)
    ours = {file.path: file.size for file in DeltaTable(tmp_path, options={"checksum": "error"}).files()}
    assert ours == _deltalake_files(tmp_path)
    assert (len(ours), sum(ours.values())) == (made.num_files, made.size_bytes)


@pytest.mark.parametrize("recipe", LAYOUTS.values(), ids=LAYOUTS)
def test_the_arguments_say_how_many_files_there_are(recipe: dict[str, Any], tmp_path: Path) -> None:
    made = _made(tmp_path, **recipe)
    tail, removes = recipe.get("tail", 0), recipe.get("removes", 0)
    at_least = FILES + tail * recipe.get("adds_per_commit", 10) - removes
    if recipe.get("deletion_vectors") and removes:
        # Some of the removed files came back with a new deletion vector.
        assert at_least < made.num_files < at_least + removes
    else:
        assert made.num_files == at_least


def test_partition_values_agree_with_the_paths(tmp_path: Path) -> None:
    made = _made(tmp_path, hours=30, tail=1)
    hours: set[str] = set()
    for file in DeltaTable(tmp_path).files():
        (hour,) = file.partition_values.values()
        assert file.path.startswith(f"_event_hour={hour}/part-")
        hours.add(str(hour))
    assert (min(hours), max(hours), len(hours)) == (made.first_hour, made.last_hour, 30)


def test_files_in_the_order_of_time_follow_each_other(tmp_path: Path) -> None:
    _made(tmp_path, order="time")
    paths = [file.path.partition("/")[0] for file in DeltaTable(tmp_path).files()]
    assert paths == sorted(paths)


def test_the_same_seed_makes_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    recipe: dict[str, Any] = {**TAIL, "deletion_vectors": 0.1, "checkpoint": "v2"}

    def bytes_of(name: str, seed: int) -> dict[str, bytes]:
        _made(tmp_path / name, seed=seed, **recipe)
        log = tmp_path / name / "_delta_log"
        return {str(file.relative_to(log)): file.read_bytes() for file in log.rglob("*") if file.is_file()}

    first = bytes_of("first", 1)
    assert first == bytes_of("again", 1)
    other = bytes_of("other", 2)
    assert not {
        name for name in first.keys() & other.keys() if name.endswith(".parquet") and first[name] == other[name]
    }


def test_statistics_as_text_and_as_structs_say_the_same(tmp_path: Path) -> None:
    _made(tmp_path, stats="both", deletion_vectors=0.3)
    (checkpoint,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    adds = [row for row in pq.read_table(checkpoint, columns=["add"])["add"].to_pylist() if row]
    assert len(adds) == FILES
    for add in adds:
        text, parsed = json.loads(add["stats"]), add["stats_parsed"]
        assert text["numRecords"] == parsed["numRecords"]
        assert text["nullCount"] == parsed["nullCount"]
        assert text.get("tightBounds", True) == parsed["tightBounds"] == (add["deletionVector"] is None)
        for side in ("minValues", "maxValues"):
            assert {name: _logged(value) for name, value in parsed[side].items()} == text[side]
        for name, low in parsed["minValues"].items():
            assert low <= parsed["maxValues"][name]


def _logged(value: object) -> object:
    """Return a native statistic the way writers put it into JSON."""
    if hasattr(value, "hour"):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"  # type: ignore[attr-defined]
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return float(value) if hasattr(value, "as_tuple") else value  # type: ignore[arg-type]


def test_statistics_of_eight_columns_take_the_space_they_take_in_real_tables(tmp_path: Path) -> None:
    _made(tmp_path)
    (checkpoint,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    stats = pc.struct_field(pq.read_table(checkpoint, columns=["add"])["add"], "stats")
    assert 450 < pc.mean(pc.binary_length(stats)).as_py() < 600


@pytest.mark.parametrize(("size", "groups"), [(None, [2_002]), (600, [600, 600, 600, 202]), (5_000, [2_002])])
def test_row_groups_have_the_size_asked_for(size: int | None, groups: list[int], tmp_path: Path) -> None:
    _made(tmp_path, row_group_size=size)
    (checkpoint,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    metadata = pq.read_metadata(checkpoint)
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == groups


def test_a_table_of_several_slices_is_whole(tmp_path: Path) -> None:
    """Slices are an internal matter: parts and row groups may end anywhere in them."""
    count = 150_000
    make_table(tmp_path, files=count, checkpoint="multipart", parts=3, row_group_size=20_000, removes=1_000, tail=2)
    table = DeltaTable(tmp_path)
    paths = [path for batch in table.files().batches() for path in batch["path"].to_pylist()]
    assert len(paths) == len(set(paths)) == count + 20 - 1_000


def test_a_table_can_be_made_on_an_object_store() -> None:
    made = make_table("memory://make-table/remote", files=FILES, checkpoint="v2", checksum=True, **TAIL)
    files = list(DeltaTable("memory://make-table/remote", options={"checksum": "error"}).files())
    assert len(files) == made.num_files


def test_progress_is_told_of_every_file_made(tmp_path: Path) -> None:
    told: list[int] = []
    make_table(tmp_path, files=FILES, tail=2, adds_per_commit=3, progress=told.append)
    assert sum(told) == FILES + 6


def test_a_place_that_has_a_table_is_refused(tmp_path: Path) -> None:
    _made(tmp_path)
    with pytest.raises(OptionError, match="There is already a table at"):
        _made(tmp_path)


def test_a_place_that_cannot_be_written_is_an_error_of_storage(tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("a file, not a folder")
    with pytest.raises(StorageError, match="occupied"):
        _made(tmp_path / "occupied")


@pytest.mark.parametrize(
    "wrong",
    [
        {"files": 0},
        {"checkpoint": "v3"},
        {"order": "none"},
        {"stats": "xml"},
        {"removes": 1},
        {"removes": 101, "tail": 1},
        {"deletion_vectors": 2},
        {"row_group_size": 0},
        {"checkpoint": "none", "adds_per_commit": 0},
        {"compression": "rar"},
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused_before_anything_is_written(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(OptionError):
        make_table(tmp_path / "table", **{"files": 100, **wrong})
    assert not (tmp_path / "table").exists()
