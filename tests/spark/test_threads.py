"""Ingestion works from any thread, not only from the one that started the session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
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


@pytest.mark.parametrize("entry", [None, use_session, lambda _: start_session()])
def test_the_format_is_found_in_any_thread(
    entry: Callable[[SparkSession], None] | None, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark itself finds it in a thread with an active session only."""
    counts: list[int] = []

    def work() -> None:
        if entry is not None:
            entry(spark)
        write(spark.range(3), tmp_path / "t")
        counts.append(spark.read.load(str(tmp_path / "t"), format="lazydelta").count())

    _in_a_thread(work)
    assert ids(tmp_path / "t") == [0, 1, 2]
    assert counts == [3]
