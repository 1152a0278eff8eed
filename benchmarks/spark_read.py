"""Reading with Spark: both our ways beside Delta-Spark's first look at a table, and beside Spark's own Parquet reader.

All of it in one session. An hour of a huge table is planned until the first task could run: its data files are empty
stand-ins, as reading rows is the same work for everybody. What has to stay flat is compared between two sizes of table:
what the planning worker takes at its peak, and what the JVM's heap holds after a collection. Rows are read from a table
of their own, whole.
"""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from benchmarks.discovery import Case, Contender, Gate
from benchmarks.ingest import _SPREAD, _rows, _session
from benchmarks.measure import Measurement, peak_memory
from benchmarks.spark_processes import SparkUse
from benchmarks.tables import cached_table
from lazydelta import DeltaTable, sidecar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GATED_FILES", "cases"]

GATED_FILES = 1_000_000
_SMALL_SHARE = 10  # the table to compare memory with has a tenth of the files
_ROWS_A_FILE = 5  # of the table whose rows are read, for each file of the other one


def cases(files: int) -> list[Case]:
    """Return the cases for a table of so many files, after Spark was started; it ends with this process."""
    bench = _Bench(files)
    atexit.register(bench.close)

    def by(work: str, *arguments: int) -> SparkReading:
        return SparkReading("Spark", work, arguments or (files,), (), bench=bench)

    hour, rows = bench.hour_files(files), files * _ROWS_A_FILE
    small = max(1, files // _SMALL_SHARE)
    found = [
        Case(
            "rows: lazydelta.spark.read / spark.read.parquet",
            by("fast_rows"),
            by("parquet_rows"),
            Gate(1 / 1.05, 0),
            rows,
        ),
        Case("rows: the data source / spark.read.parquet", by("source_rows"), by("parquet_rows"), None, rows),
        Case("planning worker / a tenth of the files", by("worker"), by("worker", small), Gate(0, 1 / 1.2), hour),
        Case("JVM's heap / a tenth of the files", by("heap"), by("heap", small), Gate(0, 1 / 1.2), hour),
    ]
    if bench.has_delta:
        found += [
            Case("an hour: data source / Delta-Spark", by("source_hour"), by("delta_hour"), Gate(10, 0), hour),
            Case("an hour: lazydelta.spark.read / Delta-Spark", by("fast_hour"), by("delta_hour"), Gate(20, 0), hour),
            Case("an hour again: the same DataFrames", by("fast_again"), by("delta_again"), Gate(5, 0), hour),
        ]
    return found


@dataclass(frozen=True, slots=True)
class SparkReading(Contender):
    """One way to read; the first run of each is not measured, but for the first look that Delta-Spark takes."""

    bench: _Bench = field(kw_only=True)

    def run(self) -> Measurement:
        """Read once."""
        (files,) = self.arguments
        return self.bench.measure(self.work, int(str(files)))


class _Bench:
    """The session and the tables."""

    def __init__(self, files: int) -> None:
        self._files = files
        self._folder = Path(tempfile.mkdtemp(prefix="lazydelta-bench-spark-read-"))
        self._spark, self.has_delta = _session(self._folder)
        self._warm: set[str] = set()
        self._hours: dict[int, list[str]] = {}
        self._kept: dict[int, tuple[Any, Any]] = {}

    def close(self) -> None:
        self._spark.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def hour_files(self, files: int) -> int:
        """Return how many files the hour has, after it was seen to that they are there."""
        return len(self._hour_paths(files))

    def measure(self, work: str, files: int) -> Measurement:
        self._hour_paths(files)
        if work not in self._warm:
            self._warm.add(work)
            self._ways[work](files)
        if work == "worker":
            return self._worker(files)
        if work == "delta_hour":
            self._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        use = SparkUse(self._spark)
        with use:
            began = time.perf_counter()
            answer = self._ways[work](files)
            seconds = time.perf_counter() - began
        peak = use.usage.jvm_heap
        if work == "heap":
            self._jvm.java.lang.System.gc()
            memory = self._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
            peak = memory.getHeapMemoryUsage().getUsed()
        return Measurement(seconds, peak, use.usage.jvm_cpu + use.usage.python_cpu, answer)

    def _worker(self, files: int) -> Measurement:
        """Plan in a process like Spark's planning worker, and ask it what it took at its peak."""
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.spark_read", *self._table(files)],
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(done.stdout)
        return Measurement(time.perf_counter() - began, found["peak"], None, found["files"])

    @property
    def _jvm(self) -> Any:
        return self._spark.sparkContext._jvm  # noqa: SLF001 - the way to the JVM's own figures

    @cached_property
    def _ways(self) -> dict[str, Callable[[int], int]]:
        return {
            "source_hour": self._source_hour,
            "heap": self._source_hour,
            "worker": lambda files: int(self._worker(files).answer),
            "fast_hour": lambda files: self._planned(self._fast(files), files),
            "delta_hour": lambda files: self._planned(self._delta(files), files),
            "fast_again": lambda files: self._planned(self._frames(files)[0], files),
            "delta_again": lambda files: self._planned(self._frames(files)[1], files),
            "fast_rows": lambda _: self._sum(self._read_fast(self._rows_table)),
            "source_rows": lambda _: self._sum(self._spark.read.format("lazydelta").load(self._rows_table)),
            "parquet_rows": lambda _: self._sum(self._plain()),
        }

    def _table(self, files: int) -> tuple[str, str]:
        """Return a copy of the table, because other benchmarks want it without sidecar, and its last hour."""
        folder, made = cached_table(files=files)
        copy = self._folder / f"{files} files"
        if not copy.exists():
            shutil.copytree(folder, copy)
        return str(copy), made.last_hour

    def _hour_paths(self, files: int) -> list[str]:
        if files not in self._hours:
            uri, hour = self._table(files)
            sidecar.build(uri)
            found = [file.path for file in DeltaTable(uri).files(f"_event_hour = '{hour}'")]
            for path in found:
                place = Path(uri) / unquote(path)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
            self._hours[files] = found
        return self._hours[files]

    def _source_hour(self, files: int) -> int:
        uri, hour = self._table(files)
        frame = self._spark.read.format("lazydelta").option("where", f"_event_hour = '{hour}'").load(uri)
        return self._planned(frame, files)

    def _planned(self, frame: Any, files: int) -> int:
        """Plan a query until its first task could run, files included, and run nothing."""
        frame.rdd.getNumPartitions()
        return len(self._hour_paths(files))

    def _fast(self, files: int) -> Any:
        uri, hour = self._table(files)
        return self._read_fast(uri).where(f"_event_hour = '{hour}'")

    def _delta(self, files: int) -> Any:
        uri, hour = self._table(files)
        return self._spark.read.format("delta").load(uri).where(f"_event_hour = '{hour}'")

    def _frames(self, files: int) -> tuple[Any, Any]:
        """Return an hour of DataFrames that stay; Spark plans it anew, with what it knows of the table."""
        if files not in self._kept:
            uri, _ = self._table(files)
            self._kept[files] = self._read_fast(uri), self._spark.read.format("delta").load(uri)
        _, hour = self._table(files)
        ours, delta = (each.where(f"_event_hour = '{hour}'") for each in self._kept[files])
        return ours, delta

    def _read_fast(self, uri: str, **keywords: Any) -> Any:
        from lazydelta.spark import read  # noqa: PLC0415 - only where Spark is wanted

        return read(self._spark, uri, **keywords)

    @cached_property
    def _rows_table(self) -> str:
        from lazydelta.spark import ingest  # noqa: PLC0415

        uri = str(self._folder / "rows")
        ingest(_rows(self._spark, self._files * _ROWS_A_FILE, _SPREAD), uri, timestamp_column="timestamp")
        return uri

    def _plain(self) -> Any:
        """Return the same files as Spark reads a folder, with the schema, which it would infer otherwise."""
        frame = self._read_fast(self._rows_table)
        return self._spark.read.schema(frame.schema).parquet(self._rows_table)

    @staticmethod
    def _sum(frame: Any) -> int:
        """Read every column of every row, and count."""
        frame.write.format("noop").mode("overwrite").save()
        return int(frame.selectExpr("count(1) AS n").collect()[0].n)


def plan_an_hour(uri: str, hour: str) -> int:
    """Plan the read of an hour as Spark's planning worker does, and return how many files it has."""
    from lazydelta.spark.reader import SharePartition, open_reader, read_schema  # noqa: PLC0415

    given = {"path": uri, "where": f"_event_hour = '{hour}'"}
    schema, version = read_schema(given)
    partitions = open_reader(given, schema, version).partitions()
    return sum(len(each.share.files) for each in partitions if isinstance(each, SharePartition))


if __name__ == "__main__":
    print(json.dumps({"files": plan_an_hour(*sys.argv[1:]), "peak": peak_memory()}))
