"""``RowRewriter``: files copied without the rows that are chosen, into new files that no commit names yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Add, Metadata
from lazydelta.log.properties import TableProperties
from lazydelta.rows import RowReader
from lazydelta.write.column_mapping import PhysicalColumns
from lazydelta.write.data_files import MEMORY_BUDGET, TARGET_FILE_SIZE, DataFileWriter
from lazydelta.write.parquet_encoding import ParquetEncoding
from lazydelta.write.partition_rows import compact, pieces
from lazydelta.write.row_changes.change_files import ChangeFiles
from lazydelta.write.row_changes.row_choice import RowChoice
from lazydelta.write.row_changes.touched_files import TouchedFile

__all__ = ["FileRecipe", "RowRewriter"]

_PIECE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecipe:
    """What the caller decides about the files that rows are copied to."""

    compression: str = "zstd"
    target_file_size: int = TARGET_FILE_SIZE
    memory_budget: int = MEMORY_BUDGET
    encoding: ParquetEncoding | None = None


class RowRewriter:
    """Copies the rows that stay; those of one partition come together, whichever files they were in.

    ``changes`` takes the rows that go, where the table records them. Leaving it by an error deletes what was written.
    """

    def __init__(
        self,
        handle: TableHandle,
        choice: RowChoice,
        metadata: Metadata,
        recipe: FileRecipe,
        changes: ChangeFiles | None = None,
    ) -> None:
        self._handle, self._choice, self._recipe = handle, choice, recipe
        self._properties = TableProperties.of(metadata)
        self._changes = changes
        table = choice.table
        self._stored = [each.name for each in table.fields if each.name not in table.partition_columns]
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
        """Copy the rows of a file that stay."""
        for rows, mask in self._judged(file):
            gone = mask.true_count
            self.gone += gone
            if gone and self._changes is not None:
                self._changes.note(rows.filter(mask), "delete", file.partition)
            if gone == rows.num_rows:
                continue
            kept = (rows if not gone else rows.filter(pc.invert(mask))).select(self._stored)
            self.copied += kept.num_rows
            for piece in pieces(kept.replace_schema_metadata(None), _PIECE_BYTES):
                self._files().write_partition(file.partition, compact(piece))

    def note_deleted(self, file: TouchedFile) -> None:
        """Record the rows of a file that leaves whole."""
        for rows, _ in self._judged(file):
            self.gone += rows.num_rows
            if self._changes is not None:
                self._changes.note(rows, "delete", file.partition)

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
            table, recipe = self._choice.table, self._recipe
            self._writer = DataFileWriter(
                self._handle.store,
                table.to_arrow(),
                table.partition_columns,
                properties=self._properties,
                target_file_size=recipe.target_file_size,
                memory_budget=recipe.memory_budget,
                compression=recipe.compression,
                physical=None if table.column_mapping == "none" else PhysicalColumns(table),
                encoding=recipe.encoding,
            )
        return self._writer
