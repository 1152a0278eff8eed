"""The code blocks of README and docs, and a folder with what they take for granted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import lazydelta

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Fences may be indented, in lists.
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
# Tables of the examples that lie in clouds are here on the disk: the log and the rows are the same.
STAND_INS = {
    "abfss://container@account.dfs.core.windows.net/table": "telemetry",
    "abfss://container@account.dfs.core.windows.net/telemetry": "telemetry",
    "abfss://data@corp.dfs.core.windows.net/table": "telemetry",
    "/tmp/table": "made-table",  # noqa: S108 - the text of a page, which is replaced
}


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code on a page."""

    page: str
    line: int
    language: str
    code: str

    @property
    def title(self) -> tuple[str, str]:
        """Name the block: its page and its first line, without a comment behind it."""
        first = self.code.strip().partition("\n")[0]
        return self.page, re.split(r"\s+#\s", first)[0].strip()

    def with_stand_ins(self) -> str:
        """Return the code with local tables in the place of those in clouds."""
        code = self.code
        for text, stand_in in STAND_INS.items():
            code = code.replace(text, stand_in)
        return code


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        indent = len(match["indent"])
        code = "".join(line[indent:] if line.strip() else line for line in match["code"].splitlines(keepends=True))
        name = str(page.relative_to(ROOT))
        found.append(Block(name, text.count("\n", 0, match.start()) + 1, match["language"], code))
    return found


def make_world(folder: Path) -> pa.Table:
    """Make what pages take for granted: tables of telemetry with a checkpoint, and files that arrive; return rows."""
    start = datetime(2026, 2, 10, 20, tzinfo=UTC)
    rows = pa.table(
        {
            "device_id": [f"sensor-{minute % 50}" for minute in range(240)],
            "timestamp": [start + timedelta(minutes=minute) for minute in range(240)],
            "value": [float(minute) for minute in range(240)],
        }
    )
    for name in ("telemetry", "table"):
        path = folder / name
        lazydelta.write_arrow(path, rows, timestamp_column="timestamp", properties={"delta.checkpointInterval": "2"})
        lazydelta.write_arrow(path, rows.slice(0, 60), timestamp_column="timestamp")
        lazydelta.write_arrow(path, rows.slice(60, 60), timestamp_column="timestamp")
    for name in ("2026-02-10", "incoming"):
        (folder / name).mkdir()
        pq.write_table(rows, folder / name / "more.parquet")
    pq.write_table(rows, folder / "more.parquet")
    return rows


def run_python(block: Block, names: dict[str, Any]) -> None:
    """Run a block in the namespace of its page."""
    exec(compile(block.with_stand_ins(), f"{block.page}:{block.line}", "exec"), names)  # noqa: S102 - our own pages


def run_shell(block: Block, folder: Path) -> None:
    """Run a block as a script that stops at the first command that fails; a prompt before a line is taken away."""
    lines = block.with_stand_ins().splitlines()
    if block.language == "console":
        # A command goes on behind a backslash; all other lines are what it prints.
        before = ["", *lines]
        lines = [
            line.removeprefix("$ ")
            for line, above in zip(lines, before, strict=False)
            if line.startswith("$ ") or above.endswith("\\")
        ]
    commands = folder / ".commands"
    commands.mkdir(exist_ok=True)
    command = commands / "lazydelta"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lazydelta.cli "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "KEY": "secret"}
    script = "\n".join(["set -e -o pipefail", *lines])
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, check=False)  # noqa: S607 - whichever bash
    assert done.returncode == 0, f"{block.page}:{block.line}\n{done.stderr.decode()}"
