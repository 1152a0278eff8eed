"""``KeySample``: a sample of sort keys, from which the buckets of an external sort are cut."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import boolean_array, from_numpy

__all__ = ["KeySample"]


class KeySample:
    """Every so many-th key of those that go by: from ``size`` to twice as many are held, however many there are.

    Where less will do, every ``step``-th is taken from the first on: to make keys of all rows takes longer than to read
    them.
    """

    def __init__(self, size: int, *, step: int = 1) -> None:
        self._most = 2 * size
        self._step = step
        self._held = 0
        self._keys: list[pa.BinaryArray] = []

    def chosen(self, count: int) -> pa.BooleanArray | None:
        """Tell which of the next ``count`` rows are to be added; None for all. Others need no key."""
        return None if self._step == 1 else boolean_array(np.arange(count) % self._step == 0)

    def add(self, keys: pa.BinaryArray) -> None:
        """Take the keys of chosen rows."""
        self._keys.append(keys)
        self._held += len(keys)
        if self._held > self._most:
            self._step *= 2
            held = pa.concat_arrays(self._keys)
            self._keys = [held.take(from_numpy(np.arange(0, len(held), 2)))]
            self._held = len(self._keys[0])

    def splitters(self, buckets: int) -> pa.BinaryArray:
        """Return the keys between so many buckets of about the same size; fewer where keys are equal."""
        if buckets <= 1 or not self._keys:
            return pa.nulls(0, pa.binary())
        ordered = pa.concat_arrays(self._keys)
        ordered = ordered.take(pc.sort_indices(ordered))
        places = np.arange(1, buckets, dtype=np.int64) * len(ordered) // buckets
        return ordered.take(from_numpy(places)).unique()

    def held(self) -> list[bytes]:
        """Return the keys that were kept."""
        return [key.as_py() for keys in self._keys for key in keys]

    def clear(self) -> None:
        """Give back memory."""
        self._keys, self._held = [], 0
