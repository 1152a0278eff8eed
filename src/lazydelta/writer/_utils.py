"""A name that programs import from the inside of deltalake."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lazydelta.errors import OptionError, TableNotFoundError
from lazydelta.table.delta_table import DeltaTable

__all__ = ["try_get_table_and_table_uri"]


def try_get_table_and_table_uri(
    table_or_uri: str | os.PathLike[str] | DeltaTable, storage_options: Mapping[str, str] | None = None
) -> tuple[DeltaTable | None, str]:
    """Return the table that is meant, None if there is none yet, and its place."""
    if isinstance(table_or_uri, DeltaTable):
        return table_or_uri, f"{table_or_uri.table_uri}/"
    if not isinstance(table_or_uri, str | os.PathLike):
        raise OptionError("table_or_uri must be a string, a path or a DeltaTable")
    try:
        return DeltaTable(table_or_uri, storage_options=storage_options), os.fspath(table_or_uri)
    except TableNotFoundError:
        return None, os.fspath(table_or_uri)
