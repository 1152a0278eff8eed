"""Delta-Spark behind a pipe: runs in an environment of its own and answers one JSON line for each it is asked.

Started by `tests/support/delta_spark.py`; `--fetch` only resolves the JAR, which `make setup` does once.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_LOGGING = """
rootLogger.level = off
"""


def session() -> Any:
    """Start the one Spark session."""
    # Both live in this script's own environment, not in the project's.
    configure_spark_with_delta_pip = importlib.import_module("delta").configure_spark_with_delta_pip
    SparkSession = importlib.import_module("pyspark.sql").SparkSession  # noqa: N806 - a class

    found = subprocess.run(
        [str(Path(__file__).parents[2] / "scripts" / "find_java")], capture_output=True, text=True, check=True
    )
    os.environ["JAVA_HOME"] = str(Path(found.stdout.strip()).resolve().parents[1])
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = Path(tempfile.mkdtemp(prefix="lazydelta-spark-"))
    (folder / "log4j2.properties").write_text(_LOGGING)
    os.environ["SPARK_CONF_DIR"] = str(folder)
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        # So few rows are run through that what a JVM optimises is never worth it.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # Fifty tasks for the log of a table of ten files is most of what a query takes.
        .config("spark.databricks.delta.snapshotPartitions", "2")
        # VACUUM makes ten thousand tasks of a listing otherwise.
        .config("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
        # To compile a plan takes longer than to run it over so few rows.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    return configure_spark_with_delta_pip(builder).getOrCreate()


def validate(spark: Any, table: str) -> list[dict[str, Any]]:
    """Let Delta-Spark compare the newest checksum with a replay of its own, as it does before it writes a checkpoint.

    A query does not: it believes the checksum.
    """
    spark.sql(f"DESCRIBE DETAIL delta.`{table}`").collect()  # takes notice of the newest version
    jvm = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table)
    nothing = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
    snapshot = log.unsafeVolatileSnapshot()
    return [{"version": snapshot.version(), "valid": snapshot.validateChecksum(nothing)}]


def main() -> None:
    """Answer: each line is {"id", "sql"} or {"id", "validate"}, each answer {"id", "rows"} or {"id", "error"}."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever the JVM prints must not run into the answers
    spark = session()
    if "--fetch" in sys.argv:
        spark.stop()
        return
    answers.write('{"ready": true}\n')
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "validate" in asked:
                rows = validate(spark, asked["validate"])
            else:
                rows = [json.loads(each) for each in spark.sql(asked["sql"]).toJSON().collect()]
            answer = {"id": asked["id"], "rows": rows}
        except Exception as error:  # noqa: BLE001 - told to the one who asked
            answer = {"id": asked["id"], "error": f"{type(error).__name__}: {str(error)[:2000]}"}
        answers.write(json.dumps(answer) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
