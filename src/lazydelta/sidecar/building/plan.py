"""Layout planning: sort columns, statistics columns, and the columns with ranges in the manifest."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.errors import OptionError
from lazydelta.log.checkpoint.reader import CURABLE, MAX_REPLACEMENTS, CheckpointReader, StatsWanted, too_often
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import LogSnapshot, open_snapshot
from lazydelta.protocol.properties import TableProperties
from lazydelta.protocol.schema import Column, TableSchema
from lazydelta.sidecar.format.columns import GROUPS_PER_FILE, ROWS_PER_GROUP, ColumnRole, SidecarLayout, SortColumn
from lazydelta.sidecar.format.manifest import ManifestPart, SidecarError, range_key
from lazydelta.sidecar.format.part_file import index_tier, joined_tiers, stats_tier
from lazydelta.sidecar.format.rows import keys_from_text, partition_column, places_among
from lazydelta.stats import has_range, is_timestamp
from lazydelta.stats.collector import stats_columns
from lazydelta.storage import Store

__all__ = [
    "MEMORY_BUDGET",
    "PART_ROWS",
    "PartOrder",
    "SidecarPlan",
    "SpillFile",
    "at_checkpoint",
    "columns_named_in",
    "key_layout",
    "plan_of",
    "plan_sidecar",
    "snapshot_at_checkpoint",
]


T = TypeVar("T")

MEMORY_BUDGET = 512 << 20
PART_ROWS = ROWS_PER_GROUP * GROUPS_PER_FILE
_RANGES_IN_MANIFEST = 8
_LEAST_ROW_BYTES = 400
_PART_BYTES = 96 << 20
_BOUND_TEXT_BYTES = 32
# Two parts are being encoded, one is queued, one is being assembled, and the next rows to sort are loaded.
_COPIES_WHILE_SORTING, _PARTS_IN_MEMORY = 10, 5
_ENCODERS, _ENCODED_COLUMN_BYTES = 2, 8 << 10
# What a column takes while a part is written, besides its rows: of 9,000 columns nearly 300 MB.
_WRITTEN_COLUMN_BYTES = 32 << 10


@dataclass(frozen=True)
class SidecarPlan:
    """Layout of a table's sidecar; ``index`` has the columns of the first tier, None if there is one tier."""

    schema: TableSchema
    layout: SidecarLayout
    indexed: tuple[tuple[str, ...], ...]
    index: SidecarLayout | None = None

    @cached_property
    def row_bytes(self) -> int:
        """Return the approximate memory size of a row."""
        return max(_LEAST_ROW_BYTES, sum(_width(each.type) for each in self.layout.arrow_schema(self.schema)))

    def rows_in(self, memory: int) -> int:
        """Return how many rows fit into ``memory`` bytes, at least one."""
        return max(1, memory // self.row_bytes)

    def rows_at_once(self, memory_budget: int) -> int:
        """Return how many rows to sort at once: they exist as read, sorted, queued, and as Parquet pages."""
        return self.rows_in(memory_budget // _COPIES_WHILE_SORTING)

    def rows_in_part(self, memory_budget: int) -> int:
        """Return the row count of a full part: lower for wide rows or a small budget."""
        columns = self.encoders(memory_budget) * len(self.layout.columns) * _WRITTEN_COLUMN_BYTES
        left = max(memory_budget // 2, memory_budget - columns)
        rows = self.rows_in(min(_PART_BYTES, left // _PARTS_IN_MEMORY))
        if rows > ROWS_PER_GROUP:
            rows -= rows % ROWS_PER_GROUP  # otherwise each part would end in a small row group
        return min(PART_ROWS, rows)

    def encoders(self, memory_budget: int) -> int:
        """Return how many parts to encode in parallel: one if column overhead exceeds the rows."""
        each = len(self.layout.columns) * _ENCODED_COLUMN_BYTES
        return max(1, min(_ENCODERS, memory_budget // _PARTS_IN_MEMORY // each))


def _width(kind: pa.DataType) -> int:
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:
        return _BOUND_TEXT_BYTES  # strings and maps vary in length; string bounds are truncated at 32 characters


def snapshot_at_checkpoint(store: Store, version: int | None = None) -> tuple[LogSnapshot, Checkpoint]:
    """Return a snapshot of the newest checkpoint's version, or of ``version``, which must have a checkpoint."""
    snapshot = open_snapshot(store, version=version)
    checkpoint = snapshot.segment.checkpoint
    if checkpoint is None or (version is not None and checkpoint.version != version):
        which = "no complete checkpoint" if version is None else f"no complete checkpoint of version {version}"
        message = f"{store.uri} has {which}, and a sidecar mirrors one"
        raise OptionError(message, path=store.uri, hint="write a checkpoint first")
    if snapshot.version != checkpoint.version:
        snapshot = open_snapshot(store, version=checkpoint.version)
    return snapshot, checkpoint


def at_checkpoint(store: Store, version: int | None, work: Callable[[LogSnapshot, Checkpoint], T]) -> T:
    """Run ``work`` on the newest checkpoint or that of ``version``; run it again if the checkpoint is replaced."""
    snapshot, checkpoint = snapshot_at_checkpoint(store, version)
    for _ in range(MAX_REPLACEMENTS):
        try:
            return work(snapshot, checkpoint)
        except CURABLE as error:
            snapshot = snapshot.with_current_checkpoint(error)
            checkpoint = snapshot.segment.checkpoint or checkpoint
    raise too_often(snapshot.segment)


def plan_sidecar(
    snapshot: LogSnapshot,
    checkpoint: Checkpoint,
    sort_by: Sequence[str] | None = None,
    *,
    memory_budget: int = MEMORY_BUDGET,
) -> SidecarPlan:
    """Choose the sort columns, the statistics columns and the columns with ranges in the manifest."""
    schema = snapshot.schema
    reader = CheckpointReader(snapshot.store, checkpoint, 1_000, memory_budget=memory_budget, needs_stats=True)
    stats = _stats_columns(snapshot, reader)
    sort = _sort_columns(schema, stats, sort_by)
    plan = _plan(schema, SidecarLayout.of(schema, stats, sort), stats)
    index = index_tier(plan.layout, plan.indexed)
    if index is None:
        return plan
    return replace(plan, layout=joined_tiers(index, stats_tier(plan.layout, index)), index=index)


def plan_of(layout: SidecarLayout, schema: TableSchema, index: SidecarLayout | None = None) -> SidecarPlan:
    """Return the plan of an existing layout, so that new parts match the old ones."""
    by_path = {column.physical_path: column for column in schema.leaves() if not column.is_partition}
    stats = [
        by_path[each.path] for each in layout.columns if each.role == ColumnRole.NULL_COUNT and each.path in by_path
    ]
    return replace(_plan(schema, layout, stats), index=index)


def _plan(schema: TableSchema, layout: SidecarLayout, stats: Sequence[Column]) -> SidecarPlan:
    timestamps = [column for column in stats if is_timestamp(column)]
    ranged = [column for column in stats if has_range(column) and column not in timestamps[:1]]
    indexed = [column.physical_path for column in (*timestamps[:1], *ranged[:_RANGES_IN_MANIFEST])]
    indexed += [each.path for each in layout.sort if each.role == ColumnRole.MIN and each.path not in indexed]
    return SidecarPlan(schema, layout, tuple(indexed))


def _stats_columns(snapshot: LogSnapshot, reader: CheckpointReader) -> list[Column]:
    """Return the columns with statistics: those that table properties name, and those found in a sample."""
    leaves = [column for column in snapshot.schema.leaves() if not column.is_partition]
    seen = _sampled_columns(reader)
    # Other writers' tables count too: properties that we cannot interpret must not prevent a sidecar.
    likely = stats_columns(snapshot.schema, TableProperties.of(snapshot.metadata, strict=False))
    return [column for column in leaves if column in likely or column.physical_path in seen]


def _sampled_columns(reader: CheckpointReader) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for batch in reader.files(StatsWanted()):
        for text in [] if batch.json_stats is None else batch.json_stats.slice(0, 200).to_pylist():
            found |= columns_named_in(text)
        if batch.parsed_stats is not None:
            found |= set(_struct_paths(batch.parsed_stats.type))
        break
    return found


def columns_named_in(text: str | None) -> set[tuple[str, ...]]:
    """Return the columns in a JSON statistics string, by physical path."""
    try:
        stats = msgspec.json.decode(text or "{}")
    except (msgspec.MsgspecError, RecursionError):
        return set()
    kinds = [stats.get(kind) for kind in ("minValues", "maxValues", "nullCount")] if isinstance(stats, dict) else []
    return {path for each in kinds if isinstance(each, dict) for path in _paths(each)}


def _paths(level: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in level.items():
        if isinstance(value, dict):
            yield from ((name, *path) for path in _paths(value))
        else:
            yield (name,)


def _struct_paths(stats: pa.StructType) -> Iterator[tuple[str, ...]]:
    def walk(level: pa.DataType) -> Iterator[tuple[str, ...]]:
        for field in level:
            if pa.types.is_struct(field.type):
                yield from ((field.name, *path) for path in walk(field.type))
            else:
                yield (field.name,)

    for kind in ("minValues", "maxValues", "nullCount"):
        if stats.get_field_index(kind) >= 0 and pa.types.is_struct(stats.field(kind).type):
            yield from walk(stats.field(kind).type)


def _sort_columns(schema: TableSchema, stats: Sequence[Column], sort_by: Sequence[str] | None) -> list[SortColumn]:
    if sort_by is not None:
        columns = [schema.column(name) for name in sort_by]
        for column in columns:
            if not column.is_partition and (column not in stats or not has_range(column)):
                message = f"The sidecar cannot be sorted by {column.name!r}, which has no minimum in the log"
                raise OptionError(message, hint="use partition columns or columns with statistics")
    else:
        columns = [schema.column(name) for name in schema.partition_columns]
        columns = columns or [column for column in stats if is_timestamp(column)][:1]
    return [
        SortColumn(ColumnRole.PARTITION if each.is_partition else ColumnRole.MIN, each.physical_path)
        for each in columns
    ]


# ``PartOrder``: the parts of a sidecar by key range, and the part that a file belongs to.


def key_layout(layout: SidecarLayout) -> SidecarLayout:
    """Return only the columns that determine the position of a file."""
    sort = {(each.role, each.path) for each in layout.sort}
    counted = {
        (ColumnRole.NULL_COUNT, path) for role, path in sort if role == ColumnRole.MIN
    }  # the null count shows whether there are statistics
    wanted = {(ColumnRole.PATH, ()), *sort, *counted}
    return SidecarLayout(tuple(each for each in layout.columns if (each.role, each.path) in wanted), layout.sort)


class PartOrder:
    """Non-empty parts in order.

    A key before the first part belongs to the first part, and a key between two parts to the earlier one. Keys after
    the last part get the number of parts.
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
    """Raise if a part can begin or end in a year without a string form: such a value looks like null."""
    for number, each in enumerate(layout.sort):
        if each.role != ColumnRole.PARTITION:
            continue
        has_years = pa.types.is_temporal(partition_column(schema, each.path).type.to_arrow())
        for part in parts if has_years else ():
            known = part.ranges.get(range_key(each.path))
            if known is not None and known.has_missing and None in (part.first[number], part.last[number]):
                message = f"its keys by {'.'.join(each.path)} cannot be read back from text"
                raise SidecarError(message)


# ``SpillFile``: rows spilled to an unnamed file on disk, which disappears with the process however it ends.


_BUFFER = 1 << 20


class SpillFile:
    """Stores rows with ``add`` and returns them piece by piece with ``pieces``.

    Each owner spills to one file, whichever rows are read together. A file per group would need its own buffer and
    schema, which with a thousand columns is larger than the rows.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = tempfile.TemporaryFile(prefix="lazydelta-spill-", buffering=_BUFFER)  # noqa: SIM115 - see close
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), schema, options=options)

    def add(self, rows: pa.RecordBatch) -> int:
        """Store rows, and return the position to read them from."""
        place = self._file.tell()
        self._writer.write_batch(rows)
        return place

    def pieces(self, places: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows at some positions. Nothing may be added after the first one is read."""
        source = pa.PythonFile(self._file, "r")
        for place in places:
            self._file.seek(place)
            message = pa.ipc.read_message(source)
            if message.type == "schema":  # written with the first rows
                message = pa.ipc.read_message(source)
            yield pa.ipc.read_record_batch(message, self._schema)

    def close(self) -> None:
        """Free the disk space."""
        self._file.close()
