"""Copying of rows from a table's files to new files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from lazydelta.log.file_batch import FileBatch
from lazydelta.protocol.actions import Add, DeletionVector
from lazydelta.protocol.properties import TableProperties
from lazydelta.protocol.schema import TableSchema
from lazydelta.stats import stats_ranges
from lazydelta.storage import Store
from lazydelta.write.column_mapping import PhysicalColumns
from lazydelta.write.data_files import DataFileWriter, compact, pieces
from lazydelta.write.parquet_encoding import ParquetEncoding

__all__ = ["LoggedFile", "copy_rows", "logged_files", "stored_columns", "writer_of_copies"]


_PIECE_BYTES = 32 << 20


def stored_columns(table: TableSchema) -> list[str]:
    """Return the columns of data files: all but the partition columns, whose values are in the log."""
    return [each.name for each in table.fields if each.name not in table.partition_columns]


def writer_of_copies(
    store: Store,
    table: TableSchema,
    properties: TableProperties,
    *,
    target_file_size: int,
    memory_budget: int,
    compression: str,
    encoding: ParquetEncoding | None = None,
    family: str = "",
) -> DataFileWriter:
    """Return a writer for rows that are already valid table rows and only move to new files."""
    return DataFileWriter(
        store,
        table.to_arrow(),
        table.partition_columns,
        properties=properties,
        target_file_size=target_file_size,
        memory_budget=memory_budget,
        compression=compression,
        physical=None if table.column_mapping == "none" else PhysicalColumns(table),
        encoding=encoding,
        family=family,
    )


def copy_rows(writer: DataFileWriter, partition: tuple[str | None, ...], rows: pa.RecordBatch) -> None:
    """Write rows of one partition in pieces, so that their memory is released one by one."""
    for piece in pieces(rows.replace_schema_metadata(None), _PIECE_BYTES):
        writer.write_partition(partition, compact(piece))


# ``LoggedFile``: an active file with the fields needed to read it, and to remove it in a commit.


class LoggedFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file of a snapshot. ``partition`` is in table order; ``num_records`` is the row count in the log."""

    path: str
    size: int
    modification_time: int
    partition: tuple[str | None, ...]
    partition_values: dict[str, str | None]
    tags: dict[str, str | None] | None
    deletion_vector: DeletionVector | None
    num_records: int | None

    @property
    def live_rows(self) -> int | None:
        """Return the number of rows that are not deleted, if the log has the count."""
        if self.num_records is None or self.deletion_vector is None:
            return self.num_records
        return self.num_records - self.deletion_vector.cardinality

    @property
    def deleted_share(self) -> float:
        """Return the share of deleted rows, or 1 if the total is unknown."""
        if self.deletion_vector is None:
            return 0.0
        if not self.num_records:
            return 1.0
        return min(1.0, self.deletion_vector.cardinality / self.num_records)

    @property
    def live_size(self) -> int:
        """Return the approximate size of the file without its deleted rows."""
        if self.deletion_vector is None or not self.num_records:
            return self.size
        return int(self.size * (1 - self.deleted_share))

    def as_add(self) -> Add:
        """Return the file as an action in the log, without statistics."""
        return Add(
            path=self.path,
            size=self.size,
            modification_time=self.modification_time,
            partition_values=self.partition_values,
            tags=self.tags,
            deletion_vector=self.deletion_vector,
        )


def logged_files(batch: FileBatch, partition_columns: Sequence[str], *, counted: bool = True) -> Iterator[LoggedFile]:
    """Yield the files of a batch.

    ``partition_columns`` are the physical names of the partition columns. ``counted`` means that the batch has
    statistics, and so possibly row counts.
    """
    nothing = [None] * len(batch)
    records = stats_ranges(batch, ()).num_records if counted else None
    rows = zip(
        batch.path.to_pylist(),
        batch.size.to_pylist(),
        batch.modification_time.to_pylist(),
        batch.partition_values.to_pylist(),
        nothing if batch.extra is None else batch.extra.field("tags").to_pylist(),
        nothing if batch.deletion_vector is None else batch.deletion_vector.to_pylist(),
        nothing if records is None else records.to_pylist(),
        strict=True,
    )
    for path, size, modified, values, tags, vector, count in rows:
        logged = dict(values or ())
        yield LoggedFile(
            path,
            size,
            modified,
            # An empty string is a null, regardless of the writer.
            tuple(logged.get(name) or None for name in partition_columns),
            logged,
            dict(tags) if tags else None,
            None if vector is None else msgspec.convert(vector, DeletionVector),
            count,
        )
