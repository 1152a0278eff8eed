"""What a Spark session takes on this machine: CPU time and memory of its JVM and of its Python workers.

The CPU time of this process is Python's too: it plans queries and commits.

With a local master the JVM is driver and executor in one. The workers are forked from one daemon, so the sum of their
resident memory counts the pages that they share more than once: an upper bound.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["SparkUse", "Usage", "processes_below"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SAMPLES_A_SECOND = 10
_JVM, _PYTHON = "java", "python"
_IDLE_S = 0.05


@dataclass(slots=True)
class Usage:
    """Seconds of CPU time, and bytes of memory at the peak; ``heap`` is what the work added to the JVM's heap."""

    jvm_cpu: float = 0.0
    python_cpu: float = 0.0
    jvm_heap: int = 0
    jvm_resident: int = 0
    python_resident: int = 0


class SparkUse:
    """Measures what a session takes while the ``with`` block runs.

    Garbage is collected before, so that what an earlier piece of work left behind is not counted. How much heap is in
    use at the peak still depends on how much there may be: the JVM lets garbage lie as long as there is room. It is to
    be started with all its heap (``-Xms``), or it gives memory back then and has to ask for it again in the work.
    """

    def __init__(self, spark: Any) -> None:
        self._jvm = spark.sparkContext._jvm  # noqa: SLF001 - the way to the JVM's own figures
        beans = self._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
        self._pools = [each for each in beans if each.getType().toString() == "Heap memory"]
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._heap_before = 0
        self._before: dict[int, float] = {}
        self._own_before = 0.0
        self._sampling = 0.0  # what the sampler took, which is not the work's
        self._latest: dict[int, Process] = {}
        self.usage = Usage()

    def __enter__(self) -> Self:
        self._jvm.java.lang.System.gc()
        self._heap_before = sum(pool.getUsage().getUsed() for pool in self._pools)
        for pool in self._pools:
            pool.resetPeakUsage()
        self._before = {pid: process.cpu for pid, process in processes_below().items()}
        self._own_before = time.process_time()
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._sampler.join()
        own = time.process_time() - self._own_before - self._sampling
        self._look()
        self.usage.jvm_cpu = self._cpu_of(_JVM)
        self.usage.python_cpu = self._cpu_of(_PYTHON) + own
        # The pools need not be at their peaks at the same time: an upper bound, too.
        peak = sum(pool.getPeakUsage().getUsed() for pool in self._pools)
        self.usage.jvm_heap = max(0, peak - self._heap_before)

    def _sample(self) -> None:
        while not self._stop.wait(1 / _SAMPLES_A_SECOND):
            self._look()
        self._sampling = time.thread_time()

    def _look(self) -> None:
        jvm = python = 0
        for pid, process in processes_below().items():
            self._latest[pid] = process
            if process.name == _JVM:
                jvm += process.resident
            # Workers that earlier work left behind keep what they have; they count once they do something.
            elif process.name.startswith(_PYTHON) and process.cpu > self._before.get(pid, 0.0) + _IDLE_S:
                python += process.resident
        self.usage.jvm_resident = max(self.usage.jvm_resident, jvm)
        self.usage.python_resident = max(self.usage.python_resident, python)

    def _cpu_of(self, name: str) -> float:
        """Add up process by process, as last seen: what one that has ended did is not always told to its parent."""
        return sum(
            process.cpu - self._before.get(pid, 0.0)
            for pid, process in self._latest.items()
            if process.name.startswith(name)
        )


@dataclass(frozen=True, slots=True)
class Process:
    """A process; one that is being started has the name of a thread and the memory of its parent briefly."""

    name: str
    parent: int
    cpu: float
    resident: int

    @classmethod
    def of(cls, folder: Path) -> Process | None:
        try:
            text = (folder / "stat").read_text()
        except OSError:  # it has ended
            return None
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        user, system = (int(each) / _TICKS for each in fields[11:13])
        return cls(name, int(fields[1]), user + system, int(fields[21]) * _PAGE)


def processes_below() -> dict[int, Process]:
    """Return the processes that this one has started, directly or not; this one is none of them."""
    found = {int(folder.name): Process.of(folder) for folder in Path("/proc").iterdir() if folder.name.isdigit()}
    alive = {pid: process for pid, process in found.items() if process is not None}
    ours = {os.getpid()}
    grew = True
    while grew:
        more = {pid for pid, process in alive.items() if process.parent in ours} - ours
        ours |= more
        grew = bool(more)
    ours.discard(os.getpid())
    return {pid: alive[pid] for pid in ours}
