"""Server actions: health, metrics, and facts about a table that fit into one response.

Actions that scan files or rows use the same budgets as streams and stop when their client disconnects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Protocol
from weakref import WeakSet

import msgspec
import pyarrow as pa

from lazydelta.client.wire import ScanCommand, parse_command
from lazydelta.errors import OptionError, require
from lazydelta.runtime.metrics import COUNTERS as TELEMETRY_COUNTERS
from lazydelta.runtime.metrics import MEANINGS, ScanMetrics, scan_listeners
from lazydelta.server.budgets import Budgets
from lazydelta.server.streams import Answer, ServedStream
from lazydelta.server.tables import Identity, described, estimated, history_of, partitions_in
from lazydelta.server.ticket import Ticket
from lazydelta.table.delta_table import DeltaTable

__all__ = ["ACTIONS", "ServerActions", "ServingMetrics", "table_in"]


ACTIONS = {
    "health": "whether the server takes streams, and how many are running",
    "metrics": "metrics as Prometheus reads them, of the tables that the client may read",
    "describe": "version, schema and metadata of a table; the body is a command",
    "domains": "the metadata domains of a table; the body is a command",
    "history": "the provenance of versions, newest first, as many as its limit says; the body is a command",
    "partitions": "the distinct partitions of the files that may match; the body is a command",
    "estimate": "how many files, bytes and rows a scan would read at most; the body is a command",
    "count": "how many rows match; the body is a command",
    "explain": "how a scan went, after it was run and its files were dropped; the body is a command",
}


class _Server(Protocol):
    """The part of the server that actions use."""

    def health(self) -> dict[str, Any]:
        """Return the health of the server."""

    def metrics_text(self, who: Identity) -> bytes:
        """Return the server's metrics, limited to the tables that the client may read."""

    def opened(self, who: Identity, command: ScanCommand) -> DeltaTable:
        """Open a table that the client may read."""

    def pin(self, who: Identity, command: ScanCommand) -> tuple[DeltaTable, Ticket]:
        """Return the table of a command and a ticket that pins it."""

    def begin(self, context: Any, who: Identity, table: DeltaTable, ticket: Ticket) -> tuple[Answer, ServedStream]:
        """Start the scan of a ticket within the budgets of the client."""

    def room(self, context: Any) -> Callable[[], None]:
        """Reserve the room of one stream for other work. Return the function that releases it."""


class _Named(msgspec.Struct):
    table: str | None = None


def table_in(body: bytes) -> str | None:
    """Return the table that the body of an action names, for the access log. Return None if it names none."""
    try:
        return msgspec.json.decode(body, type=_Named).table
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


class ServerActions:
    """Runs actions by name. Each returns one JSON document, except ``metrics``, which returns text."""

    def __init__(self, server: _Server, *, command_bytes: int, cleaned: Callable[[str], str]) -> None:
        self._server = server
        self._most = command_bytes
        self._cleaned = cleaned

    def run(self, context: Any, who: Identity, kind: str, body: bytes) -> bytes:
        """Run an action."""
        if kind == "health":
            return msgspec.json.encode(self._server.health())
        if kind == "metrics":
            return self._server.metrics_text(who)
        if kind not in ACTIONS:
            message = f"There is no action {kind[:100]!r}"
            raise OptionError(message, hint="see list_actions")
        command = parse_command(body, most=self._most)
        if kind in {"describe", "domains", "history"}:
            return self._told(context, who, kind, command)
        return msgspec.json.encode(self._scanned(context, who, kind, command), enc_hook=str)

    def _told(self, context: Any, who: Identity, kind: str, command: ScanCommand) -> bytes:
        table = self._server.opened(who, command)
        if kind == "describe":
            return described(table, command.table)
        give_back = self._server.room(context)
        try:
            if kind == "domains":
                return msgspec.json.encode(table.domain_metadata())
            return history_of(table, command.limit, context.is_cancelled, self._cleaned)
        finally:
            give_back()

    def _scanned(self, context: Any, who: Identity, kind: str, command: ScanCommand) -> Any:
        asked: dict[str, dict[str, Any]] = {
            # Counting rows without columns could skip the files that the log proves to match. The request could then
            # not be cancelled meanwhile, so every file is read and the client can disconnect at any time.
            "count": {"of": "rows", "columns": []},
            "partitions": {"of": "files", "stats_columns": None},
            "estimate": {"of": "files", "stats_columns": []},
        }
        changed = msgspec.structs.replace(command, **asked.get(kind, {}))
        table, ticket = self._server.pin(who, changed)
        answer, stream = self._server.begin(context, who, table, ticket)
        batches = (batch for batch, _ in stream)
        if kind == "partitions":
            return partitions_in(batches, table.metadata().partition_columns)
        if kind == "estimate":
            return estimated(batches)
        rows = _exhausted(batches)
        if kind == "count":
            return {"rows": rows, "version": ticket.command.version}
        explained = answer.explain()
        explained["plan"]["table"] = command.table
        return explained


def _exhausted(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


# Server metrics: Prometheus text, and OpenTelemetry if the process has loaded it.


_PREFIX = "lazydelta_serve_"
# Name: OpenTelemetry unit, labels, description. docs/serving.md has the same list.
COUNTERS = {
    "requests": ("{request}", ("request", "how"), "requests that have ended, by kind and by what became of them"),
    "stream_rows": ("{row}", ("table", "of"), "files or rows that were sent"),
    "stream_bytes": ("By", ("table", "of"), "bytes of Arrow batches that were sent"),
}
SECONDS = ("s", ("table", "of", "how"), "how long streams took, from the request to the end of the scan")
# Name: OpenTelemetry name and unit, description.
GAUGES = {
    "streams": ("streams", "{stream}", "streams that are running"),
    "reserved_memory_bytes": ("reserved_memory", "By", "memory that streams have reserved"),
    "waiting": ("waiting", "{request}", "requests that wait for room"),
}
_GAUGED: dict[str, Callable[[Budgets], int]] = {
    "streams": lambda each: each.streams,
    "reserved_memory_bytes": lambda each: each.memory,
    "waiting": lambda each: each.waiting,
}
# The budgets of all servers in this process, because OpenTelemetry reads gauges per process.
_RUNNING: WeakSet[Budgets] = WeakSet()
_BUCKETS = (0.005, 0.02, 0.1, 0.5, 2, 10, 60, 600)


# The metrics of all servers in this process. A scan does not know which server it is for, but its table does.
_EXPORTING: WeakSet[ServingMetrics] = WeakSet()
_SCANS = {"scans": "scans of files that have ended"} | {name: MEANINGS[name] for name in TELEMETRY_COUNTERS}


def _count_scan(metrics: ScanMetrics, place: str) -> None:
    for each in list(_EXPORTING):
        each.scan(metrics, place)


class ServingMetrics:
    """Counts requests, streams and scans. With prometheus-client installed, the counters can be exported as text."""

    def __init__(self, budgets: Budgets, name_of: Callable[[str], str | None] = lambda _: None) -> None:
        require("serve", "prometheus_client")
        import prometheus_client as prometheus  # noqa: PLC0415 - an optional extra

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
            gauge.set_function(partial(_GAUGED[name], budgets))
        self._scans: dict[str, Any] = {
            name: prometheus.Counter(f"delta_lazy_{name}", words, ("table", "tier"), registry=self.registry)
            for name, words in _SCANS.items()
        }
        self._name_of = name_of
        _RUNNING.add(budgets)
        _EXPORTING.add(self)
        if _count_scan not in scan_listeners:
            scan_listeners.append(_count_scan)

    def scan(self, metrics: ScanMetrics, place: str) -> None:
        """Count a scan of files that has ended, if its table is served here."""
        name = self._name_of(place)
        if name is None:
            return
        labels = {"table": name, "tier": str(metrics.tier)}
        for each, counter in self._scans.items():
            counter.labels(**labels).inc(1 if each == "scans" else max(0, getattr(metrics, each)))

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

    def text(self, may_read: Callable[[str], bool] = lambda _: True) -> bytes:
        """Return the metrics in the Prometheus text format, limited to the tables that the caller may read."""
        data: bytes = self._prometheus.generate_latest(_Visible(self.registry, may_read))
        return data

    def listen(self, host: str, port: int) -> tuple[int, Any]:
        """Serve the metrics to Prometheus over HTTP. Return the port and the server to shut down."""
        try:
            server, _ = self._prometheus.start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            message = f"The port {port} for metrics cannot be opened: {error.strerror}"
            raise OptionError(message, hint="choose another --metrics-port, or 0 for any free port") from None
        return int(server.server_port), server

    def _add(self, name: str, amount: int, labels: dict[str, str]) -> None:
        self._counters[name].labels(**labels).inc(amount)
        exported = _instruments()
        if exported:
            exported[name].add(amount, _attributes(labels))


class _Visible:
    """A view of a metrics registry that hides the tables the caller may not read."""

    def __init__(self, registry: Any, may_read: Callable[[str], bool]) -> None:
        self._registry = registry
        self._may_read = may_read

    def collect(self) -> Iterator[Any]:
        """Yield the metric families, like a registry."""
        for family in self._registry.collect():
            # The label of a statement names every table that it reads.
            family.samples = [
                each
                for each in family.samples
                if all(self._may_read(name) for name in each.labels.get("table", "").split(",") if name)
            ]
            yield family


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

    for name, (exported, unit, words) in GAUGES.items():
        callbacks = [told(_GAUGED[name])]
        meter.create_observable_gauge(f"delta.lazy.serve.{exported}", callbacks, unit=unit, description=words)
    return found
