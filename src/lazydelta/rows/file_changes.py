"""``ChangeStream``: the files that versions added and removed, read on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lazydelta.errors import OptionError, VersionNotFoundError
from lazydelta.log.file_batch import DELETION_VECTOR, PARTITION_VALUES, deletion_vector_array, partition_values_array
from lazydelta.log.replay import read_in_order
from lazydelta.log.segment import commits_in_order
from lazydelta.log.time_travel import commit_info
from lazydelta.protocol.actions import LogLine
from lazydelta.protocol.file_names import LogFile
from lazydelta.runtime.arrays import from_numpy, int64_array, string_array, typed_array
from lazydelta.sidecar.handle import Snapshot

__all__ = ["CHANGES_SCHEMA", "ChangeStream"]


# The documented Arrow schema of file changes.


CHANGES_SCHEMA = pa.schema(
    [
        pa.field("version", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("modification_time", pa.int64()),
        pa.field("partition_values", PARTITION_VALUES),
        pa.field("deletion_vector", DELETION_VECTOR),
        pa.field("data_change", pa.bool_()),
        pa.field("detail", pa.string()),
    ],
)


def is_change(line: LogLine) -> bool:
    """Return whether an action adds or removes a file, or sets the metadata or protocol."""
    return line.add is not None or line.remove is not None or line.describes_table()


def to_changes(lines: Sequence[LogLine], *, version: int, timestamp: int, logical: Mapping[str, str]) -> pa.RecordBatch:
    """Return actions of one version as a batch; ``logical`` maps physical to logical partition column names."""
    count = len(lines)
    files: list[Any] = [line.add if line.add is not None else line.remove for line in lines]
    vectors = [None if each is None else each.deletion_vector for each in files]
    columns = [
        from_numpy(np.full(count, version, np.int64)),
        from_numpy(np.full(count, timestamp, np.int64)),
        string_array([_action(line) for line in lines]),
        string_array([None if each is None else each.path for each in files]),
        int64_array([None if each is None else each.size for each in files]),
        int64_array([None if line.add is None else line.add.modification_time for line in lines]),
        partition_values_array([_named(None if each is None else each.partition_values, logical) for each in files]),
        deletion_vector_array(vectors),
        typed_array([None if each is None else each.data_change for each in files], pa.bool_()),
        string_array([_detail(line) for line in lines]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=CHANGES_SCHEMA)


def _action(line: LogLine) -> str:
    if line.add is not None:
        return "add"
    if line.remove is not None:
        return "remove"
    return "metaData" if line.has("meta_data") else "protocol"


def _detail(line: LogLine) -> str | None:
    """Return the metadata or protocol action as logged, so that consumers can compare versions."""
    if line.add is not None or line.remove is not None:
        return None
    return bytes(line.meta_data if line.has("meta_data") else line.protocol).decode("utf-8", "surrogatepass")


def _named(values: Mapping[str, str | None] | None, logical: Mapping[str, str]) -> dict[str, str | None] | None:
    return None if values is None else {logical.get(name, name): value for name, value in values.items()}


class ChangeStream:
    """File changes of the versions after ``since`` up to the pinned one, as Arrow record batches.

    Changes come in log order: by version, and within a version as logged. Each batch belongs to one version and has the
    schema ``schema``. A stream can be iterated any number of times; each iteration reads the log again. Memory is
    bounded by one chunk of a commit and the prefetched commits (eight megabytes at most), whatever the commit sizes.
    """

    schema: pa.Schema = CHANGES_SCHEMA

    def __init__(self, snapshot: Snapshot, since: int | None = None, *, batch_size: int = 8192) -> None:
        self._snapshot = snapshot
        self._since = -1 if since is None else _checked(snapshot, since)
        if isinstance(batch_size, bool) or batch_size < 1:
            raise OptionError(f"batch_size={batch_size!r} is not valid", hint="give a number of changes from 1")
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
        """Export the changes through the Arrow C stream interface. Nothing is read until the consumer pulls."""
        return self.to_reader().__arrow_c_stream__(requested_schema)


def time_of(snapshot: Snapshot, file: LogFile, lines: list[LogLine]) -> int:
    """Return the timestamp of a commit in epoch milliseconds: the recorded one, or else its file's modification time.

    ``lines`` are the first actions of the commit. Writers put ``commitInfo`` first; if it is not among ``lines``, the
    whole commit is searched.
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
