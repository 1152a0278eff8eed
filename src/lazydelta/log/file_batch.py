"""``FileBatch``: files of the table as Arrow columns, from wherever in the log they were read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import from_numpy, int64_array, string_array, typed_array
from lazydelta.log.actions import Add, DeletionVector

__all__ = [
    "DELETION_VECTOR",
    "EXTRA",
    "FILE_COLUMNS",
    "PARTITION_VALUES",
    "FileBatch",
    "deletion_vector_array",
    "partition_values_array",
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
    """Active files, one row each, as far as this scan has to know them.

    Partition values carry physical names and the strings of the log. Statistics come as the log has them: JSON
    text, or a struct with native types, or neither when nobody asked; ``load_stats`` then reads the JSON or struct
    of just these rows (see ``checkpoint``), so that listing files costs no statistics and asking for them still works.
    ``extra`` is a struct of what else an ``add`` may carry, for those who copy files from one log object to another.
    ``version`` is the one that added all of the files, ``versions`` has it for each where several did.
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
        """Return the bytes that the columns hold."""
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
        """Return a zero-copy part of the rows."""
        changes: dict[str, Any] = {
            name: column.slice(offset, length) for name in FILE_COLUMNS if (column := getattr(self, name)) is not None
        }
        if (load := self.load_stats) is not None:
            changes["load_stats"] = lambda: load().slice(offset, length)
        return msgspec.structs.replace(self, **changes)

    def reversed(self, memory_pool: pa.MemoryPool | None = None) -> FileBatch:
        """Return the rows from the last to the first, made by this allocator."""
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
        """Return the batch with its statistics, reading them where they were left out."""
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
            deletion_vector=deletion_vector_array(vectors) if any(vector is not None for vector in vectors) else None,
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
    if all(value is not None for value in values):
        return None
    bits = np.packbits([value is not None for value in values], bitorder="little")
    return pa.py_buffer(bits)


def partition_values_array(maps: Sequence[dict[str, str | None] | None]) -> pa.MapArray:
    """Build a column of maps without `pa.array`."""
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
