"""Files to sidecar rows and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import from_numpy, nested, one_array, string_array
from lazydelta.log.file_batch import DELETION_VECTOR, PARTITION_VALUES, FileBatch
from lazydelta.sidecar.layout.sidecar_columns import (
    EXTRA_NAMES,
    STATS_NAMES,
    STATS_OF_COLUMNS,
    ColumnRole,
    SidecarColumn,
    SidecarLayout,
)
from lazydelta.stats import partition_ranges, stats_ranges
from lazydelta.types.schema import Column, TableSchema

__all__ = ["PlainPartitions", "from_rows", "has_plain_partitions", "partition_column", "to_rows", "vectors_of"]


def to_rows(batch: FileBatch, layout: SidecarLayout, schema: TableSchema) -> pa.RecordBatch:
    """Return the files of a batch (with statistics) as sidecar rows of a table with this schema."""
    target = layout.arrow_schema(schema)
    by_path = {column.physical_path: column for column in schema.leaves()}
    wanted = dict.fromkeys(each.path for each in layout.columns if each.role in STATS_OF_COLUMNS)
    stats = tuple(by_path[path] for path in wanted)
    partitions = tuple(
        partition_column(schema, each.path) for each in layout.columns if each.role == ColumnRole.PARTITION
    )
    ranges = stats_ranges(batch, stats)
    values = partition_ranges(batch.partition_values, partitions)
    count = len(batch)

    def source(column: SidecarColumn) -> pa.Array | None:
        match column.role:
            case ColumnRole.PATH | ColumnRole.SIZE | ColumnRole.MODIFICATION_TIME | ColumnRole.PARTITION_VALUES:
                return getattr(batch, column.role)
            case ColumnRole.PARTITION:
                found = values.columns.get(column.path)
                return None if found is None else found.min
            case ColumnRole.NUM_RECORDS | ColumnRole.TIGHT_BOUNDS:
                return getattr(ranges, column.role)
            case ColumnRole.MIN | ColumnRole.MAX | ColumnRole.NULL_COUNT:
                known = ranges.columns.get(column.path)
                return None if known is None else getattr(known, column.role)
            case ColumnRole.DV:
                return None if batch.deletion_vector is None else pc.struct_field(batch.deletion_vector, column.path[0])
            case role:
                return None if batch.extra is None else pc.struct_field(batch.extra, EXTRA_NAMES[role])

    arrays = []
    for column, field in zip(layout.columns, target, strict=True):
        array = source(column)
        arrays.append(pa.nulls(count, field.type) if array is None else array)
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def partition_column(schema: TableSchema, path: tuple[str, ...]) -> Column:
    """Return the partition column that is stored under this name."""
    return next(column for column in schema.leaves() if column.physical_path == path and column.is_partition)


def has_plain_partitions(rows: pa.Table, layout: SidecarLayout) -> bool:
    """Tell whether the map of partition values says no more than the partition column: one column of text, as logged.

    Then readers need not decode the map, which takes as long as the paths.
    """
    columns = [each for each in layout.columns if each.role == ColumnRole.PARTITION]
    if len(columns) != 1 or not pa.types.is_string(rows.schema.field(columns[0].name).type) or not rows.num_rows:
        return False
    values = one_array(rows.column(columns[0].name))
    maps = one_array(rows.column(layout.name_of(ColumnRole.PARTITION_VALUES)))
    offsets = maps.offsets
    starts = np.frombuffer(offsets.buffers()[1], np.int32, len(offsets), offsets.offset * 4)
    if maps.null_count or not (np.diff(starts) == 1).all():
        return False
    keys, items = (child.slice(int(starts[0]), len(maps)) for child in (maps.keys, maps.items))
    name = string_array([columns[0].path[0]])[0]
    return bool(pc.all(pc.equal(keys, name)).as_py()) and bool(items.equals(values))


class PlainPartitions:
    """Makes the maps that the values of the one partition column stand for (see ``has_plain_partitions``).

    All but the values is the same for all rows of a scan, and is made once.
    """

    def __init__(self) -> None:
        self._name = b""
        self._ends: pa.Array | None = None
        self._keys: pa.Array | None = None

    def maps(self, rows: pa.RecordBatch, column: SidecarColumn) -> pa.MapArray:
        """Return the map of each row."""
        count, name = rows.num_rows, column.path[0].encode()
        if self._ends is None or self._keys is None or count > len(self._keys) or name != self._name:
            ends = np.arange(count + 1, dtype=np.int32)
            buffers = [None, pa.py_buffer(ends * np.int32(len(name))), pa.py_buffer(name * count)]
            self._name, self._ends = name, from_numpy(ends, pa.int32())
            self._keys = pa.Array.from_buffers(pa.string(), count, buffers)
        keys, ends = self._keys.slice(0, count), self._ends.slice(0, count + 1)
        return pa.MapArray.from_arrays(ends, keys, rows.column(column.name), type=PARTITION_VALUES)


def from_rows(
    rows: pa.RecordBatch, layout: SidecarLayout, *, tier: int, plain: PlainPartitions | None = None
) -> FileBatch:
    """Return sidecar rows as files; statistics among the columns become native ones, of the names that are there.

    Rows without the map of partition values have plain ones (see ``has_plain_partitions``), and those without the kind
    of deletion vector have none.
    """
    present = set(rows.schema.names)
    columns = [each for each in layout.columns if each.name in present]

    def named(role: ColumnRole, path: tuple[str, ...] = ()) -> pa.Array:
        return rows.column(next(each.name for each in columns if each.role == role and each.path == path))

    partitions = [each for each in columns if each.role == ColumnRole.PARTITION]
    plain = plain or PlainPartitions()
    maps = layout.name_of(ColumnRole.PARTITION_VALUES) in present
    has_vectors = layout.name_of(ColumnRole.DV, ("storageType",)) in present
    return FileBatch(
        path=named(ColumnRole.PATH),
        size=named(ColumnRole.SIZE),
        modification_time=named(ColumnRole.MODIFICATION_TIME),
        partition_values=named(ColumnRole.PARTITION_VALUES) if maps else plain.maps(rows, partitions[0]),
        deletion_vector=vectors_of(rows, layout) if has_vectors else None,
        parsed_stats=_stats_struct(rows, columns),
        parsed_partitions=nested([(each.path, rows.column(each.name)) for each in partitions]) if partitions else None,
        tier=tier,
    )


def vectors_of(rows: pa.RecordBatch | pa.Table, layout: SidecarLayout) -> pa.StructArray | None:
    """Return the deletion vectors of rows as the log has them; None where there are none."""

    def named(name: str) -> pa.Array:
        return one_array(rows.column(layout.name_of(ColumnRole.DV, (name,))))

    kind = named("storageType")
    if kind.null_count == len(kind):
        return None
    children = [named(field.name) for field in DELETION_VECTOR]
    return pa.StructArray.from_arrays(children, fields=list(DELETION_VECTOR), mask=kind.is_null())


def _stats_struct(rows: pa.RecordBatch, columns: Sequence[SidecarColumn]) -> pa.StructArray:
    stats = [each for each in columns if each.role in STATS_NAMES]
    return nested([((STATS_NAMES[each.role], *each.path), rows.column(each.name)) for each in stats])
