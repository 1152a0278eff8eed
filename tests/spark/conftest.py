"""Fixtures of the tests that run Spark."""

from __future__ import annotations

import pytest

from tests.support.spark import TIME_ZONE, spark

__all__ = ["spark"]


@pytest.fixture(autouse=True)
def own_time_zone(request: pytest.FixtureRequest) -> None:
    """Give the session its time zone again: a command that begins one begins with UTC, and here gets this one."""
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").conf.set("spark.sql.session.timeZone", TIME_ZONE)
