"""OpenTelemetry export: metrics of scans and watches, and spans around their steps.

This module does not import OpenTelemetry. An application that exports metrics or traces has loaded its API, and others
pay nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from lazydelta.runtime.metrics import MEANINGS, WATCH_MEANINGS, ScanMetrics, WatchMetrics

__all__ = ["COUNTERS", "ScanSpan", "export", "export_watch", "scan_listeners", "span"]

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
