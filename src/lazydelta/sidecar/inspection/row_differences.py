"""In what some rows of a sidecar differ from those of the log, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lazydelta.arrays import boolean_array
from lazydelta.sidecar.inspection.row_digest import bucket_of

__all__ = ["difference", "picked", "short"]

Rows = dict[str, list[dict[str, Any]]]


def picked(batches: Iterable[pa.RecordBatch], path: str, names: Sequence[str], buckets: Sequence[int]) -> Rows:
    """Return the rows of some buckets by path."""
    found: Rows = {}
    for batch in batches:
        rows = batch.filter(boolean_array(np.isin(bucket_of(batch.column(path)), buckets)))
        for row in rows.select(list(names)).to_pylist():
            found.setdefault(row[path], []).append(row)
    return found


def difference(path: str, mine: list[dict[str, Any]], logged: list[dict[str, Any]]) -> str | None:
    """Say in what the rows of one path differ, None if they do not."""
    if len(mine) != len(logged):
        return f"{path}: {len(mine)} times in the sidecar, {len(logged)} times in the log"
    for ours, theirs in zip(sorted(mine, key=_sorted), sorted(logged, key=_sorted), strict=True):
        for name, value in ours.items():
            if _plain(value) != _plain(theirs[name]):
                return f"{path}: {name} is {short(value)} in the sidecar and {short(theirs[name])} in the log"
    return None


def _sorted(row: dict[str, Any]) -> str:
    return repr({name: _plain(value) for name, value in row.items()})


def _plain(value: Any) -> str:
    """Return a value in a form in which equal ones look equal: maps come as lists of pairs."""
    if isinstance(value, list):
        value = sorted(value, key=repr) or None
    return repr(value)


def short(value: object) -> str:
    """Return a value as text that fits into a sentence."""
    text = repr(value)
    limit = 120
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
