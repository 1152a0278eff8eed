"""Which partition each row of a batch belongs to, found without a step in Python for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.arrays import from_numpy
from lazydelta.types.partition_text import partition_texts

__all__ = ["Partition", "coded", "compact", "groups_of", "pieces"]

Partition: TypeAlias = tuple[str | None, ...]

_PIECE_ROWS = 1 << 18
# So many partitions are told apart by counting, however few the rows.
_COUNTED_PARTITIONS = 1 << 12


def groups_of(
    columns: Sequence[tuple[npt.NDArray[np.int64], list[str | None]]],
) -> tuple[list[Partition], npt.NDArray[np.int64]]:
    """Return the partitions that there are rows of, and for each row which of them it belongs to."""
    combined, count = columns[0][0], len(columns[0][1])
    for codes, texts in columns[1:]:
        combined, count = combined * len(texts) + codes, count * len(texts)
    if count > max(len(combined), _COUNTED_PARTITIONS):
        found, inverse = np.unique(combined, return_inverse=True)
    else:
        is_there = np.bincount(combined, minlength=count) > 0
        found, inverse = np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[combined]
    keys: list[Partition] = []
    for number in found.tolist():
        key: list[str | None] = []
        for _, texts in reversed(columns):
            number, code = divmod(number, len(texts))  # noqa: PLW2901 - digit by digit
            key.append(texts[code])
        keys.append(tuple(reversed(key)))
    return keys, inverse


def coded(values: pa.Array, column: str) -> tuple[npt.NDArray[np.int64], list[str | None]]:
    """Return for each row a number, and the partition texts that the numbers stand for."""
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    numbers: dict[str | None, int] = {}
    if encoded.null_count:
        numbers[None] = 0
    # Several values may share a text: null and the empty string, or 0.0 and -0.0.
    found = [numbers.setdefault(text, len(numbers)) for text in partition_texts(encoded.dictionary, column)]
    lookup = np.array(found or [0], np.int64)
    indices = encoded.indices.cast(pa.int32())
    if indices.null_count:
        indices = indices.fill_null(0)
    codes = lookup[np.frombuffer(indices.buffers()[1], np.int32, len(indices), indices.offset * 4)]
    if encoded.null_count:
        valid = encoded.indices.is_valid().cast(pa.int8())
        codes = np.where(np.frombuffer(valid.buffers()[1], np.int8, len(valid), valid.offset) == 1, codes, 0)
    return codes, list(numbers)


def pieces(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut a huge batch, so that what is copied and encoded at once stays small."""
    if batch.num_rows == 0:
        return
    rows = min(_PIECE_ROWS, max(1, batch.num_rows * most_bytes // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch that keeps much more memory alive than it has rows for: a slice of a larger one."""
    if batch.get_total_buffer_size() <= 2 * batch.nbytes + (1 << 16):
        return batch
    return batch.take(from_numpy(np.arange(batch.num_rows, dtype=np.int64)))
