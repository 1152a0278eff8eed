"""``RepeatedValues``: columns that have one value in all rows of a file, which partition columns are.

In a table of narrow rows such a column of text is a fifth of all that is returned, and most of its time goes into fresh
memory. Where its texts end depends on their length alone, so that all files of a scan share that.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["RepeatedValues"]

_MOST_BYTES = 2**31 - 1
_BLOCK_BYTES = 64 << 10
_MOST_LENGTHS = 8  # hours, days and countries have one each


class RepeatedValues:
    """Makes such columns for the files of one scan."""

    def __init__(self) -> None:
        self._ends: dict[int, pa.Buffer] = {}

    def of(self, value: pa.Scalar, number: int) -> pa.Array:
        """Return ``value`` so many times."""
        kind = value.type
        if not value.is_valid or not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            return pa.repeat(value, number)
        data = value.as_buffer().to_pybytes()
        if len(data) * number > _MOST_BYTES:
            return pa.repeat(value, number)
        ends = self._ends_of(len(data), number)
        return pa.Array.from_buffers(kind, number, [None, ends, _filled(data, number)])

    def _ends_of(self, length: int, number: int) -> pa.Buffer:
        known = self._ends.get(length)
        size = 4 * (number + 1)
        if known is None or known.size < size:
            known = pa.py_buffer(np.arange(number + 1, dtype=np.int32) * np.int32(length))
            if length in self._ends or len(self._ends) < _MOST_LENGTHS:
                self._ends[length] = known
        return known if known.size == size else known.slice(0, size)


def _filled(data: bytes, number: int) -> pa.Buffer:
    # In Arrow's memory, which has large pages: Python's would be had page by page from the system. Blocks that stay in
    # the processor's cache are copied: value by value it takes seven times as long.
    size = len(data) * number
    buffer = pa.allocate_buffer(size)
    if size:
        values = np.frombuffer(buffer, np.uint8)
        block = np.frombuffer(data * min(number, max(1, _BLOCK_BYTES // len(data))), np.uint8)
        for start in range(0, size, len(block)):
            part = values[start : start + len(block)]
            part[:] = block[: len(part)]
    return buffer
