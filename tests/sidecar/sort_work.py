"""Rows of many columns sorted on disk, in a process of their own that is measured."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lazydelta.sidecar.building.build import ExternalSort
from lazydelta.sidecar.format.columns import ColumnRole, SidecarColumn, SidecarLayout

__all__ = ["WAITING", "layout_of", "rows_of", "sort_rows", "splitters_of"]

WAITING = 170
"""As many rows of 1,800 columns are a tenth of 24 MB: what a build holds for each of ten uses of its budget."""
_BATCH = 40


def layout_of(columns: int) -> SidecarLayout:
    """Return a layout of paths and so many minima, sorted by path."""
    minima = [SidecarColumn(f"min.{number}", ColumnRole.MIN, (str(number),)) for number in range(columns)]
    return SidecarLayout((SidecarColumn("path", ColumnRole.PATH), *minima), ())


def rows_of(numbers: list[int], columns: int) -> pa.RecordBatch:
    """Return rows of these numbers, whose columns count on from them."""
    values = np.array(numbers, np.int64)
    arrays = [
        pa.array([f"{number:08}" for number in numbers], pa.string()),
        *(pa.array(values + each) for each in range(columns)),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=["path", *(f"min.{each}" for each in range(columns))])


def splitters_of(rows: int, buckets: int) -> pa.BinaryArray:
    """Return the keys between buckets of the same size."""
    return pa.array([f"{number * rows // buckets:08}".encode() for number in range(1, buckets)], pa.binary())


def sort_rows(buckets: int, columns: int) -> int:
    """Sort as many rows as fill these buckets; return how many came back in order."""
    total = buckets * WAITING
    order = np.random.default_rng(1).permutation(total)
    schema = rows_of([0], columns).schema
    sort = ExternalSort(layout_of(columns), splitters_of(total, buckets), schema, most_waiting=WAITING)
    for start in range(0, total, _BATCH):
        sort.add(rows_of(order[start : start + _BATCH].tolist(), columns))
    expected = 0
    for table in sort.sorted_tables():
        found = table.column("min.0").to_numpy()
        if not np.array_equal(found, np.arange(expected, expected + len(found))):
            raise AssertionError(f"rows behind {expected} are out of order")
        expected += len(found)
    sort.close()
    return expected
