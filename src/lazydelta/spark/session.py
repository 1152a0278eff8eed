"""A Spark session that suits us, for programs that have none."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lazydelta.errors import OptionError

__all__ = ["prepare_environment", "start_session"]

_QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
logger.writes.name = org.apache.spark.sql.execution.datasources.v2
logger.writes.level = off
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = off
"""


def start_session(
    app_name: str = "lazydelta", *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, or return the session that there is; ``conf`` goes before what we set.

    On a cluster, ``spark-submit`` has set the master, and nothing is set that it said.
    """
    prepare_environment()
    submitted = _is_submitted()
    builder = SparkSession.builder.appName(app_name)
    settings = {"spark.ui.showConsoleProgress": "false", "spark.sql.session.timeZone": "UTC"}
    if not submitted:
        settings |= {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": str(os.cpu_count() or 2)}
        builder = builder.master(master or "local[*]")
    elif master is not None:
        builder = builder.master(master)
    for key, value in (settings | dict(conf or {})).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        hint = "see that Java 17 runs, and that the master can be reached"
        raise OptionError(f"Spark could not be started: {error}", hint=hint) from error


def prepare_environment() -> None:
    """Set what a JVM that is started from here takes from the environment, as far as nobody has set it."""
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise OptionError("Spark needs Java, and there is none", hint="install Java 17, or set JAVA_HOME")
    # The workers must find this very package, not what the first python3 on the PATH has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if _is_submitted():
        return
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if "SPARK_CONF_DIR" not in os.environ:
        folder = Path(tempfile.gettempdir()) / f"lazydelta-spark-conf-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        (folder / "log4j2.properties").write_text(_QUIET)
        os.environ["SPARK_CONF_DIR"] = str(folder)


def _is_submitted() -> bool:
    """Tell whether spark-submit started this program and has set everything."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
