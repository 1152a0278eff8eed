"""``format("lazydelta")``: Spark's data source, for batches and streams.

The tasks get Arrow batches and write the data files; Spark hands their results to ``commit``, which runs in a Python
process on the driver's machine. Spark calls ``abort`` when a task failed, but also when ``commit`` raised, and then the
commit may have landed.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from lazydelta.errors import LazyDeltaError, OptionError, SchemaMismatchError, WriteError
from lazydelta.log.actions import Txn
from lazydelta.spark.error_order import sentence_first
from lazydelta.spark.job_maintenance import maintain_written
from lazydelta.spark.reading.batch_reader import open_reader, read_schema
from lazydelta.spark.result_note import ResultNote, taken_note
from lazydelta.spark.sparks_words import in_sparks_words
from lazydelta.spark.task_attempt import is_run_again, task_number
from lazydelta.types.schema import TableSchema
from lazydelta.write.job import WriteJob, refuse_older
from lazydelta.write.task_result import TaskResult
from lazydelta.write.write_options import WriteOptions

__all__ = ["LazyDeltaSource", "arrow_schema"]

# Spark tells a task of a stream which query and which micro-batch it works for.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class LazyDeltaSource(DataSource):
    """The data source ``lazydelta``."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in ``format(…)``."""
        return "lazydelta"

    def schema(self) -> StructType:
        """Return the table's columns, by its log alone, and pin the version that has them for the read."""
        schema, self._version = read_schema(self.options)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read a table; a schema of the user's chooses columns."""
        return open_reader(self.options, schema, getattr(self, "_version", None))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Read a table as a stream."""
        try:
            from lazydelta.spark.streaming.stream_reader import LazyDeltaStreamReader  # noqa: PLC0415 - needs PySpark 4.2
        except ImportError as error:
            message = f"readStream.format('lazydelta') needs PySpark 4.2, and this is {pyspark.__version__}"
            hint = (
                "its data sources have no limits on what a micro-batch takes, nor availableNow; DeltaTable.changes has"
            )
            raise OptionError(message, hint=hint) from error
        with sentence_first():
            return LazyDeltaStreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's
        """Write a DataFrame."""
        given = dict(self.options)
        note = taken_note(given)
        with sentence_first():
            options = WriteOptions.from_spark(given)
            if options.app_id is not None and options.app_version is None:
                hint = "give both, so that a batch that is written again is recognised, or neither"
                raise OptionError("txnAppId makes no sense for a batch without txnVersion", hint=hint)
            return _BatchWriter(self._job(schema, options, overwrite=overwrite), note)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802
        """Write a stream; Spark asks for one for each micro-batch, and for another to commit it."""
        return _StreamWriter(self, schema, overwrite=overwrite)

    def stream_job(self, schema: StructType, *, overwrite: bool) -> WriteJob:
        """Look at the table for the next micro-batch."""
        options = self._options()
        if options.app_version is not None:
            hint = "leave it out; a stream counts its micro-batches by itself"
            raise OptionError("txnVersion makes no sense for a stream", hint=hint)
        return self._job(schema, options, overwrite=overwrite)

    def _options(self) -> WriteOptions:
        return WriteOptions.from_spark(dict(self.options))

    def _job(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> WriteJob:
        uri = self.options.get("path")
        if not uri:
            raise OptionError("There is no table to write to", hint="name it: save(uri), or start(uri) for a stream")
        try:
            return WriteJob.prepare(uri, arrow_schema(schema), options, "overwrite" if overwrite else "append")
        except SchemaMismatchError as error:
            if overwrite and options.overwrite_where is None and not options.overwrite_schema:
                error.hint = f"set overwriteSchema to true to give the table the columns of the data; or {error.hint}"
            raise


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Spark's schema as Arrow's; anything may be null, whatever Spark derived from its plan."""
    fields = _nullable(json.loads(schema.json()))
    return TableSchema.parse(json.dumps(fields), origin="the DataFrame").to_arrow()


def _nullable(raw: Any) -> Any:
    """Return a type of Spark's schema such that every value in it may be null, but for the keys of maps."""
    if isinstance(raw, list):
        return [_nullable(each) for each in raw]
    if not isinstance(raw, dict):
        return raw
    # Notes of the source, such as a table's on its columns, do not belong to what is written.
    found = {key: _nullable(value) for key, value in raw.items() if key != "metadata"}
    return found | {key: True for key in ("nullable", "containsNull", "valueContainsNull") if key in found}


@dataclass(frozen=True)
class _Message(WriterCommitMessage):
    """What a task sends back; the job with it, as the one who commits a stream's batch knows only messages."""

    result: TaskResult
    job: WriteJob | None = None
    txn: Txn | None = None


class _BatchWriter(DataSourceArrowWriter):
    def __init__(self, job: WriteJob, note: ResultNote | None = None) -> None:
        self._job = job
        self._note = note

    @sentence_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        if self._job.is_committed(self._job.options.txn):
            return _Message(self._job.count(iterator))
        return _Message(self._job.write(iterator, task_number(), run_again=is_run_again()))

    @sentence_first()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        job = self._job
        done = job.commit([each.result for each in _all(messages)], txn=job.options.txn)
        if self._note is not None:
            self._note.write(done)
        maintain_written(job.uri, job.options, done)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._job, messages)


class _RefusedError(WriteError, pickle.PickleError):
    """A stream that cannot be written.

    Spark learns of it while it pickles the writer. Any other error it would report as a failure to pickle.
    """


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, source: LazyDeltaSource, schema: StructType, *, overwrite: bool) -> None:
        self._source = source
        self._schema = schema
        self._overwrite = overwrite

    @cached_property
    def _job(self) -> WriteJob:
        return self._source.stream_job(self._schema, overwrite=self._overwrite)

    def __getstate__(self) -> dict[str, Any]:
        """Prepare the job before it is sent to the tasks: the table is looked at once, not by each of them."""
        try:
            _ = self._job
        except LazyDeltaError as error:
            raise _RefusedError(f"{type(error).__name__}: {in_sparks_words(error)}") from None
        return self.__dict__

    @sentence_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        txn = _stream_txn(self._job.options)
        job = self._job.of_batch(txn)
        refuse_older(job.uri, txn, job.committed.get(txn.app_id))
        if job.is_committed(txn):
            result = job.count(iterator)
        else:
            result = job.write(iterator, task_number(), run_again=is_run_again())
        return _Message(result, replace(job, committed={}), txn)

    @sentence_first()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        ours = _all(messages)
        results = [each.result for each in ours]
        job = next((each.job for each in ours if each.job is not None), None)
        txn = next((each.txn for each in ours if each.txn is not None), None)
        if job is None or not (self._overwrite or any(each.rows or each.rejected for each in results)):
            return  # nothing to append
        parameters = {
            "outputMode": "Complete" if self._overwrite else "Append",
            "queryId": None if txn is None else txn.app_id,
            "epochId": str(batchId),
        }
        done = job.commit(results, txn=txn, operation="STREAMING UPDATE", parameters=parameters, is_stream=True)
        maintain_written(job.uri, job.options, done, later=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        ours = _ours(messages)
        job = next((each.job for each in ours if each.job is not None), None)
        if job is not None:
            _abort(job, messages)


def _abort(job: WriteJob, messages: Sequence[WriterCommitMessage | None]) -> None:
    # A task without a message has failed, and then Spark never called commit. If all have one, it did, and the commit
    # may be there although it raised: the files stay.
    if any(each is None for each in messages):
        job.discard([each.result for each in _ours(messages)])


def _all(messages: Sequence[WriterCommitMessage | None]) -> list[_Message]:
    """Return the messages of all tasks; one without a message has written nothing, and its rows would be lost."""
    ours = _ours(messages)
    if len(ours) < len(messages):
        message = f"{len(messages) - len(ours)} of {len(messages)} tasks have not said what they wrote"
        hint = "nothing was committed; Spark's continuous trigger does this to every data source in Python: use another"
        raise WriteError(message, hint=hint)
    return ours


def _ours(messages: Sequence[WriterCommitMessage | None]) -> list[_Message]:
    return [each for each in messages if isinstance(each, _Message)]


def _stream_txn(options: WriteOptions) -> Txn:
    """Return the transaction of the micro-batch that the present task works for."""
    context = TaskContext.get()
    batch = None if context is None else context.getLocalProperty(_BATCH_ID)
    query = None if context is None else context.getLocalProperty(_QUERY_ID)
    if query is None or batch is None:
        message = "Spark tells its task neither query nor micro-batch, so that rows could be written twice"
        raise WriteError(message, hint="use a version of PySpark that this one of lazydelta was tested with")
    return Txn(app_id=options.stream_app_id(query), version=int(batch))
