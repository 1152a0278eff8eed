"""Sort keys and ranges of sidecar rows, as text: the form in which the manifest has them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import boolean_array, flags, int64_array, one_array
from lazydelta.sidecar.layout.manifest import RangeText, range_key
from lazydelta.sidecar.layout.sidecar_columns import ColumnRole, SidecarColumn, SidecarLayout
from lazydelta.stats import partition_ranges
from lazydelta.types.calendar import has_plain_year, moment_text
from lazydelta.types.schema import Column, Primitive
from lazydelta.types.value_text import plain_text

__all__ = ["key_at", "ranges_of", "text_of"]

_TEXT = pa.string()
_ZERO, _FALSE = int64_array([0])[0], boolean_array(np.zeros(1, np.bool_))[0]


def text_of(value: pa.Scalar) -> str | None:
    """Write a value as Delta writes partition values, exactly; None where there is none, or none that readers take.

    Those are NaN, bytes, and the years below 1 and above 9999. Keys are compared with those that are in manifests, so
    infinity keeps the name that it has there.
    """
    kind = value.type
    if kind == _TEXT:
        text: str | None = value.as_py()
        return text
    if not value.is_valid or pa.types.is_binary(kind):
        return None
    if pa.types.is_date32(kind):
        return moment_text(value.value, "D") if has_plain_year(value.value, "D") else None
    if pa.types.is_timestamp(kind):
        text = moment_text(value.value, "us") if has_plain_year(value.value, "us") else None
        return text if text is None or kind.tz is None else f"{text}Z"
    plain = value.as_py()
    if isinstance(plain, float) and not math.isfinite(plain):
        return None if math.isnan(plain) else repr(plain)
    return plain_text(plain)


def key_at(rows: pa.Table, index: int, layout: SidecarLayout) -> tuple[str | None, ...]:
    """Return the key of one row: its sort values and its path."""
    names = (*layout.sort_names(), layout.name_of(ColumnRole.PATH))
    return tuple(text_of(rows.column(name)[index]) for name in names)


def ranges_of(rows: pa.Table, layout: SidecarLayout, indexed: Sequence[tuple[str, ...]]) -> dict[str, RangeText]:
    """Return the ranges of the partition columns and of the ``indexed`` columns over these rows."""
    found: dict[str, RangeText] = {}
    for column in layout.columns:
        if column.role == ColumnRole.PARTITION:
            found[range_key(column.path)] = _partition_range(rows, layout, column)
    for path in indexed:
        low, high = layout.name_of(ColumnRole.MIN, path), layout.name_of(ColumnRole.MAX, path)
        if low is None or high is None:
            continue
        found[range_key(path)] = _stats_range(rows, layout, path, low, high)
    return found


def _partition_range(rows: pa.Table, layout: SidecarLayout, column: SidecarColumn) -> RangeText:
    values = rows.column(column.name)
    bounds = pc.min_max(values)
    # A null partition value is knowledge: every row of the file is null there, and no bound is lacking. NaN lies within
    # no bounds, and a text that could not be read is null here and may be anything.
    outside = pa.types.is_floating(values.type) and bool(pc.any(pc.is_nan(values)).as_py())
    return RangeText(
        text_of(bounds["min"]),
        text_of(bounds["max"]),
        has_missing=outside or _unwritable(bounds) or _has_unread(rows, layout, column),
        has_null=values.null_count > 0,
    )


def _has_unread(rows: pa.Table, layout: SidecarLayout, column: SidecarColumn) -> bool:
    """Tell whether a null of this partition column is a text that its type does not have."""
    values = rows.column(column.name)
    if not values.null_count or pa.types.is_string(values.type):
        return False
    named = Column(column.path, column.path, Primitive("string"), is_partition=True)
    maps = rows.column(layout.name_of(ColumnRole.PARTITION_VALUES)).filter(values.is_null())
    texts = partition_ranges(maps, [named]).column(named)
    return texts is not None and texts.min is not None and texts.min.null_count < len(maps)


def _stats_range(rows: pa.Table, layout: SidecarLayout, path: tuple[str, ...], low: str, high: str) -> RangeText:
    nulls = rows.column(layout.name_of(ColumnRole.NULL_COUNT, path))
    lows, highs = rows.column(low), rows.column(high)
    # Most files have both bounds: then nothing is lacking, and no count has to be compared.
    is_lacking = bool(lows.null_count or highs.null_count) and _lacks_bounds(rows, layout, nulls, lows, highs)
    bounds = {"min": pc.min(lows), "max": pc.max(highs)}
    return RangeText(
        text_of(bounds["min"]),
        text_of(bounds["max"]),
        has_missing=is_lacking or _unwritable(bounds),
        has_null=bool((~_mask(pc.equal(nulls, _ZERO))).any()),
    )


def _lacks_bounds(
    rows: pa.Table, layout: SidecarLayout, nulls: pa.ChunkedArray, lows: pa.ChunkedArray, highs: pa.ChunkedArray
) -> bool:
    """Tell whether a file has no bound although it has values."""
    records = rows.column(layout.name_of(ColumnRole.NUM_RECORDS))
    unbounded = [_mask(bound.is_null()) for bound in (lows, highs)]
    # All-null files have no bounds and lack none. With one bound, or without rows, counts prove nothing.
    all_null = _mask(pc.equal(nulls, records)) & ~_mask(pc.equal(records, _ZERO)) & unbounded[0] & unbounded[1]
    return bool(((unbounded[0] | unbounded[1]) & ~all_null).any())


def _unwritable(bounds: dict[str, pa.Scalar] | pa.StructScalar) -> bool:
    return any(bounds[end].is_valid and text_of(bounds[end]) is None for end in ("min", "max"))


def _mask(values: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    filled = pc.fill_null(values, _FALSE) if values.null_count else values
    return flags(one_array(filled))
