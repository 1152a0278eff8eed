"""What the log refers to within the retention: active files, files removed since, and their deletion vectors.

Read from the checkpoint and the commits themselves and not from a sidecar, and compared with the version's checksum
where there is one: what is overlooked here is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import typed_scalar
from lazydelta.handle import TableHandle
from lazydelta.log.actions import DeletionVector, LogLine, Remove
from lazydelta.log.checkpoint.checkpoint_columns import corrupt_if_unreadable, has_column, read_batches
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader
from lazydelta.log.commits import read_actions
from lazydelta.log.names import LogFile
from lazydelta.log.reverse_commits import ReverseCommitReader
from lazydelta.log.segment import list_commits
from lazydelta.log.snapshot import Snapshot
from lazydelta.maintenance.vacuum.kept_files import KeptFiles
from lazydelta.scan.request import ScanRequest, ScanStrategy

__all__ = ["keep_active", "keep_committed", "keep_removed"]


def keep_active(handle: TableHandle, snapshot: Snapshot, kept: KeptFiles) -> int:
    """Keep the files of a version, and return how many there are; a checksum that says otherwise is an error."""
    options = msgspec.structs.replace(handle.options, sidecar_enabled=False, checksum="error")
    exact = msgspec.structs.replace(handle, options=options)
    count = 0
    for batch in exact.scan(snapshot, ScanRequest(strategy=ScanStrategy.FORWARD)).batches():
        kept.keep(batch.path, batch.deletion_vector)
        count += len(batch)
    return count


def keep_removed(snapshot: Snapshot, cutoff: int, kept: KeptFiles, *, beyond_checkpoint: bool) -> None:
    """Keep the files that were removed at ``cutoff`` (epoch milliseconds) or later.

    Checkpoints carry tombstones for as long as the table's property says. Who asks for a longer retention says
    ``beyond_checkpoint``, and the older commits are read, as far as the log still has them.
    """
    for commit in snapshot.tail():
        for lines in commit.actions:
            _keep_young(lines, commit.file, cutoff, kept)
    checkpoint = snapshot.segment.checkpoint
    if checkpoint is None:
        return
    _keep_tombstones(CheckpointReader(snapshot.store, checkpoint), cutoff, kept)
    if beyond_checkpoint:
        older = [each for each in list_commits(snapshot.store, 0, checkpoint.version) if _is_young(each, cutoff)]
        for commit in ReverseCommitReader(snapshot.store, older):
            for lines in commit.actions:
                _keep_young(lines, commit.file, cutoff, kept)


def keep_committed(snapshot: Snapshot, kept: KeptFiles) -> None:
    """Keep whatever was added or removed by commits that came after the snapshot."""
    for commit in ReverseCommitReader(snapshot.store, list(list_commits(snapshot.store, snapshot.version + 1))):
        for lines in commit.actions:
            files = [action for line in lines if (action := line.add or line.remove) is not None]
            kept.keep_paths(each.path for each in files)
            kept.keep_vectors((each.deletion_vector, each.path) for each in files if each.deletion_vector is not None)
            kept.keep_paths(_change_files(lines))


def _change_files(lines: Iterable[LogLine]) -> Iterator[str]:
    for line in lines:
        path = None if line.cdc is None else line.cdc.get("path")
        if isinstance(path, str):
            yield path


def _is_young(file: LogFile, cutoff: int) -> bool:
    return file.info.last_modified >= cutoff


def _keep_young(lines: Iterable[LogLine], file: LogFile, cutoff: int, kept: KeptFiles) -> None:
    # A removal that does not say when it was is as young as its commit.
    def is_young(remove: Remove) -> bool:
        stamp = file.info.last_modified if remove.deletion_timestamp is None else remove.deletion_timestamp
        return stamp >= cutoff

    young = [line.remove for line in lines if line.remove is not None and is_young(line.remove)]
    kept.keep_paths(each.path for each in young)
    kept.keep_vectors((each.deletion_vector, each.path) for each in young if each.deletion_vector is not None)


def _keep_tombstones(reader: CheckpointReader, cutoff: int, kept: KeptFiles) -> None:
    for part in reader.parts():
        if part.is_json:
            for lines in read_actions(reader.store, part):
                _keep_young(lines, part, cutoff, kept)
            continue
        with reader.open(part) as parquet:
            if not has_column(parquet, "remove"):
                continue
            with corrupt_if_unreadable(part):
                stored = {each.name for each in parquet.schema_arrow.field("remove").type}
            columns = [f"remove.{name}" for name in ("path", "deletionTimestamp", "deletionVector") if name in stored]
            for batch in read_batches(parquet, part, columns, reader.batch_size):
                removes = batch.column("remove")
                with corrupt_if_unreadable(part):
                    young = _young(removes.filter(removes.is_valid()), cutoff)
                    kept.keep_paths(each["path"] for each in young)
                    kept.keep_vectors(_vectors(young))


def _young(removes: pa.StructArray, cutoff: int) -> list[dict[str, Any]]:
    """Return the tombstones that are not older; one without a time is as old as can be, as for every engine."""
    if removes.type.get_field_index("deletionTimestamp") < 0:
        return []
    deleted = pc.struct_field(removes, "deletionTimestamp").cast(pa.int64())
    # A comparison with null is null, and a filter drops it.
    found: list[dict[str, Any]] = removes.filter(
        pc.greater_equal(deleted, typed_scalar(cutoff, pa.int64()))
    ).to_pylist()
    return found


def _vectors(removes: Iterable[dict[str, Any]]) -> Iterator[tuple[DeletionVector, str]]:
    for each in removes:
        vector = each.get("deletionVector")
        # Some writers give every row a struct of nulls; only a storage type makes it a vector.
        if vector is not None and vector.get("storageType") is not None:
            known = {key: value for key, value in vector.items() if value is not None}
            yield msgspec.convert(known, DeletionVector), each["path"]
