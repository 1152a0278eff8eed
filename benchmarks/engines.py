"""Queries through engines on a table of a million files, of which only those of the last hours have data.

Beside stand DuckDB's own extension for Delta tables, which needs an older DuckDB and so an environment of its own, and
Polars' ``scan_delta``. The files with data came in one commit and lie in a small table of their own as well: what it
takes to read them there is reading alone, without a discovery to speak of. Limits are asked of a table that has them in
its checkpoint and has a sidecar, aggregations of one that has them behind its checkpoint and no sidecar: there,
discovery takes about as long as reading does. Either, alone, keeps all cores busy by itself, so that nothing would be
won by doing both at once: alone, each gets one core, and the aggregation two.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.discovery import Case, Contender, Gate
from benchmarks.measure import Measurement
from benchmarks.tables import cache_folder, cached_table
from lazydelta import DeltaTable, write_arrow
from lazydelta.sidecar import build

__all__ = ["GATED_FILES", "MEMORY_FILES", "cases", "memory_cases"]

GATED_FILES = 1_000_000
MEMORY_FILES = 10_000_000
_PEERS = str(Path(__file__).resolve().parents[1] / ".venv-peers" / "bin" / "python")
_HOURS = ("2026021100", "2026021101")
_FILES_AN_HOUR = 10
_ROWS_A_FILE = 50_000
_LIMIT = 100
_TEN_FILES = 10 * _ROWS_A_FILE
_OVERLAP = 1.15
# The extension prunes partitions while it reads the checkpoint, and stops with the query: it needs a second for a
# million files, where we need little more than DuckDB takes to connect. The ratio grows with the table.
_EXTENSION = 5
_OURS = (
    "lazydelta",
    "lazydelta.rows.scanner",
    "lazydelta.engines.duckdb",
    "pyarrow.parquet",
    "pyarrow.dataset",
    "duckdb",
)
_OURS_POLARS = ("lazydelta", "lazydelta.rows.scanner", "lazydelta.engines.polars", "pyarrow.parquet", "polars")


@dataclass(frozen=True, slots=True)
class _Larger(Contender):
    """The slower of two pieces of work, each measured by itself."""

    other: Contender | None = None

    def run(self) -> Measurement:
        first = Contender.run(self)
        second = first if self.other is None else self.other.run()
        failed = next((each for each in (first, second) if each.failure is not None), None)
        return failed or max(first, second, key=lambda each: each.seconds or 0.0)


def cases(files: int) -> list[Case]:
    """Return the cases for a table of so many files, which is made now if it is not there."""
    large, indexed, small = _tables(files)
    hour, since = _HOURS[-1], _HOURS[0]
    rows = len(_HOURS) * _FILES_AN_HOUR * _ROWS_A_FILE

    def ours(work: str, *arguments: object, imports: tuple[str, ...] = _OURS) -> Contender:
        return Contender("engine", work, arguments, imports)

    extension = Contender(
        "duckdb_delta",
        "limited",
        (indexed, hour, _LIMIT),
        ("duckdb", "duckdb_extension_delta"),
        shared=True,
        python=_PEERS,
    )
    polars = Contender("scan_delta", "limited", (indexed, hour, _LIMIT), ("polars", "deltalake"), shared=True)
    discovery = ours("discover_on_one_core", large, since)
    reading = _Larger("engine", "aggregate_on_one_core", (small, since), _OURS, other=discovery)
    return [
        Case(
            "hour, limit 100: DuckDB", ours("limited", indexed, hour, _LIMIT), extension, Gate(_EXTENSION, 0.0), _LIMIT
        ),
        Case("hour, limit 100: scan_delta", ours("limited", indexed, hour, _LIMIT), polars, Gate(50, 0.0), _LIMIT),
        Case(
            "the same through Polars",
            ours("limited_polars", indexed, hour, _LIMIT, imports=_OURS_POLARS),
            polars,
            None,
            _LIMIT,
        ),
        Case(
            "aggregate / discovery or reading", ours("aggregate", large, since), reading, Gate(1 / _OVERLAP, 0.0), rows
        ),
        Case("join in one pool", ours("join", large, small, since), None, Gate(0.0), rows),
    ]


def memory_cases(files: int) -> list[Case]:
    """Return the cases about memory, for a table of so many files."""
    _, indexed, small = _tables(files)
    arguments = (_HOURS[0], _TEN_FILES)
    alone = Contender("engine", "limited", (small, *arguments), _OURS)
    found = Contender("engine", "limited", (indexed, *arguments), _OURS)
    return [Case("ten files' LIMIT / the files alone", found, alone, Gate(0.0, 0.0, above=100), _TEN_FILES)]


def _tables(files: int) -> tuple[str, str, str]:
    """Return the large table, the same with a new checkpoint and a sidecar, and the small one of files with data."""
    made, _ = cached_table(files=files, checksum=True)
    large, indexed, small = (cache_folder() / f"engines-{files}-{kind}-2" for kind in ("large", "indexed", "small"))
    with (cache_folder() / f"{large.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (indexed / "made").exists():
            for folder in (large, indexed, small):
                shutil.rmtree(folder, ignore_errors=True)
            _write_rows(small)
            for folder in (large, indexed):
                # The log may be gigabytes. Its files are never written to, only replaced.
                (folder / "_delta_log").mkdir(parents=True)
                for file in (made / "_delta_log").iterdir():
                    (folder / "_delta_log" / file.name).hardlink_to(file)
                _append(small, folder)
            DeltaTable(indexed).create_checkpoint()
            build(indexed)
            (indexed / "made").touch()
    return str(large), str(indexed), str(small)


def _write_rows(folder: Path) -> None:
    rng = np.random.default_rng(2)
    second = 1_000_000
    for number, hour in enumerate(name for name in _HOURS for _ in range(_FILES_AN_HOUR)):
        start = int(datetime.strptime(hour, "%Y%m%d%H").replace(tzinfo=UTC).timestamp()) * second
        at = start + np.sort(rng.integers(0, 3600 * second, _ROWS_A_FILE))
        table = pa.table(
            {
                "timestamp": pa.array(at, pa.timestamp("us", "UTC")),
                "device_id": [f"sensor-{each:05d}" for each in rng.integers(0, 10_000, _ROWS_A_FILE)],
                "value": rng.normal(size=_ROWS_A_FILE),
                "sequence": np.arange(number * _ROWS_A_FILE, (number + 1) * _ROWS_A_FILE),
            }
        )
        write_arrow(folder, table, timestamp_column="timestamp")


def _append(small: Path, large: Path) -> None:
    """Commit the files of the small table to the large one, after its newest version."""
    lines = []
    for log in sorted((small / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        lines += [json.dumps({"add": each["add"]}) for each in actions if "add" in each]
    for file in small.rglob("*.parquet"):
        if "_delta_log" not in file.parts:
            place = large / file.relative_to(small)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.hardlink_to(file)
    version = max(int(log.name[:20]) for log in (large / "_delta_log").glob("*.json")) + 1
    (large / "_delta_log" / f"{version:020d}.json").write_text("\n".join(lines) + "\n")
