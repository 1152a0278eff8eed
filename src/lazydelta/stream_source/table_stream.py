"""``TableStream``: which files a stream reads between two offsets, and how far it may go next."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from msgspec import structs

from lazydelta.arrays import numpy_of
from lazydelta.errors import CorruptLogError, LazyDeltaError, LogError, StreamStoppedError, VersionNotFoundError
from lazydelta.file_changes import commits_in_order, earliest_commit
from lazydelta.file_changes.commit_sequence import read_in_order
from lazydelta.handle import TableHandle
from lazydelta.log.commits import read_actions
from lazydelta.log.features import check_readable
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.names import LogFile
from lazydelta.log.segment import list_commits
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.travel import version_at
from lazydelta.scan.request import ScanRequest
from lazydelta.stream_source.admission import Admission
from lazydelta.stream_source.commit_news import CommitNews, read_news
from lazydelta.stream_source.schema_watch import check_metadata
from lazydelta.stream_source.snapshot_window import WINDOW, key_at, next_files
from lazydelta.stream_source.stream_offset import FileKey, StreamOffset
from lazydelta.stream_source.stream_options import LATEST, StreamOptions

__all__ = ["Run", "TableStream"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """Files that follow each other in the stream's order, all of one snapshot or of one commit.

    ``before`` is the snapshot's file in front of them; with ``is_last`` nothing of the version comes after them.
    """

    table_id: str
    version: int
    is_initial: bool
    first: int
    files: FileBatch
    is_last: bool
    before: FileKey | None = None

    def offset(self, taken: int) -> StreamOffset:
        """Return the offset behind the first ``taken`` files."""
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

    def part(self, start: int, end: int) -> Run:
        """Return the files ``start`` to ``end`` of these."""
        if start == 0 and end == len(self.files):
            return self
        before = self.before if start == 0 else key_at(self.files, start - 1)
        is_last = self.is_last and end == len(self.files)
        files = self.files.slice(start, end - start)
        return replace(self, first=self.first + start, files=files, is_last=is_last, before=before)


class TableStream:
    """The files of a table in the order in which a stream reads them.

    Its columns are those of the newest version when it is made. It holds one window of files, and nothing that grows
    with the table or with how long it lives.
    """

    def __init__(self, handle: TableHandle, options: StreamOptions | None = None, *, window: int = WINDOW) -> None:
        self.handle = handle
        self.options = StreamOptions() if options is None else options
        self._window = window
        self.pinned: Snapshot = handle.newest()
        self._snapshot: Snapshot | None = None
        self._held: Run | None = None
        self._begun = False

    @property
    def table_id(self) -> str:
        """The id of the table, which every offset carries."""
        return self.pinned.metadata.id

    def initial_offset(self) -> StreamOffset:
        """Return where a stream begins that has not read anything."""
        begin, moment, newest = self.options.starting_version, self.options.starting_timestamp, self.pinned.version
        if begin is None and moment is None:
            return self._beginning(newest, is_snapshot=True)
        if begin == LATEST:
            return self._beginning(newest + 1)
        version = int(begin) if begin is not None else self._first_version_from(moment or 0)
        if version > newest:
            asked = f"startingVersion {version}" if begin is not None else "The moment of startingTimestamp"
            message = f"{asked} lies behind the newest version of {self.handle.uri}, which is {newest}"
            hint = "startingVersion=latest begins with what comes next"
            raise VersionNotFoundError(message, path=self.handle.uri, version=version, latest=newest, hint=hint)
        next(self._commits(version, version), None)  # one that was cleaned up is told now
        return self._beginning(version)

    def _beginning(self, version: int, *, is_snapshot: bool = False) -> StreamOffset:
        return StreamOffset(table_id=self.table_id, version=version, is_initial_snapshot=is_snapshot, is_beginning=True)

    def newest_version(self) -> int:
        """Return the newest version as the log has it now."""
        return self.handle.newest().version

    def latest_offset(
        self, start: StreamOffset, admission: Admission | None = None, last: int | None = None
    ) -> StreamOffset:
        """Return how far the stream may go from ``start``: as far as it is admitted, and not behind version ``last``.

        What stops the stream is an error only where nothing comes before it: what does is handed out first.
        """
        admission = Admission() if admission is None else admission
        position = start
        try:
            with closing(self._runs(start, last)) as runs:
                for run in runs:
                    taken = admission.take(numpy_of(run.files.size))
                    position = run.offset(taken)
                    # Not after another look: the next run may be another pass over the table's files.
                    if taken < len(run.files) or admission.is_full:
                        break
        except LazyDeltaError:
            if position == start:
                raise
        if start.is_beginning and position != start:
            return structs.replace(position, begun_at=(start.version, start.is_initial_snapshot))
        return position

    def runs_between(self, start: StreamOffset, end: StreamOffset) -> Iterator[Run]:
        """Yield the files from ``start`` to ``end``, in their order."""
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

    def _runs(self, start: StreamOffset, last: int | None) -> Generator[Run]:
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
                found = Run(self.table_id, news.version, False, first, news.files, news.is_last)  # noqa: FBT003
                if not news.admits(self.options, self.handle.uri):
                    found = replace(found, files=FileBatch.from_adds([]), is_last=True)
                yield found
                if found.is_last:
                    break
                first += len(news.files)
                news = read_news(commit.file, read_actions(self.handle.store, commit.file), first, self._window)
        if not seen and last is None:
            self._check_not_rewound(version)

    def _snapshot_runs(self, start: StreamOffset) -> Iterator[Run]:
        index, before = start.index, start.last_file
        if index and before is None:
            index = 0  # a note without the file: it has to be counted to
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

    def _snapshot_run(self, version: int, index: int, before: FileKey | None) -> Run:
        held = self._held
        if held is not None and held.version == version and 0 <= index - held.first < len(held.files):
            found = held.part(index - held.first, len(held.files))
            if found.before == before:
                return found
        snapshot = self._opened(version)
        scanner = self.handle.scan(snapshot, ScanRequest(batch_size=self.handle.options.rows_in_memory))
        with closing(scanner.batches()) as batches:
            window = next_files(batches, before, self._window)
        if window.passed != index:
            message = f"The snapshot of version {version} of {self.handle.uri} is not what it was"
            hint = (
                f"{window.passed} files come before the place where the stream stopped, and it had read {index}; "
                "the log was rewritten: start a new query with a fresh checkpoint location"
            )
            raise CorruptLogError(message, path=self.handle.uri, version=version, hint=hint)
        self._held = Run(self.table_id, version, True, index, window.files, window.is_last, before)  # noqa: FBT003
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

    def _first_version_from(self, moment: int) -> int:
        """Return the first version that was committed at a moment or later."""
        try:
            return version_at(self.handle.store, self.pinned.metadata, moment - 1) + 1
        except VersionNotFoundError:  # all that there are were
            return earliest_commit(self.handle.store) or 0

    def _check(self, start: StreamOffset) -> None:
        if start.table_id != self.table_id:
            message = f"The stream was reading the table {start.table_id}, and at {self.handle.uri} is {self.table_id}"
            hint = "the table was replaced, or the checkpoint location belongs to another stream"
            raise StreamStoppedError(message, path=self.handle.uri, version=start.version, hint=hint)

    def _check_table(self, news: CommitNews, file: LogFile) -> None:
        """Refuse a commit that makes another table of it: other columns, or a feature that we cannot read."""
        protocol = news.protocol or self.pinned.protocol
        if news.protocol is not None:
            check_readable(protocol, news.metadata or self.pinned.metadata, path=file.path)
        if news.metadata is not None:
            check_metadata(self.pinned, news.metadata, protocol, news.version)

    def _check_begin(self, version: int) -> None:
        """See that the rows of the first commit can be read: its columns may stand in a commit long before it."""
        if self._begun or version > self.pinned.version:
            return
        self._begun = True
        try:
            begin = self.handle.snapshot(version)
        except LogError:
            return  # its commit is there and its checkpoint is not: what it had for columns, nobody knows
        check_metadata(self.pinned, begin.metadata, begin.protocol, version)

    def _check_not_rewound(self, version: int) -> None:
        # The usual end of the log: the commit before is there. Else it may have been cleaned up, or never was.
        if version == 0 or next(list_commits(self.handle.store, version - 1, version - 1), None) is not None:
            return
        newest = self.newest_version()
        if newest < version - 1:
            message = f"{self.handle.uri} is at version {newest}, and the stream has read version {version - 1} of it"
            hint = "the log was set back; start a new query with a fresh checkpoint location"
            raise StreamStoppedError(message, path=self.handle.uri, version=newest, hint=hint)


def _check_end(found: Run, end: StreamOffset) -> None:
    if end.last_file is not None and len(found.files) and key_at(found.files, len(found.files) - 1) != end.last_file:
        message = f"File {end.index} of the snapshot of version {end.version} is not the one that the stream had read"
        raise CorruptLogError(message, path=end.last_file[1], version=end.version, hint="the log was rewritten")


def _shorter(uri: str, end: StreamOffset) -> CorruptLogError:
    message = f"Version {end.version} of {uri} has fewer than the {end.index} files that the stream had counted"
    hint = "the log was rewritten: start a new query with a fresh checkpoint location"
    return CorruptLogError(message, path=uri, version=end.version, hint=hint)
