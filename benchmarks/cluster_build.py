"""A sidecar built by a cluster of two executors, beside the builder in one process, on the same table.

Nothing gates: what there is to show is the memory of each process, at two sizes of which one is ten times the other.
That of the driver must not grow with the table.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.table import Table

from benchmarks.discovery import OURS, Case, Contender
from benchmarks.ladder_tables import LADDER_TABLE
from benchmarks.measure import ROOT, Measurement
from benchmarks.spark_processes import processes_below
from benchmarks.tables import cached_table

if TYPE_CHECKING:
    from benchmarks.report import Result

__all__ = ["FILES", "cases", "print_details"]

FILES = 10_000_000
_MASTER = "local-cluster[2,1,2048]"
_LOG = "_delta_log"
_COPY = "for-a-cluster"
_MB = 1 << 20
_SAMPLES_A_SECOND = 10
_TIME_CAP = 3600
_ROLES = ("driver, Python", "driver, JVM", "largest executor", "largest task")


def cases(files: int) -> list[Case]:
    """Return the cases for a table of this size, and for one of a tenth of it."""
    found = []
    for size in (max(1, files // 10), files):
        table = _without_sidecar(size)
        uri = str(table)

        def drop(table: Path = table) -> None:
            shutil.rmtree(table / _LOG / "_sidecars", ignore_errors=True)

        alone = Contender("lazydelta", "build_sidecar", (uri,), OURS, drop)
        cluster = ClusterBuild("cluster", f"{size:,} files", (uri,), (), drop)
        found.append(Case(f"build of {size:,} files, cluster / alone", cluster, alone, None, size))
    return found


def _without_sidecar(files: int) -> Path:
    """Return a table whose log is hard-linked from the ladder's; its files are only read."""
    folder, _ = cached_table(files=files, **LADDER_TABLE)
    copy = folder / _COPY
    if not copy.exists():
        (copy / _LOG).mkdir(parents=True)
        for file in (folder / _LOG).iterdir():
            if file.is_file():
                os.link(file, copy / _LOG / file.name)
    return copy


@dataclass(frozen=True, slots=True)
class ClusterBuild(Contender):
    """The build in a driver of its own; its session is started before the clock is."""

    def run(self) -> Measurement:
        """Build it once."""
        if self.before is not None:
            self.before()
        java = subprocess.run(
            [str(ROOT / "scripts" / "find_java"), "--home"], capture_output=True, text=True, check=True
        )
        with tempfile.TemporaryDirectory(prefix="lazydelta-bench-cluster-") as folder:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.cluster_build", *map(str, self.arguments)],
                cwd=ROOT,
                env=os.environ | {"JAVA_HOME": java.stdout.strip(), "SPARK_HOME": str(_spark_home(Path(folder)))},
                capture_output=True,
                text=True,
                timeout=_TIME_CAP,
                check=False,
            )
        if done.returncode:
            return Measurement(None, None, failure=f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        told = json.loads(done.stdout.splitlines()[-1])
        return Measurement(told["seconds"], int(sum(told["peaks"].values())), None, told["files"], None, told["peaks"])


def _spark_home(folder: Path) -> Path:
    """Return a Spark whose own folder can be written to: the executors of a cluster have their work there."""
    import pyspark  # noqa: PLC0415 - only where Spark is wanted

    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (folder / entry.name).symlink_to(entry)
    return folder


def print_details(results: list[Result]) -> None:
    """Print the peak memory of each kind of process, as medians."""
    table = Table("", *(f"{role}, MB" for role in _ROLES), title="resident memory at the peak", title_justify="left")
    for result in results:
        runs = [run.details for run in result.rounds["ours"] if run.details is not None]
        if runs:
            medians = (statistics.median(run[role] for run in runs) / _MB for role in _ROLES)
            table.add_row(result.case.ours.work, *(f"{each:.0f}" for each in medians))
    Console(width=None if Console().is_terminal else 130).print(table)


class _Peaks:
    """The largest resident memory of each kind of process below this one, sampled while a ``with`` block runs."""

    def __init__(self) -> None:
        self.found = dict.fromkeys(_ROLES, 0)
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._sampler.join()

    def _sample(self) -> None:
        while not self._stop.wait(1 / _SAMPLES_A_SECOND):
            self._note(
                "driver, Python", int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            )
            for process in processes_below().values():
                if process.name == "java":
                    # The driver's JVM is our child, the executors are children of what it started.
                    self._note("driver, JVM" if process.parent == os.getpid() else "largest executor", process.resident)
                elif process.name.startswith("python"):
                    self._note("largest task", process.resident)

    def _note(self, role: str, size: int) -> None:
        self.found[role] = max(self.found[role], size)


def main() -> None:
    """Build the sidecar of the table ``sys.argv[1]``, and print what it took."""
    from lazydelta.spark import build_sidecar, start_session  # noqa: PLC0415 - the driver alone needs Spark

    spark = start_session(master=_MASTER, conf={"spark.driver.memory": "2g", "spark.executor.memory": "1g"})
    try:
        spark.sparkContext.parallelize(range(4), 4).map(str).collect()  # executors and workers are there
        with _Peaks() as peaks:
            began = time.perf_counter()
            done = build_sidecar(spark, sys.argv[1])
            seconds = time.perf_counter() - began
    finally:
        spark.stop()
    sys.stdout.write(json.dumps({"seconds": seconds, "files": done.num_files, "peaks": peaks.found}) + "\n")


if __name__ == "__main__":
    main()
