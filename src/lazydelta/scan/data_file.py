"""``DataFile``: one file of the table, for the person who asked for objects.

Batches are Arrow; an object is a view of one row, and a column becomes Python values only when some object of its
batch is asked for it. Statistics that the scan did not need are read then, for the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.log.actions import DeletionVector
from lazydelta.log.file_batch import FileBatch
from lazydelta.storage import Store
from lazydelta.types.schema import TableSchema

__all__ = ["DataFile", "StoredFile", "data_files"]


class _Rows:
    """A batch, its columns turned into Python values on first use."""

    def __init__(self, batch: FileBatch, store: Store, schema: TableSchema) -> None:
        self._batch = batch
        self.store = store
        self.tier = batch.tier
        self.path: list[str] = batch.path.to_pylist()
        self._logical = (
            None
            if schema.column_mapping == "none"
            else dict(zip(schema.physical_partition_columns, schema.partition_columns, strict=True))
        )

    @cached_property
    def version(self) -> list[int | None]:
        known = self._batch.versions
        return [self._batch.version] * len(self.path) if known is None else known.to_pylist()

    @cached_property
    def size(self) -> list[int]:
        sizes: list[int] = self._batch.size.to_pylist()
        return sizes

    @cached_property
    def modification_time(self) -> list[int]:
        times: list[int] = self._batch.modification_time.to_pylist()
        return times

    @cached_property
    def physical_partition_values(self) -> list[dict[str, str | None]]:
        return [dict(each or ()) for each in self._batch.partition_values.to_pylist()]

    @cached_property
    def partition_values(self) -> list[dict[str, str | None]]:
        logical = self._logical
        if logical is None:
            return self.physical_partition_values
        return [
            {logical.get(key, key): value for key, value in each.items()} for each in self.physical_partition_values
        ]

    @cached_property
    def deletion_vector(self) -> list[dict[str, Any] | None]:
        column = self._batch.deletion_vector
        return [None] * len(self.path) if column is None else column.to_pylist()

    @cached_property
    def stats(self) -> list[dict[str, Any] | None]:
        batch = self._batch.with_stats()
        text = [None] * len(batch) if batch.json_stats is None else batch.json_stats.to_pylist()
        parsed = [None] * len(batch) if batch.parsed_stats is None else _structs(batch.parsed_stats)
        return [_from_json(each) or _compact(struct) for each, struct in zip(text, parsed, strict=True)]


class StoredFile(msgspec.Struct, frozen=True):
    """A file as its rows are read: partition values by physical name, the deletion vector as logged.

    ``share`` is which of so many shares of its row groups is meant, None all of them.
    """

    path: str
    size: int
    partition_values: Mapping[str, str | None]
    deletion_vector: DeletionVector | None = None
    share: tuple[int, int] | None = None


class DataFile:
    """An active file of the table at the scanned version."""

    __slots__ = ("_index", "_rows")

    def __init__(self, rows: _Rows, index: int) -> None:
        self._rows = rows
        self._index = index

    @property
    def path(self) -> str:
        """The path exactly as logged: percent-encoded, relative to the table's root or absolute."""
        return self._rows.path[self._index]

    @property
    def uri(self) -> str:
        """The path resolved against the table's root and decoded."""
        return self._rows.store.uri_of(self.path)

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        return self._rows.size[self._index]

    @property
    def modification_time(self) -> int:
        """When the file was written, in epoch milliseconds."""
        return self._rows.modification_time[self._index]

    @property
    def partition_values(self) -> dict[str, str | None]:
        """The partition values as logged, under the columns' logical names."""
        return self._rows.partition_values[self._index]

    @property
    def num_records(self) -> int | None:
        """How many rows the file holds, deleted ones included; None where the log does not say."""
        count = (self.stats or {}).get("numRecords")
        return count if isinstance(count, int) else None

    @property
    def stats(self) -> dict[str, Any] | None:
        """The logged statistics, under physical column names; None where there are none or they do not parse."""
        return self._rows.stats[self._index]

    @property
    def deletion_vector(self) -> Mapping[str, Any] | None:
        """The deletion vector's descriptor with the log's field names."""
        return self._rows.deletion_vector[self._index]

    @property
    def version(self) -> int | None:
        """The version that added the file, None where it came from the checkpoint."""
        return self._rows.version[self._index]

    @property
    def tier(self) -> int:
        """Where the file was found: 0 the commits after the checkpoint, 3 the checkpoint."""
        return self._rows.tier

    def to_read(self) -> StoredFile:
        """Return what a reader of rows needs: the log's own names and values."""
        vector = self.deletion_vector
        return StoredFile(
            path=self.path,
            size=self.size,
            partition_values=self._rows.physical_partition_values[self._index],
            deletion_vector=None if vector is None else msgspec.convert(_compact(dict(vector)), DeletionVector),
        )

    def __repr__(self) -> str:
        return f"DataFile(path={self.path!r}, size={self.size})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DataFile):
            return NotImplemented
        mine, theirs = self.deletion_vector, other.deletion_vector
        return (self.path, self.size, mine) == (other.path, other.size, theirs)

    def __hash__(self) -> int:
        return hash((self.path, self.size))


def data_files(batch: FileBatch, store: Store, schema: TableSchema) -> Iterator[DataFile]:
    """Yield the files of a batch as objects."""
    rows = _Rows(batch, store, schema)
    return (DataFile(rows, index) for index in range(len(batch)))


def _structs(values: pa.StructArray) -> list[Any]:
    """Return structs as Python values; those that Python has no type for, such as years past 9999, are left out."""
    try:
        found: list[Any] = values.to_pylist()
    except (OverflowError, ValueError):
        return [_python(each) for each in values]
    return found


def _python(value: pa.Scalar) -> Any:
    if isinstance(value, pa.StructScalar):
        return {name: _python(each) for name, each in value.items()} if value.is_valid else None
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return None


def _from_json(text: str | None) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        stats = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return stats if isinstance(stats, dict) else None


def _compact(struct: dict[str, Any] | None) -> dict[str, Any] | None:
    # Native statistics have a null where JSON has nothing.
    if struct is None:
        return None
    return {
        key: _compact(value) if isinstance(value, dict) else value for key, value in struct.items() if value is not None
    }
