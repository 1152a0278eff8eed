"""`SpreadCheckpoint`: a multi-part V1 checkpoint, written by many tasks in parallel.

The job is serializable data. The previous checkpoint is split into units of row groups. The task of a unit writes the
rows that the tail does not supersede as one part, so no rows are sent between processes. A checkpoint of ``n`` parts
becomes valid when all parts exist. The driver holds back the second part, with the files of the tail, until every task
has finished. Tasks therefore never make the checkpoint visible, and a failed job never leaves a complete one.

The protocol fixes the part names, so two jobs must not use the same number of parts. The first part is small and is
written with put-if-absent, which reserves that number. A competing job adds an empty part to get another number. If a
job is abandoned, its first part stays for a day, because its tasks may still be running. All attempts at a part write
the same rows, and the first one is kept.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import LazyDeltaError, ObjectExistsError, WriteError
from lazydelta.log.checkpoint.columns import corrupt_if_unreadable
from lazydelta.log.checkpoint.reader import (
    CURABLE,
    MAX_REPLACEMENTS,
    CheckpointReader,
    CheckpointResult,
    Unit,
    too_often,
    units_of,
)
from lazydelta.log.checksum.writer import start_checksums
from lazydelta.log.file_batch import DELETION_VECTOR
from lazydelta.log.keys import Hashes, RemoveSet
from lazydelta.log.segment import Checkpoint, checkpoints_from, list_from
from lazydelta.log.snapshot import LogSnapshot, open_snapshot
from lazydelta.protocol.features import check_copyable
from lazydelta.protocol.file_names import LOG, FileKind, LogFile
from lazydelta.protocol.schema import Column
from lazydelta.scan.timestamp_check import false_timestamps
from lazydelta.storage import Store
from lazydelta.storage.staged_files import delete_paths
from lazydelta.write.checkpoint.rows import AlreadyThereError, CheckpointFile, CheckpointLayout
from lazydelta.write.checkpoint.state import CheckpointState, ReconciledRows
from lazydelta.write.checkpoint.writer import MEMORY_BUDGET, Progress, existing, state_of, write_checkpoint

__all__ = ["PartCarrier", "PartWritten", "SpreadCheckpoint", "preview", "write_checkpoint_in_parts"]


# The keys of the tail as sent to tasks: packed paths and deletion vectors.
#
# Hashes cannot be sent, because each process seeds them differently.


class NotedKeys(RemoveSet):
    """A set of keys that also keeps the original keys, in ``sent``."""

    def __init__(self, memory_limit: int = 64 << 20) -> None:
        super().__init__(memory_limit)
        self.sent: list[bytes] = []

    def add(self, path: pa.Array, deletion_vector: pa.Array | None = None, hashes: Hashes | None = None) -> Hashes:
        """Insert the keys of files, and record them."""
        if len(path):
            vectors = pa.nulls(len(path), DELETION_VECTOR) if deletion_vector is None else deletion_vector
            self.sent.append(_packed(pa.RecordBatch.from_arrays([path, vectors], names=["path", "vector"])))
        return super().add(path, deletion_vector, hashes)


def keys_of(sent: Iterable[bytes]) -> RemoveSet:
    """Return the set of keys recorded in another process."""
    found = RemoveSet()
    for each in sent:
        with pa.ipc.open_stream(each) as reader:
            rows = reader.read_next_batch()
        found.add(rows.column(0), rows.column(1))
    return found


def _packed(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


_log = logging.getLogger(__name__)

UNIT_ROWS = 500_000
"""Approximate number of files per part: about a hundred megabytes, which a task writes in seconds."""
_NOTE = "lazydelta.checkpoint"
_TABLE, _TAIL, _FIRST_UNIT = 1, 2, 3
_GROUP_SHARE = 6
_IN_MEMORY = 32 << 20
_TRIES = 20
_GRACE_MS = 24 * 3_600_000


class PartWritten(msgspec.Struct, frozen=True):
    """Result of a task: total rows, active files and their size in bytes, and the size of the part."""

    part: int
    rows: int
    num_adds: int
    size_of_adds: int
    size: int


@dataclass(frozen=True, slots=True)
class SpreadCheckpoint:
    """The checkpoint job as seen by a task.

    ``keys`` are the keys of the tail. ``wrong`` are columns with incorrect typed bounds. ``name`` identifies the job
    and its parts. Tombstones newer than ``removed_after`` are kept.
    """

    store: Store
    version: int
    base: Checkpoint
    layout: CheckpointLayout
    removed_after: int
    wrong: tuple[Column, ...]
    keys: tuple[bytes, ...]
    parts: int
    name: str
    batch_rows: int
    memory_budget: int

    def write(self, part: int, unit: Unit) -> PartWritten:
        """Write the remaining rows of a unit, unless an earlier attempt did."""
        reader = CheckpointReader(
            self.store,
            self.base,
            batch_size=self.batch_rows,
            memory_budget=self.memory_budget,
            needs_stats=True,
            groups=unit.groups,
        )
        rows = ReconciledRows(self.layout, self.removed_after)
        seen = keys_of(self.keys)
        try:
            file = self.file(part)
            size = self._put(file, rows.of_part(reader, unit.part, seen, self.wrong))
        finally:
            seen.close()
        return PartWritten(part, file.rows, rows.num_adds, rows.size_of_adds, size)

    def file(self, part: int) -> CheckpointFile:
        """Return the file of a part, which records the name of the job."""
        path = part_path(self.version, part, self.parts)
        notes = {_NOTE: self.name}
        return CheckpointFile(self.layout, path, self.version, self.memory_budget // _GROUP_SHARE, notes)

    def _put(self, file: CheckpointFile, batches: Iterable[pa.RecordBatch]) -> int:
        try:
            return self.store.put_stream(file.path, file.chunks(self.store, batches))
        except AlreadyThereError:
            info = self.store.head(file.path)
            found = LogFile(FileKind.CHECKPOINT, self.version, info, self.version, 1, self.parts)
            if _owner_of(self.store, found) != self.name:
                message = f"{file.path} was written by another writer with as many parts"
                raise WriteError(
                    message, path=file.path, version=self.version, hint="write the checkpoint again"
                ) from None
            return info.size


PartCarrier: TypeAlias = Callable[[SpreadCheckpoint, Sequence[tuple[int, Unit]]], Iterable[PartWritten]]
"""Writes each unit as the part with its number, and returns when all are written. Raises if a part fails."""


def write_checkpoint_in_parts(
    store: Store,
    carrier: PartCarrier,
    version: int | None = None,
    *,
    unit_rows: int = UNIT_ROWS,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
    now: int | None = None,
) -> CheckpointResult:
    """Write the checkpoint of the newest version, or of ``version``, in parts of about ``unit_rows`` files.

    A single file is written in this process if there is at most one unit, or if the table has the feature
    ``v2Checkpoint``, which does not allow parts. The memory budget applies to each task and to the driver.
    """
    snapshot = open_snapshot(store, version=version)
    for _ in range(MAX_REPLACEMENTS):
        checkpoint = snapshot.segment.checkpoint
        if checkpoint is not None and checkpoint.version >= snapshot.version:
            return existing(store, checkpoint)
        try:
            timestamp = int(time.time() * 1000) if now is None else now
            state = state_of(snapshot, memory_budget, timestamp)
            base = state.base()
            units = [] if base is None else units_of(base, unit_rows)
            if len(units) <= 1 or "v2Checkpoint" in (snapshot.protocol.writer_features or ()):
                return write_checkpoint(
                    store, snapshot.version, memory_budget=memory_budget, progress=progress, now=now
                )
            check_copyable(snapshot.protocol, path=store.uri)
            return _Spread(snapshot, state, units, progress).write(carrier)
        except CURABLE as error:
            # Another writer may have replaced the previous checkpoint, from which this one is built.
            snapshot = snapshot.with_current_checkpoint(error)
    raise too_often(snapshot.segment)


class CheckpointPreview(msgspec.Struct, frozen=True, kw_only=True):
    """Preview of a checkpoint write. ``action`` is keep or write.

    ``actions`` is the number of actions in the previous checkpoint, which the tasks would share. ``engine`` is where
    the checkpoint would be written.
    """

    action: str
    version: int
    actions: int
    engine: str = "local"


def preview(store: Store, version: int | None = None) -> CheckpointPreview:
    """Return what writing the checkpoint of a version would do, based on the footers of the existing checkpoint."""
    snapshot = open_snapshot(store, version=version)
    checkpoint, actions = snapshot.segment.checkpoint, 0
    if checkpoint is not None:
        reader = CheckpointReader(store, checkpoint)
        actions = sum(sum(reader.row_counts(part) or ()) for part in reader.parts())
    is_there = checkpoint is not None and checkpoint.version >= snapshot.version
    return CheckpointPreview(action="keep" if is_there else "write", version=snapshot.version, actions=actions)


def part_path(version: int, part: int, parts: int) -> str:
    """Return the path of a part."""
    return f"{LOG}/{version:020}.checkpoint.{part:010}.{parts:010}.parquet"


class _Spread:
    """The driver's side of the job."""

    def __init__(
        self, snapshot: LogSnapshot, state: CheckpointState, units: Sequence[Unit], progress: Progress | None
    ) -> None:
        base = snapshot.segment.checkpoint
        if base is None:
            message = "there is no checkpoint to distribute"
            raise ValueError(message)
        self._store, self._snapshot, self._state, self._units = snapshot.store, snapshot, state, units
        self._base, self._progress = base, progress
        self._name = uuid.uuid4().hex

    def write(self, carrier: PartCarrier) -> CheckpointResult:
        seen = NotedKeys(self._state.key_memory)
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, prefix="lazydelta-checkpoint-") as spool:
            try:
                tail = self._encode_tail(spool, seen)
                job, head = self._reserved(seen)
            finally:
                seen.close()
            try:
                for extra in range(_FIRST_UNIT + len(self._units), job.parts + 1):
                    self._store.put_stream(part_path(job.version, extra, job.parts), job.file(extra).encoded(()))
                numbered = list(enumerate(self._units, _FIRST_UNIT))
                written = list(carrier(job, numbered))
                if (found := self._complete_by_others(job)) is not None:
                    self._discard(job)
                    return existing(self._store, found)
                self._check(job, written)
            except BaseException:
                self._discard(job)
                raise
            spool.seek(0)
            # This write completes the checkpoint and makes it visible.
            size = self._store.put_stream(part_path(job.version, _TAIL, job.parts), _chunks(spool))
        return self._published(job, [*written, tail, head], size)

    def _encode_tail(self, spool: IO[bytes], seen: NotedKeys) -> PartWritten:
        """Encode the rows of the tail into the spool, and record their keys."""
        rows = self._state.rows
        file = self._plain_file()
        for chunk in file.encoded(self._state.of_tail(seen)):
            spool.write(chunk)
        return PartWritten(_TAIL, file.rows, rows.num_adds, rows.size_of_adds, 0)

    def _plain_file(self) -> CheckpointFile:
        group = self._state.memory_budget // _GROUP_SHARE
        version = self._snapshot.version
        return CheckpointFile(self._state.rows.layout, LOG, version, group, {_NOTE: self._name})

    def _reserved(self, seen: NotedKeys) -> tuple[SpreadCheckpoint, PartWritten]:
        """Write the first part with put-if-absent, which reserves the number of parts for this job."""
        version, state = self._snapshot.version, self._state
        file = self._plain_file()
        data = b"".join(file.encoded(state.of_table()))
        for extra in range(_TRIES):
            parts = len(self._units) + _FIRST_UNIT - 1 + extra
            path = part_path(version, _TABLE, parts)
            with contextlib.suppress(ObjectExistsError):
                self._store.put_if_absent(path, data)
                job = SpreadCheckpoint(
                    self._store,
                    version,
                    self._base,
                    state.rows.layout,
                    state.rows.removed_after,
                    tuple(false_timestamps(self._snapshot)),
                    tuple(seen.sent),
                    parts,
                    self._name,
                    state.batch_rows,
                    state.memory_budget,
                )
                return job, PartWritten(_TABLE, file.rows, 0, 0, len(data))
        message = f"{_TRIES} checkpoints of version {version} were begun and not finished"
        hint = "delete the parts of checkpoints of that version that are not complete, or write it in one process"
        raise WriteError(message, path=self._store.uri, version=version, hint=hint)

    def _complete_by_others(self, job: SpreadCheckpoint) -> Checkpoint | None:
        _, found = checkpoints_from(self._store, job.version, job.version)
        return next(iter(found), None)

    def _check(self, job: SpreadCheckpoint, written: Sequence[PartWritten]) -> None:
        """Raise `WriteError` unless all parts but the last one to be written exist and belong to this job."""
        files = [file for file in _parts_of(self._store, job.version, job.version) if file.parts == job.parts]
        ours = {file.part for file in files if _owner_of(self._store, file) == job.name}
        lacking = sorted(set(range(1, job.parts + 1)) - ours - {_TAIL})
        answered = {each.part for each in written} | {_TABLE, _TAIL}
        unanswered = {number for number, _ in enumerate(self._units, _FIRST_UNIT)} - answered
        if lacking or unanswered:
            wrong = ", ".join(map(str, lacking or sorted(unanswered)))
            message = f"The checkpoint of version {job.version} lacks these parts, or has another writer's: {wrong}"
            raise WriteError(message, path=self._store.uri, version=job.version, hint="write the checkpoint again")

    def _discard(self, job: SpreadCheckpoint) -> None:
        """Delete all parts but the first. Without the tail part the checkpoint never became visible."""
        delete_paths(self._store, [part_path(job.version, part, job.parts) for part in range(_TAIL, job.parts + 1)])

    def _published(self, job: SpreadCheckpoint, written: Sequence[PartWritten], tail_size: int) -> CheckpointResult:
        files = sum(each.num_adds for each in written)
        start_checksums(self._snapshot, num_files=files, size=sum(each.size_of_adds for each in written))
        if self._progress is not None:
            self._progress(files, files)
        _clear_abandoned(self._store, self._base.version, job)
        sizes = [file.info.size for file in _parts_of(self._store, job.version, job.version) if file.parts == job.parts]
        return CheckpointResult(
            action="written",
            version=job.version,
            path=part_path(job.version, _TABLE, job.parts),
            size_in_bytes=sum(sizes) or tail_size,
            size=sum(each.rows for each in written),
            num_of_add_files=files,
            parts=job.parts,
        )


def _clear_abandoned(store: Store, start: int, job: SpreadCheckpoint) -> None:
    """Delete incomplete parts of abandoned lazydelta jobs after a day."""
    try:
        groups: dict[tuple[int, int], list[LogFile]] = {}
        for file in _parts_of(store, start, job.version):
            groups.setdefault((file.version, file.parts), []).append(file)
        before = time.time() * 1000 - _GRACE_MS
        for (_, parts), files in groups.items():
            if len(files) == parts or any(file.info.last_modified >= before for file in files):
                continue
            for file in files:
                if _owner_of(store, file) is not None:
                    store.delete(file.path)
    except LazyDeltaError as error:
        _log.warning("parts of checkpoints that were given up are left in %s: %s", store.uri, error)


def _parts_of(store: Store, start: int, end: int) -> Iterator[LogFile]:
    return (file for file in list_from(store, start, end) if file.kind is FileKind.CHECKPOINT and file.parts > 1)


def _owner_of(store: Store, file: LogFile) -> str | None:
    """Return the name of the job that wrote a part, or None if lazydelta did not write it."""
    with corrupt_if_unreadable(file), store.open_input(file.path, size=file.info.size) as source:
        found = (pq.read_metadata(source).metadata or {}).get(_NOTE.encode())
    return None if found is None else bytes(found).decode()


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(8 << 20):
        yield chunk
