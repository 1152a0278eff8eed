"""Ends a process at a counted point of its work: before its n-th request, in its n-th write, before a publication.

What lies on a disk changes at such points only. To kill at each of them in turn reaches whatever a clock could reach,
and on a busy machine the same as on an idle one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from lazydelta.storage import Request, observe

__all__ = ["KINDS", "Points"]

KINDS = ("request", "write", "publication")


class Points:
    """Counts the points of this process, and ends it at the ``at``-th of a kind; 0 lets it live.

    With ``mark`` only requests of paths that hold it count, and the reads of one file in a row are one. In a write the
    first half is written and the rest is not.
    """

    def __init__(
        self, kind: str = "", at: int = 0, *, mark: str | None = None, before: Callable[[str], None] = lambda _: None
    ) -> None:
        self.counts = dict.fromkeys(KINDS, 0)
        self._kind, self._at, self._mark, self._before = kind, at, mark, before
        self._last = ""
        self._lock = threading.Lock()

    def reach(self, kind: str, name: str, at_last: Callable[[], object] = lambda: None) -> None:
        """Count a point, and end here if it is the one; ``at_last`` is the half of it that is still done."""
        with self._lock:
            self.counts[kind] += 1
            if kind != self._kind or self.counts[kind] != self._at:
                return
            at_last()
            self._before(name)
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def counting(self) -> Iterator[Self]:
        """Count for the length of a block; local files only are written to and published."""
        fdopen, link, replace = os.fdopen, os.link, os.replace

        def opened(fd: int, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
            file = fdopen(fd, mode, *arguments, **keywords)
            return _Written(file, self) if mode == "wb" else file

        def published(function: Callable[..., None]) -> Callable[..., None]:
            def publish(source: str, target: str, **keywords: Any) -> None:
                self.reach("publication", f"publication {target}")
                function(source, target, **keywords)

            return publish

        os.fdopen, os.link, os.replace = opened, published(link), published(replace)
        try:
            with observe(self._request):
                yield self
        finally:
            os.fdopen, os.link, os.replace = fdopen, link, replace

    def _request(self, request: Request) -> None:
        name = f"{request.verb} {request.path}"
        with self._lock:
            before, self._last = self._last, name
        if self._mark is None or (name != before and self._mark in request.path):
            self.reach("request", name)


class _Written:
    """A file whose writes are points."""

    def __init__(self, file: Any, points: Points) -> None:
        self._file, self._points = file, points

    def write(self, data: memoryview) -> int:
        half = data[: len(data) // 2]
        self._points.reach("write", f"write {len(data)} bytes", lambda: self._file.write(half))
        written: int = self._file.write(data)
        return written

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
