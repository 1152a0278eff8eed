"""Reading rows, beside deltalake and beside a plain PyArrow dataset over the same list of files.

The table has 96 files, one for each hour, with texts, numbers and times. What gates is that we are at least as fast as
either of the two; memory is shown and decides nothing, because all three return the same table.
"""

from __future__ import annotations

import fcntl
import shutil
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.discovery import OURS, THEIRS, Case, Contender, Gate
from benchmarks.tables import cache_folder
from lazydelta import write_arrow

__all__ = ["GATED_ROWS", "cases"]

GATED_ROWS = 5_000_000
_FILES = 96
_DEVICES = 1000
_DEVICE = 42
_AT_LEAST_AS_FAST = Gate(1.0, smaller=0.0)


def cases(rows: int) -> list[Case]:
    """Return the cases for a table of about this many rows, which is made now if it is not there."""
    folder = cache_folder() / f"rows-{rows}-1"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "made").write_text(str(_make(folder, rows)))
    matching = int((folder / "made").read_text())
    total = rows // _FILES * _FILES
    uri = str(folder)
    filters = [["device", "=", f"sensor-{_DEVICE}"]]
    asked: list[tuple[str, tuple[object, ...], int]] = [
        ("all rows", (None, None), total),
        ("two columns", (["at", "value"], None), total),
        ("a filter that few rows pass", (None, filters), matching),
    ]
    found: list[Case] = []
    for name, arguments, expected in asked:
        ours = Contender("lazydelta", "rows", (uri, *arguments), (*OURS, "lazydelta.rows.scanner", "pyarrow.dataset"))
        for theirs, imports in (("deltalake", THEIRS), ("pyarrow", ("pyarrow.dataset", "deltalake"))):
            other = Contender(theirs, "rows", (uri, *arguments), imports)
            found.append(Case(f"{name} / {theirs}", ours, other, _AT_LEAST_AS_FAST, expected))
        if name == "all rows":
            # The same columns on both sides: the plain dataset lacks the partition's unless it is told.
            whole = Contender("pyarrow", "rows", (uri, *arguments, "hive"), ("pyarrow.dataset", "deltalake"))
            found.append(Case(f"{name} / pyarrow with the partition", ours, whole, None, expected))
    return found


def _make(folder: Path, rows: int) -> int:
    """Write the table; return how many rows the filter lets pass."""
    rng = np.random.default_rng(1)
    count, passing = rows // _FILES, 0
    first = int(datetime(2026, 2, 10, tzinfo=UTC).timestamp()) * 1_000_000
    for number in range(_FILES):
        devices = rng.integers(0, _DEVICES, count)
        passing += int((devices == _DEVICE).sum())
        at = first + number * 3_600_000_000 + np.sort(rng.integers(0, 3_600_000_000, count))
        table = pa.table(
            {
                "at": pa.array(at, pa.timestamp("us", "UTC")),
                "device": [f"sensor-{device}" for device in devices],
                "value": rng.normal(size=count),
                "number": rng.integers(0, 1 << 40, count),
                "small": rng.integers(0, 100, count).astype("int32"),
                "text": [f"text {each}" for each in rng.integers(0, 1 << 30, count)],
            }
        )
        write_arrow(folder, table, timestamp_column="at")
    return passing
