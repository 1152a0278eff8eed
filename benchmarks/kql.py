"""KQL's operators over arrays and series, beside the same questions written for DuckDB by hand over the same files.

Both sides hand out record batches and count what they hold. CPU time gates, because DuckDB uses every core on both
sides; peak memory is shown.
"""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.discovery import OURS, Case, Contender, Gate
from benchmarks.tables import cache_folder
from lazydelta import write_arrow

__all__ = ["GATED_ROWS", "cases"]

GATED_ROWS = 10_000_000
_FILES = 10
_DEVICES = 100
_ELEMENTS = 10
_FIRST = 1_770_681_600_000_000
_DAY = 86_400_000_000
# At most 1.5 times the CPU time of the query by hand.
_GATE = Gate(1 / 1.5, smaller=0.0, of_cpu=True)
_SERIES = (
    "T | make-series total = sum(value), number = count() on ts"
    " from datetime(2026-02-10) to datetime(2026-02-20) step 1h by device"
)
# As a user writes it: one bin for each hour and device, with zeros where there are no rows.
_SERIES_BY_HAND = """
WITH found AS (
    SELECT device, date_trunc('hour', ts) AS ts, sum(value) AS total, count(*) AS number FROM T
    WHERE ts >= TIMESTAMPTZ '2026-02-10 00:00:00+00' AND ts < TIMESTAMPTZ '2026-02-20 00:00:00+00' GROUP BY ALL
), grid AS (
    SELECT device, unnest(generate_series(
        TIMESTAMPTZ '2026-02-10 00:00:00+00', TIMESTAMPTZ '2026-02-19 23:00:00+00', INTERVAL 1 HOUR)) AS ts
    FROM (SELECT DISTINCT device FROM found)
)
SELECT device, list(coalesce(total, 0) ORDER BY ts) AS total, list(coalesce(number, 0) ORDER BY ts) AS number,
    list(ts ORDER BY ts) AS ts
FROM grid LEFT JOIN found USING (device, ts) GROUP BY device
"""


def cases(rows: int) -> list[Case]:
    """Return the cases for tables of about this many rows, which are made now if they are not there."""
    events, arrays = (_table(kind, rows) for kind in ("events", "arrays"))
    expanded = rows // _FILES // _ELEMENTS * _ELEMENTS * _FILES
    asked = [
        ("make-series", events, _SERIES, _SERIES_BY_HAND, _DEVICES),
        ("mv-expand", arrays, "T | mv-expand xs to typeof(long)", "SELECT id, unnest(xs) AS xs FROM T", expanded),
        (
            "mv-expand and summarize",
            arrays,
            "T | mv-expand xs to typeof(long) | summarize sum(xs), count() by xs % 10",
            "SELECT sum(x), count(*), x % 10 FROM (SELECT unnest(xs) AS x FROM T) GROUP BY 3",
            _ELEMENTS,
        ),
    ]
    return [
        Case(
            name,
            Contender("lazydelta", "kql_rows", (str(folder), text), (*OURS, "lazydelta.kql", "duckdb")),
            Contender("duckdb_sql", "rows", (str(folder), by_hand), ("duckdb", "pyarrow", "deltalake")),
            _GATE,
            expected,
        )
        for name, folder, text, by_hand, expected in asked
    ]


def _table(kind: str, rows: int) -> Path:
    folder = cache_folder() / f"kql-{kind}-{rows}-1"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            rng = np.random.default_rng(1)
            for number in range(_FILES):
                made = _events(rng, number, rows // _FILES) if kind == "events" else _arrays(rng, number, rows)
                write_arrow(folder, made)
            (folder / "made").touch()
    return folder


def _events(rng: np.random.Generator, day: int, rows: int) -> pa.Table:
    """Return the rows of one day."""
    ts = _FIRST + day * _DAY + np.sort(rng.integers(0, _DAY, rows))
    return pa.table(
        {
            "ts": pa.array(ts, pa.timestamp("us", "UTC")),
            "device": [f"sensor-{each}" for each in rng.integers(0, _DEVICES, rows)],
            "value": rng.normal(size=rows),
        }
    )


def _arrays(rng: np.random.Generator, number: int, elements: int) -> pa.Table:
    """Return rows whose arrays hold a share of the elements, ten each."""
    rows = elements // _FILES // _ELEMENTS
    values = pa.array(rng.integers(0, 1 << 20, rows * _ELEMENTS))
    offsets = pa.array(np.arange(rows + 1, dtype="int32") * _ELEMENTS)
    first = number * rows
    return pa.table({"id": np.arange(first, first + rows), "xs": pa.ListArray.from_arrays(offsets, values)})
