"""File keys: decide whether two log entries refer to the same file.

A key is the canonical path and the id of the deletion vector. ``/x``, ``file:/x`` and ``file:///x`` are one path, and
so are two percent-encodings of the same bytes. Keys are compared as 128-bit hashes, computed for a whole batch at once:
a tail with a million tombstones takes 16 MB of integers instead of 200 MB of Python strings. The hash is seeded per
process, so a log with colliding paths cannot be crafted. The probability of an accidental collision among a billion
keys is below 2**-68.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, TypeAlias
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa

from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import from_numpy

if TYPE_CHECKING:
    import numpy.typing as npt  # builds its docstrings at import

__all__ = ["Hashes", "RemoveSet", "canonical_path", "first_occurrence", "hash_bytes", "hash_keys"]


Hashes: TypeAlias = "npt.NDArray[np.uint64]"
"""Shape (2, n): the two halves of n 128-bit hashes."""

_FILE = r"(?i)file:(?://(?:localhost)?)?(?=/)"
_WORD = 8
_SLASH = ord("/")
_LONG = 2048


def canonical_path(path: str) -> bytes:
    """Return the canonical bytes of a path, the same for every spelling."""
    if path[:5].lower() == "file:":
        path = re.sub(_FILE, "", path, count=1)
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    return unquote_to_bytes(path.encode("utf-8", "surrogatepass"))


def hash_keys(path: pa.Array, deletion_vector: pa.Array | None = None) -> Hashes:
    """Hash the keys of a batch of files."""
    path = pc.cast(path, pa.binary()) if path.type != pa.binary() else path
    has_vectors = deletion_vector is not None and deletion_vector.null_count < len(deletion_vector)
    if has_vectors or not is_canonical(path):
        path = _rewritten(path, deletion_vector)
    return hash_bytes(path)


def hash_bytes(values: pa.Array) -> Hashes:
    """Hash binary or string values as they are; the hash of a null is undefined."""
    count = len(values)
    if count == 0:
        return np.empty((2, 0), np.uint64)
    offsets = np.frombuffer(values.buffers()[1], np.int32, count + 1, values.offset * 4).astype(np.int64)
    begin, length = int(offsets[0]), int(offsets[-1] - offsets[0])
    used = np.zeros(length + _WORD, np.uint8)  # padded: the last word of the last value reads past its end
    data = values.buffers()[2]
    if data is not None and length:
        used[:length] = np.frombuffer(data, np.uint8, length, begin)
    return _hash_slices(used, offsets[:-1] - begin, np.diff(offsets))


def first_occurrence(hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Return for each key whether it is its first occurrence."""
    ordered = np.sort(hashes[0])
    if not (ordered[1:] == ordered[:-1]).any():
        return np.ones(hashes.shape[1], np.bool_)
    first = np.zeros(hashes.shape[1], np.bool_)
    _, indices = np.unique(np.ascontiguousarray(hashes.T).view("V16").ravel(), return_index=True)
    first[indices] = True
    return first


def is_canonical(path: pa.Array) -> bool:
    """Return whether every path of a batch is in canonical form."""
    data = path.buffers()[2]
    if data is None or len(path) == 0:
        return True
    offsets = np.frombuffer(path.buffers()[1], np.int32, len(path) + 1, path.offset * 4)
    text = memoryview(data)[offsets[0] : offsets[-1]].tobytes()
    if b"%" in text or b":" in text or b"\0" in text:
        return False
    if int(np.diff(offsets).max()) > _LONG:
        return False
    firsts = np.frombuffer(data, np.uint8)[offsets[:-1][offsets[:-1] < offsets[-1]]]
    return not (firsts == _SLASH).any()


def _rewritten(path: pa.Array, deletion_vector: pa.Array | None) -> pa.Array:
    canonical = [_bounded(canonical_path(each.decode("utf-8", "surrogatepass"))) for each in path.to_pylist()]
    if deletion_vector is not None:
        # A byte that no path contains separates (path, id) from a path that merely ends the same way.
        for index, vector in enumerate(deletion_vector.to_pylist()):
            if vector is not None:
                offset = vector["offset"]
                suffix = "" if offset is None else f"@{offset}"
                canonical[index] += f"\0{vector['storageType']}{vector['pathOrInlineDv']}{suffix}".encode()
    offsets = np.zeros(len(canonical) + 1, np.int32)
    np.cumsum([len(each) for each in canonical], out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(canonical), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(canonical))]
    )


def _bounded(path: bytes) -> bytes:
    # Paths are hashed word by word, all rows at once: a path of a megabyte would slow down its whole batch.
    path = path.replace(b"\0", b"\0\0")
    return path if len(path) <= _LONG else path[:_LONG] + b"\0" + hashlib.sha256(path).digest()


_seeds = np.frombuffer(os.urandom(32), np.uint64) | np.uint64(1)  # odd, so that multiplication is invertible
_masks = np.array([(1 << (8 * n)) - 1 for n in range(_WORD)] + [2**64 - 1], np.uint64)


def _hash_slices(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Hashes:
    # Every step folds eight bytes of all paths into two states at once. The strided view reads words at any byte.
    words = np.ndarray((len(data) - _WORD + 1,), np.dtype("<u8"), data, strides=(1,))
    count = len(starts)
    states = np.empty((2, count), np.uint64)
    states[0] = lengths.astype(np.uint64) * _seeds[0]
    states[1] = lengths.astype(np.uint64) ^ _seeds[1]
    longest, shortest = int(lengths.max()), int(lengths.min())
    first, second = states[0], states[1]
    for position in range(0, longest, _WORD):
        if position + _WORD <= shortest:
            word = words[starts + position]
            _mix(first, second, word)
            continue
        active = np.flatnonzero(lengths > position)
        left = np.minimum(lengths[active] - position, _WORD)
        word = words[starts[active] + position] & _masks[left]
        some_first, some_second = first[active], second[active]
        _mix(some_first, some_second, word)
        first[active], second[active] = some_first, some_second
    _mix(first, second, first ^ (second << np.uint64(1)))
    return states


def _mix(first: npt.NDArray[np.uint64], second: npt.NDArray[np.uint64], word: npt.NDArray[np.uint64]) -> None:
    first ^= word
    first *= _seeds[2]
    first ^= first >> np.uint64(32)
    second += word
    second *= _seeds[3]
    second ^= second >> np.uint64(29)


# ``PlainKeys``: find the paths of a batch that may be in a small set of plain paths, without hashing every path.


_MOST = 4096  # above this number, paths are not kept next to the hashes
_BLOCK = 128 << 10
_ESCAPE = b"%"
_LOOKED_AT = 256
_STEP = 4
_FURTHEST = 256
_TABLE_BITS = 16
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(64 - _TABLE_BITS)
_FEW = 12_000  # up to this many rows, a direct lookup is as fast as finding the distance
_MANY = 16  # if more than one row in this many matches, another distance may be better


class PlainKeys:
    """The paths of a set as strings, as long as they are few and in plain form.

    Two plain paths are the same file only if they are the same string, and then they share the eight bytes at any
    distance from their end. One gather and one lookup in a small table rule out nearly all rows. The distance that
    distinguishes paths best depends on the writer's file names (the last twenty bytes of ``….c000.snappy.parquet`` are
    of no use), so it is found by sampling.
    """

    def __init__(self) -> None:
        self._texts: list[pa.Array] | None = []
        self._count = 0
        self._distance: int | None = None
        self._table: npt.NDArray[np.bool_] | None = None

    def add(self, path: pa.Array) -> None:
        """Keep these paths too, or give up on all of them."""
        if self._texts is None:
            return
        self._count += len(path)
        self._table = None
        if self._count > _MOST or not is_canonical(path):
            self._texts = None
        else:
            self._texts.append(path)

    def candidates(self, path: pa.Array) -> npt.NDArray[np.int64] | None:
        """Return the rows whose path may be in the set; None if the strings cannot decide it.

        The kept paths have no escape, scheme or leading slash. Another spelling of such a path must contain an escape,
        so a batch without escapes is compared as it is.
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
        rows = np.flatnonzero(self._table[_word_slots(paths.words(distance))])
        if _MANY * len(rows) > paths.count:
            self._distance = None  # another writer may have named the files of the next batch
        return rows


class _Parts:
    """The offsets and bytes of a string array.

    A writer's file names within a partition mostly have the same length. The same bytes of each are then at a fixed
    stride, without a lookup of the offsets.
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
        """Return whether any string has an escape."""
        text, start, end = self._data.data, int(self._places[0]), int(self._places[-1])
        # In blocks that fit the CPU cache: a copy of everything would need memory from the system.
        return any(_ESCAPE in text[at : min(at + _BLOCK, end)].tobytes() for at in range(start, end, _BLOCK))

    def words(self, distance: int) -> npt.NDArray[np.uint64]:
        """Return the eight bytes at this distance from the end of each string that is long enough."""
        if not self._alike:
            long = self._lengths >= distance + _WORD
            ends = self._places[1:] if self.shortest >= distance + _WORD else self._places[1:][long]
            return self._words_before(ends, distance)
        if self.shortest < distance + _WORD:
            return np.empty(0, np.uint64)
        first = int(self._places[1]) - distance - _WORD
        return np.ndarray((self.count,), np.dtype("<u8"), self._data, first, (self.shortest,))

    def some_words(self, distance: int) -> npt.NDArray[np.uint64]:
        """Return the same for a sample of the strings, all of which are long enough."""
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
    # Not np.unique: its first call in a process loads numpy.ma, which takes as long as a short scan.
    return max(distances, key=lambda distance: len(set(paths.some_words(distance).tolist())))


def _table_of(texts: pa.Array, distance: int) -> npt.NDArray[np.bool_]:
    table = np.zeros(1 << _TABLE_BITS, np.bool_)
    table[_word_slots(_Parts(texts).words(distance))] = True  # all rows that are looked up are this long
    return table


def _word_slots(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    spread = words * _SPREAD
    spread >>= _SHIFT
    return spread.view(np.int64)


# ``RemoveSet``: the keys of the tail, exact and compact.


_KEY_BYTES = 16
_BITMAP_FROM = 1 << 14
_SLICE = 1 << 16
_LEAST = 1 << 20
# Merging two runs needs a third one and an index of their keys, so runs may take a third of the limit.
_MERGING = 3
_BITMAP_SHARE = 4


class RemoveSet:
    """A set of file keys with batched inserts and lookups.

    Keys are 128-bit hashes in sorted runs, 16 bytes per key. A new run is merged with its neighbours once it is as
    large as they are, so a million insertions sort a million keys about twenty times in total and a lookup searches few
    runs. Large runs have a bitmap of eight bits per key: most checkpoint rows are in no run, and one gather from the
    bitmap rules them out without a binary search.

    Before the runs and the memory to merge them exceed the limit, the largest run is spilled to a temporary file and
    mapped back in; the results stay the same. Files are merged in key ranges: keys are hashes, so the same range of two
    files is found by its first and last possible key. A bitmap that would exceed its share is omitted, and the files
    are searched.
    """

    def __init__(self, memory_limit: int = 64 << 20) -> None:
        self._memory_limit = max(memory_limit, _LEAST)  # with less, there would be too many small files
        self._runs: list[_SortedRun] = []
        self._spilled: list[_SortedRun] = []
        self._plain = PlainKeys()

    def __len__(self) -> int:
        return sum(len(run) for run in (*self._runs, *self._spilled))

    @property
    def memory(self) -> int:
        """Return the bytes held in memory."""
        return sum(run.memory for run in (*self._runs, *self._spilled))

    def add(self, path: pa.Array, deletion_vector: pa.Array | None = None, hashes: Hashes | None = None) -> Hashes:
        """Insert the keys of files, and return their ``hashes``, if they are not known; a key may be inserted again."""
        hashes = hash_keys(path, deletion_vector) if hashes is None else hashes
        self.add_hashed(path, hashes)
        return hashes

    def add_hashed(self, path: pa.Array, hashes: Hashes) -> None:
        """Insert the keys of files whose hashes are known."""
        self._plain.add(path)
        self.add_hashes(hashes)

    def add_hashes(self, hashes: Hashes) -> None:
        """Insert keys that are already hashed."""
        if hashes.shape[1] == 0:
            return
        keys = hashes.copy()
        while self._runs and len(self._runs[-1]) <= 2 * keys.shape[1]:
            keys = np.concatenate([self._runs.pop().keys, keys], axis=1)
        self._runs.append(_SortedRun.of(keys))
        if sum(run.memory for run in self._runs) > self._memory_limit // _MERGING:
            self._spill()

    def contains(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Return for each key whether it is in the set."""
        found = np.zeros(hashes.shape[1], np.bool_)
        for run in (*self._runs, *self._spilled):
            run.mark(hashes, found)
        return found

    def find(self, path: pa.Array, deletion_vector: pa.Array | None = None) -> npt.NDArray[np.bool_]:
        """Return for each file whether its key is in the set."""
        if len(self) == 0:
            return np.zeros(len(path), np.bool_)
        # The usual case: few keys in plain form. Comparing strings rules out rows many times faster than hashing.
        candidates = self._plain.candidates(path)
        if candidates is None:
            return self.contains(hash_keys(path, deletion_vector))
        found = np.zeros(len(path), np.bool_)
        if len(candidates):
            rows = from_numpy(candidates)
            vectors = None if deletion_vector is None else pc.take(deletion_vector, rows)
            found[candidates] = self.contains(hash_keys(pc.take(path, rows), vectors))
        return found

    def close(self) -> None:
        """Release memory and temporary files."""
        for run in self._spilled:
            run.close()
        self._runs, self._spilled, self._plain = [], [], PlainKeys()

    def _spill(self) -> None:
        run = self._runs.pop(0)
        # Merge a file with those that are not much larger, which keeps the number of files small.
        parts = [run]
        while self._spilled and len(self._spilled[-1]) <= 2 * sum(map(len, parts)):
            parts.append(self._spilled.pop())
        self._spilled.append(_merged_on_disk(parts, self._memory_limit // _BITMAP_SHARE))
        for part in parts:
            part.close()


class _SortedRun:
    """Sorted, distinct keys."""

    def __init__(self, keys: Hashes, file: IO[bytes] | None = None, most_bitmap: int | None = None) -> None:
        self.keys = keys
        self._file = file
        count = keys.shape[1]
        has_bitmap = count >= _BITMAP_FROM and (most_bitmap is None or _slots(count) // 8 <= most_bitmap)
        self._bits = _bitmap(keys[0]) if has_bitmap else None
        # Different keys may share their first half; the number of such duplicates bounds the search after a hit.
        same = 0
        for start in range(0, count - 1, _SLICE):
            first = keys[0, start : start + _SLICE + 1]
            same += int((first[1:] == first[:-1]).sum())
        self._reach = 1 + same

    @classmethod
    def of(cls, keys: Hashes) -> _SortedRun:
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
    """Sort and deduplicate keys, in place and one half at a time, because the peak of a merge bounds a large tail."""
    order = np.argsort(keys[0])
    for half in keys:
        half[:] = half[order]
    del order
    if (keys[0, 1:] == keys[0, :-1]).any():
        order = np.lexsort((keys[1], keys[0]))  # many times slower, and rarely needed
        for half in keys:
            half[:] = half[order]
        del order
        fresh = np.empty(keys.shape[1], np.bool_)
        fresh[0] = True
        np.not_equal(keys[0, 1:], keys[0, :-1], out=fresh[1:])
        fresh[1:] |= keys[1, 1:] != keys[1, :-1]
        if not fresh.all():
            keys = keys[:, fresh]
    return keys


def _merged_on_disk(runs: Sequence[_SortedRun], most_bitmap: int) -> _SortedRun:
    """Merge sorted runs into one file, one key range at a time."""
    import tempfile  # noqa: PLC0415 - few scans have this many keys

    most = sum(map(len, runs))
    file = tempfile.TemporaryFile(prefix="lazydelta-remove-set-")  # noqa: SIM115 - lives as long as the run
    stretches = -(-most // _SLICE)
    # The first possible key of each range but the first, and its position in each run.
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
    # Duplicate keys leave a hole after each half.
    file.truncate(2 * most * np.dtype(np.uint64).itemsize)
    file.flush()
    mapped = np.memmap(file, np.uint64, "r", shape=(2, most))
    return _SortedRun(mapped[:, :count], file, most_bitmap)


def _slots(count: int) -> int:
    return 1 << (8 * count - 1).bit_length()


def _bitmap(first: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    slots = _slots(len(first))
    bits = np.zeros(slots // 8, np.uint8)
    for start in range(0, len(first), _SLICE):
        wanted = first[start : start + _SLICE] & np.uint64(slots - 1)
        np.bitwise_or.at(bits, wanted >> np.uint64(3), np.uint8(1) << (wanted & np.uint64(7)).astype(np.uint8))
    return bits
