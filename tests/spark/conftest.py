"""Fixtures of the tests that run Spark."""

from __future__ import annotations

from tests.support.spark import spark

__all__ = ["spark"]
