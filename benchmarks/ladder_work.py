"""What lazydelta is asked on each rung; a child imports this module and runs one function.

Nothing is loaded here but what ``from lazydelta import DeltaTable`` loads: what a first query loads beyond that, to
read SQL text for one, is time and memory of that query.
"""

from __future__ import annotations

import time
from typing import Any

from lazydelta import DeltaTable


def ask(
    uri: str,
    question: dict[str, Any],
    options: dict[str, Any],
    limits: bool,  # noqa: FBT001 - from JSON
    remembers: bool,  # noqa: FBT001
    storage_options: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Open the table and answer; the clock runs from before the opening."""
    if remembers:
        _answer(uri, question, options, limits=limits, storage_options=storage_options)
    return _answer(uri, question, options, limits=limits, storage_options=storage_options)


def _answer(
    uri: str,
    question: dict[str, Any],
    options: dict[str, Any],
    *,
    limits: bool,
    storage_options: dict[str, str] | None,
) -> dict[str, Any]:
    limit = question["limit"]
    began = time.perf_counter()
    table = DeltaTable(uri, storage_options=storage_options, options=options)
    stream = table.files(question["where"], limit=limit if limits else None)
    first, count = None, 0
    for batch in stream.batches():
        if first is None and batch.num_rows:
            first = time.perf_counter()
        count += batch.num_rows
    ended = time.perf_counter()
    metrics = stream.metrics
    return {
        # Where the scan is not told of the limit, all files are found and the first of them kept.
        "count": count if limit is None else min(count, limit),
        "seconds": ended - began,
        "first_seconds": None if first is None else first - began,
        "requests": metrics.requests,
        "bytes": metrics.bytes_read,
        "row_groups": metrics.row_groups_read,
        "tier": metrics.tier,
        "moments": [began, first, ended],
    }
