"""Deletion vectors as masks of the rows that are kept, one for each file that has a vector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from lazydelta.errors import DataFileError
from lazydelta.rows import read_deletion_vector
from lazydelta.scan.data_file import DataFile
from lazydelta.storage import Store

__all__ = ["SELECTION_VECTORS", "selection_vectors"]

SELECTION_VECTORS = pa.schema(
    [
        pa.field("filepath", pa.string(), nullable=False),
        pa.field("selection_vector", pa.list_(pa.field("element", pa.bool_(), nullable=False)), nullable=False),
    ]
)


def selection_vectors(files: Iterable[DataFile], store: Store) -> Iterator[pa.RecordBatch]:
    """Yield a batch of one row for each file with a deletion vector: its URI, and for every row whether it is kept.

    A mask is as long as the file has rows; where the log does not count them, it ends with the last deleted row.
    """
    for file in files:
        vector = file.to_read().deletion_vector
        if vector is None:
            continue
        deleted = read_deletion_vector(store, vector, data_file=file.path)
        rows = deleted.end if file.num_records is None else file.num_records
        if deleted.end > rows:
            message = f"The deletion vector of {file.path} deletes row {deleted.end - 1}, but the file has {rows} rows"
            raise DataFileError(message, path=file.path, hint="the vector belongs to another file; restore the table")
        mask = deleted.keep_mask(0, rows)
        kept = pa.array(np.ones(rows, dtype=bool)) if mask is None else mask
        values = pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), kept)
        uri = _as_uri(store, file.path)
        yield pa.RecordBatch.from_arrays(
            [pa.array([uri]), values.cast(SELECTION_VECTORS.field(1).type)], schema=SELECTION_VECTORS
        )


def _as_uri(store: Store, path: str) -> str:
    place = store.uri_of(path)
    return place if "://" in place else Path(place).as_uri()
