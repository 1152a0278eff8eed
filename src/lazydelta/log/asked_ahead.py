"""``AskedAhead``: objects that were asked for before it was known whether they exist, or whether somebody wants them.

After the hint, the commits and checksums behind the checkpoint and what lies beside it are asked for together with the
listing and not after it, which saves a round trip. What turns out not to exist is a cheap miss; what is not wanted is
cancelled. An answer stays here until somebody who keeps it elsewhere says so.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from threading import Lock

from lazydelta.errors import StorageError
from lazydelta.storage import Pending, Store

__all__ = ["AskedAhead"]


class AskedAhead:
    """Requests under way and their answers, by path; safe under threads."""

    def __init__(self) -> None:
        self._requests: dict[str, Pending[bytes]] = {}
        self._lock = Lock()

    def __contains__(self, path: str) -> bool:
        return path in self._requests

    def ask(self, store: Store, paths: Iterable[str]) -> None:
        """Ask for objects that may exist; those that were asked for already are not asked for again."""
        for path in paths:
            with self._lock:
                if path not in self._requests:
                    self._requests[path] = store.fetch(path)

    def keep_only(self, paths: Container[str]) -> None:
        """Cancel what turned out not to be wanted."""
        with self._lock:
            unwanted = [path for path in self._requests if path not in paths]
            dropped = [self._requests.pop(path) for path in unwanted]
        for request in dropped:
            request.cancel()

    def read(self, path: str) -> bytes | None:
        """Return the bytes of an object, waiting for them; None leaves the caller to ask for itself."""
        with self._lock:
            request = self._requests.get(path)
        if request is None:
            return None
        try:
            return request.result()
        except StorageError:
            # It was not there yet when we asked, or the request failed: the real one tells.
            self.drop(path)
            return None

    def drop(self, path: str) -> bool:
        """Forget an answer, and tell whether there was one."""
        with self._lock:
            return self._requests.pop(path, None) is not None
