"""``RowDigest``: a fingerprint of many rows that does not depend on their order, in constant memory.

Every row becomes a 128-bit hash over its columns, and rows are summed up in buckets by their path. Two sets of rows are
equal if all sums are; where sums differ, few rows have to be looked at to find out which. All NaNs are one value, an
empty map is as good as none, and the order of a map's entries does not count: writers differ in these, and they mean
the same. Hashes are seeded by the process, so digests are for comparing, not for keeping.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import flags
from lazydelta.log.keys import Hashes, hash_bytes

__all__ = ["RowDigest", "bucket_of"]

BUCKETS = 1 << 14
_Words = npt.NDArray[np.uint64]

_NULL = np.uint64(0x9E3779B97F4A7C15)
_NAN = np.uint64(0x7FF8000000000000)


class RowDigest:
    """Sums of row hashes over the named columns."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        self._path = path
        self._names = list(names)
        self.rows = 0
        self.sums = np.zeros((2, BUCKETS), np.uint64)

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows."""
        hashes = np.zeros((2, rows.num_rows), np.uint64)
        for number, name in enumerate(self._names):
            hashes += _stirred(_column(rows.column(name)), number + 1)
        hashes = _stirred(hashes, 0)
        buckets = bucket_of(rows.column(self._path))
        for lane in range(2):
            np.add.at(self.sums[lane], buckets, hashes[lane])
        self.rows += rows.num_rows

    def differing(self, other: RowDigest) -> list[int]:
        """Return the buckets in which the rows are not the same."""
        found: list[int] = np.flatnonzero((self.sums != other.sums).any(axis=0)).tolist()
        return found


def bucket_of(path: pa.Array) -> npt.NDArray[np.int64]:
    """Return the bucket that each path belongs to."""
    buckets: npt.NDArray[np.int64] = (hash_bytes(path)[0] >> np.uint64(16)).astype(np.int64) & (BUCKETS - 1)
    return buckets


def _column(values: pa.Array) -> Hashes:
    kind = values.type
    if pa.types.is_map(kind):
        return _map(values)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = hash_bytes(values).copy()
    else:
        hashes = _fixed(values)
    if values.null_count:
        hashes[:, flags(values.is_null())] = _NULL
    return hashes


def _fixed(values: pa.Array) -> Hashes:
    kind = values.type
    if pa.types.is_null(kind):
        return np.zeros((2, len(values)), np.uint64)
    if pa.types.is_boolean(kind):
        values, kind = values.cast(pa.uint8()), pa.uint8()
    width = kind.bit_width // 8
    data = values.buffers()[1]
    if data is None or len(values) == 0:
        return np.zeros((2, len(values)), np.uint64)
    if pa.types.is_decimal(kind):
        words = np.frombuffer(data, "<u8", len(values) * 2, values.offset * 16).reshape(-1, 2)
        return np.stack([words[:, 0] ^ (words[:, 1] * _NULL), words[:, 1] + (words[:, 0] * _NAN)])
    if pa.types.is_floating(kind):
        numbers = np.frombuffer(data, f"<f{width}", len(values), values.offset * width).astype(np.float64)
        bits = numbers.view(np.uint64).copy()
        bits[np.isnan(numbers)] = _NAN
    else:
        bits = np.frombuffer(data, f"<u{width}", len(values), values.offset * width).astype(np.uint64)
    return np.stack([bits, bits])


def _map(values: pa.MapArray) -> Hashes:
    found = np.zeros((2, len(values)), np.uint64)
    if len(values) == 0 or values.null_count == len(values):
        return found
    entries = _stirred(_column(values.keys), 1) + _stirred(_column(values.items), 2)
    entries = _stirred(entries, 3)
    sums = np.zeros((2, entries.shape[1] + 1), np.uint64)
    np.cumsum(entries, axis=1, out=sums[:, 1:])
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    found = sums[:, offsets[1:]] - sums[:, offsets[:-1]]
    if values.null_count:
        found[:, flags(pc.is_null(values))] = 0
    return found


def _stirred(hashes: Hashes, salt: int) -> Hashes:
    """Mix the bits of every hash, differently for every salt and lane."""
    seeds = np.array([[2 * salt + 1], [2 * salt + 2]], np.uint64) * _NULL
    mixed: _Words = hashes + seeds
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
