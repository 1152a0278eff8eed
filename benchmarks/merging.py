"""MERGE of 100,000 rows into the newest hour of a large table, beside deltalake.

The hour consists of real files of 1,000 rows; the other files are entries of the log, which the condition rules out.
"""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

import lazydelta
from benchmarks.discovery import Case, Contender, Gate
from benchmarks.tables import cache_folder, cached_table

__all__ = ["GATED_FILES", "cases"]

GATED_FILES = 1_000_000
_ROWS, _PER_FILE = 100_000, 1_000
_IMPORTS = (
    "lazydelta.deltalake_names.merging",
    "deltalake",
    "duckdb",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "sqlglot",
)
_GATE = Gate(20.0, smaller=5.0, of_cpu=True)


def cases(files: int) -> list[Case]:
    """Return the merge into a table of this many files."""
    base, made = cached_table(files=files, columns=4, hours=720, stats="json")
    newest = made.last_hour
    hour = (datetime.strptime(newest, "%Y%m%d%H").replace(tzinfo=UTC) + timedelta(hours=1)).strftime("%Y%m%d%H")
    table = cache_folder() / f"merging-{files}-1"
    if not (table / "made").exists():
        shutil.rmtree(table, ignore_errors=True)
        shutil.copytree(base, table)
        _write_hour(table, hour)
        (table / "made").touch()
    work = cache_folder() / f"merging-{files}-work"

    def before() -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(table, work, copy_function=os.link)  # no file is changed in place

    ours, theirs = (
        Contender("merging", "merge", (by, str(work), hour, _ROWS), _IMPORTS, before)
        for by in ("lazydelta", "deltalake")
    )
    return [Case(f"merge {_ROWS:,} rows into one hour", ours, theirs, _GATE, _ROWS // 2)]


def _write_hour(table: Path, hour: str) -> None:
    """Write the files of one hour, a commit for each, and a checkpoint with a sidecar."""
    start = datetime.strptime(hour, "%Y%m%d%H").replace(tzinfo=UTC)
    random = np.random.default_rng(1)
    for first in range(0, _ROWS, _PER_FILE):
        rows = {
            "timestamp": pa.array([start] * _PER_FILE, pa.timestamp("us", "UTC")),
            "device_id": [f"sensor-{each:05}" for each in random.integers(0, 10_000, _PER_FILE)],
            "value": random.normal(size=_PER_FILE),
            "sequence": range(first, first + _PER_FILE),
            "_event_hour": [hour] * _PER_FILE,
        }
        lazydelta.write_arrow(table, pa.table(rows), maintain=False)
    lazydelta.DeltaTable(table).create_checkpoint()
