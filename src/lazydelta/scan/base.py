"""Where the files at the checkpoint are read from: the contract, and the checkpoint itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from lazydelta.errors import ObjectChangedError
from lazydelta.log.checkpoint.bounded_batches import MEMORY_BUDGET
from lazydelta.log.checkpoint.checkpoint_columns import StatsWanted
from lazydelta.log.checkpoint.checkpoint_reader import SIDECARS, CheckpointReader
from lazydelta.log.commits import CHUNK_SIZE
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.replaced import CURABLE, MAX_REPLACEMENTS, current_checkpoint, current_sidecar, is_curable, too_often
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.metrics import ScanMetrics
from lazydelta.pruning import Predicate, partition_columns
from lazydelta.scan.emitted import EmittedKeys
from lazydelta.scan.named_files import NamedFiles
from lazydelta.scan.scan_range import BasePlace
from lazydelta.storage import ObjectInfo, Store

__all__ = ["BaseScan", "OpenBase", "PlacesOfBase", "ShareOfBase", "checkpoint_files", "checkpoint_places"]


class BaseScan(msgspec.Struct, frozen=True):
    """What a base needs to know of the scan: what to read, in which order, through which store.

    ``store`` counts and ends with the scan; ``snapshot.store`` outlives it. ``place`` is the one part of the base that
    is meant, None the whole of it.
    """

    snapshot: Snapshot
    store: Store
    predicate: Predicate | None
    wanted: StatsWanted | None
    newest_first: bool
    batch_size: int
    metrics: ScanMetrics
    limited: bool = False
    memory_budget: int = MEMORY_BUDGET
    named: NamedFiles | None = None
    place: BasePlace | None = None


_LISTING_BATCH_FACTOR = 2
_BYTES_OF_A_LINE = 500  # in a checkpoint of JSON
STORAGE_ORDER = "as stored: a checkpoint is not sorted"

OpenBase = Callable[[BaseScan], Iterator[FileBatch]]
"""Yields the files at the checkpoint, with the statistics wanted; files that cannot match may be left out."""
ShareOfBase = Callable[[Store, Snapshot, Predicate | None], float | None]
"""Returns which share of the base a lower bound on what it is sorted by leaves, None where that is not known early."""
PlacesOfBase = Callable[[BaseScan, int], list[BasePlace]]
"""Returns the places of the base that may hold a matching file, of about so many files each, but for large groups."""


def checkpoint_files(scan: BaseScan) -> Iterator[FileBatch]:
    """Yield the files of the checkpoint in storage order, and of the one that replaces it, each file once."""
    checkpoint = scan.snapshot.segment.checkpoint
    if checkpoint is None:
        return
    scan.metrics.tier = 3
    scan.metrics.base_order = STORAGE_ORDER
    segment = scan.snapshot.segment
    sidecars: dict[str, ObjectInfo] = {}
    emitted = EmittedKeys()
    try:
        for _ in range(MAX_REPLACEMENTS + 1):
            reader = _reader(scan, checkpoint, sidecars)
            try:
                if scan.place is None:
                    yield from _rest(reader, emitted, scan.wanted)
                else:
                    yield from _placed(reader, scan.place, scan.wanted)
            except CURABLE as error:
                if not is_curable(error):
                    raise
                if scan.place is not None:
                    # What replaced it has other row groups, and other workers may have read theirs.
                    raise _lost_place(scan.place) from error
                path = error.path or ""
                moved = current_sidecar(scan.store, path, sidecars.get(path)) if path.startswith(SIDECARS) else None
                if moved is not None:
                    sidecars[path] = moved
                else:
                    checkpoint = current_checkpoint(scan.store, segment, checkpoint, error)
                if emitted.unrecorded:
                    raise _unknown_rest(error) from error
                scan.metrics.checkpoints_replaced += 1
                emitted.look_up()
            else:
                return
        raise too_often(segment)
    finally:
        emitted.close()


def _reader(scan: BaseScan, checkpoint: Checkpoint, sidecars: Mapping[str, ObjectInfo]) -> CheckpointReader:
    # Listing without statistics is cheap enough a row that the cost of a batch shows: larger ones then, in forward.
    factor = 1 if scan.newest_first or scan.wanted is not None else _LISTING_BATCH_FACTOR
    return CheckpointReader(
        scan.store,
        checkpoint,
        batch_size=scan.batch_size * factor,
        stats_store=scan.snapshot.store,
        row_groups=scan.metrics.count_row_groups,
        parallel=not scan.newest_first,
        coded=bool(partition_columns(scan.predicate)),
        memory_budget=scan.memory_budget,
        without_stats=scan.metrics.count_without_stats,
        sidecars=dict(sidecars),
        groups=None if scan.place is None else range(scan.place.start, scan.place.stop),
    )


def checkpoint_places(scan: BaseScan, files: int) -> list[BasePlace]:
    """Return row groups of the checkpoint's files that lie together and have about so many rows, by the footers alone.

    A checkpoint is not sorted and says nothing of its row groups, so that none of them is left out.
    """
    checkpoint = scan.snapshot.segment.checkpoint
    if checkpoint is None:
        return []
    reader = _reader(scan, checkpoint, {})
    found: list[BasePlace] = []
    for part in reader.parts():
        counts = reader.row_counts(part)
        if counts is None:
            found.append(BasePlace(part.path, 0, 1, max(1, part.info.size // _BYTES_OF_A_LINE)))
            continue
        start = held = 0
        for index, count in enumerate(counts):
            held += count
            if held >= files or index == len(counts) - 1:
                if held:
                    found.append(BasePlace(part.path, start, index + 1, held))
                start, held = index + 1, 0
    return found


def _rest(reader: CheckpointReader, emitted: EmittedKeys, wanted: StatsWanted | None) -> Iterator[FileBatch]:
    # Where an open input pins its object, a checkpoint of one file cannot change any more once its first file has left:
    # all inputs are open by then. So its keys, which take as long as decoding from a fast disk, need not be made. Asked
    # for its sidecars at the end, it would be opened again.
    pins = reader.store.pins_what_is_open and len(reader.checkpoint.files) == 1
    for number, part in enumerate(list(reader.parts()) if pins else reader.parts()):
        pinned = pins and number == 0
        for batch in reader.files_of(part, wanted):
            rest = emitted.rest(batch, record=not pinned or part.is_json)
            if len(rest):
                yield rest
    # A long JSON file is streamed without saying which object is meant, once for its files and once for its sidecars.
    for file in reader.checkpoint.files:
        if file.is_json and file.info.size > CHUNK_SIZE and reader.store.head(file.path) != file.info:
            message = f"{file.path} was replaced while it was read"
            raise ObjectChangedError(message, path=file.path, version=file.version, hint="scan again")


def _placed(reader: CheckpointReader, place: BasePlace, wanted: StatsWanted | None) -> Iterator[FileBatch]:
    for part in reader.parts():
        if part.path == place.file:
            yield from reader.files_of(part, wanted)
            return
    raise _lost_place(place)


def _lost_place(place: BasePlace) -> ObjectChangedError:
    message = f"{place.file} was replaced after the scan had been divided by its row groups"
    return ObjectChangedError(message, path=place.file, hint="scan again")


def _unknown_rest(error: Exception) -> ObjectChangedError:
    message = f"The checkpoint changed in the middle of a scan, and which files are still to come is not known: {error}"
    return ObjectChangedError(message, hint="scan again")
