"""Sidecars that other pipelines write: the minimal profile of ``docs/sidecar.md``, without digests.

There is one Parquet file, whose columns are known by their names, and a manifest with counts. A reader trusts them if
sizes, counts, version, schema and the names and sizes of the checkpoint's files agree. Rows may come in any order, so
the keys of emitted files are recorded, in case that the checkpoint has to take over.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import StorageError
from lazydelta.log.checkpoint.columns import StatsWanted
from lazydelta.log.file_batch import PARTITION_VALUES, FileBatch, StatsColumns, with_deferred_stats
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.protocol.actions import Count
from lazydelta.protocol.schema import TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import from_numpy, string_array
from lazydelta.scan.base import BaseScan
from lazydelta.sidecar.format.columns import FOLDER, ColumnRole, SidecarLayout
from lazydelta.sidecar.format.manifest import RangeText, SidecarError, file_identity, is_in_folder, range_key
from lazydelta.sidecar.format.part_file import GroupFacts, PartFooter, SidecarState
from lazydelta.sidecar.format.rows import from_rows, text_of
from lazydelta.sidecar.reading.group_choice import matching_groups
from lazydelta.sidecar.reading.row_groups import from_checkpoint, stats_column_names
from lazydelta.storage import Pending, Store

__all__ = ["ForeignSidecar", "open_foreign"]

_TRAILER = 8
_GUESSED_FOOTER = 64 << 10
_NEEDED = (ColumnRole.PATH, ColumnRole.SIZE, ColumnRole.MODIFICATION_TIME, ColumnRole.PARTITION)
_NEVER_NULL = _NEEDED[:3]
_NEEDED_WITH_VECTORS = (ColumnRole.DV, ColumnRole.TIGHT_BOUNDS)
_VECTORS = "deletionVectors"


class ForeignGroup(msgspec.Struct, frozen=True):
    """A row group as a minimal manifest describes it; the range is that of the first partition column."""

    index: Count
    byte_offset: Count
    byte_length: Count
    num_rows: Count
    event_hour_min: str | None = None
    event_hour_max: str | None = None


class ForeignCheckpointFile(msgspec.Struct, frozen=True):
    """A file of the mirrored checkpoint."""

    name: str
    size: Count


class ForeignManifest(msgspec.Struct, frozen=True):
    """The fields of a minimal manifest; others are ignored."""

    version: Count
    sidecar_file: str
    sidecar_size_bytes: Count
    num_row_groups: Count
    num_files: Count
    schema_hash: str
    row_groups: tuple[ForeignGroup, ...]
    checkpoint: tuple[ForeignCheckpointFile, ...]
    table_id: str | None = None

    @property
    def path(self) -> str:
        """Return the path of the sidecar relative to the table root; the manifest may have its bare name."""
        return self.sidecar_file if "/" in self.sidecar_file else f"{FOLDER}/{self.sidecar_file}"

    def check(self, snapshot: LogSnapshot, checkpoint: Checkpoint) -> None:
        """Raise unless the manifest speaks of this checkpoint, and does not contradict itself."""
        metadata = snapshot.metadata
        if self.table_id not in {None, metadata.id}:
            message = f"it belongs to table {self.table_id}"
        elif self.version != checkpoint.version:
            message = f"it is for version {self.version}"
        elif [(each.name, each.size) for each in self.checkpoint] != [file_identity(e.info) for e in checkpoint.files]:
            message = "it mirrors another checkpoint of this version"
        elif self.schema_hash != hashlib.sha256(metadata.schema_string.encode()).hexdigest():
            message = "its schema_hash is not the SHA-256 of the table's schema, which it has to be without metaData"
        elif not is_in_folder(self.path):
            message = f"it names a file that is not in {FOLDER}"
        elif self.num_row_groups != len(self.row_groups) or self.num_files != sum(e.num_rows for e in self.row_groups):
            message = "its numbers contradict each other"
        else:
            return
        raise SidecarError(message)


class _ForeignFooter(PartFooter):
    """A footer that has no digest and no entries of ours."""

    def __init__(self, metadata: pq.FileMetaData, layout: SidecarLayout, length: int) -> None:
        self.metadata = metadata
        self.digest = ""
        self.state = SidecarState(
            table_id="",
            version=-1,
            schema_hash="",
            columns=layout.columns,
            sort=(),
            num_files=metadata.num_rows,
            state=msgspec.Raw(b"{}"),
        )
        self.plain_partitions = False
        rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        self.groups = [GroupFacts(each, (), (), {}) for each in rows]
        self._places = {}
        self.length = length
        self.nbytes = length * 6


class ForeignSidecar:
    """A sidecar of the minimal profile whose counts agree."""

    def __init__(
        self, manifest: ForeignManifest, footer: PartFooter, layout: SidecarLayout, schema: TableSchema
    ) -> None:
        self.manifest = manifest
        self.layout = layout
        self._footer = footer
        self._types = layout.arrow_schema(schema)
        self.ranged = next((each for each in layout.columns if each.role == ColumnRole.PARTITION), None)
        self._range_key = None if self.ranged is None else range_key(self.ranged.path)

    def files(self, scan: BaseScan, *, ahead: int, prune: bool) -> Generator[FileBatch]:
        """Yield the files, by row group, with the requested statistics."""
        groups = list(self._matching_groups(scan) if prune else self.manifest.row_groups)
        scan.metrics.row_groups_pruned += len(self.manifest.row_groups) - len(groups)
        scan.metrics.files_pruned_by_groups += self.manifest.num_files - sum(each.num_rows for each in groups)
        if scan.newest_first:
            groups.reverse()
        names = [*self.layout.names(core=True), *stats_column_names(self.layout, scan.wanted)]
        waiting, started = deque(groups), deque[tuple[ForeignGroup, Pending[list[bytes]]]]()
        try:
            while waiting or started:
                while waiting and len(started) < (1 if scan.limited else ahead):
                    group = waiting.popleft()
                    started.append((group, self._fetch(scan.store, group, names)))
                group, pending = started.popleft()
                files = self._decoded(group, names, pending.result())
                scan.metrics.row_groups_read += 1
                if scan.wanted is None:
                    later = partial(self._deferred_stats, scan.snapshot, group, files)
                    files = with_deferred_stats(files, later)
                yield files
        finally:
            for _, pending in started:
                pending.cancel()

    def _matching_groups(self, scan: BaseScan) -> Iterator[ForeignGroup]:
        groups = self.manifest.row_groups
        ranges: list[dict[str, RangeText]] = []
        for each in groups:
            known = self._range_key is not None and None not in {each.event_hour_min, each.event_hour_max}
            # The range is that of the values there are; any group may hold nulls beside them.
            found = RangeText(each.event_hour_min, each.event_hour_max, has_null=True)
            ranges.append({self._range_key or "": found} if known else {})
        return (groups[index] for index in matching_groups(scan.predicate, ranges))

    def _fetch(self, store: Store, group: ForeignGroup, names: Sequence[str]) -> Pending[list[bytes]]:
        return store.fetch_ranges(self.manifest.path, self._footer.spans(group.index, names))

    def _decoded(self, group: ForeignGroup, names: Sequence[str], data: Sequence[bytes]) -> FileBatch:
        spans = self._footer.spans(group.index, names)
        blocks = [(start, piece) for (start, _), piece in zip(spans, data, strict=True)]
        rows = self._footer.read(group.index, names, blocks, self.manifest.sidecar_size_bytes)
        try:
            columns = {name: pc.cast(rows.column(name), self._types.field(name).type) for name in names}
            for role in _NEVER_NULL:
                if columns[self.layout.name_of(role) or ""].null_count:
                    message = f"{role} is null"
                    raise ValueError(message)  # noqa: TRY301 - a single handler converts every failure
            maps = self.layout.name_of(ColumnRole.PARTITION_VALUES) or ""
            if maps not in columns:
                columns[maps] = self._maps(columns)
            return from_rows(pa.RecordBatch.from_arrays(list(columns.values()), list(columns)), self.layout, tier=1)
        except (pa.ArrowException, ValueError, KeyError, StopIteration) as error:
            message = f"row group {group.index} does not have the rows it should: {error!r}"
            raise SidecarError(message) from error

    def _maps(self, columns: dict[str, pa.Array]) -> pa.MapArray:
        """Return partition values as the log would have them."""
        parts = [each for each in self.layout.columns if each.role == ColumnRole.PARTITION]
        rows = len(next(iter(columns.values())))
        texts = [_texts(columns[each.name]) for each in parts]
        keys = string_array([each.path[0] for each in parts] * rows)
        items = string_array([text for row in zip(*texts, strict=True) for text in row])
        ends = from_numpy(np.arange(rows + 1, dtype=np.int32) * np.int32(len(parts)), pa.int32())
        return pa.MapArray.from_arrays(ends, keys, items, type=PARTITION_VALUES)

    def _deferred_stats(self, snapshot: LogSnapshot, group: ForeignGroup, files: FileBatch) -> StatsColumns:
        names = [*self.layout.names(core=True), *stats_column_names(self.layout, StatsWanted())]
        try:
            data = self._fetch(snapshot.store, group, names).result()
            return {"parsed_stats": self._decoded(group, names, data).parsed_stats}
        except (SidecarError, StorageError):
            checkpoint = snapshot.segment.checkpoint
            return {} if checkpoint is None else from_checkpoint(files, snapshot.store, checkpoint)


def _texts(values: pa.Array) -> list[str | None]:
    coded = values.dictionary_encode()
    known = [text_of(each) for each in coded.dictionary]
    if None in known:
        message = "a partition value cannot be written as a string"
        raise ValueError(message)
    return [None if index is None else known[index] for index in coded.indices.to_pylist()]


def open_foreign(store: Store, data: bytes, snapshot: LogSnapshot, checkpoint: Checkpoint) -> ForeignSidecar:
    """Return the sidecar that a minimal manifest describes; raise if anything does not fit."""
    try:
        manifest = msgspec.json.decode(data, type=ForeignManifest)
    except (msgspec.MsgspecError, UnicodeError) as error:
        message = f"it has neither a digest nor the fields of the minimal profile: {error}"
        raise SidecarError(message) from error
    manifest.check(snapshot, checkpoint)
    metadata, length = _read_footer(store, manifest)
    layout = _layout(metadata, snapshot)
    footer = _ForeignFooter(metadata, layout, length)
    if [each.num_rows for each in footer.groups] != [each.num_rows for each in manifest.row_groups]:
        message = f"{manifest.path} has different row groups than the manifest says"
        raise SidecarError(message)
    for number, group in enumerate(manifest.row_groups):
        end = group.byte_offset + group.byte_length
        spans = footer.spans(number, [each.name for each in layout.columns])
        if group.index != number or any(start < group.byte_offset or start + size > end for start, size in spans):
            message = f"row group {number} is not where the manifest says"
            raise SidecarError(message)
    return ForeignSidecar(manifest, footer, layout, snapshot.schema)


def _read_footer(store: Store, manifest: ForeignManifest) -> tuple[pq.FileMetaData, int]:
    size, path = manifest.sidecar_size_bytes, manifest.path
    length = min(size, _GUESSED_FOOTER)
    pending = store.fetch(path, start=size - length, length=length)
    stored = store.head(path).size
    if stored != size or size <= _TRAILER:
        pending.cancel()
        message = f"{path} has {stored} bytes, and the manifest says {size}"
        raise SidecarError(message)
    tail = pending.result()
    needed = int.from_bytes(tail[-_TRAILER:-4], "little") + _TRAILER
    if tail[-4:] != b"PAR1" or needed > size:
        message = f"{path} does not end like a Parquet file"
        raise SidecarError(message)
    if needed > length:
        tail = store.get(path, start=size - needed, length=needed)
    try:
        return pq.read_metadata(pa.BufferReader(b"PAR1" + tail[-needed:])), needed
    except (pa.ArrowException, OSError) as error:
        message = f"the footer of {path} cannot be read: {error}"
        raise SidecarError(message) from error


def _layout(metadata: pq.FileMetaData, snapshot: LogSnapshot) -> SidecarLayout:
    """Return the columns of a file by their names, which are those that the specification gives them."""
    schema = snapshot.schema
    whole = SidecarLayout.of(schema, [each for each in schema.leaves() if not each.is_partition], ())
    stored = metadata.schema.to_arrow_schema()
    there = set(stored.names)
    has_vectors = _VECTORS in (snapshot.protocol.reader_features or ())
    needed = {*_NEEDED, *(_NEEDED_WITH_VECTORS if has_vectors else ())}
    missing = [each.name for each in whole.columns if each.role in needed and each.name not in there]
    if missing:
        message = f"it lacks the column {missing[0]}"
        raise SidecarError(message)
    wanted = whole.arrow_schema(schema)
    for name in there & set(wanted.names):
        if not _holds(stored.field(name).type, wanted.field(name).type):
            message = f"its column {name} is of type {stored.field(name).type}, not {wanted.field(name).type}"
            raise SidecarError(message)
    kept = tuple(e for e in whole.columns if e.name in there or e.role == ColumnRole.PARTITION_VALUES)
    return _Present(kept, (), frozenset(there))


def _holds(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a type is a spelling of another one: values are converted without loss, or refused."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_map, _is_text)
    if pa.types.is_timestamp(stored) and pa.types.is_timestamp(wanted):
        return bool((stored.tz is None) is (wanted.tz is None))
    return bool(stored == wanted or any(kind(stored) and kind(wanted) for kind in kinds))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind)) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


class _Present(SidecarLayout, frozen=True):
    """A layout whose map of partition values may have no column of its own."""

    there: frozenset[str] = frozenset()

    def names(self, *, core: bool) -> list[str]:
        """Return the names of the columns that the file has."""
        return [name for name in super().names(core=core) if name in self.there]
