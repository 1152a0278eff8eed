"""Floors: what PyArrow alone takes to decode the columns that an answer is made of, from the same files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

_FILES = ["path", "size"]


def ask(uri: str, question: dict[str, Any]) -> dict[str, Any]:
    """Decode path and size, and the bounds that a condition is about, of the row groups that it leaves."""
    columns = [*_FILES, *([] if question["device"] is None else ["min.device_id", "max.device_id"])]
    chosen = {place: _groups(place, question["since"]) for place in sorted(_sidecars(uri))}
    rows, limit = 0, question["limit"]
    began = time.perf_counter()
    for place, groups in chosen.items():
        if groups and (limit is None or rows < limit):
            with pq.ParquetFile(place) as file:
                # One row group is the least that a limit costs.
                wanted = groups if limit is None else groups[:1]
                rows += file.read_row_groups(wanted, columns=columns).num_rows
    seconds = time.perf_counter() - began
    return {"count": rows, "seconds": seconds, "first_seconds": None}


def _sidecars(uri: str) -> list[Path]:
    return [each for each in (Path(uri) / "_delta_log" / "_sidecars").glob("v*.parquet") if ".stats." not in each.name]


def _groups(place: Path, since: str | None) -> list[int]:
    """Return the row groups that hold hours from ``since`` on, by the last key of each, which begins with the hour."""
    facts = json.loads((pq.read_metadata(place).metadata or {})[b"lazydelta.row_groups"])
    return [number for number, group in enumerate(facts) if since is None or group["last"][0] >= since]
