"""Building a sidecar from a checkpoint: streaming, sorted within a memory budget, published by its manifest."""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.errors import ObjectExistsError, ObjectNotFoundError, OptionError
from lazydelta.log.checkpoint import CheckpointReader, StatsWanted
from lazydelta.log.opening import open_snapshot
from lazydelta.log.schema import Column, Primitive, TableSchema
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.options import Options
from lazydelta.sidecar.external_sort import ExternalSort
from lazydelta.sidecar.format import (
    FORMAT_VERSION,
    GROUPS_PER_FILE,
    ROWS_PER_GROUP,
    SidecarLayout,
    SortColumn,
    has_range,
    manifest_path,
    part_path,
    sidecar_path,
)
from lazydelta.sidecar.manifest import Manifest, ManifestPart, ManifestRowGroup, SidecarError, checkpoint_files
from lazydelta.sidecar.order import sortable
from lazydelta.sidecar.part_file import SidecarState, WrittenPart, encode_part
from lazydelta.sidecar.rows import to_rows
from lazydelta.storage import Store, open_store

__all__ = ["BuildResult", "Progress", "SidecarPlan", "build", "plan_sidecar", "publish", "snapshot_at_checkpoint"]

logger = logging.getLogger(__name__)

Progress = Callable[[int, int | None], None]
"""Called with the files done so far and, where it is known, how many there are."""

PART_ROWS = ROWS_PER_GROUP * GROUPS_PER_FILE
_ROW_BYTES = 1_000  # a row in memory, with room for the copies that sorting makes
_READ_ROWS = 32_768
_SAMPLED = 200_000
_INDEXED = 8
_DEFAULT_STATS_COLUMNS = 32


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a build or refresh did; ``action`` is built, refreshed, manifest-added or already-valid."""

    action: str
    version: int
    num_files: int
    num_parts: int
    size_bytes: int
    reused_parts: int = 0


@dataclass(frozen=True, slots=True)
class SidecarPlan:
    """How a table's sidecar is laid out."""

    schema: TableSchema
    layout: SidecarLayout
    indexed: tuple[tuple[str, ...], ...]


def build(
    table_uri: str | os.PathLike[str],
    version: int | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    sort_by: Sequence[str] | None = None,
    memory_budget: int = 512 << 20,
    progress: Progress | None = None,
) -> BuildResult:
    """Build the sidecar of the newest checkpoint, or of the checkpoint of ``version``.

    Rows are sorted by the partition columns, or by the minimum of the first timestamp column of an unpartitioned
    table; ``sort_by`` names other columns. Nothing is visible to readers before the manifest is written, last.
    """
    settings = Options.load(options)
    store = open_store(table_uri, storage_options, retries=settings.retries, request_timeout=settings.request_timeout)
    snapshot, checkpoint = snapshot_at_checkpoint(store, version)
    present = existing(store, snapshot, checkpoint)
    if present is not None:
        return present
    plan = plan_sidecar(snapshot, checkpoint, sort_by)
    parts = _sorted_parts(snapshot, checkpoint, plan, memory_budget, progress)
    return publish(store, snapshot, checkpoint, plan, parts)


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


def existing(store: Store, snapshot: Snapshot, checkpoint: Checkpoint) -> BuildResult | None:
    """Return the sidecar that is already there, if its manifest is valid."""
    manifest = load_manifest(store, snapshot, checkpoint)
    if manifest is None:
        return None
    return BuildResult(
        action="already-valid",
        version=manifest.version,
        num_files=manifest.num_files,
        num_parts=len(manifest.parts),
        size_bytes=manifest.sidecar_size_bytes,
    )


def load_manifest(store: Store, snapshot: Snapshot, checkpoint: Checkpoint) -> Manifest | None:
    """Return the valid manifest of a checkpoint, whose parts are all in place; None if there is none."""
    try:
        manifest = Manifest.decode(store.get(manifest_path(checkpoint.version)))
        manifest.check(table_id=snapshot.metadata.id, checkpoint=checkpoint)
        for part in manifest.parts:
            if store.head(part.file).size != part.size:
                return None
    except (ObjectNotFoundError, SidecarError):
        return None
    return manifest


def plan_sidecar(snapshot: Snapshot, checkpoint: Checkpoint, sort_by: Sequence[str] | None = None) -> SidecarPlan:
    """Decide on sort columns, statistics columns and the columns whose ranges the manifest keeps."""
    schema = snapshot.schema
    stats = _stats_columns(snapshot, checkpoint)
    sort = _sort_columns(schema, stats, sort_by)
    layout = SidecarLayout.of(schema, stats, sort)
    timestamps = [column for column in stats if _is_time(column)]
    ranged = [column for column in stats if has_range(column) and column not in timestamps[:1]]
    indexed = [column.physical_path for column in (*timestamps[:1], *ranged[:_INDEXED])]
    indexed += [each.path for each in sort if each.role == "min" and each.path not in indexed]
    return SidecarPlan(schema, layout, tuple(indexed))


def _stats_columns(snapshot: Snapshot, checkpoint: Checkpoint) -> list[Column]:
    """Return the columns that have statistics: those the table's properties name, and those that a sample shows."""
    leaves = [column for column in snapshot.schema.leaves() if not column.is_partition]
    seen = _sampled_columns(snapshot, checkpoint)
    wanted = snapshot.metadata.property("delta.dataSkippingNumIndexedCols")
    try:
        count = int(wanted) if wanted is not None else _DEFAULT_STATS_COLUMNS
    except ValueError:
        count = _DEFAULT_STATS_COLUMNS
    likely = leaves if count < 0 else leaves[:count]
    return [column for column in leaves if column in likely or column.physical_path in seen]


def _sampled_columns(snapshot: Snapshot, checkpoint: Checkpoint) -> set[tuple[str, ...]]:
    reader = CheckpointReader(snapshot.store, checkpoint, batch_size=1_000)
    found: set[tuple[str, ...]] = set()
    for batch in reader.files(StatsWanted()):
        for text in [] if batch.json_stats is None else batch.json_stats.slice(0, 200).to_pylist():
            found |= _named_in(text)
        if batch.parsed_stats is not None:
            found |= set(_struct_paths(batch.parsed_stats.type))
        break
    return found


def _named_in(text: str | None) -> set[tuple[str, ...]]:
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
        columns = columns or [column for column in stats if _is_time(column)][:1]
    return [SortColumn("partition" if each.is_partition else "min", each.physical_path) for each in columns]


def _is_time(column: Column) -> bool:
    return column.type in (Primitive("timestamp"), Primitive("timestamp_ntz"))


def _sorted_parts(
    snapshot: Snapshot,
    checkpoint: Checkpoint,
    plan: SidecarPlan,
    memory_budget: int,
    progress: Progress | None,
) -> Iterator[pa.Table]:
    """Yield the rows of each part, in order."""
    reader = CheckpointReader(snapshot.store, checkpoint, batch_size=_READ_ROWS)
    splitters = _splitters(snapshot, checkpoint, plan, max(1, memory_budget // _ROW_BYTES // 2))
    sort = ExternalSort(plan.layout, splitters, plan.layout.arrow_schema(plan.schema))
    done = 0
    try:
        for batch in reader.files(StatsWanted(extra=True)):
            sort.add(to_rows(batch, plan.layout, plan.schema))
            done += len(batch)
            if progress is not None:
                progress(done, None)
        yield from assemble(sort.sorted_tables())
    finally:
        sort.close()


def assemble(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Cut sorted rows into parts."""
    held: list[pa.Table] = []
    count = 0
    for table in tables:
        held.append(table)
        count += table.num_rows
        while count >= PART_ROWS:
            whole = pa.concat_tables(held)
            yield whole.slice(0, PART_ROWS).combine_chunks()
            held = [whole.slice(PART_ROWS)]
            count -= PART_ROWS
    if count:
        yield pa.concat_tables(held).combine_chunks()


def _splitters(snapshot: Snapshot, checkpoint: Checkpoint, plan: SidecarPlan, bucket_rows: int) -> pa.BinaryArray:
    """Choose splitters from a sample so that buckets have about ``bucket_rows`` rows; few files need none."""
    reader = CheckpointReader(snapshot.store, checkpoint, batch_size=_READ_ROWS)
    wanted = tuple(each.path for each in plan.layout.sort if each.role == "min")
    total, sample, step = 0, [], 1
    for batch in reader.files(StatsWanted(wanted) if wanted else None):
        total += len(batch)
        picked = _every(batch.path, step)
        sample.append(sortable(to_rows(batch, plan.layout, plan.schema), plan.layout).take(picked))
        if sum(map(len, sample)) > 2 * _SAMPLED:
            step *= 2
            sample = [each.take(_every(each, 2)) for each in sample]
    buckets = -(-total // bucket_rows)
    if buckets <= 1:
        return pa.array([], pa.binary())
    ordered = pa.concat_arrays(sample)
    ordered = ordered.take(pc.sort_indices(ordered))
    places = [len(ordered) * number // buckets for number in range(1, buckets)]
    return ordered.take(pa.array(places, pa.int64())).unique()


def _every(values: pa.Array, step: int) -> pa.Array:
    return pa.array(range(0, len(values), step), pa.int64())


def publish(
    store: Store,
    snapshot: Snapshot,
    checkpoint: Checkpoint,
    plan: SidecarPlan,
    tables: Iterator[pa.Table],
    *,
    kept: Sequence[tuple[ManifestPart, Sequence[ManifestRowGroup]]] = (),
) -> BuildResult:
    """Write parts for ``tables``, then the manifest over them and the ``kept`` parts, in the order of their keys."""
    build_id = str(uuid.uuid4())
    state = sidecar_state(snapshot, checkpoint, plan)
    written: list[tuple[ManifestPart, Sequence[ManifestRowGroup]]] = []
    pending: pa.Table | None = None
    for number, table in enumerate(tables, 1):
        if pending is not None:
            written.append(
                _put_part(
                    store, encode_part(pending, state, plan.indexed), part_path(state.version, build_id, number - 1)
                )
            )
        pending = table
    only = not written and not kept
    if pending is None and only:
        pending = plan.layout.arrow_schema(plan.schema).empty_table()
    if pending is not None:
        last = encode_part(
            pending, msgspec.structs.replace(state, num_files=pending.num_rows if only else -1), plan.indexed
        )
        target = part_path(state.version, build_id, len(written) + 1)
        written.append(
            _put_single(store, last, sidecar_path(state.version), target) if only else _put_part(store, last, target)
        )
    return put_manifest(store, snapshot, checkpoint, plan, [*kept, *written], reused=len(kept))


def put_manifest(
    store: Store,
    snapshot: Snapshot,
    checkpoint: Checkpoint,
    plan: SidecarPlan,
    parts: Sequence[tuple[ManifestPart, Sequence[ManifestRowGroup]]],
    *,
    reused: int = 0,
) -> BuildResult:
    """Write the manifest: the moment at which the sidecar exists."""
    ordered = list(parts)
    groups = [
        msgspec.structs.replace(group, part=number) for number, (_, found) in enumerate(ordered) for group in found
    ]
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        version=checkpoint.version,
        table_id=snapshot.metadata.id,
        schema_hash=schema_hash(snapshot),
        sidecar_file=ordered[0][0].file if ordered else "",
        sidecar_size_bytes=sum(part.size for part, _ in ordered),
        num_files=sum(part.num_rows for part, _ in ordered),
        num_row_groups=len(groups),
        sort=plan.layout.sort,
        columns=plan.layout.columns,
        protocol=snapshot.protocol,
        meta_data=snapshot.metadata,
        txn=tuple(snapshot.transactions()),
        domain_metadata=tuple(snapshot.domains()),
        checkpoint=checkpoint_files(checkpoint),
        parts=tuple(part for part, _ in ordered),
        row_groups=tuple(groups),
    )
    path, data = manifest_path(checkpoint.version), manifest.encode()
    action = "refreshed" if reused else "built"
    try:
        store.put_if_absent(path, data)
    except ObjectExistsError:
        if load_manifest(store, snapshot, checkpoint) is None:
            store.put(path, data, if_match=store.head(path).etag)
        else:
            action = "already-valid"  # another builder was faster; our parts are debris that `clean` removes
    return BuildResult(
        action=action,
        version=manifest.version,
        num_files=manifest.num_files,
        num_parts=len(manifest.parts),
        size_bytes=manifest.sidecar_size_bytes,
        reused_parts=reused,
    )


def sidecar_state(snapshot: Snapshot, checkpoint: Checkpoint, plan: SidecarPlan) -> SidecarState:
    """Return what every file of this sidecar says of it."""
    state = {
        "protocol": snapshot.protocol,
        "metaData": snapshot.metadata,
        "txn": list(snapshot.transactions()),
        "domainMetadata": list(snapshot.domains()),
        "checkpoint": checkpoint_files(checkpoint),
    }
    return SidecarState(
        table_id=snapshot.metadata.id,
        version=checkpoint.version,
        schema_hash=schema_hash(snapshot),
        columns=plan.layout.columns,
        sort=plan.layout.sort,
        num_files=-1,
        state=msgspec.Raw(msgspec.json.encode(state)),
    )


def schema_hash(snapshot: Snapshot) -> str:
    """Return the digest of the schema at the checkpoint."""
    return hashlib.sha256(snapshot.metadata.schema_string.encode()).hexdigest()


def _put_part(store: Store, part: WrittenPart, path: str) -> tuple[ManifestPart, Sequence[ManifestRowGroup]]:
    store.put(path, part.data)
    return msgspec.structs.replace(part.part, file=path), part.row_groups


def _put_single(
    store: Store, part: WrittenPart, path: str, otherwise: str
) -> tuple[ManifestPart, Sequence[ManifestRowGroup]]:
    try:
        store.put_if_absent(path, part.data)
    except ObjectExistsError:
        return _put_part(store, part, otherwise)
    return msgspec.structs.replace(part.part, file=path), part.row_groups
