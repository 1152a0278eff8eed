"""The wheel has what users need and nothing else; installed alone and with each extra it does what the README says."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest

from scripts import try_wheel

if TYPE_CHECKING:
    from pathlib import Path


def test_every_extra_is_tried() -> None:
    text = (try_wheel.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = set(tomllib.loads(text)["project"]["optional-dependencies"])
    assert set(try_wheel.PROBES) | try_wheel.WITHOUT_PROBE == extras


def test_the_readme_has_the_lines_that_are_tried() -> None:
    first, programs, shown = try_wheel.readme_lines()
    assert [len(first), len(programs)] == [5, 1]
    assert {line.split()[1] for line in shown} >= {"append", "kql", "optimize", "query", "sidecar"}


def test_the_wheel_has_what_users_need_and_nothing_else(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(line, cwd=try_wheel.ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert try_wheel.check_contents(wheel) == []
    with zipfile.ZipFile(wheel, "a") as made:
        made.writestr("tests/test_x.py", "")
    assert try_wheel.check_contents(wheel) == ["tests/test_x.py does not belong there"]


@pytest.mark.slow
def test_the_wheel_works_in_empty_environments() -> None:
    done = subprocess.run([sys.executable, "scripts/try_wheel.py"], cwd=try_wheel.ROOT, capture_output=True, text=True)  # noqa: PLW1510
    assert done.returncode == 0, done.stdout + done.stderr
