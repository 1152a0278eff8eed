"""``ingest_files_stream``: new files of a folder, each micro-batch one commit.

Spark's own source of file streams keeps account of which files are new, and that is all that Spark is asked for: not a
byte of them passes through it. What a micro-batch is to hold is thus fixed before it is begun, also if it has to be
done again, and the table itself knows which ones it has.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from lazydelta.errors import OptionError, WriteError
from lazydelta.log.actions import Txn
from lazydelta.maintenance.own_thread import BackgroundMaintenance
from lazydelta.sources.source_files import Source, SourceFile
from lazydelta.spark.files_ingestion import Columns, FilesIngestion, Progress
from lazydelta.spark.job_maintenance import maintain_rejected
from lazydelta.spark.triggers import checked_trigger
from lazydelta.write.job import WriteResult
from lazydelta.write.write_options import WriteOptions

__all__ = ["FilesStream", "MicroBatch", "ingest_files_stream", "start_files_stream"]

_FILE_LISTING = "path string, modificationTime timestamp, length bigint, content binary"
# Hadoop takes these in a path for a pattern.
_PATTERN = re.compile(r"([{}\[\]*?\\])")
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.\-]*:(//[^/]*)?")
# Spark forgets files, and then ignores new ones, that are older than the newest by more than this; a week by default,
# which would lose what comes late.
_MAX_FILE_AGE = "3650d"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What a micro-batch has done; ``lag`` is how long, in seconds, its oldest file had been there when it was over."""

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
    """Begin to write the files that come to a folder to a table, one commit for each micro-batch; return the query.

    ``trigger`` is what Spark's ``trigger`` takes, for example ``{"availableNow": True}``. The other options are those
    of `ingest_files` and `start_files_stream`. A file must come whole: written elsewhere and moved, or under a name
    that begins with ``_`` or ``.``.
    """
    return start_files_stream(
        spark, source, uri, checkpoint_location=checkpoint_location, trigger=trigger, **options
    ).query


def start_files_stream(  # noqa: PLR0913 - keyword-only, and each stands for itself
    spark: SparkSession,
    source: str,
    uri: str,
    *,
    checkpoint_location: str,
    format: str | None = None,  # noqa: A002 - as Spark calls it
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
    """Begin as `ingest_files_stream` does; ``on_batch`` is told of each micro-batch that has done something."""
    when = checked_trigger(trigger)
    given = WriteOptions.from_keywords(options)
    if given.app_version is not None:
        hint = "leave it out; a stream counts its micro-batches by itself"
        raise OptionError("app_version makes no sense for a stream", hint=hint)
    found = Source.parse(source, given.storage_options if source_storage_options is None else source_storage_options)
    # Whether the folder exists, and what its files are, is better known now than in the first micro-batch.
    files = found.files()
    file_format = found.format_of(files, format)
    work = FilesIngestion(
        spark, found, uri, given, format=file_format, schema=schema, header=header, on_bad_rows=on_bad_rows
    )
    return FilesStream(work, on_batch).start(checkpoint_location, when, query_name, max_files_per_trigger)


class FilesStream:
    """A query that ingests files, and an end to it that waits for the micro-batch at work."""

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
        # Or a folder within it that looks like a partition would hide the files beside it, without a word.
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
        """End the query after the micro-batch at work, or after ``patience`` seconds in the midst of it."""
        self._stopping.set()
        self._idle.wait(patience)
        self.query.stop()

    def close(self) -> None:
        """Wait for the maintenance that is under way; the query has ended."""
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
            raise WriteError("The stream is about to stop", hint="the next start goes on with this micro-batch")

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
        """Return the files of a micro-batch that are meant, and when the oldest was written, in milliseconds."""
        source = self._work.source
        folder = _key(source.store.place(""))
        found: dict[str, tuple[int, int]] = {}
        for place, size, modified in listed.collect():
            above, _, name = place.rpartition("/")
            # Hadoop spells the same folder in its own way (file:/…), lists the folders in it, and tells of files that
            # have brackets and the like in their paths several times.
            if size and _key(above) == folder and source.takes(name):
                found[name] = (size, modified)
        files = [SourceFile(name, size) for name, (size, _) in sorted(found.items())]
        return files, min((modified for _, modified in found.values()), default=None)


def _key(place: str) -> str:
    return _SCHEME.sub("", place).strip("/")
