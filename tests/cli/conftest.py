"""Tables made by deltalake, and the command run in this process and in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from lazydelta.cli.app import cli

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

HOURS = [f"20260210{hour:02}" for hour in range(6)]
DEVICES = ["a", "b", "c"]


class Invoke(Protocol):
    """Runs the command in this process."""

    def __call__(self, *args: str | Path, code: int = 0) -> Result:
        """Run it and check its exit code."""


class Spawn(Protocol):
    """Starts the command as a process with pipes."""

    def __call__(self, *args: str | Path, **env: str) -> subprocess.Popen[bytes]:
        """Start it; the environment is ours and ``env``."""


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of six hourly appends, versions 0 to 5, with a checkpoint at 3.

    Version 6 deletes device a from the first hour.
    """
    path = tmp_path_factory.mktemp("cli") / "telemetry"
    for number, hour in enumerate(HOURS):
        rows = pa.table(
            {
                "device_id": DEVICES,
                "timestamp": pa.array([datetime(2026, 2, 10, number, tzinfo=UTC)] * 3, pa.timestamp("us", "UTC")),
                "value": pa.array([number + 0.5, float("nan"), None], pa.float64()),
                "_event_hour": [hour] * 3,
            }
        )
        write_deltalake(path, rows, mode="append", partition_by=["_event_hour"], name="telemetry")
        if number == 3:
            DeltaTable(path).create_checkpoint()
    DeltaTable(path).delete(f"device_id = 'a' AND _event_hour = '{HOURS[0]}'")
    return path


@pytest.fixture(scope="session")
def long_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table with a log of 300,000 files and no data: long enough to be interrupted."""
    path = tmp_path_factory.mktemp("cli-long") / "long"
    options = ["--files", "300000", "--columns", "1", "--tail", "2", "--row-group-size", "10000"]
    result = CliRunner().invoke(cli, ["bench", "make-table", str(path), *options])
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture
def invoke() -> Invoke:
    """Return a function that runs the command and checks its exit code."""

    def run(*args: str | Path, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, [str(each) for each in args], prog_name="lazydelta")
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def spawn() -> Spawn:
    """Return a function that starts the command with its output and errors in pipes."""

    def start(*args: str | Path, **env: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "lazydelta.cli", *map(str, args)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | env)

    return start
