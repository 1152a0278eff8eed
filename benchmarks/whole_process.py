"""What a whole process costs, from its start to its end, beside one that imports PyArrow's Parquet reader.

    python -m benchmarks.whole_process [--files N] [--rounds N]

Seconds are those of the processor, the smallest of the rounds: a busy machine makes none of them fewer. The table has a
sidecar. Compiled modules are there before the first round, as after an installation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

_BESIDE = "import pyarrow.parquet"


@click.command()
@click.option("--files", default=1_000_000, show_default=True, help="Size of the table.")
@click.option("--rounds", default=10, show_default=True, help="Runs of each process.")
def main(files: int, rounds: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        table = str(Path(folder) / "table")
        # By processes, because a child's peak begins with the memory of its parent.
        made = _lazydelta("bench", "make-table", table, "--files", str(files), "--json")
        _lazydelta("sidecar", "build", table, "--json")
        hour = made["last_hour"]
        command = ["-m", "lazydelta.cli", "files", table, "--where"]
        cases = {
            _BESIDE: ["-c", _BESIDE],
            "import lazydelta": ["-c", "import lazydelta"],
            "from lazydelta import DeltaTable": ["-c", "from lazydelta import DeltaTable"],
            "lazydelta --help": ["-m", "lazydelta.cli", "--help"],
            "lazydelta files --where JSON": [*command, f'{{"_event_hour": "{hour}"}}'],
            "lazydelta files --where SQL": [*command, f"_event_hour = '{hour}'"],
        }
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "compiled")
        found = {name: _smallest(arguments, rounds, environment) for name, arguments in cases.items()}
    seconds, peak = found[_BESIDE]
    for name, (took, held) in found.items():
        click.echo(f"{name:34} {took:6.3f} s  {took / seconds:4.2f} x   {held >> 20:4} MB  {held / peak:4.2f} x")


def _lazydelta(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "lazydelta.cli", *arguments], capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _smallest(arguments: list[str], rounds: int, environment: dict[str, str]) -> tuple[float, int]:
    runs = [_run(arguments, environment) for _ in range(rounds + 1)][1:]
    return min(seconds for seconds, _ in runs), min(peak for _, peak in runs)


def _run(arguments: list[str], environment: dict[str, str]) -> tuple[float, int]:
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


if __name__ == "__main__":
    main()
