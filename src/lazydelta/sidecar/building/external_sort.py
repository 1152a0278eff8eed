"""``ExternalSort``: more rows than memory, sorted through buckets on disk.

Splitters are chosen from a sample of the order, every row goes to the bucket between its splitters, and buckets are
then sorted one after the other. Memory is one bucket and the rows waiting to be written. Where these are too few for so
many buckets, the rows are first divided among fewer, each of which is then divided again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import from_numpy
from lazydelta.sidecar.building.spill import SpillFile
from lazydelta.sidecar.layout.order import places_among, sortable
from lazydelta.sidecar.layout.sidecar_columns import SidecarLayout

__all__ = ["ExternalSort"]

_PIECE_ROWS = 1024  # as many for each bucket make it worth while to write
# A piece has a few hundred bytes for each of its columns beside the values, however few rows are in it.
_LEAST_PIECE_ROWS = 16
_MOST_BUCKETS = 256


class ExternalSort:
    """Takes rows in any order with ``add``, gives them back sorted with ``sorted_tables``.

    Rows go to disk whenever enough of them wait for that to be worth while, or more than ``most_waiting``.
    """

    def __init__(
        self, layout: SidecarLayout, splitters: pa.BinaryArray, schema: pa.Schema, *, most_waiting: int
    ) -> None:
        self._layout = layout
        self._splitters = splitters
        self._schema = schema
        self._most_waiting = most_waiting
        fan_out = min(_MOST_BUCKETS, max(2, most_waiting // _LEAST_PIECE_ROWS))
        self._step = -(-(len(splitters) + 1) // fan_out)
        """As many buckets of the splitters are one of this sort's; if more than one, they are divided again."""
        self._edges = splitters.take(from_numpy(np.arange(self._step - 1, len(splitters), self._step)))
        self._places: list[list[int]] = [[] for _ in range(len(self._edges) + 1)]
        self._flush_rows = min(most_waiting, len(self._places) * _PIECE_ROWS)
        self._waiting: list[pa.RecordBatch] = []
        self._buckets: list[npt.NDArray[np.uint16]] = []
        self._rows = 0
        self._spilled: SpillFile | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Take some rows."""
        self._waiting.append(rows)
        if len(self._edges) == 0:
            return
        found = places_among(self._edges, sortable(rows, self._layout), side="right")
        self._buckets.append(found.astype(np.uint16))  # which sorts in one pass
        self._rows += rows.num_rows
        if self._rows >= self._flush_rows:
            self._flush()

    def sorted_tables(self) -> Iterator[pa.Table]:
        """Yield all rows, bucket by bucket, each sorted; the input ends here."""
        if len(self._edges) == 0:
            waiting, self._waiting = self._waiting, []
            yield from self._sorted(waiting)
            return
        self._flush()
        for bucket, places in enumerate(self._places):
            pieces = self._spilled.pieces(places) if self._spilled is not None else iter(())
            yield from self._sorted(list(pieces)) if self._step == 1 else self._divided(bucket, pieces)

    def close(self) -> None:
        """Remove what lies on disk."""
        if self._spilled is not None:
            self._spilled.close()
            self._spilled = None

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._spilled is None:
            self._spilled = SpillFile(self._schema)
        buckets = np.concatenate(self._buckets)
        rows = pa.concat_batches(self._waiting) if len(self._waiting) > 1 else self._waiting[0]
        self._waiting, self._buckets, self._rows = [], [], 0
        order = np.argsort(buckets, kind="stable")
        numbers = buckets[order]
        rows = rows.take(from_numpy(order))
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
            self._places[int(numbers[start])].append(self._spilled.add(rows.slice(start, end - start)))

    def _divided(self, bucket: int, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Sort a bucket that is too large for memory by the splitters inside of it."""
        first = bucket * self._step
        inside = self._splitters.slice(first, self._step - 1)
        sort = ExternalSort(self._layout, inside, self._schema, most_waiting=self._most_waiting)
        try:
            for piece in pieces:
                sort.add(piece)
            yield from sort.sorted_tables()
        finally:
            sort.close()

    def _sorted(self, pieces: list[pa.RecordBatch]) -> Iterator[pa.Table]:
        table = pa.Table.from_batches(pieces, schema=self._schema).combine_chunks()
        pieces.clear()  # or they would be there while the rows are used
        if table.num_rows:
            yield table.take(pc.sort_indices(sortable(table, self._layout)))
