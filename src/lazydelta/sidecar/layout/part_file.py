"""One Parquet file of a sidecar: written with a sealed footer, read by footer and byte range."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.log.actions import Metadata, Protocol
from lazydelta.sidecar.layout.group_decoding import read_groups
from lazydelta.sidecar.layout.manifest import (
    CheckpointFile,
    ManifestPart,
    ManifestRowGroup,
    RangeText,
    SidecarError,
    StatsFile,
    range_key,
)
from lazydelta.sidecar.layout.range_texts import key_at, ranges_of
from lazydelta.sidecar.layout.seal import UNSEALED, is_sealed, sealed
from lazydelta.sidecar.layout.sidecar_columns import (
    FORMAT_VERSION,
    ROWS_PER_GROUP,
    ColumnRole,
    SidecarColumn,
    SidecarLayout,
    SortColumn,
    tier_paths,
)
from lazydelta.sidecar.layout.sidecar_rows import has_plain_partitions
from lazydelta.storage import Store

__all__ = [
    "GroupFacts",
    "PartFooter",
    "SidecarState",
    "WrittenPart",
    "encode_part",
    "group_facts",
    "part_footer",
    "sealed_file",
]

_PREFIX = "lazydelta."
_SEAL = b"lazydelta.footer_sha256"
_PLAIN = b"lazydelta.plain_partitions"
_TRAILER = 8  # the footer's length and PAR1
_REPEATING = frozenset(
    {ColumnRole.PARTITION, ColumnRole.PARTITION_VALUES, ColumnRole.TAGS, ColumnRole.CLUSTERING_PROVIDER}
)
_COUNTED = frozenset({ColumnRole.SIZE, ColumnRole.MODIFICATION_TIME, ColumnRole.NUM_RECORDS})
_VECTOR_KIND = ("storageType",)


class SidecarState(msgspec.Struct, frozen=True, kw_only=True):
    """What every file of a sidecar says about the whole of it."""

    table_id: str
    version: int
    schema_hash: str
    columns: tuple[SidecarColumn, ...]
    sort: tuple[SortColumn, ...]
    num_files: int
    state: msgspec.Raw

    @property
    def layout(self) -> SidecarLayout:
        """Return the columns and the order of the sidecar."""
        return SidecarLayout(self.columns, self.sort)

    def key_value(self) -> dict[str, str]:
        """Return the key-value metadata that carries it."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        texts = {
            name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for name, value in values.items()
        }
        return {f"{_PREFIX}{name}": text for name, text in texts.items()} | {
            f"{_PREFIX}format_version": str(FORMAT_VERSION),
        }


class WrittenPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part's bytes with what the manifest says of it; ``part`` and ``file`` are filled in where it is published.

    ``stats_data`` are the bytes of its second tier, if it has one.
    """

    data: bytes
    part: ManifestPart
    row_groups: tuple[ManifestRowGroup, ...]
    stats_data: bytes | None = None

    def named(self, path: str) -> tuple[ManifestPart, dict[str, bytes]]:
        """Return the part under its name, and the bytes of its files; those of tiers get names of their own."""
        stats = self.part.stats
        if stats is None or self.stats_data is None:
            return msgspec.structs.replace(self.part, file=path), {path: self.data}
        index_path, stats_path = tier_paths(path)
        renamed = msgspec.structs.replace(stats, file=stats_path)
        part = msgspec.structs.replace(self.part, file=index_path, stats=renamed)
        return part, {index_path: self.data, stats_path: self.stats_data}


class GroupFacts(msgspec.Struct, frozen=True):
    """What a footer says of a row group, beside what Parquet says."""

    num_rows: int
    first: tuple[str | None, ...]
    last: tuple[str | None, ...]
    ranges: dict[str, RangeText]


def encode_part(rows: pa.Table, state: SidecarState, indexed: Sequence[tuple[str, ...]]) -> WrittenPart:
    """Write sorted rows as one Parquet file, sealed, and describe it."""
    layout = state.layout
    groups = group_facts(rows, layout, indexed)
    data, footer = sealed_file(rows, state, groups, plain=has_plain_partitions(rows, layout))
    part = msgspec.structs.replace(footer.part("", len(data)), ranges=ranges_of(rows, layout, indexed))
    return WrittenPart(data=data, part=part, row_groups=footer.row_groups())


def group_facts(rows: pa.Table, layout: SidecarLayout, indexed: Sequence[tuple[str, ...]]) -> list[GroupFacts]:
    """Describe the row groups that sorted rows are cut into."""
    starts = range(0, rows.num_rows, ROWS_PER_GROUP)
    return [_facts(rows.slice(start, ROWS_PER_GROUP), layout, indexed) for start in starts]


def sealed_file(
    rows: pa.Table, state: SidecarState, groups: Sequence[GroupFacts], *, plain: bool
) -> tuple[bytes, PartFooter]:
    """Return the bytes of a Parquet file, and its footer."""
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


def _repeating(schema: pa.Schema, layout: SidecarLayout) -> list[str]:
    """Return the columns whose values repeat; a dictionary of others is larger and slower to read than the values."""
    found: list[str] = []
    for column in layout.columns:
        if column.role in _REPEATING:
            is_map = pa.types.is_map(schema.field(column.name).type)
            found += [f"{column.name}.key_value.{end}" for end in ("key", "value")] if is_map else [column.name]
    return found


def _tells_absence(column: SidecarColumn) -> bool:
    """Tell whether the footer counts the nulls of this column: most tables have nothing in those of its role."""
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
    """Return where the digest stands: in the value that follows its key."""
    key = footer.rfind(_SEAL)  # the last entry: a column may be called like it
    # Thrift's compact protocol puts a field header and the length (one byte for 64) between key and value.
    place = key + len(_SEAL) + 2
    if key < 0 or place + len(UNSEALED) > len(footer):
        message = "its footer has no digest"
        raise SidecarError(message)
    return place


class PartFooter:
    """A verified footer: what the file holds and where."""

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
        self.nbytes = len(footer) * 6  # what pyarrow makes of it, measured

    def part(self, file: str, size: int) -> ManifestPart:
        """Return the part as the manifest would have it, without ranges: these are over rows."""
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
        """Return the row groups as the manifest would have them."""
        layout = self.state.layout
        return tuple(_row_group(index, facts, self.metadata, layout) for index, facts in enumerate(self.groups))

    def spans(self, index: int, names: Sequence[str]) -> list[tuple[int, int]]:
        """Return the byte ranges of the named columns of a row group, as (start, length)."""
        self.check_index(index)
        columns = self._chunks(index, names)
        return [(_start(column), column.total_compressed_size) for column in columns]

    def absent(self, indices: Sequence[int]) -> frozenset[str]:
        """Return the columns that are null throughout these row groups, as far as the footer tells."""
        found: set[str] = set()
        for column, names in self._telling:
            if all(self._is_null(index, column) for index in indices):
                found |= names
        return frozenset(found)

    @cached_property
    def _telling(self) -> list[tuple[str, frozenset[str]]]:
        """The columns whose nulls are counted, and which others have no values where they have none."""
        columns = self.state.columns
        return [
            (column.name, frozenset(each.name for each in columns if each.role == column.role))
            for column in columns
            if _tells_absence(column)
        ]

    def coded(self, names: Sequence[str]) -> list[str]:
        """Return those of the named columns that are quickest read as codes: texts that the rows are sorted by."""
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
        """Return where the named columns are among all that Parquet has."""
        key = tuple(names)
        if key not in self._places:
            # The same in all row groups; a race between two threads finds out twice.
            wanted, group = set(names), self.metadata.row_group(0)
            self._places[key] = [i for i in range(group.num_columns) if _top(group.column(i), wanted)]
        return self._places[key]

    def _chunks(self, index: int, names: Sequence[str]) -> list[Any]:
        group = self.metadata.row_group(index)
        return [group.column(i) for i in self.leaves(names)]

    def read(self, index: int, names: Sequence[str], blocks: Sequence[tuple[int, bytes]], size: int) -> pa.RecordBatch:
        """Decode the named columns of a row group from blocks of the file; what the blocks lack is an error."""
        return read_groups(self, [index], names, blocks, size)

    def check_index(self, index: int) -> None:
        """Raise unless there is such a row group."""
        if index >= min(len(self.groups), self.metadata.num_row_groups):
            message = f"it has no row group {index}"
            raise SidecarError(message)


def part_footer(store: Store, part: ManifestPart | StatsFile) -> PartFooter:
    """Fetch the footer of a part, or that of its second tier."""
    data = store.get(part.file, start=part.footer_offset, length=part.footer_length)
    return PartFooter(data, expected=part.footer_sha256)


def _state(values: Mapping[bytes, bytes]) -> SidecarState:
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(SidecarState):
        raw = values[f"{_PREFIX}{field.name}".encode()]
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
    """Return the checkpoint that a sidecar mirrors."""
    return msgspec.json.decode(state.state, type=_Mirrored).checkpoint


def state_of(state: SidecarState) -> tuple[Metadata, Protocol]:
    """Return the table's metadata and protocol at the checkpoint."""
    found = msgspec.json.decode(state.state, type=_Mirrored)
    return found.meta_data, found.protocol


class _Mirrored(msgspec.Struct):
    checkpoint: tuple[CheckpointFile, ...]
    protocol: Protocol
    meta_data: Metadata = msgspec.field(name="metaData")
