"""``TableStream``: the files that a stream reads between two offsets, and how far it may go next."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa
from msgspec import structs

from lazydelta.errors import CorruptLogError, LazyDeltaError, LogError, StreamStoppedError, VersionNotFoundError
from lazydelta.log.commits import read_actions
from lazydelta.log.file_batch import DELETION_VECTOR, PARTITION_VALUES, FileBatch
from lazydelta.log.replay import read_in_order
from lazydelta.log.segment import commits_in_order, earliest_commit, list_commits
from lazydelta.log.time_travel import version_at
from lazydelta.protocol.features import check_readable
from lazydelta.protocol.file_names import LogFile
from lazydelta.rows.stream_options import (
    LATEST,
    Admission,
    CommitNews,
    FileKey,
    StreamOffset,
    StreamOptions,
    check_metadata,
    read_news,
)
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import numpy_of, one_array, typed_scalar
from lazydelta.scan.file import StoredFile, data_files
from lazydelta.scan.request import ScanRequest
from lazydelta.sidecar.handle import Snapshot, TableHandle

__all__ = ["StreamPiece", "TableStream", "next_files", "plan_pieces"]


# Files of a version ordered by modification time and path, one window at a time.
#
# The log is unordered, and the full list must not be held in memory. Each pass over the files keeps the first ones
# after a given key and drops the rest, holding at most twice the window and one batch. A window of 65,536 files serves
# many steps of a stream; a table of a million files takes 16 passes in all.


WINDOW = 65_536

_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("modification_time", pa.int64()),
        pa.field("partition_values", PARTITION_VALUES),
        pa.field("deletion_vector", DELETION_VECTOR),
    ]
)
_ORDER = [("modification_time", "ascending"), ("path", "ascending")]


@dataclass(frozen=True, slots=True)
class SnapshotWindow:
    """Files in order. ``passed`` counts the files before them; ``is_last`` is set if none come after them.

    ``most_held`` is the maximum number of files held in memory.
    """

    files: FileBatch
    passed: int
    is_last: bool
    most_held: int


def next_files(batches: Iterable[FileBatch], after: FileKey | None, count: int) -> SnapshotWindow:
    """Return the first ``count`` files of ``batches`` that sort after ``after``."""
    held: list[pa.Table] = []
    rows = passed = most = dropped = 0
    bound: FileKey | None = None
    for batch in batches:
        found = _table(batch)
        if after is not None:
            behind = _is_behind(found, after)
            passed += found.num_rows - behind.true_count
            found = found.filter(behind)
        if bound is not None:
            beyond = _is_behind(found, bound)
            dropped += beyond.true_count
            found = found.filter(pc.invert(beyond))
        if not found.num_rows:
            continue
        held.append(found)
        rows += found.num_rows
        most = max(most, rows)
        if rows >= 2 * count:
            kept = _smallest(held, count)
            dropped += rows - kept.num_rows
            held, rows, bound = [kept], kept.num_rows, key_at(_batch(kept), kept.num_rows - 1)
    kept = _smallest(held, count)
    dropped += rows - kept.num_rows
    return SnapshotWindow(_batch(kept), passed, dropped == 0, most)


def key_at(files: FileBatch, index: int) -> FileKey:
    """Return the sort key of a file."""
    return files.modification_time[index].as_py(), files.path[index].as_py()


def _table(batch: FileBatch) -> pa.Table:
    vectors = batch.deletion_vector
    columns = [
        batch.path,
        batch.size,
        batch.modification_time,
        batch.partition_values,
        pa.nulls(len(batch), DELETION_VECTOR) if vectors is None else vectors,
    ]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def _batch(table: pa.Table) -> FileBatch:
    path, size, time, values, vectors = (one_array(column) for column in table.columns)
    return FileBatch(path, size, time, values, vectors)


def _is_behind(table: pa.Table, key: FileKey) -> pa.Array:
    times, paths = one_array(table["modification_time"]), one_array(table["path"])
    timestamp, path = typed_scalar(key[0], pa.int64()), typed_scalar(key[1], pa.string())
    same = pc.and_(pc.equal(times, timestamp), pc.greater(paths, path))
    return pc.or_(pc.greater(times, timestamp), same)


def _smallest(held: list[pa.Table], count: int) -> pa.Table:
    if not held:
        return _SCHEMA.empty_table()
    table = pa.concat_tables(held)
    order = pc.sort_indices(table, sort_keys=_ORDER)
    return pc.take(table, order.slice(0, count)).combine_chunks()


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileRun:
    """Consecutive files in stream order, all from one snapshot or one commit.

    ``before`` is the snapshot file just before them. With ``is_last``, they are the last files of the version.
    """

    table_id: str
    version: int
    is_initial: bool
    first: int
    files: FileBatch
    is_last: bool
    before: FileKey | None = None

    def offset(self, taken: int) -> StreamOffset:
        """Return the offset after the first ``taken`` files."""
        if taken == len(self.files) and self.is_last:
            return StreamOffset(table_id=self.table_id, version=self.version + 1)
        last = self.before
        if self.is_initial and taken:
            last = key_at(self.files, taken - 1)
        return StreamOffset(
            table_id=self.table_id,
            version=self.version,
            index=self.first + taken,
            is_initial_snapshot=self.is_initial,
            last_file=last if self.is_initial else None,
        )

    def part(self, start: int, end: int) -> FileRun:
        """Return the files from ``start`` to ``end``."""
        if start == 0 and end == len(self.files):
            return self
        before = self.before if start == 0 else key_at(self.files, start - 1)
        is_last = self.is_last and end == len(self.files)
        files = self.files.slice(start, end - start)
        return replace(self, first=self.first + start, files=files, is_last=is_last, before=before)


class TableStream:
    """The files of a table in the order in which a stream reads them.

    Its columns are those of the newest version when it is created. Memory is one window of files and does not grow with
    the table or with the lifetime of the stream.
    """

    def __init__(self, handle: TableHandle, options: StreamOptions | None = None, *, window: int = WINDOW) -> None:
        self.handle = handle
        self.options = StreamOptions() if options is None else options
        self._window = window
        self.pinned: Snapshot = handle.newest()
        self._snapshot: Snapshot | None = None
        self._held: FileRun | None = None
        self._begun = False

    @property
    def table_id(self) -> str:
        """The id of the table, which every offset includes."""
        return self.pinned.metadata.id

    def initial_offset(self) -> StreamOffset:
        """Return the offset where a new stream starts."""
        begin, timestamp, newest = self.options.starting_version, self.options.starting_timestamp, self.pinned.version
        if begin is None and timestamp is None:
            return self._beginning(newest, is_snapshot=True)
        if begin == LATEST:
            return self._beginning(newest + 1)
        version = int(begin) if begin is not None else self._first_version_from(timestamp or 0)
        if version > newest:
            asked = f"startingVersion {version}" if begin is not None else "The timestamp of startingTimestamp"
            message = f"{asked} is after the newest version of {self.handle.uri}, which is {newest}"
            hint = "startingVersion=latest starts with the next commit"
            raise VersionNotFoundError(message, path=self.handle.uri, version=version, latest=newest, hint=hint)
        next(self._commits(version, version), None)  # raise now if the commit was cleaned up
        return self._beginning(version)

    def _beginning(self, version: int, *, is_snapshot: bool = False) -> StreamOffset:
        return StreamOffset(table_id=self.table_id, version=version, is_initial_snapshot=is_snapshot, is_beginning=True)

    def newest_version(self) -> int:
        """Return the newest version in the log."""
        return self.handle.newest().version

    def latest_offset(
        self, start: StreamOffset, admission: Admission | None = None, last: int | None = None
    ) -> StreamOffset:
        """Return how far the stream may go from ``start``, limited by ``admission`` and version ``last``.

        A commit that stops the stream raises only if no files come before it. Otherwise those files are emitted first.
        """
        admission = Admission() if admission is None else admission
        position = start
        try:
            with closing(self._runs(start, last)) as runs:
                for run in runs:
                    taken = admission.take(numpy_of(run.files.size))
                    position = run.offset(taken)
                    # Stop here: looking for the next run may take another pass over the files of the table.
                    if taken < len(run.files) or admission.is_full:
                        break
        except LazyDeltaError:
            if position == start:
                raise
        if start.is_beginning and position != start:
            return structs.replace(position, begun_at=(start.version, start.is_initial_snapshot))
        return position

    def runs_between(self, start: StreamOffset, end: StreamOffset) -> Iterator[FileRun]:
        """Yield the files from ``start`` to ``end``, in order."""
        start = end.really_from(start)
        if end.place <= start.place:
            return
        inside = end.index > 0 or end.is_initial_snapshot
        with closing(self._runs(start, end.version if inside else end.version - 1)) as runs:
            for run in runs:
                if inside and run.version == end.version:
                    wanted = end.index - run.first
                    found = run.part(0, min(wanted, len(run.files)))
                    if wanted <= len(run.files):
                        _check_end(found, end)
                        yield found
                        return
                    yield found
                else:
                    yield run
        if inside:
            raise _shorter(self.handle.uri, end)

    def _runs(self, start: StreamOffset, last: int | None) -> Generator[FileRun]:
        self._check(start)
        version, index = start.version, start.index
        if start.is_initial_snapshot:
            if last is not None and version > last:
                return
            yield from self._snapshot_runs(start)
            version, index = version + 1, 0
        if last is not None and version > last:
            return
        self._check_begin(version)
        seen = False
        files = self._commits(version, last)
        for commit in read_in_order(self.handle.store, files, parallelism=self.handle.options.commit_parallelism):
            seen = True
            first = index if commit.file.version == version else 0
            news = read_news(commit.file, commit.actions, first, self._window)
            while True:
                self._check_table(news, commit.file)
                found = FileRun(self.table_id, news.version, False, first, news.files, news.is_last)  # noqa: FBT003
                if not news.admits(self.options, self.handle.uri):
                    found = replace(found, files=FileBatch.from_adds([]), is_last=True)
                yield found
                if found.is_last:
                    break
                first += len(news.files)
                news = read_news(commit.file, read_actions(self.handle.store, commit.file), first, self._window)
        if not seen and last is None:
            self._check_not_rewound(version)

    def _snapshot_runs(self, start: StreamOffset) -> Iterator[FileRun]:
        index, before = start.index, start.last_file
        if index and before is None:
            index = 0  # an offset without the file: count up to it
        while True:
            run = self._snapshot_run(start.version, index, before)
            begin = max(0, start.index - run.first)
            if begin <= len(run.files):
                yield run.part(begin, len(run.files))
            elif run.is_last:
                raise _shorter(self.handle.uri, start)
            if run.is_last:
                return
            index += len(run.files)
            before = key_at(run.files, len(run.files) - 1)

    def _snapshot_run(self, version: int, index: int, before: FileKey | None) -> FileRun:
        held = self._held
        if held is not None and held.version == version and 0 <= index - held.first < len(held.files):
            found = held.part(index - held.first, len(held.files))
            if found.before == before:
                return found
        snapshot = self._opened(version)
        scanner = snapshot.scan(ScanRequest(batch_size=self.handle.options.rows_in_memory))
        with closing(scanner.batches()) as batches:
            window = next_files(batches, before, self._window)
        if window.passed != index:
            message = f"The snapshot of version {version} of {self.handle.uri} is not what it was"
            hint = (
                f"{window.passed} files come before the place where the stream stopped, and it had read {index}; "
                "the log was rewritten: start a new query with a new checkpoint location"
            )
            raise CorruptLogError(message, path=self.handle.uri, version=version, hint=hint)
        self._held = FileRun(self.table_id, version, True, index, window.files, window.is_last, before)  # noqa: FBT003
        return self._held

    def _opened(self, version: int) -> Snapshot:
        if self._snapshot is None or self._snapshot.version != version:
            pinned = self.pinned
            self._snapshot = pinned if pinned.version == version else self.handle.snapshot(version)
            check_metadata(pinned, self._snapshot.metadata, self._snapshot.protocol, version)
        return self._snapshot

    def _commits(self, first: int, last: int | None) -> Iterator[LogFile]:
        store = self.handle.store
        if not self.options.fail_on_data_loss:
            listed = next(list_commits(store, first) if last is None else list_commits(store, first, last), None)
            if listed is None:
                return
            if listed.version > first:
                logger.warning(
                    "versions %d to %d of %s were cleaned up and are passed over", first, listed.version - 1, store.uri
                )
                first = listed.version
        try:
            yield from commits_in_order(store, first, last)
        except VersionNotFoundError as error:
            error.hint = f"{error.hint}; failOnDataLoss=false goes on there, without what is lost"
            raise

    def _first_version_from(self, timestamp: int) -> int:
        """Return the first version committed at or after a timestamp."""
        try:
            return version_at(self.handle.store, self.pinned.metadata, timestamp - 1) + 1
        except VersionNotFoundError:  # all existing commits are later
            return earliest_commit(self.handle.store) or 0

    def _check(self, start: StreamOffset) -> None:
        if start.table_id != self.table_id:
            message = f"The stream was reading the table {start.table_id}, and at {self.handle.uri} is {self.table_id}"
            hint = "the table was replaced, or the checkpoint location belongs to another stream"
            raise StreamStoppedError(message, path=self.handle.uri, version=start.version, hint=hint)

    def _check_table(self, news: CommitNews, file: LogFile) -> None:
        """Raise if a commit changes the columns or requires an unsupported feature."""
        protocol = news.protocol or self.pinned.protocol
        if news.protocol is not None:
            check_readable(protocol, news.metadata or self.pinned.metadata, path=file.path)
        if news.metadata is not None:
            check_metadata(self.pinned, news.metadata, protocol, news.version)

    def _check_begin(self, version: int) -> None:
        """Check that rows of the first commit are readable: its columns may come from a much older commit."""
        if self._begun or version > self.pinned.version:
            return
        self._begun = True
        try:
            begin = self.handle.snapshot(version)
        except LogError:
            return  # the commit exists but its checkpoint does not, so its columns are unknown
        check_metadata(self.pinned, begin.metadata, begin.protocol, version)

    def _check_not_rewound(self, version: int) -> None:
        # Normally the log ends here and the previous commit exists. Otherwise it was cleaned up, or never existed.
        if version == 0 or next(list_commits(self.handle.store, version - 1, version - 1), None) is not None:
            return
        newest = self.newest_version()
        if newest < version - 1:
            message = f"{self.handle.uri} is at version {newest}, and the stream has read version {version - 1} of it"
            hint = "the log was rewound; start a new query with a new checkpoint location"
            raise StreamStoppedError(message, path=self.handle.uri, version=newest, hint=hint)


def _check_end(found: FileRun, end: StreamOffset) -> None:
    if end.last_file is not None and len(found.files) and key_at(found.files, len(found.files) - 1) != end.last_file:
        message = f"File {end.index} of the snapshot of version {end.version} is not the one that the stream had read"
        raise CorruptLogError(message, path=end.last_file[1], version=end.version, hint="the log was rewritten")


def _shorter(uri: str, end: StreamOffset) -> CorruptLogError:
    message = f"Version {end.version} of {uri} has fewer than the {end.index} files that the stream had counted"
    hint = "the log was rewritten: start a new query with a new checkpoint location"
    return CorruptLogError(message, path=uri, version=end.version, hint=hint)


# Divide the files between two offsets into pieces for parallel tasks.
#
# A piece is a range of the stream order. With few files, the piece lists them. A step of a million files, which occurs
# only without limits, is described by its offsets, and the task finds the files. A single file larger than a piece is
# split by row group.


# A step of Delta's default size has a thousand files.
NAMED_FILES = 10_000
_MOST_BYTES = 128 << 20
_LEAST_BYTES = 1 << 20
# Row groups are seldom smaller, and each share of a file reads the footer again.
_LEAST_SHARE = 4 << 20
_MOST_FILES = 1000


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Consecutive files of a stream. ``files`` is None if they are given by the two offsets alone.

    ``share`` is the number of this share and how many shares its single file has, or None for whole files.
    """

    start: StreamOffset
    end: StreamOffset
    files: tuple[StoredFile, ...] | None = None
    share: tuple[int, int] | None = None

    def files_of(self, stream: TableStream | None) -> Iterator[StoredFile]:
        """Yield the files to read. ``stream`` is needed only if the piece does not list them."""
        if self.files is not None or stream is None:
            found: Iterable[StoredFile] = self.files or ()
        else:
            found = (file for run in stream.runs_between(self.start, self.end) for file in stored(run, stream))
        yield from found if self.share is None else (msgspec.structs.replace(file, share=self.share) for file in found)


def stored(run: FileRun, stream: TableStream) -> Iterator[StoredFile]:
    """Yield the files of a run in the form that the reader takes."""
    return (each.to_read() for each in data_files(run.files, stream.handle.store, stream.pinned.schema))


def plan_pieces(
    stream: TableStream, start: StreamOffset, end: StreamOffset, *, named: int = NAMED_FILES
) -> list[StreamPiece]:
    """Divide the files between two offsets into pieces of similar size."""
    held: list[FileRun] = []
    count = total = 0
    for run in stream.runs_between(start, end):
        count += len(run.files)
        total += int(numpy_of(run.files.size).sum())
        if count <= named:
            held.append(run)
    if count <= named:
        target = max(_LEAST_BYTES, min(_MOST_BYTES, total // (2 * (os.cpu_count() or 1)) + 1))
        return [
            piece
            for runs in _cut(held, target)
            for piece in _pieces(runs, target, [each for run in runs for each in stored(run, stream)])
        ]
    return [
        piece for runs in _cut(stream.runs_between(start, end), _MOST_BYTES) for piece in _pieces(runs, _MOST_BYTES)
    ]


def _pieces(runs: Sequence[FileRun], target: int, files: Sequence[StoredFile] | None = None) -> Iterator[StreamPiece]:
    """Yield consecutive runs as one piece, or as several if they are a single large file."""
    last = runs[-1]
    whole = StreamPiece(runs[0].offset(0), last.offset(len(last.files)), None if files is None else tuple(files))
    sizes = [size for run in runs for size in numpy_of(run.files.size).tolist()]
    count = -(-sizes[0] // max(target, _LEAST_SHARE)) if len(sizes) == 1 else 1
    if count <= 1:
        yield whole
    else:
        yield from (dataclasses.replace(whole, share=(number, count)) for number in range(count))


def _cut(runs: Iterable[FileRun], target: int) -> Iterator[list[FileRun]]:
    """Yield groups of runs of at most ``target`` bytes, unless a single file is larger."""
    held: list[FileRun] = []
    size = count = 0
    for run in runs:
        begin = 0
        for index, each in enumerate(numpy_of(run.files.size).tolist()):
            if count and (size + each > target or count >= _MOST_FILES):
                if index > begin:
                    held.append(run.part(begin, index))
                yield held
                held, begin, size, count = [], index, 0, 0
            size += each
            count += 1
        if begin < len(run.files):
            held.append(run.part(begin, len(run.files)))
    if held:
        yield held
