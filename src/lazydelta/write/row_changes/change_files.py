"""``ChangeFiles``: the rows that a commit changed, beside the table, for readers of its change data.

A commit that rewrites files has to say itself which of their rows it changed: by its adds and removes alone all of them
were deleted, and those that stayed inserted again.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import pyarrow as pa

from lazydelta.arrays import typed_scalar
from lazydelta.log.actions import Add
from lazydelta.storage import Store
from lazydelta.types.schema import Field, Primitive, TableSchema
from lazydelta.write.column_mapping import PhysicalColumns
from lazydelta.write.data_files import DataFileWriter
from lazydelta.write.partition_rows import Partition, compact

__all__ = ["ChangeFiles"]

_FOLDER = "_change_data"
_TYPE = "_change_type"


class ChangeFiles:
    """Writes changed rows to files of their own; none is there before the first row comes."""

    def __init__(self, store: Store, table: TableSchema) -> None:
        noted = Field(_TYPE, Primitive("string"), False, _TYPE)  # noqa: FBT003
        # The column with the change has no id in any schema; files of change data have names as well.
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
        """Take rows, with all columns of the table, that were changed in the same way.

        They are of one partition; where that is None, the rows tell.
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
        """Finish all files and return them; they are named by ``cdc`` actions."""
        return [] if self._writer is None else self._writer.close()

    def abort(self) -> None:
        """Delete every file written so far."""
        if self._writer is not None:
            self._writer.abort()
