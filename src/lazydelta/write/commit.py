"""`CommitLines`: the lines of a commit, built in chunks.

A commit is published by one put-if-absent, which no store accepts in pieces, so the whole commit is in memory once at
that point. Until then its file actions are kept encoded, in a temporary file above a few megabytes. A transaction that
removes a million files therefore holds bytes and not objects.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata as distributions
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from lazydelta.errors import CommitConflictError, OptionError, PredicateError
from lazydelta.log.file_batch import FileBatch
from lazydelta.predicates import (
    Predicate,
    Where,
    all_match,
    may_match,
    parse_predicate,
    partition_columns,
    stats_columns,
)
from lazydelta.predicates.tree import Opaque, leaves
from lazydelta.protocol.actions import (
    Add,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    add_body,
    cdc_body,
    domain_body,
    metadata_body,
    protocol_body,
    remove_body,
    txn_body,
)
from lazydelta.protocol.properties import ISOLATION_LEVELS
from lazydelta.protocol.schema import TableSchema
from lazydelta.runtime.arrays import flags
from lazydelta.scan.request import ScanRequest, ScanStrategy
from lazydelta.sidecar.handle import Snapshot
from lazydelta.stats import partition_ranges

__all__ = [
    "CommitInfo",
    "CommitLines",
    "CommitNote",
    "PartitionSelection",
    "header_lines",
    "num_records",
    "removal_of",
    "removals",
]


_IN_MEMORY = 8 << 20
_CHUNK = 1 << 20

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class FileTotals:
    """Totals of the file actions. ``rows_known`` and ``sizes_known`` are true if every action states its value."""

    added: int = 0
    added_bytes: int = 0
    added_rows: int = 0
    rows_known: bool = True
    removed: int = 0
    removed_bytes: int = 0
    sizes_known: bool = True

    def metrics(self) -> dict[str, str]:
        """Return the totals as ``operationMetrics``, under Delta-Spark's names."""
        found = {"numFiles": self.added, "numOutputBytes": self.added_bytes}
        if self.rows_known:
            found["numOutputRows"] = self.added_rows
        if self.removed:
            found["numRemovedFiles"] = self.removed
            if self.sizes_known:
                found["numRemovedBytes"] = self.removed_bytes
        return {key: str(value) for key, value in found.items()}


class _Records(msgspec.Struct, rename="camel"):
    num_records: int | None = None


class CommitLines:
    """The encoded file actions of one commit."""

    def __init__(self) -> None:
        self._spool = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, prefix="lazydelta-commit-")  # noqa: SIM115
        self.totals = FileTotals()

    def add(self, adds: Iterable[Add]) -> None:
        """Append files that are added to the table."""
        totals = self.totals
        lines: list[bytes] = []
        for each in adds:
            lines.append(_encode({"add": add_body(each)}))
            totals.added += 1
            totals.added_bytes += each.size
            rows = num_records(each.stats)
            totals.added_rows += rows or 0
            totals.rows_known &= rows is not None
        self._write(lines)

    def remove(self, removes: Iterable[Remove]) -> None:
        """Append files that are removed from the table."""
        totals = self.totals
        lines: list[bytes] = []
        for each in removes:
            lines.append(_encode({"remove": remove_body(each)}))
            totals.removed += 1
            totals.removed_bytes += each.size or 0
            totals.sizes_known &= each.size is not None
        self._write(lines)

    def note_changes(self, files: Iterable[Add]) -> None:
        """Append change data files, which are not part of the table."""
        self._write([_encode({"cdc": cdc_body(each)}) for each in files])

    def chunks(self) -> Iterator[bytes]:
        """Yield the encoded actions so far, in chunks."""
        self._spool.seek(0)
        while chunk := self._spool.read(_CHUNK):
            yield chunk
        self._spool.seek(0, io.SEEK_END)

    def below(self, header: bytes) -> bytes:
        """Return the whole commit: ``header``, then the file actions."""
        whole = io.BytesIO()
        whole.write(header)
        self._spool.seek(0)
        shutil.copyfileobj(self._spool, whole, _CHUNK)
        self._spool.seek(0, io.SEEK_END)
        return whole.getvalue()

    def close(self) -> None:
        """Release memory and the temporary file."""
        self._spool.close()

    def __del__(self) -> None:
        spool = getattr(self, "_spool", None)
        if spool is not None:
            spool.close()

    def _write(self, lines: list[bytes]) -> None:
        if lines:
            self._spool.write(b"\n".join([*lines, b""]))


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """Provenance of a commit. Its writer also recognizes the commit by it."""

    txn_id: str
    operation: str
    parameters: Mapping[str, Any]
    timestamp: int
    in_commit_timestamp: int | None
    is_blind_append: bool
    read_version: int | None
    metrics: Mapping[str, str | int]
    more: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the fields of the action. The id comes first, so that the first bytes are enough to find it."""
        body: dict[str, Any] = {"txnId": self.txn_id}
        if self.in_commit_timestamp is not None:
            body["inCommitTimestamp"] = self.in_commit_timestamp
        body |= {
            "timestamp": self.timestamp,
            "operation": self.operation,
            "operationParameters": {key: _text(value) for key, value in self.parameters.items()},
            "isBlindAppend": self.is_blind_append,
            "operationMetrics": dict(self.metrics),
            "engineInfo": engine(),
        }
        if self.read_version is not None:
            body["readVersion"] = self.read_version
        return {**body, **self.more}


def header_lines(
    info: CommitInfo,
    *,
    protocol: Protocol | None = None,
    metadata: Metadata | None = None,
    txns: Iterable[Txn] = (),
    domains: Iterable[DomainMetadata] = (),
) -> bytes:
    """Return the lines before the file actions. In-commit timestamps require ``commitInfo`` to be the first line."""
    lines: list[dict[str, Any]] = [{"commitInfo": info.body()}]
    if protocol is not None:
        lines.append({"protocol": protocol_body(protocol)})
    if metadata is not None:
        lines.append({"metaData": metadata_body(metadata)})
    lines.extend({"txn": txn_body(each)} for each in txns)
    lines.extend({"domainMetadata": domain_body(each)} for each in domains)
    return b"".join(_encode(line) + b"\n" for line in lines)


@cache
def engine() -> str:
    """Return the engine name that signs commits."""
    try:
        return f"lazydelta/{distributions.version('lazydelta')}"
    except distributions.PackageNotFoundError:
        return "lazydelta"  # run from a source folder without installation


def num_records(stats: str | None) -> int | None:
    """Return the number of rows in the statistics of a file, or None."""
    if stats is None:
        return None
    try:
        return msgspec.json.decode(stats, type=_Records).num_records
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _text(value: Any) -> str:
    # Delta-Spark stores parameters as strings, and all other values as JSON strings.
    return value if isinstance(value, str) else _encode(value).decode()


# Caller-supplied contents of a commit: provenance, and the progress of its applications.


_PARAMETERS = "operationParameters"
# Generated fields, which other readers rely on.
_GENERATED = frozenset({"timestamp", "operation", "engineInfo", "txnId", "inCommitTimestamp", "operationMetrics"})
_TEXTS = ("userId", "userName", "userMetadata")


@dataclass(frozen=True, slots=True)
class CommitNote:
    """Additions to a commit: ``info`` is merged into ``commitInfo``, and ``transactions`` are always recorded.

    The transactions do not make a write idempotent; ``app_id`` and ``app_version`` of `WriteOptions` do. ``seen`` maps
    application ids to their versions in the table version that the caller read. If an application has advanced since,
    another writer is working concurrently, and this note would hide its progress.
    """

    info: Mapping[str, Any] = field(default_factory=dict)
    transactions: tuple[Txn, ...] = ()
    seen: Mapping[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate the note: refuse values that cannot be written or would make the log wrong."""
        info: Any = self.info
        if not isinstance(info, Mapping):
            raise OptionError("custom_metadata is not a mapping", hint="pass a dictionary")
        if not all(isinstance(key, str) for key in info):
            raise OptionError("custom_metadata keys must be strings")
        try:
            json.dumps(dict(info), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"custom_metadata cannot be written as JSON: {error}") from error
        for key in sorted(_GENERATED.intersection(info)):
            raise OptionError(f"custom_metadata cannot set {key}", hint="lazydelta sets it; choose another name")
        for key, is_right, hint in _RULES:
            if key in info and not is_right(info[key]):
                raise OptionError(f"custom_metadata cannot set {key} to {info[key]!r}", hint=hint)

    def check_seen(self, found: Callable[[str], int | None], place: str) -> None:
        """Raise if an application is not at the version that the caller saw. ``found`` returns its current version."""
        for app_id, seen in self.seen.items():
            if found(app_id) != seen:
                raise _side_by_side(app_id, place)

    def check_winners(self, app_ids: Container[str], place: str) -> None:
        """Raise if another writer committed one of the applications in the meantime."""
        for each in self.transactions:
            if each.app_id in app_ids:
                raise _side_by_side(each.app_id, place)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Return the operation parameters given by the caller."""
        return dict(self.info.get(_PARAMETERS) or {})

    @property
    def more(self) -> dict[str, Any]:
        """Return the ``commitInfo`` fields other than the parameters."""
        return {key: value for key, value in self.info.items() if key != _PARAMETERS}


def _side_by_side(app_id: str, place: str) -> CommitConflictError:
    message = f"The application {app_id!r} has committed to {place} meanwhile, in another writer"
    return CommitConflictError(message, path=place, hint="read the table again and check what is left to write")


_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (_PARAMETERS, lambda value: isinstance(value, Mapping), "give an object"),
    ("readVersion", lambda value: isinstance(value, int) and value >= 0, "give a version"),
    ("isBlindAppend", lambda value: isinstance(value, bool), "give true or false"),
    ("isolationLevel", lambda value: value in ISOLATION_LEVELS, f"give one of {', '.join(ISOLATION_LEVELS)}"),
    *((key, lambda value: isinstance(value, str), "give a text") for key in _TEXTS),
)


# ``PartitionSelection``: the files of an overwrite by predicate, determined by partition values alone.


@dataclass(frozen=True, slots=True)
class PartitionSelection:
    """A predicate that is either true or not true for all rows of a file."""

    predicate: Predicate

    @classmethod
    def of(cls, where: Where, schema: TableSchema, what: str = "An overwrite by predicate") -> PartitionSelection:
        """Bind ``where``. Raise for predicates on other than partition columns, which could select part of a file."""
        predicate = parse_predicate(where, schema)
        if predicate is None:
            raise PredicateError(
                "An overwrite by predicate needs a predicate", hint="overwrite the whole table instead"
            )
        strange = [column.name for column in stats_columns(predicate)]
        if strange:
            message = f"{what} may name partition columns only, and the predicate names {strange}"
            known = ", ".join(schema.partition_columns) or "none"
            raise PredicateError(message, hint=f"the partition columns are: {known}")
        opaque = [str(leaf) for leaf in leaves(predicate) if isinstance(leaf, Opaque)]
        if opaque:
            message = f"Partition values do not determine whether {opaque[0]!r} holds"
            raise PredicateError(message, hint="use comparisons of partition columns with values")
        return cls(predicate)

    def matches(self, batch: FileBatch) -> npt.NDArray[np.bool_]:
        """Return a mask of the selected files. Raise if the partition values do not decide a file."""
        ranges = partition_ranges(batch.partition_values, partition_columns(self.predicate))
        may, surely = flags(may_match(self.predicate, ranges)), flags(all_match(self.predicate, ranges))
        unsure = np.flatnonzero(may & ~surely)
        if len(unsure):
            path = batch.path[int(unsure[0])].as_py()
            message = f"The partition values of {path} do not determine whether {self.predicate} holds"
            raise PredicateError(message, path=path, hint="select the partitions with = or IN")
        return surely


# The active files of a snapshot as ``remove`` actions, streamed.


def removal_of(add: Add, timestamp: int, *, data_change: bool = True) -> Remove:
    """Return the action that removes a file, with all fields that later readers and checksums need."""
    return Remove(
        path=add.path,
        deletion_timestamp=timestamp,
        data_change=data_change,
        extended_file_metadata=True,
        partition_values=add.partition_values,
        size=add.size,
        tags=add.tags,
        deletion_vector=add.deletion_vector,
        base_row_id=add.base_row_id,
        default_row_commit_version=add.default_row_commit_version,
    )


def removals(snapshot: Snapshot, timestamp: int, selection: PartitionSelection | None = None) -> Iterator[list[Remove]]:
    """Yield removes of every active file, or of the files in the selected partitions, in batches.

    They have all fields that later readers and checksums need. Statistics are omitted; Delta-Spark omits them too,
    except for the number of rows where it has counted them.
    """
    predicate = None if selection is None else selection.predicate
    request = ScanRequest(predicate=predicate, strategy=ScanStrategy.FORWARD, extra=True)
    for batch in snapshot.scan(request).batches():
        if selection is not None:
            selection.matches(batch)  # raises for files that the scan kept because it could not decide
        yield _removes(batch, timestamp)


def _removes(batch: FileBatch, timestamp: int) -> list[Remove]:
    nothing = [None] * len(batch)
    vectors = nothing if batch.deletion_vector is None else batch.deletion_vector.to_pylist()
    columns = zip(
        batch.path.to_pylist(),
        batch.size.to_pylist(),
        batch.partition_values.to_pylist(),
        vectors,
        nothing if batch.extra is None else batch.extra.field("tags").to_pylist(),
        strict=True,
    )
    return [
        Remove(
            path=path,
            deletion_timestamp=timestamp,
            extended_file_metadata=True,
            partition_values=dict(values or ()),
            size=size,
            tags=dict(tags) if tags else None,
            deletion_vector=None if vector is None else msgspec.convert(vector, DeletionVector),
        )
        for path, size, values, vector, tags in columns
    ]
