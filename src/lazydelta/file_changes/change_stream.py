"""``ChangeStream``: the files that versions added and removed, read while they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lazydelta.errors import OptionError, VersionNotFoundError
from lazydelta.file_changes.changes_schema import CHANGES_SCHEMA, is_change, to_changes
from lazydelta.file_changes.commit_sequence import commits_in_order, read_in_order
from lazydelta.log.actions import LogLine
from lazydelta.log.names import LogFile
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.travel import commit_info

__all__ = ["ChangeStream", "time_of"]


class ChangeStream:
    """The changes of the versions after ``since`` up to the one that is pinned, as Arrow record batches.

    They come in the order of the log: by version, and within one as logged. ``schema`` is theirs; each batch is of one
    version. A stream may be iterated any number of times, and each time the log is read anew. Memory is a chunk of a
    commit and the commits that are fetched ahead (eight megabytes at most), whatever the commits hold.
    """

    schema: pa.Schema = CHANGES_SCHEMA

    def __init__(self, snapshot: Snapshot, since: int | None = None, *, batch_size: int = 8192) -> None:
        self._snapshot = snapshot
        self._since = -1 if since is None else _checked(snapshot, since)
        if isinstance(batch_size, bool) or batch_size < 1:
            raise OptionError(f"batch_size={batch_size!r} makes no sense", hint="give a number of changes from 1")
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        snapshot, schema = self._snapshot, self._snapshot.schema
        logical = dict(zip(schema.physical_partition_columns, schema.partition_columns, strict=True))
        if self._since >= snapshot.version:
            return
        first = self._since + 1
        ratified = [each for each in snapshot.segment.commits if each.version >= first]
        files = commits_in_order(snapshot.store, first, snapshot.version, ratified)
        for commit in read_in_order(snapshot.store, files, parallelism=snapshot.parallelism):
            timestamp: int | None = None
            for lines in commit.actions:
                if timestamp is None:
                    timestamp = time_of(snapshot, commit.file, lines)
                found = [line for line in lines if is_change(line)]
                for start in range(0, len(found), self._batch_size):
                    some = found[start : start + self._batch_size]
                    yield to_changes(some, version=commit.file.version, timestamp=timestamp, logical=logical)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the changes as a PyArrow reader."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def read_all(self) -> pa.Table:
        """Return all changes as a table."""
        return pa.Table.from_batches(iter(self), schema=self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hand the changes to another library; nothing is read before it pulls."""
        return self.to_reader().__arrow_c_stream__(requested_schema)


def time_of(snapshot: Snapshot, file: LogFile, lines: list[LogLine]) -> int:
    """Return when a commit was made in epoch milliseconds: as it says itself, else as the store says.

    ``lines`` are its first actions. Writers put what they say of a commit first; where it is not among these, the
    commit is looked through for it.
    """
    info = next((line.commit_info for line in lines if line.commit_info is not None), None)
    if info is None:
        info = commit_info(snapshot.store, file)
    stated = (info.get(name) for name in ("inCommitTimestamp", "timestamp"))
    return next((each for each in stated if isinstance(each, int)), file.info.last_modified)


def _checked(snapshot: Snapshot, since: object) -> int:
    if isinstance(since, bool) or not isinstance(since, int) or since < -1:
        message = f"since={since!r} is not a table version"
        raise OptionError(message, hint="versions are numbers from 0; leave it out for all changes that there are")
    if since > snapshot.version:
        message = f"Version {since} of {snapshot.store.uri} does not exist yet"
        hint = f"give a version up to {snapshot.version}, at which the table is pinned"
        raise VersionNotFoundError(message, path=snapshot.store.uri, version=since, latest=snapshot.version, hint=hint)
    return since
