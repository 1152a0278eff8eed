"""File keys: what makes two log entries speak of the same file.

A key is the canonical path and the id of the deletion vector. ``/x``, ``file:/x`` and ``file:///x`` are one path, and
so are two percent-encodings of the same bytes. Keys are compared as 128-bit hashes, computed for a whole batch at
once: a tail with a million tombstones is then 16 MB of integers and not 200 MB of Python strings. The hash is seeded
per process, so that nobody can write a log whose paths collide; by chance, among a billion keys, two collide with a
probability below 2**-68.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt  # its docstrings are made at import

__all__ = ["Hashes", "canonical_path", "first_occurrence", "hash_bytes", "hash_keys", "is_canonical"]

Hashes: TypeAlias = "npt.NDArray[np.uint64]"
"""Shape (2, n): the two halves of n 128-bit hashes."""

_FILE = r"(?i)file:(?://(?:localhost)?)?(?=/)"
_WORD = 8
_SLASH = ord("/")
_LONG = 2048


def canonical_path(path: str) -> bytes:
    """Return the bytes that every spelling of a path has in common."""
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
    """Hash binary or string values as they are; what a null hashes to means nothing."""
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
    """Tell for each key whether it is the first one of its kind."""
    first = np.zeros(hashes.shape[1], np.bool_)
    _, indices = np.unique(np.ascontiguousarray(hashes.T).view("V16").ravel(), return_index=True)
    first[indices] = True
    return first


def is_canonical(path: pa.Array) -> bool:
    """Tell whether every path of a batch is spelled as its canonical form."""
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
        # A byte that no path holds keeps (path, id) apart from a path that merely ends like one.
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
    # Paths are hashed word by word, all rows at once: one of a megabyte would hold up its whole batch.
    path = path.replace(b"\0", b"\0\0")
    return path if len(path) <= _LONG else path[:_LONG] + b"\0" + hashlib.sha256(path).digest()


_seeds = np.frombuffer(os.urandom(32), np.uint64) | np.uint64(1)  # odd, so that multiplying loses nothing
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
