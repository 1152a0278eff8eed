"""What both sides do in the suite ``everyday``; a child imports this module and runs one function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

import lazydelta

__all__ = ["checkpoint", "commits", "delete", "history", "listing", "optimize", "read", "write"]


def write(by: str, folder: str, columns: int) -> int:
    """Append a few rows of many columns; return how many commits there are."""
    data = pa.table({f"c{number}": [1, 2, 3] for number in range(columns)})
    if by == "lazydelta":
        lazydelta.write_arrow(folder, data)
    else:
        deltalake.write_deltalake(folder, data, mode="append")
    return len(list((Path(folder) / "_delta_log").glob("*.json")))


def read(by: str, folder: str) -> int:
    """Return how many rows there are, all of them read."""
    return int(_table(by, folder).to_pyarrow_table().num_rows)


def delete(by: str, folder: str, where: str) -> int:
    """Delete rows; return how many are left, by the log."""
    _table(by, folder).delete(where)
    return _rows(folder)


def listing(by: str, folder: str) -> int:
    """Open a table and return how many files it has."""
    table = _table(by, folder)
    return sum(batch.num_rows for batch in table.files().batches()) if by == "lazydelta" else len(table.file_uris())


def checkpoint(by: str, folder: str) -> int:
    """Write a checkpoint and return how many files it has."""
    _table(by, folder).create_checkpoint()
    file = next((Path(folder) / "_delta_log").glob("*.checkpoint.parquet"))
    adds = pq.ParquetFile(file).read(columns=["add.path"]).column("add")
    return int(len(adds) - adds.null_count)


def commits(by: str, folder: str, number: int) -> int:
    """Append a few rows so many times; return how many rows there are. What follows the commits is part of it."""
    data = pa.table({"id": range(100), "value": [each / 2 for each in range(100)], "text": ["text"] * 100})
    for _ in range(number):
        if by == "lazydelta":
            lazydelta.write_arrow(folder, data)
        else:
            deltalake.write_deltalake(folder, data, mode="append")
    return _rows(folder)


def optimize(by: str, folder: str) -> int:
    """Put small files together; return how many rows there are."""
    _table(by, folder).optimize.compact()
    return _rows(folder)


def history(by: str, folder: str) -> int:
    """Return how many commits the history has."""
    return len(_table(by, folder).history())


def _rows(folder: str) -> int:
    adds = pa.table(deltalake.DeltaTable(folder).get_add_actions(flatten=True))
    return sum(adds.column("num_records").to_pylist())


def _table(by: str, folder: str) -> Any:
    return lazydelta.DeltaTable(folder) if by == "lazydelta" else deltalake.DeltaTable(folder)
