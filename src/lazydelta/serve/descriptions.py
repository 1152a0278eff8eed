"""What a server tells of a table besides its files and rows, as JSON."""

from __future__ import annotations

import msgspec

from lazydelta.delta_table import DeltaTable
from lazydelta.engines.table_source import pinned

__all__ = ["describe"]


def describe(table: DeltaTable, name: str) -> bytes:
    """Return version, schema, protocol and metadata of a table; where it is, stays here."""
    snapshot = pinned(table)[1]
    return msgspec.json.encode(
        {
            "table": name,
            "version": table.version(),
            "metadata": snapshot.metadata,
            "protocol": snapshot.protocol,
        }
    )
