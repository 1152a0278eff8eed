"""A table's folder as a file system of PyArrow, beside deltalake's and PyArrow's own."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from deltalake.fs import DeltaStorageHandler as TheirHandler
from pyarrow import fs as pafs

import lazydelta
from lazydelta.deltalake_names import storage_handler
from lazydelta.errors import ObjectNotFoundError, UnsupportedOperationError
from lazydelta.fs import DeltaStorageHandler

ROWS = pa.table({"a": range(10), "c": [1, 2] * 5})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    deltalake.write_deltalake(tmp_path / "t", ROWS, partition_by=["c"])
    return tmp_path / "t"


def shown(infos: list[Any]) -> set[tuple[str, Any, int | None]]:
    return {(each.path.strip("/"), each.type, each.size) for each in infos}


def test_a_folder_shows_what_deltalake_and_the_disk_show(root: Path) -> None:
    ours = pafs.PyFileSystem(DeltaStorageHandler(str(root)))
    disk = pafs.SubTreeFileSystem(str(root), pafs.LocalFileSystem())
    for base, recursive in [("/", True), ("", False), ("c=1", False), ("_delta_log", True)]:
        selector = pafs.FileSelector(base, recursive=recursive)
        assert shown(ours.get_file_info(selector)) == shown(disk.get_file_info(selector))
    names = ["_delta_log", "_delta_log/00000000000000000000.json", "c=", "nothing"]
    theirs = pafs.PyFileSystem(TheirHandler(str(root)))
    files = [each for each in names if each != "_delta_log"]
    assert shown(ours.get_file_info(files)) == shown(theirs.get_file_info(files))
    assert shown(ours.get_file_info(names)) == shown(disk.get_file_info(names))


def test_a_folder_that_is_not_there_is_an_error_unless_that_is_all_right(root: Path) -> None:
    ours = pafs.PyFileSystem(DeltaStorageHandler(str(root)))
    assert ours.get_file_info(pafs.FileSelector("nowhere", allow_not_found=True)) == []
    with pytest.raises(ObjectNotFoundError, match="nowhere"):
        ours.get_file_info(pafs.FileSelector("nowhere"))


@pytest.mark.filterwarnings("ignore:You specified a `max_buffer_size` of 100")
def test_what_is_written_is_read_again_by_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_handler, "_IN_MEMORY", 100)  # so that a temporary file is needed
    ours = pafs.PyFileSystem(DeltaStorageHandler(str(tmp_path)))
    parts = pads.partitioning(pa.schema([("c", pa.int64())]), flavor="hive")
    pads.write_dataset(ROWS, "/", partitioning=parts, format="parquet", filesystem=ours)
    for base, other in (("/", ours), ("", ours), ("", pafs.PyFileSystem(TheirHandler(str(tmp_path))))):
        found = pads.dataset(base, format="parquet", filesystem=other, partitioning=parts).to_table()
        assert found.select(["a", "c"]).sort_by("a") == ROWS


def test_a_file_is_there_when_its_stream_is_closed(tmp_path: Path) -> None:
    ours = pafs.PyFileSystem(DeltaStorageHandler(str(tmp_path)))
    stream = ours.open_output_stream("a/b.txt")
    stream.write(b"one")
    assert not (tmp_path / "a" / "b.txt").exists()
    stream.close()
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"one"


def test_a_known_size_is_not_asked_for(root: Path) -> None:
    name = next(root.glob("c=1/*.parquet")).relative_to(root).as_posix()
    assert pafs.PyFileSystem(DeltaStorageHandler(str(root), known_sizes={name: 77})).open_input_file(name).size() == 77


def test_a_folder_is_deleted_with_what_is_below_and_nothing_beside_it(tmp_path: Path) -> None:
    for name in ("foo/x", "foo/sub/y", "foo2/z", "top"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    ours = pafs.PyFileSystem(DeltaStorageHandler(str(tmp_path)))
    ours.delete_dir("foo")
    ours.delete_dir("nothing")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["foo2", "top"]
    ours.move("foo2/z", "moved")
    ours.copy_file("moved", "copied")
    ours.delete_file("top")
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_file()) == ["copied", "moved"]


def test_the_whole_table_is_not_deleted_and_nothing_is_appended_to(root: Path) -> None:
    ours = pafs.PyFileSystem(DeltaStorageHandler(str(root)))
    with pytest.raises(UnsupportedOperationError, match="including the table's log"):
        ours.delete_dir_contents("/", accept_root_dir=True)
    with pytest.raises(UnsupportedOperationError, match="written whole"):
        ours.open_append_stream("x")
    assert deltalake.DeltaTable(root).to_pyarrow_table().num_rows == ROWS.num_rows


def test_a_handler_is_made_from_a_table_and_travels(root: Path) -> None:
    table = lazydelta.DeltaTable(root)
    name = next(iter(table.files())).path
    handler = DeltaStorageHandler.from_table(table._table)
    again = pickle.loads(pickle.dumps(handler))  # noqa: S301
    assert again == handler
    assert again != DeltaStorageHandler(str(root / "c=1"))
    assert pq.read_table(name, filesystem=pafs.PyFileSystem(again), partitioning=None).num_rows == 5
