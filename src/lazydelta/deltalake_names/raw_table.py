"""``table._table``: the parts of deltalake's internal table object that programs use most."""

from __future__ import annotations

from typing import Any

from lazydelta.protocol.delta_types import Schema
from lazydelta.sidecar.handle import snapshot_of
from lazydelta.storage import Store

__all__ = ["RawDeltaTable"]


class RawDeltaTable:
    """A table with the interface of deltalake's native core."""

    def __init__(self, table: Any) -> None:
        self._table = table  # a DeltaTable, from an outer layer

    @property
    def schema(self) -> Schema:
        """The table's schema."""
        schema: Schema = self._table.schema()
        return schema

    @property
    def store(self) -> Store:
        """The store that the table is read from and written to."""
        store: Store = snapshot_of(self._table).store
        return store

    def table_uri(self) -> str:
        """Return the table's root."""
        return str(self._table.table_uri)

    def version(self) -> int:
        """Return the pinned version."""
        return int(self._table.version())

    def get_add_file_sizes(self) -> dict[str, int]:
        """Return the size of every active file by its logged path."""
        sizes: dict[str, int] = {}
        for batch in self._table.files().batches():
            sizes.update(zip(batch.column("path").to_pylist(), batch.column("size").to_pylist(), strict=True))
        return sizes
