"""The truth that answers are checked against, and work whose measurement is known beforehand."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow.parquet as pq


def count(uri: str, hour: str, column: str, value: str) -> dict[str, int]:
    """Count with nothing but a JSON parser what queries have to find in a table that is one V1 checkpoint."""
    (checkpoint,) = (Path(uri) / "_delta_log").glob("*.checkpoint.parquet")
    counts = {"all": 0, "hour": 0, "predicate": 0}
    for batch in pq.ParquetFile(checkpoint).iter_batches(columns=["add.path", "add.stats"]):
        for add in batch.column("add").to_pylist():
            if add is not None:
                stats = json.loads(add["stats"])
                counts["all"] += 1
                counts["hour"] += add["path"].startswith(f"_event_hour={hour}/")
                counts["predicate"] += stats["minValues"][column] <= value <= stats["maxValues"][column]
    return counts


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def allocate(size: int) -> int:
    return len(bytearray(b"x") * size)


def fail(message: str) -> None:
    raise ValueError(message)
