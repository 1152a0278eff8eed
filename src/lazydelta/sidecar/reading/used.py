"""What of a sidecar has left when it fails, and how the checkpoint goes on without sending it again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import takewhile

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import boolean_array, from_numpy
from lazydelta.log.file_batch import FileBatch
from lazydelta.sidecar.layout.order import sortable
from lazydelta.sidecar.layout.sidecar_columns import ColumnRole, SidecarLayout, SortColumn
from lazydelta.sidecar.layout.sidecar_rows import to_rows
from lazydelta.sidecar.reading.discovery import Sidecar
from lazydelta.types.schema import TableSchema

__all__ = ["Used", "sort_layout", "sort_rows", "without"]

_VECTOR = ("storageType", "pathOrInlineDv", "offset")
_END_COLUMNS = ((ColumnRole.PATH, ()), *((ColumnRole.DV, (name,)) for name in _VECTOR))


class Used(msgspec.Struct, frozen=True):
    """A row group that has left, by the rows at its ends: whose key is that of the first or of the last one.

    These are two, but where one path is there under several deletion vectors, which have the same key: at the ends of a
    row group the key does not tell whether a file was in it. What is made of them is made when the sidecar fails.
    """

    begin: pa.RecordBatch
    end: pa.RecordBatch

    @classmethod
    def of(cls, rows: pa.RecordBatch, layout: SidecarLayout) -> Used:
        """Keep the ends of a group, and nothing else of it."""
        paths = rows.column(layout.name_of(ColumnRole.PATH))
        last = rows.num_rows - 1
        first_path, last_path = paths[0].as_py(), paths[last].as_py()
        begin = sum(1 for _ in takewhile(lambda row: paths[row].as_py() == first_path, range(rows.num_rows)))
        end = sum(1 for _ in takewhile(lambda row: paths[row].as_py() == last_path, range(last, -1, -1)))
        names = dict.fromkeys([*layout.sort_names(), *(layout.name_of(*each) for each in _END_COLUMNS)])
        kept = rows.select([name for name in names if name in rows.schema.names])
        # Copies: a slice would keep the whole row group.
        ends = np.concatenate([np.arange(begin), np.arange(rows.num_rows - end, rows.num_rows)])
        copied = pc.take(kept, from_numpy(ends.astype(np.int64)))
        return cls(copied.slice(0, begin), copied.slice(begin))

    def keys(self, layout: SidecarLayout) -> tuple[bytes, bytes]:
        """Return the first and the last key."""
        ends = sortable(pa.Table.from_batches([self.begin.slice(0, 1), self.end.slice(0, 1)]), layout)
        return ends[0].as_py(), ends[1].as_py()

    def files(self, layout: SidecarLayout) -> Iterator[tuple[str, str]]:
        """Yield the files at the ends, by path and deletion vector."""
        names = [layout.name_of(*each) for each in _END_COLUMNS]
        for batch in (self.begin, self.end):
            there = batch.schema.names  # without the columns of deletion vectors where there are none
            path, *vector = (
                batch.column(name).to_pylist() if name in there else [None] * batch.num_rows for name in names
            )
            yield from ((each, _vector_text(*parts)) for each, *parts in zip(path, *vector, strict=True))


def _vector_text(kind: str | None, place: str | None, offset: int | None) -> str:
    return "" if kind is None else f"{kind}{place}@{offset}"


def without(
    batch: FileBatch, inside: Sequence[tuple[bytes, bytes]], gone: frozenset[tuple[str, str]], sidecar: Sidecar
) -> FileBatch:
    """Leave out the files of row groups that have left already: those between a group's first and last key.

    ``inside`` are these keys, in order, and ``gone`` the files that have one of them.
    """
    if not inside or not len(batch):
        return batch
    starts = [start for start, _ in inside]
    ends = {key for span in inside for key in span}
    keys = sortable(sort_rows(batch, sidecar.layout, sidecar.schema), sidecar.layout).to_pylist()
    keep = np.empty(len(keys), np.bool_)
    for row, key in enumerate(keys):
        if key in ends:
            vector = None if batch.deletion_vector is None else batch.deletion_vector[row].as_py()
            text = _vector_text(*(vector[name] for name in _VECTOR)) if vector else ""
            keep[row] = (batch.path[row].as_py(), text) not in gone
        else:
            place = bisect_right(starts, key) - 1
            keep[row] = place < 0 or key > inside[place][1]
    return batch.filter(boolean_array(keep))


def sort_layout(layout: SidecarLayout) -> SidecarLayout:
    """Return the columns that the order needs."""
    needed = tuple(
        each
        for each in layout.columns
        if each.role == ColumnRole.PATH or SortColumn(each.role, each.path) in layout.sort
    )
    return SidecarLayout(needed, layout.sort)


def sort_rows(batch: FileBatch, layout: SidecarLayout, schema: TableSchema) -> pa.RecordBatch:
    """Return what the order needs of the files, by the schema at the checkpoint, as the sidecar was sorted."""
    by_minimum = any(each.role == ColumnRole.MIN for each in layout.sort)
    return to_rows(batch.with_stats() if by_minimum else batch, sort_layout(layout), schema)
