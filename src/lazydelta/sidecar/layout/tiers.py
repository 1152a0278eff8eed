"""Tiers: the columns of a very wide sidecar in two files, row by row: what queries by time read, and all the rest.

A footer describes every column of every row group. Beyond some hundred columns it is larger than what a query reads of
the rows, so that columns which few predicates name get files, and footers, of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import pyarrow as pa

from lazydelta.sidecar.layout.manifest import SidecarError, StatsFile
from lazydelta.sidecar.layout.part_file import (
    PartFooter,
    SidecarState,
    WrittenPart,
    encode_part,
    group_facts,
    sealed_file,
)
from lazydelta.sidecar.layout.sidecar_columns import STATS_OF_COLUMNS, ColumnRole, SidecarLayout

__all__ = ["TIERED_ABOVE", "check_aligned", "encode_tiers", "index_tier", "joined_rows", "joined_tiers", "stats_tier"]

TIERED_ABOVE = 500
"""With statistics of more columns than this, a sidecar has two tiers."""
_NO_STATE = msgspec.Raw(b"{}")


def index_tier(layout: SidecarLayout, indexed: Collection[tuple[str, ...]]) -> SidecarLayout | None:
    """Return the columns of the first tier: all but statistics, and those of ``indexed`` columns; None for one tier."""
    columns = sum(column.role == ColumnRole.NULL_COUNT for column in layout.columns)
    if columns <= TIERED_ABOVE:
        return None
    core, chosen = set(layout.names(core=True)), set(indexed)
    return SidecarLayout(
        tuple(
            column
            for column in layout.columns
            if column.name in core or column.role not in STATS_OF_COLUMNS or column.path in chosen
        ),
        layout.sort,
    )


def encode_tiers(
    rows: pa.Table, state: SidecarState, indexed: Sequence[tuple[str, ...]], index: SidecarLayout
) -> WrittenPart:
    """Write sorted rows as two files: the columns of ``index``, and all others of the state's."""
    # Only a manifest leads to such files, and it has the table's metadata: a wide schema is as long as a wide footer.
    first = msgspec.structs.replace(state, columns=index.columns, num_files=-1, state=_NO_STATE)
    second = msgspec.structs.replace(first, columns=stats_tier(state.layout, index).columns)
    written = encode_part(rows.select([column.name for column in index.columns]), first, indexed)
    keys = [msgspec.structs.replace(group, ranges={}) for group in group_facts(rows, index, ())]
    data, footer = sealed_file(rows.select([column.name for column in second.columns]), second, keys, plain=False)
    stats = StatsFile(
        file="",
        size=len(data),
        footer_offset=len(data) - footer.length,
        footer_length=footer.length,
        footer_sha256=footer.digest,
    )
    return msgspec.structs.replace(written, part=msgspec.structs.replace(written.part, stats=stats), stats_data=data)


def stats_tier(layout: SidecarLayout, index: SidecarLayout) -> SidecarLayout:
    """Return the columns that the first tier does not have."""
    names = {column.name for column in index.columns}
    return SidecarLayout(tuple(column for column in layout.columns if column.name not in names), layout.sort)


def joined_tiers(index: SidecarLayout, stats: SidecarLayout) -> SidecarLayout:
    """Return the columns of both tiers, those of the first one first."""
    return SidecarLayout(index.columns + stats.columns, index.sort)


def joined_rows(tiers: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the columns of the same rows side by side."""
    if len(tiers) == 1:
        return tiers[0]
    names = [name for tier in tiers for name in tier.schema.names]
    return pa.RecordBatch.from_arrays([column for tier in tiers for column in tier.columns], names=names)


def check_aligned(index: PartFooter, stats: PartFooter) -> None:
    """Raise unless two files have the same rows: as many in each row group, from the same key to the same key."""
    ours, theirs = ([(group.num_rows, group.first, group.last) for group in footer.groups] for footer in (index, stats))
    if ours != theirs or index.state.sort != stats.state.sort:
        message = "its two tiers have other rows"
        raise SidecarError(message)
