"""``ByteLru``: a thread-safe LRU cache with a limit in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any

__all__ = ["ByteLru", "shared"]


class ByteLru:
    """Values by key, each with its size in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()
        self.hits = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Return the number of bytes held."""
        return self._size

    def resize(self, limit: int) -> None:
        """Change the size limit."""
        with self._lock:
            self._limit = limit
            self._shrink()

    def get(self, key: Hashable) -> Any:
        """Return the value of a key, or None."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            self.hits += 1
            return found[0]

    def put(self, key: Hashable, value: object, size: int) -> None:
        """Store a value. One larger than the whole cache is not stored."""
        with self._lock:
            self._drop(key)
            if size > self._limit:
                return
            self._entries[key] = (value, size)
            self._size += size
            self._shrink()

    def remove(self, key: Hashable) -> None:
        """Remove a key."""
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
            self._size = 0

    def _drop(self, key: Hashable) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self._size -= found[1]

    def _shrink(self) -> None:
        while self._size > self._limit:
            _, (_, size) = self._entries.popitem(last=False)
            self._size -= size


shared = ByteLru(64 << 20)
"""The process-wide cache of immutable objects, shared by all tables and queries."""
