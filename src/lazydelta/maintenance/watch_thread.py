"""``BackgroundWatch``: looks at a table in a thread of its own, whenever somebody says that it may have changed."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Self

from lazydelta.handle import TableHandle
from lazydelta.maintenance.watching import Look, TableWatch, WatchSettings
from lazydelta.metrics import WatchMetrics

__all__ = ["BackgroundWatch"]


class BackgroundWatch:
    """A watch for programs that learn by themselves when a table may have changed, and must not wait for it.

    At most one look is under way and one waits, however often the table is said to have changed. The program waits at
    its end for a look that has begun.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        checkpoint_every: int | None = None,
        checksum: bool = False,
    ) -> None:
        """Make no request and start no thread.

        ``checkpoint_every`` writes a checkpoint after so many commits without one; ``checksum`` writes the version
        checksum at the head where its writer wrote none. By default both are left to the writers.
        """
        settings = WatchSettings(checkpoint_every=checkpoint_every, checksum=checksum)
        self._watch = TableWatch(TableHandle.open(table, storage_options), settings)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = self._closed = False
        self._last: Look | None = None

    def nudge(self) -> None:
        """Say that the table may have changed; returns at once."""
        with self._changed:
            if self._closed:
                return
            self._asked = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lazydelta-watch", daemon=False)
                self._thread.start()

    @property
    def last(self) -> Look | None:
        """What the last look found and did; None before the first one has ended."""
        with self._changed:
            return self._last

    @property
    def metrics(self) -> WatchMetrics:
        """How the table did at the last look."""
        with self._changed:
            return WatchMetrics() if self._last is None else self._last.metrics

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no look is under way nor waits; False if that took longer than ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def close(self) -> None:
        """Take no more nudges, and wait for the look that was asked for."""
        with self._changed:
            self._closed = True
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._asked:
                    self._thread = None
                    self._changed.notify_all()
                    return
                self._asked = False
            try:
                look = self._watch.look()
            except BaseException:
                with self._changed:
                    self._asked, self._thread = False, None  # else whoever waits would wait for ever
                    self._changed.notify_all()
                raise
            with self._changed:
                self._last = look
