"""An ingestion as plain data: what is sent to the tasks, what they send back, and the commit of it.

A task writes data files and publishes nothing. Rows that are too few for a file travel back with its result instead,
so that whoever commits makes one file of those of all tasks; how many may travel is bounded, however many tasks there
are.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from lazydelta.errors import LazyDeltaError, OptionError, WriteError
from lazydelta.log.actions import Add, Metadata, Txn
from lazydelta.log.properties import TableProperties
from lazydelta.log.segment import list_commits
from lazydelta.maintenance.after_commit import is_due
from lazydelta.maintenance.own_process import start_maintenance
from lazydelta.sources.tally import MaxRejected
from lazydelta.spark.ingest_options import IngestOptions
from lazydelta.storage import Store, open_store, redact, refuse_half_uri
from lazydelta.write.batch_record import BatchRecord, RowCounter
from lazydelta.write.data_files import DataFileWriter
from lazydelta.write.plan import WritePlan, commit_files, schema_of
from lazydelta.write.rejected import RejectedRowsCounter, RejectedRowsWriter, commit_rejected
from lazydelta.write.table_rows import Moments, TableRows, moment_texts
from lazydelta.write.transaction import Transaction

__all__ = ["IngestJob", "IngestResult", "TaskResult", "refuse_older"]

_log = logging.getLogger(__name__)

# Batches of Spark's are small. Rows are sorted into their files some more at a time, which takes fewer steps a row.
_ROWS_AT_ONCE = 1 << 17
_BYTES_AT_ONCE = 32 << 20
# A partition's rows below this may travel with the result of a task, and so much of them in all: the n-th task may
# send an n-th part, so that the sum over all tasks grows like a logarithm of their number.
_SMALL = 1 << 20
_SMALL_IN_ALL, _SMALL_PER_TASK = 16 << 20, 4 << 20
_PARALLEL_DELETES = 16


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task has done: files that are in place, rows for others to write, rows that were rejected.

    A task of a batch that the table has already writes nothing. It counts the rows of each partition, so that another
    batch under the same number is noticed.
    """

    rows: int = 0
    adds: tuple[Add, ...] = ()
    small: tuple[tuple[tuple[str | None, ...], bytes], ...] = ()
    rejected: int = 0
    rejected_adds: tuple[Add, ...] = ()
    moments: Moments | None = None
    counted: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What an ingestion has done.

    ``version`` is the one committed, None where there was nothing to commit. With ``already_committed`` the table had
    these rows before, and nothing was added.
    """

    version: int | None
    rows: int = 0
    files: int = 0
    bytes: int = 0
    rejected: int = 0
    already_committed: bool = False
    metadata: Metadata | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class IngestJob:
    """A write to one table: ``source`` is the schema of the rows, ``metadata`` what the files are written for.

    ``committed`` says how far each application had come in ``version``, the newest when the job was prepared; -1 where
    there was no table.
    """

    uri: str = field(repr=False)  # it may hold a signature
    options: IngestOptions
    plan: WritePlan
    source: pa.Schema
    metadata: Metadata
    committed: Mapping[str, int] = field(default_factory=dict)
    version: int = -1

    @classmethod
    def prepare(cls, uri: str, source: pa.Schema, options: IngestOptions, mode: str = "append") -> IngestJob:
        """Look at the table, and refuse what cannot be written to it; nothing is written yet."""
        # The tasks may run in other folders, and on machines that have no credentials: the job brings them along.
        uri, options = _absolute(uri), options.carrying_credentials()
        if options.rejected_table is not None:
            options = replace(options, rejected_table=_absolute(options.rejected_table))
        plan = options.plan(mode)
        with Transaction.begin(open_store(uri, options.storage_options), operation="WRITE") as transaction:
            snapshot = transaction.snapshot
            plan = plan.settled(snapshot, source)
            if plan.timestamp_column is None and plan.null_timestamps == "reject":
                raise OptionError("There is no timestamp column whose nulls could be rejected", hint="name it")
            if mode == "overwrite":  # only the metadata is asked for; what to remove is seen at the commit
                staged = replace(plan, mode="append", overwrite_where=None)
            else:
                staged = plan
            metadata = staged.stage(transaction, plan.incoming(source))
            committed = {} if snapshot is None else {each.app_id: each.version for each in snapshot.transactions()}
            version = -1 if snapshot is None else snapshot.version
        return cls(uri, options, plan, source, metadata, committed, version)

    def is_committed(self, txn: Txn | None) -> bool:
        """Tell whether the table had these rows already when the job was prepared."""
        return txn is not None and self.committed.get(txn.app_id, -1) >= txn.version

    # --- in a task

    def rejected_rows(self) -> RejectedRowsWriter:
        """Return what takes the rows that a task rejects."""
        return RejectedRowsWriter(self.options.rejected_uri(self.uri), self.options.storage_options)

    def write(
        self, batches: Iterable[pa.RecordBatch], number: int = 0, *, rejected: RejectedRowsWriter | None = None
    ) -> TaskResult:
        """Write rows to data files; ``number`` is the task's among all.

        ``rejected`` is given by who rejects rows also while the batches are made.
        """
        store = open_store(self.uri, self.options.storage_options)
        rejected = rejected or self.rejected_rows()
        rows = TableRows(self.plan, self.metadata, rejected)
        with rejected, self._writer(store, number) as files:
            for batch in _larger(batches):
                files.write(rows(batch))
            share = min(_SMALL_PER_TASK, _SMALL_IN_ALL // (number + 1))
            small = files.set_aside(_SMALL, share)
            adds = files.close()
            return TaskResult(
                rows=files.num_rows + sum(each.num_rows for _, each in small),
                adds=tuple(adds),
                small=tuple((partition, _packed(each)) for partition, each in small),
                rejected=rejected.num_rows,
                rejected_adds=tuple(rejected.close()),
                moments=rows.moments,
            )

    def count(self, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        """Count the rows of a batch that the table has already."""
        rejected, counter = RejectedRowsCounter(), RowCounter(self.metadata.partition_columns)
        rows = TableRows(self.plan, self.metadata, rejected)
        for batch in _larger(batches):
            counter.write(rows(batch))
        return TaskResult(
            rows=counter.rows, rejected=rejected.num_rows, moments=rows.moments, counted=counter.partitions
        )

    def _writer(self, store: Store, number: int) -> DataFileWriter:
        properties = TableProperties.of(self.metadata)
        columns = self.options.stats_column_names
        return DataFileWriter(
            store,
            schema_of(self.metadata).to_arrow(),
            self.metadata.partition_columns,
            properties=properties if columns is None else replace(properties, stats_columns=columns),
            target_file_size=int(self.options.target_file_size),
            memory_budget=int(self.options.memory_budget),
            compression=self.options.compression,
            first_number=number,
        )

    # --- where the job was begun

    def commit(
        self,
        results: Sequence[TaskResult],
        *,
        txn: Txn | None = None,
        operation: str = "WRITE",
        parameters: Mapping[str, Any] | None = None,
        sources: Sequence[tuple[str, int]] | None = None,
        is_stream: bool = False,
    ) -> IngestResult:
        """Commit what the tasks have written, as one version of the table.

        ``sources`` are the names and sizes of the files that the rows came from, where they are all that a batch is.
        """
        self._refuse_rejected(results)
        store = open_store(self.uri, self.options.storage_options)
        if any(each.counted is not None for each in results):
            return self._repeat(store, results, txn, is_stream=is_stream)
        written = [add for each in results for add in each.adds]
        gathered: list[Add] = []
        try:
            gathered = self._gather(store, results)
            batch = self._record(results, [*written, *gathered], is_stream=is_stream)
            batch = batch if sources is None else batch.from_sources(sources)
            self._commit_rejected(store, results, txn, batch)
        except LazyDeltaError:
            # The commit was not tried yet.
            _delete(store, [*written, *gathered])
            raise
        try:
            done = commit_files(
                store,
                self.plan,
                self.plan.incoming(self.source),
                self.metadata,
                [*written, *gathered],
                operation=operation,
                parameters=parameters,
                txn=txn,
                batch=batch,
            )
        except WriteError:
            # Nothing was committed. After any other error it is not known, and the files stay for VACUUM to judge.
            _delete(store, [*written, *gathered])
            raise
        if done.already_committed:
            _delete(store, [*_not_named(store, written, self.version + 1), *gathered])
            return IngestResult(done.version, already_committed=True, metadata=done.metadata)
        adds = [*written, *gathered]
        return IngestResult(
            done.version,
            rows=sum(each.rows for each in results),
            files=len(adds),
            bytes=sum(each.size for each in adds),
            rejected=sum(each.rejected for each in results),
            metadata=done.metadata,
        )

    def discard(self, results: Sequence[TaskResult]) -> None:
        """Delete the files of tasks whose commit was never tried."""
        _delete(open_store(self.uri, self.options.storage_options), [add for each in results for add in each.adds])
        if rejected := [add for each in results for add in each.rejected_adds]:
            _delete(open_store(self.options.rejected_uri(self.uri), self.options.storage_options), rejected)

    def _record(self, results: Sequence[TaskResult], adds: Sequence[Add], *, is_stream: bool) -> BatchRecord:
        return BatchRecord.of_adds(
            adds,
            rejected=sum(each.rejected for each in results),
            moments=moment_texts(self.plan, self.metadata, (each.moments for each in results)),
            is_stream=is_stream,
        )

    def _repeat(self, store: Store, results: Sequence[TaskResult], txn: Txn | None, *, is_stream: bool) -> IngestResult:
        """See that the table has what the tasks have counted, and write nothing."""
        counted: Counter[str] = Counter()
        for each in results:
            counted.update(each.counted or {})
        batch = replace(
            self._record(results, (), is_stream=is_stream), rows=sum(each.rows for each in results), partitions=counted
        )
        try:
            with Transaction.begin(store, operation="WRITE", txn=txn) as transaction:
                if not transaction.already_committed:
                    message = f"The table at {self.uri} had this batch when it was begun, and no longer has it"
                    raise WriteError(message, path=self.uri, hint="somebody replaced the table; write the batch again")
                transaction.batch = batch
                done = transaction.commit()
        finally:
            self.discard(results)
        return IngestResult(done.version, already_committed=True, metadata=done.metadata)

    def _refuse_rejected(self, results: Sequence[TaskResult]) -> None:
        rows, rejected = sum(each.rows for each in results), sum(each.rejected for each in results)
        try:
            MaxRejected.of(self.options.max_rejected).refuse_rows(rows, rejected, "the data")
        except WriteError:
            self.discard(results)
            raise

    def _gather(self, store: Store, results: Sequence[TaskResult]) -> list[Add]:
        """Write the rows that travelled, those of a partition to one file."""
        if not any(each.small for each in results):
            return []
        with self._writer(store, len(results)) as files:
            for each in results:
                for partition, packed in each.small:
                    files.write_partition(partition, _unpacked(packed))
            return files.close()

    def _commit_rejected(
        self, store: Store, results: Sequence[TaskResult], txn: Txn | None, batch: BatchRecord
    ) -> None:
        # Before the table's own commit: a batch that the table has is not looked at again.
        adds = [add for each in results for add in each.rejected_adds]
        if not adds:
            return
        uri, storage_options = self.options.rejected_uri(self.uri), self.options.storage_options
        beside = open_store(uri, storage_options)
        try:
            if txn is not None:
                with Transaction.begin(store, operation="WRITE", txn=txn) as transaction:
                    if transaction.already_committed:  # another batch under this number adds nothing anywhere
                        transaction.batch = batch
                        transaction.commit()
            done = commit_rejected(uri, storage_options, adds, txn, is_stream=batch.is_stream)
        except WriteError:
            _delete(beside, adds)
            raise
        if done.already_committed:
            _delete(beside, _not_named(beside, adds, 0))
        if self.options.maintain and not done.already_committed and is_due(done.version, done.metadata):
            start_maintenance(uri, storage_options)


def refuse_older(uri: str, txn: Txn, known: int | None) -> None:
    """Refuse a micro-batch that is older than what the table has: Spark repeats the latest one at most.

    Whatever it holds, taking it for done would lose rows that the table never had.
    """
    if known is None or known <= txn.version:
        return
    place = redact(uri)
    message = f"The table at {place} has micro-batch {known} of the application {txn.app_id!r}, and this is number"
    hint = "the checkpoint location is older than the table: go on with the newest copy of it, or with a fresh one"
    raise WriteError(f"{message} {txn.version}", path=place, hint=hint)


def _not_named(store: Store, adds: Sequence[Add], first: int) -> list[Add]:
    """Return the files that no commit names: Spark may ask twice to commit the same ones, and then they stay."""
    named: set[str] = set()
    for commit in list_commits(store, first) if adds else ():
        text = store.get(commit.path)
        named |= {each.path for each in adds if _name(each).encode() in text}
    return [each for each in adds if each.path not in named]


def _absolute(uri: str) -> str:
    refuse_half_uri(uri)
    return uri if "://" in uri or uri.startswith("file:") else os.path.abspath(uri)  # noqa: PTH100 - links stay


def _name(add: Add) -> str:
    return add.path.rpartition("/")[2]


def _larger(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and not batch.schema.equals(waiting[0].schema):  # files need not have the same columns
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


def _packed(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _unpacked(packed: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(packed) as reader:
        return reader.read_next_batch()


def _delete(store: Store, adds: Sequence[Add]) -> None:
    """Delete files that no commit names, as far as the store lets us."""

    def delete(path: str) -> None:
        try:
            store.delete(path)
        except LazyDeltaError as error:
            _log.warning("could not delete %s, which no version of the table refers to: %s", path, error)

    if adds:
        with ThreadPoolExecutor(_PARALLEL_DELETES, thread_name_prefix="lazydelta-delete") as pool:
            list(pool.map(delete, (unquote(each.path) for each in adds)))
