"""Sort keys and ranges of sidecar rows, as text: the form in which the manifest has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as PyDecimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.arrays import boolean_array, flags, int64_array
from lazydelta.sidecar.layout.manifest import RangeText, range_key
from lazydelta.sidecar.layout.sidecar_columns import ColumnRole, SidecarColumn, SidecarLayout
from lazydelta.stats import partition_ranges
from lazydelta.types.schema import Column, Primitive

__all__ = ["key_at", "ranges_of", "text_of"]

_UNWRITABLE = object()
_ZERO, _FALSE = int64_array([0])[0], boolean_array(np.zeros(1, np.bool_))[0]


def text_of(value: object) -> str | None:
    """Write a value as Delta writes partition values, exactly."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC)
            text = moment.replace(tzinfo=None).isoformat(timespec="microseconds")
            return text if value.tzinfo is None else f"{text}Z"
        case date():
            return value.isoformat()
        case float():
            return None if math.isnan(value) else repr(value)
        case PyDecimal():
            return f"{value:f}"
        case str() | int():
            return str(value)
        case _:
            return None


def _python(value: pa.Scalar) -> object:
    """Return a value as a Python object; Arrow's own way would load pandas to do it for timestamps.

    Python has no years below 1 or above 9999: what lies there cannot be written, as NaN cannot.
    """
    try:
        if pa.types.is_timestamp(value.type) and value.is_valid and value.type.unit == "us":
            zone = None if value.type.tz is None else UTC
            return datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=value.value)
        return value.as_py()
    except OverflowError:
        return _UNWRITABLE


def key_at(rows: pa.Table, index: int, layout: SidecarLayout) -> tuple[str | None, ...]:
    """Return the key of one row: its sort values and its path."""
    names = (*layout.sort_names(), layout.name_of(ColumnRole.PATH))
    return tuple(text_of(_python(rows.column(name)[index])) for name in names)


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
        text_of(_python(bounds["min"])),
        text_of(_python(bounds["max"])),
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
    records = rows.column(layout.name_of(ColumnRole.NUM_RECORDS))
    unbounded = [_mask(rows.column(bound).is_null()) for bound in (low, high)]
    # All-null files have no bounds and lack none. With one bound, or without rows, counts prove nothing.
    all_null = _mask(pc.equal(nulls, records)) & ~_mask(pc.equal(records, _ZERO)) & unbounded[0] & unbounded[1]
    lacking = (unbounded[0] | unbounded[1]) & ~all_null
    bounds = {"min": pc.min(rows.column(low)), "max": pc.max(rows.column(high))}
    return RangeText(
        text_of(_python(bounds["min"])),
        text_of(_python(bounds["max"])),
        has_missing=bool(lacking.any()) or _unwritable(bounds),
        has_null=bool((~_mask(pc.equal(nulls, _ZERO))).any()),
    )


def _unwritable(bounds: dict[str, pa.Scalar] | pa.StructScalar) -> bool:
    return any(bounds[end].is_valid and text_of(_python(bounds[end])) is None for end in ("min", "max"))


def _mask(values: pa.ChunkedArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    filled = pc.fill_null(values, _FALSE) if values.null_count else values
    return flags(filled.combine_chunks() if isinstance(filled, pa.ChunkedArray) else filled)
