"""Bearer tokens: a file of salted hashes, each with the tables that its holder may read.

A token is ``NAME.SECRET``. The file has one JSON object per line: ``name``, ``salt``, ``hash`` (HMAC-SHA-256 of the
secret) and ``tables``. A secret is 24 random bytes, never a chosen password, so it cannot be guessed and a slow hash
would add no protection. A fast hash takes microseconds, the same for every wrong token whether its name is known or
not. A flood of wrong tokens therefore slows down no other client. The server reads the file again when it changes, so
tokens can be added and removed while it runs.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow.flight as fl

from lazydelta.client.wire import error_in_json
from lazydelta.errors import OptionError, UnauthenticatedError
from lazydelta.server.tables import ANYONE, Identity

__all__ = ["MIDDLEWARE", "AccessLog", "IdentityFactory", "TokenFile", "add_token", "identity_of"]


_NAME = re.compile(r"[A-Za-z0-9_\-]{1,64}")
_SECRET_BYTES = 24
_LONGEST_TOKEN = 512
_KIND = "sha256:"


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    salt: str
    hash: str
    tables: list[str] | None = None


def add_token(path: str | os.PathLike[str], name: str, tables: Sequence[str] | None = None) -> str:
    """Add a token to a file and return it. The file is created if needed. The secret is not stored anywhere."""
    if _NAME.fullmatch(name) is None:
        raise OptionError(f"{name!r} cannot be the name of a token", hint="use letters, digits, _ and -")
    file = Path(path)
    if file.exists() and any(entry.name == name for entry in _entries(file)):
        raise OptionError(f"There is a token {name!r} in {file} already", hint="delete its line to replace it")
    secret, salt = secrets.token_urlsafe(_SECRET_BYTES), secrets.token_bytes(16)
    entry = _Entry(name, salt.hex(), _hash(secret, salt), None if tables is None else list(tables))
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(number, "ab") as out:
        out.write(msgspec.json.encode(entry) + b"\n")
    return f"{name}.{secret}"


class TokenFile:
    """The tokens of a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, _Entry] = {}
        # Tokens with an unknown name are compared with this entry. No secret has this hash.
        self._none = _Entry("", secrets.token_hex(16), _KIND + secrets.token_hex(32))
        self._read()
        if not self._known:
            raise OptionError(f"There is no token in {self._path}", hint="add one: lazydelta serve token add")

    def identity(self, token: str) -> Identity:
        """Return the identity of a token. All invalid tokens get the same error in the same time."""
        name, _, secret = token[: _LONGEST_TOKEN + 1].partition(".")
        with self._lock:
            self._read()
            entry = self._known.get(name, self._none)
        is_right = hmac.compare_digest(_hash(secret, bytes.fromhex(entry.salt)).encode(), entry.hash.encode())
        if not is_right or len(token) > _LONGEST_TOKEN:
            raise _unknown()
        return Identity(entry.name, None if entry.tables is None else tuple(entry.tables))

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
        if not entry.hash.startswith(_KIND):
            message = f"The token {entry.name!r} in line {number} of {file} was made by an earlier version"
            raise OptionError(message, hint="delete the line and add the token again: lazydelta serve token add")
        found.append(entry)
    return found


def _hash(secret: str, salt: bytes) -> str:
    return _KIND + hmac.new(salt, secret.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _unknown() -> UnauthenticatedError:
    return UnauthenticatedError("The token is not known here", hint="ask the operator of the server for one")


# Authentication: the bearer token of each call is checked before anything else in it.


MIDDLEWARE = "identity"
_BEARER = "bearer "


class _Known(fl.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, identity: Identity) -> None:
        self.identity = identity


class IdentityFactory(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Derives the identity from ``authorization: Bearer TOKEN``. Without a token file, all clients are ``ANYONE``."""

    def __init__(self, tokens: TokenFile | None) -> None:
        self._tokens = tokens

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> _Known:  # noqa: ARG002 - gRPC's call
        """Return the identity of the call, or refuse the call."""
        if self._tokens is None:
            return _Known(ANYONE)
        try:
            return _Known(self._tokens.identity(_token(headers)))
        except UnauthenticatedError as error:
            raise fl.FlightUnauthenticatedError(str(error), error_in_json(error, str(error.args[0]))) from None
        except Exception as error:
            # If the file cannot be used, every client is refused without the reason.
            failed = UnauthenticatedError("The server cannot check tokens", hint="its operator can tell why")
            raise fl.FlightUnauthenticatedError(str(failed), error_in_json(failed, str(failed.args[0]))) from error


def identity_of(context: Any) -> Identity:
    """Return the identity of a call."""
    known = context.get_middleware(MIDDLEWARE)
    if known is None:
        raise UnauthenticatedError("The call has no identity", hint="send a bearer token")
    identity: Identity = known.identity
    return identity


def _token(headers: dict[str, list[Any]]) -> str:
    given = [value for name, values in headers.items() if name.lower() == "authorization" for value in values]
    texts = [each if isinstance(each, str) else each.decode("latin-1") for each in given]
    if len(texts) != 1 or not texts[0].lower().startswith(_BEARER):
        message = "This server wants a token, and there is none" if not texts else "The header is no bearer token"
        raise UnauthenticatedError(message, hint="send the header authorization: Bearer NAME.SECRET")
    return texts[0][len(_BEARER) :].strip()


# ``AccessLog``: one line of JSON per request, for auditing.


class AccessLog:
    """Writes requests to a text stream. Lines of concurrent threads do not interleave.

    Predicates can contain sensitive values, so they are not logged. Tokens and tickets are not logged either.
    """

    def __init__(self, out: IO[str] | None, *, clock: Callable[[], float] = time.time) -> None:
        self._out = out
        self._clock = clock
        self._lock = threading.Lock()

    def write(self, request: str, *, client: str, peer: str, how: str, **facts: Any) -> None:
        """Write the request, its client, peer and result, and further facts that are not None."""
        if self._out is None:
            return
        line = {"time": round(self._clock(), 3), "request": request, "client": client, "peer": peer, "how": how}
        line |= {name: value for name, value in facts.items() if value is not None}
        text = msgspec.json.encode(line).decode() + "\n"
        with self._lock:
            try:
                self._out.write(text)
                self._out.flush()
            except (OSError, ValueError):
                self._out = None  # a full disk or a closed pipe must not stop the server
