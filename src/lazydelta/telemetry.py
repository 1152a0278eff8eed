"""Export of scan metrics to OpenTelemetry, for applications that use it.

Nothing is imported here: an application that exports metrics has loaded the OpenTelemetry API itself, and one that has
not pays nothing.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from lazydelta.metrics import ScanMetrics

__all__ = ["export"]

_COUNTERS = (
    "commits_scanned",
    "files_emitted",
    "files_pruned",
    "fallback_triggered",
    "checksum_mismatches",
    "requests",
    "bytes_read",
    "row_groups_read",
    "row_groups_pruned",
    "sidecar_hits",
    "cache_hits",
)
_DISTRIBUTIONS = ("time_to_first_file_ms", "remove_set_size", "peak_buffer_bytes")


def export(metrics: ScanMetrics) -> None:
    """Record one finished scan under the ``delta.lazy.*`` names."""
    api = sys.modules.get("opentelemetry.metrics")
    if api is None:
        return
    attributes = {"delta.lazy.strategy": metrics.strategy, "delta.lazy.tier": metrics.tier}
    counters, distributions = _instruments(api)
    for name, counter in counters.items():
        counter.add(getattr(metrics, name), attributes)
    for name, histogram in distributions.items():
        value = getattr(metrics, name)
        if value is not None:
            histogram.record(value, attributes)


@cache
def _instruments(api: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    meter = api.get_meter("lazydelta")
    counters = {name: meter.create_counter(f"delta.lazy.{name}") for name in _COUNTERS}
    return counters, {name: meter.create_histogram(f"delta.lazy.{name}") for name in _DISTRIBUTIONS}
