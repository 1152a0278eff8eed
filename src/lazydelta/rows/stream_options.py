"""Options of a stream, with the names that Delta-Spark uses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from lazydelta.errors import CorruptLogError, OptionError, StreamStoppedError
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.time_travel import milliseconds
from lazydelta.protocol.actions import Add, LogLine, Metadata, Protocol
from lazydelta.protocol.arrow_types import is_widening
from lazydelta.protocol.features import column_mapping_mode
from lazydelta.protocol.file_names import LogFile
from lazydelta.protocol.schema import Array, DataType, Field, Map, Struct, TableSchema
from lazydelta.sidecar.handle import Snapshot

__all__ = [
    "LATEST",
    "Admission",
    "CommitNews",
    "FileKey",
    "StreamOffset",
    "StreamOptions",
    "check_metadata",
    "read_news",
]


LATEST = "latest"
# The default of Delta-Spark.
_MAX_FILES = 1000
_STORAGE = "storage."
_SIZE = re.compile(r"\s*(\d+)\s*([kmgt]?)i?b?\s*", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# Options of batch reads, and what to use in a stream instead.
_OF_BATCHES = {
    "versionasof": "startingVersion says where a stream begins",
    "timestampasof": "startingTimestamp says where a stream begins",
    "where": "filter what is loaded: load(uri).where(…)",
    "columns": "choose among what is loaded: load(uri).select(…)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Where a stream starts, how much it reads per step, and how it handles changes.

    ``starting_version`` is a number or ``"latest"``; ``starting_timestamp`` is in epoch milliseconds. Without either,
    the stream starts with the files of the newest version. A commit that removes files raises an error unless one of
    these is set: ``ignore_deletes`` skips commits that only remove files, ``ignore_changes`` also emits the files that
    a rewrite added (with rows that were emitted before), ``skip_change_commits`` skips all such commits.
    """

    max_files: int | None = _MAX_FILES
    max_bytes: int | None = None
    starting_version: int | str | None = None
    starting_timestamp: int | None = None
    ignore_deletes: bool = False
    ignore_changes: bool = False
    skip_change_commits: bool = False
    fail_on_data_loss: bool = True
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Raise ``OptionError`` for options that exclude each other."""
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise OptionError(
                "startingVersion and startingTimestamp are mutually exclusive", hint="pass only one of them"
            )

    @classmethod
    def from_spark(cls, options: Mapping[str, str]) -> StreamOptions:
        """Parse the options of Spark's reader. An unknown option is an error, because it may be a typo."""
        values: dict[str, Any] = {}
        storage: dict[str, str] = {}
        for given, text in options.items():
            key = given.lower()
            if key.startswith(_STORAGE):
                storage[key.removeprefix(_STORAGE)] = text
            elif key in _NAMES:
                spelled, name, read = _NAMES[key]
                values[name] = read(spelled, text)
            elif key in _OF_BATCHES:
                message = f"The option {given!r} is not valid for a stream"
                raise OptionError(message, hint=_OF_BATCHES[key])
            elif key != "path":
                known = ", ".join(spelled for spelled, _, _ in _NAMES.values())
                raise OptionError(f"There is no option {given!r}", hint=f"known: {known} and storage.…")
        return cls(**values, storage_options=storage)


def _flag(spelled: str, text: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise OptionError(f"{spelled}={text!r} is not valid", hint="use true or false")
    return text.strip().lower() == "true"


def _number(spelled: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(f"{spelled}={text!r} is not valid", hint="pass a number of at least 1")
    return int(text)


def _bytes(spelled: str, text: str) -> int:
    match = _SIZE.fullmatch(text)
    size = 0 if match is None else int(match[1]) * _FACTORS[match[2].lower()]
    if size < 1:
        raise OptionError(f"{spelled}={text!r} is not valid", hint="pass a number of bytes, or a size such as 128MB")
    return size


def _version(spelled: str, text: str) -> int | str:
    if text.strip().lower() == LATEST:
        return LATEST
    if not text.strip().isdecimal():
        raise OptionError(f"{spelled}={text!r} is not valid", hint="pass a version, or latest")
    return int(text)


def _timestamp(_: str, text: str) -> int:
    return milliseconds(text)


_NAMES: dict[str, tuple[str, str, Callable[[str, str], Any]]] = {
    spelled.lower(): (spelled, name, read)
    for spelled, name, read in (
        ("maxFilesPerTrigger", "max_files", _number),
        ("maxBytesPerTrigger", "max_bytes", _bytes),
        ("startingVersion", "starting_version", _version),
        ("startingTimestamp", "starting_timestamp", _timestamp),
        ("ignoreDeletes", "ignore_deletes", _flag),
        ("ignoreChanges", "ignore_changes", _flag),
        ("skipChangeCommits", "skip_change_commits", _flag),
        ("failOnDataLoss", "fail_on_data_loss", _flag),
    )
}


# ``StreamOffset``: the progress of a stream, as stored in a checkpoint location.
#
# It counts files in an order that depends only on the log: files of the snapshot by modification time and path, files
# of a commit as logged. It is independent of sidecars, strategies and tiers.


FileKey = tuple[int, str]
"""Modification time and path, which order the files of a snapshot."""

_FORMAT = 1


class StreamOffset(msgspec.Struct, rename="camel", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Position of a stream: every file before ``index`` of ``version`` was read.

    With ``is_initial_snapshot``, ``index`` counts all files of that version, otherwise the files that its commit added.
    ``last_file`` is the snapshot file just before the index. It is redundant, but without it a reader has to count
    through the list from the beginning.

    Spark stores where a micro-batch ends, but not where the first one began. If it is killed before the first one is
    done, it asks for the initial offset again, and the table may be at another version by then. The initial offset is
    therefore marked (``is_beginning``), and the end of the first micro-batch records it (``begun_at``: the version, and
    whether it was the snapshot).
    """

    source_version: int = _FORMAT
    table_id: str
    version: int
    index: int = 0
    is_initial_snapshot: bool = False
    last_file: FileKey | None = None
    is_beginning: bool = False
    begun_at: tuple[int, bool] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the offset as JSON values. Equal offsets give equal values."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        for name, absent in (("lastFile", None), ("isBeginning", False), ("begunAt", None)):
            if found[name] == absent:
                del found[name]
        return found

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> StreamOffset:
        """Parse a stored offset, and raise if it is not a lazydelta offset."""
        try:
            found = msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            message = f"The checkpoint location holds an offset that lazydelta did not write: {dict(given)!r} ({error})"
            hint = "a stream of another source cannot be continued; use a new checkpoint location"
            raise OptionError(message, hint=hint) from error
        if found.source_version != _FORMAT or found.version < 0 or found.index < 0:
            message = f"The offset {dict(given)!r} was written by another version of lazydelta, or by hand"
            raise OptionError(message, hint="continue with the version that wrote it, or use a new checkpoint location")
        return found

    def really_from(self, start: StreamOffset) -> StreamOffset:
        """Return where the micro-batch that ends here really began, even if the initial offset was requested again."""
        if not start.is_beginning or self.begun_at is None:
            return start
        version, is_snapshot = self.begun_at
        return StreamOffset(table_id=self.table_id, version=version, is_initial_snapshot=is_snapshot)

    @property
    def place(self) -> tuple[int, int]:
        """Return the sort key of offsets in one stream. A snapshot sorts before the commits after it."""
        return self.version, self.index


# Admission control: how many files one step of a stream may read.


@dataclass(slots=True)
class Admission:
    """Counts admitted files. The first file is always admitted, or a large one would block the stream.

    As in Delta-Spark, the number of files is a hard limit. Bytes are checked before each file, so the last file may
    exceed the limit.
    """

    max_files: int | None = None
    max_bytes: int | None = None
    files: int = 0
    bytes: int = 0

    def take(self, sizes: npt.NDArray[np.int64]) -> int:
        """Admit as many of the next files as possible, and return their number."""
        count = len(sizes)
        if self.max_files is not None:
            count = min(count, max(0, self.max_files - self.files))
        ends = self.bytes + np.cumsum(sizes[:count], dtype=np.int64)
        if self.max_bytes is not None:
            count = int(np.count_nonzero(ends - sizes[:count] < self.max_bytes))
        self.files += count
        self.bytes = int(ends[count - 1]) if count else self.bytes
        return count

    @property
    def is_full(self) -> bool:
        """Whether no further file would be admitted."""
        by_files = self.max_files is not None and self.files >= self.max_files
        return by_files or (self.max_bytes is not None and self.bytes >= self.max_bytes)


# Commits as a stream sees them: new files in log order, and changes that it cannot ignore.
#
# Files with ``dataChange`` false, as written by OPTIMIZE, are not new. A file with a new deletion vector is removed and
# added again, so it counts as a change.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommitNews:
    """Summary of a commit, and the requested part of the files it added, starting at index ``first``."""

    version: int
    first: int
    files: FileBatch
    added: int
    removed: int
    removed_path: str | None
    metadata: Metadata | None
    protocol: Protocol | None

    @property
    def is_last(self) -> bool:
        """Whether these are the last files of the commit."""
        return self.first + len(self.files) >= self.added

    def admits(self, options: StreamOptions, uri: str) -> bool:
        """Return whether to emit the files. Raises if the commit changes rows and no option says how to handle it."""
        if not self.removed:
            return True
        if options.skip_change_commits:
            return False
        if options.ignore_changes or (options.ignore_deletes and not self.added):
            return True
        what = "deletes rows" if not self.added else "changes rows"
        message = f"Version {self.version} of {uri} {what}: it removes {self.removed_path}"
        more = f" and {self.removed - 1} more" if self.removed > 1 else ""
        hint = (
            "a stream has no word for that. skipChangeCommits=true passes over such commits, ignoreChanges=true hands "
            "out rewritten files again"
        )
        if not self.added:
            hint += ", ignoreDeletes=true passes over commits that only delete"
        raise StreamStoppedError(f"{message}{more}", path=self.removed_path, version=self.version, hint=hint)


def read_news(file: LogFile, actions: Iterable[list[LogLine]], first: int, count: int) -> CommitNews:
    """Read a whole commit, because its last line may matter, and keep ``count`` files starting at ``first``."""
    kept: list[Add] = []
    added = removed = 0
    removed_path: str | None = None
    metadata: Metadata | None = None
    protocol: Protocol | None = None
    for lines in actions:
        for line in lines:
            if line.add is not None:
                if line.add.data_change:
                    if first <= added < first + count:
                        kept.append(line.add)
                    added += 1
            elif line.remove is not None:
                if line.remove.data_change:
                    removed += 1
                    removed_path = removed_path or line.remove.path
            elif line.has("meta_data"):
                metadata = _decoded(line.meta_data, Metadata, file)
            elif line.has("protocol"):
                protocol = _decoded(line.protocol, Protocol, file)
    files = FileBatch.from_adds(kept)
    return CommitNews(file.version, first, files, added, removed, removed_path, metadata, protocol)


def _decoded(raw: msgspec.Raw, kind: type[T], file: LogFile) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        message = f"{file.path} has a {kind.__name__.lower()} action that is not valid: {error}"
        raise CorruptLogError(message, path=file.path, version=file.version) from error


# Check whether rows of a commit can be read with the columns that the stream started with.


def check_metadata(pinned: Snapshot, metadata: Metadata, protocol: Protocol, version: int) -> None:
    """Raise if the metadata of a version does not fit the stream; the error says how to continue.

    The columns of a stream are those of the version it was started at. Files of older commits must be readable with
    them. A newer commit that changes the columns ends the stream, because the columns of a DataFrame cannot change.
    """
    uri = pinned.store.uri
    if metadata.id != pinned.metadata.id:
        message = f"Version {version} of {uri} belongs to another table ({metadata.id}, not {pinned.metadata.id})"
        hint = "the table was replaced; start a new query with a new checkpoint location"
        raise StreamStoppedError(message, path=uri, version=version, hint=hint)
    ours = pinned.schema
    theirs = TableSchema.parse(
        metadata.schema_string,
        partition_columns=metadata.partition_columns,
        column_mapping=column_mapping_mode(metadata, protocol),
        origin=f"version {version}",
    )
    if version > pinned.version:
        if theirs != ours:
            message = f"Version {version} of {uri} changes the table's columns: {_difference(ours, theirs)}"
            hint = "start the query again, with its checkpoint location: it continues here, with the new columns"
            raise StreamStoppedError(message, path=uri, version=version, hint=hint)
        return
    why = _partitions(ours, theirs) or reads(ours.fields, theirs.fields)
    if why is not None:
        message = f"Rows of version {version} of {uri} cannot be read under the table's present columns: {why}"
        hint = (
            f"the columns were changed between versions {version} and {pinned.version}; start a new query with a fresh "
            "checkpoint location, whose snapshot has all rows, or with a later startingVersion"
        )
        raise StreamStoppedError(message, path=uri, version=version, hint=hint)


def reads(ours: tuple[Field, ...], theirs: tuple[Field, ...], within: str = "") -> str | None:
    """Return why files with the fields ``theirs`` cannot be read as ``ours``, or None if they can."""
    known = {each.physical_name: each for each in ours}
    for other in theirs:
        mine = known.pop(other.physical_name, None)
        name = f"{within}{other.name}"
        if mine is None:
            return f"the column {name!r} is gone"
        why = _reads_type(mine.type, other.type, name)
        if why is not None:
            return why
    lacking = next((each for each in known.values() if not each.nullable), None)
    return None if lacking is None else f"the column {within + lacking.name!r} may not be null, and did not exist"


def _reads_type(mine: DataType, theirs: DataType, name: str) -> str | None:
    if isinstance(mine, Struct) and isinstance(theirs, Struct):
        return reads(mine.fields, theirs.fields, f"{name}.")
    if isinstance(mine, Array) and isinstance(theirs, Array):
        return _reads_type(mine.element, theirs.element, name)
    if isinstance(mine, Map) and isinstance(theirs, Map):
        return _reads_type(mine.key, theirs.key, name) or _reads_type(mine.value, theirs.value, name)
    if mine == theirs or is_widening(theirs, mine):
        return None
    return f"the column {name!r} was {theirs} and is {mine}"


def _partitions(ours: TableSchema, theirs: TableSchema) -> str | None:
    if ours.physical_partition_columns == theirs.physical_partition_columns:
        return None
    return f"it was partitioned by {list(theirs.partition_columns)} and is by {list(ours.partition_columns)}"


def _difference(ours: TableSchema, theirs: TableSchema) -> str:
    mine = {each.name: each for each in ours.fields}
    told = [f"{each.name!r} is new" for each in theirs.fields if each.name not in mine]
    for each in theirs.fields:
        known = mine.pop(each.name, None)
        if known is not None and known != each:
            changed = f" ({known.type} to {each.type})" if known.type != each.type else ""
            told.append(f"{each.name!r} is another{changed}")
    told += [f"{name!r} is gone" for name in mine]
    return "; ".join(told) or _partitions(ours, theirs) or "their order or their mapping is another"
