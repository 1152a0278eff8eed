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
        if self._texts is None:
            return None
        parts = _Parts(path)
        if parts.have_escapes():
            return None
        if len(self._texts) > 1:
            self._texts = [pa.concat_arrays(self._texts)]
        if not self._texts or not len(path):
            return np.empty(0, np.int64)
        rows = self._by_words(parts, self._texts[0])
        if not len(rows):
            return rows
        named = path if len(rows) == len(path) else pc.take(path, from_numpy(rows))
        hits = pc.indices_nonzero(pc.is_in(named, value_set=self._texts[0]))
        return rows[np.frombuffer(hits.buffers()[1], np.uint64, len(hits)).astype(np.int64)]

    def _by_words(self, paths: _Parts, texts: pa.Array) -> npt.NDArray[np.int64]:
        if paths.count <= _FEW:
            return np.arange(paths.count)
        if self._distance is None:
            self._distance, self._table = _telling_distance(paths), None
        distance = self._distance
        if paths.shortest < distance + _WORD:
            return np.arange(paths.count)
        if self._table is None:
            self._table = _table_of(texts, distance)
        rows = np.flatnonzero(self._table[_slots(paths.words(distance))])
        if _MANY * len(rows) > paths.count:
            self._distance = None  # the next batch may be of files that another writer named
        return rows


class _Parts:
    """Where the texts of an array begin and end, and the bytes of all.

    The names that one writer gives to the files of a partition are mostly of one length: then the same bytes of each
    are found by counting, and not by looking where it ends.
    """

    def __init__(self, texts: pa.Array) -> None:
        _, offsets, data = texts.buffers()
        self.count = len(texts)
        if data is None or not self.count:
            self._places = np.zeros(self.count + 1, np.int32)
            self._data = np.empty(0, np.uint8)
        else:
            self._places = np.frombuffer(offsets, np.int32, self.count + 1, texts.offset * 4)
            self._data = np.frombuffer(data, np.uint8, int(self._places[-1]))
        lengths = np.diff(self._places)
        self.shortest = int(lengths.min()) if self.count else 0
        self._alike = self.shortest * self.count == int(self._places[-1]) - int(self._places[0])
        self._lengths = lengths

    def have_escapes(self) -> bool:
        """Tell whether any text has an escape."""
        text, start, end = self._data.data, int(self._places[0]), int(self._places[-1])
        # In blocks that stay in the processor's cache: a copy of all would have to be fetched from the system.
        return any(_ESCAPE in text[at : min(at + _BLOCK, end)].tobytes() for at in range(start, end, _BLOCK))

    def words(self, distance: int) -> npt.NDArray[np.uint64]:
        """Return the eight bytes that end so far from the end of each text that has as many."""
        if not self._alike:
            long = self._lengths >= distance + _WORD
            ends = self._places[1:] if self.shortest >= distance + _WORD else self._places[1:][long]
            return self._words_before(ends, distance)
        if self.shortest < distance + _WORD:
            return np.empty(0, np.uint64)
        first = int(self._places[1]) - distance - _WORD
        return np.ndarray((self.count,), np.dtype("<u8"), self._data, first, (self.shortest,))

    def some_words(self, distance: int) -> npt.NDArray[np.uint64]:
        """Return the same of some texts, all of which have as many."""
        return self._words_before(self._places[1 :: max(1, self.count // _LOOKED_AT)], distance)

    def _words_before(self, ends: npt.NDArray[np.int32], distance: int) -> npt.NDArray[np.uint64]:
        if len(self._data) < _WORD:
            return np.empty(0, np.uint64)
        every = np.ndarray((len(self._data) - _WORD + 1,), np.dtype("<u8"), self._data, strides=(1,))
        return every[ends.astype(np.int64) - (_WORD + distance)]


def _telling_distance(paths: _Parts) -> int:
    """Return the distance from the end at which the paths of a batch differ most."""
    if paths.shortest < _WORD:
        return 0
    distances = range(0, max(1, min(_FURTHEST, paths.shortest - _WORD + 1)), _STEP)
    # Not by np.unique: the first one of a process loads numpy.ma, which takes as long as a short scan.
    return max(distances, key=lambda distance: len(set(paths.some_words(distance).tolist())))


def _table_of(texts: pa.Array, distance: int) -> npt.NDArray[np.bool_]:
    table = np.zeros(1 << _TABLE_BITS, np.bool_)
    table[_slots(_Parts(texts).words(distance))] = True  # all rows that are looked up are so long
    return table


def _slots(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    spread = words * _SPREAD
    spread >>= _SHIFT
    return spread.view(np.int64)
