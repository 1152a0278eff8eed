"""``PartOrder``: the parts of a sidecar on the axis of their keys, and where on it a file belongs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.sidecar.layout.manifest import ManifestPart, SidecarError, range_key
from lazydelta.sidecar.layout.order import keys_from_text, places_among
from lazydelta.sidecar.layout.sidecar_columns import ColumnRole, SidecarLayout
from lazydelta.sidecar.layout.sidecar_rows import partition_column
from lazydelta.types.schema import TableSchema

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
        self._firsts = keys_from_text([part.first for part in parts], layout, schema)
        self._lasts = keys_from_text([part.last for part in parts], layout, schema)
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
