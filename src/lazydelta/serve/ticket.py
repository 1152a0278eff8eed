"""``Ticket``: what a client hands in for a stream, or for the rest of one.

It is JSON that anybody can read and nobody can change: the server signs it. The version is pinned, and so is the moment
that ``now()`` stands for. ``position`` says how far the client came: how many files it has, and a digest over them in
their order. Whoever resumes reads those files once more and compares; if it is the same sequence, what follows it is
exactly what is missing, whatever has happened to the table's sidecars and checkpoints. If not, the place is lost, and
that is an error rather than a guess.
"""

from __future__ import annotations

import hashlib
import hmac
import sys
import time
from collections.abc import Callable

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.arrays import flags
from lazydelta.errors import OptionError, TicketError
from lazydelta.wire import ScanCommand

__all__ = ["FileSequence", "Part", "Position", "Ticket", "TicketSigner", "key_of"]

MAX_TICKET_BYTES = 512 << 10
_VERSION = 1
_DIGEST_BYTES = 16
_LEAST_KEY = 16


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A share of the files: those whose path has a checksum from ``first`` up to, but not with, ``end``."""

    first: int
    end: int


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a client came: ``files`` to their end, then ``rows`` of the file whose key is ``current``.

    ``strategy`` and ``sidecar`` are how the files were found, so that they are found in the same order again.
    """

    files: int
    digest: str
    strategy: str
    sidecar: bool
    rows: int = 0
    current: str = ""
    all_rows: int = 0


class Ticket(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A scan of one version, for one client, until it expires."""

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
    """Signs tickets with a key of the server; those who share the key take each other's tickets."""

    def __init__(self, key: bytes, *, lifetime: float = 3600.0, clock: Callable[[], float] = time.time) -> None:
        if len(key) < _LEAST_KEY:
            raise OptionError(
                "The key that signs tickets is too short", hint=f"give at least {_LEAST_KEY} random bytes"
            )
        self._key = hashlib.blake2b(key, digest_size=32, person=b"lazydelta-ticket").digest()
        self._lifetime = lifetime
        self._clock = clock

    def expiry(self) -> int:
        """Return when a ticket that is made now expires, in seconds since 1970."""
        return int(self._clock() + self._lifetime)

    def encode(self, ticket: Ticket) -> bytes:
        """Return the ticket with its signature."""
        data = msgspec.json.encode(ticket)
        return b'{"v":%d,"signature":"%s","ticket":%s}' % (_VERSION, self._signature(data), data)

    def decode(self, data: bytes, holder: str) -> Ticket:
        """Return a ticket that was signed here, for this holder, and has not expired."""
        if len(data) > MAX_TICKET_BYTES:
            message = f"The ticket has {len(data)} bytes, more than {MAX_TICKET_BYTES}"
            raise TicketError(message, hint="hand in a ticket as the server gave it")
        hint = "ask for a new one with GetFlightInfo"
        try:
            signed = msgspec.json.decode(data, type=_Signed)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            raise TicketError("This is no ticket", hint=hint) from None
        raw = bytes(signed.ticket)
        known = hmac.compare_digest(signed.signature.encode("utf-8", "replace"), self._signature(raw))
        if signed.v != _VERSION or not known:
            raise TicketError("This server did not sign the ticket", hint=hint)
        ticket = msgspec.json.decode(raw, type=Ticket)
        if ticket.expires < self._clock():
            raise TicketError("The ticket has expired", hint=hint)
        if ticket.holder != holder:
            raise TicketError("The ticket was made for somebody else", hint=hint)
        return ticket

    def _signature(self, data: bytes) -> bytes:
        return hmac.new(self._key, data, hashlib.sha256).hexdigest().encode()


class FileSequence:
    """A digest over the keys of files in their order, however they are divided into batches."""

    def __init__(self) -> None:
        self.count = 0
        # Most processors have instructions for it: twice as fast as what is made to be fast without.
        self._paths = hashlib.sha256()
        self._lengths = hashlib.sha256()
        self._vectors = hashlib.sha256()

    def add(self, path: pa.Array, vectors: pa.Array | None) -> None:
        """Add files; the bytes of their paths are taken as they lie in memory."""
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
    """Return what tells a file from all others of its version."""
    data = path.encode("utf-8", "surrogatepass")
    tail = b"" if vector is None else b"\0" + _vector_id(vector)
    return hashlib.blake2b(data + tail, digest_size=_DIGEST_BYTES).hexdigest()


def _vector_id(vector: dict[str, object]) -> bytes:
    return f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector['offset']}".encode()
