"""What goes into a task of a write, and what comes back from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from lazydelta.log.actions import Add
from lazydelta.write.table_rows import Moments

__all__ = ["TaskResult", "joined_batches", "packed", "unpacked"]

# Batches of Spark's are small.
_ROWS_AT_ONCE = 1 << 17
_BYTES_AT_ONCE = 32 << 20


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task has done: files that are in place, rows for others to write, rows that were rejected.

    ``run_again`` is said by a task of which an earlier attempt may have left files. A task of a batch that the table
    has already writes nothing. It counts the rows of each partition, so that another batch under the same number is
    noticed.
    """

    rows: int = 0
    adds: tuple[Add, ...] = ()
    small: tuple[tuple[tuple[str | None, ...], bytes], ...] = ()
    rejected: int = 0
    rejected_adds: tuple[Add, ...] = ()
    moments: Moments | None = None
    counted: Mapping[str, int] | None = None
    run_again: bool = False


def joined_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches: rows are sorted into their files some more at a time, which takes fewer steps a row."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and not batch.schema.equals(waiting[0].schema):  # files need not have the same columns
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def packed(rows: pa.RecordBatch) -> bytes:
    """Return rows as they travel."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpacked(rows: bytes) -> pa.RecordBatch:
    """Return rows that have travelled."""
    with pa.ipc.open_stream(rows) as reader:
        return reader.read_next_batch()
