"""Stream the row-level changes of a range of versions as record batches."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.data_files.reader import RowReader
from lazydelta.errors import CorruptLogError, OptionError, UnsupportedFeatureError, VersionNotFoundError
from lazydelta.log.commits import read_actions
from lazydelta.log.file_batch import DELETION_VECTOR, PARTITION_VALUES, deletion_vector_array, partition_values_array
from lazydelta.log.replay import read_in_order
from lazydelta.log.segment import commits_in_order, list_commits
from lazydelta.log.time_travel import commit_info, milliseconds
from lazydelta.predicates import Where, parse_predicate, to_arrow_expression
from lazydelta.protocol.actions import Add, DeletionVector, LogLine, Metadata, Remove
from lazydelta.protocol.deletion_vectors import DeletedRows, read_deletion_vector
from lazydelta.protocol.file_names import LogFile
from lazydelta.protocol.properties import Key, is_true
from lazydelta.protocol.schema import Field, Primitive, TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import from_numpy, int64_array, string_array, typed_array, typed_scalar
from lazydelta.runtime.results import ArrowStream
from lazydelta.scan.file import StoredFile
from lazydelta.sidecar.handle import Snapshot
from lazydelta.storage import Store

__all__ = [
    "CHANGES_SCHEMA",
    "ChangeReader",
    "ChangeStream",
    "VersionRange",
    "check_enabled",
]


# What a commit changed, file by file.
#
# If a commit has ``cdc`` actions, their files hold the changed rows, and its adds and removes are ignored. Otherwise
# every row of an added file was inserted and every row of a removed file was deleted. A file that is removed and added
# again with another deletion vector changes only the rows in which the vectors differ. Actions with ``dataChange``
# false, such as those of OPTIMIZE, change nothing.


ENABLED = Key.CHANGE_DATA_FEED


class _Cdc(msgspec.Struct, rename="camel", frozen=True):
    path: str
    partition_values: dict[str, str | None] = {}
    size: int = 0


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """Changed rows of one file. ``change`` is their common change type, or None if the file stores it per row.

    With ``other``, only the rows that are live in ``file`` and deleted by the vector ``other`` changed.
    """

    file: StoredFile
    change: str | None
    other: DeletionVector | None = None


@dataclass(slots=True)
class _Commit:
    adds: dict[str, Add] = field(default_factory=dict)
    removes: dict[str, Remove] = field(default_factory=dict)
    changes: list[_Cdc] = field(default_factory=list)


def changed_files(store: Store, commit: LogFile) -> Iterator[ChangedFile]:
    """Yield the files that a commit changed; raise if the commit turns the change data feed off.

    The file actions of one commit are buffered, because only its last line shows whether it has change data.
    """
    found = _Commit()
    for lines in read_actions(store, commit):
        for line in lines:
            _take(found, line, commit)
    if found.changes:
        for each in found.changes:
            yield ChangedFile(StoredFile(each.path, each.size, each.partition_values), None)
        return
    for path, add in found.adds.items():
        before = found.removes.pop(path, None)
        mine = StoredFile(path, add.size, add.partition_values, add.deletion_vector)
        if before is None:
            yield ChangedFile(mine, "insert")
            continue
        old = before.deletion_vector
        if add.deletion_vector is not None:  # live before this commit, deleted by it
            yield ChangedFile(StoredFile(path, add.size, add.partition_values, old), "delete", add.deletion_vector)
        if old is not None:
            yield ChangedFile(mine, "insert", old)
    for path, remove in found.removes.items():
        values = remove.partition_values or {}
        yield ChangedFile(StoredFile(path, remove.size or 0, values, remove.deletion_vector), "delete")


def _take(found: _Commit, line: LogLine, commit: LogFile) -> None:
    if line.add is not None and line.add.data_change:
        found.adds[line.add.path] = line.add
    elif line.remove is not None and line.remove.data_change:
        found.removes[line.remove.path] = line.remove
    elif line.cdc is not None:
        try:
            found.changes.append(msgspec.convert(line.cdc, _Cdc))
        except msgspec.ValidationError as error:
            message = f"{commit.path} has a cdc action that is not valid: {error}"
            raise CorruptLogError(message, path=commit.path, version=commit.version) from error
    elif line.has("meta_data"):
        check_enabled(msgspec.json.decode(line.meta_data, type=Metadata), commit.version)


def check_enabled(metadata: Metadata, version: int) -> None:
    """Raise ``UnsupportedFeatureError`` if the change data feed is off at this version."""
    if not is_true(metadata, ENABLED):
        message = f"Reading a table version: {version} that does not have change data enabled"
        hint = f"the table's property {ENABLED} was not true then; start at a version where it is"
        raise UnsupportedFeatureError(message, version=version, features=("changeDataFeed",), hint=hint)


# Version ranges, by number or timestamp, and the commits they cover.


@dataclass(frozen=True, slots=True)
class ChangeCommit:
    """A commit and its timestamp in epoch milliseconds."""

    file: LogFile
    timestamp: int


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions ``first`` to ``last`` (inclusive) that were committed between two timestamps."""

    first: int = 0
    last: int | None = None
    since: int | None = None
    until: int | None = None
    may_be_outside: bool = False

    @classmethod
    def of(
        cls,
        first: int,
        last: int | None,
        since: str | datetime | None,
        until: str | datetime | None,
        *,
        may_be_outside: bool = False,
    ) -> VersionRange:
        """Validate a range given by the caller. Timestamps are ISO 8601 strings or datetimes."""
        given: tuple[tuple[str, object], ...] = (("starting_version", first), ("ending_version", last))
        for name, version in given:
            if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
                raise OptionError(
                    f"{name}={version!r} is not a table version", hint="versions are numbers of at least 0"
                )
        if last is not None and first > last:
            message = f"Invalid version. Start version {first} is greater than end version {last}"
            raise OptionError(message, hint="swap them")
        return cls(
            first,
            last,
            None if since is None else milliseconds(since),
            None if until is None else milliseconds(until),
            may_be_outside,
        )

    def commits(self, store: Store, metadata: Metadata, newest: int) -> list[ChangeCommit]:
        """Return the commits of the range, oldest first. ``newest`` is the newest version to consider.

        Commits that the log no longer has raise an error, because changes would otherwise be missing silently.
        """
        last = newest if self.last is None else min(self.last, newest)
        if self.first > last:
            return self._outside(store, f"Invalid table version: {self.first}", newest)
        first = self.first
        if self.since is not None:
            # A range by timestamp names no first version, so it starts at the earliest commit that exists.
            listed = next(list_commits(store, first, last), None)
            first = first if listed is None else listed.version
        try:
            files = list(commits_in_order(store, first, last))
        except VersionNotFoundError as error:
            message = f"Invalid table version: {self.first}"
            hint = "its commit was cleaned up; start at a later version, or with starting_timestamp"
            raise VersionNotFoundError(
                message, path=store.uri, version=self.first, latest=newest, earliest=error.earliest, hint=hint
            ) from error
        return self._within(store, metadata, files, newest)

    def _within(self, store: Store, metadata: Metadata, files: list[LogFile], newest: int) -> list[ChangeCommit]:
        in_commit = is_true(metadata, Key.IN_COMMIT_TIMESTAMPS)
        found = [ChangeCommit(file, commit_time(store, file, in_commit=in_commit)) for file in files]
        since, until = self.since, self.until
        if since is not None and all(each.timestamp < since for each in found):
            return self._outside(store, "The starting timestamp is greater than latest commit timestamp", newest)
        kept = [each for each in found if since is None or each.timestamp >= since]
        return [each for each in kept if until is None or each.timestamp <= until]

    def _outside(self, store: Store, message: str, newest: int) -> list[ChangeCommit]:
        if self.may_be_outside:
            return []
        hint = f"the newest version is {newest}; allow_out_of_range=True gives no rows instead"
        raise VersionNotFoundError(message, path=store.uri, latest=newest, hint=hint)


def commit_time(store: Store, file: LogFile, *, in_commit: bool) -> int:
    """Return the timestamp of a commit: the one recorded in it, or else the modification time of its file."""
    info = commit_info(store, file)
    names: Iterator[str] = iter(("inCommitTimestamp", "timestamp") if in_commit else ("timestamp",))
    return next((info[name] for name in names if isinstance(info.get(name), int)), file.info.last_modified)


_TYPE, _VERSION, _TIME = "_change_type", "_commit_version", "_commit_timestamp"
# Column types that predicates are bound to. The batches have the types that deltalake returns.
_COMPARED = {_TYPE: "string", _VERSION: "long", _TIME: "timestamp_ntz"}
_GIVEN = {_TYPE: pa.string(), _VERSION: pa.uint64(), _TIME: pa.timestamp("ms")}


class ChangeReader:
    """Reads changed rows under the schema of a snapshot, even if they were written under an older one.

    ``schema`` is the schema of the batches: the requested columns, or by default all columns of the table plus
    ``_change_type``, ``_commit_version`` and ``_commit_timestamp`` (UTC).
    """

    def __init__(self, snapshot: Snapshot, *, columns: Sequence[str] | None = None, where: Where = None) -> None:
        self._store = snapshot.store
        self._table = snapshot.schema
        notes = tuple(Field(name, Primitive(kind), True, name) for name, kind in _COMPARED.items())  # noqa: FBT003
        whole = msgspec.structs.replace(self._table, fields=(*self._table.fields, *notes))
        predicate = parse_predicate(where, whole)
        self._filter = None if predicate is None else to_arrow_expression(predicate, whole)
        self._columns = [each.name for each in whole.fields] if columns is None else list(columns)
        self._columns = [whole.field(name).name for name in self._columns]
        self.schema: pa.Schema = pa.schema(
            [pa.field(name, _GIVEN.get(name) or whole.field(name).type.to_arrow()) for name in self._columns]
        )

    def read(self, commits: Sequence[ChangeCommit]) -> Generator[pa.RecordBatch]:
        """Yield the rows that the commits changed, in commit order."""
        for commit in commits:
            for changed in changed_files(self._store, commit.file):
                for batch in self._rows(changed):
                    yield from self._noted(batch, commit)

    def _rows(self, changed: ChangedFile) -> Iterator[pa.RecordBatch]:
        """Yield the columns of the table and the change type of each row."""
        if changed.change is None:
            yield from self._cdc.read(changed.file)
            return
        if changed.other is None:
            rows = self._plain.read(changed.file)
        else:
            rows = self._difference(changed)
        kind = typed_scalar(changed.change, pa.string())
        for batch in rows:
            yield batch.append_column(pa.field(_TYPE, pa.string()), pa.repeat(kind, batch.num_rows))

    def _difference(self, changed: ChangedFile) -> Iterator[pa.RecordBatch]:
        file, start = changed.file, 0
        old = None if file.deletion_vector is None else self._vector(changed, file.deletion_vector)
        other = self._vector(changed, changed.other)
        # Deletion vectors hold row positions in the file, so the file is read without applying any vector.
        for batch in self._plain.read(msgspec.structs.replace(file, deletion_vector=None)):
            length = batch.num_rows
            gone = other.keep_mask(start, length)
            if gone is not None:
                mask = pc.invert(gone)
                live = None if old is None else old.keep_mask(start, length)
                kept = batch.filter(mask if live is None else pc.and_(mask, live))
                if kept.num_rows:
                    yield kept
            start += length

    def _vector(self, changed: ChangedFile, vector: object) -> DeletedRows:
        return read_deletion_vector(self._store, vector, data_file=changed.file.path)  # type: ignore[arg-type]

    def _noted(self, batch: pa.RecordBatch, commit: ChangeCommit) -> Iterator[pa.RecordBatch]:
        count = batch.num_rows
        version = pa.repeat(typed_scalar(commit.file.version, pa.int64()), count)
        instant = pa.repeat(typed_scalar(commit.timestamp * 1000, pa.int64()), count).view(pa.timestamp("us"))
        batch = batch.append_column(pa.field(_VERSION, version.type), version)
        batch = batch.append_column(pa.field(_TIME, instant.type), instant)
        kept = batch if self._filter is None else batch.filter(self._filter)
        if kept.num_rows:
            yield kept.select(self._columns).cast(self.schema)

    @cached_property
    def _plain(self) -> RowReader:
        return RowReader(self._store, self._table)

    @cached_property
    def _cdc(self) -> RowReader:
        noted = Field(_TYPE, Primitive("string"), True, _TYPE)  # noqa: FBT003
        fields = (*self._table.fields, noted)
        # The change type column has no field id in any schema. Change data files are read by name instead.
        mapping = "name" if self._table.column_mapping == "id" else self._table.column_mapping
        return RowReader(self._store, TableSchema(fields, self._table.partition_columns, mapping))


# ``ChangeStream``: the files that versions added and removed, read on demand.


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


class ChangeStream(ArrowStream):
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
            raise OptionError(f"batch_size={batch_size!r} is not valid", hint="pass at least 1")
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

    def _export(self) -> Iterator[pa.RecordBatch]:
        return iter(self)

    def close(self) -> None:
        """Do nothing: each iteration closes itself."""


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
        raise OptionError(message, hint="versions are numbers of at least 0; omit it to read all available changes")
    if since > snapshot.version:
        message = f"Version {since} of {snapshot.store.uri} does not exist yet"
        hint = f"pass a version up to {snapshot.version}, at which the table is pinned"
        raise VersionNotFoundError(message, path=snapshot.store.uri, version=since, latest=snapshot.version, hint=hint)
    return since
