"""Stream checkpoints, classic and V2, within row groups and with projection.

Some writers put a whole checkpoint into a single row group, so reading one row group at a time bounds nothing. Batches
are decoded page by page from small, fixed buffers.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import accumulate
from threading import Lock
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import (
    AccessDeniedError,
    CorruptLogError,
    LazyDeltaError,
    MissingCommitError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    StorageTimeoutError,
)
from lazydelta.log.checkpoint.columns import (
    TIER,
    CheckpointFile,
    StatsWanted,
    add_fields,
    coded_partitions,
    core_columns,
    corrupt_if_unreadable,
    file_batch,
    has_column,
    joined,
    read_batches,
    stats_columns,
    stats_of,
)
from lazydelta.log.checkpoint.pages import MEMORY_BUDGET, BoundedBatches, Watches
from lazydelta.log.commits import read_actions
from lazydelta.log.file_batch import FileBatch, StatsColumns, with_deferred_stats
from lazydelta.log.segment import Checkpoint, LogSegment, checkpoints_from
from lazydelta.protocol.actions import DomainMetadata, LogLine, Metadata, Protocol, SidecarFile, Txn
from lazydelta.protocol.file_names import LOG, FileKind, LogFile
from lazydelta.runtime import compute as pc
from lazydelta.runtime.threads import ReadAhead, check_complete
from lazydelta.storage import ObjectInfo, Store

__all__ = [
    "CURABLE",
    "MAX_REPLACEMENTS",
    "SIDECARS",
    "CheckpointReader",
    "CheckpointResult",
    "StatsWanted",
    "Unit",
    "checkpoint_actions",
    "current_checkpoint",
    "current_sidecar",
    "is_curable",
    "too_often",
    "units_of",
]


# ``StatsCursor``: deferred statistics of a checkpoint file, read in order for the batches that need them.


class StatsCursor:
    """Serves the statistics of one checkpoint file.

    ``read`` reopens the file and yields its rows with only the statistics. The cursor moves forward with the requested
    batches. A consumer that requests all of them costs one more pass over the statistics, and one that requests none
    costs nothing.
    """

    def __init__(self, part: LogFile, read: Callable[[], Iterator[pa.StructArray]]) -> None:
        self._part = part
        self._open = read
        self._cursor: Iterator[pa.StructArray] | None = None
        self._held: list[tuple[int, pa.Array]] = []
        self._next_row = 0
        self._lock = Lock()

    def attach(self, files: FileBatch, first_row: int, adds: pa.StructArray) -> FileBatch:
        """Return the batch with deferred statistics; ``adds`` are the rows of the file that it was built from."""
        live = pc.is_valid(adds) if adds.null_count else None
        count = len(adds)

        def read() -> StatsColumns:
            with self._lock:
                found = self._read(first_row, count)
            return stats_of(found if live is None else pc.filter(found, live))

        return with_deferred_stats(files, read)

    def _read(self, first_row: int, count: int) -> pa.Array:
        start = self._held[0][0] if self._held else self._next_row
        if self._cursor is None or first_row < start:
            self._cursor = self._open()
            self._held, self._next_row = [], 0
        while self._next_row < first_row + count:
            adds = next(self._cursor, None)
            if adds is None:
                message = f"{self._part.path} changed while it was read"
                raise CorruptLogError(message, path=self._part.path, version=self._part.version)
            self._held.append((self._next_row, adds))
            self._next_row += len(adds)
            self._held = [(row, adds) for row, adds in self._held if row + len(adds) > first_row]
        pieces = [
            adds.slice(max(0, first_row - row), min(row + len(adds), first_row + count) - max(row, first_row))
            for row, adds in self._held
            if row < first_row + count
        ]
        if any(piece.type != pieces[0].type for piece in pieces):
            return pa.nulls(count, pa.struct([]))  # some did not fit into memory: this batch has none
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


BATCH_SIZE = 8192
_BUFFER = 1 << 20
_READ_WHOLE = 256 << 10
_PATH = "add.path"
SIDECARS = f"{LOG}/_sidecars"

_ACTIONS: dict[str, type[msgspec.Struct]] = {
    "protocol": Protocol,
    "metaData": Metadata,
    "txn": Txn,
    "domainMetadata": DomainMetadata,
    "sidecar": SidecarFile,
}
# A field that every action of the kind has. Sidecars name further files, so they are read whatever the statistics say.
_PRESENT = {
    "protocol": "protocol.minReaderVersion",
    "metaData": "metaData.id",
    "txn": "txn.appId",
    "domainMetadata": "domainMetadata.domain",
}
_FIELDS = {
    "protocol": "protocol",
    "metaData": "meta_data",
    "txn": "txn",
    "domainMetadata": "domain_metadata",
    "sidecar": "sidecar",
}


class CheckpointReader(msgspec.Struct, frozen=True):
    """Reads one complete checkpoint.

    ``stats_store`` reads statistics that are requested after the scan, when ``store`` may be closed. ``row_groups`` is
    called with the number of row groups started. ``parallel`` decodes columns in parallel if that pays off. ``coded``
    keeps partition values dictionary-encoded where the file has them so, for callers that compare them. Statistics that
    exceed ``memory_budget`` are left out, and ``without_stats`` is called with the number of files and the reason; with
    ``needs_stats`` they are an error. ``sidecars`` holds the current object info of sidecars that differ from the
    checkpoint's description. ``groups`` are the row groups to read, None for all; it is meant for reading a single
    part.

    A file is read as the object that was listed. If it was replaced, an ``ObjectChangedError`` is raised where the
    store has etags, and the result is never a mixture of both.
    """

    store: Store
    checkpoint: Checkpoint
    batch_size: int = BATCH_SIZE
    stats_store: Store | None = None
    row_groups: Callable[[int], None] | None = None
    parallel: bool = False
    coded: bool = False
    memory_budget: int = MEMORY_BUDGET
    needs_stats: bool = False
    without_stats: Callable[[int, str], None] | None = None
    sidecars: Mapping[str, ObjectInfo] = msgspec.field(default_factory=dict)
    groups: range | None = None

    def actions(self, *names: str) -> Iterator[LogLine]:
        """Yield the actions of the given kinds (``protocol``, ``metaData``, …) that are not files."""
        for file in self.checkpoint.files:
            if file.is_json:
                wanted = {_FIELDS[name] for name in names}
                for lines in read_actions(self.store, file):
                    yield from (line for line in lines if any(line.has(name) for name in wanted))
            else:
                with self.open(file) as parquet:
                    yield from _parquet_actions(parquet, file, [name for name in names if has_column(parquet, name)])

    def files(self, stats: StatsWanted | None = None) -> Generator[FileBatch]:
        """Yield the files of the checkpoint in storage order; statistics are read only if requested."""
        for part in self.parts():
            yield from self.files_of(part, stats)

    def files_of(self, part: LogFile, stats: StatsWanted | None = None) -> Iterator[FileBatch]:
        """Yield the files of one part, as ``files`` does for all."""
        return self._json_files(part, stats) if part.is_json else self._parquet_files(part, stats)

    def row_counts(self, part: LogFile) -> list[int] | None:
        """Return the number of rows of each row group of a part, from its footer; None for a JSON part."""
        if part.is_json:
            return None
        with self.open(part) as parquet:
            footer = parquet.metadata
            return [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]

    def parts(self) -> Iterator[LogFile]:
        """Yield the files that hold file actions: the checkpoint's own, then the sidecars that it names."""
        yield from self.checkpoint.files
        if len(self.checkpoint.files) > 1:
            return  # only V1 checkpoints have several parts, and those have no sidecars
        for line in self.actions("sidecar"):
            if line.sidecar is not None:
                yield self._sidecar(line.sidecar)

    def _sidecar(self, sidecar: SidecarFile) -> LogFile:
        # The protocol keeps sidecars in their folder and lets writers log the bare name; any other path is rejected.
        owner = self.checkpoint.files[0]
        folder, _, name = unquote(sidecar.path).rpartition("/")
        at_home = not folder or f"/{folder}".endswith(f"/{SIDECARS}")
        if not at_home or not name.endswith(".parquet") or "\0" in name or "/../" in sidecar.path:
            message = f"{owner.path} names a sidecar {sidecar.path!r}, which is not a Parquet file in {SIDECARS}"
            raise CorruptLogError(message, path=owner.path, version=owner.version)
        path = f"{SIDECARS}/{name}"
        info = self.sidecars.get(path) or ObjectInfo(path, sidecar.size_in_bytes, sidecar.modification_time, None)
        return LogFile(FileKind.CHECKPOINT, owner.version, info, owner.version)

    def _json_files(self, part: LogFile, stats: StatsWanted | None) -> Iterator[FileBatch]:
        for lines in read_actions(self.store, part):
            adds = [line.add for line in lines if line.add is not None]
            if adds:
                yield FileBatch.from_adds(adds, tier=TIER, extra=stats is not None and stats.extra)

    def _parquet_files(self, part: LogFile, stats: StatsWanted | None) -> Iterator[FileBatch]:
        with self.open(part) as parquet:
            if not has_column(parquet, "add"):
                return
            available = add_fields(parquet, part)
            columns = core_columns(parquet, available) + stats_columns(stats, available)
            later = self._deferred_stats(part, available) if stats is None else None
            codes = coded_partitions(parquet) if self.coded else []
            row, begun = 0, _RowGroups(parquet, self.groups)
            reasons: list[str] = []
            # Parsing JSON statistics takes longer than decoding: another thread would gain nothing.
            read = self._side_by_side if self.parallel and "add.stats" not in columns else self._rows
            rows = read(part, parquet.metadata, columns, codes, reasons.append)
            with closing(rows):
                for adds in rows:
                    if self.row_groups is not None:
                        self.row_groups(begun.upto(row + len(adds)))
                    files = file_batch(adds, part, coded=bool(codes))
                    if reasons and self.without_stats is not None and not _has_stats(adds):
                        self.without_stats(len(files), reasons[-1])
                    if len(files):
                        yield files if later is None else later.attach(files, row, adds)
                    row += len(adds)
            check_complete(f"rows of {part.path}", promised=begun.rows, delivered=row)

    def _rows(
        self,
        part: LogFile,
        metadata: pq.FileMetaData,
        columns: Sequence[str],
        codes: Sequence[str] = (),
        passed_by: Callable[[str], None] | None = None,
    ) -> Generator[pa.StructArray]:
        batches = BoundedBatches(
            lambda watch: self.open(part, metadata, codes, watch),
            part,
            metadata,
            columns,
            self.batch_size,
            memory_budget=self.memory_budget,
            needs_stats=self.needs_stats,
            by_group=bool(codes),
            groups=self.groups,
            passed_by=passed_by,
        )
        with closing(iter(batches)) as found:
            for batch in found:
                yield batch.column("add")

    def _side_by_side(
        self,
        part: LogFile,
        metadata: pq.FileMetaData,
        columns: Sequence[str],
        codes: Sequence[str],
        passed_by: Callable[[str], None],
    ) -> Generator[pa.StructArray]:
        """Decode paths, which take half of the time, in this thread and the other columns in another one."""
        others = self._rows(part, metadata, [name for name in columns if name != _PATH], codes, passed_by)
        with (
            closing(ReadAhead(others, depth=1, stop=_nothing)) as rest,
            closing(self._rows(part, metadata, [_PATH], codes)) as rows,
        ):
            more: pa.StructArray | None = None
            for some in rows:
                paths = some
                while len(paths):
                    # Each side bounds its batches by the size of its own columns.
                    more = next(rest, None) if more is None or not len(more) else more
                    count = len(paths) if more is None else min(len(paths), len(more))
                    yield joined(paths.slice(0, count), None if more is None else more.slice(0, count), part)
                    paths, more = paths.slice(count), None if more is None else more.slice(count)

    def _deferred_stats(self, part: LogFile, available: dict[str, pa.DataType]) -> StatsCursor | None:
        columns = stats_columns(StatsWanted(), available)
        if not columns:
            return None
        reader = msgspec.structs.replace(self, store=self.stats_store or self.store)

        def read() -> Iterator[pa.StructArray]:
            with reader.open(part) as parquet:
                metadata = parquet.metadata
            yield from reader._rows(part, metadata, columns)  # noqa: SLF001 - same class, with another store

        return StatsCursor(part, read)

    @contextmanager
    def open(
        self,
        file: LogFile,
        metadata: pq.FileMetaData | None = None,
        codes: Sequence[str] = (),
        watch: Watches | None = None,
    ) -> Iterator[CheckpointFile]:
        """Open a Parquet file of the checkpoint. All reads go through here, so that all of them see the same values."""
        size = file.info.size
        with corrupt_if_unreadable(file):
            if size <= 0:
                size = self.store.head(file.path).size
            data = None
            if size <= _READ_WHOLE and self.store.reads_directly:
                # The decoder makes a dozen small reads, each of which takes longer than this one.
                data = self.store.get(file.path, length=size + 1, if_match=file.info.etag)
            if data is not None and len(data) == size:
                source = pa.BufferReader(data)
            else:
                source = self.store.open_input(file.path, size=size, if_match=file.info.etag, read_ahead=_BUFFER)
            if watch is not None:
                source = watch.over(source, size, file.path)
            try:
                yield CheckpointFile(source, metadata, codes, _BUFFER)
            finally:
                source.close()


def _has_stats(adds: pa.StructArray) -> bool:
    return any(adds.type.get_field_index(name) >= 0 for name in ("stats", "stats_parsed"))


class _RowGroups:
    """Counts the row groups that are started when rows are read in order."""

    def __init__(self, parquet: CheckpointFile, groups: range | None = None) -> None:
        chosen = range(parquet.metadata.num_row_groups) if groups is None else groups
        sizes = [parquet.metadata.row_group(index).num_rows for index in chosen]
        *self._starts, self.rows = [0, *accumulate(sizes)]
        self._begun = 0

    def upto(self, row: int) -> int:
        before = self._begun
        self._begun = bisect_left(self._starts, row)
        return self._begun - before


def _parquet_actions(parquet: CheckpointFile, file: LogFile, names: Sequence[str]) -> Iterator[LogLine]:
    with corrupt_if_unreadable(file):
        groups, left = _groups_with(parquet.metadata, names)
    if not groups:
        return
    for batch in read_batches(parquet, file, names, BATCH_SIZE, groups):
        for name in names:
            column = batch.column(name)
            if column.null_count == len(column):
                continue
            if not pa.types.is_struct(column.type):
                message = f"{file.path} has a column {name!r} of type {column.type}, which is not a struct"
                raise CorruptLogError(message, path=file.path, version=file.version)
            with corrupt_if_unreadable(file):
                rows = pc.filter(column, pc.is_valid(column)).to_pylist(maps_as_pydicts="strict")
                actions = [msgspec.convert(_without_nulls(row), _ACTIONS[name], strict=True) for row in rows]
            left -= len(actions)
            for action in actions:
                yield _line(name, action)
        if left <= 0:
            return  # some writers use one row group for everything, with ten million files behind these few rows


def _groups_with(metadata: pq.FileMetaData, names: Sequence[str]) -> tuple[list[int], float]:
    """Return the row groups that may hold these actions, and their number, infinite if unknown.

    Nearly all row groups of a large checkpoint hold only files.
    """
    if not names or not metadata.num_row_groups:
        return [], 0
    wanted = {_PRESENT.get(name) for name in names}
    # The schema is not used: it and the metadata reference each other, and a footer of megabytes would stay until the
    # garbage collector runs.
    first = metadata.row_group(0)
    columns = [index for index in range(metadata.num_columns) if first.column(index).path_in_schema in wanted]
    if len(columns) < len(names):
        return list(range(metadata.num_row_groups)), math.inf
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    present = [sum(_present(group, index) for index in columns) for group in groups]
    return [number for number, count in enumerate(present) if count], sum(present)


def _present(group: pq.RowGroupMetaData, column: int) -> float:
    """Return how many rows of a row group have a value in this column."""
    chunk = group.column(column)
    known = chunk.is_stats_set and chunk.statistics.has_null_count
    count = group.num_rows - chunk.statistics.null_count if known else -1
    return count if 0 <= count <= group.num_rows else math.inf


def _nothing() -> None:
    """Do nothing: closing the file is enough to stop."""


def _line(name: str, action: msgspec.Struct) -> LogLine:
    # Protocol and metadata are passed on as raw JSON (see ``LogLine``); here they are known to decode.
    is_raw = name in {"protocol", "metaData"}
    fields: dict[str, Any] = {_FIELDS[name]: msgspec.Raw(msgspec.json.encode(action)) if is_raw else action}
    return LogLine(**fields)


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    # Parquet writes null where JSON omits a field, for instance `domainMetadata.removed`.
    return {key: value for key, value in row.items() if value is not None}


# Checkpoints that were replaced after they were listed.


logger = logging.getLogger(__name__)

CURABLE = (CorruptLogError, MissingCommitError, StorageError)
"""The errors that reading a replaced checkpoint may raise; ``is_curable`` is more precise."""
MAX_REPLACEMENTS = 5


def is_curable(error: Exception) -> bool:
    """Return whether an error may be caused by a checkpoint that was replaced since it was listed."""
    return isinstance(error, CURABLE) and not isinstance(error, AccessDeniedError | StorageTimeoutError)


def current_checkpoint(store: Store, segment: LogSegment, known: Checkpoint, error: LazyDeltaError) -> Checkpoint:
    """List again, and return a replacement for a checkpoint that could not be read; else raise ``error``.

    deltalake, for one, overwrites a checkpoint of the same version, with the same files in another order and another
    size. A pinned table knows the old one by size and etag and fails to read it. The new one is equally good, and so is
    any newer one up to the pinned version, because the tail masks the overlap. Only an unreadable checkpoint that has
    not changed is corrupt. If commits were replaced it is another log, and nothing may be mixed with what is already
    known.
    """
    try:
        commits, found = checkpoints_from(store, known.version, segment.version)
    except LazyDeltaError:
        raise error from None
    _check_commits(segment, commits)
    same = next((each for each in found if each.version == known.version), None)
    newer = next((each for each in found if each.version > known.version), None)
    if same is not None and not _is_untouched(known, same):
        chosen = same
    elif newer is not None:
        chosen = newer
    elif same is not None and isinstance(error, ObjectChangedError) and any(each.info.etag for each in known.files):
        # Nothing changed although the store says so: its etags (weak ones, for instance) cannot be used as conditions.
        return _without_etags(same)
    else:
        raise error
    logger.warning("the checkpoint %d was replaced; going on with %s", known.version, chosen.files[0].path)
    return chosen


def current_sidecar(store: Store, path: str, known: ObjectInfo | None) -> ObjectInfo | None:
    """Return the current object info of a V2 checkpoint's sidecar; None if it is missing or unchanged."""
    try:
        found = store.head(path)
    except ObjectNotFoundError:
        return None
    return None if found == known else found


def _is_untouched(known: Checkpoint, found: Checkpoint) -> bool:
    if len(known.files) != len(found.files):
        return False
    pairs = zip((each.info for each in known.files), (each.info for each in found.files), strict=True)
    return all(before in (now, msgspec.structs.replace(now, etag=None)) for before, now in pairs)


def _without_etags(checkpoint: Checkpoint) -> Checkpoint:
    files = tuple(
        msgspec.structs.replace(file, info=msgspec.structs.replace(file.info, etag=None)) for file in checkpoint.files
    )
    return Checkpoint(checkpoint.version, files)


def checkpoint_actions(store: Store, segment: LogSegment, *names: str) -> Iterator[LogLine]:
    """Yield the checkpoint's actions that are not files; some may repeat if it is replaced meanwhile."""
    checkpoint = segment.checkpoint
    for _ in range(MAX_REPLACEMENTS):
        if checkpoint is None:
            return
        try:
            yield from CheckpointReader(store, checkpoint).actions(*names)
        except CURABLE as error:
            if not is_curable(error):
                raise
            checkpoint = current_checkpoint(store, segment, checkpoint, error)
        else:
            return
    raise too_often(segment)


def too_often(segment: LogSegment) -> ObjectChangedError:
    """Return the error for a checkpoint that changes whenever it is read."""
    message = f"The checkpoint {segment.base_version} is replaced faster than it can be read"
    hint = "find out which writer keeps rewriting checkpoints of this table, and try again later"
    return ObjectChangedError(message, version=segment.base_version, hint=hint)


def _check_commits(segment: LogSegment, listed: dict[int, LogFile]) -> None:
    known = [*segment.commits, *([] if segment.checkpoint_commit is None else [segment.checkpoint_commit])]
    for commit in known:
        now = listed.get(commit.version)
        if now is None or commit.kind is not FileKind.COMMIT or now.info == commit.info:
            continue
        message = f"{commit.path} was replaced since the table was opened: the log is a different one"
        raise MissingCommitError(message, path=commit.path, version=commit.version, hint="open the table again")


# A checkpoint divided into units that tasks read in parallel: row groups of one of its files each.


class Unit(msgspec.Struct, frozen=True):
    """Some row groups of a checkpoint file, or all of it if ``groups`` is None."""

    part: LogFile
    groups: range | None = None


def units_of(reader: CheckpointReader, rows: int) -> list[Unit]:
    """Divide a checkpoint into units of about this many rows; a row group is never split."""
    found = []
    for part in reader.parts():
        counts = reader.row_counts(part)
        if counts is None:
            found.append(Unit(part))
            continue
        start = held = 0
        for number, count in enumerate(counts):
            held += count
            if held >= rows or number + 1 == len(counts):
                found.append(Unit(part, range(start, number + 1)))
                start, held = number + 1, 0
    return found


# ``CheckpointResult``: a checkpoint that was written or found, with the fields of the hint.


class CheckpointResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a checkpoint; ``action`` is written or already-there.

    ``size`` counts actions and ``num_of_add_files`` files; they are None for an existing checkpoint that would have to
    be read. ``parts`` is set for an existing multi-part checkpoint, and ``is_v1`` is false for other kinds.
    """

    action: str
    version: int
    path: str
    size_in_bytes: int
    size: int | None = None
    num_of_add_files: int | None = None
    parts: int | None = None
    is_v1: bool = True
