"""Table arguments of the engines: a URI, or a ``DeltaTable`` at its pinned version."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypeAlias

from lazydelta.errors import OptionError, require
from lazydelta.log.snapshot import Snapshot
from lazydelta.rows.dataset import RowsDataset
from lazydelta.rows.flow import ReadingPool
from lazydelta.sidecar.handle import TableHandle

__all__ = ["TableOrUri", "engine", "engine_dataset", "pinned"]

TableOrUri: TypeAlias = "str | os.PathLike[str] | Any"
"""A URI or path, or a ``DeltaTable``."""


def engine(name: str, extra: str) -> ModuleType:
    """Import an engine, or raise an error that says how to install it."""
    require(extra, name)
    return importlib.import_module(name)


def pinned(
    table: TableOrUri, storage_options: Mapping[str, str] | None = None, version: int | None = None
) -> tuple[TableHandle, Snapshot]:
    """Return the handle and snapshot of a table. A table given by URI is opened now."""
    handle, snapshot = getattr(table, "_handle", None), getattr(table, "_snapshot", None)
    if isinstance(handle, TableHandle) and isinstance(snapshot, Snapshot):
        if storage_options is not None:
            raise OptionError("A table that is open has its storage options", hint="give them with a URI only")
        return handle, snapshot if version is None else handle.snapshot(version)
    if not isinstance(table, str | os.PathLike):
        kind = type(table).__name__
        raise OptionError(f"A table is a URI or a DeltaTable, not a {kind}", hint="give DeltaTable(uri) or its URI")
    opened = TableHandle.open(table, storage_options)
    return opened, opened.snapshot(version)


def engine_dataset(
    table: TableOrUri,
    storage_options: Mapping[str, str] | None = None,
    *,
    version: int | None = None,
    pool: ReadingPool | None = None,
    nan_is_largest: bool = True,
) -> RowsDataset:
    """Return a table as a dataset whose filters order NaN as SQL engines do."""
    handle, snapshot = pinned(table, storage_options, version)
    return RowsDataset(handle, snapshot, nan_is_largest=nan_is_largest, pool=pool, in_one=True)
