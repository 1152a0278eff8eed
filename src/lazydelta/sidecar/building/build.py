"""Building a sidecar from a checkpoint: streamed, sorted within a memory budget, published by its manifest."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.errors import ObjectChangedError, ObjectNotFoundError, StorageError
from lazydelta.log.checkpoint.reader import CheckpointReader, StatsWanted
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.missing_names import known_arguments
from lazydelta.protocol.schema import Column
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import boolean_array, from_numpy
from lazydelta.runtime.threads import ReadAhead, in_parallel, release_heap, release_memory
from lazydelta.scan.timestamp_check import false_timestamps, without_bounds
from lazydelta.sidecar.building.plan import (
    MEMORY_BUDGET,
    SidecarPlan,
    SpillFile,
    at_checkpoint,
    key_layout,
    plan_of,
    plan_sidecar,
)
from lazydelta.sidecar.building.publish import (
    BuildResult,
    PartsGoneError,
    Publication,
    load_manifest,
    result_of,
    schema_hash,
)
from lazydelta.sidecar.format.columns import FOLDER, ColumnRole, SidecarLayout, sidecar_path
from lazydelta.sidecar.format.leaves import pack_groups
from lazydelta.sidecar.format.manifest import SidecarError, prove
from lazydelta.sidecar.format.part_file import check_part, part_footer, whole_layout, whole_layout_of
from lazydelta.sidecar.format.rows import places_among, sortable, to_rows
from lazydelta.sidecar.handle import TableHandle
from lazydelta.sidecar.lifecycle import sweep
from lazydelta.sidecar.reading.discovery import check_single, read_single
from lazydelta.storage import Store

__all__ = [
    "MEMORY_BUDGET",
    "BuildPreview",
    "ExternalSort",
    "KeySample",
    "Maker",
    "Progress",
    "assemble",
    "build",
    "build_at",
    "existing",
    "preview",
]


# Preview of a build: what it would do and how much work it is.


class BuildPreview(msgspec.Struct, frozen=True, kw_only=True):
    """Preview of a build: ``action`` is build, replace or keep; ``actions`` counts those of the checkpoint.

    Nearly all of these actions are files.
    """

    version: int
    action: str
    actions: int
    size_bytes: int
    sort: list[str]
    engine: str = "local"
    dry_run: bool = True


def preview(
    handle: TableHandle, version: int | None = None, *, sort_by: Sequence[str] | None = None, force: bool = False
) -> BuildPreview:
    """Inspect the newest checkpoint, or that of ``version``; reads only its footers and a few files."""

    def work(snapshot: LogSnapshot, checkpoint: Checkpoint) -> BuildPreview:
        reader = CheckpointReader(handle.store, checkpoint)
        parts = list(reader.parts())
        there = load_manifest(handle.store, snapshot, checkpoint) is not None
        plan = plan_sidecar(snapshot, checkpoint, sort_by)
        return BuildPreview(
            version=checkpoint.version,
            action=("replace" if force else "keep") if there else "build",
            actions=sum(sum(reader.row_counts(part) or ()) for part in parts),
            size_bytes=sum(part.info.size for part in parts),
            sort=[".".join(each.path) for each in plan.layout.sort],
        )

    return at_checkpoint(handle.store, version, work)


# ``ExternalSort``: sorts more rows than fit in memory through buckets on disk. Splitters come from a sample of keys,
# each row goes to the bucket between its splitters, and buckets are sorted one by one. Memory holds one bucket and the
# buffered rows. If the buffer is too small for so many buckets, rows are split into fewer, which are then split again.


_PIECE_ROWS = 1024  # this many rows per bucket are worth a write
# A piece has an overhead of a few hundred bytes per column, however few rows it has.
_LEAST_PIECE_ROWS = 16
_MOST_BUCKETS = 256


class ExternalSort:
    """A sort on disk: ``add`` takes rows in any order, ``sorted_tables`` returns them sorted.

    Rows are spilled once enough of them are buffered to be worth a write, at the latest at ``most_waiting`` rows.
    """

    def __init__(
        self, layout: SidecarLayout, splitters: pa.BinaryArray, schema: pa.Schema, *, most_waiting: int
    ) -> None:
        self._layout = layout
        self._splitters = splitters
        self._schema = schema
        self._most_waiting = most_waiting
        fan_out = min(_MOST_BUCKETS, max(2, most_waiting // _LEAST_PIECE_ROWS))
        self._step = -(-(len(splitters) + 1) // fan_out)
        """Number of splitter buckets per bucket of this sort; buckets of more than one are split again."""
        self._edges = splitters.take(from_numpy(np.arange(self._step - 1, len(splitters), self._step)))
        self._places: list[list[int]] = [[] for _ in range(len(self._edges) + 1)]
        self._flush_rows = min(most_waiting, len(self._places) * _PIECE_ROWS)
        self._waiting: list[pa.RecordBatch] = []
        self._buckets: list[npt.NDArray[np.uint16]] = []
        self._rows = 0
        self._spilled: SpillFile | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        self._waiting.append(rows)
        if len(self._edges) == 0:
            return
        found = places_among(self._edges, sortable(rows, self._layout), side="right")
        self._buckets.append(found.astype(np.uint16))  # uint16 sorts in one pass
        self._rows += rows.num_rows
        if self._rows >= self._flush_rows:
            self._flush()

    def sorted_tables(self) -> Iterator[pa.Table]:
        """Yield all rows, bucket by bucket, each sorted; no rows can be added afterwards."""
        if len(self._edges) == 0:
            waiting, self._waiting = self._waiting, []
            yield from self._sorted(waiting)
            return
        self._flush()
        for bucket, places in enumerate(self._places):
            pieces = self._spilled.pieces(places) if self._spilled is not None else iter(())
            yield from self._sorted(list(pieces)) if self._step == 1 else self._divided(bucket, pieces)

    def close(self) -> None:
        """Delete the temporary files."""
        if self._spilled is not None:
            self._spilled.close()
            self._spilled = None

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._spilled is None:
            self._spilled = SpillFile(self._schema)
        buckets = np.concatenate(self._buckets)
        rows = pa.concat_batches(self._waiting) if len(self._waiting) > 1 else self._waiting[0]
        self._waiting, self._buckets, self._rows = [], [], 0
        order = np.argsort(buckets, kind="stable")
        numbers = buckets[order]
        rows = rows.take(from_numpy(order))
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
            self._places[int(numbers[start])].append(self._spilled.add(rows.slice(start, end - start)))

    def _divided(self, bucket: int, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Sort a bucket that does not fit in memory by the splitters inside it."""
        first = bucket * self._step
        inside = self._splitters.slice(first, self._step - 1)
        sort = ExternalSort(self._layout, inside, self._schema, most_waiting=self._most_waiting)
        try:
            for piece in pieces:
                sort.add(piece)
            yield from sort.sorted_tables()
        finally:
            sort.close()

    def _sorted(self, pieces: list[pa.RecordBatch]) -> Iterator[pa.Table]:
        table = pa.Table.from_batches(pieces, schema=self._schema).combine_chunks()
        pieces.clear()  # otherwise they stay in memory while the rows are used
        if table.num_rows:
            yield table.take(pc.sort_indices(sortable(table, self._layout)))


# ``KeySample``: a sample of sort keys that defines the buckets of an external sort.


class KeySample:
    """A sample of every n-th key: it holds between ``size`` and twice ``size`` keys, however many there are.

    If a smaller sample is enough, ``step`` skips rows from the start: computing the keys of all rows takes longer than
    reading the rows.
    """

    def __init__(self, size: int, *, step: int = 1) -> None:
        self._most = 2 * size
        self._step = step
        self._held = 0
        self._keys: list[pa.BinaryArray] = []

    def chosen(self, count: int) -> pa.BooleanArray | None:
        """Return which of the next ``count`` rows to add, None for all; other rows need no key."""
        return None if self._step == 1 else boolean_array(np.arange(count) % self._step == 0)

    def add(self, keys: pa.BinaryArray) -> None:
        """Add the keys of chosen rows."""
        self._keys.append(keys)
        self._held += len(keys)
        if self._held > self._most:
            self._step *= 2
            held = pa.concat_arrays(self._keys)
            self._keys = [held.take(from_numpy(np.arange(0, len(held), 2)))]
            self._held = len(self._keys[0])

    def splitters(self, buckets: int) -> pa.BinaryArray:
        """Return the keys that separate ``buckets`` buckets of similar size; fewer if keys are equal."""
        if buckets <= 1 or not self._keys:
            return pa.nulls(0, pa.binary())
        ordered = pa.concat_arrays(self._keys)
        ordered = ordered.take(pc.sort_indices(ordered))
        places = np.arange(1, buckets, dtype=np.int64) * len(ordered) // buckets
        return ordered.take(from_numpy(places)).unique()

    def held(self) -> list[bytes]:
        """Return the sampled keys."""
        return [key.as_py() for keys in self._keys for key in keys]

    def clear(self) -> None:
        """Release memory."""
        self._keys, self._held = [], 0


logger = logging.getLogger(__name__)

T = TypeVar("T")

Progress = Callable[[int, int | None], None]
"""Called with the number of files done so far and the total, if it is known."""

Maker = Callable[[Publication, int, Progress | None], BuildResult]
"""Reads the checkpoint, writes all parts within a memory budget and publishes them, in this or other processes."""

_ROWS_PER_BATCH = 32_768
_PARSERS = 2
# The footers of checkpoints up to this size tell whether they need a sample.
_FEW_BYTES = 1 << 20
_SAMPLED_KEYS = 200_000
_KEYS_A_BUCKET = 1_000  # bucket sizes then differ by a few per cent
_MAX_ATTEMPTS = 5
_MOST_PIECES = 8


@known_arguments
def build(  # noqa: PLR0913 - all arguments but the table and its version are keyword-only
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
    """Build the sidecar of the newest checkpoint, or of that of ``version``, unless a valid one exists.

    Rows are sorted by the partition columns, or by the minimum of the first timestamp column of an unpartitioned table;
    ``sort_by`` names other columns. Readers see nothing before the manifest, which is written last. An existing sidecar
    is read in full and replaced if any page is damaged; ``force`` always replaces it. ``maker`` runs the work in other
    processes, such as the cluster of a Spark session (`lazydelta.spark.build_sidecar`).
    """
    store = TableHandle.open(table_uri, storage_options, options).store

    def work(snapshot: LogSnapshot, checkpoint: Checkpoint) -> BuildResult:
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


def build_at(  # noqa: PLR0913 - all arguments but the build target are keyword-only
    store: Store,
    snapshot: LogSnapshot,
    checkpoint: Checkpoint,
    *,
    sort_by: Sequence[str] | None = None,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
    replaces: str | None = None,
    reason: str | None = None,
    maker: Maker | None = None,
) -> BuildResult:
    """Build the sidecar of a checkpoint that the snapshot pins, without looking for an existing one.

    ``replaces`` is the digest of a manifest to be replaced; ``reason`` is copied to the result.
    """
    plan = plan_sidecar(snapshot, checkpoint, sort_by, memory_budget=memory_budget)
    make = _made_here if maker is None else maker
    for _ in range(_MAX_ATTEMPTS):
        publication = Publication(store, snapshot, checkpoint, plan, replaces=replaces)
        try:
            result = make(publication, memory_budget, progress)
        except PartsGoneError as error:
            # The build started after the concurrent drop, so its sidecar must exist: build all of it again.
            logger.warning("%s; building it again", error)
            continue
        sweep(store, snapshot)
        return msgspec.structs.replace(result, reason=reason)
    message = f"The sidecar in {FOLDER} is dropped faster than it can be built"
    hint = "find out what else removes sidecars of this table, and try again"
    raise ObjectChangedError(message, path=FOLDER, version=checkpoint.version, hint=hint)


def _to_replace(
    store: Store, snapshot: LogSnapshot, checkpoint: Checkpoint, *, force: bool
) -> tuple[str | None, str | None]:
    """Return the digest of a manifest to replace and the reason: a page of its parts is damaged."""
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


def existing(
    store: Store, snapshot: LogSnapshot, checkpoint: Checkpoint, *, thorough: bool = False
) -> BuildResult | None:
    """Return the existing sidecar; write its manifest if only that is missing or invalid.

    Only footers are read; ``thorough`` reads a whole file before writing a manifest for it.
    """
    manifest = load_manifest(store, snapshot, checkpoint)
    if manifest is not None:
        return result_of(manifest.index, len(manifest.parts), "already-valid")
    path = sidecar_path(checkpoint.version)
    try:
        part, footer = read_single(store, path)
        mirrored = check_single(footer, part, snapshot, checkpoint)
        prove(store, mirrored, [each.info for each in checkpoint.files])
        parts, index = footer.state.parts or (part,), footer.state.layout
        layout = whole_layout_of(store, parts, index)
        if thorough:
            for each in parts:
                check_part(store, each, layout)
        footers = [part_footer(store, each) for each in footer.state.parts] or [footer]
    except ObjectNotFoundError:
        return None
    except (SidecarError, StorageError) as error:
        logger.warning("%s is left alone: %s", path, error)
        return None
    if footer.state.schema_hash != schema_hash(snapshot):
        return None
    plan = plan_of(layout, snapshot.schema, None if layout == index else index)
    publication = Publication(store, snapshot, checkpoint, plan)
    groups = [pack_groups(each.row_groups()) for each in footers]
    try:
        return publication.put_manifest(list(zip(parts, groups, strict=True)), action="manifest-added")
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
        # Decode Parquet, sort and spill in parallel with the parsing of statistics, which takes longest.
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
        release_heap()
        # No read-ahead here: two threads are encoding parts, and another part is queued for them.
        for part in assemble(sort.sorted_tables(), plan.rows_in_part(memory_budget)):
            release_memory()  # each part is as large as everything in flight
            yield part


def _parsed(batch: FileBatch, *, wrong: Sequence[Column], plan: SidecarPlan) -> pa.RecordBatch:
    return to_rows(without_bounds(batch, wrong), plan.layout, plan.schema)


def _aside(source: Iterator[T]) -> contextlib.closing[ReadAhead[T]]:
    """Return a reader that produces the items on a thread, one ahead of the consumer."""
    return contextlib.closing(ReadAhead(source, depth=1, stop=lambda: None))


def assemble(tables: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """Split sorted rows into parts of ``size`` rows; the last part has the remainder.

    Rows are not copied: a part can be encoded from a few pieces.
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
    """Return splitters from a sample, for buckets of about ``bucket_rows`` rows; few files need none."""
    parts = list(reader.parts())
    if sum(part.info.size for part in parts) <= _FEW_BYTES:
        counts = [reader.row_counts(part) for part in parts]
        if all(counts) and sum(sum(each or ()) for each in counts) <= bucket_rows:
            return pa.nulls(0, pa.binary())
    layout = key_layout(plan.layout)
    wanted = tuple(each.path for each in layout.sort if each.role == ColumnRole.MIN)
    total, sample = 0, KeySample(_SAMPLED_KEYS, step=max(1, bucket_rows // _KEYS_A_BUCKET))
    # No other work runs now, so another thread can decode as well.
    reader = msgspec.structs.replace(reader, parallel=True)
    for batch in reader.files(StatsWanted(wanted) if wanted else None):
        total += len(batch)
        chosen = sample.chosen(len(batch))
        some = batch if chosen is None else batch.filter(chosen)
        sample.add(sortable(to_rows(some, layout, plan.schema), layout))
    return sample.splitters(-(-total // bucket_rows))
