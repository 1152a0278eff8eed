"""The one documented Arrow schema in which changes of files leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lazydelta.arrays import from_numpy, int64_array, string_array, typed_array
from lazydelta.log.actions import LogLine
from lazydelta.log.file_batch import (
    DELETION_VECTOR,
    PARTITION_VALUES,
    deletion_vector_array,
    partition_values_array,
)

__all__ = ["CHANGES_SCHEMA", "is_change", "to_changes"]

CHANGES_SCHEMA = pa.schema(
    [
        pa.field("version", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("modification_time", pa.int64()),
        pa.field("partition_values", PARTITION_VALUES),
        pa.field("deletion_vector", DELETION_VECTOR),
        pa.field("data_change", pa.bool_()),
        pa.field("detail", pa.string()),
    ],
)


def is_change(line: LogLine) -> bool:
    """Tell whether an action adds or removes a file, or says what the table is."""
    return line.add is not None or line.remove is not None or line.describes_table()


def to_changes(lines: Sequence[LogLine], *, version: int, timestamp: int, logical: Mapping[str, str]) -> pa.RecordBatch:
    """Return actions of one version as a batch; ``logical`` has the names of partition columns by physical ones."""
    count = len(lines)
    files: list[Any] = [line.add if line.add is not None else line.remove for line in lines]
    vectors = [None if each is None else each.deletion_vector for each in files]
    columns = [
        from_numpy(np.full(count, version, np.int64)),
        from_numpy(np.full(count, timestamp, np.int64)),
        string_array([_action(line) for line in lines]),
        string_array([None if each is None else each.path for each in files]),
        int64_array([None if each is None else each.size for each in files]),
        int64_array([None if line.add is None else line.add.modification_time for line in lines]),
        partition_values_array([_named(None if each is None else each.partition_values, logical) for each in files]),
        deletion_vector_array(vectors),
        typed_array([None if each is None else each.data_change for each in files], pa.bool_()),
        string_array([_detail(line) for line in lines]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=CHANGES_SCHEMA)


def _action(line: LogLine) -> str:
    if line.add is not None:
        return "add"
    if line.remove is not None:
        return "remove"
    return "metaData" if line.has("meta_data") else "protocol"


def _detail(line: LogLine) -> str | None:
    """Return metadata and protocol as logged: whoever follows a table wants to compare them."""
    if line.add is not None or line.remove is not None:
        return None
    return bytes(line.meta_data if line.has("meta_data") else line.protocol).decode("utf-8", "surrogatepass")


def _named(values: Mapping[str, str | None] | None, logical: Mapping[str, str]) -> dict[str, str | None] | None:
    return None if values is None else {logical.get(name, name): value for name, value in values.items()}
