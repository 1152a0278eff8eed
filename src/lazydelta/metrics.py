"""What a scan did, and how a watched table does, under the names that dashboards know."""

from __future__ import annotations

import time
from typing import Any

import msgspec

__all__ = ["MEANINGS", "WATCH_MEANINGS", "ScanMetrics", "WatchMetrics"]

MEANINGS = {
    "strategy": "newest files first, or most files a second",
    "reason": "why this strategy",
    "tier": "where the base came from: 1 manifest and sidecar, 2 sidecar, 3 checkpoint, 0 not read",
    "base_order": "in which order the files of the base come",
    "sidecar": "which sidecar was used, or why none was",
    "stats_passed_by": "why statistics were not read, and which option helps",
    "sidecar_failure": "what was wrong with a sidecar, in a word",
    "commits_scanned": "commits of the tail that were read, by opening or by the scan",
    "files_emitted": "files that may match",
    "files_pruned": "files that cannot match",
    "files_without_stats": "files whose statistics are too large for the memory budget, so that these pruned nothing",
    "files_masked": "files of the base that the tail removed or replaced",
    "files_considered": "all of these together",
    "fallback_triggered": "1 if the tail changed protocol or metadata and no checksum said so",
    "checksum_mismatches": "1 if the scan and the version checksum disagree",
    "compactions_rejected": "compacted commits that were not used",
    "delta_sidecars": "which delta sidecars stand for commits of the tail, or why some do not",
    "delta_commits": "commits of the tail that were read from delta sidecars, beside those above",
    "delta_sidecars_rejected": "delta sidecars that were not used",
    "checkpoints_replaced": "how often another checkpoint took the place of the known one",
    "remove_set_size": "keys of the tail",
    "unknown_actions": "actions of the tail that are not known",
    "open_ms": "time to open the table, 0 if an earlier scan was charged with it",
    "open_requests": "requests of opening, among all below",
    "time_to_first_file_ms": "from the first pull to the first file",
    "scan_ms": "time in the scan, without pauses of the consumer",
    "total_ms": "opening and scan",
    "requests": "requests of opening and scan",
    "bytes_read": "bytes of opening and scan",
    "row_groups_read": "row groups of the base that were begun",
    "row_groups_pruned": "row groups that cannot hold a match",
    "sidecar_hits": "1 if the base came from a sidecar to its end",
    "cache_hits": "manifests and footers that were remembered",
    "peak_buffer_bytes": "most that was held at once, files and keys",
}
"""Each metric in a word or two; ``explain`` shows them."""


class ScanMetrics(msgspec.Struct):
    """Counters of one scan; ``as_dict`` gives them their ``delta.lazy.*`` names.

    Time is counted while the scan is at work: between a pull and the files that answer it.
    """

    strategy: str = ""
    reason: str = ""
    tier: int = 0
    base_order: str = ""
    sidecar: str = ""
    sidecar_failure: str = ""
    commits_scanned: int = 0
    files_emitted: int = 0
    files_pruned_one_by_one: int = 0
    files_pruned_by_groups: int = 0
    files_without_stats: int = 0
    stats_passed_by: str = ""
    files_masked: int = 0
    fallback_triggered: int = 0
    checksum_mismatches: int = 0
    compactions_rejected: int = 0
    delta_sidecars: str = ""
    delta_commits: int = 0
    delta_sidecars_rejected: int = 0
    checkpoints_replaced: int = 0
    remove_set_size: int = 0
    unknown_actions: int = 0
    open_ms: float = 0.0
    open_requests: int = 0
    time_to_first_file_ms: float | None = None
    scan_ms: float = 0.0
    requests: int = 0
    bytes_read: int = 0
    row_groups_read: int = 0
    row_groups_pruned: int = 0
    sidecar_hits: int = 0
    cache_hits: int = 0
    peak_buffer_bytes: int = 0
    resumed: float | None = None
    tail_commits: int = 0

    @property
    def files_pruned(self) -> int:
        """Files that cannot match: looked at, or in row groups that were not read. Two threads count these."""
        return self.files_pruned_one_by_one + self.files_pruned_by_groups

    @property
    def files_considered(self) -> int:
        """All files that were met, whatever became of them."""
        return self.files_emitted + self.files_pruned + self.files_masked

    @property
    def total_ms(self) -> float:
        """Time to open the table and to scan it."""
        return round(self.open_ms + self.scan_ms, 3)

    def resume(self) -> None:
        """Note that somebody pulls."""
        self.resumed = time.perf_counter()

    def pause(self) -> None:
        """Note that the scan hands over to its consumer, or has ended."""
        if self.resumed is not None:
            self.scan_ms = round(self.scan_ms + (time.perf_counter() - self.resumed) * 1000, 3)
            self.resumed = None

    def first_file(self) -> None:
        """Note the moment of the first file."""
        if self.time_to_first_file_ms is None:
            now = 0.0 if self.resumed is None else (time.perf_counter() - self.resumed) * 1000
            self.time_to_first_file_ms = round(self.scan_ms + now, 3)

    def count_without_stats(self, files: int, reason: str) -> None:
        """Note files whose statistics did not fit, and why."""
        self.files_without_stats += files
        self.stats_passed_by = reason

    def count_commits(self, number: int) -> None:
        """Count commits of the tail that are read; those that opening has read before are the same, newest first."""
        self.tail_commits += number
        self.commits_scanned = max(self.commits_scanned, self.tail_commits)

    def count_row_groups(self, number: int) -> None:
        """Count row groups that were begun."""
        self.row_groups_read += number

    def buffered(self, size: int) -> None:
        """Note how many bytes are held at this moment."""
        self.peak_buffer_bytes = max(self.peak_buffer_bytes, size)

    def sidecar_failed(self, reason: str, words: object) -> None:
        """Note why a sidecar is not used, or no longer: in a word that can be counted by, and in full."""
        self.sidecar_failure = reason
        self.sidecar = f"not used ({reason}): {words}"

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics under their exported names."""
        return {f"delta.lazy.{name}": getattr(self, name) for name in MEANINGS}


WATCH_MEANINGS = {
    "looks": "how often the table was looked at",
    "builds": "sidecars that were built or refreshed",
    "checkpoints_written": "checkpoints that nobody else wrote",
    "checksums_written": "version checksums that nobody else wrote",
    "deltas_written": "delta sidecars that were written",
    "busy": "looks that were left to another process, which was at the table",
    "failures": "looks in which something failed",
    "version": "the newest version of the table",
    "checkpoint_version": "the version of its newest checkpoint",
    "sidecar_version": "the version of the newest sidecar that was seen",
    "lag_commits": "commits that the newest sidecar does not have",
    "lag_ms": "from the newest checkpoint to its sidecar; up to now, where it has none yet",
    "build_ms": "what the last build or refresh took",
    "sidecar_age_ms": "how long ago the newest sidecar was made",
}
"""Each metric of a watch in a word or two."""


class WatchMetrics(msgspec.Struct):
    """How a watched table does; ``as_dict`` gives the values their ``delta.lazy.watch.*`` names.

    The first seven count since the watch began; the others are as they were at the last look, None where there is
    nothing to tell of.
    """

    looks: int = 0
    builds: int = 0
    checkpoints_written: int = 0
    checksums_written: int = 0
    deltas_written: int = 0
    busy: int = 0
    failures: int = 0
    version: int | None = None
    checkpoint_version: int | None = None
    sidecar_version: int | None = None
    lag_commits: int | None = None
    lag_ms: float | None = None
    build_ms: float | None = None
    sidecar_age_ms: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics under their exported names."""
        return {f"delta.lazy.watch.{name}": getattr(self, name) for name in WATCH_MEANINGS}
