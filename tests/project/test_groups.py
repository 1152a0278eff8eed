"""Tests of one group run in one process: our session of Spark is started once, and no two of the others at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

GROUPED = """
import pytest

pytestmark = [pytest.mark.xdist_group("together")]

@pytest.mark.parametrize("number", range(8))
def test_where(number, worker_id):
    with open("workers", "a") as file:
        file.write(worker_id + "\\n")
"""


def test_the_runner_keeps_groups_together(tmp_path: Path) -> None:
    for name in ("test_one.py", "test_other.py"):
        (tmp_path / name).write_text(GROUPED)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", "--dist", "loadgroup", "-q", "."]
    command.append(f"--basetemp={tmp_path / 'of its own'}")  # else it first deletes what earlier runs have left
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    workers = (tmp_path / "workers").read_text().split()
    assert len(workers) == 16
    assert len(set(workers)) == 1
