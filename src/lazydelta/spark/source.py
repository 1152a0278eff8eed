"""``format("lazydelta")``: Spark's data source, for batches and streams.

The tasks get Arrow batches and write the data files; Spark hands their results to ``commit``, which runs in a Python
process on the driver's machine. Spark calls ``abort`` when a task failed, but also when ``commit`` raised, and then the
commit may have landed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from lazydelta.errors import OptionError
from lazydelta.log.actions import Txn
from lazydelta.log.schema import TableSchema
from lazydelta.spark.job import IngestJob, IngestResult, TaskResult
from lazydelta.spark.maintenance import start_maintenance
from lazydelta.spark.options import IngestOptions
from lazydelta.storage import open_store
from lazydelta.write.maintenance import after_commit, is_due

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

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's
        """Write a DataFrame."""
        return _BatchWriter(self._job(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802
        """Write a stream; Spark asks for one for each micro-batch, and for another to commit it."""
        return _StreamWriter(self, schema, overwrite=overwrite)

    def _job(self, schema: StructType, *, overwrite: bool) -> IngestJob:
        uri = self.options.get("path")
        if not uri:
            raise OptionError("There is no table to write to", hint="name it: save(uri), or start(uri) for a stream")
        options = IngestOptions.from_spark(dict(self.options))
        return IngestJob.prepare(uri, arrow_schema(schema), options, "overwrite" if overwrite else "append")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Spark's schema as Arrow's; columns may be null, whatever Spark derived of its plan."""
    fields = TableSchema.parse(schema.json()).to_arrow()
    return pa.schema([field.with_nullable(True) for field in fields])  # noqa: FBT003 - pyarrow's


@dataclass(frozen=True)
class _Message(WriterCommitMessage):
    """What a task sends back; the job with it, as the one who commits a stream's batch knows only messages."""

    result: TaskResult
    job: IngestJob | None = None
    txn: Txn | None = None


class _BatchWriter(DataSourceArrowWriter):
    def __init__(self, job: IngestJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        if self._job.is_committed(self._job.options.txn):
            return _Message(TaskResult())
        return _Message(self._job.write(iterator, _task_number()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        job = self._job
        done = job.commit([each.result for each in _ours(messages)], txn=job.options.txn)
        if job.options.maintain and done.version is not None and done.metadata and not done.already_committed:
            after_commit(open_store(job.uri, job.options.storage_options), done.version, done.metadata)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._job, messages)


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, source: LazyDeltaSource, schema: StructType, *, overwrite: bool) -> None:
        self._source = source
        self._schema = schema
        self._overwrite = overwrite

    @cached_property
    def _job(self) -> IngestJob:
        return self._source._job(self._schema, overwrite=self._overwrite)  # noqa: SLF001 - the two are one

    def __getstate__(self) -> dict[str, Any]:
        """Prepare the job before it is sent to the tasks: the table is looked at once, not by each of them."""
        _ = self._job
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        txn = _stream_txn(self._job.options)
        if self._job.is_committed(txn):
            return _Message(TaskResult(), self._job, txn)
        return _Message(self._job.write(iterator, _task_number()), self._job, txn)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        ours = _ours(messages)
        results = [each.result for each in ours]
        job = next((each.job for each in ours if each.job is not None), None)
        txn = next((each.txn for each in ours if each.txn is not None), None)
        if job is None or not any(each.rows or each.rejected for each in results):
            return  # a micro-batch without rows changes nothing
        parameters = {
            "outputMode": "Complete" if self._overwrite else "Append",
            "queryId": None if txn is None else txn.app_id,
            "epochId": str(batchId),
        }
        done = job.commit(results, txn=txn, operation="STREAMING UPDATE", parameters=parameters)
        _maintain_later(job, done)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        ours = _ours(messages)
        job = next((each.job for each in ours if each.job is not None), None)
        if job is not None:
            _abort(job, messages)


def _maintain_later(job: IngestJob, done: IngestResult) -> None:
    if not job.options.maintain or done.version is None or done.metadata is None or done.already_committed:
        return
    if is_due(done.version, done.metadata):
        start_maintenance(job.uri, job.options.storage_options)


def _abort(job: IngestJob, messages: Sequence[WriterCommitMessage | None]) -> None:
    # A task without a message has failed, and then Spark never called commit. If all have one, it did, and the commit
    # may be there although it raised: the files stay.
    if any(each is None for each in messages):
        job.discard(each.result for each in _ours(messages))


def _ours(messages: Sequence[WriterCommitMessage | None]) -> list[_Message]:
    return [each for each in messages if isinstance(each, _Message)]


def _task_number() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _stream_txn(options: IngestOptions) -> Txn | None:
    """Return the transaction of the micro-batch that the present task works for."""
    context = TaskContext.get()
    batch = None if context is None else context.getLocalProperty(_BATCH_ID)
    query = None if context is None else context.getLocalProperty(_QUERY_ID)
    app_id = options.app_id or query
    # Version 0 is a version.
    return None if app_id is None or batch is None else Txn(app_id=app_id, version=int(batch))
