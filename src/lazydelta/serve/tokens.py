"""Bearer tokens: a file of salted hashes, and for each the tables that its holder may read.

A token is ``NAME.SECRET``. The file has one JSON object a line: ``name``, ``salt`` and ``hash`` (scrypt of the secret),
and ``tables``. Whoever reads the file can use none of them. The server looks at the file again when it has changed, so
that a token can be added or taken away while it runs.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from lazydelta.errors import OptionError, UnauthenticatedError
from lazydelta.serve.served_tables import Identity

__all__ = ["TokenFile", "add_token"]

_NAME = re.compile(r"[A-Za-z0-9_\-]{1,64}")
_SECRET_BYTES = 24
_LONGEST_TOKEN = 512
_COST = {"n": 1 << 14, "r": 8, "p": 1, "maxmem": 64 << 20}
_MOST_REMEMBERED = 1024


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    salt: str
    hash: str
    tables: list[str] | None = None


def add_token(path: str | os.PathLike[str], name: str, tables: Sequence[str] | None = None) -> str:
    """Add a token to a file, which is made if need be, and return it; it is shown this once and kept nowhere."""
    if _NAME.fullmatch(name) is None:
        raise OptionError(f"{name!r} cannot be the name of a token", hint="use letters, digits, _ and -")
    file = Path(path)
    if file.exists() and any(entry.name == name for entry in _entries(file)):
        raise OptionError(f"There is a token {name!r} in {file} already", hint="delete its line to replace it")
    secret, salt = secrets.token_urlsafe(_SECRET_BYTES), secrets.token_bytes(16)
    entry = _Entry(name, salt.hex(), _hash(secret, salt).hex(), None if tables is None else list(tables))
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(number, "ab") as out:
        out.write(msgspec.json.encode(entry) + b"\n")
    return f"{name}.{secret}"


class TokenFile:
    """The tokens of a file; each is hashed the slow way once, and remembered by a fast hash of this process."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._hashing = threading.Lock()
        self._key = secrets.token_bytes(32)
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, _Entry] = {}
        self._verified: dict[bytes, Identity] = {}
        self._read()
        if not self._known:
            raise OptionError(f"There is no token in {self._path}", hint="add one: lazydelta serve token add")

    def identity(self, token: str) -> Identity:
        """Return whose token it is; all that is wrong with one gets the same answer."""
        if len(token) > _LONGEST_TOKEN:
            raise _unknown()
        seen = hashlib.blake2b(token.encode("utf-8", "replace"), key=self._key).digest()
        name, _, secret = token.partition(".")
        with self._lock:
            self._read()
            known, entry, stamp = self._verified.get(seen), self._known.get(name), self._stamp
        if known is not None:
            return known
        if entry is None:
            raise _unknown()
        # One at a time: hashing is slow on purpose, and a flood of wrong tokens must not take all processors. Who was
        # let in before does not wait for it.
        with self._hashing:
            is_right = hmac.compare_digest(_hash(secret, bytes.fromhex(entry.salt)).hex(), entry.hash)
        if not is_right:
            raise _unknown()
        found = Identity(entry.name, None if entry.tables is None else tuple(entry.tables))
        with self._lock:
            if stamp == self._stamp and len(self._verified) < _MOST_REMEMBERED:
                self._verified[seen] = found
        return found

    def _read(self) -> None:
        try:
            info = self._path.stat()
        except OSError as error:
            hint = "make one: lazydelta serve token add"
            raise OptionError(f"The file of tokens {self._path} cannot be read: {error.strerror}", hint=hint) from None
        stamp = (info.st_mtime_ns, info.st_size, info.st_ino)
        if stamp == self._stamp:
            return
        self._known = {entry.name: entry for entry in _entries(self._path)}
        self._verified = {}
        self._stamp = stamp


def _entries(file: Path) -> list[_Entry]:
    decoder = msgspec.json.Decoder(_Entry)
    found: list[_Entry] = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = decoder.decode(line)
            bytes.fromhex(entry.salt)
        except (msgspec.MsgspecError, ValueError):
            message = f"Line {number} of {file} is no token"
            raise OptionError(message, hint="lines are written by lazydelta serve token add") from None
        found.append(entry)
    return found


def _hash(secret: str, salt: bytes) -> bytes:
    return hashlib.scrypt(secret.encode("utf-8", "replace"), salt=salt, dklen=32, **_COST)


def _unknown() -> UnauthenticatedError:
    return UnauthenticatedError("The token is not known here", hint="ask whoever runs the server for one")
