"""``RowRewriter``: files copied without the rows that are chosen, or with others in their place.

The new files are in place then, and no commit names them yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import flags, from_numpy
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Add, Metadata
from lazydelta.log.properties import TableProperties
from lazydelta.rows import RowReader
from lazydelta.write.copied_rows import copy_rows, stored_columns, writer_of_copies
from lazydelta.write.data_files import MEMORY_BUDGET, TARGET_FILE_SIZE, DataFileWriter
from lazydelta.write.parquet_encoding import ParquetEncoding
from lazydelta.write.row_changes.change_files import ChangeFiles
from lazydelta.write.row_changes.row_choice import RowChoice
from lazydelta.write.row_changes.touched_files import TouchedFile

__all__ = ["FileRecipe", "NewRows", "RowRewriter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecipe:
    """What the caller decides about the files that rows are copied to."""

    compression: str = "zstd"
    target_file_size: int = TARGET_FILE_SIZE
    memory_budget: int = MEMORY_BUDGET
    encoding: ParquetEncoding | None = None


@dataclass(frozen=True, slots=True)
class NewRows:
    """What becomes of rows that are chosen: ``made`` gives them as they are to be; with ``may_move``, elsewhere."""

    made: Callable[[pa.RecordBatch], pa.RecordBatch]
    may_move: bool


class RowRewriter:
    """Copies the rows that stay, those of a file to a file of their own: its ranges stay as narrow as they were.

    Those that are chosen are left out, or replaced by ``new``. ``changes`` takes them, where the table records them.
    Leaving it by an error deletes what was written.
    """

    def __init__(
        self,
        handle: TableHandle,
        choice: RowChoice,
        metadata: Metadata,
        recipe: FileRecipe,
        changes: ChangeFiles | None = None,
        new: NewRows | None = None,
    ) -> None:
        self._handle, self._choice, self._recipe, self._new = handle, choice, recipe, new
        self._properties = TableProperties.of(metadata)
        self._changes = changes
        table = choice.table
        self._stored = stored_columns(table)
        self._reader = RowReader(handle.store, table)
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
        """Copy the rows of a file that stay, and those that take the place of others."""
        for rows, mask in self._judged(file):
            gone = mask.true_count
            self.gone += gone
            self.copied += rows.num_rows - gone
            if not gone:
                self._copy(rows, file)
            elif self._new is not None:
                self._replace(rows, mask, file, self._new)
            else:
                self._note(rows.filter(mask), "delete", file)
                self._copy(rows.filter(pc.invert(mask)), file)
        # Rows that move elsewhere are few from each file, and go together.
        if self._writer is not None and (self._new is None or not self._new.may_move):
            self._writer.begin_new_files()

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
        # Each in its place: files stay in the order that they have.
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
        """Record the rows of a file that leaves whole."""
        for rows, _ in self._judged(file):
            self.gone += rows.num_rows
            self._note(rows, "delete", file)

    def close(self) -> list[Add]:
        """Finish all files and return what a commit needs to add them."""
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
