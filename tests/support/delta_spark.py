"""A real Delta-Spark for tests, started when the first test asks for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import unavailable

_ROOT = Path(__file__).parents[2]


_SIGNATURE = "spark.databricks.delta.commitInfo.userMetadata"


class RefusedError(Exception):
    """A writer says that its commit was ruled out by another one."""


class DeltaSpark:
    """Runs SQL in a Spark session of its own process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._asked = 0

    def sql(self, text: str) -> list[dict[str, Any]]:
        """Run a statement and return its rows; an error of Spark's is an AssertionError with its text."""
        return self._ask(sql=text)

    def commit(self, signature: str, text: str) -> None:
        """Run a statement whose commit carries a signature; `RefusedError` if another commit rules it out."""
        self.sql(f"SET {_SIGNATURE}={signature}")
        try:
            self.sql(text)
        except AssertionError as error:
            if "CONCURRENT" not in str(error).upper():
                raise
            raise RefusedError from error
        finally:
            self.sql(f"RESET {_SIGNATURE}")

    def validate(self, table: str | Path) -> int:
        """Let Spark compare the newest checksum with the table, and return its version.

        A checksum that is wrong is an AssertionError with Spark's verdict.
        """
        [found] = self._ask(validate=str(table))
        assert found["valid"] is True
        version: int = found["version"]
        return version

    def _ask(self, **question: str) -> list[dict[str, Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asked += 1
        self._process.stdin.write(json.dumps({"id": self._asked, **question}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = {}
        while answer.get("id") != self._asked:  # a test that was interrupted may have left its answer in the pipe
            line = self._process.stdout.readline()
            answer = json.loads(line) if line else {"id": self._asked, "error": "Spark has ended"}
        assert "error" not in answer, answer["error"]
        rows: list[dict[str, Any]] = answer["rows"]
        return rows


@pytest.fixture(scope="session")
def delta_spark() -> Iterator[DeltaSpark]:
    """Start Delta-Spark 4.4.0 on PySpark 4.2.0."""
    process = subprocess.Popen(
        [sys.executable, str(_ROOT / "tests" / "peers" / "delta_spark_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        if process.stdout is None or not process.stdout.readline():
            unavailable("Delta-Spark: it does not start here (Java 17 and its JAR are needed)")
        yield DeltaSpark(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
