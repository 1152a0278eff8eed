"""Ranges from ``stats_parsed``: statistics that the checkpoint's writer has already typed."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import one_array, typed_array
from lazydelta.stats.chosen_columns import has_range
from lazydelta.stats.ranges import ColumnRange, Ranges
from lazydelta.types.schema import Column

__all__ = ["ranges_from_parsed"]

_ZERO, _THOUSAND = typed_array([0, 1000], pa.int64())


def ranges_from_parsed(stats_parsed: pa.Array | pa.ChunkedArray, columns: Sequence[Column]) -> Ranges:
    """Read the named columns (physical names, nested) from a struct of numRecords, minValues, maxValues, nullCount."""
    stats_parsed = one_array(stats_parsed)
    found: dict[tuple[str, ...], ColumnRange] = {}
    for column in columns:
        null_count = _cast(_get(stats_parsed, ("nullCount", *column.physical_path)), pa.int64())
        lower = upper = None
        if has_range(column):
            lower = _bound(_get(stats_parsed, ("minValues", *column.physical_path)), column, up=False)
            upper = _bound(_get(stats_parsed, ("maxValues", *column.physical_path)), column, up=True)
        if lower is not None or upper is not None or null_count is not None:
            found[column.physical_path] = ColumnRange(lower, upper, null_count)
    return Ranges(
        len(stats_parsed),
        _cast(_get(stats_parsed, ("numRecords",)), pa.int64()),
        _cast(_get(stats_parsed, ("tightBounds",)), pa.bool_()),
        found,
    )


def _get(structs: pa.Array, path: tuple[str, ...]) -> pa.Array | None:
    """Return a nested field with the nulls of its parents, or None where there is no such field."""
    positions = []
    kind = structs.type
    for name in path:
        position = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if position < 0:
            return None
        positions.append(position)
        kind = kind.field(position).type
    while positions and structs.null_count == 0:
        # Without nulls of the parent to mix in, a field is there as it is, and nothing has to be computed.
        structs = structs.field(positions.pop(0))
    return pc.struct_field(structs, positions) if positions else structs


def _cast(values: pa.Array | None, kind: pa.DataType) -> pa.Array | None:
    if values is None or values.type == kind:
        return values
    try:
        return pc.cast(values, kind)
    except pa.ArrowException:
        return None


def _bound(values: pa.Array | None, column: Column, *, up: bool) -> pa.Array | None:
    kind = column.type.to_arrow()
    if values is None or values.type == kind:
        return values
    if pa.types.is_timestamp(values.type) and pa.types.is_timestamp(kind):
        if values.type.unit == "ns":
            return _microseconds(values, up=up).view(kind)
        wide = _cast(values, pa.timestamp("us", values.type.tz))
        return None if wide is None else wide.view(kind)
    return _cast(values, kind)


def _microseconds(nanoseconds: pa.Array, *, up: bool) -> pa.Array:
    """Round outwards, so that the bound stays one; a cast would cut towards zero, which is upwards before 1970."""
    stored = nanoseconds.view(pa.int64())
    cut = pc.divide(stored, _THOUSAND)
    rest = pc.subtract(stored, pc.multiply(cut, _THOUSAND))
    if up:
        return pc.add(cut, pc.cast(pc.greater(rest, _ZERO), pa.int64()))
    return pc.subtract(cut, pc.cast(pc.less(rest, _ZERO), pa.int64()))
