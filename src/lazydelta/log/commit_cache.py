"""``CommitCache``: small objects of the log that were read already, or are on their way.

Opening a table and scanning it read the same commits. A bound in bytes keeps a long tail from staying in memory. Where
the listing gives etags, entries are also shared by all tables of the process: an object with the same name and etag is
the same object. Requests may be made before it is known whether their objects exist: after the hint, the commits
behind the checkpoint are asked for beside the listing and not after it, which saves a round trip.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from threading import Lock

from lazydelta.errors import StorageError
from lazydelta.lru import ByteLru
from lazydelta.storage import ObjectInfo, Pending, Store

__all__ = ["CommitCache"]

_LIMIT = 8 << 20


class CommitCache:
    """Bytes by path for one snapshot, over what the process remembers.

    ``sound`` are large compactions as they were when they were found in order, ``rejected`` those that were not.
    """

    def __init__(self, identity: object = None, shared: ByteLru | None = None, limit: int = _LIMIT) -> None:
        self._identity = identity
        self._shared = shared
        self._own = ByteLru(limit)
        self._expected: dict[str, Pending[bytes]] = {}
        self._lock = Lock()
        self.sound: dict[str, ObjectInfo] = {}
        self.rejected: set[str] = set()

    def expect(self, store: Store, paths: Iterable[str]) -> None:
        """Ask for objects that may exist."""
        for path in paths:
            self._expected[path] = store.fetch(path)

    def forget_all_but(self, paths: Container[str]) -> None:
        """Cancel what was expected and turned out not to be wanted."""
        for path in [each for each in self._expected if each not in paths]:
            self._expected.pop(path).cancel()

    def get(self, path: str, etag: str | None = None) -> bytes | None:
        """Return the bytes of an object if they are here or arrive; None leaves the caller to ask for itself."""
        with self._lock:
            pending = self._expected.pop(path, None)
        if pending is None:
            found: bytes | None = self._own.get(path)
            if found is None and etag is not None and self._shared is not None:
                found = self._shared.get((self._identity, path, etag))
            return found
        try:
            data = pending.result()
        except StorageError:
            # It was not there yet when we asked, or the request failed: the real one tells.
            return None
        self.put(path, data, etag)
        return data

    def put(self, path: str, data: bytes, etag: str | None = None) -> None:
        """Keep the bytes of an object."""
        self._own.put(path, data, len(data))
        if etag is not None and self._shared is not None:
            self._shared.put((self._identity, path, etag), data, len(data))
