"""Parquet files of a sidecar: writing with a sealed footer, reading by footer and byte range."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.parquet.core import ParquetReader

from lazydelta.protocol.actions import Metadata, Protocol
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import one_array
from lazydelta.sidecar.format.columns import (
    FORMAT_VERSION,
    ROWS_PER_GROUP,
    STATS_OF_COLUMNS,
    ColumnRole,
    SidecarColumn,
    SidecarLayout,
    SortColumn,
    tier_paths,
)
from lazydelta.sidecar.format.leaves import EveryPart
from lazydelta.sidecar.format.manifest import (
    UNSEALED,
    CheckpointFile,
    ManifestPart,
    ManifestRowGroup,
    RangeText,
    SidecarError,
    StatsFile,
    is_sealed,
    range_key,
    sealed,
)
from lazydelta.sidecar.format.rows import has_plain_partitions, key_at, ranges_of
from lazydelta.storage import Store, open_native

__all__ = [
    "TIERED_ABOVE",
    "OpenedPart",
    "PartFooter",
    "SidecarState",
    "WrittenPart",
    "check_aligned",
    "check_part",
    "decode_groups",
    "encode_overview",
    "encode_part",
    "encode_tiers",
    "index_tier",
    "joined_rows",
    "joined_tiers",
    "open_part",
    "part_columns",
    "part_footer",
    "part_table",
    "read_groups",
    "stats_tier",
    "typed",
    "whole_layout",
    "whole_layout_of",
]


# Decode row groups into Arrow rows, from fetched bytes or from an open file.


_VERIFIED = {"page_checksum_verification": True, "pre_buffer": False}


def read_groups(
    footer: PartFooter,
    indices: Sequence[int],
    names: Sequence[str],
    blocks: Sequence[tuple[int, bytes]],
    size: int,
    *,
    frugal: bool = True,
) -> pa.RecordBatch:
    """Decode columns of row groups from fetched blocks of the file; raise if the blocks do not cover them."""
    return decode_groups(footer, indices, names, open_native(_Blocks(blocks), size, "sidecar"), frugal=frugal)


def decode_groups(
    footer: PartFooter, indices: Sequence[int], names: Sequence[str], source: pa.NativeFile, *, frugal: bool = True
) -> pa.RecordBatch:
    """Decode the named columns of the given row groups from an open file.

    ``frugal`` minimizes memory use. Columns are decoded on one thread: they are so small that dispatching them to
    threads costs more than it saves.
    """
    for index in indices:
        footer.check_index(index)
    what = f"row group {' and '.join(map(str, indices))}"
    columns = list(names)
    codes = footer.coded(columns)
    try:
        reader = _reader(source, footer.metadata, codes, frugal=frugal)
        table = reader.read_row_groups(list(indices), column_indices=footer.leaves(columns), use_threads=False)
        arrays = [_spelled_out(table.column(name)) for name in columns]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        message = f"{what} cannot be read: {error}"
        raise SidecarError(message) from error
    expected = sum(footer.groups[index].num_rows for index in indices)
    if table.num_rows != expected:
        message = f"{what} has {table.num_rows} rows, not {expected}"
        raise SidecarError(message)
    return pa.RecordBatch.from_arrays(arrays, columns)


def _reader(source: pa.NativeFile, metadata: pq.FileMetaData, codes: Sequence[str], *, frugal: bool) -> Any:
    """Open a file whose footer is known; ``frugal`` decodes with the system allocator.

    Arrow's own allocator is faster but reserves two megabytes at a time per thread, which is more than everything else
    that a short scan allocates. Only the reader inside a ``ParquetFile`` accepts a memory pool. Using it directly also
    saves long scans from looking up all column names for every few row groups.
    """
    reader = ParquetReader(memory_pool=pa.system_memory_pool() if frugal else None)
    reader.open(source, metadata=metadata, read_dictionary=codes, **_VERIFIED)
    return reader


def _spelled_out(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, with dictionary codes replaced by strings.

    Looking up codes in a dictionary takes half the time of decoding the strings one by one.
    """
    is_coded = pa.types.is_dictionary(column.type)
    return one_array(pc.cast(column, column.type.value_type) if is_coded else column)


class _Blocks:
    """Positioned reads over blocks that are already fetched."""

    def __init__(self, blocks: Sequence[tuple[int, bytes]]) -> None:
        self._blocks = blocks

    def read_at(self, start: int, length: int) -> bytes | memoryview:
        for begin, data in self._blocks:
            if begin <= start and start + length <= begin + len(data):
                return memoryview(data)[start - begin : start - begin + length]
        message = f"bytes {start} to {start + length} were not fetched"
        raise ValueError(message)

    def close(self) -> None:
        """Do nothing: there are no reads to stop."""


_PREFIX = "lazydelta."
_SEAL = b"lazydelta.footer_sha256"
_PLAIN = b"lazydelta.plain_partitions"
_TRAILER = 8  # the footer length and the magic bytes PAR1
_REPEATING = frozenset(
    {ColumnRole.PARTITION, ColumnRole.PARTITION_VALUES, ColumnRole.TAGS, ColumnRole.CLUSTERING_PROVIDER}
)
_COUNTED = frozenset({ColumnRole.SIZE, ColumnRole.MODIFICATION_TIME, ColumnRole.NUM_RECORDS})
_VECTOR_KIND = ("storageType",)


class SidecarState(msgspec.Struct, frozen=True, kw_only=True):
    """Sidecar-wide metadata that every file of a sidecar carries; ``parts`` only the overview of one in parts."""

    table_id: str
    version: int
    schema_hash: str
    columns: tuple[SidecarColumn, ...]
    sort: tuple[SortColumn, ...]
    num_files: int
    state: msgspec.Raw
    parts: tuple[ManifestPart, ...] = ()

    @property
    def layout(self) -> SidecarLayout:
        """Return the columns and the sort order of the sidecar."""
        return SidecarLayout(self.columns, self.sort)

    def key_value(self) -> dict[str, str]:
        """Return this state as Parquet key-value metadata."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "parts" or self.parts}
        texts = {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in values.items()
        }
        return {f"{_PREFIX}{name}": text for name, text in texts.items()} | {
            f"{_PREFIX}format_version": str(FORMAT_VERSION),
        }


class WrittenPart(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a part and its manifest entry; ``part`` and ``file`` are filled in on publication.

    ``stats_data`` holds the bytes of the second tier, if there is one.
    """

    data: bytes
    part: ManifestPart
    row_groups: tuple[ManifestRowGroup, ...]
    stats_data: bytes | None = None

    def named(self, path: str) -> tuple[ManifestPart, dict[str, bytes]]:
        """Return the part under its final path, and the bytes of its files by path; each tier gets its own path."""
        stats = self.part.stats
        if stats is None or self.stats_data is None:
            return msgspec.structs.replace(self.part, file=path), {path: self.data}
        index_path, stats_path = tier_paths(path)
        renamed = msgspec.structs.replace(stats, file=stats_path)
        part = msgspec.structs.replace(self.part, file=index_path, stats=renamed)
        return part, {index_path: self.data, stats_path: self.stats_data}


class GroupFacts(msgspec.Struct, frozen=True):
    """Row group metadata in the footer that Parquet itself does not record."""

    num_rows: int
    first: tuple[str | None, ...]
    last: tuple[str | None, ...]
    ranges: dict[str, RangeText]


def encode_part(rows: pa.Table, state: SidecarState, indexed: Sequence[tuple[str, ...]]) -> WrittenPart:
    """Write sorted rows as one sealed Parquet file and return it with its description."""
    layout = state.layout
    groups = group_facts(rows, layout, indexed)
    data, footer = sealed_file(rows, state, groups, plain=has_plain_partitions(rows, layout))
    part = msgspec.structs.replace(footer.part("", len(data)), ranges=ranges_of(rows, layout, indexed))
    return WrittenPart(data=data, part=part, row_groups=footer.row_groups())


def group_facts(rows: pa.Table, layout: SidecarLayout, indexed: Sequence[tuple[str, ...]]) -> list[GroupFacts]:
    """Describe the row groups into which sorted rows are split."""
    starts = range(0, rows.num_rows, ROWS_PER_GROUP)
    return [_facts(rows.slice(start, ROWS_PER_GROUP), layout, indexed) for start in starts]


def sealed_file(
    rows: pa.Table, state: SidecarState, groups: Sequence[GroupFacts], *, plain: bool
) -> tuple[bytes, PartFooter]:
    """Return the bytes of a sealed Parquet file, and its footer."""
    layout = state.layout
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        rows.schema,
        compression="zstd",
        use_dictionary=_repeating(rows.schema, layout),
        column_encoding={each.name: "DELTA_BINARY_PACKED" for each in layout.columns if each.role in _COUNTED},
        write_statistics=[each.name for each in layout.columns if _tells_absence(each)],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        if rows.num_rows:
            writer.write_table(rows, row_group_size=ROWS_PER_GROUP)
        encoded = msgspec.json.encode(groups).decode()
        writer.add_key_value_metadata(
            state.key_value()
            | {
                f"{_PREFIX}row_groups": encoded,
                _PLAIN.decode(): "true" if plain else "false",
                _SEAL.decode(): UNSEALED,
            }
        )
    data = bytearray(sink.getvalue())
    length = int.from_bytes(data[-_TRAILER:-4], "little") + _TRAILER
    offset = len(data) - length
    unsealed = bytes(data[offset:])
    data[offset:] = sealed(unsealed, _place(unsealed))
    return bytes(data), PartFooter(bytes(data[offset:]))


def encode_overview(parts: Sequence[ManifestPart], state: SidecarState, schema: pa.Schema) -> bytes:
    """Return a file without rows whose footer lists the parts of a sidecar: their set, without the manifest."""
    whole = msgspec.structs.replace(state, num_files=sum(part.num_rows for part in parts), parts=tuple(parts))
    rows = schema.empty_table().select([column.name for column in state.columns])
    return sealed_file(rows, whole, (), plain=False)[0]


def _repeating(schema: pa.Schema, layout: SidecarLayout) -> list[str]:
    """Return the columns with repeating values; for others, a dictionary is larger and slower than plain values."""
    found: list[str] = []
    for column in layout.columns:
        if column.role in _REPEATING:
            is_map = pa.types.is_map(schema.field(column.name).type)
            found += [f"{column.name}.key_value.{end}" for end in ("key", "value")] if is_map else [column.name]
    return found


def _tells_absence(column: SidecarColumn) -> bool:
    """Return whether the footer counts the nulls of this column, because most tables have no values in it."""
    return column.role == ColumnRole.TIGHT_BOUNDS or (column.role, column.path) == (ColumnRole.DV, _VECTOR_KIND)


def _facts(rows: pa.Table, layout: SidecarLayout, indexed: Sequence[tuple[str, ...]]) -> GroupFacts:
    last = rows.num_rows - 1
    return GroupFacts(
        rows.num_rows, key_at(rows, 0, layout), key_at(rows, last, layout), ranges_of(rows, layout, indexed)
    )


def _row_group(index: int, facts: GroupFacts, metadata: pq.FileMetaData, layout: SidecarLayout) -> ManifestRowGroup:
    group = metadata.row_group(index)
    core = set(layout.names(core=True))
    spans = [(_start(group.column(i)), group.column(i)) for i in range(group.num_columns)]
    begin = min(start for start, _ in spans)
    end = max(start + column.total_compressed_size for start, column in spans)
    core_end = max(start + column.total_compressed_size for start, column in spans if _top(column, core))
    hour = facts.ranges.get(_first_sort(layout), RangeText(has_missing=True))
    return ManifestRowGroup(
        index=index,
        part=0,
        byte_offset=begin,
        byte_length=end - begin,
        core_byte_length=core_end - begin,
        num_rows=facts.num_rows,
        event_hour_min=hour.min,
        event_hour_max=hour.max,
        first=facts.first,
        last=facts.last,
        ranges=facts.ranges,
    )


def _first_sort(layout: SidecarLayout) -> str:
    return range_key(layout.sort[0].path) if layout.sort else ""


def _start(column: Any) -> int:
    offset = column.dictionary_page_offset
    start = column.data_page_offset if offset is None else min(offset, column.data_page_offset)
    return int(start)


def _top(column: Any, names: set[str]) -> bool:
    path = column.path_in_schema
    return path in names or any(path.startswith(f"{name}.key_value") for name in names)


def _place(footer: bytes) -> int:
    """Return the offset of the digest: the value that follows its key."""
    key = footer.rfind(_SEAL)  # the last occurrence: a column may have the same name
    # Thrift's compact protocol puts a field header and the length (one byte for 64) between key and value.
    place = key + len(_SEAL) + 2
    if key < 0 or place + len(UNSEALED) > len(footer):
        message = "its footer has no digest"
        raise SidecarError(message)
    return place


class PartFooter:
    """A verified footer: the contents of the file and their byte ranges."""

    def __init__(self, footer: bytes, *, expected: str | None = None) -> None:
        self.digest = hashlib.sha256(footer).hexdigest()
        if expected is not None and self.digest != expected:
            message = "its footer is not the one that the manifest names"
            raise SidecarError(message)
        if not is_sealed(footer, _place(footer)):
            message = "its footer fails its digest"
            raise SidecarError(message)
        try:
            self.metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + footer))
            values: Mapping[bytes, bytes] = self.metadata.metadata or {}
            self.state = _state(values)
            self.plain_partitions = values.get(_PLAIN) == b"true"
            self.groups = msgspec.json.decode(values[f"{_PREFIX}row_groups".encode()], type=list[GroupFacts])
        except (pa.ArrowException, OSError, ValueError, KeyError, msgspec.MsgspecError) as error:
            message = f"its footer cannot be read: {error}"
            raise SidecarError(message) from error
        self._places: dict[tuple[str, ...], list[int]] = {}
        self.length = len(footer)
        self.nbytes = len(footer) * 6  # measured size of the parsed footer in pyarrow

    def part(self, file: str, size: int) -> ManifestPart:
        """Return the manifest entry of the part, without ranges: those are computed from rows."""
        empty = (None,) * (len(self.state.sort) + 1)
        return ManifestPart(
            file=file,
            size=size,
            footer_offset=size - self.length,
            footer_length=self.length,
            footer_sha256=self.digest,
            num_rows=sum(group.num_rows for group in self.groups),
            num_row_groups=len(self.groups),
            first=self.groups[0].first if self.groups else empty,
            last=self.groups[-1].last if self.groups else empty,
        )

    def row_groups(self) -> tuple[ManifestRowGroup, ...]:
        """Return the manifest entries of the row groups."""
        layout = self.state.layout
        return tuple(_row_group(index, facts, self.metadata, layout) for index, facts in enumerate(self.groups))

    def spans(self, index: int, names: Sequence[str]) -> list[tuple[int, int]]:
        """Return the byte ranges of the named columns of a row group, as (start, length)."""
        self.check_index(index)
        columns = self._chunks(index, names)
        return [(_start(column), column.total_compressed_size) for column in columns]

    def absent(self, indices: Sequence[int]) -> frozenset[str]:
        """Return the columns that are null in all of these row groups, as far as the footer records it."""
        found: set[str] = set()
        for column, names in self._telling:
            if all(self._is_null(index, column) for index in indices):
                found |= names
        return frozenset(found)

    @cached_property
    def _telling(self) -> list[tuple[str, frozenset[str]]]:
        """The columns with null counts, each with the columns of its role, which are empty where it is null."""
        columns = self.state.columns
        return [
            (column.name, frozenset(each.name for each in columns if each.role == column.role))
            for column in columns
            if _tells_absence(column)
        ]

    def coded(self, names: Sequence[str]) -> list[str]:
        """Return the named columns that are fastest to read as dictionary codes: string columns of the sort key."""
        return [name for name in names if name in self._codable]

    @cached_property
    def _codable(self) -> frozenset[str]:
        names = [each.name for each in self.state.columns if each.role == ColumnRole.PARTITION]
        chunks = self._chunks(0, names) if names and self.metadata.num_row_groups else []
        return frozenset(each.path_in_schema for each in chunks if each.physical_type == "BYTE_ARRAY")

    def _is_null(self, index: int, name: str) -> bool:
        self.check_index(index)
        known = [chunk.statistics for chunk in self._chunks(index, [name])]
        rows = self.groups[index].num_rows
        return all(each is not None and each.has_null_count and each.null_count == rows for each in known)

    def leaves(self, names: Sequence[str]) -> list[int]:
        """Return the Parquet leaf indices of the named columns."""
        key = tuple(names)
        if key not in self._places:
            # All row groups have the same leaves. Two threads that race only compute them twice.
            wanted, group = set(names), self.metadata.row_group(0)
            self._places[key] = [i for i in range(group.num_columns) if _top(group.column(i), wanted)]
        return self._places[key]

    def _chunks(self, index: int, names: Sequence[str]) -> list[Any]:
        group = self.metadata.row_group(index)
        return [group.column(i) for i in self.leaves(names)]

    def read(self, index: int, names: Sequence[str], blocks: Sequence[tuple[int, bytes]], size: int) -> pa.RecordBatch:
        """Decode columns of a row group from fetched blocks of the file; raise if the blocks do not cover them."""
        return read_groups(self, [index], names, blocks, size)

    def check_index(self, index: int) -> None:
        """Raise unless the row group exists."""
        if index >= min(len(self.groups), self.metadata.num_row_groups):
            message = f"it has no row group {index}"
            raise SidecarError(message)


def part_footer(store: Store, part: ManifestPart | StatsFile) -> PartFooter:
    """Fetch the footer of a part, or of its second tier."""
    data = store.get(part.file, start=part.footer_offset, length=part.footer_length)
    return PartFooter(data, expected=part.footer_sha256)


def _state(values: Mapping[bytes, bytes]) -> SidecarState:
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(SidecarState):
        key = f"{_PREFIX}{field.name}".encode()
        if field.name == "parts" and key not in values:
            continue
        raw = values[key]
        if field.type is str:
            found[field.name] = raw.decode()
        elif field.name == "state":
            found[field.name] = msgspec.Raw(raw)
        else:
            found[field.name] = msgspec.json.decode(raw, type=field.type)
    version = int(values[f"{_PREFIX}format_version".encode()])
    if version != FORMAT_VERSION:
        message = f"its format version is {version}, and we read {FORMAT_VERSION}"
        raise SidecarError(message)
    return SidecarState(**found)


def checkpoint_of(state: SidecarState) -> tuple[CheckpointFile, ...]:
    """Return the files of the checkpoint that a sidecar mirrors."""
    return msgspec.json.decode(state.state, type=_Mirrored).checkpoint


def state_of(state: SidecarState) -> tuple[Metadata, Protocol]:
    """Return the table's metadata and protocol at the checkpoint."""
    found = msgspec.json.decode(state.state, type=_Mirrored)
    return found.meta_data, found.protocol


class _Mirrored(msgspec.Struct):
    checkpoint: tuple[CheckpointFile, ...]
    protocol: Protocol
    meta_data: Metadata = msgspec.field(name="metaData")


# Tiers: a very wide sidecar splits its columns into two files with the same rows. The first has what time-range queries
# read, the second the rest. A footer describes every column of every row group, so beyond some hundred columns it
# outweighs the rows a query reads. Columns that few predicates name therefore get their own files and footers.


TIERED_ABOVE = 500
"""A sidecar with statistics of more columns than this has two tiers."""
_NO_STATE = msgspec.Raw(b"{}")


def index_tier(layout: SidecarLayout, indexed: Collection[tuple[str, ...]]) -> SidecarLayout | None:
    """Return the first tier: non-statistics and statistics of ``indexed`` columns; None if one tier is enough."""
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
    """Write sorted rows as two files: the columns of ``index``, and the remaining columns of the state."""
    # These files are only reached through a manifest, which has the table metadata. A wide schema is as long as a wide
    # footer, so it is not repeated here.
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
    """Return the columns that are not in the first tier."""
    names = {column.name for column in index.columns}
    return SidecarLayout(tuple(column for column in layout.columns if column.name not in names), layout.sort)


def joined_tiers(index: SidecarLayout, stats: SidecarLayout) -> SidecarLayout:
    """Return the columns of both tiers, first tier first."""
    return SidecarLayout(index.columns + stats.columns, index.sort)


def joined_rows(tiers: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return one batch with the columns of all tiers of the same rows."""
    if len(tiers) == 1:
        return tiers[0]
    names = [name for tier in tiers for name in tier.schema.names]
    return pa.RecordBatch.from_arrays([column for tier in tiers for column in tier.columns], names=names)


def check_aligned(index: PartFooter, stats: PartFooter) -> None:
    """Raise unless both files have the same rows: equal row counts and the same first and last keys per row group."""
    ours, theirs = ([(group.num_rows, group.first, group.last) for group in footer.groups] for footer in (index, stats))
    if ours != theirs or index.state.sort != stats.state.sort:
        message = "the rows of its two tiers differ"
        raise SidecarError(message)


# Read whole parts, to rewrite or verify them. Scans read single row groups instead (see ``base``).


class OpenedPart(msgspec.Struct, frozen=True):
    """A part that is fully in memory: the footer and the bytes of each tier."""

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
    """Fetch a whole part (a few megabytes) and check that it matches the manifest."""
    tiers = [_open_file(store, file) for file in (part, part.stats) if file is not None]
    footer = tiers[0][0]
    _check(footer, part, layout)
    if part.stats is not None:
        check_aligned(footer, tiers[1][0])
    if tuple(column for tier, _ in tiers for column in tier.state.columns) != layout.columns:
        message = f"{part.file} has different columns than the manifest says"
        raise SidecarError(message)
    return OpenedPart(part, footer, tiers)


def _open_file(store: Store, file: ManifestPart | StatsFile) -> tuple[PartFooter, bytes]:
    data = store.get(file.file)
    if len(data) != file.size:
        message = f"{file.file} has {len(data)} bytes, and the manifest says {file.size}"
        raise SidecarError(message)
    return PartFooter(data[file.footer_offset :], expected=file.footer_sha256), data


def whole_layout(store: Store, every: EveryPart) -> SidecarLayout:
    """Return the columns of all tiers of a sidecar; the manifest lists only those of the first."""
    return whole_layout_of(store, every.parts, every.index.layout)


def whole_layout_of(store: Store, parts: Sequence[ManifestPart], first: SidecarLayout) -> SidecarLayout:
    """Return the columns of all tiers of some parts, given those of the first."""
    stats = parts[0].stats if parts else None
    return first if stats is None else joined_tiers(first, part_footer(store, stats).state.layout)


def part_table(store: Store, part: ManifestPart, layout: SidecarLayout, schema: pa.Schema) -> pa.Table:
    """Return all rows of a part, cast to ``schema``."""
    opened = open_part(store, part, layout)
    groups = [opened.read(index) for index in range(len(opened.footer.groups))]
    return typed(pa.Table.from_batches(groups), schema) if groups else schema.empty_table()


def check_part(store: Store, part: ManifestPart, layout: SidecarLayout) -> None:
    """Raise unless every page of a part is intact."""
    opened = open_part(store, part, layout)
    for index in range(len(opened.footer.groups)):
        opened.read(index)


def part_columns(
    store: Store, part: ManifestPart, layout: SidecarLayout, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the named first-tier columns of a part, one batch per row group; fetch nothing else."""
    footer = part_footer(store, part)
    _check(footer, part, layout)
    spans = [footer.spans(index, names) for index in range(len(footer.groups))]
    # One request for all ranges: on a remote store this is one round trip per part, not one per row group.
    found = iter(store.fetch_ranges(part.file, [span for some in spans for span in some]).result() if spans else ())
    for index, some in enumerate(spans):
        yield footer.read(index, names, [(start, next(found)) for start, _ in some], part.size)


def typed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast rows read from Parquet back to ``schema``: field names inside maps do not survive the round trip."""
    try:
        return rows if rows.schema.equals(schema) else rows.cast(schema)
    except (pa.ArrowException, ValueError) as error:
        message = f"its columns are not those of the table: {error}"
        raise SidecarError(message) from error


def _check(footer: PartFooter, part: ManifestPart, layout: SidecarLayout) -> None:
    columns = footer.state.columns
    # The layout starts with the columns of the first tier.
    expected = layout.columns if part.stats is None else layout.columns[: len(columns)]
    if columns != expected or footer.state.sort != layout.sort:
        message = f"{part.file} has different columns than the manifest says"
        raise SidecarError(message)
    if sum(group.num_rows for group in footer.groups) != part.num_rows:
        message = f"{part.file} has a different number of rows than the manifest says"
        raise SidecarError(message)
