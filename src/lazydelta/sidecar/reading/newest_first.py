"""Newest first, as far as a sidecar is sorted: its order backwards, but files without a sort key come last.

The sidecar has its rows ascending by the sort columns, and those that lack the first one at the end. A file of which
nobody knows the time is not the newest one, so those rows stay at the end when all others are turned around: whole row
groups of them wait, and the one row group that may hold both kinds is sent in two pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import pyarrow as pa

from lazydelta.sidecar.layout.manifest import ManifestLeaf, ManifestPart, ManifestRowGroup
from lazydelta.sidecar.layout.sidecar_columns import SidecarLayout

__all__ = ["dated_rows", "is_undated", "newest_first"]

Stretch = TypeVar("Stretch", bound=ManifestLeaf | ManifestPart | ManifestRowGroup)


def is_undated(stretch: ManifestLeaf | ManifestPart | ManifestRowGroup) -> bool:
    """Tell whether a leaf, part or row group begins and ends with files that have no sort key to show."""
    # A manifest may lie: what has no key at all is found out when its rows are read.
    return stretch.first[:1] == stretch.last[:1] == (None,)


def newest_first(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Return leaves, parts or row groups, given as stored, from the newest to the oldest and then the undated ones."""
    backwards = list(stretches)[::-1]
    # A stable sort: dated ones (False) before undated ones.
    return sorted(backwards, key=is_undated)


def dated_rows(rows: pa.RecordBatch, layout: SidecarLayout) -> int:
    """Return how many rows of a row group, from its beginning, have a sort key."""
    names = layout.sort_names()
    missing: int = rows.column(names[0]).null_count if names else 0
    return int(rows.num_rows) - missing
