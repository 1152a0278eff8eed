"""The active files as one table, in the columns of deltalake's ``get_add_actions``.

It holds every file with its statistics, so it is as large as the table has files; ``files()`` is the lazy way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lazydelta.errors import WriteError
from lazydelta.log.actions import Metadata
from lazydelta.log.properties import TableProperties
from lazydelta.stats import has_range, partition_ranges
from lazydelta.stats.collector import indexed_columns
from lazydelta.types.schema import Column, Primitive, TableSchema

__all__ = ["AddActions"]

_FIXED = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("modification_time", pa.int64(), nullable=False),
        pa.field("num_records", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class AddActions:
    """Which columns the table of a table's files has: those with statistics, and those it is partitioned by."""

    schema: TableSchema
    counted: tuple[Column, ...]

    @classmethod
    def of(cls, schema: TableSchema, metadata: Metadata) -> AddActions:
        """Choose the columns that the table's properties give statistics to."""
        try:
            properties = TableProperties.of(metadata)
        except WriteError:
            properties = TableProperties()  # what only writers need is no reason not to read
        paths = indexed_columns(schema.to_arrow(), properties, partition_columns=schema.partition_columns)
        leaves = (each for each in schema.leaves() if not each.is_partition)
        # A variant is a leaf to Delta and a struct to Arrow.
        chosen = tuple(each for each in leaves if any(path[: len(each.path)] == each.path for path in paths))
        return cls(schema, chosen)

    @property
    def stats_columns(self) -> list[str]:
        """Return the names under which a scan is asked for the statistics."""
        return [".".join(f"`{part}`" if "." in part else part for part in each.path) for each in self.counted]

    def table(self, batches: Iterable[pa.RecordBatch], *, flatten: bool) -> pa.Table:
        """Return the files of a scan that was asked for ``stats_columns``.

        With ``flatten`` each statistic is a column of its own (``min.a.b``); else they are nested as the columns are.
        """
        flat = [self._flat(each) for each in batches]
        schema = pa.schema([*_FIXED, *(field for _, _, field in self._statistics()), *self._partition_fields()])
        table = pa.Table.from_batches(flat, schema=schema)
        return table if flatten else self._nested(table)

    def _statistics(self) -> list[tuple[str, Column, pa.Field]]:
        counts = [("null_count", each, pa.int64()) for each in self.counted]
        ranged = [each for each in self.counted if _is_ranged(each)]
        bounds = [(kind, each, each.type.to_arrow()) for kind in ("min", "max") for each in ranged]
        return [(kind, each, pa.field(f"{kind}.{each.name}", type_)) for kind, each, type_ in [*counts, *bounds]]

    def _partition_fields(self) -> list[pa.Field]:
        return [pa.field(f"partition.{each.name}", each.type.to_arrow()) for each in self._partitions()]

    def _partitions(self) -> list[Column]:
        # A scan hands partition values out under logical names.
        named = (self.schema.column((name,)) for name in self.schema.partition_columns)
        return [Column(each.path, each.path, each.type, is_partition=True) for each in named]

    def _flat(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        partitions = self._partitions()
        known = partition_ranges(batch.column("partition_values"), partitions)
        values = [known.column(each) for each in partitions]
        fields = [field for _, _, field in self._statistics()]
        columns = [
            *(batch.column(name) for name in ("path", "size", "modification_time", "num_records")),
            *(batch.column(field.name) for field in fields),
            *(
                pa.nulls(batch.num_rows, each.type.to_arrow()) if value is None or value.min is None else value.min
                for each, value in zip(partitions, values, strict=True)
            ),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*_FIXED, *fields, *self._partition_fields()]))

    def _nested(self, table: pa.Table) -> pa.Table:
        table = table.combine_chunks()
        names, columns = list(_FIXED.names), [table.column(name) for name in _FIXED.names]
        for kind in ("null_count", "min", "max"):
            leaves = [(each.path, table.column(field.name)) for name, each, field in self._statistics() if name == kind]
            if leaves:
                names.append(kind)
                columns.append(_struct(leaves))
        if self.schema.partition_columns:
            leaves = [((each.name,), table.column(f"partition.{each.name}")) for each in self._partitions()]
            names.append("partition")
            columns.append(_struct(leaves))
        made = pa.table(columns, names=names)
        return made.cast(pa.schema([*_FIXED, *list(made.schema)[len(_FIXED) :]]))


def _is_ranged(column: Column) -> bool:
    return has_range(column) or column.type == Primitive("boolean")


def _struct(leaves: Sequence[tuple[tuple[str, ...], pa.ChunkedArray]]) -> pa.Array:
    """Return columns as one struct, nested by their paths."""
    groups: dict[str, list[tuple[tuple[str, ...], pa.ChunkedArray]]] = {}
    for path, values in leaves:
        groups.setdefault(path[0], []).append((path[1:], values))
    arrays = [_struct(inner) if inner[0][0] else _whole(inner[0][1]) for inner in groups.values()]
    return pa.StructArray.from_arrays(arrays, names=list(groups))


def _whole(values: pa.ChunkedArray) -> pa.Array:
    return values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks or [pa.nulls(0, values.type)])
