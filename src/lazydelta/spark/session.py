"""A Spark session that suits us, for programs that have none."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lazydelta.errors import OptionError

__all__ = ["active_session", "prepare_environment", "start_session", "use_session"]

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

    On a cluster, ``spark-submit`` has set the master, and nothing is set that it said. In the thread that calls it
    ``format("lazydelta")`` is found; for others there is `use_session`.
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
        session = builder.getOrCreate()
        use_session(session)
    except (PySparkException, RuntimeError, OSError) as error:
        hint = "see that Java 17 runs, and that the master can be reached"
        raise OptionError(f"Spark could not be started: {error}", hint=hint) from error
    return session


def use_session(session: SparkSession) -> None:
    """Let Spark find data sources in Python, such as ``format("lazydelta")``, in the thread that calls this.

    Spark looks for them in the session that is active in the thread, and for a thread that did not start the session
    there is none.
    """
    active = _sessions_of(session)
    if active is not None:
        active.setActiveSession(session._jsparkSession)  # noqa: SLF001 - PySpark has no other way


@contextmanager
def active_session(session: SparkSession) -> Iterator[None]:
    """Use a session for the length of a block, and leave the thread as it was."""
    active = _sessions_of(session)
    if active is None:
        yield
        return
    before = active.getActiveSession()
    use_session(session)
    try:
        yield
    finally:
        if before.isDefined():
            active.setActiveSession(before.get())
        else:
            active.clearActiveSession()


def _sessions_of(session: SparkSession) -> Any:
    """Return the JVM's account of sessions, None for a client of Spark Connect, which has no JVM."""
    jvm = getattr(session, "_jvm", None)
    return None if jvm is None else jvm.org.apache.spark.sql.classic.SparkSession


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
