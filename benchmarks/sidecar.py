"""File discovery through a sidecar, beside deltalake on the same table; and what building and refreshing cost.

What gates is what the project promises for ten million files. At other sizes the ratios are shown and decide nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.discovery import OURS, THEIRS, Case, Contender, Gate, true_counts
from benchmarks.measure import Measurement, measure
from benchmarks.tables import cached_table

__all__ = ["GATED_FILES", "cases"]

GATED_FILES = 10_000_000
_DEVICE = "sensor-04242"
_BUILT = "sidecar-built.json"


def cases(files: int) -> list[Case]:
    """Return the cases for a table of this size with a sidecar; both are made now if they are not there."""
    folder, made = cached_table(files=files, checksum=True, seed=5)
    truth = true_counts(folder, made)
    _built(folder)
    uri, hour = str(folder), made.last_hour

    def ours(work: str, *arguments: object) -> Contender:
        return Contender("lazydelta", work, (uri, *arguments), OURS)

    def theirs(work: str, *arguments: object) -> Contender:
        return Contender("deltalake", work, (uri, *arguments), THEIRS)

    hours, opened = theirs("files_of_hour", hour), theirs("open_table")
    device = [["device_id", "=", _DEVICE]]
    return [
        Case("one hour, by the sidecar", ours("files_of_hour", hour), hours, Gate(500, peak=20), truth["hour"]),
        Case("first file of one hour", ours("first_of_hour", hour), hours, Gate(1000, peak=20), 1),
        Case("take 100", ours("take", 100), opened, Gate(1000, peak=20), 100),
        Case("all files, by the sidecar", ours("all_files"), theirs("all_files"), Gate(15, peak=150), truth["all"]),
        Case("unsorted statistics", ours("matching_files", device), opened, Gate(20, peak=150), truth["predicate"]),
    ]


def _built(folder: Path) -> None:
    """Build the sidecar in a child, once, and keep what it took beside the table."""
    kept = folder / _BUILT
    if kept.exists():
        return
    built: Measurement = measure("benchmarks.lazydelta_work:build_sidecar", str(folder), imports=OURS)
    if built.failure is not None:
        raise RuntimeError(f"the sidecar of {folder} cannot be built: {built.failure}")
    kept.write_text(json.dumps({"seconds": built.seconds, "peak_bytes": built.peak_bytes}))
