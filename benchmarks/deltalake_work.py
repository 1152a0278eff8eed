"""What deltalake is measured at, in the words of its documentation."""

from __future__ import annotations

import warnings
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable


def open_table(uri: str) -> int:
    return DeltaTable(uri).version()


def files_of_hour(uri: str, hour: str) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return len(DeltaTable(uri).file_uris(partition_filters=[("_event_hour", "=", hour)]))


def all_files(uri: str) -> int:
    return DeltaTable(uri).get_add_actions().num_rows


def files_with_value(uri: str, column: str, value: str) -> int:
    """Ask the statistics which files may hold a value, as far as deltalake shows them."""
    files = pa.table(DeltaTable(uri).get_add_actions(flatten=True))
    least, most = files[f"min.{column}"], files[f"max.{column}"]
    may = pc.and_kleene(pc.less_equal(least, value), pc.greater_equal(most, value))
    return int(pc.sum(pc.fill_null(may, fill_value=True)).as_py())


def rows(uri: str, columns: list[str] | None, filters: list[list[Any]] | None) -> int:
    terms = None if filters is None else [tuple(term) for term in filters]
    return int(DeltaTable(uri).to_pyarrow_table(columns=columns, filters=terms).num_rows)
