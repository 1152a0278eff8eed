"""Ranges from ``stats_parsed``: statistics that the checkpoint's writer has already typed."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.log.schema import Column, Decimal, Primitive
from lazydelta.pruning.native import typed_scalar
from lazydelta.pruning.ranges import ColumnRange, Ranges

__all__ = ["ranges_from_parsed"]


def ranges_from_parsed(stats_parsed: pa.Array | pa.ChunkedArray, columns: Sequence[Column]) -> Ranges:
    """Read the named columns (physical names, nested) from a struct of numRecords, minValues, maxValues, nullCount."""
    if isinstance(stats_parsed, pa.ChunkedArray):
        combined = stats_parsed.combine_chunks()
        stats_parsed = combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
    found: dict[tuple[str, ...], ColumnRange] = {}
    for column in columns:
        null_count = _cast(_get(stats_parsed, ("nullCount", *column.physical_path)), pa.int64())
        lower = upper = None
        if _has_range(column):
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


def _has_range(column: Column) -> bool:
    return isinstance(column.type, Decimal) or (
        isinstance(column.type, Primitive) and column.type.name not in {"binary", "void"}
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
            # A cast cuts towards zero: step outwards first, so that the bound stays one.
            step = typed_scalar(999 if up else -999, pa.int64())
            values = pc.add(values.view(pa.int64()), step).view(pa.timestamp("ns"))
        return (
            pc.cast(values, pa.timestamp("us"), safe=False).view(kind)
            if values.type.tz is None
            else (pc.cast(values, pa.timestamp("us", values.type.tz), safe=False).view(kind))
        )
    return _cast(values, kind)
