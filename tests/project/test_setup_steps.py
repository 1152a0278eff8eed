"""Set-up says a line for each step, and all when one fails."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEP = str(ROOT / "scripts" / "step")
CHATTY = ["sh", "-c", "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo resolving $i; echo warning $i >&2; done; exit $0"]


def _step(log: Path, *args: str) -> tuple[int, str]:
    done = subprocess.run(
        [STEP, *args], env=os.environ | {"SETUP_LOG": str(log)}, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_step_is_one_line_and_the_log_has_the_rest(tmp_path: Path) -> None:
    log = tmp_path / "build" / "setup.log"
    for number in (1, 2):
        code, said = _step(log, f"installing {number}", *CHATTY, "0")
        assert code == 0
        assert re.fullmatch(rf"installing {number} \.\.\. \d+ s\n", said)
    logged = log.read_text()
    assert logged.count("resolving 100") == logged.count("warning 100") == 2
    assert [path.name for path in log.parent.iterdir()] == ["setup.log"]


def test_a_step_that_fails_shows_what_it_printed_and_ends_with_its_code(tmp_path: Path) -> None:
    code, said = _step(tmp_path / "setup.log", "installing", *CHATTY, "3")
    assert code == 3
    assert said.startswith("installing ... failed after ")
    assert "resolving 1\nwarning 1\n" in said
    assert said.endswith(f"warning 100\ninstalling: exit code 3; {tmp_path / 'setup.log'} has all steps\n")


def test_an_optional_step_that_fails_is_still_one_line(tmp_path: Path) -> None:
    code, said = _step(tmp_path / "setup.log", "--optional", "fetching", *CHATTY, "1")
    assert code == 1
    assert said == f"fetching ... not possible here: warning 100 ({tmp_path / 'setup.log'} has the rest)\n"


def test_on_a_terminal_seconds_are_counted(tmp_path: Path) -> None:
    """The command waits for a line from here, which is written when the counter was seen."""
    ours, theirs = pty.openpty()
    go = tmp_path / "go"
    os.mkfifo(go)
    command = [STEP, "installing", "sh", "-c", f"read line <{go}"]
    with subprocess.Popen(command, stdout=theirs, env=os.environ | {"SETUP_LOG": str(tmp_path / "log")}) as process:
        os.close(theirs)
        said = b""
        while b"\rinstalling ... 0 s" not in said and b"\rinstalling ... 1 s" not in said:
            said += os.read(ours, 1000)
        go.write_text("go\n")
        assert process.wait() == 0
    os.close(ours)


@pytest.mark.parametrize("target", ["setup", "demo"])
def test_every_tool_of_the_set_up_runs_as_a_step(target: str) -> None:
    """As make would run it from nothing; stamps, look-ups and the demo itself print nothing before it."""
    listed = subprocess.run(
        ["make", "--dry-run", "--always-make", "--no-print-directory", target],  # noqa: S607 - whichever make
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.replace("\\\n", " ")
    commands = [line.strip() for line in listed.splitlines() if line.strip()]
    steps = [line for line in commands if "scripts/step" in line]
    assert len(steps) >= (8 if target == "setup" else 4)
    rest = [line for line in commands if line not in steps and not line.startswith("touch ")]
    assert [line for line in rest if "lazydelta demo" not in line] == []
