"""``ingest_files``: from files to a table without a DataFrame between.

The driver lists the files and shares them out; tasks get names, read with Arrow and write data files; the driver
commits. No row passes through Spark, which is what makes it fast.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from lazydelta.errors import OptionError, TableNotFoundError, WriteError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Txn
from lazydelta.log.snapshot import Snapshot
from lazydelta.sources.lines import BadRow, RejectRows, Required
from lazydelta.sources.reading import ON_BAD_ROWS, read_units, refuse_rows, required_columns
from lazydelta.sources.source_files import FORMATS, Source, SourceFile, Unit, tasks_of
from lazydelta.sources.source_schema import cell_columns, source_schema
from lazydelta.sources.tally import Tally
from lazydelta.spark.job_maintenance import maintain_written
from lazydelta.spark.source import arrow_schema
from lazydelta.spark.sparks_words import error_of_ours
from lazydelta.spark.task_attempt import is_run_again
from lazydelta.write.batch_record import BatchRecord, check_repeat
from lazydelta.write.job import WriteJob, WriteResult, refuse_older
from lazydelta.write.max_rejected import MaxRejected
from lazydelta.write.rejected import RejectedRowsWriter
from lazydelta.write.task_result import TaskResult
from lazydelta.write.write_options import WriteOptions

__all__ = ["Columns", "FilesIngestion", "Progress", "error_of_ours", "ingest_files"]

Columns: TypeAlias = str | StructType | pa.Schema
"""A schema: Spark's DDL, Spark's type, or Arrow's."""


@dataclass
class Progress:
    """How far an ingestion is: written by the one who does it, for others to show, or to stop it in time.

    ``phase`` is one of "listing", "reading", "committing", "maintaining" and "done".
    """

    phase: str = "listing"
    source_files: int = 0
    source_bytes: int = 0
    tasks: int = 0
    finished: Sequence[TaskResult] = ()
    _cancelled: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def cancel(self) -> bool:
        """Forbid the commit; False if it is too late for that."""
        with self._lock:
            self._cancelled = self._cancelled or self.phase in {"listing", "reading"}
            return self._cancelled

    def enter(self, phase: str) -> None:
        """Begin a phase, unless somebody has put an end to it all."""
        with self._lock:
            if self._cancelled:
                raise WriteError("The ingestion was cancelled", hint="nothing was committed")
            self.phase = phase

    @property
    def rows(self) -> int:
        """How many rows the tasks that have finished wrote."""
        return sum(each.rows for each in list(self.finished))


def ingest_files(  # noqa: PLR0913 - keyword-only, and each stands for itself
    spark: SparkSession,
    source: str,
    uri: str,
    *,
    format: str | None = None,  # noqa: A002 - as Spark calls it
    schema: Columns | None = None,
    mode: str = "append",
    header: bool | None = None,
    on_bad_rows: str = "reject",
    source_storage_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> WriteResult:
    """Write the rows of files to a table in one commit.

    ``source`` is a folder, a file or a pattern, ``format`` is json (an object a line), csv (with a header) or parquet;
    if it is left out, the names tell. A new table has the columns of ``schema`` (Spark's DDL, for example) or those
    that the files have. With ``header=False`` CSV files have none, and their cells are those of ``schema`` or of the
    table, in that order; ``header=True`` takes a first line for one also where it looks like a row. Rows that do not
    fit go to the rejected table with ``on_bad_rows="reject"``, as many of them as ``max_rejected`` lets pass; with
    ``"fail"`` the first of them is an error. A file of which all rows are rejected is always an error, unless
    ``max_rejected`` is 100 %. ``source_storage_options`` are needed only where they are not those of the table. The
    other options are the fields of `IngestOptions`.
    """
    given = WriteOptions.from_keywords(options)
    found = Source.parse(source, given.storage_options if source_storage_options is None else source_storage_options)
    work = FilesIngestion(
        spark, found, uri, given, format=format, schema=schema, mode=mode, header=header, on_bad_rows=on_bad_rows
    )
    progress = progress or Progress()
    files = found.files()
    if not files:
        message = f"{found.shown} has no files to ingest"
        hint = "names that begin with _ or . are left out, and so are empty files and those of folders within it"
        raise OptionError(message, path=found.shown, hint=hint)
    done = work.run(files, txn=given.txn, progress=progress)
    if given.maintain and not done.already_committed:
        progress.enter("maintaining")
    maintain_written(uri, given, done)
    progress.enter("done")
    return done


@dataclass(kw_only=True)
class FilesIngestion:
    """What is done with the files that there are, or with those of each micro-batch of a stream."""

    spark: SparkSession = field(kw_only=False)
    source: Source = field(kw_only=False)
    uri: str = field(kw_only=False)
    options: WriteOptions = field(kw_only=False)
    format: str | None = None
    schema: Columns | None = None
    mode: str = "append"
    header: bool | None = None
    on_bad_rows: str = "reject"

    def __post_init__(self) -> None:
        """Refuse what makes no sense before anything is looked at."""
        if self.on_bad_rows not in ON_BAD_ROWS:
            raise OptionError(f"on_bad_rows={self.on_bad_rows!r} makes no sense", hint=f"say one of {ON_BAD_ROWS}")
        if self.format is not None and self.format not in FORMATS:
            raise OptionError(f"format={self.format!r} makes no sense", hint=f"say one of {', '.join(FORMATS)}")
        self.options.plan(self.mode)
        self._columns = _given_columns(self.schema)

    def has(self, txn: Txn, files: Sequence[SourceFile]) -> WriteResult | None:
        """Return what there is to say of a micro-batch that the table has already, None if it does not.

        Another one under the same number is an error. Files that somebody has taken away since then are none.
        """
        snapshot = self._snapshot()
        known = None if snapshot is None else snapshot.transaction_version(txn.app_id)
        refuse_older(self.uri, txn, known)
        if snapshot is None or known is None or known < txn.version:
            return None
        batch = BatchRecord(is_stream=True).from_sources(_sources(files))
        check_repeat(snapshot.store, txn, batch, snapshot.version)
        return WriteResult(snapshot.version, already_committed=True, metadata=snapshot.metadata)

    def run(
        self,
        files: Sequence[SourceFile],
        *,
        txn: Txn | None = None,
        operation: str = "WRITE",
        parameters: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        is_stream: bool = False,
    ) -> WriteResult:
        """Read files, write their rows and commit them."""
        progress = progress or Progress()
        file_format = self.source.format_of(files, self.format)
        plan = self.options.plan(self.mode)
        given, header = self._columns, self.header
        columns = source_schema(self.source, files, file_format, self._snapshot(), plan, given, header=header)
        job = WriteJob.prepare(self.uri, _nullable(columns), self.options, self.mode)
        if txn is not None and job.is_committed(txn):
            batch = BatchRecord(is_stream=is_stream).from_sources(_sources(files))
            check_repeat(job.store, txn, batch, job.version)
            return WriteResult(job.version, already_committed=True, metadata=job.metadata)
        tasks = tasks_of(self.source, files, file_format, self.spark.sparkContext.defaultParallelism)
        timed = job.plan.timestamp_column if self.options.null_timestamps == "reject" else None
        source = self.source.carrying_credentials()
        required = required_columns(columns, timed)
        cells = cell_columns(columns, given) if header is False else None
        work = _Task(job, source, file_format, columns, required, self.on_bad_rows, cells)
        progress.source_files, progress.source_bytes = len(files), sum(each.size for each in files)
        progress.tasks = len(tasks)
        progress.enter("reading")
        results, tally = self._results(job, tasks, work, progress)
        try:
            tally.refuse(MaxRejected.of(self.options.max_rejected))
            progress.enter("committing")
        except WriteError:
            job.discard(results)
            raise
        return job.commit(
            results,
            txn=txn,
            operation=operation,
            parameters=parameters,
            sources=_sources(files),
            is_stream=is_stream,
        )

    def _results(
        self, job: WriteJob, tasks: Sequence[Sequence[Unit]], work: _Task, progress: Progress
    ) -> tuple[list[TaskResult], Tally]:
        # Of a job that failed Spark gives nothing back. What its finished tasks wrote is told on the side, so that
        # it can be deleted.
        finished = self._finished
        finished.value = []
        progress.finished = finished.value

        def write(number: int, mine: Iterable[Sequence[Unit]]) -> Iterator[tuple[TaskResult, Tally]]:
            for units in mine:
                result, read = work(number, units)
                finished.add([replace(result, small=())])
                yield result, read

        tally = Tally()
        try:
            spread = self.spark.sparkContext.parallelize(tasks, len(tasks))
            done = spread.mapPartitionsWithIndex(write).collect()
        except BaseException as error:
            job.discard(finished.value)
            if isinstance(error, Py4JError | PySparkException):
                raise error_of_ours(error) from error
            raise
        for _, read in done:
            tally.add(read)
        return [result for result, _ in done], tally

    @cached_property
    def _finished(self) -> Accumulator[list[TaskResult]]:
        # One for all batches of a stream: Spark never forgets an accumulator.
        return self.spark.sparkContext.accumulator([], _Lists())

    def _snapshot(self) -> Snapshot | None:
        try:
            return TableHandle.open(self.uri, self.options.storage_options).newest()
        except TableNotFoundError:
            return None


class _Lists(AccumulatorParam[list[TaskResult]]):
    def zero(self, value: list[TaskResult]) -> list[TaskResult]:  # noqa: ARG002 - Spark's
        return []

    def addInPlace(self, value1: list[TaskResult], value2: list[TaskResult]) -> list[TaskResult]:  # noqa: N802
        value1 += value2
        return value1


@dataclass(frozen=True, slots=True)
class _Task:
    """What is sent to the tasks."""

    job: WriteJob
    source: Source
    format: str
    schema: pa.Schema
    required: Required
    on_bad_rows: str
    cells: Sequence[str] | None

    def __call__(self, number: int, units: Sequence[Unit]) -> tuple[TaskResult, Tally]:
        rejected = self.job.rejected_rows()
        reject = refuse_rows if self.on_bad_rows == "fail" else _into(rejected)
        tally = Tally()
        batches = read_units(
            self.source.store, units, self.format, self.schema, reject, self.required, columns=self.cells, tally=tally
        )
        return self.job.write(batches, number, rejected=rejected, run_again=is_run_again()), tally


def _into(rejected: RejectedRowsWriter) -> RejectRows:
    def reject(bad: list[BadRow]) -> None:
        if bad:
            records, reasons, sources = zip(*bad, strict=True)
            rejected.texts(records, reasons, sources)

    return reject


def _sources(files: Sequence[SourceFile]) -> list[tuple[str, int]]:
    return [(each.path, each.size) for each in files]


def _given_columns(schema: Columns | None) -> pa.Schema | None:
    if schema is None or isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        try:
            schema = DataType.fromDDL(schema)
        except (PySparkException, Py4JError) as error:
            said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            message = f"The schema {schema!r} is not Spark's DDL: {said}"
            raise OptionError(message, hint='write it as "device string, ts timestamp, value double"') from error
    if not isinstance(schema, StructType):
        raise OptionError(f"The schema {schema!r} has no columns", hint='write it as "device string, ts timestamp"')
    return arrow_schema(schema)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_nullable(True) for each in schema])  # noqa: FBT003 - pyarrow's
