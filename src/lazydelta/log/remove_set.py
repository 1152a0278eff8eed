"""``RemoveSet``: the keys of the tail, exact and compact.

Keys are 128-bit hashes in sorted runs, 16 bytes a key. A new run is merged with its neighbours once it is as large as
they are, so a million insertions sort a million keys about twenty times in total and a lookup searches few runs. A
bitmap of eight bits a key stands before the large runs: most base rows are in no run, and one gather from the bitmap
says so without a binary search. The largest run moves to a temporary file, mapped back in, before runs and what it
takes to merge them exceed the memory limit; the answers do not change. Files are merged a stretch at a time: keys are
hashes, so that the same stretch of two files is found by its first and last possible key. A bitmap that would take
more than its share is left out, and the files are searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import from_numpy
from lazydelta.log.keys import Hashes, hash_keys
from lazydelta.log.plain_keys import PlainKeys

if TYPE_CHECKING:
    import numpy.typing as npt  # its docstrings are made at import

__all__ = ["RemoveSet"]

_KEY_BYTES = 16
_BITMAP_FROM = 1 << 14
_SLICE = 1 << 16
_LEAST = 1 << 20
# Two runs are merged into a third one beside an order of their keys: what is held is a third of what that takes.
_MERGING = 3
_BITMAP_SHARE = 4


class RemoveSet:
    """A set of file keys that grows by batches and answers by batches."""

    def __init__(self, memory_limit: int = 64 << 20) -> None:
        self._memory_limit = max(memory_limit, _LEAST)  # below that, files would outnumber what they hold
        self._runs: list[_Run] = []
        self._spilled: list[_Run] = []
        self._plain = PlainKeys()

    def __len__(self) -> int:
        return sum(len(run) for run in (*self._runs, *self._spilled))

    @property
    def memory(self) -> int:
        """Return the bytes held in memory."""
        return sum(run.memory for run in (*self._runs, *self._spilled))

    def add(self, path: pa.Array, deletion_vector: pa.Array | None = None) -> Hashes:
        """Insert the keys of files, and return their hashes; a key may be inserted again."""
        hashes = hash_keys(path, deletion_vector)
        self.add_hashed(path, hashes)
        return hashes

    def add_hashed(self, path: pa.Array, hashes: Hashes) -> None:
        """Insert the keys of files whose hashes are known."""
        self._plain.add(path)
        self.add_hashes(hashes)

    def add_hashes(self, hashes: Hashes) -> None:
        """Insert keys that are hashed already."""
        if hashes.shape[1] == 0:
            return
        keys = hashes.copy()
        while self._runs and len(self._runs[-1]) <= 2 * keys.shape[1]:
            keys = np.concatenate([self._runs.pop().keys, keys], axis=1)
        self._runs.append(_Run.of(keys))
        if sum(run.memory for run in self._runs) > self._memory_limit // _MERGING:
            self._spill()

    def contains(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Tell for each key whether it is in the set."""
        found = np.zeros(hashes.shape[1], np.bool_)
        for run in (*self._runs, *self._spilled):
            run.mark(hashes, found)
        return found

    def find(self, path: pa.Array, deletion_vector: pa.Array | None = None) -> npt.NDArray[np.bool_]:
        """Tell for each file whether its key is in the set."""
        if len(self) == 0:
            return np.zeros(len(path), np.bool_)
        # The usual case: few keys, plainly spelled. Texts tell many times as fast as hashes which rows it cannot be.
        likely = self._plain.likely(path)
        if likely is None:
            return self.contains(hash_keys(path, deletion_vector))
        found = np.zeros(len(path), np.bool_)
        if len(likely):
            rows = from_numpy(likely)
            vectors = None if deletion_vector is None else pc.take(deletion_vector, rows)
            found[likely] = self.contains(hash_keys(pc.take(path, rows), vectors))
        return found

    def close(self) -> None:
        """Give back memory and temporary files."""
        for run in self._spilled:
            run.close()
        self._runs, self._spilled, self._plain = [], [], PlainKeys()

    def _spill(self) -> None:
        run = self._runs.pop(0)
        # Few files, whatever the number of spills: a file is merged with those that are not much larger.
        parts = [run]
        while self._spilled and len(self._spilled[-1]) <= 2 * sum(map(len, parts)):
            parts.append(self._spilled.pop())
        self._spilled.append(_merged_on_disk(parts, self._memory_limit // _BITMAP_SHARE))
        for part in parts:
            part.close()


class _Run:
    """Sorted, distinct keys."""

    def __init__(self, keys: Hashes, file: IO[bytes] | None = None, most_bitmap: int | None = None) -> None:
        self.keys = keys
        self._file = file
        count = keys.shape[1]
        has_bitmap = count >= _BITMAP_FROM and (most_bitmap is None or _slots(count) // 8 <= most_bitmap)
        self._bits = _bitmap(keys[0]) if has_bitmap else None
        # Two different keys may share their first half; how far such a stretch reaches bounds the look beyond a hit.
        same = 0
        for start in range(0, count - 1, _SLICE):
            first = keys[0, start : start + _SLICE + 1]
            same += int((first[1:] == first[:-1]).sum())
        self._reach = 1 + same

    @classmethod
    def of(cls, keys: Hashes) -> _Run:
        return cls(np.ascontiguousarray(_sorted(keys)))

    def __len__(self) -> int:
        return int(self.keys.shape[1])

    @property
    def memory(self) -> int:
        keys = 0 if self._file is not None else len(self) * _KEY_BYTES
        return keys + (0 if self._bits is None else self._bits.nbytes)

    def mark(self, hashes: Hashes, found: npt.NDArray[np.bool_]) -> None:
        if self._bits is None:
            candidates = np.flatnonzero(~found)
        else:
            slots = hashes[0] & np.uint64(len(self._bits) * 8 - 1)
            bits = self._bits[slots >> np.uint64(3)] >> (slots & np.uint64(7)).astype(np.uint8)
            candidates = np.flatnonzero(((bits & 1) == 1) & ~found)
        if len(candidates) == 0:
            return
        first, second = hashes[0, candidates], hashes[1, candidates]
        at = np.searchsorted(self.keys[0], first)
        for step in range(self._reach):
            spot = np.minimum(at + step, len(self) - 1)
            found[candidates] |= (self.keys[0, spot] == first) & (self.keys[1, spot] == second)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _sorted(keys: Hashes) -> Hashes:
    """Sort keys, each once; in place, a half at a time: the peak of a merge is what a large tail costs."""
    order = np.lexsort((keys[1], keys[0]))
    for half in keys:
        half[:] = half[order]
    del order
    if keys.shape[1] > 1:
        fresh = np.empty(keys.shape[1], np.bool_)
        fresh[0] = True
        np.not_equal(keys[0, 1:], keys[0, :-1], out=fresh[1:])
        fresh[1:] |= keys[1, 1:] != keys[1, :-1]
        if not fresh.all():
            keys = keys[:, fresh]
    return keys


def _merged_on_disk(runs: Sequence[_Run], most_bitmap: int) -> _Run:
    """Write sorted runs to a file as one, a stretch of keys at a time."""
    import tempfile  # noqa: PLC0415 - few scans have so many keys

    most = sum(map(len, runs))
    file = tempfile.TemporaryFile(prefix="lazydelta-remove-set-")  # noqa: SIM115 - lives as long as the run
    stretches = -(-most // _SLICE)
    # The first possible key of each stretch but the first one; where these are in each run.
    ends = np.array([(2**64 * number) // stretches for number in range(1, stretches)], np.uint64)
    places = [[0, *np.searchsorted(run.keys[0], ends).tolist(), len(run)] for run in runs]
    count = 0
    for number in range(stretches):
        parts = [run.keys[:, at[number] : at[number + 1]] for run, at in zip(runs, places, strict=True)]
        keys = _sorted(np.concatenate(parts, axis=1))
        for half, values in enumerate(keys):
            file.seek((half * most + count) * values.itemsize)
            file.write(values.tobytes())
        count += keys.shape[1]
    # Keys that are there twice leave a hole behind each half.
    file.truncate(2 * most * np.dtype(np.uint64).itemsize)
    file.flush()
    mapped = np.memmap(file, np.uint64, "r", shape=(2, most))
    return _Run(mapped[:, :count], file, most_bitmap)


def _slots(count: int) -> int:
    return 1 << (8 * count - 1).bit_length()


def _bitmap(first: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    slots = _slots(len(first))
    bits = np.zeros(slots // 8, np.uint8)
    for start in range(0, len(first), _SLICE):
        wanted = first[start : start + _SLICE] & np.uint64(slots - 1)
        np.bitwise_or.at(bits, wanted >> np.uint64(3), np.uint8(1) << (wanted & np.uint64(7)).astype(np.uint8))
    return bits
