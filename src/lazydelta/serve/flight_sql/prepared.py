"""Handles: what the server remembers between two calls of a client, under numbers that nobody can guess.

A handle is 128 random bits, belongs to the identity that made it, and expires. One that is unknown, expired or another
client's gets the same answer, so that trying tells nothing.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from lazydelta.errors import QueryError

__all__ = ["Handles"]

_BYTES = 16
Kept = TypeVar("Kept")


@dataclass
class _Entry(Generic[Kept]):
    value: Kept
    identity: Hashable
    expires: float


class Handles(Generic[Kept]):
    """Values of one kind by handle; ``what`` names the kind in errors.

    Each identity has room for ``most`` of them. Where ``replaces`` is set, a further one takes the place of the oldest;
    otherwise it is refused. Using a value puts its end off again.
    """

    def __init__(
        self,
        what: str,
        *,
        most: int,
        seconds: float,
        replaces: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._most = most
        self._seconds = seconds
        self._replaces = replaces
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry[Kept]] = OrderedDict()
        self._lock = Lock()

    def add(self, identity: Hashable, value: Kept) -> bytes:
        """Keep a value; return its handle."""
        handle = secrets.token_bytes(_BYTES)
        with self._lock:
            self._forget_expired()
            mine = [each for each, entry in self._entries.items() if entry.identity == identity]
            if len(mine) >= self._most:
                if not self._replaces:
                    message = f"There are {len(mine)} open {self._what}s, which is as many as one client may have"
                    raise QueryError(message, hint="close those that are not needed, or wait until they expire")
                del self._entries[mine[0]]
            self._entries[handle] = _Entry(value, identity, self._clock() + self._seconds)
        return handle

    def get(self, identity: Hashable, handle: bytes) -> Kept:
        """Return the value of a handle."""
        with self._lock:
            self._forget_expired()
            entry = self._entries.get(handle)
            if entry is None or entry.identity != identity:
                hint = "make it again; it ends with the connection, after a while, or when the server stops"
                raise QueryError(f"The {self._what} is not known here, or has expired", hint=hint)
            entry.expires = self._clock() + self._seconds
            self._entries.move_to_end(handle)
            return entry.value

    def pop(self, identity: Hashable, handle: bytes) -> Kept | None:
        """Forget a handle; return its value, None where there was none."""
        with self._lock:
            entry = self._entries.get(handle)
            if entry is None or entry.identity != identity:
                return None
            del self._entries[handle]
            return entry.value

    def __len__(self) -> int:
        with self._lock:
            self._forget_expired()
            return len(self._entries)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()

    def _forget_expired(self) -> None:
        # All live equally long and the used ones go to the end, so the first that lives ends the search.
        now = self._clock()
        while self._entries:
            handle, entry = next(iter(self._entries.items()))
            if entry.expires > now:
                return
            del self._entries[handle]
