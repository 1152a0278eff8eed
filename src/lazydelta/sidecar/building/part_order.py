"""``PartOrder``: the parts of a sidecar on the axis of their keys, and where on it a file belongs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.arrays import string_array
from lazydelta.sidecar.layout.manifest import ManifestPart, SidecarError, range_key
from lazydelta.sidecar.layout.order import places_among, sortable
from lazydelta.sidecar.layout.sidecar_columns import ColumnRole, SidecarColumn, SidecarLayout
from lazydelta.sidecar.layout.sidecar_rows import partition_column
from lazydelta.types.schema import TableSchema
from lazydelta.types.text import from_text

__all__ = ["PartOrder", "key_layout"]


def key_layout(layout: SidecarLayout) -> SidecarLayout:
    """Return the columns that a file's place depends on, and no others."""
    sort = {(each.role, each.path) for each in layout.sort}
    counted = {
        (ColumnRole.NULL_COUNT, path) for role, path in sort if role == ColumnRole.MIN
    }  # statistics are known by their count
    wanted = {(ColumnRole.PATH, ()), *sort, *counted}
    return SidecarLayout(tuple(each for each in layout.columns if (each.role, each.path) in wanted), layout.sort)


class PartOrder:
    """Non-empty parts in order.

    A key before the first part belongs to the first, a key between two parts to the earlier one. Keys behind the last
    part get the number of parts.
    """

    def __init__(self, parts: Sequence[ManifestPart], layout: SidecarLayout, schema: TableSchema) -> None:
        _check_years(parts, layout, schema)
        self._firsts = _keys([part.first for part in parts], layout, schema)
        self._lasts = _keys([part.last for part in parts], layout, schema)
        self._count = len(parts)
        ends = [key.as_py() for pair in zip(self._firsts, self._lasts, strict=True) for key in pair]
        if ends != sorted(ends):
            message = "its parts are not in order"
            raise SidecarError(message)

    def places(self, keys: pa.BinaryArray) -> npt.NDArray[np.int64]:
        """Return the number of the part that each key belongs to."""
        if self._count == 0:
            return np.zeros(len(keys), np.int64)
        found = places_among(self._firsts, keys, side="right") - 1
        behind = places_among(self._lasts, keys, side="left") >= self._count
        return np.where(behind, self._count, np.maximum(found, 0))


def _check_years(parts: Sequence[ManifestPart], layout: SidecarLayout, schema: TableSchema) -> None:
    """Raise where an end of a part may lie in a year that keys have no text for: it is a value, and looks like null."""
    for number, each in enumerate(layout.sort):
        if each.role != ColumnRole.PARTITION:
            continue
        has_years = pa.types.is_temporal(partition_column(schema, each.path).type.to_arrow())
        for part in parts if has_years else ():
            known = part.ranges.get(range_key(each.path))
            if known is not None and known.has_missing and None in (part.first[number], part.last[number]):
                message = f"its keys by {'.'.join(each.path)} cannot be read back from text"
                raise SidecarError(message)


def _keys(ends: Sequence[tuple[str | None, ...]], layout: SidecarLayout, schema: TableSchema) -> pa.BinaryArray:
    types = {(column.is_partition, column.physical_path): column.type for column in schema.leaves()}
    names = [*layout.sort_names(), layout.name_of(ColumnRole.PATH)]
    arrays = []
    for number, each in enumerate(layout.sort):
        texts = string_array([end[number] for end in ends])
        kind = types[each.role == ColumnRole.PARTITION, each.path]
        values = from_text(texts, kind)
        arrow = kind.to_arrow()
        # NaN and binary values have no text: a null then says nothing about where the part lies.
        if values.null_count != texts.null_count or (
            texts.null_count and (pa.types.is_floating(arrow) or pa.types.is_binary(arrow))
        ):
            message = f"its keys by {'.'.join(each.path)} cannot be read back from text"
            raise SidecarError(message)
        arrays.append(values)
    arrays.append(string_array([end[-1] for end in ends]))
    columns = (*(_column(layout, name) for name in names),)
    return sortable(pa.RecordBatch.from_arrays(arrays, names=names), SidecarLayout(columns, layout.sort))


def _column(layout: SidecarLayout, name: str | None) -> SidecarColumn:
    return next(each for each in layout.columns if each.name == name)
