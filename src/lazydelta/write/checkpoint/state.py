"""Contents of a version's checkpoint, streamed: active files, and the tombstones that VACUUM still needs.

The tail is read newest first, then the base. Every key in the tail is recorded before older actions are read, so the
first action with a key wins. Memory grows with the keys of the tail and the tombstones, sixteen bytes each up to a
limit, and not with the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.log.checkpoint.columns import corrupt_if_unreadable, has_column, read_batches
from lazydelta.log.checkpoint.reader import CheckpointReader, StatsWanted
from lazydelta.log.commits import CHUNK_SIZE, read_actions
from lazydelta.log.file_batch import DELETION_VECTOR, FileBatch
from lazydelta.log.keys import RemoveSet, first_occurrence, hash_keys
from lazydelta.log.replay import TailCommit, unmasked
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.protocol.actions import Add, Remove
from lazydelta.protocol.file_names import LogFile
from lazydelta.protocol.schema import Column
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import boolean_array, numpy_of, typed_scalar
from lazydelta.scan.timestamp_check import false_timestamps, without_bounds
from lazydelta.write.checkpoint.rows import REMOVE, CheckpointLayout, remove_array

__all__ = ["CheckpointState", "ReconciledRows"]


# ``ReconciledRows``: the files and tombstones of a checkpoint, for any part of the log.
#
# The tail is known before the base is read, so each part of the base is reconciled independently. That allows tasks to
# write a checkpoint in parallel.


_EVERYTHING = StatsWanted(extra=True)


@dataclass(slots=True)
class ReconciledRows:
    """Converts files and tombstones to rows, and counts the files and their bytes.

    Tombstones newer than ``removed_after`` (epoch milliseconds) are kept.
    """

    layout: CheckpointLayout
    removed_after: int
    num_adds: int = field(default=0, init=False)
    size_of_adds: int = field(default=0, init=False)

    def of_base(self, reader: CheckpointReader, seen: RemoveSet, wrong: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        """Yield the previous checkpoint's rows that the tail does not supersede. ``wrong`` columns have bad bounds."""
        for files in _base_files(reader):
            yield from self.adds(unmasked(without_bounds(files, wrong), seen))
        for part in reader.parts():
            for removes in _removes_of(reader, part):
                yield from self.removes(removes, seen)

    def of_part(
        self, reader: CheckpointReader, part: LogFile, seen: RemoveSet, wrong: Sequence[Column]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the same for one file of the previous checkpoint, limited to the reader's row groups."""
        for files in reader.files_of(part, _EVERYTHING):
            yield from self.adds(unmasked(without_bounds(files, wrong), seen))
        for removes in _removes_of(reader, part):
            yield from self.removes(removes, seen)

    def adds(self, files: FileBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of active files."""
        if len(files):
            self.num_adds += len(files)
            self.size_of_adds += int(numpy_of(files.size).sum())
            yield self.layout.adds(files)

    def of_actions(
        self, adds: Sequence[Add], removes: Sequence[Remove], is_add: Sequence[bool], seen: RemoveSet
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of actions of the tail, newest first. ``is_add`` gives the order of adds and removes."""
        if not is_add:
            return
        files, tombstones = FileBatch.from_adds(adds, extra=True), remove_array(removes)
        added = np.array(is_add, np.bool_)
        keys = np.empty((2, len(added)), np.uint64)
        parts = (
            (added, files.path, files.deletion_vector),
            (~added, pc.struct_field(tombstones, "path"), pc.struct_field(tombstones, "deletionVector")),
        )
        for mask, path, vector in parts:
            keys[:, mask] = hash_keys(path, vector)
        known = seen.contains(keys)
        # Record every key, kept or not: an expired tombstone still supersedes older actions.
        for mask, path, vector in parts:
            seen.add(path, vector, keys[:, mask])
        newest = first_occurrence(keys) & ~known
        yield from self.adds(files.filter(boolean_array(newest[added])))
        yield from self._young(tombstones, newest[~added])

    def removes(self, removes: pa.StructArray, seen: RemoveSet) -> Iterator[pa.RecordBatch]:
        """Yield the rows of tombstones that no newer action supersedes."""
        path, vector = pc.struct_field(removes, "path"), pc.struct_field(removes, "deletionVector")
        known = seen.find(path, vector)
        yield from self._young(removes, first_occurrence(seen.add(path, vector)) & ~known)

    def _young(self, removes: pa.StructArray, newest: npt.NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
        deleted = pc.fill_null(pc.struct_field(removes, "deletionTimestamp"), typed_scalar(0, pa.int64()))
        young = pc.greater(deleted, typed_scalar(self.removed_after, pa.int64()))
        kept = removes.filter(pc.and_(boolean_array(newest), young))
        if len(kept):
            yield self.layout.rows("remove", _without_data_change(kept))


def _without_data_change(removes: pa.StructArray) -> pa.StructArray:
    no = boolean_array(np.zeros(len(removes), np.bool_))
    children = [no if each.name == "dataChange" else pc.struct_field(removes, each.name) for each in REMOVE]
    return pa.StructArray.from_arrays(children, fields=list(REMOVE))


def _base_files(reader: CheckpointReader) -> Iterator[FileBatch]:
    """Yield the files of the previous checkpoint with all fields of their actions."""
    if not reader.checkpoint.files[0].is_json:
        yield from reader.files(_EVERYTHING)
        return
    for part in reader.parts():
        if part.is_json:
            for lines in read_actions(reader.store, part):
                yield FileBatch.from_adds([line.add for line in lines if line.add is not None], extra=True)
        else:
            yield from msgspec.structs.replace(reader, checkpoint=Checkpoint(part.version, (part,))).files(_EVERYTHING)


def _removes_of(reader: CheckpointReader, part: LogFile) -> Iterator[pa.StructArray]:
    """Yield the tombstones of one file of the previous checkpoint."""
    if part.is_json:
        for lines in read_actions(reader.store, part):
            yield remove_array([line.remove for line in lines if line.remove is not None])
        return
    with reader.open(part) as parquet:
        if not has_column(parquet, "remove"):
            return
        with corrupt_if_unreadable(part):
            stored = {each.name for each in parquet.schema_arrow.field("remove").type}
        columns = [f"remove.{each.name}" for each in REMOVE if each.name in stored]
        groups = None if reader.groups is None else list(reader.groups)
        for batch in read_batches(parquet, part, columns, reader.batch_size, groups):
            removes = batch.column("remove")
            if removes.null_count < len(removes):
                with corrupt_if_unreadable(part):
                    typed = _typed(removes.filter(removes.is_valid()))
                yield typed


def _typed(removes: pa.StructArray) -> pa.StructArray:
    """Return tombstones of any writer in our type: missing fields are null, widths and names inside maps are ours."""
    children = {each.name: _child(removes, each) for each in REMOVE}
    if children["path"].null_count:
        message = "a tombstone without a path"
        raise ValueError(message)
    # Some writers store a struct of nulls in every row. Only a storage type makes it a deletion vector.
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


@dataclass(slots=True)
class CheckpointState:
    """The reconciled actions of one version, as rows of its checkpoint.

    Applications seen after ``seen_after`` (epoch milliseconds; None keeps all) are kept. One without a timestamp is
    always kept: dropping it would let its next replay write twice.
    """

    snapshot: LogSnapshot
    rows: ReconciledRows
    seen_after: int | None = None
    batch_rows: int = 16_384
    key_memory: int = 64 << 20
    memory_budget: int = 256 << 20

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows."""
        yield from self.of_table()
        seen = RemoveSet(self.key_memory)
        try:
            yield from self.of_tail(seen)
            reader = self.base()
            if reader is not None:
                yield from self.rows.of_base(reader, seen, false_timestamps(self.snapshot))
        finally:
            seen.close()

    def base(self) -> CheckpointReader | None:
        """Return a reader of the previous checkpoint, or None if there is none."""
        checkpoint = self.snapshot.segment.checkpoint
        if checkpoint is None:
            return None
        return CheckpointReader(
            self.snapshot.store,
            checkpoint,
            batch_size=self.batch_rows,
            memory_budget=self.memory_budget,
            needs_stats=True,
        )

    def of_tail(self, seen: RemoveSet) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tail, newest first, and record all its keys."""
        # Small commits are reconciled together: a batch of one file costs nearly as much as a batch of a thousand.
        adds: list[Add] = []
        removes: list[Remove] = []
        is_add: list[bool] = []
        held = 0
        for commit in self.snapshot.tail():
            is_small = 0 <= commit.file.info.size <= CHUNK_SIZE
            if is_small:
                lines = [line for lines in commit.actions for line in lines]
                # Within a commit an add wins, regardless of the order of the lines.
                added = [line.add for line in lines if line.add is not None]
                removed = [line.remove for line in lines if line.remove is not None]
                adds += added
                removes += removed
                is_add += [True] * len(added) + [False] * len(removed)
                held += commit.file.info.size
            if held >= CHUNK_SIZE or not is_small:
                yield from self.rows.of_actions(adds, removes, is_add, seen)
                adds, removes, is_add, held = [], [], [], 0
            if not is_small:
                yield from self._large_commit(commit, seen)
        yield from self.rows.of_actions(adds, removes, is_add, seen)

    def of_table(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of actions other than files."""
        transactions = [
            txn
            for txn in self.snapshot.transactions()
            if self.seen_after is None or txn.last_updated is None or txn.last_updated > self.seen_after
        ]
        layout = self.rows.layout
        yield layout.actions("protocol", [self.snapshot.protocol])
        yield layout.actions("metaData", [self.snapshot.metadata])
        yield layout.actions("txn", transactions)
        yield layout.actions("domainMetadata", self.snapshot.domains())

    def _large_commit(self, commit: TailCommit, seen: RemoveSet) -> Iterator[pa.RecordBatch]:
        """Yield the adds of a commit, then its removes, without holding them in memory."""
        has_removes, adds = False, list[Add]()
        for lines in commit.actions:
            added = [line.add for line in lines if line.add is not None]
            has_removes |= len(added) < len(lines) and any(line.remove is not None for line in lines)
            adds += added
            if len(adds) >= self.batch_rows:
                yield from self.rows.of_actions(adds, [], [True] * len(adds), seen)
                adds = []
        yield from self.rows.of_actions(adds, [], [True] * len(adds), seen)
        # The removes are read in a second pass, after the adds are known: a commit may empty a large table.
        for lines in read_actions(self.snapshot.store, commit.file) if has_removes else ():
            removes = [line.remove for line in lines if line.remove is not None]
            yield from self.rows.of_actions([], removes, [False] * len(removes), seen)
