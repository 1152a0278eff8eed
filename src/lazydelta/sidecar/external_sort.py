"""``ExternalSort``: more rows than memory, sorted through buckets on disk.

Splitters are chosen from a sample of the order, every row goes to the bucket between its splitters, and buckets are
then sorted one after the other. Memory is one bucket and the rows waiting to be written to each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.sidecar.format import SidecarLayout
from lazydelta.sidecar.order import sortable

__all__ = ["ExternalSort"]

_FLUSH_ROWS = 4096


class ExternalSort:
    """Takes rows in any order with ``add``, gives them back sorted with ``sorted_tables``."""

    def __init__(self, layout: SidecarLayout, splitters: pa.BinaryArray, schema: pa.Schema) -> None:
        self._layout = layout
        self._splitters = splitters
        self._schema = schema
        self._waiting: list[list[pa.RecordBatch]] = [[] for _ in range(len(splitters) + 1)]
        self._rows = [0] * (len(splitters) + 1)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: dict[int, tuple[pa.OSFile, pa.RecordBatchFileWriter]] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        """Take some rows."""
        if len(self._splitters) == 0:
            self._waiting[0].append(rows)
            return
        buckets = pc.search_sorted(self._splitters, sortable(rows, self._layout), side="right")
        order = pc.sort_indices(buckets)
        numbers = np.asarray(buckets.take(order))
        grouped = rows.take(order)
        edges = np.flatnonzero(np.diff(numbers)) + 1
        starts, ends = [0, *edges.tolist()], [*edges.tolist(), len(numbers)]
        for start, end in zip(starts, ends, strict=True):
            bucket = int(numbers[start])
            self._waiting[bucket].append(grouped.slice(start, end - start))
            self._rows[bucket] += end - start
            if self._rows[bucket] >= _FLUSH_ROWS:
                self._flush(bucket)

    def sorted_tables(self) -> Iterator[pa.Table]:
        """Yield all rows, bucket by bucket, each sorted; the input ends here."""
        for bucket in range(len(self._waiting)):
            table = self._load(bucket)
            if table.num_rows:
                yield table.take(pc.sort_indices(sortable(table, self._layout)))

    def close(self) -> None:
        """Remove what lies on disk."""
        for file, writer in self._files.values():
            writer.close()
            file.close()
        self._files = {}
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _flush(self, bucket: int) -> None:
        if bucket not in self._files:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="lazydelta-sort-")
            file = pa.OSFile(self._path(bucket), "wb")
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._files[bucket] = (file, pa.ipc.new_file(file, self._schema, options=options))
        table = pa.Table.from_batches(self._waiting[bucket], schema=self._schema).combine_chunks()
        self._files[bucket][1].write_table(table)
        self._waiting[bucket], self._rows[bucket] = [], 0

    def _load(self, bucket: int) -> pa.Table:
        pieces = [pa.Table.from_batches(self._waiting[bucket], schema=self._schema)]
        self._waiting[bucket] = []
        if bucket in self._files:
            file, writer = self._files.pop(bucket)
            writer.close()
            file.close()
            path = self._path(bucket)
            with pa.OSFile(path) as source:
                pieces.append(pa.ipc.open_file(source).read_all())
            Path(path).unlink()
        return pa.concat_tables(pieces).combine_chunks()

    def _path(self, bucket: int) -> str:
        folder = "" if self._folder is None else self._folder.name
        return f"{folder}/{bucket}.arrow"
