"""``CommitCache``: small objects of the log that were read already, or are on their way.

Opening a table and scanning it read the same commits. A bound in bytes keeps a long tail from staying in memory. Where
the listing gives etags, entries are also shared by all tables of the process: an object with the same name and etag is
the same object.
"""

from __future__ import annotations

from threading import Lock

from lazydelta.log.asked_ahead import AskedAhead
from lazydelta.lru import ByteLru
from lazydelta.storage import ObjectInfo

__all__ = ["CommitCache"]

_LIMIT = 8 << 20


class CommitCache:
    """Bytes by path for one snapshot, over what the process remembers.

    What came first stays, because commits come newest first each time: a memory that let the oldest entries go would
    have lost, at the end of a long tail, just those that the next reader begins with, and so all of them in turn.
    ``ahead`` is what is on its way. ``sound`` are large compactions as they were when they were found in order,
    ``rejected`` those that were not.
    """

    def __init__(
        self,
        identity: object = None,
        shared: ByteLru | None = None,
        limit: int = _LIMIT,
        *,
        ahead: AskedAhead | None = None,
    ) -> None:
        self._identity = identity
        self._shared = shared
        self._own: dict[str, bytes] = {}
        self._left = limit
        self._lock = Lock()
        self.ahead = AskedAhead() if ahead is None else ahead
        self.sound: dict[str, ObjectInfo] = {}
        self.rejected: set[str] = set()

    def get(self, path: str, etag: str | None = None) -> bytes | None:
        """Return the bytes of an object if they are here or arrive; None leaves the caller to ask for itself."""
        found = self.known(path, etag)
        if found is None and (found := self.ahead.read(path)) is not None:
            self.put(path, found, etag)
        return found

    def known(self, path: str, etag: str | None = None) -> bytes | None:
        """Return the bytes of an object that was read before."""
        found = self._own.get(path)
        if found is None and etag is not None and self._shared is not None:
            found = self._shared.get((self._identity, path, etag))
        return found

    def put(self, path: str, data: bytes, etag: str | None = None) -> None:
        """Keep the bytes of an object, as long as there is room."""
        with self._lock:
            if path not in self._own and len(data) <= self._left:
                self._own[path] = data
                self._left -= len(data)
        self.ahead.drop(path)
        if etag is not None and self._shared is not None:
            self._shared.put((self._identity, path, etag), data, len(data))
