"""Metrics of scans and of watched tables, under the names that dashboards use."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import msgspec

__all__ = [
    "COUNTERS",
    "MEANINGS",
    "WATCH_MEANINGS",
    "ScanMetrics",
    "ScanSpan",
    "WatchMetrics",
    "export",
    "export_watch",
    "scan_listeners",
    "span",
]


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

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
    "peak_buffer_bytes": "most files and keys that were handed on at once",
    "peak_memory_bytes": "how much more memory the process held at most than when the scan began, Arrow's included",
}
"""Short description of each metric, shown by ``explain``."""


def memory_held() -> int:
    """Return the resident memory of this process; where the system does not tell, what Arrow has allocated."""
    try:
        # Plain descriptors, for every batch: a third of the time of a file object, which Ctrl-C could leave open.
        statm = os.open("/proc/self/statm", os.O_RDONLY)
        try:
            return int(os.read(statm, 100).split()[1]) * _PAGE
        finally:
            os.close(statm)
    except OSError:
        import pyarrow as pa  # noqa: PLC0415 - elsewhere than on Linux

        return int(pa.total_allocated_bytes()) + int(pa.system_memory_pool().bytes_allocated())


class ScanMetrics(msgspec.Struct):
    """Counters of one scan. ``as_dict`` returns them under their ``delta.lazy.*`` names.

    Time is counted while the scan is working: from a request of the consumer until its files are returned.
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
    peak_memory_bytes: int = 0
    memory_before: int | None = None
    resumed: float | None = None
    tail_commits: int = 0

    @property
    def files_pruned(self) -> int:
        """Files that cannot match: checked, or in row groups that were not read. Two threads count these."""
        return self.files_pruned_one_by_one + self.files_pruned_by_groups

    @property
    def files_considered(self) -> int:
        """All files found, whether they match or not."""
        return self.files_emitted + self.files_pruned + self.files_masked

    @property
    def total_ms(self) -> float:
        """Time spent opening and scanning the table."""
        return round(self.open_ms + self.scan_ms, 3)

    def resume(self) -> None:
        """Start the clock: the consumer has requested files."""
        self.resumed = time.perf_counter()

    def pause(self) -> None:
        """Stop the clock: the scan returns to its consumer, or has ended."""
        if self.resumed is not None:
            self.scan_ms = round(self.scan_ms + (time.perf_counter() - self.resumed) * 1000, 3)
            self.resumed = None

    def first_file(self) -> None:
        """Record the time of the first file."""
        if self.time_to_first_file_ms is None:
            now = 0.0 if self.resumed is None else (time.perf_counter() - self.resumed) * 1000
            self.time_to_first_file_ms = round(self.scan_ms + now, 3)

    def count_without_stats(self, files: int, reason: str) -> None:
        """Record files whose statistics could not be used, and why."""
        self.files_without_stats += files
        self.stats_passed_by = reason

    def count_commits(self, number: int) -> None:
        """Count commits of the tail that are read. Those already read on opening are the same, newest first."""
        self.tail_commits += number
        self.commits_scanned = max(self.commits_scanned, self.tail_commits)

    def count_row_groups(self, number: int) -> None:
        """Count row groups whose reading has started."""
        self.row_groups_read += number

    def buffered(self, size: int) -> None:
        """Record the number of bytes currently held."""
        self.peak_buffer_bytes = max(self.peak_buffer_bytes, size)
        self.look_at_memory()

    def look_at_memory(self) -> None:
        """Record how far the memory of the process is above that of the first look, other scans' included."""
        now = memory_held()
        if self.memory_before is None:
            self.memory_before = now
        self.peak_memory_bytes = max(self.peak_memory_bytes, self.peak_buffer_bytes, now - self.memory_before)

    def sidecar_failed(self, reason: str, words: object) -> None:
        """Record why a sidecar is not used, or no longer: a countable keyword, and the full reason."""
        self.sidecar_failure = reason
        self.sidecar = f"not used ({reason}): {words}"

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics under their exported names."""
        return {f"delta.lazy.{name}": getattr(self, name) for name in MEANINGS}


WATCH_MEANINGS = {
    "looks": "how often the table was looked at",
    "builds": "sidecars that were built or refreshed",
    "checkpoints_written": "checkpoints that no other process had written",
    "checksums_written": "version checksums that no other process had written",
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
"""Short description of each metric of a watch."""


class WatchMetrics(msgspec.Struct):
    """Metrics of a watched table. ``as_dict`` returns them under their ``delta.lazy.watch.*`` names.

    The first seven count since the watch started. The others hold the state at the last poll, None if there is nothing
    to report.
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


# OpenTelemetry export: metrics of scans and watches, and spans around their steps.


COUNTERS = {
    "commits_scanned": "{commit}",
    "files_emitted": "{file}",
    "files_pruned": "{file}",
    "files_masked": "{file}",
    "files_without_stats": "{file}",
    "fallback_triggered": "{scan}",
    "checksum_mismatches": "{scan}",
    "checkpoints_replaced": "{checkpoint}",
    "compactions_rejected": "{file}",
    "delta_commits": "{commit}",
    "delta_sidecars_rejected": "{file}",
    "requests": "{request}",
    "bytes_read": "By",
    "row_groups_read": "{row_group}",
    "row_groups_pruned": "{row_group}",
    "sidecar_hits": "{scan}",
    "cache_hits": "{object}",
}
_DISTRIBUTIONS = {
    "open_ms": "ms",
    "time_to_first_file_ms": "ms",
    "scan_ms": "ms",
    "remove_set_size": "{key}",
    "peak_buffer_bytes": "By",
    "peak_memory_bytes": "By",
}
_WATCH_COUNTERS = {
    "looks": "{look}",
    "builds": "{build}",
    "checkpoints_written": "{checkpoint}",
    "checksums_written": "{checksum}",
    "deltas_written": "{file}",
    "busy": "{look}",
    "failures": "{look}",
}
_WATCH_GAUGES = {"lag_commits": "{commit}", "lag_ms": "ms", "sidecar_age_ms": "ms"}
_NAME = "lazydelta"


scan_listeners: list[Callable[[ScanMetrics, str], None]] = []
"""Called with the metrics of each finished scan and the table's place; a server that exports to Prometheus adds one."""


def export(metrics: ScanMetrics, table: str) -> None:
    """Record one finished scan of a table under the ``delta.lazy.*`` names."""
    for listener in scan_listeners:
        listener(metrics, table)
    api = sys.modules.get("opentelemetry.metrics")
    if api is None:
        return
    attributes = {
        "delta.lazy.table": table,
        "delta.lazy.strategy": metrics.strategy,
        "delta.lazy.tier": metrics.tier,
    }
    instruments = _instruments(api)
    instruments["scans"].add(1, attributes)
    if metrics.sidecar_failure:
        reason = {"delta.lazy.reason": metrics.sidecar_failure}
        instruments["sidecar_failures"].add(1, {"delta.lazy.table": table} | reason)
    for name in COUNTERS:
        instruments[name].add(getattr(metrics, name), attributes)
    for name in _DISTRIBUTIONS:
        value = getattr(metrics, name)
        if value is not None:
            instruments[name].record(value, attributes)


def export_watch(before: WatchMetrics, after: WatchMetrics, table: str) -> None:
    """Record one poll of a watched table under the ``delta.lazy.watch.*`` names: its counters and its state."""
    api = sys.modules.get("opentelemetry.metrics")
    if api is None:
        return
    attributes = {"delta.lazy.table": table}
    instruments = _watch_instruments(api)
    for name in _WATCH_COUNTERS:
        instruments[name].add(getattr(after, name) - getattr(before, name), attributes)
    for name in _WATCH_GAUGES:
        value = getattr(after, name)
        if value is not None:
            instruments[name].set(value, attributes)
    if after.builds > before.builds and after.build_ms is not None:
        instruments["build_ms"].record(after.build_ms, attributes)


@contextmanager
def span(name: str, table: str, **attributes: Any) -> Iterator[None]:
    """Put a span around a step that does not yield to its consumer."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        yield
        return
    with _tracer(api).start_as_current_span(f"delta.lazy.{name}", attributes={"delta.lazy.table": table} | attributes):
        yield


class ScanSpan:
    """The span of a scan. It stays open while the consumer does other things, so it is never the current span."""

    def __init__(self, table: str) -> None:
        api = sys.modules.get("opentelemetry.trace")
        attributes = {"delta.lazy.table": table}
        self._span = None if api is None else _tracer(api).start_span("delta.lazy.scan", attributes=attributes)

    def end(self, metrics: ScanMetrics) -> None:
        """End the span with the metrics of the scan."""
        if self._span is None:
            return
        values = {name: value for name, value in metrics.as_dict().items() if value is not None}
        self._span.set_attributes(values)
        self._span.end()


@cache
def _tracer(api: Any) -> Any:
    return api.get_tracer(_NAME)


@cache
def _instruments(api: Any) -> dict[str, Any]:
    meter = api.get_meter(_NAME)
    found = {
        "scans": meter.create_counter("delta.lazy.scans", unit="{scan}", description="scans that have ended"),
        "sidecar_failures": meter.create_counter(
            "delta.lazy.sidecar_failures", unit="{scan}", description="sidecars that were not used, by reason"
        ),
    }
    for name, unit in COUNTERS.items():
        found[name] = meter.create_counter(f"delta.lazy.{name}", unit=unit, description=MEANINGS[name])
    for name, unit in _DISTRIBUTIONS.items():
        found[name] = meter.create_histogram(f"delta.lazy.{name}", unit=unit, description=MEANINGS[name])
    return found


@cache
def _watch_instruments(api: Any) -> dict[str, Any]:
    meter = api.get_meter(_NAME)
    found = {}
    for name, unit in _WATCH_COUNTERS.items():
        found[name] = meter.create_counter(f"delta.lazy.watch.{name}", unit=unit, description=WATCH_MEANINGS[name])
    for name, unit in _WATCH_GAUGES.items():
        found[name] = meter.create_gauge(f"delta.lazy.watch.{name}", unit=unit, description=WATCH_MEANINGS[name])
    meaning = WATCH_MEANINGS["build_ms"]
    found["build_ms"] = meter.create_histogram("delta.lazy.watch.build_ms", unit="ms", description=meaning)
    return found
