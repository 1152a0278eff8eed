"""What lazydelta is measured at; a child imports this module and runs one function, whose answer is checked."""

from __future__ import annotations

from typing import Any

import pyarrow.compute  # noqa: F401 - it is loaded when first needed, and imports are in no figure

from lazydelta import DeltaTable
from lazydelta.kql import query
from lazydelta.sidecar import build, refresh


def files_of_hour(uri: str, hour: str) -> int:
    return len(DeltaTable(uri).file_uris(partition_filters=[("_event_hour", "=", hour)]))


def all_files(uri: str, strategy: str = "auto") -> int:
    return sum(batch.num_rows for batch in DeltaTable(uri).files(strategy=strategy).batches())


def matching_files(uri: str, where: str | list[Any], strategy: str = "auto") -> int:
    # Tuples became lists on their way to the child.
    predicate = where if isinstance(where, str) else [tuple(term) for term in where]
    return sum(batch.num_rows for batch in DeltaTable(uri).files(predicate, strategy=strategy).batches())


def all_objects(uri: str) -> int:
    return sum(1 for file in DeltaTable(uri).files() if file.path)


def first_file(uri: str) -> int:
    with DeltaTable(uri).files() as files:
        next(iter(files))
    return 1


def first_of_hour(uri: str, hour: str) -> int:
    with DeltaTable(uri).files([("_event_hour", "=", hour)]) as files:
        next(iter(files))
    return 1


def take(uri: str, limit: int) -> int:
    return sum(batch.num_rows for batch in DeltaTable(uri).files(limit=limit).batches())


def build_sidecar(uri: str, memory_budget: int | None = None) -> int:
    return (build(uri) if memory_budget is None else build(uri, memory_budget=memory_budget)).num_files


def refresh_sidecar(uri: str) -> int:
    result = refresh(uri)
    if result.action != "refreshed":
        raise RuntimeError(f"the sidecar was {result.action}, not refreshed: {result.reason}")
    return result.num_files


def rows(uri: str, columns: list[str] | None, filters: list[list[Any]] | None) -> int:
    terms = None if filters is None else [tuple(term) for term in filters]
    return int(DeltaTable(uri).to_pyarrow_table(columns=columns, filters=terms).num_rows)


def kql_rows(uri: str, text: str) -> int:
    with query(text, {"T": DeltaTable(uri)}) as result:
        return sum(batch.num_rows for batch in result)
