"""``PlainKeys``: which paths of a batch may be among a few plainly spelled ones, told without hashing every path.

Two plain paths are the same file only if they are the same text, and then they have the same eight bytes at the same
distance from their end. One gather and one look into a small table say of nearly all rows that they are none of those
asked for. Which distance tells paths apart depends on how their writer names files (``….c000.snappy.parquet`` has
nothing of use in its last twenty bytes), so that it is found by looking at some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import from_numpy
from lazydelta.log.keys import is_canonical

if TYPE_CHECKING:
    import numpy.typing as npt  # its docstrings are made at import

__all__ = ["PlainKeys"]

_MOST = 4096  # beyond so many, their texts are not kept beside the hashes
_WORD = 8
_BLOCK = 128 << 10
_ESCAPE = b"%"
_LOOKED_AT = 256
_STEP = 4
_FURTHEST = 256
_TABLE_BITS = 16
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(64 - _TABLE_BITS)
_FEW = 12_000  # rows that are looked up as quickly as it is found out what tells them apart
_MANY = 16  # more than one row in so many: another distance may tell more


class PlainKeys:
    """The texts of a set of paths, for as long as they are few and plainly spelled."""

    def __init__(self) -> None:
        self._texts: list[pa.Array] | None = []
        self._count = 0
        self._distance: int | None = None
        self._table: npt.NDArray[np.bool_] | None = None

    def add(self, path: pa.Array) -> None:
        """Keep these texts as well, or none from now on."""
        if self._texts is None:
            return
        self._count += len(path)
        self._table = None
        if self._count > _MOST or not is_canonical(path):
            self._texts = None
        else:
            self._texts.append(path)

    def likely(self, path: pa.Array) -> npt.NDArray[np.int64] | None:
        """Return the rows whose path may be one of these; None where the texts do not tell.

        A key that has no escape, no scheme and no slash in front is what a row means that is spelled in another way
        only if the row has an escape. So a batch without one is compared as it is.
        """
        if self._texts is None or _has_escape(path):
            return None
        if len(self._texts) > 1:
            self._texts = [pa.concat_arrays(self._texts)]
        if not self._texts or not len(path):
            return np.empty(0, np.int64)
        rows = self._by_words(path, self._texts[0])
        if not len(rows):
            return rows
        named = path if len(rows) == len(path) else pc.take(path, from_numpy(rows))
        hits = pc.indices_nonzero(pc.is_in(named, value_set=self._texts[0]))
        return rows[np.frombuffer(hits.buffers()[1], np.uint64, len(hits)).astype(np.int64)]

    def _by_words(self, path: pa.Array, texts: pa.Array) -> npt.NDArray[np.int64]:
        if len(path) <= _FEW:
            return np.arange(len(path))
        starts, ends, data = _parts_of(path)
        if self._distance is None:
            self._distance, self._table = _telling_distance(starts, ends, data), None
        distance = self._distance
        if int((ends - starts).min()) < distance + _WORD:
            return np.arange(len(path))
        if self._table is None:
            self._table = _table_of(texts, distance)
        rows = np.flatnonzero(self._table[_slots(data, ends, distance)])
        if _MANY * len(rows) > len(path):
            self._distance = None  # the next batch may be of files that another writer named
        return rows


def _has_escape(path: pa.Array) -> bool:
    starts, ends, data = _parts_of(path)
    if not len(ends):
        return False
    text = data.data
    # In blocks that stay in the processor's cache: a copy of all would have to be fetched from the system.
    return any(_ESCAPE in text[at : at + _BLOCK].tobytes() for at in range(int(starts[0]), int(ends[-1]), _BLOCK))


def _parts_of(
    path: pa.Array,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return where each text begins and ends, and the bytes of all."""
    _, offsets, data = path.buffers()
    if data is None or not len(path):
        nowhere = np.zeros(len(path), np.int64)
        return nowhere, nowhere, np.empty(0, np.uint8)
    places = np.frombuffer(offsets, np.int32, len(path) + 1, path.offset * 4).astype(np.int64)
    return places[:-1], places[1:], np.frombuffer(data, np.uint8, int(places[-1]))


def _telling_distance(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> int:
    """Return the distance from the end at which the paths of a batch differ most."""
    some = ends[:: max(1, len(ends) // _LOOKED_AT)]
    shortest = int((ends - starts).min())
    distances = range(0, max(1, min(_FURTHEST, shortest - _WORD + 1)), _STEP)
    if shortest < _WORD:
        return 0
    # Not by np.unique: the first one of a process loads numpy.ma, which takes as long as a short scan.
    return max(distances, key=lambda distance: len(set(_words(data, some, distance).tolist())))


def _table_of(texts: pa.Array, distance: int) -> npt.NDArray[np.bool_]:
    starts, ends, data = _parts_of(texts)
    table = np.zeros(1 << _TABLE_BITS, np.bool_)
    long = ends[ends - starts >= distance + _WORD]  # all rows that are looked up are so long
    table[_slots(data, long, distance)] = True
    return table


def _slots(data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], distance: int) -> npt.NDArray[np.int64]:
    words = _words(data, ends, distance)
    words *= _SPREAD
    words >>= _SHIFT
    return words.view(np.int64)


def _words(data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], distance: int) -> npt.NDArray[np.uint64]:
    """Return the eight bytes of each text that end so far from its end."""
    if len(data) < _WORD:
        return np.empty(0, np.uint64)
    every = np.ndarray((len(data) - _WORD + 1,), np.dtype("<u8"), data, strides=(1,))
    return np.asarray(every[ends - (_WORD + distance)])
