"""A real Spark session for tests, with Delta-Spark in it as a reader by others."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

from lazydelta.spark.session import prepare_environment
from tests.support import unavailable

TIME_ZONE = "America/New_York"
_ROOT = Path(__file__).parents[2]
# Drivers and executors that live for minutes and see few rows: a JVM that optimises less is sooner at work.
_LESS_OPTIMISED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SHORT_LIVED = {f"spark.{who}.extraJavaOptions": _LESS_OPTIMISED for who in ("driver", "executor")}


def use_java() -> None:
    """Let Spark find the Java that `make setup` found or installed."""
    found = subprocess.run(
        [str(_ROOT / "scripts" / "find_java"), "--home"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        unavailable("Spark: there is no Java 17, run `make setup`")
    os.environ["JAVA_HOME"] = found.stdout.strip()
    # For the drivers of commands that tests run as users do, without a setting of their own.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", _LESS_OPTIMISED)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start the one session of this test process; it is not in UTC, as the sessions of users are not."""
    use_java()
    prepare_environment()
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config(map={**SHORT_LIVED})
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", TIME_ZONE)
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    session = configure_spark_with_delta_pip(builder).getOrCreate()
    yield session
    session.stop()
