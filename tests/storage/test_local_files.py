"""Local files: no write or delete goes through a link, only regular files are read, and commits need no hard links."""

from __future__ import annotations

import errno
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import lazydelta
from lazydelta.errors import LazyDeltaError, ObjectExistsError, StorageError
from lazydelta.maintenance.optimize import optimize
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, atomic_files, observe, open_store
from lazydelta.write.row_changes.statements import delete_rows
from tests.maintenance.old_tables import OldTable
from tests.maintenance.test_vacuum_safety import run
from tests.write.commits import append, files, new_table, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from lazydelta.storage import Store


# --- links


@pytest.fixture
def swapped(tmp_path: Path) -> tuple[Store, Path]:
    """Return a store whose folder ``p=a`` was replaced by a link to a folder outside."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.parquet").write_bytes(b"precious")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "p=a").symlink_to(outside)
    return open_store(tmp_path / "root"), outside


@pytest.mark.parametrize(
    "work",
    [
        lambda store: store.delete("p=a/x.parquet"),
        lambda store: store.put("p=a/x.parquet", b"bad"),
        lambda store: store.put("p=a/b/x.parquet", b"bad"),
        lambda store: store.put_if_absent("p=a/y.parquet", b"bad"),
        lambda store: store.put_stream("p=a/y.parquet", [b"bad"]),
        lambda store: store.put("p=a/x.parquet", b"bad", if_match=store.head("p=a/x.parquet").etag),
    ],
    ids=["delete", "put", "put below", "put if absent", "put stream", "put if match"],
)
def test_nothing_is_written_or_deleted_through_a_link(
    swapped: tuple[Store, Path], work: Callable[[Store], object]
) -> None:
    store, outside = swapped
    with pytest.raises(StorageError, match="is a symbolic link"):
        work(store)
    assert [(each.name, each.read_bytes()) for each in outside.iterdir()] == [("x.parquet", b"precious")]


def test_an_empty_folder_behind_a_link_stays(swapped: tuple[Store, Path]) -> None:
    store, outside = swapped
    (outside / "empty").mkdir()
    with pytest.raises(StorageError, match="is a symbolic link"):
        store.delete_empty_folder("p=a/empty")
    assert not store.delete_empty_folder("p=a")
    assert (outside / "empty").exists()


def test_vacuum_deletes_nothing_behind_a_link_that_replaces_a_folder_after_the_listing(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path / "table")
    folder, outside = table.table / "_event_hour=h", tmp_path / "outside"
    outside.mkdir()
    for name in ("gone", "lately", "orphan"):
        (outside / f"{name}.parquet").write_bytes(b"precious")

    def swap(request: Request) -> None:
        if request.verb == "DELETE" and not folder.is_symlink():
            folder.rename(tmp_path / "moved")
            folder.symlink_to(outside)

    with observe(swap):
        result = run(table.table)
    assert len(list(outside.iterdir())) == 3
    assert len(result.failed) == 3
    assert "symbolic link" in result.failed[0].error


def test_the_root_of_a_table_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "table").symlink_to(tmp_path / "real")
    store = new_table(tmp_path / "table")
    append(store, [1])
    assert rows(store) == [1]


def test_an_interrupt_on_the_way_into_a_folder_closes_no_file_of_another_thread(tmp_path: Path) -> None:
    """A number that is closed twice may be the file of another thread. Here no thread takes it, so closing it fails."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    code = atomic_files.opened_folder.__wrapped__.__code__  # type: ignore[attr-defined]
    lines = sorted({line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno})
    assert len(lines) > 5
    for chosen in lines:

        def trace(frame: FrameType, event: str, arg: object, chosen: int = chosen) -> Any:
            if frame.f_code is not code:
                return None
            if event == "line" and frame.f_lineno == chosen:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with suppress(KeyboardInterrupt), atomic_files.opened_folder(str(tmp_path), "a/b"):
                pass
        finally:
            sys.settrace(before)


def test_a_link_that_leads_to_itself_is_named(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").symlink_to(tmp_path / "_delta_log")
    with pytest.raises(StorageError, match=r"too many symbolic links") as caught:
        lazydelta.DeltaTable(tmp_path).version()
    assert "does not exist" not in str(caught.value)


def test_a_commit_that_is_a_link_to_itself_is_named(tmp_path: Path) -> None:
    store = new_table(tmp_path)
    append(store, [1])
    commit = tmp_path / "_delta_log" / f"{1:020}.json"
    commit.unlink()
    commit.symlink_to(commit)
    with pytest.raises(StorageError, match=r"00001.json leads through too many symbolic links"):
        lazydelta.DeltaTable(tmp_path).version()


# --- files that are none


def _fifo(place: Path) -> None:
    place.unlink(missing_ok=True)
    os.mkfifo(place)


def _bounded(work: Callable[[], object]) -> object:
    """Do something that must not wait for ever; the thread is left behind if it does."""
    done: list[object] = []

    def kept() -> None:
        try:
            done.append(work())
        except LazyDeltaError as error:
            done.append(error)

    thread = threading.Thread(target=kept, daemon=True)
    thread.start()
    thread.join(60)
    assert done, "it waits for a FIFO"
    return done[0]


@pytest.mark.parametrize(
    "work",
    [
        lambda store: lazydelta.DeltaTable(store.uri).to_pyarrow_table(),
        lambda store: lazydelta.DeltaTable(store.uri).to_pyarrow_dataset().to_table(),
        lambda store: optimize(TableHandle.of(store)),
        lambda store: delete_rows(TableHandle.of(store), "id = 1"),
        lambda store: store.get("p=a/fifo"),
        lambda store: store.head("p=a/fifo"),
        lambda store: next(store.stream("p=a/fifo")),
        lambda store: store.open_input("p=a/fifo", size=10),
        lambda store: store.open_direct("p=a/fifo", start=0, length=4),
    ],
    ids=["read", "dataset", "optimize", "delete", "get", "head", "stream", "input", "direct"],
)
def test_a_fifo_in_place_of_a_data_file_is_refused(tmp_path: Path, work: Callable[[Store], object]) -> None:
    store = new_table(tmp_path)
    for number in range(2):
        append(store, [number])
    for file in files(store):
        _fifo(tmp_path / file.path)
    _fifo(tmp_path / "p=a/fifo")
    failure = _bounded(lambda: work(store))
    assert isinstance(failure, LazyDeltaError)
    assert "is a FIFO and not a regular file" in str(failure)


@pytest.mark.parametrize("name", ["_last_checkpoint", f"{1:020}.json", f"{1:020}.crc", "_sidecars/v1.manifest.json"])
def test_a_fifo_in_the_log_hangs_nobody(tmp_path: Path, name: str) -> None:
    store = new_table(tmp_path)
    append(store, [1])
    (tmp_path / "_delta_log" / "_sidecars").mkdir()
    _fifo(tmp_path / "_delta_log" / name)
    found = _bounded(lambda: len(lazydelta.DeltaTable(tmp_path).files().collect()))
    assert found in {0, 1} or isinstance(found, LazyDeltaError)


def test_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(StorageError, match="is a device and not a regular file"):
        open_store(tmp_path).get("zero", length=4)


# --- file systems without hard links


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse hard links as FUSE and some network mounts do."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("no_links")
def test_without_hard_links_one_of_many_writers_wins(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    def put(number: int) -> int | None:
        try:
            store.put_if_absent("_delta_log/x.json", str(number).encode())
        except ObjectExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        (winner,) = [each for each in pool.map(put, range(20)) if each is not None]
    assert store.get("_delta_log/x.json") == str(winner).encode()
    assert len(list((tmp_path / "_delta_log").iterdir())) == 1


@pytest.mark.usefixtures("no_links")
def test_without_hard_links_a_table_is_written(tmp_path: Path) -> None:
    store = new_table(tmp_path)
    append(store, [1])
    append(store, [2])
    assert rows(store) == [1, 2]


@pytest.mark.usefixtures("no_links")
def test_without_any_atomic_put_the_message_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_files, "_RENAME", None)
    with pytest.raises(StorageError, match=r"neither hard links nor renames .* another disk") as caught:
        open_store(tmp_path).put_if_absent("x.json", b"{}")
    assert "owner" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
