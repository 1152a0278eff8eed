"""The ranges of a manifest's parts and row groups, in the form in which predicates are evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from lazydelta.arrays import flags, int64_array, string_array
from lazydelta.pruning import Predicate, may_match, referenced_columns
from lazydelta.sidecar.layout.manifest import RangeText, range_key
from lazydelta.stats import ColumnRange, Ranges, has_range
from lazydelta.types.schema import Column
from lazydelta.types.text import from_text

__all__ = ["surviving"]


def surviving(predicate: Predicate | None, ranges: Sequence[Mapping[str, RangeText]]) -> list[int]:
    """Return which of the groups can hold a file that may match."""
    if predicate is None or not ranges:
        return list(range(len(ranges)))
    known = {column.physical_path: _column(column, ranges) for column in referenced_columns(predicate)}
    keep = may_match(predicate, Ranges(len(ranges), columns=known))
    found: list[int] = np.flatnonzero(flags(keep)).tolist()
    return found


def _column(column: Column, ranges: Sequence[Mapping[str, RangeText]]) -> ColumnRange:
    key = range_key(column.physical_path)
    found = [each.get(key, _UNKNOWN) for each in ranges]
    # A bound counts only if no file of the group lacks it. Bounds of a group are never exact: they span many files.
    low = string_array([None if each.has_missing else each.min for each in found])
    high = string_array([None if each.has_missing else each.max for each in found])
    nulls = int64_array([None if each.has_null else 0 for each in found])
    # No bound although none is missing: every file of the group is all null there.
    empty = [not each.has_missing and each.min is None and each.max is None and each.has_null for each in found]
    bits = pa.py_buffer(np.packbits(empty, bitorder="little"))
    # A list, a struct or a variant has no bounds, but it may be tested for null.
    ranged = has_range(column)
    return ColumnRange(
        from_text(low, column.type) if ranged else None,
        from_text(high, column.type) if ranged else None,
        nulls,
        all_null=pa.Array.from_buffers(pa.bool_(), len(found), [None, bits]),
    )


_UNKNOWN = RangeText(has_missing=True, has_null=True)
