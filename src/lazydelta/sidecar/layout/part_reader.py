"""Reading a part from end to end, for those who rewrite or verify it; scans read it by row group (see ``base``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from lazydelta.sidecar.layout.leaves import EveryPart
from lazydelta.sidecar.layout.manifest import ManifestPart, SidecarError, StatsFile
from lazydelta.sidecar.layout.part_file import PartFooter, part_footer
from lazydelta.sidecar.layout.sidecar_columns import SidecarLayout
from lazydelta.sidecar.layout.tiers import check_aligned, joined_rows, joined_tiers
from lazydelta.storage import Store

__all__ = [
    "OpenedPart",
    "check_part",
    "open_part",
    "part_columns",
    "part_table",
    "typed",
    "whole_layout",
]


class OpenedPart(msgspec.Struct, frozen=True):
    """A part that is here as a whole: the footers of its tiers, each with the bytes of its file."""

    part: ManifestPart
    footer: PartFooter
    tiers: Sequence[tuple[PartFooter, bytes]]

    def read(self, index: int) -> pa.RecordBatch:
        """Return all columns of a row group."""
        try:
            return joined_rows(
                [
                    footer.read(index, [column.name for column in footer.state.columns], [(0, data)], len(data))
                    for footer, data in self.tiers
                ]
            )
        except SidecarError as error:
            message = f"{self.part.file}: {error}"
            raise SidecarError(message) from error


def open_part(store: Store, part: ManifestPart, layout: SidecarLayout) -> OpenedPart:
    """Fetch a whole part, which is a few megabytes, and check that it is the one that the manifest describes."""
    tiers = [_open_file(store, file) for file in (part, part.stats) if file is not None]
    footer = tiers[0][0]
    _check(footer, part, layout)
    if part.stats is not None:
        check_aligned(footer, tiers[1][0])
    if tuple(column for tier, _ in tiers for column in tier.state.columns) != layout.columns:
        message = f"{part.file} has other columns than the manifest says"
        raise SidecarError(message)
    return OpenedPart(part, footer, tiers)


def _open_file(store: Store, file: ManifestPart | StatsFile) -> tuple[PartFooter, bytes]:
    data = store.get(file.file)
    if len(data) != file.size:
        message = f"{file.file} has {len(data)} bytes, and the manifest says {file.size}"
        raise SidecarError(message)
    return PartFooter(data[file.footer_offset :], expected=file.footer_sha256), data


def whole_layout(store: Store, every: EveryPart) -> SidecarLayout:
    """Return the columns of all tiers of a sidecar; the manifest has those of the first one."""
    first, stats = every.index.layout, every.parts[0].stats if every.parts else None
    return first if stats is None else joined_tiers(first, part_footer(store, stats).state.layout)


def part_table(store: Store, part: ManifestPart, layout: SidecarLayout, schema: pa.Schema) -> pa.Table:
    """Return all rows of a part, in the types of ``schema``."""
    opened = open_part(store, part, layout)
    groups = [opened.read(index) for index in range(len(opened.footer.groups))]
    return typed(pa.Table.from_batches(groups), schema) if groups else schema.empty_table()


def check_part(store: Store, part: ManifestPart, layout: SidecarLayout) -> None:
    """Raise unless every page of a part is as it was written."""
    opened = open_part(store, part, layout)
    for index in range(len(opened.footer.groups)):
        opened.read(index)


def part_columns(
    store: Store, part: ManifestPart, layout: SidecarLayout, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield named columns of the first tier of a part, row group by row group; nothing else is fetched."""
    footer = part_footer(store, part)
    _check(footer, part, layout)
    spans = [footer.spans(index, names) for index in range(len(footer.groups))]
    # All at once: on a remote store that is a round trip for the part, not one for every row group.
    found = iter(store.fetch_ranges(part.file, [span for some in spans for span in some]).result() if spans else ())
    for index, some in enumerate(spans):
        yield footer.read(index, names, [(start, next(found)) for start, _ in some], part.size)


def typed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows that came out of Parquet in the types that went in: names inside maps do not survive."""
    try:
        return rows if rows.schema.equals(schema) else rows.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        message = f"its columns are not those of the table: {error}"
        raise SidecarError(message) from error


def _check(footer: PartFooter, part: ManifestPart, layout: SidecarLayout) -> None:
    columns = footer.state.columns
    # The columns of a first tier are the first ones of all.
    expected = layout.columns if part.stats is None else layout.columns[: len(columns)]
    if columns != expected or footer.state.sort != layout.sort:
        message = f"{part.file} has other columns than the manifest says"
        raise SidecarError(message)
    if sum(group.num_rows for group in footer.groups) != part.num_rows:
        message = f"{part.file} has another number of rows than the manifest says"
        raise SidecarError(message)
