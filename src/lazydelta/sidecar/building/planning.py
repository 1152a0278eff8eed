"""How a table's sidecar is laid out: what it is sorted by, which statistics it has, which ranges the manifest keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from lazydelta.errors import OptionError
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader, StatsWanted
from lazydelta.log.properties import TableProperties
from lazydelta.log.replaced import CURABLE, MAX_REPLACEMENTS, too_often
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.snapshot_opening import open_snapshot
from lazydelta.sidecar.layout.sidecar_columns import (
    GROUPS_PER_FILE,
    ROWS_PER_GROUP,
    ColumnRole,
    SidecarLayout,
    SortColumn,
)
from lazydelta.sidecar.layout.tiers import index_tier, joined_tiers, stats_tier
from lazydelta.stats import has_range, is_timestamp
from lazydelta.stats.chosen_columns import stats_columns
from lazydelta.storage import Store
from lazydelta.types.schema import Column, TableSchema

__all__ = [
    "MEMORY_BUDGET",
    "PART_ROWS",
    "SidecarPlan",
    "at_checkpoint",
    "columns_named_in",
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
# Two are encoded while one waits and one is made, and what is sorted next is there already.
_COPIES_WHILE_SORTING, _PARTS_IN_MEMORY = 10, 5
_ENCODERS, _ENCODED_COLUMN_BYTES = 2, 8 << 10


@dataclass(frozen=True)
class SidecarPlan:
    """How a table's sidecar is laid out; ``index`` are the columns of its first tier, None if it has one tier only."""

    schema: TableSchema
    layout: SidecarLayout
    indexed: tuple[tuple[str, ...], ...]
    index: SidecarLayout | None = None

    @cached_property
    def row_bytes(self) -> int:
        """Return about how much a row takes in memory."""
        return max(_LEAST_ROW_BYTES, sum(_width(each.type) for each in self.layout.arrow_schema(self.schema)))

    def rows_in(self, memory: int) -> int:
        """Return how many rows fit into some bytes of memory; one does always."""
        return max(1, memory // self.row_bytes)

    def rows_at_once(self, memory_budget: int) -> int:
        """Return how many rows to sort at a time: they are there as read, sorted, waiting, and as Parquet pages."""
        return self.rows_in(memory_budget // _COPIES_WHILE_SORTING)

    def rows_in_part(self, memory_budget: int) -> int:
        """Return how many rows a full part has: fewer where they are wide, or memory is scarce."""
        rows = self.rows_in(min(_PART_BYTES, memory_budget // _PARTS_IN_MEMORY))
        if rows > ROWS_PER_GROUP:
            rows -= rows % ROWS_PER_GROUP  # else each part would end in a small row group
        return min(PART_ROWS, rows)

    def encoders(self, memory_budget: int) -> int:
        """Return how many parts to encode at a time: one where columns take more than rows."""
        each = len(self.layout.columns) * _ENCODED_COLUMN_BYTES
        return max(1, min(_ENCODERS, memory_budget // _PARTS_IN_MEMORY // each))


def _width(kind: pa.DataType) -> int:
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:
        return _BOUND_TEXT_BYTES  # text and maps are as long as they are: bounds of text are cut at 32 characters


def snapshot_at_checkpoint(store: Store, version: int | None = None) -> tuple[Snapshot, Checkpoint]:
    """Pin the version of the newest checkpoint, or ``version``, which must have one."""
    snapshot = open_snapshot(store, version=version)
    checkpoint = snapshot.segment.checkpoint
    if checkpoint is None or (version is not None and checkpoint.version != version):
        which = "no complete checkpoint" if version is None else f"no complete checkpoint of version {version}"
        message = f"{store.uri} has {which}, and a sidecar mirrors one"
        raise OptionError(message, path=store.uri, hint="write a checkpoint first")
    if snapshot.version != checkpoint.version:
        snapshot = open_snapshot(store, version=checkpoint.version)
    return snapshot, checkpoint


def at_checkpoint(store: Store, version: int | None, work: Callable[[Snapshot, Checkpoint], T]) -> T:
    """Do work on the newest checkpoint, or on that of ``version``, and on the one that replaces it meanwhile."""
    snapshot, checkpoint = snapshot_at_checkpoint(store, version)
    for _ in range(MAX_REPLACEMENTS):
        try:
            return work(snapshot, checkpoint)
        except CURABLE as error:
            snapshot = snapshot.with_current_checkpoint(error)
            checkpoint = snapshot.segment.checkpoint or checkpoint
    raise too_often(snapshot.segment)


def plan_sidecar(
    snapshot: Snapshot,
    checkpoint: Checkpoint,
    sort_by: Sequence[str] | None = None,
    *,
    memory_budget: int = MEMORY_BUDGET,
) -> SidecarPlan:
    """Decide on sort columns, statistics columns and the columns whose ranges the manifest keeps."""
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
    """Return the plan of a sidecar that is laid out already, so that new parts fit the old ones."""
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


def _stats_columns(snapshot: Snapshot, reader: CheckpointReader) -> list[Column]:
    """Return the columns that have statistics: those the table's properties name, and those that a sample shows."""
    leaves = [column for column in snapshot.schema.leaves() if not column.is_partition]
    seen = _sampled_columns(reader)
    # Of tables that others write, too: what makes no sense to us in their properties must not keep a sidecar from them.
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
    """Return the columns that a text of statistics speaks of, by physical path."""
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
                raise OptionError(message, hint="name partition columns or columns with statistics")
    else:
        columns = [schema.column(name) for name in schema.partition_columns]
        columns = columns or [column for column in stats if is_timestamp(column)][:1]
    return [
        SortColumn(ColumnRole.PARTITION if each.is_partition else ColumnRole.MIN, each.physical_path)
        for each in columns
    ]
