"""``ExternalSort``: more rows than memory, sorted through buckets on disk.

Splitters are chosen from a sample of the order, every row goes to the bucket between its splitters, and buckets are
then sorted one after the other. Memory is one bucket and the rows waiting to be written to each.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import from_numpy
from lazydelta.sidecar.building.spill import SpillFile
from lazydelta.sidecar.layout.order import places_among, sortable
from lazydelta.sidecar.layout.sidecar_columns import SidecarLayout

__all__ = ["ExternalSort"]

_FLUSH_ROWS = 4096


class ExternalSort:
    """Takes rows in any order with ``add``, gives them back sorted with ``sorted_tables``.

    A bucket goes to disk whenever enough rows wait for it to make that worth while, and the fullest ones do as soon as
    more than ``most_waiting`` wait for all.
    """

    def __init__(
        self, layout: SidecarLayout, splitters: pa.BinaryArray, schema: pa.Schema, *, most_waiting: int
    ) -> None:
        self._layout = layout
        self._splitters = splitters
        self._schema = schema
        self._most_waiting = most_waiting
        self._total = 0
        self._waiting: list[list[pa.RecordBatch]] = [[] for _ in range(len(splitters) + 1)]
        self._rows = [0] * (len(splitters) + 1)
        self._spilled: dict[int, SpillFile] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        """Take some rows."""
        if len(self._splitters) == 0:
            self._waiting[0].append(rows)
            return
        buckets = places_among(self._splitters, sortable(rows, self._layout), side="right")
        order = np.argsort(buckets, kind="stable")
        numbers = buckets[order]
        grouped = rows.take(from_numpy(order))
        edges = np.flatnonzero(np.diff(numbers)) + 1
        starts, ends = [0, *edges.tolist()], [*edges.tolist(), len(numbers)]
        for start, end in zip(starts, ends, strict=True):
            bucket = int(numbers[start])
            self._waiting[bucket].append(grouped.slice(start, end - start))
            self._rows[bucket] += end - start
            self._total += end - start
            if self._rows[bucket] >= _FLUSH_ROWS:
                self._flush(bucket)
        while self._total > self._most_waiting:
            self._flush(max(range(len(self._rows)), key=self._rows.__getitem__))

    def sorted_tables(self) -> Iterator[pa.Table]:
        """Yield all rows, bucket by bucket, each sorted; the input ends here."""
        for bucket in range(len(self._waiting)):
            table = self._load(bucket)
            if table.num_rows:
                yield table.take(pc.sort_indices(sortable(table, self._layout)))

    def close(self) -> None:
        """Remove what lies on disk."""
        for file in self._spilled.values():
            file.close()
        self._spilled = {}

    def _flush(self, bucket: int) -> None:
        if bucket not in self._spilled:
            self._spilled[bucket] = SpillFile(self._schema)
        self._spilled[bucket].add(pa.Table.from_batches(self._waiting[bucket], schema=self._schema).combine_chunks())
        self._total -= self._rows[bucket]
        self._waiting[bucket], self._rows[bucket] = [], 0

    def _load(self, bucket: int) -> pa.Table:
        waiting, self._waiting[bucket] = self._waiting[bucket], []
        spilled = self._spilled.pop(bucket, None)
        if spilled is not None:
            waiting = [*spilled.batches(), *waiting]
        return pa.Table.from_batches(waiting, schema=self._schema).combine_chunks()
