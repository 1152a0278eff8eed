"""The one documented Arrow schema in which files leave a scan."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lazydelta.log.file_batch import DELETION_VECTOR, PARTITION_VALUES, FileBatch, string_array
from lazydelta.log.schema import TableSchema

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


def to_record_batch(batch: FileBatch, schema: TableSchema) -> pa.RecordBatch:
    """Return the files of a batch under the documented schema, partition values under logical names."""
    count = len(batch)
    vectors = batch.deletion_vector
    columns = [
        batch.path,
        batch.size,
        batch.modification_time,
        _logical_partitions(batch.partition_values, schema),
        pa.nulls(count, pa.int64()),
        pa.nulls(count, DELETION_VECTOR) if vectors is None else vectors,
        _constant(batch.version, count),
        pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(np.full(count, batch.tier, np.int8))]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FILES_SCHEMA)


def _constant(version: int | None, count: int) -> pa.Array:
    if version is None:
        return pa.nulls(count, pa.int64())
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(np.full(count, version, np.int64))])


def _logical_partitions(values: pa.MapArray, schema: TableSchema) -> pa.MapArray:
    if schema.column_mapping == "none" or not schema.partition_columns:
        return values
    logical = dict(zip(schema.physical_partition_columns, schema.partition_columns, strict=True))
    keys = string_array([logical.get(key, key) for key in values.keys.to_pylist()])
    return pa.MapArray.from_arrays(values.offsets, keys, values.items)
