"""Export of metrics and spans to OpenTelemetry, for applications that use it."""

from __future__ import annotations

from lazydelta.runtime.metrics import ScanSpan, export, export_watch, span

__all__ = ["ScanSpan", "export", "export_watch", "span"]
