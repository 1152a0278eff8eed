"""Building a sidecar from a checkpoint: streaming, sorted within a memory budget, published by its manifest."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from lazydelta.errors import ObjectChangedError, ObjectNotFoundError, StorageError
from lazydelta.execution import ReadAhead, in_parallel, release_memory
from lazydelta.handle import TableHandle
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader, StatsWanted
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.scan.timestamp_check import false_timestamps, without_bounds
from lazydelta.sidecar.building.external_sort import ExternalSort
from lazydelta.sidecar.building.key_sample import KeySample
from lazydelta.sidecar.building.part_order import key_layout
from lazydelta.sidecar.building.planning import MEMORY_BUDGET, SidecarPlan, at_checkpoint, plan_of, plan_sidecar
from lazydelta.sidecar.building.publication import (
    BuildResult,
    PartsGoneError,
    Publication,
    load_manifest,
    result_of,
    schema_hash,
)
from lazydelta.sidecar.layout.leaves import pack_groups
from lazydelta.sidecar.layout.manifest import SidecarError
from lazydelta.sidecar.layout.mirrored import prove
from lazydelta.sidecar.layout.order import sortable
from lazydelta.sidecar.layout.part_reader import check_part, whole_layout
from lazydelta.sidecar.layout.sidecar_columns import FOLDER, ColumnRole, sidecar_path
from lazydelta.sidecar.layout.sidecar_rows import to_rows
from lazydelta.sidecar.reading.discovery import check_single, read_single
from lazydelta.sidecar.upkeep.lifecycle import sweep
from lazydelta.storage import Store
from lazydelta.types.schema import Column

__all__ = [
    "MEMORY_BUDGET",
    "Maker",
    "Progress",
    "assemble",
    "build",
    "build_at",
    "existing",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

Progress = Callable[[int, int | None], None]
"""Called with the files done so far and, where it is known, how many there are."""

Maker = Callable[[Publication, int, Progress | None], BuildResult]
"""Reads the checkpoint, writes all parts within a memory budget and publishes them: in this process, or elsewhere."""

_ROWS_PER_BATCH = 32_768
_PARSERS = 2
_SAMPLED_KEYS = 200_000
_KEYS_A_BUCKET = 1_000  # buckets then differ by a few per cent
_MAX_ATTEMPTS = 5
_MOST_PIECES = 8


def build(  # noqa: PLR0913 - keyword-only but for the table and its version
    table_uri: str | os.PathLike[str],
    version: int | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    sort_by: Sequence[str] | None = None,
    force: bool = False,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
    maker: Maker | None = None,
) -> BuildResult:
    """Build the sidecar of the newest checkpoint, or of the checkpoint of ``version``, unless a good one is there.

    Rows are sorted by the partition columns, or by the minimum of the first timestamp column of an unpartitioned
    table; ``sort_by`` names other columns. Nothing is visible to readers before the manifest is written, last. What is
    there is read from end to end and replaced if any page of it is damaged; ``force`` replaces it in any case.
    ``maker`` does the work elsewhere, for instance on the cluster of a Spark session (`lazydelta.spark.build_sidecar`).
    """
    store = TableHandle.open(table_uri, storage_options, options).store

    def work(snapshot: Snapshot, checkpoint: Checkpoint) -> BuildResult:
        replaces, reason = _to_replace(store, snapshot, checkpoint, force=force)
        result = None if force or replaces is not None else existing(store, snapshot, checkpoint, thorough=True)
        if result is not None:
            return result
        return build_at(
            store,
            snapshot,
            checkpoint,
            sort_by=sort_by,
            memory_budget=memory_budget,
            progress=progress,
            replaces=replaces,
            reason=reason,
            maker=maker,
        )

    return at_checkpoint(store, version, work)


def build_at(  # noqa: PLR0913 - keyword-only but for what is built
    store: Store,
    snapshot: Snapshot,
    checkpoint: Checkpoint,
    *,
    sort_by: Sequence[str] | None = None,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
    replaces: str | None = None,
    reason: str | None = None,
    maker: Maker | None = None,
) -> BuildResult:
    """Build the sidecar of a checkpoint whose version the snapshot pins; nothing that may be there is looked at.

    ``replaces`` is the digest of a manifest that gives way to the new one, ``reason`` goes into the result.
    """
    plan = plan_sidecar(snapshot, checkpoint, sort_by, memory_budget=memory_budget)
    make = _made_here if maker is None else maker
    for _ in range(_MAX_ATTEMPTS):
        publication = Publication(store, snapshot, checkpoint, plan, replaces=replaces)
        try:
            result = make(publication, memory_budget, progress)
        except PartsGoneError as error:
            # The build came after what was dropped, so it shall be there: all of it, once more.
            logger.warning("%s; building it again", error)
            continue
        sweep(store, snapshot)
        return msgspec.structs.replace(result, reason=reason)
    message = f"The sidecar in {FOLDER} is dropped faster than it can be built"
    hint = "see who else cleans up sidecars of this table, and try again"
    raise ObjectChangedError(message, path=FOLDER, version=checkpoint.version, hint=hint)


def _to_replace(
    store: Store, snapshot: Snapshot, checkpoint: Checkpoint, *, force: bool
) -> tuple[str | None, str | None]:
    """Return the digest of a manifest that a build has to replace, and why: a page of its parts is damaged."""
    manifest = load_manifest(store, snapshot, checkpoint)
    if manifest is None or force:
        return None if manifest is None else manifest.index.sha256, None
    try:
        layout = whole_layout(store, manifest)
        for part in manifest.parts:
            check_part(store, part, layout)
    except (SidecarError, StorageError) as error:
        logger.warning("the sidecar of version %d is damaged and built anew: %s", checkpoint.version, error)
        return manifest.index.sha256, str(error)
    return None, None


def existing(store: Store, snapshot: Snapshot, checkpoint: Checkpoint, *, thorough: bool = False) -> BuildResult | None:
    """Return the sidecar that is already there; where only its manifest is lacking or invalid, add that.

    Files are not read, but their footers; ``thorough`` reads one before it gets a manifest.
    """
    manifest = load_manifest(store, snapshot, checkpoint)
    if manifest is not None:
        return result_of(manifest.index, len(manifest.parts), "already-valid")
    path = sidecar_path(checkpoint.version)
    try:
        part, footer = read_single(store, path)
        mirrored = check_single(footer, part, snapshot, checkpoint)
        prove(store, mirrored, [each.info for each in checkpoint.files])
        if thorough:
            check_part(store, part, footer.state.layout)
    except ObjectNotFoundError:
        return None
    except (SidecarError, StorageError) as error:
        logger.warning("%s is left alone: %s", path, error)
        return None
    if footer.state.schema_hash != schema_hash(snapshot):
        return None
    plan = plan_of(footer.state.layout, snapshot.schema)
    publication = Publication(store, snapshot, checkpoint, plan)
    try:
        return publication.put_manifest([(part, pack_groups(footer.row_groups()))], action="manifest-added")
    except PartsGoneError:
        return None


def _made_here(publication: Publication, memory_budget: int, progress: Progress | None) -> BuildResult:
    encoders = publication.plan.encoders(memory_budget)
    return publication.publish(_sorted_parts(publication, memory_budget, progress), encoders=encoders)


def _sorted_parts(publication: Publication, memory_budget: int, progress: Progress | None) -> Iterator[pa.Table]:
    """Yield the rows of each part, in order."""
    snapshot, checkpoint, plan = publication.snapshot, publication.checkpoint, publication.plan
    reader = CheckpointReader(
        snapshot.store,
        checkpoint,
        batch_size=_ROWS_PER_BATCH,
        memory_budget=memory_budget,
        needs_stats=True,
    )
    at_once = plan.rows_at_once(memory_budget)
    splitters = _splitters(reader, plan, at_once)
    sort = ExternalSort(plan.layout, splitters, plan.layout.arrow_schema(plan.schema), most_waiting=at_once)
    done = 0
    with contextlib.ExitStack() as stack:
        # Parquet, sorting and temporary files go on beside the parsing of statistics, which takes longest.
        stack.callback(sort.close)
        batches = stack.enter_context(_aside(reader.files(StatsWanted(extra=True))))
        wrong = false_timestamps(snapshot)
        parse = partial(_parsed, wrong=wrong, plan=plan)
        rows = stack.enter_context(contextlib.closing(in_parallel(parse, batches, threads=_PARSERS, stop=lambda: None)))
        for batch in stack.enter_context(_aside(rows)):
            sort.add(batch)
            done += len(batch)
            if progress is not None:
                progress(done, None)
        # Not ahead of whoever asks: two threads encode parts meanwhile, and another part waits for them.
        for part in assemble(sort.sorted_tables(), plan.rows_in_part(memory_budget)):
            release_memory()  # each of these is as large as all that is under way
            yield part


def _parsed(batch: FileBatch, *, wrong: Sequence[Column], plan: SidecarPlan) -> pa.RecordBatch:
    return to_rows(without_bounds(batch, wrong), plan.layout, plan.schema)


def _aside(source: Iterator[T]) -> contextlib.closing[ReadAhead[T]]:
    """Let a thread make the items of an iterator, one ahead of the consumer."""
    return contextlib.closing(ReadAhead(source, depth=1, stop=lambda: None))


def assemble(tables: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """Cut sorted rows into parts of ``size`` rows; the last one has the rest.

    Rows are not copied for that: a part is encoded as well from a few pieces.
    """
    held: list[pa.Table] = []
    count = 0
    for table in tables:
        held.append(table)
        count += table.num_rows
        while count >= size:
            whole = pa.concat_tables(held)
            held = []
            yield _in_few_pieces(whole.slice(0, size))
            held = [whole.slice(size)]
            del whole
            count -= size
    if count:
        yield _in_few_pieces(pa.concat_tables(held))


def _in_few_pieces(table: pa.Table) -> pa.Table:
    return table.combine_chunks() if table.column(0).num_chunks > _MOST_PIECES else table


def _splitters(reader: CheckpointReader, plan: SidecarPlan, bucket_rows: int) -> pa.BinaryArray:
    """Choose splitters from a sample so that buckets have about ``bucket_rows`` rows; few files need none."""
    layout = key_layout(plan.layout)
    wanted = tuple(each.path for each in layout.sort if each.role == ColumnRole.MIN)
    total, sample = 0, KeySample(_SAMPLED_KEYS, step=max(1, bucket_rows // _KEYS_A_BUCKET))
    # Nothing else is to be done meanwhile, so that another thread can decode as well.
    reader = msgspec.structs.replace(reader, parallel=True)
    for batch in reader.files(StatsWanted(wanted) if wanted else None):
        total += len(batch)
        chosen = sample.chosen(len(batch))
        some = batch if chosen is None else batch.filter(chosen)
        sample.add(sortable(to_rows(some, layout, plan.schema), layout))
    return sample.splitters(-(-total // bucket_rows))
