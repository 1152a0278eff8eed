"""``SpreadCheckpoint``: a V1 checkpoint of many parts, written by many tasks side by side.

A job as plain data with its verbs. The previous checkpoint is cut into units of row groups, and the task of a unit
writes what the tail has left of it as a part of its own: no row travels. Readers count a checkpoint of ``n`` parts once
all of them are there, and that is when the driver writes the second, with the files of the tail: it holds that back
until every task has answered. So nothing that tasks do makes the checkpoint visible, and what a job that fails leaves
is never complete.

Names are fixed by the protocol, so two jobs must not have the same number of parts. The first part, which is small, is
put only where none is: whoever puts it has that number to himself, and another job adds an empty part and so has
another number. It stays for a day where a job is given up, as tasks of that job may still be at work somewhere.
Attempts at one part write the same rows, and the first of them stays.
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
from lazydelta.log.checkpoint.checkpoint_columns import corrupt_if_unreadable
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader
from lazydelta.log.checkpoint.checkpoint_result import CheckpointResult
from lazydelta.log.checkpoint.checkpoint_units import Unit, units_of
from lazydelta.log.checkpoint.writing.checkpoint_file import AlreadyThereError, CheckpointFile
from lazydelta.log.checkpoint.writing.checkpoint_rows import CheckpointLayout
from lazydelta.log.checkpoint.writing.checkpoint_state import CheckpointState
from lazydelta.log.checkpoint.writing.checkpoint_writer import (
    MEMORY_BUDGET,
    Progress,
    existing,
    state_of,
    write_checkpoint,
)
from lazydelta.log.checkpoint.writing.reconciled_rows import ReconciledRows
from lazydelta.log.checkpoint.writing.sent_keys import NotedKeys, keys_of
from lazydelta.log.checksum.checksum_writer import start_checksums
from lazydelta.log.features.writable import check_copyable
from lazydelta.log.names import LOG, FileKind, LogFile
from lazydelta.log.replaced import CURABLE, MAX_REPLACEMENTS, too_often
from lazydelta.log.segment import Checkpoint, checkpoints_from, list_from
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.snapshot_opening import open_snapshot
from lazydelta.scan.timestamp_check import false_timestamps
from lazydelta.storage import Store
from lazydelta.types.schema import Column

__all__ = [
    "CheckpointPreview",
    "PartCarrier",
    "PartWritten",
    "SpreadCheckpoint",
    "preview",
    "write_checkpoint_in_parts",
]

_log = logging.getLogger(__name__)

UNIT_ROWS = 500_000
"""About how many files a part has: a hundred megabytes that a task writes in seconds."""
_NOTE = "lazydelta.checkpoint"
_TABLE, _TAIL, _FIRST_UNIT = 1, 2, 3
_GROUP_SHARE = 6
_IN_MEMORY = 32 << 20
_TRIES = 20
_GRACE_MS = 24 * 3_600_000


class PartWritten(msgspec.Struct, frozen=True):
    """What a task wrote: rows in all, active files and their bytes among them, and the size of the part."""

    part: int
    rows: int
    num_adds: int
    size_of_adds: int
    size: int


@dataclass(frozen=True, slots=True)
class SpreadCheckpoint:
    """What a task knows of the checkpoint.

    ``keys`` are those of the tail, ``wrong`` columns whose typed bounds are false, ``name`` is the job's own, by which
    its parts are known. Tombstones count while they are younger than ``removed_after``.
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
        """Write what is left of a unit, unless an earlier attempt has."""
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
        """Return the file of a part, which says whose it is."""
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
                message = f"{file.path} was written by somebody else, who has as many parts"
                raise WriteError(message, path=file.path, version=self.version, hint="write it again") from None
            return info.size


PartCarrier: TypeAlias = Callable[[SpreadCheckpoint, Sequence[tuple[int, Unit]]], Iterable[PartWritten]]
"""Has each unit written as the part of its number, and returns when all are; what fails is an error."""


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

    Where there is little to share out, or the table has the feature ``v2Checkpoint``, which rules parts out, one file
    is written here. The memory budget is that of a task, and of the driver.
    """
    snapshot = open_snapshot(store, version=version)
    for _ in range(MAX_REPLACEMENTS):
        checkpoint = snapshot.segment.checkpoint
        if checkpoint is not None and checkpoint.version >= snapshot.version:
            return existing(store, checkpoint)
        try:
            moment = int(time.time() * 1000) if now is None else now
            state = state_of(snapshot, memory_budget, moment)
            base = state.base()
            units = [] if base is None else units_of(base, unit_rows)
            if len(units) <= 1 or "v2Checkpoint" in (snapshot.protocol.writer_features or ()):
                return write_checkpoint(
                    store, snapshot.version, memory_budget=memory_budget, progress=progress, now=now
                )
            check_copyable(snapshot.protocol, path=store.uri)
            return _Spread(snapshot, state, units, progress).write(carrier)
        except CURABLE as error:
            # Somebody may have replaced the previous checkpoint, from which this one is made.
            snapshot = snapshot.with_current_checkpoint(error)
    raise too_often(snapshot.segment)


class CheckpointPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What would be done: ``action`` is keep or write.

    ``actions`` is how many the checkpoint below has, which tasks would share; ``engine`` where it would be written.
    """

    action: str
    version: int
    actions: int
    engine: str = "local"


def preview(store: Store, version: int | None = None) -> CheckpointPreview:
    """Tell what writing the checkpoint of a version would do, by the footers of the one that there is."""
    snapshot = open_snapshot(store, version=version)
    checkpoint, actions = snapshot.segment.checkpoint, 0
    if checkpoint is not None:
        reader = CheckpointReader(store, checkpoint)
        actions = sum(sum(reader.row_counts(part) or ()) for part in reader.parts())
    is_there = checkpoint is not None and checkpoint.version >= snapshot.version
    return CheckpointPreview(action="keep" if is_there else "write", version=snapshot.version, actions=actions)


def part_path(version: int, part: int, parts: int) -> str:
    """Return where a part is."""
    return f"{LOG}/{version:020}.checkpoint.{part:010}.{parts:010}.parquet"


class _Spread:
    """What the driver does."""

    def __init__(
        self, snapshot: Snapshot, state: CheckpointState, units: Sequence[Unit], progress: Progress | None
    ) -> None:
        base = snapshot.segment.checkpoint
        if base is None:
            message = "there is no checkpoint to share out"
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
            # From here on it is a checkpoint.
            size = self._store.put_stream(part_path(job.version, _TAIL, job.parts), _chunks(spool))
        return self._published(job, [*written, tail, head], size)

    def _encode_tail(self, spool: IO[bytes], seen: NotedKeys) -> PartWritten:
        """Keep the rows of the tail for later, and note its keys."""
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
        """Put the first part where nobody has, and so have the number of parts to this job."""
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
        """Look whether everything is there that the last part will make count."""
        files = [file for file in _parts_of(self._store, job.version, job.version) if file.parts == job.parts]
        ours = {file.part for file in files if _owner_of(self._store, file) == job.name}
        lacking = sorted(set(range(1, job.parts + 1)) - ours - {_TAIL})
        answered = {each.part for each in written} | {_TABLE, _TAIL}
        unanswered = {number for number, _ in enumerate(self._units, _FIRST_UNIT)} - answered
        if lacking or unanswered:
            wrong = ", ".join(map(str, lacking or sorted(unanswered)))
            message = f"The checkpoint of version {job.version} lacks these parts, or they are somebody else's: {wrong}"
            raise WriteError(message, path=self._store.uri, version=job.version, hint="write it again")

    def _discard(self, job: SpreadCheckpoint) -> None:
        """Delete what was written but for the first part; nobody has counted it, as it was never complete."""
        for part in range(_TAIL, job.parts + 1):
            try:
                self._store.delete(part_path(job.version, part, job.parts))
            except LazyDeltaError as error:
                _log.warning("a part of a checkpoint that was given up is left in %s: %s", self._store.uri, error)

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
    """Delete parts that jobs of ours left which ended before they were complete, after a day."""
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
    """Return the name of the job that wrote a part, None if it was none of ours."""
    with corrupt_if_unreadable(file), store.open_input(file.path, size=file.info.size) as source:
        found = (pq.read_metadata(source).metadata or {}).get(_NOTE.encode())
    return None if found is None else bytes(found).decode()


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(8 << 20):
        yield chunk
