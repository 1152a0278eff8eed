"""The files of a version in the order of their modification time and path, some at a time.

The log has them in no order, and a list of all of them is what nobody may hold. So each pass over the stream of files
keeps the first ones behind a point and drops the others: at most twice as many as are asked for, and one batch. A
window of 65,536 files serves many steps of a stream; a table of a million files takes 16 passes in all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import one_array, typed_scalar
from lazydelta.log.file_batch import DELETION_VECTOR, PARTITION_VALUES, FileBatch
from lazydelta.stream_source.stream_offset import FileKey

__all__ = ["WINDOW", "SnapshotWindow", "key_at", "next_files"]

WINDOW = 65_536

_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("modification_time", pa.int64()),
        pa.field("partition_values", PARTITION_VALUES),
        pa.field("deletion_vector", DELETION_VECTOR),
    ]
)
_ORDER = [("modification_time", "ascending"), ("path", "ascending")]


@dataclass(frozen=True, slots=True)
class SnapshotWindow:
    """Files in their order; ``passed`` is how many come before them, ``is_last`` whether none comes after them.

    ``most_held`` is how many files were held at once to find them.
    """

    files: FileBatch
    passed: int
    is_last: bool
    most_held: int


def next_files(batches: Iterable[FileBatch], after: FileKey | None, count: int) -> SnapshotWindow:
    """Return the first ``count`` files behind ``after`` of those that ``batches`` has."""
    held: list[pa.Table] = []
    rows = passed = most = dropped = 0
    bound: FileKey | None = None
    for batch in batches:
        found = _table(batch)
        if after is not None:
            behind = _is_behind(found, after)
            passed += found.num_rows - behind.true_count
            found = found.filter(behind)
        if bound is not None:
            beyond = _is_behind(found, bound)
            dropped += beyond.true_count
            found = found.filter(pc.invert(beyond))
        if not found.num_rows:
            continue
        held.append(found)
        rows += found.num_rows
        most = max(most, rows)
        if rows >= 2 * count:
            kept = _smallest(held, count)
            dropped += rows - kept.num_rows
            held, rows, bound = [kept], kept.num_rows, key_at(_batch(kept), kept.num_rows - 1)
    kept = _smallest(held, count)
    dropped += rows - kept.num_rows
    return SnapshotWindow(_batch(kept), passed, dropped == 0, most)


def key_at(files: FileBatch, index: int) -> FileKey:
    """Return what a file is ordered by."""
    return files.modification_time[index].as_py(), files.path[index].as_py()


def _table(batch: FileBatch) -> pa.Table:
    vectors = batch.deletion_vector
    columns = [
        batch.path,
        batch.size,
        batch.modification_time,
        batch.partition_values,
        pa.nulls(len(batch), DELETION_VECTOR) if vectors is None else vectors,
    ]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def _batch(table: pa.Table) -> FileBatch:
    path, size, time, values, vectors = (one_array(column) for column in table.columns)
    return FileBatch(path, size, time, values, vectors)


def _is_behind(table: pa.Table, key: FileKey) -> pa.Array:
    times, paths = one_array(table["modification_time"]), one_array(table["path"])
    moment, path = typed_scalar(key[0], pa.int64()), typed_scalar(key[1], pa.string())
    same = pc.and_(pc.equal(times, moment), pc.greater(paths, path))
    return pc.or_(pc.greater(times, moment), same)


def _smallest(held: list[pa.Table], count: int) -> pa.Table:
    if not held:
        return _SCHEMA.empty_table()
    table = pa.concat_tables(held)
    order = pc.sort_indices(table, sort_keys=_ORDER)
    return pc.take(table, order.slice(0, count)).combine_chunks()
