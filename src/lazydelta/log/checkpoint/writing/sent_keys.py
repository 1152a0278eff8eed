"""The keys of a tail as they are sent to tasks: paths and deletion vectors, packed.

Not as hashes: those are seeded in each process, and mean nothing in another.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from lazydelta.log.file_batch import DELETION_VECTOR
from lazydelta.log.keys import Hashes
from lazydelta.log.remove_set import RemoveSet

__all__ = ["NotedKeys", "keys_of"]


class NotedKeys(RemoveSet):
    """A set of keys that also keeps them as they came, in ``sent``."""

    def __init__(self, memory_limit: int = 64 << 20) -> None:
        super().__init__(memory_limit)
        self.sent: list[bytes] = []

    def add(self, path: pa.Array, deletion_vector: pa.Array | None = None) -> Hashes:
        """Insert the keys of files, and note them."""
        if len(path):
            vectors = pa.nulls(len(path), DELETION_VECTOR) if deletion_vector is None else deletion_vector
            self.sent.append(_packed(pa.RecordBatch.from_arrays([path, vectors], names=["path", "vector"])))
        return super().add(path, deletion_vector)


def keys_of(sent: Iterable[bytes]) -> RemoveSet:
    """Return the set of keys that were noted elsewhere."""
    found = RemoveSet()
    for each in sent:
        with pa.ipc.open_stream(each) as reader:
            rows = reader.read_next_batch()
        found.add(rows.column(0), rows.column(1))
    return found


def _packed(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
