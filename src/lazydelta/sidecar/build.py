"""Building a sidecar from a checkpoint: streaming, sorted within a memory budget, published by its manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.log.checkpoint import CheckpointReader, StatsWanted
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.options import Options
from lazydelta.sidecar.external_sort import ExternalSort
from lazydelta.sidecar.format import GROUPS_PER_FILE, ROWS_PER_GROUP
from lazydelta.sidecar.order import sortable
from lazydelta.sidecar.planning import SidecarPlan, plan_sidecar, snapshot_at_checkpoint
from lazydelta.sidecar.publish import BuildResult, load_manifest, publish
from lazydelta.sidecar.rows import to_rows
from lazydelta.storage import Store, open_store

__all__ = ["PART_ROWS", "Progress", "assemble", "build", "build_at"]

Progress = Callable[[int, int | None], None]
"""Called with the files done so far and, where it is known, how many there are."""

PART_ROWS = ROWS_PER_GROUP * GROUPS_PER_FILE
_ROW_BYTES = 1_000  # a row in memory, with room for the copies that sorting makes
_READ_ROWS = 32_768
_SAMPLED = 200_000


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
    return build_at(store, snapshot, checkpoint, sort_by=sort_by, memory_budget=memory_budget, progress=progress)


def build_at(
    store: Store,
    snapshot: Snapshot,
    checkpoint: Checkpoint,
    *,
    sort_by: Sequence[str] | None = None,
    memory_budget: int = 512 << 20,
    progress: Progress | None = None,
) -> BuildResult:
    """Build the sidecar of a checkpoint whose version the snapshot pins, unless a valid one is there."""
    present = _existing(store, snapshot, checkpoint)
    if present is not None:
        return present
    plan = plan_sidecar(snapshot, checkpoint, sort_by)
    parts = _sorted_parts(snapshot, checkpoint, plan, memory_budget, progress)
    return publish(store, snapshot, checkpoint, plan, parts)


def _existing(store: Store, snapshot: Snapshot, checkpoint: Checkpoint) -> BuildResult | None:
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
