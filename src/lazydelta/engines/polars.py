"""Polars: a table as a lazy frame; Polars filters the rows, after its predicate has ruled out files and row groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lazydelta.engines.polars_predicate import pruning_predicate
from lazydelta.engines.table_source import TableOrUri, engine, pinned
from lazydelta.handle import TableHandle
from lazydelta.log.snapshot import Snapshot
from lazydelta.row_scan.row_request import RowRequest
from lazydelta.row_scan.row_scanner import RowScanner

if TYPE_CHECKING:
    import polars as pl

__all__ = ["scan"]

# Polars' streaming engine asks for a few frames more than it turns out to need, whatever their size, and tells a source
# of no limit where there is a filter. So the first batches come in small frames: a few of them are less than a file.
_FRAMES_A_BATCH = 8
_BATCHES_CUT = 16


def scan(table: TableOrUri) -> pl.LazyFrame:
    """Return a table, or the one at a URI, as a lazy frame.

    The streaming engine (``collect(engine="streaming")``) stops when it has enough rows. The engine in memory passes
    ``head`` on where there is no filter; with one it reads all that the filter may match.
    """
    polars = engine("polars", "polars")
    handle, snapshot = pinned(table)
    source = _Source(handle, snapshot)
    empty = polars.from_arrow(snapshot.schema.to_arrow().empty_table())
    lazy: pl.LazyFrame = polars.io.plugins.register_io_source(
        source, schema=empty.schema, validate_schema=False, explain_name="lazydelta", explain_detail=handle.uri
    )
    return lazy


class _Source:
    """What Polars calls for each scan of the frame."""

    def __init__(self, handle: TableHandle, snapshot: Snapshot) -> None:
        self._handle = handle
        self._snapshot = snapshot

    def __call__(
        self, columns: list[str] | None, predicate: pl.Expr | None, limit: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        del batch_size  # a hint; batches end with row groups
        schema = self._snapshot.schema
        needed = columns
        if columns is not None and predicate is not None:
            needed = list(dict.fromkeys([*columns, *predicate.meta.root_names()]))
        request = RowRequest.of(schema, columns=needed, limit=None if predicate is not None else limit)
        if predicate is not None:
            found = pruning_predicate(predicate.meta.serialize(format="json"), schema)
            request = replace(request, predicate=found)
        return self._frames(request, columns, predicate, limit)

    def _frames(
        self, request: RowRequest, columns: list[str] | None, predicate: pl.Expr | None, limit: int | None
    ) -> Iterator[pl.DataFrame]:
        polars: Any = engine("polars", "polars")
        left = limit
        begun = 0
        with RowScanner(self._handle, self._snapshot, request).stream() as stream:
            for batch in stream:
                frame = polars.from_arrow(batch)
                if predicate is not None:
                    frame = frame.filter(predicate)
                if columns is not None:
                    frame = frame.select(columns)
                if left is not None:
                    frame = frame.head(left)
                    left -= frame.height
                begun += frame.height > 0
                yield from _cut(frame, _FRAMES_A_BATCH if limit is None and begun <= _BATCHES_CUT else 1)
                if left == 0:
                    return


def _cut(frame: pl.DataFrame, parts: int) -> Iterator[pl.DataFrame]:
    """Yield a frame in so many parts of one size, none of them empty."""
    size = max(1, -(-frame.height // parts))
    for start in range(0, frame.height, size):
        yield frame.slice(start, size)
