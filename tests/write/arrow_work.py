"""Work for a process of its own, whose peak of memory is looked at."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

import lazydelta

ROWS = 50_000
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("a", pa.float64()), ("b", pa.int64()), ("c", pa.float64())])


def write(table: str, batches: int, hours: int, budget: int) -> int:
    """Write batches of 1.6 MB each, whose rows are spread over ``hours``, and return the number of files."""
    lazydelta.write_arrow(table, _batches(batches, hours), timestamp_column="at", memory_budget=budget)
    return sum(1 for _ in lazydelta.DeltaTable(table).files())


def _batches(count: int, hours: int) -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(0)
    for _ in range(count):
        at = random.integers(0, hours * 3_600_000_000, ROWS)
        columns = [at, random.normal(size=ROWS), random.integers(0, 1 << 60, ROWS), random.normal(size=ROWS)]
        arrays = [
            pa.Array.from_buffers(field.type, ROWS, [None, pa.py_buffer(values)])
            for field, values in zip(SCHEMA, columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
