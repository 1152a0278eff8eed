"""Ingestion with Spark: the same rows written by Spark itself, by lazydelta from a DataFrame and from files, by Delta.

All of it in one session, statistics and commits included. What gates is what the project promises for five million
rows that are spread over all hours; the same rows in order of time inform.
"""

from __future__ import annotations

import atexit
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.discovery import Case, Contender, Gate
from benchmarks.measure import Measurement
from benchmarks.spark_processes import SparkUse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.report import Result

__all__ = ["GATED_ROWS", "cases", "print_details", "start_java"]

GATED_ROWS = 5_000_000
_HOURS = 48
_TASKS = 4
_HEAP = "4g"
_ROOT = Path(__file__).resolve().parents[1]
_MB = 1 << 20
_SPREAD, _IN_ORDER = "spread", "in order"
_START = 1_770_681_600_000_000  # 2026-02-10, in microseconds
_SPAN = _HOURS * 3_600_000_000
# One row in fifty comes up to two hours late, where rows come in order.
_TIMESTAMP = {
    _SPREAD: f"rand(7) * {_SPAN}",
    _IN_ORDER: f"id * ({_SPAN} / {{rows}}) - if(id % 50 = 0, rand(7) * 7.2e9, 0)",
}


def cases(rows: int) -> list[Case]:
    """Return the cases for this many rows, after Spark was started; it ends with this process."""
    bench = _Bench(rows)
    atexit.register(bench.close)

    def by(work: str, order: str = _SPREAD) -> Ingestion:
        return Ingestion(work, order, (rows,), (), bench=bench)

    found = [
        Case("DataFrame / Spark's own write", by("dataframe"), by("spark"), Gate(1, smaller=0), rows),
        Case("files / Spark's own write", by("files"), by("spark"), Gate(3, smaller=0), rows),
        Case("DataFrame in order / Spark's", by("dataframe", _IN_ORDER), by("spark", _IN_ORDER), None, rows),
        Case("files in order / Spark's", by("files", _IN_ORDER), by("spark", _IN_ORDER), None, rows),
    ]
    if bench.has_delta:
        found.append(Case("DataFrame / Delta-Spark", by("dataframe"), by("delta_spark"), None, rows))
    return found


@dataclass(frozen=True, slots=True)
class Ingestion(Contender):
    """One way to write the rows; ``name`` is the way, ``work`` the order of the rows.

    The first run of each is not measured: what Spark compiles and Python imports then is no part of the work.
    """

    bench: _Bench = field(kw_only=True)

    def run(self) -> Measurement:
        """Write the rows once."""
        return self.bench.measure(self.name, self.work)


class _Bench:
    """The session, the rows, and the folder for what is written."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._folder = Path(tempfile.mkdtemp(prefix="lazydelta-bench-ingest-"))
        self._spark, self.has_delta = _session(self._folder)
        self._cached: tuple[str, DataFrame] | None = None
        self._warm: set[str] = set()
        self._number = 0

    def close(self) -> None:
        self._spark.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def measure(self, way: str, order: str) -> Measurement:
        if way not in self._warm:
            self._warm.add(way)
            self._once(way, order)
        return self._once(way, order)

    def _once(self, way: str, order: str) -> Measurement:
        self._number += 1
        target = self._folder / f"{way}-{self._number}"
        source = self._source(order) if way == "files" else None
        frame = self._frame(order)
        os.sync()  # what others wrote before is not to be written now
        use = SparkUse(self._spark)
        try:
            with use:
                began = time.perf_counter()
                self._ways[way](frame if source is None else str(source), str(target))
                seconds = time.perf_counter() - began
            files = _files(target)
            written = sum(pq.read_metadata(file).num_rows for file in files)
            size = sum(file.stat().st_size for file in files)
        finally:
            shutil.rmtree(target, ignore_errors=True)
        usage = use.usage
        figures = {
            "rows_per_second": self._rows / seconds,
            "files": len(files),
            "bytes": size,
            **asdict(usage),
        }
        peak = usage.jvm_heap + usage.python_resident
        return Measurement(seconds, peak, usage.jvm_cpu + usage.python_cpu, written, details=figures)

    @cached_property
    def _ways(self) -> dict[str, Callable[[Any, str], object]]:
        from pyspark.sql import functions  # noqa: PLC0415 - only where Spark is wanted

        from lazydelta.spark import ingest  # noqa: PLC0415
        from lazydelta.spark.files import ingest_files  # noqa: PLC0415

        def with_hour(frame: DataFrame) -> DataFrame:
            return frame.withColumn("_event_hour", functions.date_format("timestamp", "yyyyMMddHH"))

        return {
            "spark": lambda frame, target: with_hour(frame).write.partitionBy("_event_hour").parquet(target),
            "dataframe": lambda frame, target: ingest(frame, target, timestamp_column="timestamp"),
            "files": lambda source, target: ingest_files(
                self._spark, source, target, format="parquet", timestamp_column="timestamp"
            ),
            "delta_spark": lambda frame, target: (
                with_hour(frame).write.format("delta").partitionBy("_event_hour").save(target)
            ),
        }

    def _frame(self, order: str) -> DataFrame:
        """Return the rows, held in memory by Spark so that making them is no part of what is measured."""
        if self._cached is None or self._cached[0] != order:
            if self._cached is not None:
                self._cached[1].unpersist(blocking=True)
            frame = _rows(self._spark, self._rows, order).cache()
            frame.count()
            self._cached = (order, frame)
        return self._cached[1]

    def _source(self, order: str) -> Path:
        """Return the same rows as Parquet files, as Spark writes them."""
        folder = self._folder / f"source {order}"
        if not folder.exists():
            self._frame(order).write.parquet(str(folder))
        return folder


def _rows(spark: SparkSession, rows: int, order: str) -> DataFrame:
    timestamp = _TIMESTAMP[order].format(rows=rows)
    return spark.range(0, rows, 1, _TASKS).selectExpr(
        f"timestamp_micros(cast({_START} + greatest(0, {timestamp}) as bigint)) as timestamp",
        "concat('sensor-', lpad(cast(abs(hash(id)) % 10000 as string), 5, '0')) as device_id",
        "element_at(array('temperature', 'humidity', 'pressure', 'vibration'), cast(id % 4 + 1 as int)) as sensor",
        "round(20 + rand(3) * 15, 3) as value",
        "rand(4) as battery",
        "cast(id % 7 as int) as quality",
        "id as sequence",
        "concat('site-', cast(id % 40 as string)) as site",
    )


def start_java() -> None:
    """Set what a session needs to find Java and Python."""
    from lazydelta.spark.session import prepare_environment  # noqa: PLC0415 - only where Spark is wanted

    java = subprocess.run([str(_ROOT / "scripts" / "find_java"), "--home"], capture_output=True, text=True, check=True)
    os.environ["JAVA_HOME"] = java.stdout.strip()
    prepare_environment()


def _session(folder: Path) -> tuple[SparkSession, bool]:
    """Start Spark, with Delta-Spark in it where its JAR can be had; the second tells whether it is there."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only where Spark is wanted

    start_java()
    builder = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", _HEAP)
        .config("spark.driver.extraJavaOptions", f"-Xms{_HEAP}")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(_TASKS))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        # As everybody else writes timestamps: Spark's own default is an encoding that the format has given up.
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    )
    try:
        from delta import configure_spark_with_delta_pip  # noqa: PLC0415
    except ImportError:
        return builder.getOrCreate(), False
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config(
        "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    )
    return configure_spark_with_delta_pip(builder).getOrCreate(), True


def _files(target: Path) -> list[Path]:
    """Return the data files: those that the log names where there is one."""
    if not (target / "_delta_log").exists():
        return sorted(target.rglob("*.parquet"))
    return [Path(uri.removeprefix("file://")) for uri in deltalake.DeltaTable(str(target)).file_uris()]


def print_details(results: list[Result]) -> None:
    """Print what each way of writing took: all rounds of all cases together, as medians."""
    table = Table("", "rows/s", "files", "MB", title="each way, medians of all its rounds", title_justify="left")
    for name in ("CPU s JVM", "CPU s Python", "heap MB", "JVM MB", "Python MB"):
        table.add_column(name, justify="right")
    found: dict[str, list[dict[str, float]]] = {}
    for result in results:
        for side, contender in (("ours", result.case.ours), ("theirs", result.case.theirs)):
            if contender is not None:
                runs = [run.details for run in result.rounds[side] if run.details is not None]
                found.setdefault(f"{contender.name}, {contender.work}", []).extend(runs)
    for way, runs in found.items():
        if runs:
            table.add_row(way, *_figures({key: statistics.median(run[key] for run in runs) for key in runs[0]}))
    Console(width=None if Console().is_terminal else 130).print(table)


def _figures(median: dict[str, float]) -> list[str]:
    return [
        f"{median['rows_per_second']:,.0f}",
        f"{median['files']:.0f}",
        f"{median['bytes'] / _MB:.0f}",
        f"{median['jvm_cpu']:.1f}",
        f"{median['python_cpu']:.1f}",
        *(f"{median[key] / _MB:.0f}" for key in ("jvm_heap", "jvm_resident", "python_resident")),
    ]
