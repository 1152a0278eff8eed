"""Rows from Parquet files: row groups of them, in large batches and little memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import DataFileError
from lazydelta.sources.lines import BadRow, RejectRows, Required, missing
from lazydelta.storage import Store
from lazydelta.write.rejected import as_texts

__all__ = ["parquet_schema", "rows_of_groups", "sizes_of_groups"]

_BATCH_ROWS = 1 << 17
_BATCH_BYTES = 16 << 20
_LEAST_ROWS = 1 << 10
_INSTANT = pa.timestamp("us", "UTC")


def parquet_schema(store: Store, path: str, size: int) -> pa.Schema:
    """Return the columns of a file, as its footer has them."""
    with _opened(store, path, size) as file:
        return pa.schema(_fields(file))


def sizes_of_groups(store: Store, path: str, size: int) -> list[int]:
    """Return the bytes that each row group takes in the file."""
    with _opened(store, path, size) as file:
        groups = (file.metadata.row_group(index) for index in range(file.num_row_groups))
        return [sum(each.column(index).total_compressed_size for index in range(each.num_columns)) for each in groups]


def rows_of_groups(
    store: Store, path: str, size: int, groups: tuple[int, int] | None, reject: RejectRows, required: Required
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, or of the row groups from ``groups[0]`` up to ``groups[1]``."""
    place = store.place(path)
    with _opened(store, path, size) as file:
        first, end = groups or (0, file.num_row_groups)
        number = sum(file.metadata.row_group(index).num_rows for index in range(first))
        fields = _fields(file)
        is_instant = [each.type == _INSTANT for each in fields]
        for batch in _batches(file, range(first, end)):
            # INT96 is an instant, which Arrow takes for a wall clock.
            columns = [
                values.view(_INSTANT) if instant else values
                for values, instant in zip(batch.columns, is_instant, strict=True)
            ]
            rows = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
            faults = missing(rows, required)
            if faults:
                bad = sorted(faults)
                texts = as_texts(rows.take(pa.array(bad)))
                reject(
                    [
                        BadRow(text, faults[row], f"{place}, row {number + row + 1}")
                        for text, row in zip(texts, bad, strict=True)
                    ]
                )
                rows = rows.filter(pa.array([row not in faults for row in range(rows.num_rows)]))
            number += batch.num_rows
            if rows.num_rows:
                yield rows


def _batches(file: pq.ParquetFile, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
    rows = sum(file.metadata.row_group(index).num_rows for index in groups)
    size = sum(file.metadata.row_group(index).total_byte_size for index in groups)
    most = max(_LEAST_ROWS, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(size, 1)))
    yield from file.iter_batches(batch_size=most, row_groups=list(groups))


def _fields(file: pq.ParquetFile) -> list[pa.Field]:
    """Return the columns; those of INT96 are instants."""
    fields = list(file.schema_arrow.remove_metadata())
    leaves = file.schema
    old = {leaves.column(index).path for index in range(len(leaves)) if leaves.column(index).physical_type == "INT96"}
    return [pa.field(each.name, _INSTANT if each.name in old else each.type) for each in fields]


@contextmanager
def _opened(store: Store, path: str, size: int) -> Iterator[pq.ParquetFile]:
    place = store.place(path)
    try:
        with store.open_input(path, size=size) as source:
            yield pq.ParquetFile(source, coerce_int96_timestamp_unit="us", page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        message = f"The file {place} cannot be read as Parquet: {error}"
        hint = "nothing was committed; see that it is Parquet and whole, or take it away"
        raise DataFileError(message, path=place, hint=hint) from error
