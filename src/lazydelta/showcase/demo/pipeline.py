"""The demo's pipeline: telemetry arrives in a folder, Spark streams it into the table, and the table grows."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from lazydelta.delta_table import DeltaTable
from lazydelta.errors import LazyDeltaError, WriteError
from lazydelta.maintenance.own_process import last_failure, wait_for_maintenance
from lazydelta.showcase.demo.sensors import SCHEMA, Arrived, Telemetry
from lazydelta.spark.ingest import ingest_stream
from lazydelta.spark.session import start_session
from lazydelta.spark.sparks_words import error_of_ours

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lazydelta.showcase.demo.folders import Folders

__all__ = ["Growth", "Pipeline", "pipeline"]

_BETWEEN_FILES_S = 0.3
_LOOK_S = 0.1
_MAINTENANCE_S = 60


class Growth(msgspec.Struct, frozen=True):
    """The table after a micro-batch; ``checkpoints`` and ``sidecars`` are the versions that have one by then."""

    micro_batch: int
    version: int
    rows: int
    files: int
    bytes: int
    checkpoints: list[int]
    sidecars: list[int]
    seconds: float


@contextmanager
def pipeline(folders: Folders, telemetry: Telemetry) -> Iterator[Pipeline]:
    """Start Spark and the stream; both have ended when the block has, however it ends."""
    with _errors_to(folders.log):  # the JVM keeps what it is started with
        spark = start_session("lazydelta demo", conf={"spark.log.level": "ERROR"})
    # Spark's own handler cancels everything at once, a micro-batch at work included.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    running: Pipeline | None = None
    try:
        running = Pipeline(spark, folders, telemetry)
        yield running
    finally:
        with suppress(Py4JError, PySparkException, OSError):
            if running is not None:
                running.stop()
            spark.stop()


class Pipeline:
    """A stream at work, and who lets files arrive for it."""

    def __init__(self, spark: SparkSession, folders: Folders, telemetry: Telemetry) -> None:
        self._folders = folders
        self._telemetry = telemetry
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._started = time.monotonic()
        self.arrived = Arrived()
        # One file a micro-batch, so that there is something to see.
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folders.arriving))
        self._query: StreamingQuery = ingest_stream(
            rows,
            str(folders.table),
            checkpoint_location=str(folders.checkpoint),
            timestamp_column="timestamp",
            null_timestamps="reject",
        )
        self._source = threading.Thread(target=self._arrive, name="lazydelta-demo-arrivals", daemon=True)

    def grow(self) -> Iterator[Growth]:
        """Let all files arrive, and yield what the table is after each micro-batch."""
        self._source.start()
        seen = -1
        is_last = False
        while not is_last:
            is_last = not self._source.is_alive()
            newest = self._version()
            for version in range(seen + 1, newest + 1):
                yield self._growth(version)
            seen = newest
            if not is_last:
                time.sleep(_LOOK_S)
        if self._error is not None:
            raise self._ours(self._error)

    def finish_maintenance(self) -> Growth:
        """Wait for the checkpoint and the sidecar that the last commits made due, and return what the table is."""
        uri = str(self._folders.table)
        is_done = wait_for_maintenance(uri, _MAINTENANCE_S)
        failure = last_failure(uri) if is_done else f"it is not done after {_MAINTENANCE_S} s"
        if failure is not None:
            message = f"The checkpoint and the sidecar of the demo's table were not made: {failure}"
            raise WriteError(message, path=uri, hint="try `lazydelta sidecar build` on it")
        return self._growth(self._version())

    def stop(self) -> None:
        """End the stream after what it is at."""
        self._stopped.set()
        self._query.stop()

    def _arrive(self) -> None:
        try:
            for number in range(self._telemetry.files):
                more = self._telemetry.write(self._folders.arriving, number)
                self.arrived = Arrived(*(sum(both) for both in zip(_fields(self.arrived), _fields(more), strict=True)))
                if self._stopped.wait(_BETWEEN_FILES_S):
                    return
            self._query.processAllAvailable()
        except Exception as error:  # noqa: BLE001 - raised again by whoever looks at the table
            if not self._stopped.is_set():
                self._error = error

    def _version(self) -> int:
        uri = str(self._folders.table)
        return DeltaTable(uri).version() if DeltaTable.is_deltatable(uri) else -1

    def _growth(self, version: int) -> Growth:
        table = DeltaTable(str(self._folders.table), version=version)
        rows = files = size = 0
        for batch in table.files(stats_columns=[]).batches():
            files += batch.num_rows
            rows += sum(batch.column("num_records").to_pylist())
            size += sum(batch.column("size").to_pylist())
        return Growth(
            micro_batch=_micro_batch(table),
            version=version,
            rows=rows,
            files=files,
            bytes=size,
            checkpoints=self._folders.checkpoints(),
            sidecars=self._folders.sidecars(),
            seconds=round(time.monotonic() - self._started, 1),
        )

    def _ours(self, error: BaseException) -> BaseException:
        if isinstance(error, Py4JError | PySparkException):
            error = error_of_ours(error)
        if isinstance(error, LazyDeltaError):
            return error
        hint = f"what Spark says is in {self._folders.log}"
        return WriteError(f"The stream has ended: {error}", path=str(self._folders.table), hint=hint)


def _fields(arrived: Arrived) -> tuple[int, ...]:
    return tuple(msgspec.structs.astuple(arrived))


def _micro_batch(table: DeltaTable) -> int:
    commit: dict[str, Any] = table.history(1)[0]
    return int(commit["operationParameters"]["epochId"])


@contextmanager
def _errors_to(log: Path) -> Iterator[None]:
    """Let what is written to standard error, by this process and those that it starts, go to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
