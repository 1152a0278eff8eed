"""``ReconciledRows``: which files and tombstones a checkpoint has, of whatever part of the log they are read from.

What the tail has said is known before the base is read, so each part of the base is judged by itself: that is what lets
tasks write a checkpoint side by side.
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
from lazydelta.log.checkpoint.checkpoint_columns import corrupt_if_unreadable, has_column, read_batches
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader, StatsWanted
from lazydelta.log.checkpoint.writing.checkpoint_rows import REMOVE, CheckpointLayout, remove_array
from lazydelta.log.commits import read_actions
from lazydelta.log.file_batch import DELETION_VECTOR, FileBatch
from lazydelta.log.names import LogFile
from lazydelta.log.reconcile import unmasked
from lazydelta.log.remove_set import RemoveSet
from lazydelta.log.segment import Checkpoint
from lazydelta.scan.timestamp_check import without_bounds
from lazydelta.types.schema import Column

__all__ = ["ReconciledRows", "fresh"]

_EVERYTHING = StatsWanted(extra=True)


@dataclass(slots=True)
class ReconciledRows:
    """Makes rows of files and tombstones, and counts the files and their bytes.

    Tombstones count while they are younger than ``removed_after`` (epoch milliseconds).
    """

    layout: CheckpointLayout
    removed_after: int
    num_adds: int = field(default=0, init=False)
    size_of_adds: int = field(default=0, init=False)

    def of_base(self, reader: CheckpointReader, seen: RemoveSet, wrong: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the previous checkpoint that the tail has left; bounds of ``wrong`` columns are false."""
        for files in _base_files(reader):
            yield from self.adds(unmasked(without_bounds(files, wrong), seen))
        for part in reader.parts():
            for removes in _removes_of(reader, part):
                yield from self.removes(removes, seen)

    def of_part(
        self, reader: CheckpointReader, part: LogFile, seen: RemoveSet, wrong: Sequence[Column]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the same of one file of the previous checkpoint, and of those row groups that the reader has."""
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

    def removes(self, removes: pa.StructArray, seen: RemoveSet) -> Iterator[pa.RecordBatch]:
        """Yield the rows of tombstones that nothing newer speaks of."""
        # Recorded whether they are kept or not: an expired tombstone still hides what is older.
        newest = fresh(pc.struct_field(removes, "path"), pc.struct_field(removes, "deletionVector"), seen)
        deleted = pc.fill_null(pc.struct_field(removes, "deletionTimestamp"), typed_scalar(0, pa.int64()))
        young = pc.greater(deleted, typed_scalar(self.removed_after, pa.int64()))
        kept = removes.filter(pc.and_(newest, young))
        if len(kept):
            yield self.layout.rows("remove", _without_data_change(kept))


def fresh(path: pa.Array, vector: pa.Array | None, seen: RemoveSet) -> pa.BooleanArray:
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
