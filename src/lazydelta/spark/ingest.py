"""``ingest`` and ``ingest_stream``: the data source as functions, for any thread."""

from __future__ import annotations

from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from lazydelta.spark.session import active_session
from lazydelta.spark.triggers import checked_trigger
from lazydelta.write.write_options import WriteOptions

__all__ = ["ingest", "ingest_stream"]


def ingest(df: DataFrame, uri: str, *, mode: Literal["append", "overwrite"] = "append", **options: Any) -> None:
    """Write a DataFrame to a table in one commit; ``options`` are the fields of `IngestOptions`."""
    given = WriteOptions(**options)
    given.plan(mode)
    with active_session(df.sparkSession):
        df.write.format("lazydelta").mode(mode).options(**given.to_spark()).save(uri)


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
    writer = df.writeStream.format("lazydelta").options(**WriteOptions(**options).to_spark())
    writer = writer.option("checkpointLocation", checkpoint_location)
    if when:
        writer = writer.trigger(**when)
    if query_name is not None:
        writer = writer.queryName(query_name)
    with active_session(df.sparkSession):
        return writer.start(uri)
