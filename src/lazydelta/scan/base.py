"""The base of a scan: the interface to read the files at the checkpoint, and the checkpoint itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import msgspec
import numpy as np

from lazydelta.errors import ObjectChangedError
from lazydelta.log.checkpoint.columns import StatsWanted
from lazydelta.log.checkpoint.pages import MEMORY_BUDGET
from lazydelta.log.checkpoint.reader import (
    CURABLE,
    MAX_REPLACEMENTS,
    SIDECARS,
    CheckpointReader,
    current_checkpoint,
    current_sidecar,
    is_curable,
    too_often,
)
from lazydelta.log.commits import CHUNK_SIZE, Prefetch
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.keys import Hashes, RemoveSet, hash_keys
from lazydelta.log.segment import Checkpoint, LogSegment
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.log.tail_spans import FoundSpans, LogBase
from lazydelta.predicates import Predicate, partition_columns
from lazydelta.runtime.arrays import boolean_array, numpy_of
from lazydelta.runtime.metrics import ScanMetrics
from lazydelta.scan.request import NamedFiles
from lazydelta.storage import ObjectInfo, Store

if TYPE_CHECKING:
    import tempfile

__all__ = [
    "BasePlace",
    "BaseScan",
    "CheckpointBase",
    "EmittedKeys",
    "ScanBase",
    "ScanRange",
    "checkpoint_files",
    "checkpoint_places",
    "divided",
    "tail_bytes",
]


# ``EmittedKeys``: the files of the base already emitted, in case the checkpoint is replaced during the scan.
#
# A new checkpoint has the same files in another order, so only their keys tell which are left. The hashed keys are
# appended, to a file once there are many, and sorted only if needed: sixteen bytes per file on disk, bounded memory.


_IN_MEMORY = 1 << 20
_AT_ONCE = 1 << 16
_KEY_BYTES = 16


class EmittedKeys:
    """Keys recorded in order, and looked up after ``look_up``."""

    def __init__(self, key_memory: int = 64 << 20) -> None:
        self._key_memory = key_memory
        self._file: tempfile.SpooledTemporaryFile[bytes] | None = None
        self._known: RemoveSet | None = None
        self.unrecorded = 0

    def rest(self, batch: FileBatch, *, record: bool) -> FileBatch:
        """Return the files of a batch not emitted yet, and record them. With ``record`` False, only count them."""
        if not len(batch) or (self._known is None and not record):
            self.unrecorded += len(batch)
            return batch
        hashes = hash_keys(batch.path, batch.deletion_vector)
        if self._known is not None and (gone := self._known.contains(hashes)).any():
            batch, hashes = batch.filter(boolean_array(~gone)), hashes[:, ~gone]
        if record:
            self._write(hashes)
        else:
            self.unrecorded += len(batch)
        return batch

    def look_up(self) -> None:
        """Start to skip the files emitted so far."""
        if self._known is None:
            self._known = RemoveSet(self._key_memory)
        if self._file is None:
            return
        self._file.seek(0)
        while data := self._file.read(_AT_ONCE * _KEY_BYTES):
            # Written as pairs, key by key; the set needs the two halves separately.
            self._known.add_hashes(np.ascontiguousarray(np.frombuffer(data, np.uint64).reshape(-1, 2).T))
        self._file.close()
        self._file = None

    def close(self) -> None:
        """Free memory and temporary files."""
        if self._file is not None:
            self._file.close()
        if self._known is not None:
            self._known.close()
        self._file = self._known = None

    def _write(self, hashes: Hashes) -> None:
        if self._file is None:
            import tempfile  # noqa: PLC0415 - few scans get here

            self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed with the scan
        self._file.write(np.ascontiguousarray(hashes.T).tobytes())


# ``ScanRange``: a part of a scan for another worker, described without naming any file.
#
# A scan is divided before its files are read. A range is the tail, or row groups of a file of the base, optionally
# sliced. Only its path determines the slice of a file, not its order, tier or compaction. The ranges together hold each
# file exactly once.


_MOST_RANGES = 10_000
_BYTES_OF_AN_ADD = 500


class BasePlace(msgspec.Struct, frozen=True):
    """Row groups ``start`` to ``stop`` of a file that the base is read from, with ``files`` files.

    ``files_of_it`` filters files to those in this place, for a sidecar that is lost between planning and reading: the
    checkpoint has the same files in another order. A place in a checkpoint itself has none. ``leaf`` is where a sidecar
    with many files describes this one.
    """

    file: str
    start: int
    stop: int
    files: int
    files_of_it: Callable[[FileBatch], FileBatch] | None = None
    leaf: int = 0


class ScanRange(msgspec.Struct, frozen=True):
    """One of ``slices`` slices of the files in a place of the base, or of the tail if there is no place.

    A file larger than ``share_bytes`` is in several slices, one per ``share_bytes``, for callers that divide its rows
    among them. Workers of the other slices need not open it.
    """

    place: BasePlace | None = None
    number: int = 0
    slices: int = 1
    share_bytes: int | None = None

    def only(self, files: FileBatch) -> FileBatch:
        """Return only the files of this slice."""
        if self.slices == 1 or not len(files):
            return files
        marks = np.array([_mark(each) for each in files.path.to_pylist()], np.int64)
        # The index of this slice, counted from the first slice that contains the file.
        behind = (self.number - marks) % self.slices
        keep = behind == 0
        if self.share_bytes is not None:
            shares = -(-numpy_of(files.size) // self.share_bytes)
            keep |= behind < np.minimum(shares, self.slices)
        return files.filter(boolean_array(keep))

    def share_of(self, path: str, size: int) -> tuple[int, int] | None:
        """Return the share of a file that belongs to this slice, as number and count; None for the whole file."""
        if self.share_bytes is None:
            return None
        shares = min(-(-size // self.share_bytes), self.slices)
        return ((self.number - _mark(path)) % self.slices, shares) if shares > 1 else None


def divided(
    segment: LogSegment, places: Sequence[BasePlace], files_a_range: float, *, share_bytes: int | None = None
) -> list[ScanRange]:
    """Return the ranges of a scan: all places of its base and its tail, in slices of about this many files.

    A value below one makes several slices of each file; readers divide the file by ``share_bytes``.
    """
    tail = -(-tail_bytes(segment) // _BYTES_OF_AN_ADD)
    total = tail + sum(place.files for place in places)
    # Each range is a task with a few requests. More ranges than this do not help.
    wanted = max(files_a_range, total / _MOST_RANGES)
    found: list[ScanRange] = []
    for place, files in (*((place, place.files) for place in places), *([(None, tail)] if tail else [])):
        slices = max(1, ceil(files / wanted))
        whole = ScanRange(place, 0, slices, share_bytes if slices > 1 else None)
        found += [msgspec.structs.replace(whole, number=number) for number in range(slices)]
    return found


def tail_bytes(segment: LogSegment) -> int:
    """Return the total size of the tail's commits, as far as the listing has it."""
    return sum(max(1, file.info.size) for file in segment.tail())


def _mark(path: str) -> int:
    return crc32(path.encode("utf-8", "surrogatepass"))


class BaseScan(msgspec.Struct, frozen=True):
    """The parameters of reading a base: the projection, the order and the store.

    ``store`` counts requests and ends with the scan; ``snapshot.store`` outlives it. ``place`` is the part of the base
    to read, None for all of it. ``without_sidecar`` is the version of the newest checkpoint if an older one is read.
    """

    snapshot: LogSnapshot
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
    without_sidecar: int | None = None


_LISTING_BATCH_FACTOR = 2
_BYTES_OF_A_LINE = 500  # in a JSON checkpoint
STORAGE_ORDER = "as stored: a checkpoint is not sorted"


class ScanBase(LogBase, Protocol):
    """Where the files at the checkpoint come from; what the log reads of it is in `LogBase`."""

    def settled(self, store: Store, snapshot: LogSnapshot) -> LogSnapshot:
        """Return the snapshot, or its checkpoint's version on an older checkpoint that a scan is faster on."""

    def share(self, store: Store, snapshot: LogSnapshot, predicate: Predicate | None) -> float | None:
        """Return the share of the base left by a lower bound on its sort column; None if it is not known early."""

    def files(self, scan: BaseScan) -> Iterator[FileBatch]:
        """Yield the files at the checkpoint with the requested statistics. May skip files that cannot match."""

    def places(self, scan: BaseScan, files: int) -> list[BasePlace]:
        """Return the places that may hold a matching file, each of about this many files or one large group."""


class CheckpointBase:
    """The checkpoint itself, and the commits themselves."""

    def state_paths(self, store: Store, version: int) -> Sequence[str]:
        """Return nothing: a checkpoint that is listed is read next."""
        del store, version
        return ()

    def begin_state(self, store: Store, checkpoint: Checkpoint, prefetch: Prefetch) -> None:
        """Return None: nothing mirrors the checkpoint."""
        del store, checkpoint, prefetch

    def prefetch_spans(self, store: Store, segment: LogSegment, prefetch: Prefetch) -> None:
        """Prefetch nothing."""
        del store, segment, prefetch

    def find_spans(self, store: Store, segment: LogSegment, prefetch: Prefetch) -> FoundSpans:
        """Return no spans."""
        del store, segment, prefetch
        return FoundSpans()

    def settled(self, store: Store, snapshot: LogSnapshot) -> LogSnapshot:
        """Return the snapshot as it is."""
        del store
        return snapshot

    def share(self, store: Store, snapshot: LogSnapshot, predicate: Predicate | None) -> float | None:
        """Return None: a checkpoint is not sorted."""
        del store, snapshot, predicate
        return None

    def files(self, scan: BaseScan) -> Iterator[FileBatch]:
        """Yield the files in storage order."""
        return checkpoint_files(scan)

    def places(self, scan: BaseScan, files: int) -> list[BasePlace]:
        """Return the row groups."""
        return checkpoint_places(scan, files)


def checkpoint_files(scan: BaseScan) -> Iterator[FileBatch]:
    """Yield the files of the checkpoint in storage order, and of one that replaces it, each file once."""
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
                    # Its replacement has other row groups, and other workers may have read theirs.
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
    # Listing without statistics is so cheap per row that the cost per batch matters: use larger batches in forward
    # scans.
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
    """Return adjacent row groups of the checkpoint's files, with about this many rows, from the footers alone.

    A checkpoint is not sorted and has no statistics of its row groups, so none is skipped.
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
    # If an open input pins its object, a checkpoint of one file cannot change once its first file is emitted, because
    # all inputs are open by then. So its keys, which take as long as decoding from a fast disk, are not needed. All
    # parts are listed first: looking up the sidecars at the end would open the file again.
    pins = reader.store.pins_what_is_open and len(reader.checkpoint.files) == 1
    for number, part in enumerate(list(reader.parts()) if pins else reader.parts()):
        pinned = pins and number == 0
        for batch in reader.files_of(part, wanted):
            rest = emitted.rest(batch, record=not pinned or part.is_json)
            if len(rest):
                yield rest
    # A long JSON file is streamed without an etag, once for its files and once for its sidecars.
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
    message = f"The checkpoint changed in the middle of a scan, and which files remain is unknown: {error}"
    return ObjectChangedError(message, hint="scan again")
