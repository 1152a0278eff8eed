"""``write``, ``ingest`` and ``ingest_stream``: the data source as functions that return a result, in any thread."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from lazydelta.errors import CommitConflictError, OptionError, TableExistsError, TableNotFoundError
from lazydelta.protocol.actions import Metadata
from lazydelta.sidecar.handle import TableHandle
from lazydelta.spark.errors import ours_first
from lazydelta.spark.session import active_session, checked_trigger
from lazydelta.write.job import WriteResult
from lazydelta.write.options import WriteOptions

__all__ = ["ResultNote", "ingest", "ingest_stream", "taken_note", "write"]


# Pass the result of a commit from the committing process to the caller, because Spark returns nothing.
#
# Both run on the driver's machine, so a small file in its temporary folder is enough. A Spark Connect client runs on
# another machine and gets no result.


NOTE = "__lazydelta_result"


class _Noted(msgspec.Struct, frozen=True):
    version: int
    rows: int
    files: int
    bytes: int
    rejected: int
    already_committed: bool
    metadata: Metadata


class ResultNote:
    """A file for one result."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    @contextmanager
    def expected(cls) -> Iterator[ResultNote]:
        """Provide a result file for the duration of a block."""
        with tempfile.TemporaryDirectory(prefix="lazydelta-result-") as folder:
            yield cls(Path(folder) / "result.json")

    @property
    def option(self) -> dict[str, str]:
        """The option to add to the writer."""
        return {NOTE: str(self._path)}

    def write(self, done: WriteResult) -> None:
        """Write the result, unless the folder was removed because the caller no longer waits."""
        if self._path.parent.is_dir():
            noted = _Noted(
                done.version, done.rows, done.files, done.bytes, done.rejected, done.already_committed, done.metadata
            )
            self._path.write_bytes(msgspec.json.encode(noted))

    def read(self) -> WriteResult | None:
        """Return the result, or None if none was written."""
        if not self._path.exists():
            return None
        found = msgspec.json.decode(self._path.read_bytes(), type=_Noted)
        return WriteResult(
            found.version,
            metadata=found.metadata,
            rows=found.rows,
            files=found.files,
            bytes=found.bytes,
            rejected=found.rejected,
            already_committed=found.already_committed,
        )


def taken_note(options: MutableMapping[str, str]) -> ResultNote | None:
    """Remove the result file from the options and return it, or None if the caller expects no result."""
    path = options.pop(NOTE, None)
    return None if path is None else ResultNote(Path(path))


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
    """Write a DataFrame to a table in one commit, and return the result: version, rows, files, rejected.

    ``mode`` is Spark's: if the table exists, raise an error, leave it alone (``ignore``; ``already_committed`` is true
    then), append or overwrite. An overwrite replaces all rows, those that ``overwrite_where`` selects by partition
    columns, or with ``partition_overwrite_mode="dynamic"`` the partitions that occur in the data; with
    ``overwrite_schema`` it also replaces the columns. ``merge_schema`` adds new columns, ``user_metadata`` is recorded
    in the commit, and ``partition_by`` names the partition columns of a new table. The other options are the fields of
    `IngestOptions`. Spark's spelling works as well: ``overwriteSchema``.

    For Python data sources, Spark itself rejects partitionBy and all modes but append and overwrite; this function
    supports them. A Spark Connect client gets None, because no result reaches it.
    """
    chosen = _MODES.get(mode.lower())
    if chosen is None:
        raise OptionError(f"mode={mode!r} is not valid", hint=f"use one of {', '.join(_MODES)}")
    if chosen in {"append", "overwrite"}:
        return ingest(df, uri, mode="append" if chosen == "append" else "overwrite", **options)
    given = replace(WriteOptions.from_keywords(options), create_only=True)
    if chosen == "ignore" and (there := _left_alone(uri, given)) is not None:
        return there
    try:
        return _saved(df, uri, given, "append")
    except (TableExistsError, CommitConflictError):
        # Another writer created the table in the meantime.
        there = _left_alone(uri, given) if chosen == "ignore" else None
        if there is None:
            raise
        return there


def ingest(
    df: DataFrame, uri: str, *, mode: Literal["append", "overwrite"] = "append", **options: Any
) -> WriteResult | None:
    """Write a DataFrame to a table in one commit, and return the result: version, rows, files, rejected.

    ``options`` are the fields of `IngestOptions`. A Spark Connect client gets None, because no result reaches it.
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
    """Start writing a stream to a table, one commit per micro-batch, and return the query.

    ``trigger`` takes the arguments of Spark's ``trigger``, for example ``{"availableNow": True}``; a continuous trigger
    is rejected. The other options are the fields of `IngestOptions`.
    """
    when = checked_trigger(trigger)
    with active_session(df.sparkSession):
        writer = df.writeStream.format("lazydelta").options(**WriteOptions.from_keywords(options).to_spark())
        writer = writer.option("checkpointLocation", checkpoint_location)
        if when:
            writer = writer.trigger(**when)
        if query_name is not None:
            writer = writer.queryName(query_name)
        return writer.start(uri)
