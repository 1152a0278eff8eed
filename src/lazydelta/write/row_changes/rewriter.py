"""`RowRewriter`: copies files without the selected rows, or with replacements for them.

The new files are in place afterwards, but no commit references them yet.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.data_files.reader import RowReader, page_limit
from lazydelta.errors import WriteError
from lazydelta.predicates import Where, parse_predicate, stats_columns
from lazydelta.predicates.tree import Opaque, leaves
from lazydelta.protocol.actions import Add, Metadata
from lazydelta.protocol.deletion_vectors import VectorFile, read_deletion_vector
from lazydelta.protocol.properties import Key, TableProperties, is_true
from lazydelta.protocol.schema import Field, Primitive, TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import flags, from_numpy, typed_scalar
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Store
from lazydelta.write.column_mapping import PhysicalColumns
from lazydelta.write.commit import num_records, removal_of
from lazydelta.write.copied_rows import copy_rows, stored_columns, writer_of_copies
from lazydelta.write.data_files import MEMORY_BUDGET, TARGET_FILE_SIZE, DataFileWriter, Partition, compact
from lazydelta.write.parquet_encoding import ParquetEncoding
from lazydelta.write.row_changes.choice import Progress, RowChoice, TouchedFile, touched_files
from lazydelta.write.transaction import Transaction

__all__ = [
    "ChangeFiles",
    "FileRecipe",
    "NewRows",
    "RowsDeleted",
    "VectorRecorder",
    "records_changes",
    "stage_deletion",
    "stage_inserted",
    "stage_replacement",
]


# ``ChangeFiles``: the rows that a commit changed, written as change data files.
#
# A commit that rewrites files must record which rows it changed. Its adds and removes alone would mean that all rows
# were deleted, and the unchanged ones inserted again.


_FOLDER = "_change_data"
_TYPE = "_change_type"


class ChangeFiles:
    """Writes changed rows to change data files. No file exists before the first row."""

    def __init__(self, store: Store, table: TableSchema) -> None:
        noted = Field(_TYPE, Primitive("string"), False, _TYPE)  # noqa: FBT003
        # The change type column has no field id in any schema, so change data files are mapped by name.
        mapping = "name" if table.column_mapping == "id" else table.column_mapping
        self._table = TableSchema((*table.fields, noted), table.partition_columns, mapping)
        self._stored = [each.name for each in self._table.fields if each.name not in table.partition_columns]
        self._store = store
        self._writer: DataFileWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()

    def note(self, rows: pa.RecordBatch, change: str, partition: Partition | None) -> None:
        """Write rows with the same change type. They have all columns of the table.

        They belong to one partition; if it is None, it is determined from the rows.
        """
        if not rows.num_rows:
            return
        kind = pa.repeat(typed_scalar(change, pa.string()), rows.num_rows)
        noted = rows.append_column(pa.field(_TYPE, pa.string(), nullable=False), kind).replace_schema_metadata(None)
        if partition is None:
            self._files().write(noted)
        else:
            self._files().write_partition(partition, compact(noted.select(self._stored)))

    def _files(self) -> DataFileWriter:
        if self._writer is None:
            table = self._table
            self._writer = DataFileWriter(
                self._store,
                table.to_arrow(),
                table.partition_columns,
                physical=None if table.column_mapping == "none" else PhysicalColumns(table),
                folder=_FOLDER,
            )
        return self._writer

    def close(self) -> list[Add]:
        """Finish all files and return them. ``cdc`` actions reference them."""
        return [] if self._writer is None else self._writer.close()

    def abort(self) -> None:
        """Delete every file written so far."""
        if self._writer is not None:
            self._writer.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecipe:
    """The caller's settings for the files that rows are copied to."""

    compression: str = "zstd"
    target_file_size: int = TARGET_FILE_SIZE
    memory_budget: int = MEMORY_BUDGET
    encoding: ParquetEncoding | None = None


# ``VectorRecorder``: deleted rows recorded in deletion vectors, so that the files that hold them stay.


class VectorRecorder:
    """Collects the deleted rows of files. Nothing is written before `stage`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._file = VectorFile()
        self._adds: list[Add] = []

    @classmethod
    def of(cls, transaction: Transaction) -> VectorRecorder | None:
        """Return a recorder if the table has deletion vectors switched on."""
        protocol, metadata = transaction.protocol, transaction.metadata
        if protocol is None or metadata is None or not TableProperties.of(metadata).deletion_vectors:
            return None
        return cls(transaction.store) if "deletionVectors" in (protocol.writer_features or ()) else None

    def takes(self, add: Add) -> bool:
        """Return whether a file can have a vector: readers need its number of rows."""
        return num_records(add.stats) is not None

    def record(self, add: Add, places: npt.NDArray[np.int64], live_rows: int) -> None:
        """Delete the rows at some places among the ``live_rows`` of a file. Without any left, the file just leaves."""
        if len(places) == live_rows:
            return
        positions = places.astype(np.uint64)
        if add.deletion_vector is not None:
            before = read_deletion_vector(self._store, add.deletion_vector, data_file=add.path).positions()
            live = np.setdiff1d(np.arange(live_rows + len(before), dtype=np.uint64), before, assume_unique=True)
            positions = np.sort(np.concatenate([before, live[places]]))
        stats = msgspec.json.decode(add.stats or "{}") | {"tightBounds": False}
        vector, text = self._file.add(positions), msgspec.json.encode(stats).decode()
        self._adds.append(msgspec.structs.replace(add, deletion_vector=vector, stats=text, data_change=True))

    def stage(self, transaction: Transaction) -> int:
        """Write the vectors and stage the files that have them. Return their number."""
        if self._adds:
            transaction.add_vectors(self._file, self._adds)
        return len(self._adds)


@dataclass(frozen=True, slots=True)
class NewRows:
    """Replacement of selected rows. ``made`` computes the new rows; with ``may_move`` their partition may change."""

    made: Callable[[pa.RecordBatch], pa.RecordBatch]
    may_move: bool


class RowRewriter:
    """Copies the unselected rows of each file to its own new file, which keeps the value ranges narrow.

    Selected rows are dropped, or replaced by ``new``. ``changes`` records them if the table has change data. Leaving
    the context with an error deletes the written files.
    """

    def __init__(
        self,
        handle: TableHandle,
        choice: RowChoice,
        metadata: Metadata,
        recipe: FileRecipe,
        changes: ChangeFiles | None = None,
        new: NewRows | None = None,
        vectors: VectorRecorder | None = None,
    ) -> None:
        self._handle, self._choice, self._recipe, self._new = handle, choice, recipe, new
        self._vectors = vectors
        self._properties = TableProperties.of(metadata)
        self._changes = changes
        table = choice.table
        self._stored = stored_columns(table)
        self._reader = RowReader(handle.store, table, page_bytes=page_limit(handle.options))
        self._writer: DataFileWriter | None = None
        self.gone = 0
        self.copied = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()

    def rewrite(self, file: TouchedFile) -> None:
        """Copy the unselected rows of a file, and the replacements of the others."""
        if self._vectors is not None and self._vectors.takes(file.add):
            self._record(file, self._vectors)
            return
        for rows, mask in self._judged(file):
            gone = mask.true_count
            self.gone += gone
            self.copied += rows.num_rows - gone
            if not gone:
                self._copy(rows, file)
            elif self._new is not None:
                self._replace(rows, mask, file, self._new)
            else:
                if self._changes is not None:
                    self._note(rows.filter(mask), "delete", file)
                self._copy(pc.keep(rows, pc.invert(mask), pa.system_memory_pool()), file)
        # Rows that change partition are few per file, so they are written together.
        if self._writer is not None and (self._new is None or not self._new.may_move):
            self._writer.begin_new_files()

    def _record(self, file: TouchedFile, vectors: VectorRecorder) -> None:
        """Delete the selected rows of a file by a vector, and write only their replacements."""
        start, places = 0, [np.zeros(0, np.int64)]
        for rows, mask in self._judged(file):
            flagged = np.flatnonzero(flags(mask))
            places.append(flagged + start)
            start += rows.num_rows
            if not len(flagged):
                continue
            self.gone += len(flagged)
            chosen = rows.filter(mask)
            if self._new is None:
                self._note(chosen, "delete", file)
                continue
            made = self._new.made(chosen)
            self._note(chosen, "update_preimage", file)
            if self._changes is not None:
                self._changes.note(made, "update_postimage", None)
            self._files().write(made)
        vectors.record(file.add, np.concatenate(places), start)

    def _replace(self, rows: pa.RecordBatch, mask: pa.BooleanArray, file: TouchedFile, new: NewRows) -> None:
        chosen = rows.filter(mask)
        made = new.made(chosen)
        self._note(chosen, "update_preimage", file)
        if new.may_move:
            if self._changes is not None:
                self._changes.note(made, "update_postimage", None)
            self._copy(rows.filter(pc.invert(mask)), file)
            self._files().write(made)
            return
        self._note(made, "update_postimage", file)
        # Keep the position of each row, so that files keep their sort order.
        flagged, places = flags(mask), np.arange(rows.num_rows)
        places[flagged] = rows.num_rows + np.arange(chosen.num_rows)
        order, kept = from_numpy(places.astype(np.int64)), rows.select(self._stored)
        together = [pa.concat_arrays([rows.column(name), made.column(name)]).take(order) for name in self._stored]
        self._copy(pa.RecordBatch.from_arrays(together, schema=kept.schema), file)

    def _copy(self, rows: pa.RecordBatch, file: TouchedFile) -> None:
        copy_rows(self._files(), file.partition, rows.select(self._stored))

    def _note(self, rows: pa.RecordBatch, change: str, file: TouchedFile) -> None:
        if self._changes is not None:
            self._changes.note(rows, change, file.partition)

    def note_deleted(self, file: TouchedFile) -> None:
        """Record the rows of a file that is removed whole."""
        for rows, _ in self._judged(file):
            self.gone += rows.num_rows
            self._note(rows, "delete", file)

    def close(self) -> list[Add]:
        """Finish all files and return their add actions."""
        return [] if self._writer is None else self._writer.close()

    def abort(self) -> None:
        """Delete every file written so far."""
        if self._writer is not None:
            self._writer.abort()

    def _judged(self, file: TouchedFile) -> Iterator[tuple[pa.RecordBatch, pa.BooleanArray]]:
        for rows in self._reader.read(file.add):
            yield rows, self._choice.mask(rows)

    def _files(self) -> DataFileWriter:
        if self._writer is None:
            recipe = self._recipe
            self._writer = writer_of_copies(
                self._handle.store,
                self._choice.table,
                self._properties,
                target_file_size=recipe.target_file_size,
                memory_budget=recipe.memory_budget,
                compression=recipe.compression,
                encoding=recipe.encoding,
            )
        return self._writer


# Deletion as part of a transaction: removed and copied files are staged in one pass over the files.


_IN_MEMORY = 1 << 20


@dataclass(slots=True)
class RowsDeleted:
    """Result of a deletion. ``rows`` is None if files with an unknown row count were removed whole.

    ``rewritten_files`` is the number of removed files that had to be read.
    """

    removed_files: int = 0
    removed_bytes: int = 0
    added_files: int = 0
    added_bytes: int = 0
    change_files: int = 0
    rewritten_files: int = 0
    rows: int | None = 0
    copied_rows: int = 0
    scan_seconds: float = 0.0
    rewrite_seconds: float = 0.0
    vectors: int = 0

    def count(self, file: TouchedFile, rows: int | None) -> None:
        """Count a removed file and its deleted rows."""
        self.removed_files += 1
        self.rewritten_files += not file.is_whole
        self.removed_bytes += file.add.size
        self.rows = None if self.rows is None or rows is None else self.rows + rows


def records_changes(transaction: Transaction) -> bool:
    """Return whether the table has change data enabled."""
    metadata = transaction.metadata
    return metadata is not None and is_true(metadata, Key.CHANGE_DATA_FEED)


def stage_deletion(
    transaction: Transaction,
    choice: RowChoice,
    recipe: FileRecipe | None = None,
    *,
    new: NewRows | None = None,
    is_overwrite: bool = False,
    progress: Progress | None = None,
) -> RowsDeleted:
    """Stage the deletion of the selected rows. Written files are in place afterwards, and belong to the transaction.

    With ``new`` the rows are replaced, and every affected file is read. With ``is_overwrite`` the transaction conflicts
    with every concurrently added file that may hold selected rows. Otherwise blind appends do not conflict: their rows
    depend on nothing and may as well come after the deletion.
    """
    snapshot, handle, found = transaction.snapshot, transaction.handle, RowsDeleted()
    if snapshot is None:
        return found
    transaction.rest_on_rows(choice, any_append=is_overwrite)
    begun = time.monotonic()
    changes = ChangeFiles(handle.store, choice.table) if records_changes(transaction) else None
    vectors = VectorRecorder.of(transaction)
    rewriter = RowRewriter(handle, choice, snapshot.metadata, recipe or FileRecipe(), changes, new, vectors)
    leaving, now = _Leaving(), transaction.deletion_time()
    with changes or nullcontext(), rewriter, leaving:
        for file in touched_files(snapshot, choice, with_stats=vectors is not None, progress=progress):
            if file.is_whole and new is None:
                leaving.add(file)
                found.count(file, file.rows)
            else:
                since = time.monotonic()
                before = rewriter.gone
                rewriter.rewrite(file)
                found.count(file, rewriter.gone - before)
                found.rewrite_seconds += time.monotonic() - since
            transaction.remove_found(removal_of(file.add, now))
        if changes is not None and (is_overwrite or leaving.count < found.removed_files):
            # If a commit has change data, readers use only that. Other writers have it for every overwrite of rows.
            for file in leaving:
                rewriter.note_deleted(file)
            found.rows = rewriter.gone
        adds, noted = rewriter.close(), [] if changes is None else changes.close()
        transaction.add_own(adds, noted)
        found.vectors = 0 if vectors is None else vectors.stage(transaction)
    found.added_files, found.added_bytes = len(adds), sum(each.size for each in adds)
    found.change_files, found.copied_rows = len(noted), rewriter.copied
    found.scan_seconds = time.monotonic() - begun - found.rewrite_seconds
    return found


class _Leaving:
    """The files that are removed whole, spooled to a temporary file because there may be very many."""

    def __init__(self) -> None:
        self._lines: Any = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, prefix="lazydelta-delete-")  # noqa: SIM115
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def add(self, file: TouchedFile) -> None:
        self._lines.write(msgspec.json.encode(file) + b"\n")
        self.count += 1

    def __iter__(self) -> Iterator[TouchedFile]:
        self._lines.seek(0)
        decoder = msgspec.json.Decoder(TouchedFile)
        for line in self._lines:
            yield decoder.decode(line)


# Replacement of rows: an overwrite by predicate, of whole partitions or of rows inside files.


def stage_replacement(transaction: Transaction, where: Where) -> None:
    """Stage the removal of the rows to be replaced.

    Predicates on partition columns remove whole files by their partition values. Other predicates select rows: files
    that hold some are copied without them. Any concurrently added file that may hold such rows is a conflict.
    """
    snapshot = transaction.snapshot
    if snapshot is None:
        message = "There is no table to overwrite rows of"
        raise WriteError(message, path=transaction.store.uri, hint="create it first")
    predicate = parse_predicate(where, snapshot.schema)
    by_rows = predicate is not None and (
        stats_columns(predicate) or any(isinstance(leaf, Opaque) for leaf in leaves(predicate))
    )
    if by_rows:
        stage_deletion(transaction, RowChoice.of(predicate, snapshot.schema), is_overwrite=True)
    else:
        transaction.remove_partitions(where)


def stage_inserted(transaction: Transaction, adds: Sequence[Add], table: TableSchema) -> None:
    """Record the rows of new files as inserted, if the transaction has change data.

    Readers then use only the change data. The files are in place, so their rows are read back instead of kept.
    """
    if not transaction.notes_changes:
        return
    reader, logged = RowReader(transaction.store, table), table.physical_partition_columns
    with ChangeFiles(transaction.store, table) as changes:
        for add in adds:
            partition = tuple(add.partition_values.get(name) or None for name in logged)
            for rows in reader.read(add):
                changes.note(rows, "insert", partition)
        transaction.add_own((), changes.close())
