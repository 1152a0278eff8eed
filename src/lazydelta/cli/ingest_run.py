"""Runs ``lazydelta ingest``: Spark works in a thread, and the main thread handles Ctrl-C and progress.

An interrupt must never strike in the middle of a commit. So the main thread only waits and forwards the request to
stop. The worker thread knows what can still be stopped.
"""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any, Protocol

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lazydelta.cli import sentences
from lazydelta.cli.output import INTERRUPTED, Output, note, output
from lazydelta.errors import LazyDeltaError, TableNotFoundError
from lazydelta.ingest.files import SourceFormat
from lazydelta.runtime.threads import start_thread
from lazydelta.sidecar.handle import TableHandle
from lazydelta.spark.errors import error_of_ours
from lazydelta.spark.files import FilesStream, MicroBatch, Progress, ingest_files, start_files_stream
from lazydelta.spark.session import start_session
from lazydelta.write.job import WriteResult
from lazydelta.write.options import WriteOptions

__all__ = ["run"]

_TICK_S = 0.2
_TRIGGERS: dict[str, dict[str, Any]] = {"once": {"once": True}, "available-now": {"availableNow": True}}


def run(source: str, table: str, *, as_json: bool, stream: bool, **options: Any) -> None:
    """Ingest and report. After Ctrl-C, end the command with its exit code."""
    out = output(as_json=as_json)
    master, conf = options.pop("master"), options.pop("conf")
    plain = _library_options(options)
    _check(source, table, plain)
    is_ours = SparkSession.getActiveSession() is None
    with out.watch(lambda: "starting Spark"):
        spark = start_session("lazydelta ingest", master=master, conf=conf)
    # Spark's own handler cancels everything at once, including a running micro-batch.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    work: _IngestTask = _Stream(spark, source, table, out, plain) if stream else _Batch(spark, source, table, plain)
    try:
        interrupted = _wait_for(work, out)
        if work.error is not None and not (interrupted and work.is_stopped):
            raise work.error
        work.report(out, interrupted=interrupted)
    finally:
        signal.signal(signal.SIGINT, before)
        if is_ours:
            with suppress(Py4JError, PySparkException, OSError, KeyboardInterrupt):
                spark.stop()
    if interrupted:
        click.get_current_context().exit(INTERRUPTED)


def _check(source: str, table: str, options: Mapping[str, Any]) -> None:
    """Refuse invalid options before Spark starts, which takes a while."""
    known = {each.name for each in fields(WriteOptions)}
    WriteOptions(**{name: value for name, value in options.items() if name in known})
    SourceFormat.parse(source, options["source_storage_options"] or options["storage_options"]).check()
    with suppress(TableNotFoundError):
        TableHandle.open(table, options["storage_options"]).newest()


class _IngestTask(Protocol):
    """The work of the thread."""

    error: BaseException | None

    @property
    def is_stopped(self) -> bool:
        """Return whether it ended because it was asked to stop."""

    def run(self) -> None:
        """Run the task."""

    def describe(self) -> str:
        """Describe the progress."""

    def stop(self) -> str:
        """Request a stop, from another thread, any number of times. Return a description of what happens next."""

    def report(self, out: Output, *, interrupted: bool) -> None:
        """Print the result."""


def _wait_for(work: _IngestTask, out: Output) -> bool:
    """Run the task to its finished. Return whether Ctrl-C was pressed."""

    def guarded() -> None:
        try:
            work.run()
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            work.error = _ours(error)

    interrupted = False
    with out.watch(work.describe):
        thread = start_thread(guarded, "lazydelta-ingest")
        while thread.is_alive():
            try:
                thread.join(_TICK_S)
                if interrupted:
                    work.stop()
            except KeyboardInterrupt:
                if interrupted:  # for the second time: the user does not want to wait
                    raise
                interrupted = True
                note(work.stop())
    return interrupted


def _ours(error: BaseException) -> BaseException:
    return error_of_ours(error) if isinstance(error, Py4JError | PySparkException) else error


class _Batch:
    def __init__(self, spark: SparkSession, source: str, table: str, options: dict[str, Any]) -> None:
        for name in ("trigger", "checkpoint_location", "max_files_per_trigger"):
            options.pop(name)
        options["mode"] = options["mode"] or "append"
        self._spark = spark
        self._progress = Progress()
        self._work: Callable[[], WriteResult] = lambda: ingest_files(
            spark, source, table, progress=self._progress, **options
        )
        self._table = TableHandle.open(table, options["storage_options"]).uri
        self._started = time.monotonic()
        self._result: WriteResult | None = None
        self.error: BaseException | None = None

    @property
    def is_stopped(self) -> bool:
        return self._result is None and isinstance(self.error, LazyDeltaError)

    def run(self) -> None:
        self._result = self._work()

    def describe(self) -> str:
        done = self._progress
        if done.phase != "reading":
            return done.phase
        files = f"{done.source_files:,} files"
        return f"reading {files}, {len(done.finished)} of {done.tasks} tasks done, {done.rows:,} rows written"

    def stop(self) -> str:
        if not self._progress.cancel():
            return "the commit is under way and cannot be stopped; please wait"
        self._spark.sparkContext.cancelAllJobs()
        return "stopping"

    def report(self, out: Output, *, interrupted: bool) -> None:
        if self._result is None:
            note("interrupted: nothing was committed")
            return
        result = {
            "uri": self._table,
            **_written(self._result),
            "source_files": self._progress.source_files,
            "source_bytes": self._progress.source_bytes,
            "seconds": round(time.monotonic() - self._started, 3),
        }
        out.tell(result, sentences.ingested)
        if interrupted:
            note(f"interrupted when all was committed, as version {self._result.version}")


class _Stream:
    def __init__(self, spark: SparkSession, source: str, table: str, out: Output, options: dict[str, Any]) -> None:
        options.pop("mode")
        trigger = options.pop("trigger")
        if trigger is not None:
            options["trigger"] = _TRIGGERS.get(trigger, {"processingTime": trigger})
        for name in ("checkpoint_location", "max_files_per_trigger"):
            if options[name] is None:
                del options[name]
        self._spark, self._source, self._options = spark, source, options
        self._given = table
        self._table = TableHandle.open(table, options["storage_options"]).store
        self._out = out
        self._stopping = threading.Event()
        self._stream: FilesStream | None = None
        self._totals = {"commits": 0, "rows": 0, "files": 0, "rejected": 0, "source_files": 0}
        self._last: MicroBatch | None = None
        self.error: BaseException | None = None

    @property
    def is_stopped(self) -> bool:
        return True

    def run(self) -> None:
        options = {"checkpoint_location": self._checkpoints()} | self._options
        self._stream = start_files_stream(self._spark, self._source, self._given, on_batch=self._took, **options)
        query = self._stream.query
        while query.isActive:
            if self._stopping.wait(_TICK_S):
                self._stream.stop()
        failure = self._stream.failure
        error = query.exception()
        self._stream.close()
        if self._stopping.is_set():
            return
        if isinstance(failure, LazyDeltaError):
            raise failure
        if error is not None:
            raise error

    def _checkpoints(self) -> str:
        """Return the default location of the stream's checkpoint: inside the table, by source.

        VACUUM, of any engine, ignores names that start with an underscore.
        """
        options = self._options["source_storage_options"] or self._options["storage_options"]
        source = SourceFormat.parse(self._source, options)
        name = hashlib.sha256(f"{source.store.uri}/{source.pattern or ''}".encode()).hexdigest()[:16]
        place = self._table.place(f"_checkpoints/ingest-{name}")
        return place if "://" in place else f"file://{place}"

    def _took(self, batch: MicroBatch) -> None:
        if not batch.result.already_committed:
            done = batch.result
            for name, more in (
                ("commits", 1),
                ("rows", done.rows),
                ("files", done.files),
                ("rejected", done.rejected),
                ("source_files", batch.source_files),
            ):
                self._totals[name] += more
        self._last = batch
        result = {
            "uri": self._table.uri,
            "batch": batch.number,
            **_written(batch.result),
            "source_files": batch.source_files,
            "lag_seconds": None if batch.lag is None else round(batch.lag, 3),
        }
        self._out.step(result)

    def describe(self) -> str:
        if self._stream is None:
            return "starting the stream"
        done = self._totals
        lag = "" if self._last is None or self._last.lag is None else f", lag {self._last.lag:.1f} s"
        return (
            f"{done['commits']:,} commits, {done['rows']:,} rows of {done['source_files']:,} files, "
            f"{done['rejected']:,} rejected{lag}"
        )

    def stop(self) -> str:
        self._stopping.set()
        return "stopping after the micro-batch at work; Ctrl-C again to leave at once"

    def report(self, out: Output, *, interrupted: bool) -> None:
        version = None if self._last is None else self._last.result.version
        out.sum_up({"uri": self._table.uri, "version": version, **self._totals}, sentences.streamed)
        if interrupted:
            note("stopped; the same command goes on where this one stopped")


def _written(result: WriteResult) -> dict[str, Any]:
    return {
        "version": result.version,
        "rows": result.rows,
        "files": result.files,
        "bytes": result.bytes,
        "rejected": result.rejected,
        "already_committed": result.already_committed,
    }


def _library_options(options: dict[str, Any]) -> dict[str, Any]:
    """Convert the options of the command for the library functions."""
    storage, source = options.pop("storage_option"), options.pop("source_option")
    sizes = options.pop("target_file_size")
    columns = options.pop("partition_by")
    found = options | {"storage_options": storage, "source_storage_options": source or None}
    if sizes is not None:
        found["target_file_size"] = sizes
    if columns is not None:
        found["partition_by"] = [each.strip() for each in columns.split(",") if each.strip()]
    return found
