"""Statistics of files that are known by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import int64_array, string_array
from lazydelta.errors import DataFileError

__all__ = ["stats_in_order"]


def stats_in_order(
    paths: Sequence[str], batches: Iterator[pa.RecordBatch], schema: pa.Schema, *, missing: str
) -> pa.Table:
    """Pick the rows of ``paths`` out of a scan, one for each in the order given, and stop when all are found.

    ``schema`` is that of the batches, of which an empty table has none.
    A path that is no active file is an error, or a row of nulls where ``missing`` is ``"null"``.
    """
    wanted = string_array(list(dict.fromkeys(paths)))
    places = np.full(len(wanted), -1, np.int64)
    found: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        at = pc.index_in(batch.column("path"), value_set=wanted)
        rows = batch.filter(at.is_valid())
        if rows.num_rows:
            places[np.asarray(at.drop_null())] = np.arange(count, count + rows.num_rows)
            found.append(rows)
            count += rows.num_rows
        if (places >= 0).all():
            break
    lost = [wanted[int(index)].as_py() for index in np.flatnonzero(places < 0)]
    if lost and missing != "null":
        more = "" if len(lost) == 1 else f" (and {len(lost) - 1} more)"
        message = f"{lost[0]!r}{more} is not an active file of this version"
        raise DataFileError(message, path=lost[0], hint="give paths as logged, or missing='null' for rows of nulls")
    where = dict(zip(wanted.to_pylist(), places.tolist(), strict=True))
    order = int64_array([None if where[path] < 0 else where[path] for path in paths])
    names = [name for name in schema.names if name == "num_records" or "." in name]
    table = pa.Table.from_batches(found, schema=schema)
    columns = {name: table.column(name).take(order) for name in names}
    return pa.table({"path": string_array(list(paths)), **columns})
