"""What OpenTelemetry's own SDK receives of a scan, in a process of its own: providers are set once for a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.scan.hand_log import HandLog, add, remove

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import json, sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
metrics.set_meter_provider(MeterProvider([reader]))
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)

from lazydelta import DeltaTable

with trace.get_tracer("application").start_as_current_span("question"):
    table = DeltaTable(sys.argv[1])
    first = table.files("id >= 3")
    found = len(first.collect())
    second = table.files(limit=1)
    second.collect()

exported = {}
for resource in reader.get_metrics_data().resource_metrics:
    for scope in resource.scope_metrics:
        for metric in scope.metrics:
            points = [
                {"attributes": dict(point.attributes), "value": point.value if hasattr(point, "value") else point.sum}
                for point in metric.data.data_points
            ]
            exported[metric.name] = {"unit": metric.unit, "description": metric.description, "points": points}
ids = {span.context.span_id: span.name for span in spans.get_finished_spans()}
traced = [
    {"name": span.name, "parent": span.parent and ids.get(span.parent.span_id), "attributes": dict(span.attributes)}
    for span in spans.get_finished_spans()
]
scans = [stream.metrics.as_dict() for stream in (first, second)]
print(json.dumps({"metrics": exported, "spans": traced, "scans": scans, "uri": table.table_uri, "found": found}))
"""


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Scan a table twice in a process that exports, and return what was exported."""
    table: Path = tmp_path_factory.mktemp("telemetry")
    log = HandLog(table)
    log.commit(*(add(f"base{number}", ids=(number, number)) for number in range(6)))
    log.checkpoint()
    sidecars = log.log / "_sidecars"
    sidecars.mkdir()
    (sidecars / "v0.manifest.json").write_text("{}")
    log.commit(add("tail", ids=(9, 9)), remove("base5"))
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(table)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"DELTA_CACHE_SIZE": "0"},
    )
    assert child.returncode == 0, child.stderr
    found: dict[str, Any] = json.loads(child.stdout)
    return found


def total(received: dict[str, Any], name: str) -> float:
    """Return the sum of a metric over its attributes."""
    return float(sum(point["value"] for point in received["metrics"][f"delta.lazy.{name}"]["points"]))


def test_counters_add_up_over_scans(received: dict[str, Any]) -> None:
    assert total(received, "scans") == 2
    for name in ("files_emitted", "files_pruned", "files_masked", "requests", "bytes_read", "commits_scanned"):
        assert total(received, name) == sum(scan[f"delta.lazy.{name}"] for scan in received["scans"]), name
    assert total(received, "files_emitted") == received["found"] + 1 == 4


def test_every_metric_has_a_unit_a_description_and_the_table(received: dict[str, Any]) -> None:
    units = {name: metric["unit"] for name, metric in received["metrics"].items()}
    assert all(units.values())
    assert units["delta.lazy.bytes_read"] == "By"
    assert units["delta.lazy.time_to_first_file_ms"] == units["delta.lazy.open_ms"] == "ms"
    for name, metric in received["metrics"].items():
        assert metric["description"], name
        assert {point["attributes"]["delta.lazy.table"] for point in metric["points"]} == {received["uri"]}


def test_a_sidecar_that_fails_is_counted_by_its_reason(received: dict[str, Any]) -> None:
    points = received["metrics"]["delta.lazy.sidecar_failures"]["points"]
    assert [(point["attributes"]["delta.lazy.reason"], point["value"]) for point in points] == [("damaged", 1)]


def test_spans_are_around_listing_opening_and_scanning(received: dict[str, Any]) -> None:
    parents = [(span["name"], span["parent"]) for span in received["spans"]]
    assert parents == [
        ("delta.lazy.list", "delta.lazy.open"),
        ("delta.lazy.open", "question"),
        ("delta.lazy.scan", "question"),
        ("delta.lazy.scan", "question"),
        ("question", None),
    ]
    ours = [span for span in received["spans"] if span["name"].startswith("delta.lazy")]
    assert {span["attributes"]["delta.lazy.table"] for span in ours} == {received["uri"]}
    assert ours[2]["attributes"]["delta.lazy.files_emitted"] == received["found"]
