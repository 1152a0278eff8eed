"""``DataFile``: one file of the table as a Python object.

Batches are Arrow. An object is a view of one row, and a column is converted to Python values when it is first accessed
on an object of its batch. Statistics that the scan did not need are then read for the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.log.file_batch import DELETION_VECTOR, PARTITION_VALUES, FileBatch
from lazydelta.missing_names import OF_A_FILE, AnswersNames
from lazydelta.protocol.actions import DeletionVector
from lazydelta.protocol.schema import Column, TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import from_numpy, string_array
from lazydelta.stats import stats_ranges
from lazydelta.storage import Store

__all__ = ["FILES_SCHEMA", "DataFile", "StoredFile", "data_files", "files_schema", "to_record_batch"]


class _Rows:
    """A batch whose columns are converted to Python values on first use."""

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
    """A file as row readers need it: partition values by physical name, the deletion vector as logged.

    ``share`` is a share of its row groups, as number and count; None means all of them.
    """

    path: str
    size: int
    partition_values: Mapping[str, str | None]
    deletion_vector: DeletionVector | None = None
    share: tuple[int, int] | None = None


class DataFile(AnswersNames):
    """An active file of the table at the scanned version."""

    __slots__ = ("_index", "_rows")
    _INSTEAD = OF_A_FILE

    if not TYPE_CHECKING:

        def __getitem__(self, name: object) -> NoReturn:
            raise TypeError(f"a DataFile has no items; use file.{name}, or files().to_arrow() for columns")

    def __init__(self, rows: _Rows, index: int) -> None:
        self._rows = rows
        self._index = index

    @property
    def path(self) -> str:
        """The path exactly as logged: percent-encoded, relative to the table root or absolute."""
        return self._rows.path[self._index]

    @property
    def uri(self) -> str:
        """The path, resolved against the table root and decoded."""
        return self._rows.store.uri_of(self.path)

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        return self._rows.size[self._index]

    @property
    def modification_time(self) -> int:
        """The modification time of the file, in epoch milliseconds."""
        return self._rows.modification_time[self._index]

    @property
    def partition_values(self) -> dict[str, str | None]:
        """The partition values as logged, under logical column names."""
        return self._rows.partition_values[self._index]

    @property
    def num_records(self) -> int | None:
        """The number of rows, including deleted ones; None if the log does not have it."""
        count = (self.stats or {}).get("numRecords")
        return count if isinstance(count, int) else None

    @property
    def stats(self) -> dict[str, Any] | None:
        """The logged statistics, under physical column names; None if there are none or they do not parse."""
        return self._rows.stats[self._index]

    @property
    def deletion_vector(self) -> Mapping[str, Any] | None:
        """The descriptor of the deletion vector, with the field names of the log."""
        return self._rows.deletion_vector[self._index]

    @property
    def version(self) -> int | None:
        """The version that added the file; None if it comes from the checkpoint."""
        return self._rows.version[self._index]

    @property
    def tier(self) -> int:
        """The source of the file: 0 for the commits after the checkpoint, 3 for the checkpoint."""
        return self._rows.tier

    def to_read(self) -> StoredFile:
        """Return the logged names and values that a row reader needs."""
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
    """Return structs as Python values, without those that Python has no type for, such as years past 9999."""
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
    # Native statistics have nulls where JSON has no entry.
    if struct is None:
        return None
    return {
        key: _compact(value) if isinstance(value, dict) else value for key, value in struct.items() if value is not None
    }


# The documented Arrow schema of the files that a scan returns.


FILES_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modification_time", pa.int64(), nullable=False),
        pa.field("partition_values", PARTITION_VALUES),
        pa.field("num_records", pa.int64()),
        pa.field("deletion_vector", DELETION_VECTOR),
        pa.field("version", pa.int64()),
        pa.field("tier", pa.int8(), nullable=False),
    ],
)


def files_schema(reported: Sequence[Column] | None = None) -> pa.Schema:
    """Return the schema of the files of a scan that reports the statistics of these columns."""
    fields = list(FILES_SCHEMA)
    for column in reported or ():
        type_ = column.type.to_arrow()
        fields += [pa.field(f"min.{column.name}", type_), pa.field(f"max.{column.name}", type_)]
        fields.append(pa.field(f"null_count.{column.name}", pa.int64()))
    return pa.schema(fields)


def to_record_batch(
    batch: FileBatch, schema: TableSchema, reported: tuple[Column, ...] | None = None
) -> pa.RecordBatch:
    """Return the files of a batch in the documented schema, partition values under logical names.

    If ``reported`` is None, ``num_records`` is null. Otherwise it is filled, and each column in it adds ``min.``,
    ``max.`` and ``null_count.`` with its logical name.
    """
    count = len(batch)
    records: pa.Array | None = None
    extra: list[pa.Array] = []
    if reported is not None:
        ranges = stats_ranges(batch, reported)
        records = ranges.num_records
        for column in reported:
            known = ranges.column(column)
            type_ = column.type.to_arrow()
            extra += [
                _known(type_, None if known is None else known.min, count),
                _known(type_, None if known is None else known.max, count),
                _known(pa.int64(), None if known is None else known.null_count, count),
            ]
    elif batch.parsed_stats is not None and batch.parsed_stats.type.get_field_index("numRecords") >= 0:
        records = pc.struct_field(batch.parsed_stats, "numRecords")  # a sidecar stores it
    vectors = batch.deletion_vector
    columns: Sequence[pa.Array] = [
        batch.path,
        batch.size,
        batch.modification_time,
        _logical_partitions(batch.partition_values, schema),
        pa.nulls(count, pa.int64()) if records is None else records,
        pa.nulls(count, DELETION_VECTOR) if vectors is None else vectors,
        _constant(batch.version, count) if batch.versions is None else batch.versions,
        from_numpy(np.full(count, batch.tier, np.int8), pa.int8()),
    ]
    return pa.RecordBatch.from_arrays([*columns, *extra], schema=files_schema(reported) if extra else FILES_SCHEMA)


def _known(type_: pa.DataType, values: pa.Array | None, count: int) -> pa.Array:
    return pa.nulls(count, type_) if values is None else values


def _constant(version: int | None, count: int) -> pa.Array:
    if version is None:
        return pa.nulls(count, pa.int64())
    return from_numpy(np.full(count, version, np.int64))


def _logical_partitions(values: pa.MapArray, schema: TableSchema) -> pa.MapArray:
    if schema.column_mapping == "none" or not schema.partition_columns:
        return values
    logical = dict(zip(schema.physical_partition_columns, schema.partition_columns, strict=True))
    keys = string_array([logical.get(key, key) for key in values.keys.to_pylist()])
    return pa.MapArray.from_arrays(values.offsets, keys, values.items)
