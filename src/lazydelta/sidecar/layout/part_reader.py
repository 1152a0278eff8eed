"""Reading a part from end to end, for those who rewrite or verify it; scans read it by row group (see ``base``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lazydelta.sidecar.layout.manifest import ManifestPart, SidecarError
from lazydelta.sidecar.layout.part_file import PartFooter
from lazydelta.sidecar.layout.sidecar_columns import SidecarLayout
from lazydelta.storage import Store

__all__ = ["check_part", "open_part", "part_columns", "part_footer", "part_table", "typed"]


def open_part(store: Store, part: ManifestPart, layout: SidecarLayout) -> tuple[PartFooter, bytes]:
    """Fetch a whole part, which is a few megabytes, and check that it is the one that the manifest describes."""
    data = store.get(part.file)
    if len(data) != part.size:
        message = f"{part.file} has {len(data)} bytes, and the manifest says {part.size}"
        raise SidecarError(message)
    footer = PartFooter(data[part.footer_offset :], expected=part.footer_sha256)
    _check(footer, part, layout)
    return footer, data


def part_footer(store: Store, part: ManifestPart) -> PartFooter:
    """Fetch the footer of a part."""
    data = store.get(part.file, start=part.footer_offset, length=part.footer_length)
    return PartFooter(data, expected=part.footer_sha256)


def part_table(store: Store, part: ManifestPart, layout: SidecarLayout, schema: pa.Schema) -> pa.Table:
    """Return all rows of a part, in the types of ``schema``."""
    footer, data = open_part(store, part, layout)
    names = [column.name for column in layout.columns]
    groups = [footer.read(index, names, [(0, data)], part.size) for index in range(len(footer.groups))]
    return typed(pa.Table.from_batches(groups), schema) if groups else schema.empty_table()


def check_part(store: Store, part: ManifestPart, layout: SidecarLayout) -> None:
    """Raise unless every page of a part is as it was written."""
    footer, data = open_part(store, part, layout)
    names = [column.name for column in layout.columns]
    for index in range(len(footer.groups)):
        try:
            footer.read(index, names, [(0, data)], part.size)
        except SidecarError as error:
            message = f"{part.file}: {error}"
            raise SidecarError(message) from error


def part_columns(
    store: Store, part: ManifestPart, layout: SidecarLayout, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the named columns of a part, row group by row group; nothing else is fetched."""
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
    if footer.state.columns != layout.columns or footer.state.sort != layout.sort:
        message = f"{part.file} has other columns than the manifest says"
        raise SidecarError(message)
    if sum(group.num_rows for group in footer.groups) != part.num_rows:
        message = f"{part.file} has another number of rows than the manifest says"
        raise SidecarError(message)
