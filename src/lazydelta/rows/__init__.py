"""From a data file to the table's rows: columns found and typed as the table says, deleted rows left out."""

from __future__ import annotations

from lazydelta.rows.deletion_vectors import DeletedRows, read_deletion_vector
from lazydelta.rows.row_reader import FileToRead, RowReader
from lazydelta.types.partition_values import partition_value

__all__ = ["DeletedRows", "FileToRead", "RowReader", "partition_value", "read_deletion_vector"]
