"""Row groups of a sidecar's Parquet file to Arrow rows: from bytes that were fetched, or read by Arrow itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet.core import ParquetReader

from lazydelta import compute as pc
from lazydelta.arrays import one_array
from lazydelta.sidecar.layout.manifest import SidecarError
from lazydelta.storage import open_native

if TYPE_CHECKING:
    from lazydelta.sidecar.layout.part_file import PartFooter

__all__ = ["decode_groups", "read_groups"]

_VERIFIED = {"page_checksum_verification": True, "pre_buffer": False}


def read_groups(
    footer: PartFooter,
    indices: Sequence[int],
    names: Sequence[str],
    blocks: Sequence[tuple[int, bytes]],
    size: int,
    *,
    frugal: bool = True,
) -> pa.RecordBatch:
    """Decode the named columns of some row groups from blocks of the file; what the blocks lack is an error."""
    return decode_groups(footer, indices, names, open_native(_Blocks(blocks), size, "sidecar"), frugal=frugal)


def decode_groups(
    footer: PartFooter, indices: Sequence[int], names: Sequence[str], source: pa.NativeFile, *, frugal: bool = True
) -> pa.RecordBatch:
    """Decode the named columns of some row groups of an open file.

    ``frugal`` does it in as little memory as can be. Columns are not decoded side by side: they are so small that
    handing them to threads costs more than it saves.
    """
    for index in indices:
        footer.check_index(index)
    what = f"row group {' and '.join(map(str, indices))}"
    columns = list(names)
    codes = footer.coded(columns)
    try:
        reader = _reader(source, footer.metadata, codes, frugal=frugal)
        table = reader.read_row_groups(list(indices), column_indices=footer.leaves(columns), use_threads=False)
        arrays = [_spelled_out(table.column(name)) for name in columns]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        message = f"{what} cannot be read: {error}"
        raise SidecarError(message) from error
    expected = sum(footer.groups[index].num_rows for index in indices)
    if table.num_rows != expected:
        message = f"{what} has {table.num_rows} rows, not {expected}"
        raise SidecarError(message)
    return pa.RecordBatch.from_arrays(arrays, columns)


def _reader(source: pa.NativeFile, metadata: pq.FileMetaData, codes: Sequence[str], *, frugal: bool) -> Any:
    """Open a file whose footer is known, decoded by the system's allocator if that is to be ``frugal``.

    Arrow's own is faster and takes its memory two megabytes at a time, for every thread: that is more than all else
    that a short scan takes. Only the reader inside of a ``ParquetFile`` can be told, which also spares a long scan to
    look the names of all columns up for every few row groups.
    """
    reader = ParquetReader(memory_pool=pa.system_memory_pool() if frugal else None)
    reader.open(source, metadata=metadata, read_dictionary=codes, **_VERIFIED)
    return reader


def _spelled_out(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece, with texts in the place of codes.

    To look the codes up in their dictionary takes half the time that it takes to decode text after text.
    """
    is_coded = pa.types.is_dictionary(column.type)
    return one_array(pc.cast(column, column.type.value_type) if is_coded else column)


class _Blocks:
    """Positioned reads over blocks that were fetched already."""

    def __init__(self, blocks: Sequence[tuple[int, bytes]]) -> None:
        self._blocks = blocks

    def read_at(self, start: int, length: int) -> bytes | memoryview:
        for begin, data in self._blocks:
            if begin <= start and start + length <= begin + len(data):
                return memoryview(data)[start - begin : start - begin + length]
        message = f"bytes {start} to {start + length} were not fetched"
        raise ValueError(message)

    def close(self) -> None:
        """Nothing to stop."""
