"""What a server tells of a table besides its files and rows, as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import numpy_of
from lazydelta.delta_table import DeltaTable
from lazydelta.engines.table_source import pinned
from lazydelta.errors import OptionError, StreamClosedError
from lazydelta.log.travel import history

__all__ = ["described", "estimated", "history_of", "partitions_in"]

_MOST_VERSIONS = 10_000


def described(table: DeltaTable, name: str) -> bytes:
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


def history_of(table: DeltaTable, limit: int | None, left: Callable[[], bool], cleaned: Callable[[str], str]) -> bytes:
    """Return the provenance of versions, newest first; places of tables in it are the names that clients know."""
    if limit is not None and limit < 0:
        raise OptionError(f"history(limit={limit}) makes no sense", hint="give a positive number or None")
    handle, snapshot = pinned(table)
    most = _MOST_VERSIONS + 1 if limit is None else min(limit, _MOST_VERSIONS + 1)
    found: list[dict[str, Any]] = []
    for info in history(handle.store, snapshot.segment, snapshot.metadata, most):
        if left():
            raise StreamClosedError("The client has left")
        found.append(info)
    if len(found) > _MOST_VERSIONS:
        message = f"There are more than {_MOST_VERSIONS} versions"
        raise OptionError(message, hint="give a limit, or open older versions and ask for their history")
    return cleaned(msgspec.json.encode(found).decode()).encode()


def partitions_in(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> list[dict[str, str | None]]:
    """Return the distinct partitions of files, as ``DeltaTable.partitions`` does."""
    found: dict[tuple[str | None, ...], None] = {}
    for batch in batches:
        if not names:
            continue
        # Writers log the entries of the map in any order, and an empty text for a null.
        maps = (dict(values or ()) for values in batch.column("partition_values").to_pylist())
        found.update(dict.fromkeys(tuple(values.get(name) or None for name in names) for values in maps))
    return [dict(zip(names, values, strict=True)) for values in found]


def estimated(batches: Iterable[pa.RecordBatch]) -> dict[str, int | None]:
    """Return the number of files, their bytes and their live rows, None where the log lacks a number."""
    files = size = 0
    rows: int | None = 0
    for batch in batches:
        files += batch.num_rows
        size += int(np.maximum(numpy_of(batch.column("size")), 0).sum())
        records, vectors = batch.column("num_records"), batch.column("deletion_vector")
        if rows is None or records.null_count:
            rows = None
            continue
        rows += pc.sum(records).as_py() or 0
        if vectors.null_count < len(vectors):
            rows -= pc.sum(pc.struct_field(vectors, "cardinality")).as_py() or 0
    return {"files": files, "size": size, "rows": rows}
