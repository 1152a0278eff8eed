"""``Ticket``: what a client sends to start or resume a stream.

It is JSON that the server signs: any client can read it, and none can change it. It pins the version and the timestamp
of ``now()``. ``position`` records progress: the number of files delivered, and a digest over them in order. To resume,
the server lists those files again and compares the digest. If it matches, the rest of the stream is exactly what is
missing, whatever has happened to the table's sidecars and checkpoints. If not, the position is lost, which is an error.
"""

from __future__ import annotations

import hashlib
import hmac
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.client.wire import ScanCommand
from lazydelta.errors import OptionError, TicketError
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import boolean_array, flags, numpy_of

__all__ = ["FileSequence", "Part", "Position", "Ticket", "TicketSigner", "in_part", "key_of", "parts_by_size"]


MAX_TICKET_BYTES = 512 << 10
_VERSION = 1
_DIGEST_BYTES = 16
_LEAST_KEY = 16


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A share of the files: those whose path has a checksum in the range from ``first`` up to but excluding ``end``."""

    first: int
    end: int


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of a client: ``files`` complete files, then ``rows`` of the file with key ``current``.

    ``strategy`` and ``sidecar`` record how the files were found, so that they can be found in the same order.
    """

    files: int
    digest: str
    strategy: str
    sidecar: bool
    rows: int = 0
    current: str = ""
    all_rows: int = 0


class Ticket(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A scan of one version for one client, with an expiry time."""

    command: ScanCommand
    table_id: str
    base: int
    holder: str
    expires: int
    part: Part | None = None
    position: Position | None = None


class _Signed(msgspec.Struct, forbid_unknown_fields=True):
    v: int
    signature: str
    ticket: msgspec.Raw


class TicketSigner:
    """Signs tickets with the server's key. Servers that share the key accept each other's tickets."""

    def __init__(self, key: bytes, *, lifetime: float = 3600.0, clock: Callable[[], float] = time.time) -> None:
        if len(key) < _LEAST_KEY:
            raise OptionError(
                "The key that signs tickets is too short", hint=f"pass at least {_LEAST_KEY} random bytes"
            )
        self._key = hashlib.blake2b(key, digest_size=32, person=b"lazydelta-ticket").digest()
        self._lifetime = lifetime
        self._clock = clock

    def expiry(self) -> int:
        """Return the expiry of a ticket created now, in seconds since 1970."""
        return int(self._clock() + self._lifetime)

    def encode(self, ticket: Ticket) -> bytes:
        """Return the ticket with its signature."""
        data = msgspec.json.encode(ticket)
        return b'{"v":%d,"signature":"%s","ticket":%s}' % (_VERSION, self._signature(data), data)

    def decode(self, data: bytes, holder: str) -> Ticket:
        """Return a ticket after checking its signature, holder and expiry."""
        if len(data) > MAX_TICKET_BYTES:
            message = f"The ticket has {len(data)} bytes, more than {MAX_TICKET_BYTES}"
            raise TicketError(message, hint="pass the ticket unchanged")
        hint = "ask for a new one with GetFlightInfo"
        try:
            signed = msgspec.json.decode(data, type=_Signed)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            raise TicketError("This is not a ticket", hint=hint) from None
        raw = bytes(signed.ticket)
        known = hmac.compare_digest(signed.signature.encode("utf-8", "replace"), self._signature(raw))
        if signed.v != _VERSION or not known:
            raise TicketError("This server did not sign the ticket", hint=hint)
        ticket = msgspec.json.decode(raw, type=Ticket)
        if ticket.expires < self._clock():
            raise TicketError("The ticket has expired", hint=hint)
        if ticket.holder != holder:
            raise TicketError("The ticket was made for another client", hint=hint)
        return ticket

    def _signature(self, data: bytes) -> bytes:
        return hmac.new(self._key, data, hashlib.sha256).hexdigest().encode()


class FileSequence:
    """A digest over the keys of files in order, independent of batch boundaries."""

    def __init__(self) -> None:
        self.count = 0
        # Most processors have SHA-256 instructions, so it is twice as fast as hashes designed for software.
        self._paths = hashlib.sha256()
        self._lengths = hashlib.sha256()
        self._vectors = hashlib.sha256()

    def add(self, path: pa.Array, vectors: pa.Array | None) -> None:
        """Add files. The bytes of their paths are hashed directly from the Arrow buffer."""
        count = len(path)
        if not count:
            return
        _, offsets_buffer, data = path.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, path.offset * 4)
        if data is not None:
            self._paths.update(memoryview(data)[int(offsets[0]) : int(offsets[-1])])
        self._lengths.update(np.diff(offsets).tobytes())
        if vectors is not None and vectors.null_count < count:
            for index in np.flatnonzero(flags(vectors.is_valid())):
                self._vectors.update(b"%d\0%s\0" % (self.count + int(index), _vector_id(vectors[int(index)].as_py())))
        self.count += count

    def add_one(self, path: str, vector: dict[str, object] | None) -> None:
        """Add one file."""
        data = path.encode("utf-8", "surrogatepass")
        self._paths.update(data)
        self._lengths.update(len(data).to_bytes(4, sys.byteorder))
        if vector is not None:
            self._vectors.update(b"%d\0%s\0" % (self.count, _vector_id(vector)))
        self.count += 1

    def digest(self) -> str:
        """Return the digest of all files so far."""
        parts = self._paths.digest() + self._lengths.digest() + self._vectors.digest()
        return hashlib.blake2b(parts, digest_size=_DIGEST_BYTES).hexdigest()


def key_of(path: str, vector: dict[str, object] | None) -> str:
    """Return a key that is unique among the files of a version."""
    data = path.encode("utf-8", "surrogatepass")
    tail = b"" if vector is None else b"\0" + _vector_id(vector)
    return hashlib.blake2b(data + tail, digest_size=_DIGEST_BYTES).hexdigest()


def _vector_id(vector: dict[str, object]) -> bytes:
    return f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector['offset']}".encode()


# Partitioned scans: parts are read in parallel or at different times, possibly by different processes.
#
# A checksum of the path alone assigns a file to a part. Ranges of row groups or stream positions would be cheaper, but
# a sidecar that appears or disappears between two tickets changes them. A file could then be in two parts or in none.


_BITS = 16
_BUCKETS = 1 << _BITS


def in_part(path: pa.Array, part: Part) -> pa.Array:
    """Return for each path whether it belongs to a part."""
    buckets = _buckets(path)
    return boolean_array((buckets >= part.first) & (buckets < part.end))


def parts_by_size(batches: Iterator[pa.RecordBatch], number: int) -> list[Part]:
    """Divide all files into ``number`` parts of about the same size in bytes. Some may be empty.

    A part exceeds an equal share by at most the contents of one of 65,536 buckets: a large file stays whole.
    """
    sizes = np.zeros(_BUCKETS, np.int64)
    for batch in batches:
        # Reading a file of size zero still costs something.
        np.add.at(sizes, _buckets(batch.column("path")), np.maximum(numpy_of(batch.column("size")), 1))
    total = np.cumsum(sizes)
    shares = [total[-1] * share // number for share in range(1, number)]
    cuts = [0, *(int(np.searchsorted(total, share, side="left")) + 1 if share else 0 for share in shares), _BUCKETS]
    return [Part(min(first, end), end) for first, end in pairwise(cuts)]


def _buckets(path: pa.Array) -> npt.NDArray[np.int64]:
    texts = pc.cast(path, pa.binary()).to_pylist()
    return np.fromiter((zlib.crc32(each) for each in texts), np.int64, len(texts)) >> (32 - _BITS)
