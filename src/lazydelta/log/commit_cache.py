"""``CommitCache``: small objects of the tail that were read already, or are on their way.

Opening a table and scanning it read the same commits. They are immutable by name, so an entry is never wrong, and a
bound in bytes keeps a long tail from staying in memory. Requests may also be made before it is known whether their
objects exist: after the hint, the commits behind the checkpoint are asked for beside the listing and not after it,
which saves a round trip.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable
from threading import Lock

from lazydelta.errors import StorageError
from lazydelta.storage import Pending, Store

__all__ = ["CommitCache"]


class CommitCache:
    """Bytes by path, the oldest dropped first."""

    def __init__(self, limit: int = 8 << 20) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._expected: dict[str, Pending[bytes]] = {}
        self._lock = Lock()

    def expect(self, store: Store, paths: Iterable[str]) -> None:
        """Ask for objects that may exist."""
        for path in paths:
            self._expected[path] = store.fetch(path)

    def forget_all_but(self, paths: Container[str]) -> None:
        """Cancel what was expected and turned out not to be wanted."""
        for path in [each for each in self._expected if each not in paths]:
            self._expected.pop(path).cancel()

    def get(self, path: str) -> bytes | None:
        """Return the bytes of an object if they are here or arrive; None leaves the caller to ask for itself."""
        with self._lock:
            pending = self._expected.pop(path, None)
            if pending is None:
                return self._entries.get(path)
        try:
            data = pending.result()
        except StorageError:
            # It was not there yet when we asked, or the request failed: the real one tells.
            return None
        self.put(path, data)
        return data

    def put(self, path: str, data: bytes) -> None:
        """Keep the bytes of an object, dropping the oldest entries past the bound."""
        with self._lock:
            if path in self._entries or len(data) > self._limit:
                return
            self._entries[path] = data
            self._size += len(data)
            while self._size > self._limit:
                _, dropped = self._entries.popitem(last=False)
                self._size -= len(dropped)
