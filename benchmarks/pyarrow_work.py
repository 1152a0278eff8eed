"""A plain PyArrow dataset over a table's files: the cost of reading without discovery."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as pads
from deltalake import DeltaTable


def rows(uri: str, columns: list[str] | None, filters: list[list[Any]] | None, partitioning: str | None = None) -> int:
    """Read rows; without ``partitioning`` the partition column is not among them."""
    dataset = pads.dataset(DeltaTable(uri).file_uris(), partitioning=partitioning)
    expression = None if filters is None else pc.field(filters[0][0]) == filters[0][2]
    return int(dataset.to_table(columns=columns, filter=expression).num_rows)
