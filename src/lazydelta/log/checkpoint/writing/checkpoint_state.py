"""What a checkpoint of a version holds, streamed: active files, and the tombstones that VACUUM still needs.

The tail is read newest first, then the base. Every key met in the tail is recorded before an older action is looked at,
so the first action with a key is the one that counts. Memory grows with the keys of the tail and of the tombstones,
sixteen bytes each up to a limit, and not with the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import boolean_array, numpy_of, typed_scalar
from lazydelta.log.actions import Remove
from lazydelta.log.checkpoint.checkpoint_columns import corrupt_if_unreadable, has_column, read_batches
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader, StatsWanted
from lazydelta.log.checkpoint.writing.checkpoint_rows import REMOVE, CheckpointLayout, remove_array
from lazydelta.log.commits import CHUNK_SIZE, read_actions
from lazydelta.log.file_batch import DELETION_VECTOR, FileBatch
from lazydelta.log.reconcile import unmasked
from lazydelta.log.remove_set import RemoveSet
from lazydelta.log.reverse_commits import TailCommit
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.scan.timestamp_check import false_timestamps, without_bounds

__all__ = ["CheckpointState"]

_EVERYTHING = StatsWanted(extra=True)


@dataclass(slots=True)
class CheckpointState:
    """The reconciled actions of one version, as rows of its checkpoint.

    ``num_adds`` counts the files so far, and ``size_of_adds`` their bytes.

    Tombstones count while they are younger than ``removed_after`` and applications while they have been seen after
    ``seen_after`` (epoch milliseconds; None keeps all). An application that never said when it wrote is kept: to forget
    it would let its next replay write twice.
    """

    snapshot: Snapshot
    layout: CheckpointLayout
    removed_after: int
    seen_after: int | None = None
    batch_rows: int = 16_384
    key_memory: int = 64 << 20
    memory_budget: int = 256 << 20
    num_adds: int = field(default=0, init=False)
    size_of_adds: int = field(default=0, init=False)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows."""
        yield from self._table_rows()
        seen = RemoveSet(self.key_memory)
        try:
            for commit in self.snapshot.tail():
                yield from self._tail_rows(commit, seen)
            if self.snapshot.segment.checkpoint is not None:
                reader = CheckpointReader(
                    self.snapshot.store,
                    self.snapshot.segment.checkpoint,
                    batch_size=self.batch_rows,
                    memory_budget=self.memory_budget,
                    needs_stats=True,
                )
                wrong = false_timestamps(self.snapshot)
                for files in _base_files(reader):
                    yield from self._adds(unmasked(without_bounds(files, wrong), seen))
                for removes in _base_removes(reader):
                    yield from self._removes(removes, seen)
        finally:
            seen.close()

    def _table_rows(self) -> Iterator[pa.RecordBatch]:
        transactions = [
            txn
            for txn in self.snapshot.transactions()
            if self.seen_after is None or txn.last_updated is None or txn.last_updated > self.seen_after
        ]
        yield self.layout.actions("protocol", [self.snapshot.protocol])
        yield self.layout.actions("metaData", [self.snapshot.metadata])
        yield self.layout.actions("txn", transactions)
        yield self.layout.actions("domainMetadata", self.snapshot.domains())

    def _tail_rows(self, commit: TailCommit, seen: RemoveSet) -> Iterator[pa.RecordBatch]:
        """Yield what a commit adds, then what it removes: within a commit an add wins, wherever it stands."""
        is_small = 0 <= commit.file.info.size <= CHUNK_SIZE
        removes: list[Remove] = []
        for lines in commit.actions:
            adds = [line.add for line in lines if line.add is not None]
            if is_small:
                removes += [line.remove for line in lines if line.remove is not None]
            if adds:
                files = FileBatch.from_adds(adds, extra=True)
                yield from self._adds(files.filter(_fresh(files.path, files.deletion_vector, seen)))
        if is_small:
            yield from self._remove_actions(removes, seen)
            return
        # A commit that empties a large table is not held: its removes are read again once its adds are known.
        for lines in read_actions(self.snapshot.store, commit.file):
            yield from self._remove_actions([line.remove for line in lines if line.remove is not None], seen)

    def _adds(self, files: FileBatch) -> Iterator[pa.RecordBatch]:
        if len(files):
            self.num_adds += len(files)
            self.size_of_adds += int(numpy_of(files.size).sum())
            yield self.layout.adds(files)

    def _remove_actions(self, removes: Sequence[Remove], seen: RemoveSet) -> Iterator[pa.RecordBatch]:
        if removes:
            yield from self._removes(remove_array(removes), seen)

    def _removes(self, removes: pa.StructArray, seen: RemoveSet) -> Iterator[pa.RecordBatch]:
        # Recorded whether they are kept or not: an expired tombstone still hides what is older.
        fresh = _fresh(pc.struct_field(removes, "path"), pc.struct_field(removes, "deletionVector"), seen)
        deleted = pc.fill_null(pc.struct_field(removes, "deletionTimestamp"), typed_scalar(0, pa.int64()))
        young = pc.greater(deleted, typed_scalar(self.removed_after, pa.int64()))
        kept = removes.filter(pc.and_(fresh, young))
        if len(kept):
            yield self.layout.rows("remove", _without_data_change(kept))


def _fresh(path: pa.Array, vector: pa.Array | None, seen: RemoveSet) -> pa.BooleanArray:
    """Tell which keys are met for the first time, and record them all."""
    known = seen.find(path, vector)
    hashes = seen.add(path, vector)
    first: npt.NDArray[np.bool_] = np.zeros(len(path), np.bool_)
    _, indices = np.unique(np.ascontiguousarray(hashes.T).view("V16").ravel(), return_index=True)
    first[indices] = True
    return boolean_array(first & ~known)


def _without_data_change(removes: pa.StructArray) -> pa.StructArray:
    no = boolean_array(np.zeros(len(removes), np.bool_))
    children = [no if each.name == "dataChange" else pc.struct_field(removes, each.name) for each in REMOVE]
    return pa.StructArray.from_arrays(children, fields=list(REMOVE))


def _base_files(reader: CheckpointReader) -> Iterator[FileBatch]:
    """Yield the files of the previous checkpoint with all that their actions carry."""
    if not reader.checkpoint.files[0].is_json:
        yield from reader.files(_EVERYTHING)
        return
    for part in reader.parts():
        if part.is_json:
            for lines in read_actions(reader.store, part):
                yield FileBatch.from_adds([line.add for line in lines if line.add is not None], extra=True)
        else:
            yield from msgspec.structs.replace(reader, checkpoint=Checkpoint(part.version, (part,))).files(_EVERYTHING)


def _base_removes(reader: CheckpointReader) -> Iterator[pa.StructArray]:
    """Yield the tombstones of the previous checkpoint."""
    for part in reader.parts():
        if part.is_json:
            for lines in read_actions(reader.store, part):
                yield remove_array([line.remove for line in lines if line.remove is not None])
            continue
        with reader.open(part) as parquet:
            if not has_column(parquet, "remove"):
                continue
            with corrupt_if_unreadable(part):
                stored = {each.name for each in parquet.schema_arrow.field("remove").type}
            columns = [f"remove.{each.name}" for each in REMOVE if each.name in stored]
            for batch in read_batches(parquet, part, columns, reader.batch_size):
                removes = batch.column("remove")
                if removes.null_count < len(removes):
                    with corrupt_if_unreadable(part):
                        typed = _typed(removes.filter(removes.is_valid()))
                    yield typed


def _typed(removes: pa.StructArray) -> pa.StructArray:
    """Return tombstones of any writer as ours: fields that it left out are null, widths and names inside maps ours."""
    children = {each.name: _child(removes, each) for each in REMOVE}
    if children["path"].null_count:
        message = "a tombstone without a path"
        raise ValueError(message)
    # Some writers give every row a struct of nulls; only a storage type makes it a vector.
    vector = children["deletionVector"]
    inner = [_child(vector, each) for each in DELETION_VECTOR]
    mask = pc.struct_field(vector, "storageType").is_null()
    children["deletionVector"] = pa.StructArray.from_arrays(inner, fields=list(DELETION_VECTOR), mask=mask)
    return pa.StructArray.from_arrays(list(children.values()), fields=list(REMOVE))


def _child(parent: pa.StructArray, wanted: pa.Field) -> pa.Array:
    index = parent.type.get_field_index(wanted.name)
    if index < 0:
        return pa.nulls(len(parent), wanted.type)
    found = pc.struct_field(parent, [index])
    if found.type == wanted.type or pa.types.is_struct(wanted.type):
        return found
    return found.cast(wanted.type)
