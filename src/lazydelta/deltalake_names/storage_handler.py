"""``DeltaStorageHandler``: a table's folder as a PyArrow file system, over lazydelta's store."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from typing import IO, Any, NoReturn

import pyarrow as pa
from pyarrow import fs as pafs

from lazydelta.errors import ObjectNotFoundError, UnsupportedOperationError
from lazydelta.protocol.delta_types import Schema
from lazydelta.sidecar.handle import snapshot_of
from lazydelta.storage import ObjectInfo, Store, open_store

__all__ = [
    "DeltaStorageHandler",
    "RawDeltaTable",
]


# ``table._table``: the parts of deltalake's internal table object that programs use most.


class RawDeltaTable:
    """A table with the interface of deltalake's native core."""

    def __init__(self, table: Any) -> None:
        self._table = table  # a DeltaTable, from an outer layer

    @property
    def schema(self) -> Schema:
        """The table's schema."""
        schema: Schema = self._table.schema()
        return schema

    @property
    def store(self) -> Store:
        """The store that the table is read from and written to."""
        store: Store = snapshot_of(self._table).store
        return store

    def table_uri(self) -> str:
        """Return the table's root."""
        return str(self._table.table_uri)

    def version(self) -> int:
        """Return the pinned version."""
        return int(self._table.version())

    def get_add_file_sizes(self) -> dict[str, int]:
        """Return the size of every active file by its logged path."""
        sizes: dict[str, int] = {}
        for batch in self._table.files().batches():
            sizes.update(zip(batch.column("path").to_pylist(), batch.column("size").to_pylist(), strict=True))
        return sizes


_CHUNK = 1 << 20
# Written data is buffered in memory up to this size, and in a temporary file beyond it.
_IN_MEMORY = 8 << 20
_LEAST_BUFFER = 5 << 20  # the smallest part of a multipart upload


class DeltaStorageHandler(pafs.FileSystemHandler):  # type: ignore[misc]
    """A handler for ``pyarrow.fs.PyFileSystem`` with paths relative to the table root.

    ``options`` are storage options; ``max_buffer_size`` in them is how many bytes of a file that is written stay in
    memory. ``known_sizes`` maps paths to file sizes, which are then not requested. A written
    file becomes visible, complete, when its stream is closed. Object stores have no folders: a folder exists while it
    has contents.
    """

    def __init__(
        self, table_uri: str, options: Mapping[str, str] | None = None, known_sizes: Mapping[str, int] | None = None
    ) -> None:
        given = dict(options or {})
        self._in_memory = int(given.pop("max_buffer_size", _IN_MEMORY))
        self._store = open_store(table_uri, given)
        self._known_sizes = dict(known_sizes or {})

    @classmethod
    def from_table(
        cls,
        table: Any,
        options: Mapping[str, str] | None = None,
        known_sizes: Mapping[str, int] | None = None,
    ) -> DeltaStorageHandler:
        """Return the file system of an open table; ``options`` replace the table's own storage options."""
        raw = table if isinstance(table, RawDeltaTable) else RawDeltaTable(table)
        return (
            cls(raw.table_uri(), options, known_sizes)
            if options
            else _handler_of(raw.store, dict(known_sizes or {}), _IN_MEMORY)
        )

    def __reduce__(self) -> Any:
        return (_handler_of, (self._store, self._known_sizes, self._in_memory))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeltaStorageHandler) and self._store.identity == other._store.identity

    def __ne__(self, other: object) -> bool:
        return not self == other  # PyArrow's base class only knows equality

    def __hash__(self) -> int:
        return hash(self._store.identity)

    def equals(self, other: object) -> bool:
        """Return whether another handler has the same location and settings."""
        return self == other

    def get_type_name(self) -> str:
        """Return PyArrow's name of the file system."""
        return "lazydelta"

    def normalize_path(self, path: str) -> str:
        """Return the path without leading and trailing slashes, like all returned paths: PyArrow compares them."""
        return _inside(path)

    # --- listing

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        """Return the type of each path: file, folder, or not found."""
        return [self._info(each) for each in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """Return the contents of a folder, including subfolders with ``recursive``."""
        base = _inside(selector.base_dir)
        files: list[ObjectInfo] = []
        folders: set[str] = set()
        walk = self._store.walk(_outside_of(base))
        for each in walk:
            files.append(each)
            folders.update(_folders(each.path))
        for folder, _ in walk.empty:
            folders.update((folder, *_folders(folder)))
        if base and base not in folders:
            if selector.allow_not_found:
                return []
            message = f"There is no folder {selector.base_dir!r} in {self._store.uri}"
            raise ObjectNotFoundError(message, path=base, hint="paths are relative to the table's root")
        found = [_file(each.path, each) for each in files if _lies_in(each.path, base, recursive=selector.recursive)]
        found += [_folder(each) for each in folders if _lies_in(each, base, recursive=selector.recursive)]
        return sorted(found, key=lambda info: str(info.path))

    def _info(self, path: str) -> pafs.FileInfo:
        inside = _inside(path)
        if not inside:
            return _folder(path)
        try:
            found = self._store.head(inside)
            # The log counts milliseconds; PyArrow's own local file system tells nanoseconds.
            is_local = self._store.uri.startswith("file:")
            time_ns = os.stat(self._store.place(inside)).st_mtime_ns if is_local else None  # noqa: PTH116
            return _file(path, found, time_ns)
        except ObjectNotFoundError:
            pass
        walk = self._store.walk(_outside_of(inside))
        there = any(True for _ in walk) or any(_lies_in(each, inside) or each == inside for each, _ in walk.empty)
        return _folder(path) if there else pafs.FileInfo(path, pafs.FileType.NotFound)

    # --- reading

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Open a file for random access."""
        inside = _inside(path)
        size = self._known_sizes.get(path)
        return self._store.open_input(inside, size=self._store.head(inside).size if size is None else size)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Open a file for sequential reading."""
        return self.open_input_file(path)

    # --- writing

    def open_output_stream(self, path: str, metadata: Mapping[str, str] | None = None) -> pa.NativeFile:  # noqa: ARG002
        """Open a file for writing, replacing an existing one; ``metadata`` is ignored."""
        if self._in_memory < _LEAST_BUFFER:
            message = f"You specified a `max_buffer_size` of {self._in_memory} bits less than {_LEAST_BUFFER} bits. "
            message += "Larger files are buffered in a temporary file"
            warnings.warn(message, UserWarning, stacklevel=2)
        return pa.PythonFile(_Output(self._store, _inside(path), self._in_memory), mode="w")

    def open_append_stream(self, path: str, metadata: Mapping[str, str] | None = None) -> NoReturn:  # noqa: ARG002
        """Refuse: objects can only be written whole."""
        message = f"{path!r} cannot be appended to: objects are written whole"
        raise UnsupportedOperationError(message, hint="write a new object")

    def create_dir(self, path: str, recursive: bool = True) -> None:  # noqa: FBT001, FBT002 - PyArrow's parameters
        """Do nothing: a folder exists as soon as it has contents."""

    def copy_file(self, src: str, dest: str) -> None:
        """Copy a file, replacing an existing one."""
        with self._store.stream(_inside(src)) as chunks:
            self._store.put_stream(_inside(dest), chunks)

    def move(self, src: str, dest: str) -> None:
        """Copy a file and delete the original; object stores have no rename."""
        self.copy_file(src, dest)
        self.delete_file(src)

    def delete_file(self, path: str) -> None:
        """Delete a file."""
        self._store.delete(_inside(path), missing_ok=False)

    def delete_dir(self, path: str) -> None:
        """Delete a folder and its contents; do nothing if it does not exist."""
        self.delete_dir_contents(path, missing_dir_ok=True)
        self._store.delete_empty_folder(_inside(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:  # noqa: FBT001, FBT002
        """Delete the contents of a folder."""
        base = _inside(path)
        if not base:
            self.delete_root_dir_contents()
        if not missing_dir_ok and self._info(path).type != pafs.FileType.Directory:
            raise ObjectNotFoundError(f"There is no folder {path!r} in {self._store.uri}", path=base)
        walk = self._store.walk(_outside_of(base))
        below = [each.path for each in walk if _lies_in(each.path, base)]
        folders = {folder for each in below for folder in _folders(each)} | {folder for folder, _ in walk.empty}
        for each in below:
            self._store.delete(each)
        for folder in sorted(folders, key=len, reverse=True):  # innermost first
            if _lies_in(folder, base):
                self._store.delete_empty_folder(folder)

    def delete_root_dir_contents(self) -> NoReturn:
        """Refuse: it would delete the table and its log."""
        message = f"Everything in {self._store.uri} would be deleted, including the table's log"
        raise UnsupportedOperationError(message, hint="delete folders or files inside it")


class _Output:
    """The output that PyArrow writes to; closing it writes the object in one piece."""

    def __init__(self, store: Store, path: str, in_memory: int) -> None:
        self._store = store
        self._path = path
        # A size of 0 would mean that all of it stays in memory.
        self._written: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=max(in_memory, 1))  # noqa: SIM115 - closed below
        self.closed = False

    def __del__(self) -> None:
        self._written.close()  # an output that was not closed is given up

    def write(self, data: bytes) -> int:
        return self._written.write(data)

    def tell(self) -> int:
        return self._written.tell()

    def flush(self) -> None:
        """Do nothing: partial contents are never visible."""

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        with self._written:
            self._written.seek(0)
            self._store.put_stream(self._path, self._chunks())

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def _chunks(self) -> Iterator[bytes]:
        while chunk := self._written.read(_CHUNK):
            yield chunk


def _handler_of(store: Store, known_sizes: dict[str, int], in_memory: int) -> DeltaStorageHandler:
    handler = DeltaStorageHandler.__new__(DeltaStorageHandler)
    handler._in_memory = in_memory  # noqa: SLF001 - as below
    handler._store = store  # noqa: SLF001 - constructed here
    handler._known_sizes = known_sizes  # noqa: SLF001
    return handler


def _inside(path: str) -> str:
    return path.strip("/")


def _lies_in(path: str, base: str, *, recursive: bool = True) -> bool:
    if base and not path.startswith(f"{base}/"):
        return False
    return recursive or "/" not in path[len(base) + 1 if base else 0 :]


def _outside_of(base: str) -> Any:
    """Return a filter for paths to skip: those neither below a folder nor on the way to it."""
    return lambda path: bool(base) and not (f"{path}/".startswith(f"{base}/") or f"{base}/".startswith(f"{path}/"))


def _folders(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _file(path: str, info: ObjectInfo, time_ns: int | None = None) -> pafs.FileInfo:
    time_ns = info.last_modified * 1_000_000 if time_ns is None else time_ns
    return pafs.FileInfo(path, pafs.FileType.File, size=info.size, mtime_ns=time_ns)


def _folder(path: str) -> pafs.FileInfo:
    return pafs.FileInfo(path, pafs.FileType.Directory)
