"""Building a sidecar from a checkpoint: streaming, sorted within a memory budget, published by its manifest."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.errors import ObjectNotFoundError, StorageError
from lazydelta.log.checkpoint import CheckpointReader, StatsWanted
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.options import Options
from lazydelta.sidecar.discovery import check_single, read_single
from lazydelta.sidecar.external_sort import ExternalSort
from lazydelta.sidecar.format import GROUPS_PER_FILE, ROWS_PER_GROUP, sidecar_path
from lazydelta.sidecar.lifecycle import sweep
from lazydelta.sidecar.manifest import SidecarError
from lazydelta.sidecar.order import sortable
from lazydelta.sidecar.planning import SidecarPlan, plan_of, plan_sidecar, snapshot_at_checkpoint
from lazydelta.sidecar.publish import BuildResult, Publication, load_manifest, result_of, schema_hash
from lazydelta.sidecar.rows import to_rows
from lazydelta.storage import Store, open_store

__all__ = [
    "MEMORY_BUDGET",
    "PART_ROWS",
    "ROW_BYTES",
    "Progress",
    "assemble",
    "build",
    "build_at",
    "existing",
    "part_rows",
]

logger = logging.getLogger(__name__)

Progress = Callable[[int, int | None], None]
"""Called with the files done so far and, where it is known, how many there are."""

PART_ROWS = ROWS_PER_GROUP * GROUPS_PER_FILE
MEMORY_BUDGET = 512 << 20
ROW_BYTES = 1_000  # a row in memory, with room for the copies that sorting makes
_READ_ROWS = 32_768
_SAMPLED = 200_000


def build(
    table_uri: str | os.PathLike[str],
    version: int | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    sort_by: Sequence[str] | None = None,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
) -> BuildResult:
    """Build the sidecar of the newest checkpoint, or of the checkpoint of ``version``.

    Rows are sorted by the partition columns, or by the minimum of the first timestamp column of an unpartitioned
    table; ``sort_by`` names other columns. Nothing is visible to readers before the manifest is written, last.
    """
    settings = Options.load(options)
    store = open_store(table_uri, storage_options, retries=settings.retries, request_timeout=settings.request_timeout)
    snapshot, checkpoint = snapshot_at_checkpoint(store, version)
    return build_at(store, snapshot, checkpoint, sort_by=sort_by, memory_budget=memory_budget, progress=progress)


def build_at(
    store: Store,
    snapshot: Snapshot,
    checkpoint: Checkpoint,
    *,
    sort_by: Sequence[str] | None = None,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
) -> BuildResult:
    """Build the sidecar of a checkpoint whose version the snapshot pins, unless a valid one is there."""
    result = existing(store, snapshot, checkpoint)
    if result is None:
        plan = plan_sidecar(snapshot, checkpoint, sort_by)
        parts = _sorted_parts(snapshot, checkpoint, plan, memory_budget, progress)
        result = Publication(store, snapshot, checkpoint, plan).publish(parts)
        sweep(store, snapshot)
    return result


def existing(store: Store, snapshot: Snapshot, checkpoint: Checkpoint) -> BuildResult | None:
    """Return the sidecar that is already there; where only its manifest is lacking or invalid, add that."""
    manifest = load_manifest(store, snapshot, checkpoint)
    if manifest is not None:
        return result_of(manifest, "already-valid")
    path = sidecar_path(checkpoint.version)
    try:
        part, footer = read_single(store, path)
        check_single(footer, part, snapshot, checkpoint)
    except ObjectNotFoundError:
        return None
    except (SidecarError, StorageError) as error:
        logger.warning("%s is left alone: %s", path, error)
        return None
    if footer.state.schema_hash != schema_hash(snapshot):
        return None
    plan = plan_of(footer.state.layout, snapshot.schema)
    publication = Publication(store, snapshot, checkpoint, plan)
    return publication.put_manifest([(part, footer.row_groups())], action="manifest-added")


def _sorted_parts(
    snapshot: Snapshot,
    checkpoint: Checkpoint,
    plan: SidecarPlan,
    memory_budget: int,
    progress: Progress | None,
) -> Iterator[pa.Table]:
    """Yield the rows of each part, in order."""
    reader = CheckpointReader(snapshot.store, checkpoint, batch_size=_READ_ROWS)
    splitters = _splitters(snapshot, checkpoint, plan, max(1, memory_budget // ROW_BYTES // 2))
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


def part_rows() -> int:
    """Return how many rows a full part has."""
    return PART_ROWS


def assemble(tables: Iterator[pa.Table], size: int | None = None) -> Iterator[pa.Table]:
    """Cut sorted rows into parts, full ones unless ``size`` says how many rows each shall have."""
    held: list[pa.Table] = []
    count = 0
    size = part_rows() if size is None else size
    for table in tables:
        held.append(table)
        count += table.num_rows
        while count >= size:
            whole = pa.concat_tables(held)
            yield whole.slice(0, size).combine_chunks()
            held = [whole.slice(size)]
            count -= size
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
