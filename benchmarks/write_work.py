"""What writers are measured at; a child imports this module and runs one function."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import numpy as np
import pyarrow as pa

import lazydelta

if TYPE_CHECKING:
    from collections.abc import Callable

_HOURS = 24
_START = 1_770_764_400_000_000
_HOUR = 3_600_000_000
_PARTITION = "_event_hour"


def rows(number: int) -> pa.Table:
    """Return rows of a day, in no order."""
    random = np.random.default_rng(5)
    timestamps = np.sort(random.integers(0, _HOURS * _HOUR, number))
    hours = timestamps // _HOUR
    return pa.table(
        {
            "timestamp": pa.array(_START + timestamps).cast(pa.timestamp("us", "UTC")),
            "device_id": pa.array([f"sensor-{each:05}" for each in random.integers(0, 10_000, number)]),
            "value": random.random(number),
            "sequence": np.arange(number),
            _PARTITION: pa.array([f"20260211{hour:02}" for hour in hours]),
        }
    )


def append(by: str, folder: str, number: int) -> dict[str, Any]:
    """Write so many rows as one commit."""
    data = rows(number)
    began = time.perf_counter()
    _write(by)(folder, data)
    seconds = time.perf_counter() - began
    return {"count": deltalake.DeltaTable(folder).to_pyarrow_dataset().count_rows(), "seconds": seconds}


def commits(by: str, folder: str, number: int) -> dict[str, Any]:
    """Write a few rows in each of so many commits; the answer is the median of one."""
    data = rows(100)
    taken = []
    for _ in range(number):
        began = time.perf_counter()
        _write(by)(folder, data)
        taken.append(time.perf_counter() - began)
    return {"count": deltalake.DeltaTable(folder).version() + 1, "seconds": statistics.median(taken)}


def checkpoint(by: str, source: str, folder: str) -> dict[str, Any]:
    """Write a checkpoint of a table whose log has grown since the last one."""
    log = Path(folder) / "_delta_log"
    shutil.copytree(Path(source) / "_delta_log", log, ignore=shutil.ignore_patterns("_sidecars"))
    began = time.perf_counter()
    _table(by, folder).create_checkpoint()
    return {"count": len(list(log.glob("*.checkpoint.parquet"))), "seconds": time.perf_counter() - began}


def optimize(by: str, folder: str, files: int) -> dict[str, Any]:
    """Put small files together, which one commit of each wrote."""
    data = rows(1_000 * files)
    for number in range(files):
        deltalake.write_deltalake(folder, data.slice(number * 1_000, 1_000).drop_columns([_PARTITION]), mode="append")
    began = time.perf_counter()
    _table(by, folder).optimize.compact()
    seconds = time.perf_counter() - began
    return {"count": deltalake.DeltaTable(folder).to_pyarrow_dataset().count_rows(), "seconds": seconds}


def _table(by: str, folder: str) -> Any:
    return lazydelta.DeltaTable(folder) if by == "lazydelta" else deltalake.DeltaTable(folder)


def _write(by: str) -> Callable[[str, pa.Table], object]:
    if by == "lazydelta":
        return lambda folder, data: lazydelta.write_arrow(folder, data, partition_by=[_PARTITION])
    return lambda folder, data: deltalake.write_deltalake(folder, data, partition_by=[_PARTITION], mode="append")
