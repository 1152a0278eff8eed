"""A scan in parts that are read side by side, at other moments, perhaps by other processes.

Which part a file belongs to is decided by a checksum of its path and by nothing else. Ranges of row groups or of the
stream would be cheaper to find, but a sidecar that comes or goes between two tickets changes them, and then a file
would be in two parts, or in none.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import boolean_array, numpy_of
from lazydelta.serve.ticket import Part

__all__ = ["in_part", "parts_by_size"]

_BITS = 16
_BUCKETS = 1 << _BITS


def in_part(path: pa.Array, part: Part) -> pa.Array:
    """Tell for each path whether it belongs to a part."""
    buckets = _buckets(path)
    return boolean_array((buckets >= part.first) & (buckets < part.end))


def parts_by_size(batches: Iterator[pa.RecordBatch], number: int) -> list[Part]:
    """Divide all files into ``number`` parts of about the same size in bytes; some may be empty.

    None is larger than an equal share by more than what falls into one of 65,536 buckets: a large file stays whole.
    """
    sizes = np.zeros(_BUCKETS, np.int64)
    for batch in batches:
        # A file of no size still is something to read.
        np.add.at(sizes, _buckets(batch.column("path")), np.maximum(numpy_of(batch.column("size")), 1))
    total = np.cumsum(sizes)
    shares = [total[-1] * share // number for share in range(1, number)]
    cuts = [0, *(int(np.searchsorted(total, share, side="left")) + 1 if share else 0 for share in shares), _BUCKETS]
    return [Part(min(first, end), end) for first, end in pairwise(cuts)]


def _buckets(path: pa.Array) -> npt.NDArray[np.int64]:
    texts = pc.cast(path, pa.binary()).to_pylist()
    return np.fromiter((zlib.crc32(each) for each in texts), np.int64, len(texts)) >> (32 - _BITS)
