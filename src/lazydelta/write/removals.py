"""The active files of a snapshot as ``remove`` actions, streamed."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from lazydelta.handle import TableHandle
from lazydelta.log.actions import Add, DeletionVector, Remove
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.snapshot import Snapshot
from lazydelta.scan.request import ScanRequest, ScanStrategy
from lazydelta.write.selection import PartitionSelection

__all__ = ["removal_of", "removals"]


def removal_of(add: Add, timestamp: int, *, data_change: bool = True) -> Remove:
    """Return the action that removes a file, with all that later readers and checksums need of it."""
    return Remove(
        path=add.path,
        deletion_timestamp=timestamp,
        data_change=data_change,
        extended_file_metadata=True,
        partition_values=add.partition_values,
        size=add.size,
        tags=add.tags,
        deletion_vector=add.deletion_vector,
        base_row_id=add.base_row_id,
        default_row_commit_version=add.default_row_commit_version,
    )


def removals(
    handle: TableHandle, snapshot: Snapshot, timestamp: int, selection: PartitionSelection | None = None
) -> Iterator[list[Remove]]:
    """Yield removes of every active file, or of those in the selected partitions, batch by batch.

    They have all that later readers and checksums need. Statistics are not among it: Delta-Spark leaves them out too,
    but for a number of rows where it has counted them.
    """
    predicate = None if selection is None else selection.predicate
    request = ScanRequest(predicate=predicate, strategy=ScanStrategy.FORWARD, extra=True)
    for batch in handle.scan(snapshot, request).batches():
        if selection is not None:
            selection.matches(batch)  # what was let through for want of knowledge is an error there
        yield _removes(batch, timestamp)


def _removes(batch: FileBatch, timestamp: int) -> list[Remove]:
    nothing = [None] * len(batch)
    vectors = nothing if batch.deletion_vector is None else batch.deletion_vector.to_pylist()
    columns = zip(
        batch.path.to_pylist(),
        batch.size.to_pylist(),
        batch.partition_values.to_pylist(),
        vectors,
        nothing if batch.extra is None else batch.extra.field("tags").to_pylist(),
        strict=True,
    )
    return [
        Remove(
            path=path,
            deletion_timestamp=timestamp,
            extended_file_metadata=True,
            partition_values=dict(values or ()),
            size=size,
            tags=dict(tags) if tags else None,
            deletion_vector=None if vector is None else msgspec.convert(vector, DeletionVector),
        )
        for path, size, values, vector, tags in columns
    ]
