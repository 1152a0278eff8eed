"""``ingest_files``: load files into a table without a DataFrame.

The driver lists the files and distributes them. Tasks receive file names, read with Arrow and write data files, and the
driver commits. It is fast because no row passes through Spark.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, StructType

from lazydelta.errors import OptionError, TableNotFoundError, WriteError
from lazydelta.ingest.files import FORMATS, SourceFile, SourceFormat, Tally, Unit, tasks_of
from lazydelta.ingest.lines import BadRow, RejectRows, Required
from lazydelta.ingest.reading import ON_BAD_ROWS, read_units, refuse_rows, required_columns
from lazydelta.ingest.schema import cell_columns, source_schema
from lazydelta.maintenance.background import BackgroundMaintenance
from lazydelta.protocol.actions import Txn
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.spark.errors import error_of_ours
from lazydelta.spark.maintenance import in_session, is_run_again, maintain_rejected, maintain_written, session_settings
from lazydelta.spark.session import checked_trigger
from lazydelta.spark.source import arrow_schema
from lazydelta.write.batch_record import BatchRecord, check_repeat
from lazydelta.write.file_commit import RejectedRowsWriter
from lazydelta.write.job import TaskResult, WriteJob, WriteResult, refuse_older
from lazydelta.write.options import WriteOptions
from lazydelta.write.plan import MaxRejected

__all__ = ["FilesStream", "MicroBatch", "Progress", "ingest_files", "ingest_files_stream", "start_files_stream"]


Columns: TypeAlias = str | StructType | pa.Schema
"""A schema as Spark DDL, a Spark type or an Arrow schema."""


@dataclass
class Progress:
    """Progress of an ingestion. The ingestion updates it; other threads display it or cancel in time.

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
        """Prevent the commit. Return False if it is too late."""
        with self._lock:
            self._cancelled = self._cancelled or self.phase in {"listing", "reading"}
            return self._cancelled

    def enter(self, phase: str) -> None:
        """Start a phase, or raise if the ingestion was cancelled."""
        with self._lock:
            if self._cancelled:
                raise WriteError("The ingestion was cancelled", hint="nothing was committed")
            self.phase = phase

    @property
    def rows(self) -> int:
        """Number of rows written by finished tasks."""
        return sum(each.rows for each in list(self.finished))


def ingest_files(  # noqa: PLR0913 - keyword-only and independent
    spark: SparkSession,
    source: str,
    uri: str,
    *,
    format: str | None = None,  # noqa: A002 - Spark's name for it
    schema: Columns | None = None,
    mode: str = "append",
    header: bool | None = None,
    on_bad_rows: str = "reject",
    source_storage_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> WriteResult:
    """Write the rows of files to a table in one commit.

    ``source`` is a folder, a file or a glob pattern. ``format`` is json (one object per line), csv (with a header) or
    parquet; by default it follows from the file names. A new table has the columns of ``schema`` (for example Spark
    DDL) or those of the files. ``header=False`` means that CSV files have no header and their cells are the columns of
    ``schema`` or of the table, in that order; ``header=True`` treats the first line as a header even if it looks like a
    row. With ``on_bad_rows="reject"``, rows that do not fit go to the rejected table, up to ``max_rejected``; with
    ``"fail"``, the first one is an error. A file whose rows are all rejected is always an error, unless
    ``max_rejected`` is 100 %. ``source_storage_options`` are needed only if they differ from those of the table. The
    other options are the fields of `IngestOptions`.
    """
    given = WriteOptions.from_keywords(options)
    found = SourceFormat.parse(
        source, given.storage_options if source_storage_options is None else source_storage_options
    )
    work = FilesIngestion(
        spark, found, uri, given, format=format, schema=schema, mode=mode, header=header, on_bad_rows=on_bad_rows
    )
    progress = progress or Progress()
    files = found.files()
    if not files:
        message = f"{found.shown} has no files to ingest"
        hint = "names that begin with _ or ., empty files and nested folders are skipped"
        raise OptionError(message, path=found.shown, hint=hint)
    done = work.run(files, txn=given.txn, progress=progress)
    if given.maintain and not done.already_committed:
        progress.enter("maintaining")
    maintain_written(uri, given, done)
    progress.enter("done")
    return done


@dataclass(kw_only=True)
class FilesIngestion:
    """Ingests the given files, or those of each micro-batch of a stream."""

    spark: SparkSession = field(kw_only=False)
    source: SourceFormat = field(kw_only=False)
    uri: str = field(kw_only=False)
    options: WriteOptions = field(kw_only=False)
    format: str | None = None
    schema: Columns | None = None
    mode: str = "append"
    header: bool | None = None
    on_bad_rows: str = "reject"

    def __post_init__(self) -> None:
        """Raise ``OptionError`` for invalid options before anything is read."""
        if self.on_bad_rows not in ON_BAD_ROWS:
            raise OptionError(f"on_bad_rows={self.on_bad_rows!r} is not valid", hint=f"use one of {ON_BAD_ROWS}")
        if self.format is not None and self.format not in FORMATS:
            raise OptionError(f"format={self.format!r} is not valid", hint=f"use one of {', '.join(FORMATS)}")
        self.options.plan(self.mode)
        self._columns = _given_columns(self.schema)

    def has(self, txn: Txn, files: Sequence[SourceFile]) -> WriteResult | None:
        """Return the result of a micro-batch if the table already has it, else None.

        A different batch with the same number is an error. Files that were deleted since then are not a difference.
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
        job = in_session(job, session_settings(self.spark.conf.getAll), is_stream=is_stream)
        txn = job.options.txn if txn is None else txn
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
        # Spark returns nothing from a failed job. An accumulator records what finished tasks wrote, so that it can be
        # deleted.
        finished = self._finished
        finished.value = []
        progress.finished = finished.value

        def write(number: int, mine: Iterable[Sequence[Unit]]) -> Iterator[tuple[TaskResult, Tally]]:
            for units in mine:
                result, read = work(number, units)
                finished.add([replace(result, small=(), small_rows=b"")])
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
        # One for all batches of a stream, because Spark never frees an accumulator.
        return self.spark.sparkContext.accumulator([], _Lists())

    def _snapshot(self) -> Snapshot | None:
        try:
            return TableHandle.open(self.uri, self.options.storage_options).newest()
        except TableNotFoundError:
            return None


class _Lists(AccumulatorParam[list[TaskResult]]):
    def zero(self, value: list[TaskResult]) -> list[TaskResult]:  # noqa: ARG002 - Spark's signature
        return []

    def addInPlace(self, value1: list[TaskResult], value2: list[TaskResult]) -> list[TaskResult]:  # noqa: N802
        value1 += value2
        return value1


@dataclass(frozen=True, slots=True)
class _Task:
    """The work that is sent to the tasks."""

    job: WriteJob
    source: SourceFormat
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
    return pa.schema([each.with_nullable(True) for each in schema])  # noqa: FBT003 - PyArrow's signature


# ``ingest_files_stream``: ingest new files of a folder, one commit per micro-batch.
#
# Spark's file stream source only tracks which files are new; no file content passes through it. The files of a
# micro-batch are fixed before it starts, even when it is retried, and the table records which batches it has.


_FILE_LISTING = "path string, modificationTime timestamp, length bigint, content binary"
# Hadoop treats these characters in a path as a pattern.
_PATTERN = re.compile(r"([{}\[\]*?\\])")
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*:(//[^/]*)?")
# Spark forgets files older than the newest one by more than this, and ignores new ones of that age. The default of a
# week would lose late files.
_MAX_FILE_AGE = "3650d"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Result of a micro-batch. ``lag`` is the age of its oldest file in seconds when the batch was done."""

    number: int
    result: WriteResult
    source_files: int
    lag: float | None


def ingest_files_stream(
    spark: SparkSession,
    source: str,
    uri: str,
    *,
    checkpoint_location: str,
    trigger: dict[str, Any] | None = None,
    **options: Any,
) -> StreamingQuery:
    """Start writing the files that arrive in a folder to a table, one commit per micro-batch; return the query.

    ``trigger`` takes the arguments of Spark's ``trigger``, for example ``{"availableNow": True}``. The other options
    are those of `ingest_files` and `start_files_stream`. Files must appear complete: write them to another folder and
    move them, or use a name that begins with ``_`` or ``.`` while writing.
    """
    return start_files_stream(
        spark, source, uri, checkpoint_location=checkpoint_location, trigger=trigger, **options
    ).query


def start_files_stream(  # noqa: PLR0913 - keyword-only and independent
    spark: SparkSession,
    source: str,
    uri: str,
    *,
    checkpoint_location: str,
    format: str | None = None,  # noqa: A002 - Spark's name for it
    schema: Columns | None = None,
    trigger: dict[str, Any] | None = None,
    query_name: str | None = None,
    header: bool | None = None,
    on_bad_rows: str = "reject",
    max_files_per_trigger: int = 1000,
    source_storage_options: Mapping[str, str] | None = None,
    on_batch: Callable[[MicroBatch], None] | None = None,
    **options: Any,
) -> FilesStream:
    """Start like `ingest_files_stream`; ``on_batch`` is called after each micro-batch that did something."""
    when = checked_trigger(trigger)
    given = WriteOptions.from_keywords(options)
    if given.app_version is not None:
        hint = "omit it; a stream numbers its own micro-batches"
        raise OptionError("app_version is not valid for a stream", hint=hint)
    found = SourceFormat.parse(
        source, given.storage_options if source_storage_options is None else source_storage_options
    )
    # Check the folder and its files now rather than in the first micro-batch.
    files = found.files()
    file_format = found.format_of(files, format)
    work = FilesIngestion(
        spark, found, uri, given, format=file_format, schema=schema, header=header, on_bad_rows=on_bad_rows
    )
    return FilesStream(work, on_batch).start(checkpoint_location, when, query_name, max_files_per_trigger)


class FilesStream:
    """A streaming query that ingests files, and can stop after the current micro-batch."""

    query: StreamingQuery

    def __init__(self, work: FilesIngestion, on_batch: Callable[[MicroBatch], None] | None = None) -> None:
        self._work = work
        self._on_batch = on_batch
        self._maintenance = BackgroundMaintenance(work.uri, work.options.storage_options)
        self._started = threading.Event()
        self._stopping = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self.failure: BaseException | None = None
        self.progress = Progress()

    def start(
        self, checkpoint_location: str, trigger: dict[str, Any] | None, query_name: str | None, max_files: int
    ) -> FilesStream:
        """Start the query."""
        folder = self._work.source.store.place("").rstrip("/")
        place = folder if _SCHEME.match(folder) else f"file://{folder}"
        reader = self._work.spark.readStream.format("binaryFile").schema(_FILE_LISTING)
        reader = reader.option("maxFilesPerTrigger", max_files).option("maxFileAge", _MAX_FILE_AGE)
        # Otherwise a subfolder that looks like a partition would silently hide the files next to it.
        reader = reader.option("recursiveFileLookup", "true")
        listed = reader.load(_PATTERN.sub(r"\\\1", place)).select(
            "path", "length", F.unix_millis("modificationTime").alias("modified")
        )
        writer = listed.writeStream.option("checkpointLocation", checkpoint_location).foreachBatch(self._take)
        if trigger:
            writer = writer.trigger(**trigger)
        if query_name is not None:
            writer = writer.queryName(query_name)
        self.query = writer.start()
        self._started.set()
        return self

    def stop(self, patience: float | None = None) -> None:
        """Stop the query after the current micro-batch, or after ``patience`` seconds even if it is still running."""
        self._stopping.set()
        self._idle.wait(patience)
        self.query.stop()

    def close(self) -> None:
        """Wait for running maintenance. Call it after the query has ended."""
        self._maintenance.close()

    def _take(self, listed: DataFrame, number: int) -> None:
        self._started.wait()
        self._idle.clear()
        try:
            self._refuse_if_stopping()
            self._ingest(listed, number)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._idle.set()

    def _refuse_if_stopping(self) -> None:
        if self._stopping.is_set():
            raise WriteError("The stream is about to stop", hint="the next start continues with this micro-batch")

    def _ingest(self, listed: DataFrame, number: int) -> None:
        work = self._work
        txn = Txn(app_id=work.options.stream_app_id(str(self.query.id)), version=number)
        files, oldest = self._files(listed)
        done = work.has(txn, files)
        if done is None and files:
            parameters = {"outputMode": "Append", "queryId": txn.app_id, "epochId": str(number)}
            done = work.run(
                files,
                txn=txn,
                operation="STREAMING UPDATE",
                parameters=parameters,
                progress=self.progress,
                is_stream=True,
            )
        if done is None:
            return
        maintain_rejected(work.uri, work.options, done)
        if work.options.maintain:
            self._maintenance.offer(done.version, done.metadata)
        if self._on_batch is not None:
            lag = None if oldest is None else max(0.0, time.time() - oldest / 1000)
            self._on_batch(MicroBatch(number, done, len(files), lag))

    def _files(self, listed: DataFrame) -> tuple[list[SourceFile], int | None]:
        """Return the relevant files of a micro-batch, and the modification time of the oldest in milliseconds."""
        source = self._work.source
        folder = _key(source.store.place(""))
        found: dict[str, tuple[int, int]] = {}
        for place, size, modified in listed.collect():
            above, _, name = place.rpartition("/")
            # Hadoop spells the same folder differently (file:/…), lists its subfolders, and repeats files whose paths
            # contain characters such as brackets.
            if size and _key(above) == folder and source.takes(name):
                found[name] = (size, modified)
        files = [SourceFile(name, size) for name, (size, _) in sorted(found.items())]
        return files, min((modified for _, modified in found.values()), default=None)


def _key(place: str) -> str:
    return _SCHEME.sub("", place).strip("/")
