"""Deletion vectors: the deleted rows of a data file.

A vector is a 64-bit roaring bitmap of row positions, inline in the log or in a separate file. Any defect is an error,
because a misread vector restores deleted rows or hides live ones.
"""

from __future__ import annotations

import base64
import uuid
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.errors import AccessDeniedError, DataFileError, ObjectNotFoundError, StorageError, StorageTimeoutError

if TYPE_CHECKING:
    from lazydelta.protocol.actions import DeletionVector
    from lazydelta.storage import Store

__all__ = ["DeletedRows", "VectorFile", "read_deletion_vector", "vector_path"]

_MAGIC = 1681511377
_FORMAT_VERSION = 1
_ENCODED_UUID = 20
_MAX_SIZE = _MAX_POSITION = 2**31 - 1
_FRAME = 8  # a length before the bitmap, a checksum after it
# A vector that begins this close to the file's version byte is read together with it.
_NEAR = 16 * 1024

_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85_TO_B85 = bytes.maketrans(_Z85, _B85)
_B85_TO_Z85 = bytes.maketrans(_B85, _Z85)


class DeletedRows:
    """The positions of a file's deleted rows."""

    __slots__ = ("_bitmap", "_new")

    def __init__(self, bitmap: Any, new: Any) -> None:
        self._bitmap = bitmap
        self._new = new

    def __len__(self) -> int:
        return len(self._bitmap)

    def positions(self) -> npt.NDArray[np.uint64]:
        """Return the deleted positions, in order."""
        return np.frombuffer(self._bitmap.to_array(), dtype=np.uint64)

    @property
    def end(self) -> int:
        """Return the last deleted position plus one."""
        return int(self._bitmap.max()) + 1 if self._bitmap else 0

    def pieces(self, at_once: int) -> Iterator[Any]:
        """Yield the deleted positions in ascending order, as arrays of uint64 of at most ``at_once`` elements."""
        for start in range(0, len(self._bitmap), at_once):
            yield self._bitmap[start : start + at_once].to_array()

    def to_roaring(self, *, data_file: str) -> bytes:
        """Return the positions as a 32-bit roaring bitmap in the portable format, which other libraries read."""
        from pyroaring import BitMap  # noqa: PLC0415 - only tables with deletion vectors need it

        if self.end > _MAX_POSITION:
            message = f"of {data_file} deletes row {self.end - 1}, and a bitmap of 32 bits ends before it"
            raise _bad(message, data_file, hint="read it with DeltaTable.rows")
        return BitMap(np.frombuffer(self._bitmap.to_array(), np.uint64).astype(np.uint32)).serialize()

    def kept(self, start: int, length: int) -> int:
        """Return how many of the ``length`` rows from ``start`` are live."""
        return length - int(self._bitmap.range_cardinality(start, start + length))

    def keep_mask(self, start: int, length: int) -> pa.BooleanArray | None:
        """Return which of the ``length`` rows from ``start`` are live; None if all of them are."""
        if self.kept(start, length) == length:
            return None
        # Only this range is expanded, so a vector of any size costs one batch of memory.
        gone = self._bitmap & self._new(range(start, start + length))
        mask = np.ones(length, dtype=np.bool_)
        mask[np.frombuffer(gone.to_array(), dtype=np.uint64) - np.uint64(start)] = False
        bits = np.packbits(mask, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), length, [None, pa.py_buffer(bits)])


class VectorFile:
    """A file of new deletion vectors, in memory until it is complete."""

    def __init__(self) -> None:
        name = uuid.uuid4()
        self.path = f"deletion_vector_{name}.bin"
        self._name = base64.b85encode(name.bytes).translate(_B85_TO_Z85).decode()
        self._data = bytearray([_FORMAT_VERSION])

    def add(self, positions: npt.NDArray[np.uint64]) -> DeletionVector:
        """Append the vector of a file's deleted rows."""
        from pyroaring import BitMap64  # noqa: PLC0415 - only tables with deletion vectors need it

        from lazydelta.protocol.actions import DeletionVector  # noqa: PLC0415 - it imports this module's users

        bitmap = BitMap64(positions)
        bitmap.run_optimize()
        payload = _MAGIC.to_bytes(4, "little") + bitmap.serialize()
        offset = len(self._data)
        self._data += len(payload).to_bytes(4, "big") + payload + zlib.crc32(payload).to_bytes(4, "big")
        return DeletionVector(
            storage_type="u",
            path_or_inline_dv=self._name,
            offset=offset,
            size_in_bytes=len(payload),
            cardinality=len(bitmap),
        )

    def data(self) -> bytes:
        """Return the contents of the file."""
        return bytes(self._data)


def read_deletion_vector(store: Store, vector: DeletionVector, *, data_file: str) -> DeletedRows:
    """Read and verify ``vector``, which hides rows of ``data_file``, from its location."""
    if not 0 <= vector.size_in_bytes <= _MAX_SIZE or vector.cardinality < 0:
        message = f"of {data_file} has size {vector.size_in_bytes} and cardinality {vector.cardinality}"
        raise _bad(message, data_file)
    if vector.storage_type == "i":
        where = f"in the log, of {data_file},"
        payload = _inline(vector, where, data_file)
        path = data_file
    else:
        home, path = _place(store, vector, data_file)
        where = f"in {path}, of {data_file},"
        payload = _stored(home, path, vector, where)
    return _decode(payload, vector, where, path)


def _inline(vector: DeletionVector, where: str, path: str) -> memoryview:
    payload = _z85(vector.path_or_inline_dv, where, path)
    # The encoding works in groups of four bytes; the last group may be padded.
    if not 0 <= len(payload) - vector.size_in_bytes < 4:  # noqa: PLR2004
        message = f"{where} holds {len(payload)} bytes, but the log says {vector.size_in_bytes}"
        raise _bad(message, path)
    return memoryview(payload)[: vector.size_in_bytes]


def _place(store: Store, vector: DeletionVector, data_file: str) -> tuple[Store, str]:
    if vector.storage_type == "p":
        return store.locate(vector.path_or_inline_dv)
    return store, vector_path(vector, data_file)


def vector_path(vector: DeletionVector, data_file: str) -> str:
    """Return the decoded path of a vector's file relative to the table's root; only for vectors named by a UUID."""
    text = vector.path_or_inline_dv
    if vector.storage_type != "u":
        message = f"of {data_file} has the storage type {vector.storage_type!r}, which is not u, p or i"
        raise _bad(message, data_file)
    prefix, encoded = text[:-_ENCODED_UUID], text[-_ENCODED_UUID:]
    raw = _z85(encoded, f"of {data_file}", data_file)
    parts = prefix.split("/") if prefix else []
    if len(encoded) != _ENCODED_UUID or "\0" in prefix or any(part in {"", ".", ".."} for part in parts):
        message = f"of {data_file} has the name {text[:200]!r}, which is not a prefix and an encoded UUID"
        raise _bad(message, data_file)
    return "/".join([*parts, f"deletion_vector_{uuid.UUID(bytes=raw)}.bin"])


def _stored(store: Store, path: str, vector: DeletionVector, where: str) -> memoryview:
    size = vector.size_in_bytes
    # The first byte is the format version: a vector cannot begin before the second.
    offset = vector.offset or 1
    if offset < 0:
        message = f"{where} has the negative offset {offset}"
        raise _bad(message, path)
    try:
        if offset <= _NEAR:
            whole = memoryview(store.get(path, start=0, length=offset + size + _FRAME))
            version, frame = whole[:1], whole[offset:]
        else:
            first, rest = store.fetch_ranges(path, [(0, 1), (offset, size + _FRAME)]).result()
            version, frame = memoryview(first), memoryview(rest)
    except ObjectNotFoundError as error:
        message = f"{where} does not exist"
        raise _bad(message, path, hint="it may have been vacuumed; a newer table version does not need it") from error
    except (AccessDeniedError, StorageTimeoutError):
        raise
    except StorageError as error:
        # Probably a range past the end of the file.
        message = f"{where} cannot be read from offset {offset}: {error}"
        raise _bad(message, path) from error
    if bytes(version) != bytes([_FORMAT_VERSION]):
        message = f"{where} is in a file of format version {bytes(version).hex() or 'none'}, not {_FORMAT_VERSION}"
        raise _bad(message, path)
    if len(frame) != size + _FRAME:
        message = f"{where} is truncated: {len(frame)} of {size + _FRAME} bytes from offset {offset}"
        raise _bad(message, path)
    stored_size = int.from_bytes(frame[:4], "big")
    if stored_size != size:
        message = f"{where} is {stored_size} bytes long, but the log says {size}"
        raise _bad(message, path)
    payload = frame[4 : 4 + size]
    if zlib.crc32(payload) != int.from_bytes(frame[4 + size :], "big"):
        message = f"{where} does not match its checksum"
        raise _bad(message, path)
    return payload


def _decode(payload: memoryview, vector: DeletionVector, where: str, path: str) -> DeletedRows:
    from pyroaring import BitMap64  # noqa: PLC0415 - only tables with deletion vectors need it

    if not payload and vector.cardinality == 0:
        return DeletedRows(BitMap64(), BitMap64)
    magic = int.from_bytes(payload[:4], "little")
    if magic != _MAGIC:
        message = f"{where} begins with {magic} instead of {_MAGIC}, so its format is unknown"
        raise _bad(message, path)
    try:
        bitmap = BitMap64.deserialize(bytes(payload[4:]))
        count = len(bitmap)
    except (ValueError, IndexError, OverflowError, MemoryError) as error:
        message = f"{where} is not a roaring bitmap: {error}"
        raise _bad(message, path) from error
    if count != vector.cardinality:
        message = f"{where} lists {count} rows, but the log says {vector.cardinality}"
        raise _bad(message, path)
    return DeletedRows(bitmap, BitMap64)


def _z85(text: str, where: str, path: str) -> bytes:
    try:
        raw = text.encode("ascii")
        # Characters that only the target alphabet has would pass the translation.
        if len(raw) % 5 or raw.translate(None, _Z85):
            raise ValueError  # noqa: TRY301 - a single handler converts every failure
        return base64.b85decode(raw.translate(_Z85_TO_B85))
    except ValueError as error:
        message = f"{where} is not Z85 text: {text[:200]!r}"
        raise _bad(message, path) from error


def _bad(what: str, path: str, *, hint: str | None = "restore it, or read a version without it") -> DataFileError:
    return DataFileError(f"The deletion vector {what}", path=path, hint=hint)
