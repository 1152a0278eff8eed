"""``write_arrow``: rows from Arrow to a table, in one call and one commit."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from lazydelta.errors import CommitConflictError, OptionError, SchemaMismatchError, WriteError
from lazydelta.handle import TableHandle
from lazydelta.log.snapshot import Snapshot
from lazydelta.maintenance.once import after_commit
from lazydelta.write.commit_note import CommitNote
from lazydelta.write.job import WriteJob, WriteResult
from lazydelta.write.parquet_encoding import ParquetEncoding
from lazydelta.write.plan import is_merging
from lazydelta.write.transaction import Transaction
from lazydelta.write.write_options import WriteOptions, shows_options

__all__ = ["ArrowData", "commit_arrow", "write_arrow"]

ArrowData: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch] | Any"
"""Anything that gives record batches, the last being whatever has ``__arrow_c_stream__``."""

# Modes that only create, with what Delta-Spark calls them in the log.
_CREATING = {"error": "ErrorIfExists", "ignore": "Ignore"}


@shows_options("merge_schema", "max_rejected", "rejected_table")
def write_arrow(
    uri: str | os.PathLike[str],
    data: ArrowData,
    *,
    mode: Literal["append", "overwrite"] = "append",
    schema_mode: Literal["merge"] | None = None,
    **options: Any,
) -> int:
    """Write rows to a table in one commit, and return its version; a table that does not exist is created.

    ``mode="overwrite"`` replaces the whole table, or the rows that ``overwrite_where`` selects: whole partitions by
    their values, or rows inside of files, which are copied without them. New rows must be selected too.
    ``timestamp_column`` makes a partition column of UTC time out of a column: ``_event_hour`` with ``boundary="hour"``
    (the default), likewise month, day, minute, second; null timestamps get the null partition or, with
    ``null_timestamps="reject"``, are an error. ``partition_column`` gives that column another name. The table remembers
    this layout, so that later writes need not say it. Data that brings the column must have the values that would be
    made, or nulls. ``partition_by`` names further partition columns. ``schema_mode="merge"`` adds columns that
    the table does not have. ``properties``, ``name`` and ``description`` are those of a new table.

    With ``app_id`` and ``app_version`` the write happens once: if the table has this version of the application, or a
    later one, nothing is written, and the table's current version is returned. The rows are counted all the same, by
    partition: if they are not those that the table has under this version, that is an error.

    Memory is bounded by ``memory_budget`` and the batches given, however many there are. If the write fails, no data
    file is left behind as far as the store lets us delete it; only where it is not known whether the commit arrived
    (``StorageError``) do the files stay. ``maintain`` writes the checkpoint and the sidecar where they are due. All
    options beside ``mode`` and ``schema_mode`` are fields of `WriteOptions`.
    """
    return commit_arrow(uri, data, WriteOptions(**options, merge_schema=is_merging(schema_mode)), mode).version


def commit_arrow(
    uri: str | os.PathLike[str] | TableHandle,
    data: ArrowData,
    options: WriteOptions,
    mode: str = "append",
    *,
    note: CommitNote | None = None,
    replaces_schema: bool = False,
    same_columns: bool = False,
    encoding: ParquetEncoding | None = None,
) -> WriteResult:
    """Write rows as `write_arrow` does, and return how that went.

    ``mode`` may also be ``error`` or ``ignore``, for a table that must not exist yet, or is left alone if it does.
    ``note`` is what the commit says beside, and ``replaces_schema`` lets an overwrite give the table other columns;
    ``same_columns`` refuses data that lacks one of the table's.
    ``encoding`` is what the caller decides about the files.
    """
    if options.app_id is not None and options.app_version is None:
        raise OptionError("app_id and app_version belong together", hint="give both or neither")
    if options.rejected_table is not None or options.max_rejected is not None:
        message = "Rows from Arrow are not put aside: one that cannot be written is an error"
        raise OptionError(message, hint="leave rejected_table and max_rejected out")
    # An append would go behind whoever creates the table at the same time; who creates it must not.
    doing = "overwrite" if mode in _CREATING else mode
    options.plan(doing)  # refused before the data is touched
    source, batches = _open(data)
    handle = uri if isinstance(uri, TableHandle) else TableHandle.open(uri, options.storage_options)
    place, txn = handle.uri if isinstance(uri, TableHandle) else os.fspath(uri), options.txn
    more: dict[str, Any] = {"replaces_schema": replaces_schema or options.overwrite_schema}
    if note is not None:
        more["note"] = note
    if mode in _CREATING:
        more["shown_mode"] = _CREATING[mode]
    with Transaction.begin(handle, operation="WRITE", txn=txn) as transaction:
        known = transaction.snapshot
        if known is not None and mode in _CREATING:
            return _left_alone(known, mode)
        if same_columns and known is not None:
            _check_columns(known, source)
        job = WriteJob.within(transaction, place, source, options, doing, encoding, **more)
        result = job.count(batches) if transaction.already_committed else job.write(batches)
        try:
            done = job.commit([result], txn=txn, begun=transaction)
        except CommitConflictError:
            if mode != "ignore":
                raise
            return _left_alone(handle.newest(), mode)  # somebody else created it at the same time
    if options.maintain and not done.already_committed:
        after_commit(handle, done.version, done.metadata)
    return done


def _check_columns(known: Snapshot, source: pa.Schema) -> None:
    given = {name.lower() for name in source.names}
    lost = [each.name for each in known.schema.fields if each.name.lower() not in given]
    if lost:
        message = f"The data lacks the columns {lost} of the table, whose other rows keep them"
        hint = "a predicate lets rows stay, so columns cannot be replaced; leave schema_mode or the predicate out"
        raise SchemaMismatchError(message, path=known.store.uri, hint=hint)


def _left_alone(snapshot: Snapshot, mode: str) -> WriteResult:
    if mode == "error":
        message = f"A table already exists at {snapshot.store.uri}"
        hint = "say mode='append', 'overwrite' or 'ignore', or write to another place"
        raise WriteError(message, path=snapshot.store.uri, version=snapshot.version, hint=hint)
    return WriteResult(snapshot.version, metadata=snapshot.metadata, already_committed=True)


def _open(data: ArrowData) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema of the data and its batches, one at a time."""
    if isinstance(data, pa.Table):
        return data.schema, iter(data.to_batches())
    if isinstance(data, pa.RecordBatch):
        return data.schema, iter([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, _read(data)
    if hasattr(data, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(data)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise OptionError(f"The data gives no stream of Arrow batches: {error}") from error
        return reader.schema, _read(reader)
    if hasattr(data, "__arrow_c_array__"):
        batch = _batch(data)
        return batch.schema, iter([batch])
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | Mapping):
        message = f"Rows cannot be taken from a {type(data).__name__}"
        raise OptionError(message, hint="give a pyarrow Table, a RecordBatchReader or batches")
    batches = iter(data)
    first = next(batches, None)
    if first is None:
        raise OptionError("There is not a single batch, so the columns are unknown", hint="give an empty Table instead")
    return _batch(first).schema, map(_batch, itertools.chain([first], batches))


def _read(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except pa.ArrowException as error:
            raise WriteError(f"The rows to write could not be read: {error}", hint="nothing was committed") from error
        yield batch


def _batch(batch: object) -> pa.RecordBatch:
    if not isinstance(batch, pa.RecordBatch) and hasattr(batch, "__arrow_c_array__"):
        try:
            return pa.record_batch(batch)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise OptionError(f"The data gives no Arrow batch: {error}") from error
    if not isinstance(batch, pa.RecordBatch):
        message = f"A {type(batch).__name__} is no record batch"
        raise OptionError(message, hint="give pyarrow RecordBatches")
    return batch
