"""Answers do not depend on the time zone of the machine."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

_ROOT = Path(__file__).parents[2]
_ZONES = ["America/New_York", "Asia/Kolkata", "Europe/Berlin"]
_START = dt.datetime(2026, 2, 10, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def telemetry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of 30 hours, a row every minute, in two versions whose commits have times of their own."""
    path = tmp_path_factory.mktemp("zones") / "telemetry"
    for version, hours in enumerate((range(20), range(20, 30))):
        at = [_START + dt.timedelta(hours=hour, minutes=minute) for hour in hours for minute in range(60)]
        rows = {
            "id": pa.array(range(hours[0] * 60, hours[0] * 60 + len(at)), pa.int64()),
            "timestamp": pa.array(at, pa.timestamp("us", "UTC")),
            "local": pa.array([each.replace(tzinfo=None) for each in at], pa.timestamp("us")),
            "day": pa.array([each.date() for each in at]),
        }
        write_deltalake(path, pa.table(rows), mode="append")
        committed = (_START + dt.timedelta(days=2, hours=4 * version)).timestamp()
        os.utime(path / "_delta_log" / f"{version:020}.json", (committed, committed))
    return path


@pytest.fixture(scope="module")
def answers(telemetry: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Return the answers of one process for each zone; all run side by side."""
    running = {}
    for zone in ("UTC", *_ZONES):
        command = [sys.executable, "-m", "tests.cli.time_zone_work", str(telemetry), str(tmp_path_factory.mktemp("in"))]
        env = os.environ | {"TZ": zone, "COLUMNS": "200"}
        running[zone] = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, cwd=_ROOT)
    told = {zone: process.communicate()[0] for zone, process in running.items()}
    assert {process.returncode for process in running.values()} == {0}
    return {zone: json.loads(text) for zone, text in told.items()}


@pytest.mark.parametrize("zone", _ZONES)
def test_every_answer_is_that_of_utc(answers: dict[str, dict[str, str]], zone: str) -> None:
    found, in_utc = answers[zone], answers["UTC"]
    assert found.keys() == in_utc.keys()
    assert {name: (found[name], in_utc[name]) for name in in_utc if found[name] != in_utc[name]} == {}


def test_texts_without_a_zone_are_utc(answers: dict[str, dict[str, str]]) -> None:
    """The answers that all zones are compared with are right themselves, and none of them is an error."""
    in_utc = answers["UTC"]
    assert {name: each for name, each in in_utc.items() if "error" in each.lower()} == {}
    later = [each for name, each in in_utc.items() if ">= '2026-02-10 20:00:00'" in name and "count(*)" in name]
    assert len(later) >= 8
    assert all("600" in each for each in later)
    assert {each for name, each in in_utc.items() if name.startswith("travel")} == {"0"}


def test_one_place_opens_duckdb() -> None:
    opening = re.compile(r"\b_?duckdb\.connect\(|engine\(\"duckdb\".*\.connect\(|from duckdb import")
    package = _ROOT / "src" / "lazydelta"
    found = [path for path in package.rglob("*.py") if opening.search(path.read_text("utf-8"))]
    assert [str(path.relative_to(package)) for path in found] == ["runtime/database.py"]
