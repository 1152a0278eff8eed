"""Commit of written files: the common path of all writes.

The files may come from one process or from many tasks, and some time after the table was read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from lazydelta.errors import CommitConflictError, SchemaMismatchError
from lazydelta.log.replay import ReverseCommitReader
from lazydelta.log.segment import commits_in_order, earliest_commit
from lazydelta.protocol.actions import Add, Metadata, Txn
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Store
from lazydelta.storage.staged_files import StagedFiles, delete_paths
from lazydelta.write.batch_record import BatchRecord
from lazydelta.write.create import new_metadata
from lazydelta.write.data_files import DataFileWriter
from lazydelta.write.identity import AllocatedValues
from lazydelta.write.plan import Creation, WritePlan, schema_of
from lazydelta.write.row_changes.rewriter import stage_inserted
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = [
    "RejectedRowsCounter",
    "RejectedRowsWriter",
    "as_texts",
    "commit_files",
    "commit_rejected",
    "delete_files",
    "named_files",
    "stage_files",
]


_log = logging.getLogger(__name__)

# Maximum number of attempts while other writers keep changing the metadata.
_MAX_OFFERS = 5


def commit_files(  # noqa: PLR0913 - all parts of a commit
    handle: TableHandle,
    plan: WritePlan,
    incoming: pa.Schema,
    written_for: Metadata,
    staged: StagedFiles,
    adds: Sequence[Add],
    *,
    operation: str = "WRITE",
    parameters: Mapping[str, Any] | None = None,
    txn: Txn | None = None,
    batch: BatchRecord | None = None,
    max_attempts: int = 15,
    begun: Transaction | None = None,
    allocated: AllocatedValues | None = None,
) -> CommitResult:
    """Commit files that were written for the metadata of an earlier version, possibly by other processes.

    ``staged`` holds ``adds``, and keeps them if the commit fails; the caller decides what to do with them. The table is
    read again. Concurrent changes do not prevent an append, as long as the table still has the columns that the files
    were written for. ``batch`` describes what is committed under ``txn``.

    A caller that wrote the files in one go passes its staged transaction as ``begun``, which is committed first.
    Conflicts with an existing table follow the rules of that transaction. The table is read again only if it did not
    exist before. ``allocated`` are the values of identity columns in the files: if another writer used them first, the
    files are written again with others.
    """
    store = handle.store
    for remaining in reversed(range(_MAX_OFFERS if allocated is None else max_attempts)):
        mine, begun = begun, None
        told = parameters or plan.parameters
        with mine or Transaction.begin(handle, operation=operation, parameters=told, txn=txn) as offer:
            offer.batch = batch
            if offer.already_committed:
                return offer.commit()
            if mine is None:
                _check_columns(_staged(plan, offer, incoming), written_for, store)
            if allocated is not None and offer.metadata is not None:
                adds = allocated.settle(offer.metadata, store, staged, adds)
                offer.set_metadata(allocated.noted())
            offer.add_staged(staged, adds)
            stage_inserted(offer, adds, schema_of(written_for))
            try:
                return offer.commit(max_attempts=max_attempts)
            except CommitConflictError:
                is_ruled_out = mine is not None and mine.snapshot is not None and allocated is None
                if plan.mode != "append" or plan.creates_only or is_ruled_out or not remaining:
                    raise
            if offer.snapshot is None:
                # Another writer created the table. If it has the same columns, this write becomes an append.
                _log.info("%s was created by another writer meanwhile; appending to it", store.uri)
                plan = replace(plan, creation=Creation())
    raise AssertionError("the last offer returns or raises")  # pragma: no cover


def stage_files(store: Store, adds: Iterable[Add], first: int | None) -> StagedFiles:
    """Stage files that other processes may have committed as version ``first`` or later; see `named_files`."""
    return StagedFiles(store, (unquote(each.path) for each in adds), named=partial(named_files, store, first=first))


def named_files(store: Store, paths: Collection[str], *, first: int | None) -> set[str]:
    """Return the files, identified by their unique names, that a commit from version ``first`` on references.

    If the log lacks such a commit, the answer is unknown and `commits_in_order` raises. None starts at the oldest
    commit in the log.
    """
    start = earliest_commit(store) if first is None else first
    commits = [] if start is None else list(commits_in_order(store, start))
    by_name = {path.rpartition("/")[2]: path for path in paths}
    found: set[str] = set()
    for commit in ReverseCommitReader(store, commits):
        for lines in commit.actions:
            names = (line.add.path.rpartition("/")[2] for line in lines if line.add is not None)
            found |= {by_name[name] for name in names if name in by_name}
    return found


def delete_files(store: Store, adds: Iterable[Add]) -> None:
    """Delete files that were never offered to a commit, as far as the store allows."""
    delete_paths(store, [unquote(each.path) for each in adds])


def _staged(plan: WritePlan, offer: Transaction, incoming: pa.Schema) -> Metadata:
    try:
        return plan.stage(offer, incoming)
    except SchemaMismatchError as error:  # the schema fitted when the files were written
        raise _changed(offer.store, f": {error}") from error


def _check_columns(found: Metadata, ours: Metadata, store: Store) -> None:
    columns = {each.name: each for each in schema_of(found).fields}
    lost = [each.name for each in schema_of(ours).fields if columns.get(each.name) != each]
    if not lost and found.partition_columns == ours.partition_columns:
        return
    raise _changed(store, f": {', '.join(lost)}" if lost else "")


def _changed(store: Store, detail: str) -> CommitConflictError:
    message = f"Another writer changed the columns of the table at {store.uri} meanwhile{detail}"
    return CommitConflictError(message, path=store.uri, hint="check the table's schema, then write again")


# Rejected rows: kept as strings in a separate table, with the reason.
#
# That table always has the same four columns, so its schema never changes.


_SCHEMA = pa.schema(
    [
        ("rejected_at", pa.timestamp("us", "UTC")),
        ("reason", pa.string()),
        ("source", pa.string()),
        ("record", pa.string()),
    ]
)
_MEMORY_BUDGET = 32 << 20


class RejectedRowsWriter:
    """Writes the rejected rows of one task. Makes no request as long as there are none."""

    def __init__(self, handle: TableHandle, source: str | None = None) -> None:
        self._handle = handle
        self._source = source
        self._files: DataFileWriter | None = None

    @property
    def num_rows(self) -> int:
        """Return the number of rejected rows."""
        return 0 if self._files is None else self._files.num_rows

    def __call__(self, rows: pa.RecordBatch, reason: str) -> None:
        """Write rejected rows, with the columns of the input."""
        self.texts(as_texts(rows), reason)

    def texts(
        self, records: Sequence[str], reason: str | Sequence[str], source: str | Sequence[str] | None = None
    ) -> None:
        """Write records that could not be parsed. Reason and source apply to all records, or are given for each."""
        if not records:
            return
        if self._files is None:
            self._files = DataFileWriter(
                self._handle.store,
                schema_of(_metadata()).to_arrow(),
                memory_budget=_MEMORY_BUDGET,
            )
        now = time.time_ns() // 1_000
        count = len(records)
        columns: list[list[Any]] = [
            [now] * count,
            [reason] * count if isinstance(reason, str) else list(reason),
            [source or self._source] * count if source is None or isinstance(source, str) else list(source),
            list(records),
        ]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
        self._files.write(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA))

    def close(self) -> list[Add]:
        """Finish the files and return their add actions."""
        return [] if self._files is None else self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._files is not None:
            self._files.__exit__(kind, error, trace)


class RejectedRowsCounter:
    """Counts rejected rows without keeping them."""

    def __init__(self) -> None:
        self.num_rows = 0

    def __call__(self, rows: pa.RecordBatch, reason: str) -> None:  # noqa: ARG002 - same signature as the writer
        """Count rows."""
        self.num_rows += rows.num_rows


def commit_rejected(
    handle: TableHandle,
    staged: StagedFiles,
    adds: Sequence[Add],
    txn: Txn | None,
    *,
    is_stream: bool = False,
) -> CommitResult:
    """Commit files of rejected rows to their table."""
    batch = BatchRecord.of_adds(adds, is_stream=is_stream)
    return commit_files(handle, WritePlan.of(), _SCHEMA, _metadata(), staged, adds, txn=txn, batch=batch)


def _metadata() -> Metadata:
    return new_metadata(_SCHEMA, description="Rows that an ingestion did not take, and why")


def as_texts(rows: pa.RecordBatch) -> list[str]:
    """Return each row as a JSON object string."""
    columns = [_values(column) for column in rows.columns]
    records = (dict(zip(rows.schema.names, values, strict=True)) for values in zip(*columns, strict=True))
    return [msgspec.json.encode(each, enc_hook=str).decode() for each in records]


def _values(column: pa.Array) -> list[Any]:
    """Return values that JSON can represent. Values that Python cannot hold are formatted by Arrow."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        # The time zone is the session's and only a label: the instants are the same in UTC.
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    try:
        found: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):  # Python's datetime ends with year 9999
        kind = _counted(column.type) if pa.types.is_nested(column.type) else pa.string()
        found = column.cast(kind).to_pylist()
    return found


def _counted(kind: pa.DataType) -> pa.DataType:
    """Return a nested type with timestamps as integers: microseconds, or days, since 1970."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(_counted(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_counted(kind.value_type)))
    if types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_counted(key.type)), item.with_type(_counted(item.type)))
    if types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if types.is_date32(kind) else kind
