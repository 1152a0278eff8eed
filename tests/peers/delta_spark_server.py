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
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    return configure_spark_with_delta_pip(builder).getOrCreate()


def main() -> None:
    """Answer SQL questions: each line is {"id", "sql"}, each answer {"id", "rows"} or {"id", "error"}."""
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
            rows = [json.loads(each) for each in spark.sql(asked["sql"]).toJSON().collect()]
            answer = {"id": asked["id"], "rows": rows}
        except Exception as error:  # noqa: BLE001 - told to the one who asked
            answer = {"id": asked["id"], "error": f"{type(error).__name__}: {str(error)[:2000]}"}
        answers.write(json.dumps(answer) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
