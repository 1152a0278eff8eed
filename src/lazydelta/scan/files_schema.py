"""The one documented Arrow schema in which files leave a scan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import from_numpy, string_array
from lazydelta.log.file_batch import DELETION_VECTOR, PARTITION_VALUES, FileBatch
from lazydelta.stats import stats_ranges
from lazydelta.types.schema import Column, TableSchema

__all__ = ["FILES_SCHEMA", "to_record_batch"]

FILES_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modification_time", pa.int64(), nullable=False),
        pa.field("partition_values", PARTITION_VALUES),
        pa.field("num_records", pa.int64()),
        pa.field("deletion_vector", DELETION_VECTOR),
        pa.field("version", pa.int64()),
        pa.field("tier", pa.int8(), nullable=False),
    ],
)


def to_record_batch(
    batch: FileBatch, schema: TableSchema, reported: tuple[Column, ...] | None = None
) -> pa.RecordBatch:
    """Return the files of a batch under the documented schema, partition values under logical names.

    ``reported`` None leaves ``num_records`` null; otherwise it is filled, and each column named adds ``min.``, ``max.``
    and ``null_count.`` with its logical name.
    """
    count = len(batch)
    records: pa.Array | None = None
    extra: list[tuple[pa.Field, pa.Array]] = []
    if reported is not None:
        ranges = stats_ranges(batch, reported)
        records = ranges.num_records
        for column in reported:
            known = ranges.column(column)
            type_ = column.type.to_arrow()
            extra += [
                _field(f"min.{column.name}", type_, None if known is None else known.min, count),
                _field(f"max.{column.name}", type_, None if known is None else known.max, count),
                _field(f"null_count.{column.name}", pa.int64(), None if known is None else known.null_count, count),
            ]
    elif batch.parsed_stats is not None and batch.parsed_stats.type.get_field_index("numRecords") >= 0:
        records = pc.struct_field(batch.parsed_stats, "numRecords")  # a sidecar has it at hand
    vectors = batch.deletion_vector
    columns: Sequence[pa.Array] = [
        batch.path,
        batch.size,
        batch.modification_time,
        _logical_partitions(batch.partition_values, schema),
        pa.nulls(count, pa.int64()) if records is None else records,
        pa.nulls(count, DELETION_VECTOR) if vectors is None else vectors,
        _constant(batch.version, count) if batch.versions is None else batch.versions,
        from_numpy(np.full(count, batch.tier, np.int8), pa.int8()),
    ]
    if not extra:
        return pa.RecordBatch.from_arrays(columns, schema=FILES_SCHEMA)
    fields = [*FILES_SCHEMA, *(field for field, _ in extra)]
    return pa.RecordBatch.from_arrays([*columns, *(array for _, array in extra)], schema=pa.schema(fields))


def _field(name: str, type_: pa.DataType, values: pa.Array | None, count: int) -> tuple[pa.Field, pa.Array]:
    return pa.field(name, type_), pa.nulls(count, type_) if values is None else values


def _constant(version: int | None, count: int) -> pa.Array:
    if version is None:
        return pa.nulls(count, pa.int64())
    return from_numpy(np.full(count, version, np.int64))


def _logical_partitions(values: pa.MapArray, schema: TableSchema) -> pa.MapArray:
    if schema.column_mapping == "none" or not schema.partition_columns:
        return values
    logical = dict(zip(schema.physical_partition_columns, schema.partition_columns, strict=True))
    keys = string_array([logical.get(key, key) for key in values.keys.to_pylist()])
    return pa.MapArray.from_arrays(values.offsets, keys, values.items)
