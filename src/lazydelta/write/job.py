"""``WriteJob``: a write as plain data with its verbs, for one process as for tasks on many machines.

A job is prepared where it begins, writes (or counts) wherever it is sent to, and is committed or discarded where it
began. `write_arrow`, the command line and Spark only carry it there. What follows a commit (maintenance) is theirs to
start: the result says what was committed, of the rejected rows too.

A task writes data files and publishes nothing. Rows that are too few for a file travel back with its result instead,
so that whoever commits makes one file of those of all tasks; how many may travel is bounded, however many tasks there
are.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import LazyDeltaError, OptionError, WriteError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Add, Metadata, Txn
from lazydelta.log.properties import TableProperties
from lazydelta.pruning import Where
from lazydelta.storage import Store, expand_home, redact, refuse_half_uri
from lazydelta.write.batch_record import BatchRecord, RowCounter
from lazydelta.write.column_mapping import PhysicalColumns
from lazydelta.write.data_files import DataFileWriter
from lazydelta.write.earlier_attempts import clear_earlier_attempts, marked, new_family
from lazydelta.write.file_commit import commit_files, delete_files, unnamed_files
from lazydelta.write.max_rejected import MaxRejected
from lazydelta.write.parquet_encoding import ParquetEncoding
from lazydelta.write.partitions_written import partitions_of
from lazydelta.write.plan import WritePlan, schema_of
from lazydelta.write.rejected import RejectedRowsCounter, RejectedRowsWriter, commit_rejected
from lazydelta.write.table_rows import TableRows, moment_texts
from lazydelta.write.task_result import TaskResult, joined_batches, packed, unpacked
from lazydelta.write.transaction import CommitResult, Transaction
from lazydelta.write.write_options import WriteOptions

__all__ = ["WriteJob", "WriteResult", "refuse_older"]

# A partition's rows below this may travel with the result of a task, and so much of them in all: the n-th task may
# send an n-th part, so that the sum over all tasks grows like a logarithm of their number.
_SMALL = 1 << 20
_SMALL_IN_ALL, _SMALL_PER_TASK = 16 << 20, 4 << 20


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a write has done.

    ``version`` is the one committed, ``metadata`` are those in force. With ``already_committed`` the table had these
    rows before, and nothing was added. ``rejected_commit`` is that of the table of rejected rows, None where there was
    none.
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
    """A write to one table: ``source`` is the schema of the rows, ``metadata`` what the files are written for.

    ``committed`` says how far each application had come in ``version``, the newest when the job was prepared; -1 where
    there was no table. A job that is ``alone`` is its only task: no row of it travels, and one that would be rejected
    is an error. ``family`` is what the names of its files have in common.
    """

    uri: str = field(repr=False)  # it may hold a signature
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
        """Look at the table, and refuse what cannot be written to it; nothing is written yet."""
        # The tasks may run in other folders, and on machines that have no credentials: the job brings them along.
        uri, options = _absolute(uri), options.carrying_credentials()
        if options.rejected_table is not None:
            options = replace(options, rejected_table=_absolute(options.rejected_table))
        plan = options.plan(mode)
        with Transaction.begin(TableHandle.open(uri, options.storage_options), operation="WRITE") as transaction:
            snapshot = transaction.snapshot
            plan = plan.settled(snapshot, source)
            if plan.timestamp_column is None and plan.null_timestamps == "reject":
                raise OptionError("There is no timestamp column whose nulls could be rejected", hint="name it")
            # Only the metadata is asked for; what an overwrite removes is seen at the commit.
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
        """Prepare a job that is alone, and whose commit is that of a transaction that was begun; see ``commit``.

        ``encoding`` is what the caller decides about the files, ``more`` are fields of the plan that are no options.
        """
        plan, snapshot = replace(options.plan(mode), **more), transaction.snapshot
        if transaction.already_committed:  # what an overwrite removes does not matter then, and had to be looked for
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
        job.__dict__["handle"] = transaction.handle  # it is open already
        return job

    @cached_property
    def handle(self) -> TableHandle:
        """The table; each process opens its own."""
        return TableHandle.open(self.uri, self.options.storage_options)

    @cached_property
    def rejected_handle(self) -> TableHandle:
        """The table of rejected rows."""
        return TableHandle.open(self.options.rejected_uri(self.uri), self.options.storage_options)

    @property
    def store(self) -> Store:
        """The table's store."""
        return self.handle.store

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to the tasks."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def is_committed(self, txn: Txn | None) -> bool:
        """Tell whether the table had these rows already when the job was prepared."""
        return txn is not None and self.committed.get(txn.app_id, -1) >= txn.version

    # --- in a task

    def of_batch(self, txn: Txn) -> WriteJob:
        """Return the same job for a micro-batch, whose mark the names of its files have."""
        return replace(self, family=marked(self.family, txn))

    def rejected_rows(self) -> RejectedRowsWriter:
        """Return what takes the rows that a task rejects."""
        return RejectedRowsWriter(self.rejected_handle)

    def write(
        self,
        batches: Iterable[pa.RecordBatch],
        number: int = 0,
        *,
        rejected: RejectedRowsWriter | None = None,
        run_again: bool = False,
    ) -> TaskResult:
        """Write rows to data files; ``number`` is the task's among all.

        ``rejected`` is given by who rejects rows also while the batches are made, ``run_again`` where an attempt of the
        same task came before.
        """
        if rejected is None and not self.alone:
            rejected = self.rejected_rows()
        rows = TableRows(self.plan, self.metadata, rejected)
        with rejected or nullcontext(), self._writer(number) as files:
            for batch in self._batches(batches):
                files.write(rows(batch))
            share = min(_SMALL_PER_TASK, _SMALL_IN_ALL // (number + 1))
            small = [] if self.alone else files.set_aside(_SMALL, share)
            adds = files.close()
            return TaskResult(
                rows=files.num_rows + sum(each.num_rows for _, each in small),
                adds=tuple(adds),
                small=tuple((partition, packed(each)) for partition, each in small),
                rejected=0 if rejected is None else rejected.num_rows,
                rejected_adds=() if rejected is None else tuple(rejected.close()),
                moments=rows.moments,
                run_again=run_again,
            )

    def count(self, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        """Count the rows of a batch that the table has already."""
        table = schema_of(self.metadata)
        counter = RowCounter(table.partition_columns, table.physical_partition_columns)
        rejected = RejectedRowsCounter()
        rows = TableRows(self.plan, self.metadata, None if self.alone else rejected)
        for batch in self._batches(batches):
            counter.write(rows(batch))
        return TaskResult(
            rows=counter.rows, rejected=rejected.num_rows, moments=rows.moments, counted=counter.partitions
        )

    def _batches(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        # Who writes alone has made the batches as large as they should be.
        return batches if self.alone else joined_batches(batches)

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
        begun: Transaction | None = None,
    ) -> WriteResult:
        """Commit what the tasks have written, as one version of the table.

        ``sources`` are the names and sizes of the files that the rows came from, where they are all that a batch is.
        ``begun`` is the transaction of a job that was prepared within it.
        """
        self._refuse_rejected(results)
        if any(each.counted is not None for each in results):
            return self._repeat(results, txn, is_stream=is_stream, begun=begun)
        store = self.store
        written = [add for each in results for add in each.adds]
        gathered: list[Add] = []
        try:
            gathered = self._gather(results)
            batch = self._record(results, [*written, *gathered], is_stream=is_stream)
            batch = batch if sources is None else batch.from_sources(sources)
            beside = self._commit_rejected(results, txn, batch)
        except LazyDeltaError:
            # The commit was not tried yet.
            delete_files(store, [*written, *gathered])
            raise
        try:
            done = commit_files(
                self.handle,
                self._replacing([*written, *gathered], begun),
                self.plan.incoming(self.source),
                self.metadata,
                [*written, *gathered],
                operation=operation,
                parameters=parameters or self.plan.parameters,
                txn=txn,
                batch=batch,
                max_attempts=self.options.max_attempts,
                begun=begun,
            )
        except WriteError:
            # Nothing was committed. After any other error it is not known, and the files stay for VACUUM to judge.
            delete_files(store, [*written, *gathered])
            raise
        if done.already_committed:
            delete_files(store, [*unnamed_files(store, written, self.version + 1), *gathered])
            return WriteResult(done.version, already_committed=True, metadata=done.metadata, rejected_commit=beside)
        adds = [*written, *gathered]
        clear_earlier_attempts(store, results, adds)
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
        """Return the plan with what a dynamic overwrite removes: the partitions that files were written to."""
        if not self.plan.replaces_partitions:
            return self.plan
        plan = replace(self.plan, replaces_partitions=False)
        table = schema_of(self.metadata)
        # Without partition columns all of the table is one partition; without files none is replaced.
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
        """Delete the files of tasks whose commit was never tried."""
        delete_files(self.store, [add for each in results for add in each.adds])
        if rejected := [add for each in results for add in each.rejected_adds]:
            delete_files(self.rejected_handle.store, rejected)

    def _record(self, results: Sequence[TaskResult], adds: Sequence[Add], *, is_stream: bool) -> BatchRecord:
        return BatchRecord.of_adds(
            adds,
            rejected=sum(each.rejected for each in results),
            moments=moment_texts(self.plan, self.metadata, (each.moments for each in results)),
            is_stream=is_stream,
        )

    def _repeat(
        self, results: Sequence[TaskResult], txn: Txn | None, *, is_stream: bool, begun: Transaction | None
    ) -> WriteResult:
        """See that the table has what the tasks have counted, and write nothing."""
        counted: Counter[str] = Counter()
        for each in results:
            counted.update(each.counted or {})
        batch = replace(
            self._record(results, (), is_stream=is_stream), rows=sum(each.rows for each in results), partitions=counted
        )
        try:
            with begun or Transaction.begin(self.handle, operation="WRITE", txn=txn) as transaction:
                if not transaction.already_committed:
                    message = f"The table at {self.uri} had this batch when it was begun, and no longer has it"
                    raise WriteError(message, path=self.uri, hint="somebody replaced the table; write the batch again")
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
        """Write the rows that travelled, those of a partition to one file."""
        if not any(each.small for each in results):
            return []
        with self._writer(len(results)) as files:
            for each in results:
                for partition, rows in each.small:
                    files.write_partition(partition, unpacked(rows))
            return files.close()

    def _commit_rejected(
        self, results: Sequence[TaskResult], txn: Txn | None, batch: BatchRecord
    ) -> CommitResult | None:
        # Before the table's own commit: a batch that the table has is not looked at again.
        adds = [add for each in results for add in each.rejected_adds]
        if not adds:
            return None
        beside = self.rejected_handle.store
        try:
            if txn is not None:
                with Transaction.begin(self.handle, operation="WRITE", txn=txn) as transaction:
                    if transaction.already_committed:  # another batch under this number adds nothing anywhere
                        transaction.batch = batch
                        transaction.commit()
            done = commit_rejected(self.rejected_handle, adds, txn, is_stream=batch.is_stream)
        except WriteError:
            delete_files(beside, adds)
            raise
        if done.already_committed:
            delete_files(beside, unnamed_files(beside, adds, 0))
        return done


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


def _without_removals(plan: WritePlan) -> WritePlan:
    return replace(plan, mode="append", overwrite_where=None, replaces_partitions=False)


def _absolute(uri: str) -> str:
    refuse_half_uri(uri)
    return uri if "://" in uri or uri.startswith("file:") else os.path.abspath(expand_home(uri))  # noqa: PTH100 - links stay
