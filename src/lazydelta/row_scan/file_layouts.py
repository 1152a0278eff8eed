"""``FileLayouts``: what a scan finds out once for all of its files that look alike.

Most files of a table have one and the same schema. To look up each column of a request in each file, and to plan its
conversion, takes about as long as to decode a column of a small file, and it is Python, for which threads wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from lazydelta.row_scan.row_mask import row_mask
from lazydelta.row_scan.row_request import RowRequest
from lazydelta.rows.opened_file import OpenedFile, Selection

__all__ = ["FileLayouts", "Layout"]

_MOST_PARTITIONS = 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the columns of a request are in files of one schema: all, those that the filter looks at, and the rest."""

    all: Selection
    tested: Selection
    rest: Selection
    both: tuple[int, ...]


class FileLayouts:
    """The layouts of one scan's files; several threads ask at once, and at worst one finds what another has found."""

    def __init__(self, request: RowRequest) -> None:
        self._request = request
        self._last: tuple[pa.Schema, Layout] | None = None
        self.schema = request.schema
        self.names = tuple(each.name for each in request.output)
        self.is_masked = request.is_masked
        self.codes: tuple[str, ...] = ()
        """The columns that the file before was read as codes of: the next one is opened for that."""
        self._partitions: dict[tuple[str | None, ...], bool] = {}
        partitions = request.table.partition_columns
        self.is_of_partitions = (
            self.is_masked and bool(request.tested) and all(each.name in partitions for each in request.tested)
        )
        """Whether the filter looks at nothing but what all rows of a file share."""
        # Where there is no filter, nothing is read apart.
        self._rest = tuple(
            each for each in request.output if request.expression is not None and each not in request.tested
        )

    def of(self, opened: OpenedFile) -> Layout:
        """Return where the columns are in a file."""
        last = self._last
        if last is not None and opened.groups and last[0].equals(opened.arrow_schema, check_metadata=True):
            return last[1]
        found = self._found(opened)
        if opened.groups and _is_flat(found, opened.arrow_schema):
            self._last = opened.arrow_schema, found
        return found

    def passes(self, opened: OpenedFile) -> bool:
        """Tell whether the rows of a file pass a filter of partitions; files of one partition are judged once."""
        tested, values = self._request.tested, opened.file.partition_values
        key = tuple(values.get(each.physical_name) for each in tested)
        known = self._partitions.get(key)
        if known is None:
            shared = {name: pa.repeat(value, 1) for name, value in opened.constants(tested).items()}
            known = self._judged(shared)
            if len(self._partitions) < _MOST_PARTITIONS:
                self._partitions[key] = known
        return known

    def _judged(self, shared: Mapping[str, pa.Array]) -> bool:
        predicate = self._request.predicate
        return predicate is None or bool(row_mask(predicate, lambda column: shared[column.path[0]], 1).true_count)

    def _found(self, opened: OpenedFile) -> Layout:
        tested, rest = opened.select(self._request.tested), opened.select(self._rest)
        both = tuple(sorted({*tested.leaves, *rest.leaves}))
        return Layout(opened.select(self._request.output), tested, rest, both)


def _is_flat(layout: Layout, schema: pa.Schema) -> bool:
    # What is nested may have other names in the Parquet file where Arrow sees the same.
    names = {name for each in (layout.all, layout.tested, layout.rest) for name in each.names}
    return all(name in schema.names and not pa.types.is_nested(schema.field(name).type) for name in names)
