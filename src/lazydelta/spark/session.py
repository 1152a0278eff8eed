"""A Spark session with suitable defaults, for programs that have none."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, DataFrameWriter, DataFrameWriterV2, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from lazydelta.errors import OptionError

__all__ = ["active_session", "checked_trigger", "prepare_environment", "start_session", "use_session"]


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
    """Start Spark, or return the existing session. ``conf`` overrides the defaults set here.

    On a cluster, ``spark-submit`` sets the master, and its settings are kept.
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
        hint = "check that Java 17 runs and that the master is reachable"
        raise OptionError(f"Spark could not be started: {error}", hint=hint) from error
    return session


def use_session(session: SparkSession) -> None:
    """Let Spark find Python data sources such as ``format("lazydelta")`` in the calling thread.

    Spark looks them up in the thread's active session, and a thread that did not start the session has none. PySpark's
    ``format("lazydelta")`` does this by itself once `lazydelta.spark` is imported; Spark's SQL does not.
    """
    active = _sessions_of(session)
    if active is not None:
        active.setActiveSession(session._jsparkSession)  # noqa: SLF001 - PySpark has no public API for it


@contextmanager
def active_session(session: SparkSession) -> Iterator[None]:
    """Activate a session for the duration of a block, then restore the previous one."""
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
    """Return the JVM's session registry, or None for Spark Connect, which has no JVM."""
    jvm = getattr(session, "_jvm", None)
    return None if jvm is None else jvm.org.apache.spark.sql.classic.SparkSession


# Spark looks for data sources in Python only in a thread with an active session, drops what ``partitionBy`` says of a
# stream, without a word, and tells a data source neither name nor location of a table in its catalog: with
# Delta-Spark's catalog the error is then that of a bug in Spark. All of it is known on the driver only, to PySpark's
# readers and writers.


def _before(kind: Any, name: str, first: Callable[..., None]) -> None:
    """Let a method of PySpark's call a function first, with the same arguments."""
    plain = getattr(kind, name)

    @wraps(plain)
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        first(self, *arguments, **keywords)
        return plain(self, *arguments, **keywords)

    setattr(kind, name, method)


def _note_format(entry: Any, source: str) -> None:
    entry._is_lazydelta = str(source).lower() == "lazydelta"  # noqa: SLF001 - a mark on PySpark's object
    active = _sessions_of(entry._spark) if entry._is_lazydelta else None  # noqa: SLF001
    if active is not None and not active.getActiveSession().isDefined():
        use_session(entry._spark)  # noqa: SLF001
    _pass_on_columns(entry)


def _note_columns(writer: Any, *columns: Any) -> None:
    writer._lazydelta_columns = columns  # noqa: SLF001 - as above
    _pass_on_columns(writer)


def _pass_on_columns(entry: Any) -> None:
    """Give the columns as the option in which Spark has them for sources that are not in Python."""
    columns = vars(entry).get("_lazydelta_columns")
    if columns is not None and vars(entry).get("_is_lazydelta"):
        names = columns[0] if len(columns) == 1 and isinstance(columns[0], list | tuple) else columns
        entry.option("__partition_columns", json.dumps(list(names)))


def _refuse_table(writer: Any, name: str = "", format: str | None = None, **_: Any) -> None:  # noqa: A002 - PySpark's
    if format is not None:
        _note_format(writer, format)
    if vars(writer).get("_is_lazydelta"):
        raise _no_table(name)


def _refuse_provider(_writer: Any, provider: str) -> None:
    if provider.lower() == "lazydelta":
        raise _no_table("name")


def _no_table(name: str) -> OptionError:
    message = "Spark tells a data source in Python neither name nor location of a table in its catalog"
    typed = f"type CREATE TABLE {name} USING delta LOCATION 'uri' where Delta-Spark is in the session"
    hint = f"save to a location; then {typed}, or call lazydelta.spark.attach(spark, name=uri)"
    return OptionError(message, hint=hint)


for _kind in (DataFrameReader, DataFrameWriter, DataStreamReader, DataStreamWriter):
    _before(_kind, "format", _note_format)
_before(DataStreamWriter, "partitionBy", _note_columns)
_before(DataFrameWriter, "saveAsTable", _refuse_table)
_before(DataStreamWriter, "toTable", _refuse_table)
_before(DataFrameWriterV2, "using", _refuse_provider)


def prepare_environment() -> None:
    """Set the environment variables of a JVM started from here, unless they are already set."""
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise OptionError("Spark needs Java, which was not found", hint="install Java 17, or set JAVA_HOME")
    # Workers must import this package, not the one of the first python3 on the PATH.
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
    """Return whether spark-submit started and configured this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


# Validation of stream triggers.


_KINDS = ("processingTime", "availableNow", "once")


def checked_trigger(trigger: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments for Spark's ``trigger``, empty if it should not be called; reject unsupported triggers.

    With a continuous trigger, Spark passes no rows to a Python data source, yet counts them as written.
    """
    given = {key: value for key, value in (trigger or {}).items() if value is not None}
    if "continuous" in given:
        message = f"The trigger continuous={given['continuous']!r} would lose every row"
        hint = f"Spark passes no rows to Python data sources then; use {', '.join(_KINDS)}"
        raise OptionError(message, hint=hint)
    unknown = sorted(set(given) - set(_KINDS))
    if unknown:
        raise OptionError(f"There is no trigger {unknown[0]!r}", hint=f"known: {', '.join(_KINDS)}")
    return given
