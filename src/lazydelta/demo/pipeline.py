"""The demo's pipeline: telemetry arrives in a folder, and Spark streams it into the growing table."""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from lazydelta.errors import LazyDeltaError, WriteError
from lazydelta.maintenance.background import last_failure, wait_for_maintenance
from lazydelta.runtime.threads import start_thread
from lazydelta.spark.errors import error_of_ours
from lazydelta.spark.ingest import ingest_stream
from lazydelta.spark.session import start_session
from lazydelta.table.delta_table import DeltaTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lazydelta.demo.story import Folders

__all__ = ["HOURS", "START", "Arrived", "Growth", "Telemetry", "device", "pipeline"]


# The demo's telemetry: JSON lines files that arrive in a folder, with late rows and rows without a time.


SCHEMA = "device_id string, sensor string, timestamp timestamp, value double, battery double"
START = datetime(2026, 2, 10, tzinfo=UTC)
HOURS = 48
# Enough rows per device for each to have some in every hour, and a minimum number of devices.
_ROWS_A_DEVICE, _FEW_DEVICES, _MANY_DEVICES = 300, 8, 200
_SENSORS = {"temperature": (18.0, 6.0), "humidity": (55.0, 15.0), "pressure": (1013.0, 4.0), "vibration": (0.3, 0.1)}
_LATE, _MOST_LATE_S = 0.03, 6 * 3600
_WITHOUT_TIME = 0.004
# Checkpoints are due at every tenth commit, so these make at least one.
_FEW_FILES, _MANY_FILES, _MANY_ROWS = 12, 24, 100_000


class Arrived(msgspec.Struct, frozen=True):
    """The rows that arrived: ``late`` rows belong to hours already written, ``without_time`` rows to none."""

    files: int = 0
    rows: int = 0
    late: int = 0
    without_time: int = 0


def device(number: int) -> str:
    """Return the name of a device."""
    return f"sensor-{number:03}"


class Telemetry:
    """Two days of measurements in a number of files. The same number of rows makes the same files."""

    def __init__(self, rows: int) -> None:
        self.files = _MANY_FILES if rows >= _MANY_ROWS else _FEW_FILES
        self._rows = rows
        self._devices = min(_MANY_DEVICES, max(_FEW_DEVICES, rows // _ROWS_A_DEVICE))
        self._random = random.Random(42)  # noqa: S311 - telemetry, not secrets

    def write(self, folder: Path, number: int) -> Arrived:
        """Write one file. It appears complete, as required by readers that watch the folder."""
        seconds = HOURS * 3600 // self.files
        begin = number * seconds
        rows = self._rows // self.files + (number < self._rows % self.files)
        late = without_time = 0
        lines = []
        for _ in range(rows):
            timestamp = begin + self._random.random() * seconds
            chance = self._random.random()
            if chance < _LATE and begin:
                timestamp = max(0.0, begin - self._random.random() * _MOST_LATE_S)
                late += 1
            is_timeless = chance > 1 - _WITHOUT_TIME
            without_time += is_timeless
            lines.append(self._line(timestamp, is_timeless=is_timeless))
        # Readers skip names that start with a dot.
        hidden = folder / f".{number:03}.json"
        hidden.write_text("".join(lines), encoding="utf-8")
        hidden.rename(folder / f"telemetry-{number:03}.json")
        return Arrived(1, rows, late, without_time)

    def _line(self, timestamp: float, *, is_timeless: bool) -> str:
        chance = self._random
        sensor, (middle, swing) = chance.choice(list(_SENSORS.items()))
        day = math.sin((timestamp / 3600 - 8) * math.pi / 12)
        value = middle + swing * (day + chance.gauss(0, 0.2))
        time = "null" if is_timeless else f'"{(START + timedelta(seconds=timestamp)).isoformat()}"'
        return (
            f'{{"device_id":"{device(chance.randrange(self._devices))}","sensor":"{sensor}","timestamp":{time},'
            f'"value":{value:.3f},"battery":{chance.random():.2f}}}\n'
        )


_BETWEEN_FILES_S = 0.3
_LOOK_S = 0.1
_MAINTENANCE_S = 60


class Growth(msgspec.Struct, frozen=True):
    """The table after a micro-batch. ``checkpoints`` and ``sidecars`` are the versions that have one."""

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
    """Start Spark and the stream. Both have ended when the block exits, however it exits."""
    with _errors_to(folders.log):  # the JVM keeps the streams it starts with
        spark = start_session("lazydelta demo", conf={"spark.log.level": "ERROR"})
    # Spark's own handler cancels everything at once, including a running micro-batch.
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
    """A running stream, and the source that writes files for it."""

    def __init__(self, spark: SparkSession, folders: Folders, telemetry: Telemetry) -> None:
        self._folders = folders
        self._telemetry = telemetry
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._started = time.monotonic()
        self.arrived = Arrived()
        # One file per micro-batch, so that the growth is visible.
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folders.arriving))
        self._query: StreamingQuery = ingest_stream(
            rows,
            str(folders.table),
            checkpoint_location=str(folders.checkpoint),
            timestamp_column="timestamp",
            null_timestamps="reject",
        )

    def grow(self) -> Iterator[Growth]:
        """Write all files, and yield the state of the table after each micro-batch."""
        source = start_thread(self._arrive, "lazydelta-demo-arrivals")
        seen = -1
        is_last = False
        while not is_last:
            is_last = not source.is_alive()
            newest = self._version()
            for version in range(seen + 1, newest + 1):
                yield self._growth(version)
            seen = newest
            if not is_last:
                time.sleep(_LOOK_S)
        if self._error is not None:
            raise self._ours(self._error)

    def finish_maintenance(self) -> Growth:
        """Wait for the checkpoint and the sidecar of the last commits, and return the state of the table."""
        uri = str(self._folders.table)
        is_done = wait_for_maintenance(uri, _MAINTENANCE_S)
        failure = last_failure(uri) if is_done else f"it is not done after {_MAINTENANCE_S} s"
        if failure is not None:
            message = f"The checkpoint and the sidecar of the demo's table were not made: {failure}"
            raise WriteError(message, path=uri, hint="try `lazydelta sidecar build` on it")
        return self._growth(self._version())

    def stop(self) -> None:
        """Stop the stream after the current micro-batch."""
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
        except Exception as error:  # noqa: BLE001 - raised again when the table is inspected
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
    """Redirect the standard error of this process and its children to a file."""
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
