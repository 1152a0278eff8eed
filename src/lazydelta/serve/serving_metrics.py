"""What a server counts: for Prometheus as text, and for OpenTelemetry where the process has loaded it."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from lazydelta.errors import OptionError
from lazydelta.serve.budgets import Budgets

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ServingMetrics"]

_PREFIX = "lazydelta_serve_"
# Name, unit for OpenTelemetry, labels, meaning; docs/serving.md has the same list.
COUNTERS = {
    "requests": ("{request}", ("request", "how"), "requests that have ended, by kind and by what became of them"),
    "stream_rows": ("{row}", ("table", "of"), "files or rows that were sent"),
    "stream_bytes": ("By", ("table", "of"), "bytes of Arrow batches that were sent"),
}
SECONDS = ("s", ("table", "of", "how"), "how long streams took, from the request to the end of the scan")
# Name, the one and the unit for OpenTelemetry, meaning.
GAUGES = {
    "streams": ("streams", "{stream}", "streams that are running"),
    "reserved_memory_bytes": ("reserved_memory", "By", "memory that streams have reserved"),
}
# Of all servers of this process: who reads OpenTelemetry's gauges asks the process.
_RUNNING: WeakSet[Budgets] = WeakSet()
_BUCKETS = (0.005, 0.02, 0.1, 0.5, 2, 10, 60, 600)


class ServingMetrics:
    """Counts requests and streams; with prometheus-client they can be read as text."""

    def __init__(self, budgets: Budgets) -> None:
        try:
            import prometheus_client as prometheus  # noqa: PLC0415 - an extra
        except ImportError as error:
            hint = "pip install 'lazydelta[serve]'"
            raise OptionError("A server needs prometheus-client, which is not installed", hint=hint) from error
        self._prometheus: Any = prometheus
        self.registry = prometheus.CollectorRegistry()
        self._counters: dict[str, Any] = {
            name: prometheus.Counter(_PREFIX + name, words, labels, registry=self.registry)
            for name, (_, labels, words) in COUNTERS.items()
        }
        self._seconds: Any = prometheus.Histogram(
            _PREFIX + "stream_seconds", SECONDS[2], SECONDS[1], registry=self.registry, buckets=_BUCKETS
        )
        for name, (_, _, words) in GAUGES.items():
            gauge = prometheus.Gauge(_PREFIX + name, words, registry=self.registry)
            gauge.set_function((lambda: budgets.streams) if name == "streams" else (lambda: budgets.memory))
        _RUNNING.add(budgets)

    def request(self, kind: str, how: str) -> None:
        """Count a request."""
        self._add("requests", 1, {"request": kind, "how": how})

    def stream(self, table: str, of: str, how: str, *, rows: int, size: int, seconds: float) -> None:
        """Count a stream that has ended."""
        self._add("stream_rows", rows, {"table": table, "of": of})
        self._add("stream_bytes", size, {"table": table, "of": of})
        labels = {"table": table, "of": of, "how": how}
        self._seconds.labels(**labels).observe(seconds)
        exported = _instruments()
        if exported:
            exported["stream_seconds"].record(seconds, _attributes(labels))

    def text(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        data: bytes = self._prometheus.generate_latest(self.registry)
        return data

    def listen(self, host: str, port: int) -> tuple[int, Any]:
        """Answer Prometheus over HTTP; return the port, and the server to shut down."""
        try:
            server, _ = self._prometheus.start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            message = f"The port {port} for metrics cannot be listened to: {error.strerror}"
            raise OptionError(message, hint="give another --metrics-port, or 0 for any") from None
        return int(server.server_port), server

    def _add(self, name: str, amount: int, labels: dict[str, str]) -> None:
        self._counters[name].labels(**labels).inc(amount)
        exported = _instruments()
        if exported:
            exported[name].add(amount, _attributes(labels))


def _attributes(labels: dict[str, str]) -> dict[str, str]:
    return {f"delta.lazy.{name}": value for name, value in labels.items()}


def _instruments() -> dict[str, Any]:
    api = sys.modules.get("opentelemetry.metrics")
    return {} if api is None else _made(api)


@cache
def _made(api: Any) -> dict[str, Any]:
    meter = api.get_meter("lazydelta")
    found = {
        name: meter.create_counter(f"delta.lazy.serve.{name}", unit=unit, description=words)
        for name, (unit, _, words) in COUNTERS.items()
    }
    found["stream_seconds"] = meter.create_histogram(
        "delta.lazy.serve.stream_seconds", unit=SECONDS[0], description=SECONDS[2]
    )

    def told(value: Callable[[Budgets], int]) -> Callable[[Any], list[Any]]:
        observation = sys.modules["opentelemetry.metrics"].Observation
        return lambda _: [observation(sum(map(value, list(_RUNNING))))]

    values: dict[str, Callable[[Budgets], int]] = {
        "streams": lambda each: each.streams,
        "reserved_memory_bytes": lambda each: each.memory,
    }
    for name, (exported, unit, words) in GAUGES.items():
        callbacks = [told(values[name])]
        meter.create_observable_gauge(f"delta.lazy.serve.{exported}", callbacks, unit=unit, description=words)
    return found
