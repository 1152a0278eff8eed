"""Streams that run in processes of their own, and what it takes to kill a part of them."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

from lazydelta.maintenance.background import wait_for_maintenance
from lazydelta.spark.session import prepare_environment
from tests.spark.stops import Stops
from tests.spark.tables import commits
from tests.support.spark import SHORT_LIVED, use_java

ROOT = Path(__file__).resolve().parents[2]
_START = dt.datetime(2026, 2, 10, tzinfo=dt.UTC)


def make_source(folder: Path, files: int, rows: int, first: int = 0) -> range:
    """Write files of JSON lines and return the ids in them."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = range(first, first + files * rows)
    for number in range(files):
        lines = []
        for each in ids[number * rows : (number + 1) * rows]:
            timestamp = _START + dt.timedelta(minutes=25 * (each % 7), microseconds=each)
            lines.append(json.dumps({"id": each, "ts": timestamp.isoformat()}))
        path = folder / f"{first:08}-{number:05}.json"
        path.with_suffix(".part").write_text("\n".join(lines))
        path.with_suffix(".part").rename(path)
    return ids


@dataclass
class Stream:
    """A stream from ``source`` to ``table``, to be run by one driver after the other."""

    folder: Path
    source: Path
    table: Path
    checkpoint: str = "checkpoint"
    master: str = "local[2]"
    conf: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    starts: int = 1
    reads: str = "json"

    @contextlib.contextmanager
    def stopping(self, *at: int, command: str = "") -> Iterator[tuple[subprocess.Popen[bytes], Stops]]:
        """Run a driver whose processes, those of a command at least, stop at counted changes of the table's files."""
        stops = Stops(self.folder / f"stops-{uuid.uuid4().hex}", self.table, at, command)
        try:
            with self.running(stops.environment()) as driver:
                yield driver, stops
        finally:
            stops.kill()

    @contextlib.contextmanager
    def running(self, environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """Run a driver for the length of a block; afterwards nothing of it is left."""
        use_java()
        prepare_environment()
        work = {
            "master": self.master,
            "conf": {"spark.sql.warehouse.dir": str(self.folder / "warehouse"), **SHORT_LIVED, **self.conf},
            "source": str(self.source),
            "table": str(self.table),
            "checkpoint": str(self.folder / self.checkpoint),
            "options": self.options,
            "starts": self.starts,
            "reads": self.reads,
        }
        paths = os.pathsep.join(filter(None, [(environment or os.environ).get("PYTHONPATH"), str(ROOT)]))
        with (self.folder / "driver.log").open("ab") as log:
            driver = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.stream_work", json.dumps(work)],
                env=os.environ
                | dict(environment or {})
                | {"PYTHONPATH": paths, "SPARK_HOME": str(spark_home(self.folder))},
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield driver
        finally:
            kill(driver)

    def finish(self, timeout: float = 300) -> None:
        """Run a driver to its end."""
        with self.running() as driver:
            assert driver.wait(timeout) == 0, self.log()
        assert wait_for_maintenance(str(self.table), 60)

    def log(self) -> str:
        """Return what the drivers have printed."""
        return (self.folder / "driver.log").read_text(errors="replace")[-6000:]

    def version(self) -> int:
        """Return the newest version, -1 if there is no table yet."""
        return max(commits(self.table), default=-1)


def kill(driver: subprocess.Popen[bytes]) -> None:
    """Kill a driver with its JVM, the executors and their workers, all that are left of them."""
    below = descendants(driver.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(30)
    for each in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


EXECUTOR, WORKER = "CoarseGrainedExecutorBackend", "pyspark.daemon pyspark.worker"


def kill_executor(driver: int, worker: int) -> bool:
    """Kill the executor of a driver that a Python worker belongs to, and the worker, which may be gone with it.

    A worker that outlived an executor which was killed before belongs to none; it is killed, and False returned.
    """
    executors = [
        each for each in descendants(driver, lambda command: EXECUTOR in command) if worker in descendants(each)
    ]
    for each in (*executors, worker):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    return bool(executors)


def descendants(pid: int, wanted: Callable[[str], bool] = lambda _: True) -> list[int]:
    """Return the processes below one whose command line is ``wanted``."""
    children: dict[int, list[int]] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
                commands[int(entry.name)] = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        waiting += below
        found += [each for each in below if wanted(commands[each])]
    return found


def spark_home(folder: Path) -> Path:
    """Return a Spark whose own folder can be written to: a cluster of processes keeps its work there."""
    home = folder / "spark"
    if not home.exists():
        home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            if entry.name != "work":
                (home / entry.name).symlink_to(entry)
    return home
