"""Rows of a table's own files on their way to new ones: the writer of these, and the pieces in which it takes them."""

from __future__ import annotations

import pyarrow as pa

from lazydelta.log.properties import TableProperties
from lazydelta.storage import Store
from lazydelta.types.schema import TableSchema
from lazydelta.write.column_mapping import PhysicalColumns
from lazydelta.write.data_files import DataFileWriter
from lazydelta.write.parquet_encoding import ParquetEncoding
from lazydelta.write.partition_rows import compact, pieces

__all__ = ["copy_rows", "stored_columns", "writer_of_copies"]

_PIECE_BYTES = 32 << 20


def stored_columns(table: TableSchema) -> list[str]:
    """Return the columns that data files have: all but those whose values are in the log."""
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
    """Return a writer for rows as the table has them: nothing about them is settled any more, only where they lie."""
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
    """Write rows of one partition, in pieces whose memory is given back one by one."""
    for piece in pieces(rows.replace_schema_metadata(None), _PIECE_BYTES):
        writer.write_partition(partition, compact(piece))
