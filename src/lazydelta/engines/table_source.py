"""Table arguments of the engines: a URI, or a ``DeltaTable`` at its pinned version."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType

from lazydelta.errors import require
from lazydelta.rows.dataset import RowsDataset
from lazydelta.rows.flow import ReadingPool
from lazydelta.sidecar.handle import TableOrUri, snapshot_of

__all__ = ["engine", "engine_dataset"]


def engine(name: str, extra: str) -> ModuleType:
    """Import an engine, or raise an error that says how to install it."""
    require(extra, name)
    return importlib.import_module(name)


def engine_dataset(
    table: TableOrUri,
    storage_options: Mapping[str, str] | None = None,
    *,
    version: int | None = None,
    pool: ReadingPool | None = None,
    nan_is_largest: bool = True,
) -> RowsDataset:
    """Return a table as a dataset whose filters order NaN as SQL engines do."""
    snapshot = snapshot_of(table, storage_options, version)
    return RowsDataset(snapshot, nan_is_largest=nan_is_largest, pool=pool, in_one=True)
