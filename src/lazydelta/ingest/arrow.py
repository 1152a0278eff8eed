"""`write_arrow`: write Arrow data to a table in one commit."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from lazydelta.errors import CommitConflictError, OptionError, SchemaMismatchError, WriteError
from lazydelta.maintenance.after_commit import after_commit
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.write.commit import CommitNote
from lazydelta.write.job import WriteJob, WriteResult
from lazydelta.write.options import WriteOptions, shows_options
from lazydelta.write.parquet_encoding import ParquetEncoding
from lazydelta.write.plan import is_merging
from lazydelta.write.transaction import Transaction

__all__ = ["ArrowData", "commit_arrow", "open_data", "write_arrow"]

ArrowData: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch] | Any"
"""Any source of record batches, objects with ``__arrow_c_stream__``, columns in a dict, or rows in a list of dicts."""

# Modes that only create a table, with their names in Delta-Spark's log entries.
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
    """Write rows to a table in one commit, and return its version. A table that does not exist is created.

    ``mode="overwrite"`` replaces the whole table, or the rows that match ``overwrite_where``: whole partitions by their
    values, or rows inside files, which are copied without them. New rows must match the predicate too.

    ``timestamp_column`` derives a UTC partition column from a column: ``_event_hour`` with ``boundary="hour"`` (the
    default), or likewise month, day, minute, second. Rows with a null timestamp go to the null partition or, with
    ``null_timestamps="reject"``, are an error. ``partition_column`` renames the derived column, and
    ``partition_format`` writes its values in another way that sorts as time: ``"%Y-%m-%d-%H"``. The table records this
    layout, so later writes can omit it. ``partition_generated`` makes the column of a new table a generated column of
    Delta (``date_format(at, 'yyyy-MM-dd-HH')``): Delta-Spark then derives partition filters from those of the timestamp
    and writes the column itself, both in the time zone of its session, which has to be UTC. Data that includes the
    column must hold the derived values, or nulls.
    ``partition_by`` names further partition columns. ``schema_mode="merge"`` adds columns that the table does not have.
    ``properties``, ``name`` and ``description`` apply to a new table.

    With ``app_id`` and ``app_version`` the write is idempotent: if the table has this version of the application, or a
    later one, nothing is written, and the table's current version is returned. The rows are still counted by partition.
    If they differ from the rows that the table has under this version, an error is raised.

    Memory is bounded by ``memory_budget`` and the size of the batches, not by their number. If the write fails, its
    data files are deleted as far as the store allows. They are kept only if it is unknown whether the commit succeeded
    (``StorageError``). ``maintain`` writes the checkpoint and the sidecar when they are due. All options besides
    ``mode`` and ``schema_mode`` are fields of `WriteOptions`.

    Args:
        uri: Where the table is, or will be.
        data: A table, a data frame, record batches, or dictionaries.
        mode: ``append`` or ``overwrite``.
        schema_mode: ``merge`` adds columns.
        **options: Fields of ``WriteOptions``.

    Returns:
        The version of the commit.

    Raises:
        SchemaMismatchError: If the columns do not fit those of the table.
        CommitConflictError: If another writer changed what an overwrite replaces.
        WriteError: If nothing was committed for another reason.

    Example:
        >>> lazydelta.write_arrow("made", {"id": [1, 2]})
        0
        >>> lazydelta.write_arrow("made", {"id": [3]})
        1

    """
    if schema_mode is not None:
        options["merge_schema"] = is_merging(schema_mode)
    return commit_arrow(uri, data, WriteOptions(**options), mode).version


def commit_arrow(  # noqa: PLR0913 - keyword-only options
    uri: str | os.PathLike[str] | TableHandle,
    data: ArrowData,
    options: WriteOptions,
    mode: str = "append",
    *,
    note: CommitNote | None = None,
    replaces_schema: bool = False,
    same_columns: bool = False,
    casts: bool = False,
    encoding: ParquetEncoding | None = None,
) -> WriteResult:
    """Write rows as `write_arrow` does, and return the result.

    ``mode`` may also be ``error`` or ``ignore``, for a table that must not exist, or is left unchanged if it does.
    ``note`` is added to the commit. ``replaces_schema`` lets an overwrite change the columns of the table.
    ``same_columns`` refuses data that lacks a column of the table. ``casts`` takes numbers, and strings of integers, of
    another type if the column holds each value. ``encoding`` is the caller's choice of Parquet encoding.
    """
    if options.app_id is not None and options.app_version is None:
        raise OptionError("app_id and app_version belong together", hint="pass both or neither")
    if options.rejected_table is not None or options.max_rejected is not None:
        message = "Rows from Arrow are not set aside: a row that cannot be written is an error"
        raise OptionError(message, hint="omit rejected_table and max_rejected")
    # An append would succeed after a concurrent creation of the table. The creating modes must conflict instead.
    doing = "overwrite" if mode in _CREATING else mode
    options.plan(doing)  # validate before the data is read
    source, batches = open_data(data)
    handle = uri if isinstance(uri, TableHandle) else TableHandle.open(uri, options.storage_options)
    place, txn = handle.uri if isinstance(uri, TableHandle) else os.fspath(uri), options.txn
    more: dict[str, Any] = {"replaces_schema": replaces_schema or options.overwrite_schema, "casts": casts}
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
            return _left_alone(handle.newest(), mode)  # another writer created it at the same time
    if options.maintain and not done.already_committed:
        after_commit(handle, done.version, done.metadata)
    return done


def _check_columns(known: Snapshot, source: pa.Schema) -> None:
    given = {name.lower() for name in source.names}
    lost = [each.name for each in known.schema.fields if each.name.lower() not in given]
    if lost:
        message = f"The data lacks the columns {lost} of the table, whose other rows keep them"
        hint = "a predicate keeps other rows, so columns cannot be replaced; omit schema_mode or the predicate"
        raise SchemaMismatchError(message, path=known.store.uri, hint=hint)


def _left_alone(snapshot: Snapshot, mode: str) -> WriteResult:
    if mode == "error":
        message = f"A table already exists at {snapshot.store.uri}"
        hint = "pass mode='append', 'overwrite' or 'ignore', or write to another place"
        raise WriteError(message, path=snapshot.store.uri, version=snapshot.version, hint=hint)
    return WriteResult(snapshot.version, metadata=snapshot.metadata, already_committed=True)


def open_data(data: ArrowData) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema of the data and an iterator over its batches."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        return data.schema, iter(data.to_batches() if isinstance(data, pa.Table) else [data])
    if isinstance(data, pa.RecordBatchReader):
        return data.schema, _read(data)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "to_reader"):  # or a PyArrow scanner
        try:
            streams = not hasattr(data, "to_reader") or hasattr(data, "__arrow_c_stream__")
            reader = pa.RecordBatchReader.from_stream(data) if streams else data.to_reader()  # type: ignore[union-attr]
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise OptionError(f"The data gives no stream of Arrow batches: {error}") from error
        return reader.schema, _read(reader)
    if hasattr(data, "__arrow_c_array__"):
        batch = _batch(data)
        return batch.schema, iter([batch])
    if hasattr(data, "to_batches") and hasattr(data, "scanner"):  # a PyArrow dataset
        return data.schema, data.to_batches()  # type: ignore[union-attr]
    if type(data).__name__ == "LazyFrame" and hasattr(data, "collect"):
        raise OptionError("A LazyFrame has no rows until it is collected", hint="pass frame.collect()")
    if isinstance(data, Mapping):
        return open_data(_from_python(lambda: pa.table(dict(data))))
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | os.PathLike):
        hint = "pass a pyarrow Table, a data frame, batches, or dictionaries"
        if isinstance(data, str | os.PathLike):
            hint = "the location comes first, then a data frame or other rows (pyarrow.parquet.read_table(path))"
        raise OptionError(f"Rows cannot be read from {type(data).__name__}", hint=hint)
    batches = iter(data)
    first = next(batches, None)
    if isinstance(first, Mapping):
        rows = [first, *batches]
        names = list(dict.fromkeys(name for row in rows for name in row))
        return open_data(
            _from_python(lambda: pa.table({name: pa.array([row.get(name) for row in rows]) for name in names}))
        )
    if first is None:
        raise OptionError("There are no batches, so the columns are unknown", hint="pass an empty Table instead")
    return _batch(first).schema, map(_batch, itertools.chain([first], batches))


def _from_python(make: Callable[[], pa.Table]) -> pa.Table:
    try:
        return make()
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        message = f"The values do not make columns: {error}"
        raise OptionError(message, hint='pass {"column": [values, …]} or [{"column": value}, …]') from error


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
        message = f"A {type(batch).__name__} is not a record batch"
        raise OptionError(message, hint="pass a data frame, a pyarrow Table, batches, or a list of dictionaries")
    return batch
