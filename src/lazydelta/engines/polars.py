"""Polars: a table as a lazy frame. The predicate prunes files and row groups, and Polars filters the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lazydelta.predicates.polars_expression import pruning_predicate
from lazydelta.rows.request import RowRequest
from lazydelta.rows.scanner import RowScanner
from lazydelta.runtime.database import engine
from lazydelta.sidecar.handle import Snapshot, TableOrUri, snapshot_of

if TYPE_CHECKING:
    import polars as pl

__all__ = ["scan"]


# Polars' streaming engine requests a few more frames than it needs, whatever their size, and passes no limit to a
# source if there is a filter. The first batches are therefore split into small frames: a few of them are less than a
# file.
_FRAMES_A_BATCH = 8
_BATCHES_CUT = 16


def scan(table: TableOrUri, *, maintain_order: bool = False) -> pl.LazyFrame:
    """Return a table, or the table at a URI, as a lazy frame.

    Rows come in the order in which their files are found, which another checkpoint or a sidecar may change. With
    ``maintain_order`` files are ordered by path, so that ``with_row_index``, ``slice`` and ``gather`` have the same
    answer for as long as the version is the same. All files are listed first then.

    The streaming engine (``collect(engine="streaming")``) stops once it has enough rows. The in-memory engine passes
    ``head`` on only without a filter; with one, it reads everything that the filter may match.
    """
    polars = engine("polars", "polars")
    snapshot = snapshot_of(table)
    source = _PolarsSource(snapshot, by_path=maintain_order)
    empty = polars.from_arrow(snapshot.schema.to_arrow().empty_table())
    lazy: pl.LazyFrame = polars.io.plugins.register_io_source(
        source, schema=empty.schema, validate_schema=False, explain_name="lazydelta", explain_detail=snapshot.uri
    )
    return lazy


class _PolarsSource:
    """The callable that Polars invokes for each scan of the frame."""

    def __init__(self, snapshot: Snapshot, *, by_path: bool = False) -> None:
        self._snapshot = snapshot
        self._by_path = by_path

    def __call__(
        self, columns: list[str] | None, predicate: pl.Expr | None, limit: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        del batch_size  # only a hint; batches end at row group boundaries
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
        with RowScanner(self._snapshot, request, by_path=self._by_path).stream() as stream:
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
    """Yield a frame in at most ``parts`` parts of equal size, none of them empty."""
    size = max(1, -(-frame.height // parts))
    for start in range(0, frame.height, size):
        yield frame.slice(start, size)
