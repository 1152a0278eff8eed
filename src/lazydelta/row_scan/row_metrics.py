"""What a scan of rows did, beside the scan of files that it rests on."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

__all__ = ["RowMetrics"]


class RowMetrics(msgspec.Struct, dict=True):
    """Counters of one stream of rows; several threads add to them.

    ``files_while_discovering`` are files whose reading began before the last file was found: how much of the reading
    overlapped discovery. ``columns_skipped`` counts row groups whose other columns were never decoded, because no row
    passed the filter.
    """

    files_opened: int = 0
    files_while_discovering: int = 0
    files_looked_for_again: int = 0
    files_without_match: int = 0
    most_files_at_once: int = 0
    row_groups_read: int = 0
    row_groups_pruned: int = 0
    row_groups_proven: int = 0
    columns_skipped: int = 0
    rows_read: int = 0
    rows_emitted: int = 0
    peak_bytes: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, **counts: int) -> None:
        """Add to several counters at once."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def most(self, **sizes: int) -> None:
        """Raise counters to what they are at this moment."""
        with self._lock:
            for name, size in sizes.items():
                setattr(self, name, max(getattr(self, name), size))

    def as_dict(self) -> dict[str, Any]:
        """Return the counters by name."""
        return {name: getattr(self, name) for name in self.__struct_fields__}
