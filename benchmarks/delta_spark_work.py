"""What Delta-Spark is asked: the files of a query in a fresh session, whose start is not measured.

The JVM has 12 GB of heap, which with all else that it takes is what the others have.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.ingest import start_java
from benchmarks.spark_processes import processes_below

_HEAP = "12g"
_QUIET = "rootLogger.level = off\n"


def ask(uri: str, question: dict[str, Any]) -> dict[str, Any]:
    """Look at the table for the first time, and answer."""
    from delta import configure_spark_with_delta_pip  # noqa: PLC0415 - after Java was found
    from pyspark.sql import SparkSession  # noqa: PLC0415

    folder = Path(tempfile.mkdtemp(prefix="lazydelta-delta-spark-"))
    (folder / "log4j2.properties").write_text(_QUIET)
    os.environ["SPARK_CONF_DIR"] = str(folder)
    start_java()
    builder = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", _HEAP)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    spark = configure_spark_with_delta_pip(builder).getOrCreate()
    spark.range(10).count()
    before = _peak()
    began = time.perf_counter()
    frame = spark.read.format("delta").load(uri)
    if question["where"] is not None:
        frame = frame.where(question["where"])
    # A limit is one of rows here; which files they come from is found when the query runs.
    count = len(frame.inputFiles())
    seconds = time.perf_counter() - began
    peak = _peak() - before
    spark.stop()
    return {
        "count": None if question["limit"] is not None else count,
        "seconds": seconds,
        "first_seconds": seconds,
        "peak_bytes": peak,
    }


def _peak() -> int:
    """Return the most memory that the JVM below this process ever had."""
    for pid, process in processes_below().items():
        if process.name.startswith("java"):
            for line in (Path("/proc") / str(pid) / "status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
    raise RuntimeError("there is no JVM below this process")
