"""Fixtures of the tests that run Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.delta_tables import MADE
from tests.support.spark import TIME_ZONE, spark

__all__ = ["made", "spark"]


@pytest.fixture(scope="session")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that lets Delta-Spark make a table by its name, once. Tests only read them."""
    known: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in known:
            known[name] = tmp_path_factory.mktemp("delta") / "table of % it"
            MADE[name](spark, known[name])
        return known[name]

    return make


@pytest.fixture(autouse=True)
def own_time_zone(request: pytest.FixtureRequest) -> None:
    """Give the session its time zone again: a command that begins one begins with UTC, and here gets this one."""
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").conf.set("spark.sql.session.timeZone", TIME_ZONE)
