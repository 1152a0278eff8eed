"""What deltalake and Polars are asked: which files hold what a query wants, in the words of their documentation."""

from __future__ import annotations

import re
import time
import warnings
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

_SOURCES = re.compile(r"\.\.\. (\d+) other sources")


def deltalake(uri: str, question: dict[str, Any], storage_options: dict[str, str] | None = None) -> dict[str, Any]:
    """Ask deltalake. It has no first file before it has all of them."""
    began = time.perf_counter()
    count = _deltalake_count(DeltaTable(uri, storage_options=storage_options), question)
    ended = time.perf_counter()
    return {"count": count, "seconds": ended - began, "first_seconds": ended - began, "moments": [began, ended, ended]}


def _deltalake_count(table: DeltaTable, question: dict[str, Any]) -> int:
    if question["device"] is not None:
        files = pa.table(table.get_add_actions(flatten=True))
        least, most = files["min.device_id"], files["max.device_id"]
        may = pc.and_kleene(pc.less_equal(least, question["device"]), pc.greater_equal(most, question["device"]))
        return int(pc.sum(pc.fill_null(may, fill_value=True)).as_py())
    if question["since"] is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return len(table.file_uris(partition_filters=[("_event_hour", ">=", question["since"])]))
    if question["limit"] is not None:
        return len(table.file_uris()[: question["limit"]])
    return int(table.get_add_actions().num_rows)


def polars(uri: str, question: dict[str, Any]) -> dict[str, Any]:
    """Ask Polars for the plan of a query, which has the files of ``scan_delta``; they are not opened."""
    began = time.perf_counter()
    frame = pl.scan_delta(uri)
    if question["device"] is not None:
        frame = frame.filter(pl.col("device_id") == question["device"])
    elif question["since"] is not None:
        frame = frame.filter(pl.col("_event_hour") >= question["since"])
    if question["limit"] is not None:
        frame = frame.head(question["limit"])
    plan = frame.explain()
    seconds = time.perf_counter() - began
    others = _SOURCES.search(plan)
    # A limit is one of rows; the plan has all files, of which as many are opened as it takes.
    count = None if question["limit"] is not None else 1 if others is None else int(others[1]) + 1
    return {"count": count, "seconds": seconds, "first_seconds": seconds}
