"""Ingestion works from any thread, not only from the one that started the session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lazydelta.spark import ingest, ingest_files, ingest_stream, start_session, use_session
from tests.spark.streams import make_source
from tests.spark.tables import ids, write

pytestmark = [pytest.mark.xdist_group("spark")]

NOW = {"availableNow": True}


def _in_a_thread(work: Callable[[], Any]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _has_active_session(spark: SparkSession) -> bool:
    return bool(spark._jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession().isDefined())  # type: ignore[union-attr]


def test_functions_work_in_any_thread_and_leave_it_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    rows, files = spark.range(3), make_source(tmp_path / "source", files=1, rows=4)
    stream = spark.readStream.schema("id long, ts timestamp").json(str(tmp_path / "source"))
    seen: list[bool] = []

    def work() -> None:
        ingest(rows, str(tmp_path / "batch"))
        ingest_files(spark, str(tmp_path / "source"), str(tmp_path / "files"), schema="id long, ts timestamp")
        query = ingest_stream(
            stream, str(tmp_path / "stream"), checkpoint_location=str(tmp_path / "notes"), trigger=NOW
        )
        query.awaitTermination()
        seen.append(_has_active_session(spark))

    _in_a_thread(work)
    assert ids(tmp_path / "batch") == [0, 1, 2]
    assert ids(tmp_path / "files") == ids(tmp_path / "stream") == list(files)
    assert seen == [False]


def test_a_thread_that_has_a_session_keeps_it(spark: SparkSession, tmp_path: Path) -> None:
    other = spark.newSession()
    use_session(spark)
    ingest(other.range(3), str(tmp_path / "t"))
    active = spark._jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession().get()  # type: ignore[union-attr]
    assert active.equals(spark._jsparkSession)
    assert ids(tmp_path / "t") == [0, 1, 2]


@pytest.mark.parametrize("entry", ["use_session", "start_session"])
def test_the_format_is_found_in_a_thread_that_uses_the_session(entry: str, spark: SparkSession, tmp_path: Path) -> None:
    def work() -> None:
        if entry == "use_session":
            use_session(spark)
        else:
            start_session()
        write(spark.range(3), tmp_path / "t")

    _in_a_thread(work)
    assert ids(tmp_path / "t") == [0, 1, 2]


def test_the_format_alone_is_not_found_in_a_thread_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    # The day that this fails, nobody needs to call `use_session` any more.
    with pytest.raises((PySparkException, Py4JJavaError), match="DATA_SOURCE_NOT_FOUND"):
        _in_a_thread(lambda: write(spark.range(3), tmp_path / "t"))
