"""``write_arrow``: rows from Arrow to a table, in one call and one commit."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from lazydelta.errors import CommitConflictError, OptionError, WriteError
from lazydelta.log.actions import Add, Metadata, Txn
from lazydelta.log.properties import TableProperties
from lazydelta.maintenance.after_commit import after_commit
from lazydelta.pruning import Where
from lazydelta.storage import Store, open_store
from lazydelta.write.batch_record import BatchRecord, RowCounter
from lazydelta.write.data_files import MEMORY_BUDGET, TARGET_FILE_SIZE, DataFileWriter
from lazydelta.write.plan import Creation, WritePlan, commit_files, schema_of
from lazydelta.write.table_rows import TableRows, moment_texts
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = ["ArrowData", "commit_arrow", "txn_of", "write_arrow"]

_log = logging.getLogger(__name__)

ArrowData: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch] | Any"
"""Anything that gives record batches, the last being whatever has ``__arrow_c_stream__``."""


def write_arrow(  # noqa: PLR0913 - keyword-only, and each stands for itself
    uri: str | os.PathLike[str],
    data: ArrowData,
    *,
    mode: Literal["append", "overwrite"] = "append",
    partition_by: Sequence[str] | None = None,
    timestamp_column: str | None = None,
    boundary: str | None = None,
    partition_column: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    overwrite_where: Where = None,
    schema_mode: Literal["merge"] | None = None,
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
    app_id: str | None = None,
    app_version: int | None = None,
    null_timestamps: str = "null-partition",
    target_file_size: int = TARGET_FILE_SIZE,
    memory_budget: int = MEMORY_BUDGET,
    compression: str = "zstd",
    max_attempts: int = 15,
    maintain: bool = True,
) -> int:
    """Write rows to a table in one commit, and return its version; a table that does not exist is created.

    ``mode="overwrite"`` replaces the whole table, or what ``overwrite_where`` selects by partition columns.
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
    (``StorageError``) do the files stay. ``maintain`` writes the checkpoint and the sidecar where they are due.
    """
    plan = WritePlan.of(
        mode=mode,
        partition_by=partition_by,
        timestamp_column=timestamp_column,
        boundary=boundary,
        partition_column=partition_column,
        overwrite_where=overwrite_where,
        schema_mode=schema_mode,
        null_timestamps=null_timestamps,
        creation=Creation(dict(properties or {}), name, description),
    )
    done = commit_arrow(
        open_store(uri, storage_options),
        data,
        plan,
        txn=txn_of(app_id, app_version),
        target_file_size=target_file_size,
        memory_budget=memory_budget,
        compression=compression,
        max_attempts=max_attempts,
        maintain=maintain,
    )
    return done.version


def commit_arrow(  # noqa: PLR0913 - as above
    store: Store,
    data: ArrowData,
    plan: WritePlan,
    *,
    txn: Txn | None = None,
    target_file_size: int = TARGET_FILE_SIZE,
    memory_budget: int = MEMORY_BUDGET,
    compression: str = "zstd",
    max_attempts: int = 15,
    maintain: bool = True,
) -> CommitResult:
    """Write rows as `write_arrow` does, and return how the commit went."""
    source, batches = _open(data)
    with Transaction.begin(store, operation="WRITE", txn=txn) as transaction:
        if transaction.already_committed:
            return _repeated(transaction, plan, source, batches)
        plan = plan.settled(transaction.snapshot, source)
        transaction.parameters = plan.parameters
        incoming = plan.incoming(source)
        metadata = plan.stage(transaction, incoming)
        rows = TableRows(plan, metadata)
        files = DataFileWriter(
            store,
            schema_of(metadata).to_arrow(),
            metadata.partition_columns,
            properties=TableProperties.of(metadata),
            target_file_size=target_file_size,
            memory_budget=memory_budget,
            compression=compression,
        )
        with files:
            for batch in batches:
                files.write(rows(batch))
            adds = files.close()
        transaction.batch = BatchRecord.of_adds(adds, moments=moment_texts(plan, metadata, [rows.moments]))
        # From here on the files may be part of the table, and are deleted only where they are known not to be.
        try:
            result = _commit(transaction, plan, incoming, metadata, adds, txn, max_attempts)
        except WriteError:
            files.abort()
            raise
    if result.already_committed:
        files.abort()
    elif maintain:
        after_commit(store, result.version, result.metadata)
    return result


def _repeated(
    transaction: Transaction, plan: WritePlan, source: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> CommitResult:
    """Count the rows of a batch that the table has, so that another one under its number is noticed; write nothing."""
    # What an overwrite removes does not matter here, and would have to be looked for.
    plan = replace(plan, mode="append", overwrite_where=None).settled(transaction.snapshot, source)
    metadata = plan.stage(transaction, plan.incoming(source))
    rows, counter = TableRows(plan, metadata), RowCounter(metadata.partition_columns)
    for batch in batches:
        counter.write(rows(batch))
    moments = moment_texts(plan, metadata, [rows.moments])
    transaction.batch = BatchRecord(rows=counter.rows, partitions=counter.partitions, moments=moments)
    return transaction.commit()


def _commit(
    transaction: Transaction,
    plan: WritePlan,
    incoming: pa.Schema,
    metadata: Metadata,
    adds: list[Add],
    txn: Txn | None,
    max_attempts: int,
) -> CommitResult:
    transaction.add(*adds)
    try:
        return transaction.commit(max_attempts=max_attempts)
    except CommitConflictError:
        if transaction.snapshot is not None or plan.mode != "append":
            raise
    # Somebody else created the table in the meantime. If it has our columns, what we have to add is an append.
    _log.info("%s was created by another writer meanwhile; appending to it", transaction.store.uri)
    plan = replace(plan, creation=Creation())
    return commit_files(
        transaction.store,
        plan,
        incoming,
        metadata,
        adds,
        txn=txn,
        batch=transaction.batch,
        max_attempts=max_attempts,
    )


def txn_of(app_id: str | None, app_version: int | None) -> Txn | None:
    """Return the transaction that makes a write happen once; None if the caller did not ask for it."""
    if (app_id is None) != (app_version is None):
        raise OptionError("app_id and app_version belong together", hint="give both or neither")
    # Version 0 is a version.
    return None if app_id is None or app_version is None else Txn(app_id=app_id, version=app_version)


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
    if not isinstance(batch, pa.RecordBatch):
        message = f"A {type(batch).__name__} is no record batch"
        raise OptionError(message, hint="give pyarrow RecordBatches")
    return batch
