"""`RowDigest`: an order-independent fingerprint of rows in constant memory, and how rows differ.

Rows are hashed to 128 bits and summed in buckets by path; if sums differ, only few rows have to be examined. Equivalent
forms hash the same: all NaNs, an empty and a missing map, any order of map entries. Hashes are seeded per process, so
digests must not be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.log.keys import Hashes, hash_bytes
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import boolean_array, flags

__all__ = ["RowDigest", "Rows", "bucket_of", "difference", "picked", "short"]

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
        """Add rows."""
        hashes = np.zeros((2, rows.num_rows), np.uint64)
        for number, name in enumerate(self._names):
            hashes += _stirred(_column(rows.column(name)), number + 1)
        hashes = _stirred(hashes, 0)
        buckets = bucket_of(rows.column(self._path))
        for lane in range(2):
            np.add.at(self.sums[lane], buckets, hashes[lane])
        self.rows += rows.num_rows

    def differing(self, other: RowDigest) -> list[int]:
        """Return the buckets whose rows differ."""
        found: list[int] = np.flatnonzero((self.sums != other.sums).any(axis=0)).tolist()
        return found


def bucket_of(path: pa.Array) -> npt.NDArray[np.int64]:
    """Return the bucket of each path."""
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


# Describe the differences between rows of the sidecar and of the log.


Rows = dict[str, list[dict[str, Any]]]


def picked(batches: Iterable[pa.RecordBatch], path: str, names: Sequence[str], buckets: Sequence[int]) -> Rows:
    """Return the rows of the given buckets by path."""
    found: Rows = {}
    for batch in batches:
        rows = batch.filter(boolean_array(np.isin(bucket_of(batch.column(path)), buckets)))
        for row in rows.select(list(names)).to_pylist():
            found.setdefault(row[path], []).append(row)
    return found


def difference(path: str, mine: list[dict[str, Any]], logged: list[dict[str, Any]]) -> str | None:
    """Describe how the rows of one path differ; None if they are equal."""
    if len(mine) != len(logged):
        return f"{path}: {len(mine)} times in the sidecar, {len(logged)} times in the log"
    for ours, theirs in zip(sorted(mine, key=_sorted), sorted(logged, key=_sorted), strict=True):
        for name, value in ours.items():
            if _plain(value) != _plain(theirs[name]):
                return f"{path}: {name} is {short(value)} in the sidecar and {short(theirs[name])} in the log"
    return None


def _sorted(row: dict[str, Any]) -> str:
    return repr({name: _plain(value) for name, value in row.items()})


def _plain(value: Any) -> str:
    """Return a value in a form in which equal values compare equal: maps come as lists of pairs."""
    if isinstance(value, list):
        value = sorted(value, key=repr) or None
    return repr(value)


def short(value: object) -> str:
    """Return a value as a string short enough for a message."""
    text = repr(value)
    limit = 120
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
