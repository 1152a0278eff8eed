"""``format("lazydelta")``: the Spark data source for batches and streams.

Tasks get Arrow batches and write the data files. Spark passes their results to ``commit``, which runs in a Python
process on the driver's machine. Spark calls ``abort`` if a task failed, but also if ``commit`` raised, in which case
the commit may have succeeded.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

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
from lazydelta.protocol.actions import Txn
from lazydelta.protocol.schema import TableSchema
from lazydelta.spark.errors import sentence_first, with_spark_names
from lazydelta.spark.ingest import ResultNote, taken_note
from lazydelta.spark.maintenance import in_session, is_run_again, maintain_written, settings_of_task, task_number
from lazydelta.spark.reader import open_reader, read_schema
from lazydelta.storage import open_store
from lazydelta.write.batch_record import BatchDigest
from lazydelta.write.job import TaskResult, WriteJob, refuse_older
from lazydelta.write.options import WriteOptions

__all__ = ["LazyDeltaSource", "arrow_schema"]

# Local properties that identify the query and micro-batch of a streaming task.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_NO_PLACE = (
    "name it: save(uri), or start(uri) for a stream; of a table in its catalog (saveAsTable, CREATE TABLE … AS SELECT, "
    "writeTo, toTable) Spark tells a data source in Python neither name nor location: save to a location, then type "
    "CREATE TABLE … USING delta LOCATION 'uri', or call lazydelta.spark.attach(spark, name=uri)"
)


class LazyDeltaSource(DataSource):
    """The data source ``lazydelta``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(…)``."""
        return "lazydelta"

    def schema(self) -> StructType:
        """Return the table's columns from its log, and pin that version for the read."""
        schema, self._version = read_schema(self.options)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a table. A schema given by the user selects columns."""
        return open_reader(self.options, schema, getattr(self, "_version", None))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of a table as a stream."""
        try:
            from lazydelta.spark.stream_reader import LazyDeltaStreamReader  # noqa: PLC0415 - needs PySpark 4.2
        except ImportError as error:
            message = f"readStream.format('lazydelta') needs PySpark 4.2, and this is {pyspark.__version__}"
            hint = "its data sources support neither limits per micro-batch nor availableNow; DeltaTable.changes does"
            raise OptionError(message, hint=hint) from error
        with sentence_first():
            return LazyDeltaStreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's signature
        """Return a writer of a DataFrame."""
        given = dict(self.options)
        note = taken_note(given)
        with sentence_first():
            options = WriteOptions.from_spark(given)
            if options.app_id is not None and options.app_version is None:
                hint = "pass both, so that a batch that is written again is recognised, or neither"
                raise OptionError("txnAppId is not valid for a batch without txnVersion", hint=hint)
            return _BatchWriter(self._job(schema, options, overwrite=overwrite), note)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802
        """Return a writer of a stream. Spark requests one per micro-batch, and another to commit it."""
        return _StreamWriter(self, schema, overwrite=overwrite)

    def stream_job(self, schema: StructType, *, overwrite: bool) -> WriteJob:
        """Prepare the write job of the next micro-batch."""
        options = self._options()
        if options.app_version is not None:
            hint = "omit it; a stream numbers its own micro-batches"
            raise OptionError("txnVersion is not valid for a stream", hint=hint)
        return self._job(schema, options, overwrite=overwrite)

    def _options(self) -> WriteOptions:
        return WriteOptions.from_spark(dict(self.options))

    def _job(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> WriteJob:
        uri = self.options.get("path")
        if not uri:
            raise OptionError("There is no table to write to", hint=_NO_PLACE)
        try:
            return WriteJob.prepare(uri, arrow_schema(schema), options, "overwrite" if overwrite else "append")
        except SchemaMismatchError as error:
            if overwrite and options.overwrite_where is None and not options.overwrite_schema:
                error.hint = f"set overwriteSchema to true to give the table the columns of the data; or {error.hint}"
            raise


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a Spark schema as an Arrow schema. All fields are nullable, whatever Spark derived from its plan.

    Raises for types that Arrow would pass on as simpler ones.
    """
    raw = json.loads(schema.json())
    _refuse_types(raw, ())
    return TableSchema.parse(json.dumps(_nullable(raw)), origin="the DataFrame").to_arrow()


# Prefixes of Spark types that Delta lacks or lazydelta does not write, and what to do with such columns.
_REFUSED = {
    "variant": "write it as text, with to_json(…), or as columns, with variant_get(…)",
    "udt": "write its parts as columns, as vector_to_array(…) does for vectors",
    "interval": "write it as a number, of seconds or months",
    "time(": "cast it to string, or write the whole timestamp",
    "geography": "write it as binary, with st_asbinary(…)",
    "geometry": "write it as binary, with st_asbinary(…)",
}
_COLLATIONS = "__COLLATIONS"


def _refuse_types(raw: Any, path: tuple[str, ...]) -> None:
    """Reject types that would be written as plain structs, strings or binaries: their meaning would be lost."""
    if isinstance(raw, dict):
        for field in raw["fields"] if raw["type"] == "struct" else ():
            place = (*path, field["name"])
            for name, collation in (field.get("metadata") or {}).get(_COLLATIONS, {}).items():
                where = ".".join((*path, name))
                message = f"The column {where!r} is collated ({collation}), which lazydelta does not write"
                raise SchemaMismatchError(message, hint="use binary collation: collate(…, 'UTF8_BINARY')")
            _refuse_types(field["type"], place)
        for part, name in (("elementType", "element"), ("keyType", "key"), ("valueType", "value")):
            if part in raw:
                _refuse_types(raw[part], (*path, name))
    kind = raw["type"] if isinstance(raw, dict) else raw
    hint = next((hint for start, hint in _REFUSED.items() if kind.startswith(start)), None)
    if hint is not None:
        message = f"The column {'.'.join(path)!r} is of Spark's type {kind}, which lazydelta does not write"
        raise SchemaMismatchError(message, hint=hint)


def _nullable(raw: Any) -> Any:
    """Return a type of a Spark schema with every value nullable, except for map keys."""
    if isinstance(raw, list):
        return [_nullable(each) for each in raw]
    if not isinstance(raw, dict):
        return raw
    # Metadata of the source, such as that of another table's columns, is not written.
    found = {key: _nullable(value) for key, value in raw.items() if key != "metadata"}
    return found | {key: True for key in ("nullable", "containsNull", "valueContainsNull") if key in found}


@dataclass(frozen=True)
class _Message(WriterCommitMessage):
    """The result of a task. It includes the job, because the committer of a stream's batch gets only messages.

    ``settings`` are those of the session, which are available only in tasks.
    """

    result: TaskResult
    job: WriteJob | None = None
    txn: Txn | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


class _BatchWriter(DataSourceArrowWriter):
    def __init__(self, job: WriteJob, note: ResultNote | None = None) -> None:
        self._job = job
        self._note = note

    @sentence_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        settings = settings_of_task()
        job = in_session(self._job, settings)
        # Within foreachBatch it is a micro-batch, wherever its number comes from.
        is_stream = job.options.txn is not None and _of_task(_BATCH_ID) is not None
        digest = BatchDigest() if is_stream else None
        if job.is_committed(job.options.txn):
            result = job.count(iterator, digest)
        else:
            result = job.write(iterator, task_number(), run_again=is_run_again(), digest=digest)
        return _Message(result, settings=settings)

    @sentence_first()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        ours = _all(messages)
        job = in_session(self._job, ours[0].settings)
        results = [each.result for each in ours]
        is_stream = any(each.digest is not None for each in results)
        done = job.commit(results, txn=job.options.txn, is_stream=is_stream)
        if self._note is not None:
            self._note.write(done)
        maintain_written(job.uri, job.options, done)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._job, messages)


class _RefusedError(WriteError, pickle.PickleError):
    """A stream that cannot be written.

    It is raised while Spark pickles the writer. Spark would report any other class as a pickling failure.
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
        """Prepare the job before it is sent to the tasks, so that the table is inspected only once."""
        try:
            _ = self._job
        except LazyDeltaError as error:
            raise _RefusedError(f"{type(error).__name__}: {with_spark_names(error)}") from None
        return self.__dict__

    @sentence_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Message:
        txn = _stream_txn(self._job.options)
        job = in_session(self._job.of_batch(txn), settings_of_task(), is_stream=True)
        refuse_older(job.uri, txn, job.committed.get(txn.app_id))
        if job.is_committed(txn):
            result = job.count(iterator, BatchDigest())
        else:
            result = job.write(iterator, task_number(), run_again=is_run_again(), digest=BatchDigest())
        return _Message(result, replace(job, committed={}), txn)

    @sentence_first()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
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
        done = job.commit(
            results,
            txn=txn,
            operation="STREAMING UPDATE",
            parameters=parameters,
            is_stream=True,
            batch_plan=_batch_plan(self._source.options.get("checkpointLocation"), batchId, job),
        )
        maintain_written(job.uri, job.options, done, later=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        ours = _ours(messages)
        job = next((each.job for each in ours if each.job is not None), None)
        if job is not None:
            _abort(job, messages)


def _abort(job: WriteJob, messages: Sequence[WriterCommitMessage | None]) -> None:
    # If a task has no message, it failed, and Spark never called commit. Otherwise commit was called and may have
    # succeeded although it raised, so the files stay.
    if any(each is None for each in messages):
        job.discard([each.result for each in _ours(messages)])


def _all(messages: Sequence[WriterCommitMessage | None]) -> list[_Message]:
    """Return the messages of all tasks, or raise if one is missing, because its rows would be lost."""
    ours = _ours(messages)
    if len(ours) < len(messages):
        message = f"{len(messages) - len(ours)} of {len(messages)} tasks did not report what they wrote"
        hint = "nothing was committed; Spark's continuous trigger loses rows of every Python data source: use another"
        raise WriteError(message, hint=hint)
    return ours


def _ours(messages: Sequence[WriterCommitMessage | None]) -> list[_Message]:
    return [each for each in messages if isinstance(each, _Message)]


def _stream_txn(options: WriteOptions) -> Txn:
    """Return the transaction of the current task's micro-batch."""
    batch, query = _of_task(_BATCH_ID), _of_task(_QUERY_ID)
    if query is None or batch is None:
        message = "Spark does not tell its task the query or micro-batch, so rows could be written twice"
        raise WriteError(message, hint="use a version of PySpark that lazydelta supports")
    return Txn(app_id=options.stream_app_id(query), version=int(batch))


def _of_task(key: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(key)


def _batch_plan(location: str | None, batch: int, job: WriteJob) -> str | None:
    """Return a fingerprint of Spark's plan for a micro-batch, or None if it cannot be read.

    Spark records the offsets of all sources with a timestamp before it starts a micro-batch; a retry has the same
    record. The table's credentials are used only for its own container or bucket.
    """
    place = urlsplit(location or "")
    is_local = place.scheme in {"", "file"}
    if not location or not (is_local or place[:2] == urlsplit(job.uri)[:2]):
        return None
    try:
        store = open_store(location, {} if is_local else job.options.storage_options)
        noted = store.get(f"offsets/{batch}")
    except (LazyDeltaError, OSError, ValueError):
        return None
    return hashlib.sha256(noted).hexdigest()[:32]
