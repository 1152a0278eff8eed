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
import ipaddress
import logging
import os
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

import msgspec
import pyarrow.flight as fl

from lazydelta.client.wire import error_in_json
from lazydelta.errors import OptionError, UnauthenticatedError
from lazydelta.server.tables import ANYONE, Identity

__all__ = [
    "MIDDLEWARE",
    "AccessLog",
    "GuessLimit",
    "IdentityFactory",
    "TokenFile",
    "add_token",
    "identity_of",
    "peer_of",
]

_log = logging.getLogger(__name__)

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
        raise OptionError(f"There is already a token {name!r} in {file}", hint="delete its line first to replace it")
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
            hint = "create one: lazydelta serve token add"
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
            message = f"Line {number} of {file} is not a token"
            raise OptionError(message, hint="lines are written by lazydelta serve token add") from None
        if not entry.hash.startswith(_KIND):
            message = f"The token {entry.name!r} in line {number} of {file} was made by an earlier version"
            raise OptionError(message, hint="delete the line and add the token again: lazydelta serve token add")
        found.append(entry)
    return found


def _hash(secret: str, salt: bytes) -> str:
    return _KIND + hmac.new(salt, secret.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _unknown() -> UnauthenticatedError:
    return UnauthenticatedError("The token is not known here", hint="ask the server's operator for one")


# Limit of wrong tokens per address.


_MOST_WRONG = 20
_WINDOW_SECONDS = 60.0
_REMEMBERED = 4096
_IPV6_NETWORK = 64  # what one customer gets


class GuessLimit:
    """Limits how many tokens an address may try.

    After ``_MOST_WRONG`` wrong tokens within ``_WINDOW_SECONDS``, the address is told nothing about further tokens, not
    even about a right one, until the window is over. Tokens that were accepted from it before stay accepted, so that
    one program behind a proxy does not shut out the others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        self._accepted: OrderedDict[Hashable, None] = OrderedDict()

    def settle(self, address: str, found: Identity | UnauthenticatedError) -> Identity:
        """Return the identity of a token that was sent from an address, or raise why it is refused."""
        place, now = _network(address), self._clock()
        with self._lock:
            began, count = self._wrong.get(place, (now, 0))
            if now - began >= _WINDOW_SECONDS:
                began, count = now, 0
            is_over = count >= _MOST_WRONG
            if isinstance(found, Identity):
                if not is_over or (place, found.name) in self._accepted:
                    _remember(self._accepted, (place, found.name), None)
                    return found
            elif not is_over:
                _remember(self._wrong, place, (began, count + 1))
                raise found
        message = "Too many wrong tokens came from this address"
        raise UnauthenticatedError(message, hint=f"try again in {_WINDOW_SECONDS:g} s")


def _remember(held: OrderedDict[Hashable, Any], key: Hashable, value: Any) -> None:
    held[key] = value
    held.move_to_end(key)
    if len(held) > _REMEMBERED:
        held.popitem(last=False)


def _network(address: str) -> str:
    """Return the network whose hosts count as one: an IPv4 address, or the first half of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _IPV6_NETWORK), strict=False))


# Authentication: the bearer token of each call is checked before anything else in it.


MIDDLEWARE = "identity"
_BEARER = "bearer "


class _Checked(fl.ServerMiddleware):  # type: ignore[misc]
    """The result of checking the token of a call. Middleware has no address, so its handler settles the call."""

    def __init__(self, found: Identity | UnauthenticatedError, limit: GuessLimit | None) -> None:
        self.found = found
        self._limit = limit

    def settled(self, peer: str) -> Identity:
        limit, self._limit = self._limit, None
        if limit is not None:
            try:
                self.found = limit.settle(_host(peer), self.found)
            except UnauthenticatedError as error:
                self.found = error
        if isinstance(self.found, UnauthenticatedError):
            raise self.found
        return self.found


class IdentityFactory(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Checks ``authorization: Bearer TOKEN``. Without a token file, all clients are ``ANYONE``."""

    def __init__(self, tokens: TokenFile | None) -> None:
        self._tokens = tokens
        self._limit = GuessLimit()

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> _Checked:
        """Return the result of the check. A refused call gets no further than ``identity_of`` in its handler.

        GetSchema is refused here and not counted: PyArrow sends the trace of what its handler raises.
        """
        checked = self._checked(headers)
        if info.method == fl.FlightMethod.GET_SCHEMA and isinstance(error := checked.found, UnauthenticatedError):
            raise fl.FlightUnauthenticatedError(str(error), error_in_json(error, str(error.args[0])))
        return checked

    def _checked(self, headers: dict[str, list[Any]]) -> _Checked:
        if self._tokens is None:
            return _Checked(ANYONE, None)
        try:
            token = _token(headers)
        except UnauthenticatedError as error:
            return _Checked(error, None)  # not a guess
        try:
            return _Checked(self._tokens.identity(token), self._limit)
        except UnauthenticatedError as error:
            return _Checked(error, self._limit)
        except Exception as error:  # noqa: BLE001 - every client is refused
            # If the file cannot be used, every client is refused without the reason.
            _log.error("tokens cannot be checked", exc_info=error)
            failed = UnauthenticatedError("The server cannot check tokens", hint="ask the server's operator")
            return _Checked(failed, None)


def identity_of(context: Any) -> Identity:
    """Return the identity of a call. Every handler calls this before anything else, and raises what it raises."""
    known = context.get_middleware(MIDDLEWARE)
    if known is None:
        raise UnauthenticatedError("The call has no identity", hint="send a bearer token")
    identity: Identity = known.settled(peer_of(context))
    return identity


def peer_of(context: Any) -> str:
    """Return the address and port of the client as gRPC writes them."""
    peer = context.peer()
    return peer.decode("utf-8", "replace") if isinstance(peer, bytes) else str(peer)


def _host(peer: str) -> str:
    """Return the address in ``ipv4:127.0.0.1:80`` or ``ipv6:%5B::1%5D:80``."""
    kind, _, place = peer.partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return peer
    return unquote(place).rpartition(":")[0].strip("[]")


def _token(headers: dict[str, list[Any]]) -> str:
    given = [value for name, values in headers.items() if name.lower() == "authorization" for value in values]
    texts = [each if isinstance(each, str) else each.decode("latin-1") for each in given]
    if len(texts) != 1 or not texts[0].lower().startswith(_BEARER):
        message = "This server requires a token" if not texts else "The header is not a bearer token"
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
