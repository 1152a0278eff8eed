"""``AccessLog``: one line of JSON for each request, for whoever has to know who read what."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import IO, Any

import msgspec

__all__ = ["AccessLog"]


class AccessLog:
    """Writes requests to a stream of text; a line is whole, whichever threads write at once.

    A condition may hold what somebody looks for, so it is not written; neither are tokens nor tickets.
    """

    def __init__(self, out: IO[str] | None, *, clock: Callable[[], float] = time.time) -> None:
        self._out = out
        self._clock = clock
        self._lock = threading.Lock()

    def write(self, request: str, *, client: str, peer: str, how: str, **facts: Any) -> None:
        """Write what was asked, by whom, from where, what became of it, and further facts that are not None."""
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
                self._out = None  # a full disk or a closed pipe is no reason to stop serving
