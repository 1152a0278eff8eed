"""``write``, ``ingest`` and ``ingest_stream``: the data source as functions, for any thread and with a result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from lazydelta.errors import CommitConflictError, OptionError, TableExistsError, TableNotFoundError
from lazydelta.handle import TableHandle
from lazydelta.spark.result_note import ResultNote
from lazydelta.spark.session import active_session
from lazydelta.spark.sparks_words import ours_first
from lazydelta.spark.triggers import checked_trigger
from lazydelta.write.job import WriteResult
from lazydelta.write.write_options import WriteOptions

__all__ = ["ingest", "ingest_stream", "write"]

# Spark has several names for one mode.
_MODES = {
    "append": "append",
    "overwrite": "overwrite",
    "ignore": "ignore",
    "error": "error",
    "errorifexists": "error",
    "default": "error",
}


def write(
    df: DataFrame,
    uri: str,
    *,
    mode: Literal["append", "overwrite", "ignore", "error", "errorifexists"] = "error",
    **options: Any,
) -> WriteResult | None:
    """Write a DataFrame to a table in one commit, and return what was written: version, rows, files, rejected.

    ``mode`` is Spark's: a table that exists is an error, is left alone (``ignore``; ``already_committed`` is true
    then), appended to or overwritten. An overwrite replaces all rows, those that ``overwrite_where`` selects by
    partition columns, or with ``partition_overwrite_mode="dynamic"`` the partitions that the data has; with
    ``overwrite_schema`` it replaces the columns too. ``merge_schema`` lets new columns in, ``user_metadata`` is noted
    in the commit, ``partition_by`` names the partition columns of a new table. The other options are the fields of
    `IngestOptions`. Each may be spelled as Spark does, too: ``overwriteSchema``.

    Spark itself refuses modes other than append and overwrite, and partitionBy, where it writes to a data source in
    Python; here they are all served. A client of Spark Connect gets None, as nobody tells it.
    """
    chosen = _MODES.get(mode.lower())
    if chosen is None:
        raise OptionError(f"mode={mode!r} makes no sense", hint=f"say one of {', '.join(_MODES)}")
    if chosen in {"append", "overwrite"}:
        return ingest(df, uri, mode="append" if chosen == "append" else "overwrite", **options)
    given = replace(WriteOptions.from_keywords(options), create_only=True)
    if chosen == "ignore" and (there := _left_alone(uri, given)) is not None:
        return there
    try:
        return _saved(df, uri, given, "append")
    except (TableExistsError, CommitConflictError):
        # Another writer created it meanwhile.
        there = _left_alone(uri, given) if chosen == "ignore" else None
        if there is None:
            raise
        return there


def ingest(
    df: DataFrame, uri: str, *, mode: Literal["append", "overwrite"] = "append", **options: Any
) -> WriteResult | None:
    """Write a DataFrame to a table in one commit, and return what was written: version, rows, files, rejected.

    ``options`` are the fields of `IngestOptions`. A client of Spark Connect gets None, as nobody tells it.
    """
    given = WriteOptions.from_keywords(options)
    given.plan(mode)
    return _saved(df, uri, given, mode)


def _saved(df: DataFrame, uri: str, given: WriteOptions, mode: str) -> WriteResult | None:
    with active_session(df.sparkSession), ResultNote.expected() as note, ours_first():
        df.write.format("lazydelta").mode(mode).options(**given.to_spark(), **note.option).save(uri)
        return note.read()


def _left_alone(uri: str, given: WriteOptions) -> WriteResult | None:
    try:
        known = TableHandle.open(uri, given.storage_options).newest()
    except TableNotFoundError:
        return None
    return WriteResult(known.version, metadata=known.metadata, already_committed=True)


def ingest_stream(
    df: DataFrame,
    uri: str,
    *,
    checkpoint_location: str,
    trigger: dict[str, Any] | None = None,
    query_name: str | None = None,
    **options: Any,
) -> StreamingQuery:
    """Begin to write a stream to a table, one commit for each micro-batch, and return the query.

    ``trigger`` is what Spark's ``trigger`` takes, for example ``{"availableNow": True}``; a continuous one is refused.
    The other options are the fields of `IngestOptions`; ``partition_by`` is among them, because what a stream's own
    ``partitionBy(…)`` says never reaches a data source in Python.
    """
    when = checked_trigger(trigger)
    writer = df.writeStream.format("lazydelta").options(**WriteOptions.from_keywords(options).to_spark())
    writer = writer.option("checkpointLocation", checkpoint_location)
    if when:
        writer = writer.trigger(**when)
    if query_name is not None:
        writer = writer.queryName(query_name)
    with active_session(df.sparkSession):
        return writer.start(uri)
