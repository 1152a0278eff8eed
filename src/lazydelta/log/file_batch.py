"""``FileBatch``: files of the table as Arrow columns, independent of where in the log they were read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.protocol.actions import Add, DeletionVector
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import from_numpy, int64_array, string_array, typed_array

__all__ = [
    "DELETION_VECTOR",
    "EXTRA",
    "FILE_COLUMNS",
    "PARTITION_VALUES",
    "FileBatch",
    "StatsColumns",
    "deletion_vector_array",
    "partition_values_array",
    "with_deferred_stats",
]


DELETION_VECTOR = pa.struct(
    [
        pa.field("storageType", pa.string()),
        pa.field("pathOrInlineDv", pa.string()),
        pa.field("offset", pa.int32()),
        pa.field("sizeInBytes", pa.int32()),
        pa.field("cardinality", pa.int64()),
    ],
)
PARTITION_VALUES = pa.map_(pa.string(), pa.string())
EXTRA = pa.struct(
    [
        pa.field("tags", PARTITION_VALUES),
        pa.field("baseRowId", pa.int64()),
        pa.field("defaultRowCommitVersion", pa.int64()),
        pa.field("clusteringProvider", pa.string()),
    ],
)


class FileBatch(msgspec.Struct, frozen=True):
    """Active files, one row each, with the columns that the scan needs.

    Partition values have physical names and the strings of the log. Statistics have the form in the log: a JSON string,
    a struct with native types, or neither if they were not requested. In that case ``load_stats`` reads them for just
    these rows (see ``checkpoint``), so listing files reads no statistics and they remain available. ``extra`` is a
    struct of the other fields of an ``add``, for callers that copy files from one log object to another. ``version`` is
    the version that added all of the files; ``versions`` holds it per file if they differ.
    """

    path: pa.Array
    size: pa.Array
    modification_time: pa.Array
    partition_values: pa.Array
    deletion_vector: pa.Array | None = None
    json_stats: pa.Array | None = None
    parsed_stats: pa.Array | None = None
    parsed_partitions: pa.Array | None = None
    extra: pa.Array | None = None
    version: int | None = None
    versions: pa.Array | None = None
    tier: int = 0
    load_stats: Callable[[], FileBatch] | None = None

    def __len__(self) -> int:
        return len(self.path)

    @property
    def nbytes(self) -> int:
        """Return the total size of the columns in bytes."""
        return sum(column.nbytes for name in FILE_COLUMNS if (column := getattr(self, name)) is not None)

    def filter(self, keep: pa.Array) -> FileBatch:
        """Return the rows where ``keep`` is true."""
        changes: dict[str, Any] = {
            name: pc.filter(column, keep) for name in FILE_COLUMNS if (column := getattr(self, name)) is not None
        }
        if (load := self.load_stats) is not None:
            changes["load_stats"] = lambda: load().filter(keep)
        return msgspec.structs.replace(self, **changes)

    def slice(self, offset: int, length: int | None = None) -> FileBatch:
        """Return a zero-copy slice of the rows."""
        changes: dict[str, Any] = {
            name: column.slice(offset, length) for name in FILE_COLUMNS if (column := getattr(self, name)) is not None
        }
        if (load := self.load_stats) is not None:
            changes["load_stats"] = lambda: load().slice(offset, length)
        return msgspec.structs.replace(self, **changes)

    def reversed(self, memory_pool: pa.MemoryPool | None = None) -> FileBatch:
        """Return the rows in reverse order, allocated from this memory pool."""
        if len(self) <= 1:
            return self
        back = from_numpy(np.arange(len(self) - 1, -1, -1, dtype=np.int64))
        changes: dict[str, Any] = {
            name: pc.take(column, back, memory_pool)
            for name in FILE_COLUMNS
            if (column := getattr(self, name)) is not None
        }
        if (load := self.load_stats) is not None:
            changes["load_stats"] = lambda: load().reversed(memory_pool)
        return msgspec.structs.replace(self, **changes)

    def with_versions(self, versions: Sequence[int | None]) -> FileBatch:
        """Return the batch with the version that added each of its files."""
        return msgspec.structs.replace(self, versions=int64_array(versions))

    def with_stats(self) -> FileBatch:
        """Return the batch with its statistics, reading them if they were left out."""
        return self if self.load_stats is None else self.load_stats()

    @classmethod
    def from_adds(
        cls, adds: Sequence[Add], *, version: int | None = None, tier: int = 0, extra: bool = False
    ) -> FileBatch:
        """Build a batch from decoded actions."""
        vectors = [each.deletion_vector for each in adds]
        return cls(
            path=string_array([each.path for each in adds]),
            size=int64_array([each.size for each in adds]),
            modification_time=int64_array([each.modification_time for each in adds]),
            partition_values=partition_values_array([each.partition_values for each in adds]),
            deletion_vector=None if vectors.count(None) == len(vectors) else deletion_vector_array(vectors),
            json_stats=string_array([each.stats for each in adds]),
            extra=_extra_array(adds) if extra else None,
            version=version,
            tier=tier,
        )


FILE_COLUMNS = (
    "path",
    "size",
    "modification_time",
    "partition_values",
    "deletion_vector",
    "json_stats",
    "parsed_stats",
    "parsed_partitions",
    "extra",
    "versions",
)


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    if None not in values:
        return None
    bits = np.packbits([value is not None for value in values], bitorder="little")
    return pa.py_buffer(bits)


def partition_values_array(maps: Sequence[dict[str, str | None] | None]) -> pa.MapArray:
    """Build a column of maps without `pa.array`."""
    if maps.count(None) == len(maps):
        return pa.nulls(len(maps), PARTITION_VALUES)
    present = [each or {} for each in maps]
    offsets = np.zeros(len(maps) + 1, np.int32)
    np.cumsum([len(each) for each in present], out=offsets[1:])
    keys = string_array([key for each in present for key in each])
    values = string_array([value for each in present for value in each.values()])
    fields = [PARTITION_VALUES.key_field, PARTITION_VALUES.item_field]
    entries = pa.StructArray.from_arrays([keys, values], fields=fields)
    buffers = [_validity(maps), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(PARTITION_VALUES, len(maps), buffers, children=[entries])


def _extra_array(adds: Sequence[Add]) -> pa.StructArray:
    children = [
        partition_values_array([each.tags for each in adds]),
        int64_array([each.base_row_id for each in adds]),
        int64_array([each.default_row_commit_version for each in adds]),
        string_array([each.clustering_provider for each in adds]),
    ]
    return pa.StructArray.from_arrays(children, fields=list(EXTRA))


def deletion_vector_array(vectors: Sequence[DeletionVector | None]) -> pa.StructArray:
    """Build the column of deletion vectors without `pa.array`."""

    def pick(name: str) -> list[Any]:
        return [None if vector is None else getattr(vector, name) for vector in vectors]

    children = [
        string_array(pick("storage_type")),
        string_array(pick("path_or_inline_dv")),
        typed_array(pick("offset"), pa.int32()),
        typed_array(pick("size_in_bytes"), pa.int32()),
        int64_array(pick("cardinality")),
    ]
    return pa.Array.from_buffers(DELETION_VECTOR, len(vectors), [_validity(vectors)], children=children)


# Deferred statistics: read on demand for files that were listed without them.
#
# Every source of files works the same way: a reader that lists files without statistics provides a function that reads
# the statistics of just these rows. No other column can change.


StatsColumns = Mapping[str, pa.Array | None]
"""``json_stats`` and ``parsed_stats``, if present."""


def with_deferred_stats(files: FileBatch, read: Callable[[], StatsColumns]) -> FileBatch:
    """Return the files with deferred statistics; ``read`` returns them for the same rows in the same order."""

    def load() -> FileBatch:
        columns: dict[str, Any] = dict(read())
        return msgspec.structs.replace(files, **columns, load_stats=None)

    return msgspec.structs.replace(files, load_stats=load)
