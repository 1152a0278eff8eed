"""Reads of a local file by Arrow itself: no copy in Python, and no wait for the interpreter between two columns.

What is read is still announced before, range by range, as if it were requests: that is how scans are counted, observed
and stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazydelta.storage.byte_ranges import coalesced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lazydelta.storage.store import Store

__all__ = ["DirectReads"]

_GAP = 64 << 10


class DirectReads:
    """The announcements of one open file, with the methods of ``PrefetchedReads`` that its readers call."""

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._path = path

    def foresee(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Announce (start, length) ranges that will be read; those next to each other count as one."""
        for start, length in coalesced(ranges, _GAP):
            self._store.note_read(self._path, start, length)

    def forget(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is under way."""
