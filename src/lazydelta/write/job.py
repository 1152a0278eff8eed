"""`WriteJob`: a write as serializable data, for one process or for tasks on many machines.

A job is prepared on the driver, writes (or counts) rows wherever it is sent, and is committed or discarded on the
driver. `write_arrow`, the command line and Spark only transport it. They also start the maintenance that follows a
commit: the result reports what was committed, including rejected rows.

A task writes data files and publishes nothing. Rows too few for a file are returned with the task's result, and the
driver merges them into one file per partition. The volume of returned rows is bounded for any number of tasks.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from lazydelta.errors import LazyDeltaError, OptionError, SchemaMismatchError, WriteError
from lazydelta.predicates import Where
from lazydelta.protocol.actions import Add, Metadata, Txn
from lazydelta.protocol.properties import TableProperties
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Store, expand_home, folded, redact, refuse_half_uri
from lazydelta.storage.staged_files import StagedFiles
from lazydelta.write.batch_record import BatchDigest, BatchRecord, RowCounter
from lazydelta.write.column_mapping import PhysicalColumns
from lazydelta.write.data_files import DataFileWriter
from lazydelta.write.file_commit import (
    RejectedRowsCounter,
    RejectedRowsWriter,
    commit_files,
    commit_rejected,
    named_files,
    stage_files,
)
from lazydelta.write.identity import IDENTITY, AllocatedValues, lacking
from lazydelta.write.options import WriteOptions
from lazydelta.write.parquet_encoding import ParquetEncoding
from lazydelta.write.plan import MaxRejected, WritePlan, partitions_of, schema_of
from lazydelta.write.table_rows import TableRows, Timestamps, timestamp_texts
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = [
    "FAMILY_DIGITS",
    "TaskResult",
    "WriteJob",
    "WriteResult",
    "clear_earlier_attempts",
    "mark_in",
    "mark_of",
    "refuse_older",
]


# Input and output of a write task.


# Spark sends small batches.
_ROWS_AT_ONCE = 1 << 17
_BYTES_AT_ONCE = 32 << 20


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Result of a task: files in place, rows for the driver to write, and rejected rows.

    ``small`` says how many rows of ``small_rows`` belong to each partition, in their order: one batch, because a task
    may have rows of thousands of partitions.

    ``run_again`` marks a task whose earlier attempts may have orphaned files. If the table already has the batch, the
    task writes nothing. It counts the rows of each partition, so that a different batch under the same number is
    detected. ``digest`` is the digest of the input rows, if requested, and ``last_identity`` the highest number used of
    the sequences of identity columns.
    """

    rows: int = 0
    adds: tuple[Add, ...] = ()
    small: tuple[tuple[tuple[str | None, ...], int], ...] = ()
    small_rows: bytes = b""
    rejected: int = 0
    rejected_adds: tuple[Add, ...] = ()
    timestamps: Timestamps | None = None
    counted: Mapping[str, int] | None = None
    run_again: bool = False
    digest: int | None = None
    last_identity: int = -1


def joined_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches, so that partitioning rows into files takes fewer steps per row."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and not batch.schema.equals(waiting[0].schema):  # files may have different columns
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def packed(rows: pa.RecordBatch) -> bytes:
    """Serialize rows for transport."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpacked(rows: bytes) -> pa.RecordBatch:
    """Deserialize rows after transport."""
    with pa.ipc.open_stream(rows) as reader:
        return reader.read_next_batch()


# Orphaned files of failed task attempts: identified by name, and deleted after the job is committed.
#
# All file names of a job share a prefix. A repeated task writes the same rows to the same partitions, so the prefix
# finds the files of earlier attempts. Only repeated tasks are checked: one prefix listing per file they wrote.
#
# If the driver is killed, the job that repeats the work uses another prefix. The names also contain a mark of the batch
# (application and version), by which maintenance finds the orphaned files (`lazydelta.maintenance.after_commit`).


_log = logging.getLogger(__name__)

FAMILY_DIGITS = 12
"""Number of hex digits of a file name that identify the job. The mark of the batch and the file's own digits follow."""
_MARK_DIGITS = 10
_HYPHENS = 1
_NAME = re.compile(r"part-\d{5,}-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.(?:c000|ld\d+)(?:\.[a-z]+)?\.parquet")


def new_family(txn: Txn | None = None) -> str:
    """Return the file name prefix of a new job, including the mark of its batch."""
    return marked(uuid.uuid4().hex, txn)


def marked(family: str, txn: Txn | None) -> str:
    """Return the file name prefix of a job for a batch. The mark is random if the log does not record the batch."""
    mark = uuid.uuid4().hex[:_MARK_DIGITS] if txn is None else mark_of(txn)
    return family[:FAMILY_DIGITS] + mark


def mark_of(txn: Txn) -> str:
    """Return the hex digits that identify the files of a batch, independent of the job that writes them."""
    return hashlib.sha256(f"{txn.app_id}\0{txn.version}".encode()).hexdigest()[:_MARK_DIGITS]


def mark_in(name: str) -> str | None:
    """Return the mark in the name of a data file, or None if lazydelta did not write the file."""
    found = _NAME.fullmatch(name)
    return None if found is None else found[1].replace("-", "")[FAMILY_DIGITS : FAMILY_DIGITS + _MARK_DIGITS]


def clear_earlier_attempts(
    store: Store, results: Sequence[TaskResult], committed: Iterable[Add], version: int | None = None
) -> None:
    """Delete files orphaned by earlier attempts of the tasks of a committed job. VACUUM removes what this misses.

    The job started at ``version``. A file is deleted only if no later commit, of any batch, references it. If the
    version is unknown, all commits in the log are checked.
    """
    again = [add for each in results if each.run_again for add in each.adds]
    if not again:
        return
    # A case-insensitive file system may also list the files of p=A under p=a.
    named = {folded(unquote(each.path)) for each in committed}
    try:
        left = {path for add in again for path in _siblings(store, unquote(add.path)) if folded(path) not in named}
    except LazyDeltaError as error:
        _log.warning("what earlier attempts left in %s is left to VACUUM: %s", store.uri, error)
        return
    if left:
        first = None if version is None else version + 1
        _log.info("%d files of earlier attempts are deleted from %s", len(left), store.uri)
        StagedFiles(store, sorted(left), named=partial(named_files, store, first=first)).discard()


def _siblings(store: Store, path: str) -> Iterator[str]:
    """Yield the files in the same folder whose names share the job prefix."""
    folder, _, name = path.rpartition("/")
    start = name.index("-", name.index("-") + 1) + 1
    beginning = name[: start + FAMILY_DIGITS + _HYPHENS]
    for info in store.list(folder, after=beginning):
        if not info.path.rpartition("/")[2].startswith(beginning):
            return
        yield info.path


# A task may return partitions with fewer bytes than `_SMALL`, up to a total. The n-th task may return 1/n of the
# total, so the sum over all tasks grows logarithmically with their number.
_SMALL = 1 << 20
_SMALL_IN_ALL, _SMALL_PER_TASK = 16 << 20, 4 << 20


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Result of a write.

    ``version`` is the committed version and ``metadata`` the metadata in force. With ``already_committed`` the table
    already had these rows, and nothing was added. ``rejected_commit`` is the commit to the table of rejected rows, or
    None.
    """

    version: int
    metadata: Metadata = field(repr=False, kw_only=True)
    rows: int = 0
    files: int = 0
    bytes: int = 0
    rejected: int = 0
    already_committed: bool = False
    rejected_commit: CommitResult | None = field(default=None, repr=False)


@dataclass(frozen=True)
class WriteJob:
    """A write to one table. ``source`` is the schema of the rows, ``metadata`` the metadata the files are written for.

    ``committed`` maps each application to its last version in table version ``version``, the newest when the job was
    prepared (-1 if there was no table). A job that is ``alone`` has a single task: no rows are returned to a driver,
    and a rejected row is an error. ``family`` is the common prefix of its file names.
    """

    uri: str = field(repr=False)  # may contain a signature
    options: WriteOptions
    plan: WritePlan
    source: pa.Schema
    metadata: Metadata
    committed: Mapping[str, int] = field(default_factory=dict)
    version: int = -1
    alone: bool = False
    family: str = field(default_factory=new_family, repr=False)
    encoding: ParquetEncoding | None = field(default=None, repr=False)

    @classmethod
    def prepare(cls, uri: str, source: pa.Schema, options: WriteOptions, mode: str = "append") -> WriteJob:
        """Read the table state and validate the write. Nothing is written yet."""
        # Tasks may run in other directories and without credentials: send an absolute URI and the credentials.
        uri, options = _absolute(uri), options.carrying_credentials()
        if options.rejected_table is not None:
            options = replace(options, rejected_table=_absolute(options.rejected_table))
        plan = options.plan(mode)
        with Transaction.begin(TableHandle.open(uri, options.storage_options), operation="WRITE") as transaction:
            snapshot = transaction.snapshot
            plan = plan.settled(snapshot, source)
            if plan.timestamp_column is None and plan.null_timestamps == "reject":
                raise OptionError(
                    "There is no timestamp column whose nulls could be rejected", hint="pass timestamp_column"
                )
            # Only the metadata is needed here. An overwrite determines the files to remove at commit time.
            metadata = _without_removals(plan).stage(transaction, plan.incoming(source))
            committed = {} if snapshot is None else {each.app_id: each.version for each in snapshot.transactions()}
        version = -1 if snapshot is None else snapshot.version
        family = new_family(options.txn)
        return cls(uri, options, plan, source, metadata, committed, version, family=family)

    @classmethod
    def within(
        cls,
        transaction: Transaction,
        uri: str,
        source: pa.Schema,
        options: WriteOptions,
        mode: str = "append",
        encoding: ParquetEncoding | None = None,
        **more: Any,
    ) -> WriteJob:
        """Prepare a single-task job that commits through an open transaction; see ``commit``.

        ``encoding`` is the caller's choice of Parquet encoding. ``more`` sets fields of the plan that are not options.
        """
        plan, snapshot = replace(options.plan(mode), **more), transaction.snapshot
        if transaction.already_committed:  # skip the search for files to remove, which is not needed then
            plan = _without_removals(plan)
        plan = plan.settled(snapshot, source)
        transaction.parameters = plan.parameters
        metadata = plan.stage(transaction, plan.incoming(source))
        version = -1 if snapshot is None else snapshot.version
        job = cls(
            _absolute(uri),
            options,
            plan,
            source,
            metadata,
            version=version,
            alone=True,
            family=new_family(options.txn),
            encoding=encoding,
        )
        job.__dict__["handle"] = transaction.handle  # already open
        return job

    @cached_property
    def handle(self) -> TableHandle:
        """The handle of the table. Each process opens its own."""
        return TableHandle.open(self.uri, self.options.storage_options)

    @cached_property
    def rejected_handle(self) -> TableHandle:
        """The handle of the table of rejected rows."""
        return TableHandle.open(self.options.rejected_uri(self.uri), self.options.storage_options)

    @property
    def store(self) -> Store:
        """The store of the table."""
        return self.handle.store

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields that are sent to the tasks."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def is_committed(self, txn: Txn | None) -> bool:
        """Return whether the table already had these rows when the job was prepared."""
        return txn is not None and self.committed.get(txn.app_id, -1) >= txn.version

    # --- in a task

    def of_batch(self, txn: Txn) -> WriteJob:
        """Return the job for a micro-batch, with the mark of the batch in its file names."""
        return replace(self, family=marked(self.family, txn))

    def rejected_rows(self) -> RejectedRowsWriter:
        """Return a writer for the rows that a task rejects."""
        return RejectedRowsWriter(self.rejected_handle)

    def write(
        self,
        batches: Iterable[pa.RecordBatch],
        number: int = 0,
        *,
        rejected: RejectedRowsWriter | None = None,
        run_again: bool = False,
        digest: BatchDigest | None = None,
    ) -> TaskResult:
        """Write rows to data files. ``number`` is the index of the task.

        Pass ``rejected`` if rows are also rejected while the batches are produced, ``run_again`` if the task had an
        earlier attempt, and ``digest`` to compute a digest of the rows.
        """
        if rejected is None and not self.alone:
            rejected = self.rejected_rows()
        rows = TableRows(self.plan, self.metadata, rejected, None if self.alone else number)
        with rejected or nullcontext(), self._writer(number) as files:
            for batch in self._batches(batches, digest):
                self._check_identities(batch.schema)
                files.write(rows(batch))
            share = min(_SMALL_PER_TASK, _SMALL_IN_ALL // (number + 1))
            small = [] if self.alone else files.set_aside(_SMALL, share)
            adds = files.close()
            return TaskResult(
                rows=files.num_rows + sum(each.num_rows for _, each in small),
                adds=tuple(adds),
                small=tuple((partition, each.num_rows) for partition, each in small),
                small_rows=packed(pa.concat_batches([each for _, each in small])) if small else b"",
                rejected=0 if rejected is None else rejected.num_rows,
                rejected_adds=() if rejected is None else tuple(rejected.close()),
                timestamps=rows.timestamps,
                run_again=run_again,
                digest=None if digest is None else digest.value,
                last_identity=rows.last_identity,
            )

    def count(self, batches: Iterable[pa.RecordBatch], digest: BatchDigest | None = None) -> TaskResult:
        """Count the rows of a batch that the table already has."""
        table = schema_of(self.metadata)
        counter = RowCounter(table.partition_columns, table.physical_partition_columns)
        rejected = RejectedRowsCounter()
        rows = TableRows(self.plan, self.metadata, None if self.alone else rejected)
        for batch in self._batches(batches, digest):
            counter.write(rows(batch))
        return TaskResult(
            rows=counter.rows,
            rejected=rejected.num_rows,
            timestamps=rows.timestamps,
            counted=counter.partitions,
            digest=None if digest is None else digest.value,
        )

    def _batches(self, batches: Iterable[pa.RecordBatch], digest: BatchDigest | None) -> Iterable[pa.RecordBatch]:
        # For a single-task job the caller has already sized the batches.
        for batch in batches if self.alone else joined_batches(batches):
            if digest is not None:
                digest.add(batch)
            yield batch

    def _writer(self, number: int) -> DataFileWriter:
        properties = TableProperties.of(self.metadata)
        columns = self.options.stats_column_names
        if columns is not None:
            properties = msgspec.structs.replace(properties, stats_columns=columns)
        table = schema_of(self.metadata)
        return DataFileWriter(
            self.store,
            table.to_arrow(),
            self.metadata.partition_columns,
            properties=properties,
            target_file_size=int(self.options.target_file_size),
            memory_budget=int(self.options.memory_budget),
            compression=self.options.compression,
            first_number=number,
            physical=None if table.column_mapping == "none" else PhysicalColumns(table),
            family=self.family,
            encoding=self.encoding,
        )

    # --- on the driver

    def commit(
        self,
        results: Sequence[TaskResult],
        *,
        txn: Txn | None = None,
        operation: str = "WRITE",
        parameters: Mapping[str, Any] | None = None,
        sources: Sequence[tuple[str, int]] | None = None,
        is_stream: bool = False,
        batch_plan: str | None = None,
        begun: Transaction | None = None,
    ) -> WriteResult:
        """Commit the files of the tasks as one version of the table.

        ``sources`` are the names and sizes of the source files, if they alone identify the batch.
        ``batch_plan`` identifies the planned contents of a micro-batch, if known.
        ``begun`` is the transaction that the job was prepared in.
        """
        self._refuse_rejected(results)
        if any(each.counted is not None for each in results):
            return self._repeat(results, txn, is_stream=is_stream, batch_plan=batch_plan, begun=begun)
        with self._staged(results) as files:
            gathered = self._gather(results)
            files.stage(unquote(each.path) for each in gathered)
            adds = [*(add for each in results for add in each.adds), *gathered]
            batch = self._record(results, adds, is_stream=is_stream, plan=batch_plan)
            batch = batch if sources is None else batch.from_sources(sources)
            beside = self._commit_rejected(results, txn, batch)
            done = commit_files(
                self.handle,
                self._replacing(adds, begun),
                self.plan.incoming(self.source),
                self.metadata,
                files,
                adds,
                operation=operation,
                parameters=parameters or self.plan.parameters,
                txn=txn,
                batch=batch,
                max_attempts=self.options.max_attempts,
                begun=begun,
                allocated=self._allocated(results),
            )
        if done.already_committed:
            return WriteResult(done.version, already_committed=True, metadata=done.metadata, rejected_commit=beside)
        clear_earlier_attempts(self.store, results, adds, self.version)
        return WriteResult(
            done.version,
            rows=sum(each.rows for each in results),
            files=len(adds),
            bytes=sum(each.size for each in adds),
            rejected=sum(each.rejected for each in results),
            metadata=done.metadata,
            rejected_commit=beside,
        )

    def _replacing(self, adds: Sequence[Add], begun: Transaction | None) -> WritePlan:
        """Return the plan with the partitions that a dynamic overwrite replaces: those that received files."""
        if not self.plan.replaces_partitions:
            return self.plan
        plan = replace(self.plan, replaces_partitions=False)
        table = schema_of(self.metadata)
        # Without partition columns the whole table is one partition. Without files nothing is replaced.
        where: Where = partitions_of(adds, table) if table.partition_columns else None
        if table.partition_columns and not adds:
            return replace(plan, mode="append")
        if begun is not None and begun.snapshot is not None:
            if where is None:
                begun.remove_all()
            else:
                begun.remove_partitions(where)
        return replace(plan, overwrite_where=where)

    def discard(self, results: Sequence[TaskResult]) -> None:
        """Delete the files of the tasks, except those that a commit references."""
        self._staged(results).discard()
        if rejected := [add for each in results for add in each.rejected_adds]:
            stage_files(self.rejected_handle.store, rejected, None).discard()

    def _staged(self, results: Sequence[TaskResult]) -> StagedFiles:
        return stage_files(self.store, (add for each in results for add in each.adds), self.version + 1)

    def _allocated(self, results: Sequence[TaskResult]) -> AllocatedValues | None:
        last = max((each.last_identity for each in results), default=-1)
        if last < 0:
            return None
        table = schema_of(self.metadata)
        columns = lacking(table, self.source.names)
        return AllocatedValues(self.metadata, table, columns, last, self._rewritten)

    def _check_identities(self, given: pa.Schema) -> None:
        """Raise if some rows have values of an identity column, and others lack them."""
        if IDENTITY not in self.metadata.schema_string or given.equals(self.source):
            return
        table = schema_of(self.metadata)
        for name in set(lacking(table, given.names)) ^ set(lacking(table, self.source.names)):
            message = f"Some of the rows have values of the identity column {name!r}, and others lack them"
            raise SchemaMismatchError(message, hint="write them one after another")

    def _rewritten(self, batches: Iterable[pa.RecordBatch]) -> list[Add]:
        with self._writer(0) as files:
            for batch in batches:
                files.write(batch)
            return files.close()

    def _record(self, results: Sequence[TaskResult], adds: Sequence[Add], **more: Any) -> BatchRecord:
        digests = [each.digest for each in results if each.digest is not None]
        return BatchRecord.of_adds(
            adds,
            rejected=sum(each.rejected for each in results),
            digest=BatchDigest.text(digests) if digests else None,
            timestamps=timestamp_texts(self.plan, self.metadata, (each.timestamps for each in results)),
            **more,
        )

    def _repeat(
        self,
        results: Sequence[TaskResult],
        txn: Txn | None,
        *,
        is_stream: bool,
        batch_plan: str | None,
        begun: Transaction | None,
    ) -> WriteResult:
        """Check that the table has the rows that the tasks counted. Write nothing."""
        counted: Counter[str] = Counter()
        for each in results:
            counted.update(each.counted or {})
        batch = replace(
            self._record(results, (), is_stream=is_stream, plan=batch_plan),
            rows=sum(each.rows for each in results),
            partitions=counted,
        )
        try:
            with begun or Transaction.begin(self.handle, operation="WRITE", txn=txn) as transaction:
                if not transaction.already_committed:
                    message = f"The table at {self.uri} had this batch when the write began, but no longer has it"
                    raise WriteError(
                        message, path=self.uri, hint="another writer replaced the table; write the batch again"
                    )
                transaction.batch = batch
                done = transaction.commit()
        finally:
            self.discard(results)
        return WriteResult(done.version, already_committed=True, metadata=done.metadata)

    def _refuse_rejected(self, results: Sequence[TaskResult]) -> None:
        rows, rejected = sum(each.rows for each in results), sum(each.rejected for each in results)
        try:
            MaxRejected.of(self.options.max_rejected).refuse_rows(rows, rejected, "the data")
        except WriteError:
            self.discard(results)
            raise

    def _gather(self, results: Sequence[TaskResult]) -> list[Add]:
        """Write the rows returned by the tasks, one file per partition."""
        if not any(each.small for each in results):
            return []
        with self._writer(len(results)) as files:
            for each in results:
                if not each.small:
                    continue
                rows, start = unpacked(each.small_rows), 0
                for partition, count in each.small:
                    files.write_partition(partition, rows.slice(start, count))
                    start += count
            return files.close()

    def _commit_rejected(
        self, results: Sequence[TaskResult], txn: Txn | None, batch: BatchRecord
    ) -> CommitResult | None:
        # This precedes the commit to the table: a batch that the table already has is not processed again.
        adds = [add for each in results for add in each.rejected_adds]
        if not adds:
            return None
        with stage_files(self.rejected_handle.store, adds, None) as files:
            if txn is not None:
                with Transaction.begin(self.handle, operation="WRITE", txn=txn) as transaction:
                    if transaction.already_committed:  # a different batch under this number is not written at all
                        transaction.batch = batch
                        transaction.commit()
            return commit_rejected(self.rejected_handle, files, adds, txn, is_stream=batch.is_stream)


def refuse_older(uri: str, txn: Txn, known: int | None) -> None:
    """Raise `WriteError` if a micro-batch is older than the last one in the table: Spark repeats only the last one.

    Treating it as already committed would lose rows that the table never had.
    """
    if known is None or known <= txn.version:
        return
    place = redact(uri)
    message = f"The table at {place} has micro-batch {known} of the application {txn.app_id!r}, and this is number"
    hint = "the checkpoint location is older than the table: use its newest copy, or a new one"
    raise WriteError(f"{message} {txn.version}", path=place, hint=hint)


def _without_removals(plan: WritePlan) -> WritePlan:
    return replace(plan, mode="append", overwrite_where=None, replaces_partitions=False)


def _absolute(uri: str) -> str:
    refuse_half_uri(uri)
    return uri if "://" in uri or uri.startswith("file:") else os.path.abspath(expand_home(uri))  # noqa: PTH100 - links are not resolved
