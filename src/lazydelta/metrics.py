"""What a scan did, counted under the names that dashboards know."""

from __future__ import annotations

import time

import msgspec

__all__ = ["ScanMetrics"]


class ScanMetrics(msgspec.Struct):
    """Counters of one scan; ``as_dict`` gives them their ``delta.lazy.*`` names."""

    strategy: str = ""
    reason: str = ""
    tier: int = 0
    base_order: str = ""
    commits_scanned: int = 0
    files_emitted: int = 0
    files_pruned: int = 0
    fallback_triggered: int = 0
    compactions_rejected: int = 0
    checkpoints_replaced: int = 0
    checksum_mismatches: int = 0
    remove_set_size: int = 0
    unknown_actions: int = 0
    time_to_first_file_ms: float | None = None
    requests: int = 0
    bytes_read: int = 0
    row_groups_read: int = 0
    row_groups_pruned: int = 0
    sidecar_hits: int = 0
    cache_hits: int = 0
    peak_buffer_bytes: int = 0
    started: float = msgspec.field(default_factory=time.perf_counter)

    def first_file(self) -> None:
        """Note the moment of the first file."""
        if self.time_to_first_file_ms is None:
            self.time_to_first_file_ms = round((time.perf_counter() - self.started) * 1000, 3)

    def count_row_groups(self, number: int) -> None:
        """Count row groups that were begun."""
        self.row_groups_read += number

    def buffered(self, size: int) -> None:
        """Note how many bytes are held at this moment."""
        self.peak_buffer_bytes = max(self.peak_buffer_bytes, size)

    def as_dict(self) -> dict[str, float | int | str | None]:
        """Return the metrics under their exported names."""
        return {f"delta.lazy.{name}": getattr(self, name) for name in self.__struct_fields__ if name != "started"}
