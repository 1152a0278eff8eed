"""One measurement in a fresh process: how long a piece of work takes and how much memory it needs at its peak.

A child imports what the work needs, notes its peak memory so far, works, and reports time and growth of the peak.
Interpreter start and imports count in neither. Running out of memory or of time is a result, not a failure.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Measurement", "measure", "peak_memory"]

ROOT = Path(__file__).resolve().parents[1]
MEMORY_CAP = 16 << 30
TIME_CAP = 600.0
_OUT_OF_MEMORY = ("MemoryError", "memory allocation", "malloc", "bad_alloc", "Cannot allocate")
_KILLED = (-9, -6)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a child reported; ``failure`` says why there is nothing to report, ``details`` are a suite's own figures."""

    seconds: float | None
    peak_bytes: int | None
    cpu_seconds: float | None = None
    answer: Any = None
    failure: str | None = None
    details: dict[str, float] | None = None


def peak_memory() -> int:
    """Return the most memory that this process ever had (``VmHWM``), in bytes."""
    with Path("/proc/self/status").open() as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    raise RuntimeError("the kernel does not tell VmHWM")


def measure(
    work: str,
    *arguments: object,
    imports: tuple[str, ...] = (),
    time_cap: float = TIME_CAP,
    python: str | None = None,
    limited: bool = True,
) -> Measurement:
    """Run ``module:function`` in a child, after importing ``imports``; what it returns is the answer.

    A child that is not ``limited`` sees to its own memory: a JVM reserves far more addresses than it uses.
    """
    task = json.dumps({"work": work, "arguments": arguments, "imports": imports, "limited": limited})
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    try:
        done = subprocess.run(
            [python or sys.executable, "-m", "benchmarks.measure", task],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=time_cap,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Measurement(None, None, failure=f"not done after {time_cap:.0f} s")
    if done.returncode != 0:
        return Measurement(None, None, failure=_reason(done.returncode, done.stderr))
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


def _reason(code: int, errors: str) -> str:
    if code in _KILLED or any(sign in errors for sign in _OUT_OF_MEMORY):
        return f"out of memory (cap {MEMORY_CAP >> 30} GB)"
    return f"exit code {code}: {errors.strip().splitlines()[-1] if errors.strip() else 'no message'}"


def _child(task: dict[str, Any]) -> None:
    if task["limited"]:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_CAP, MEMORY_CAP))
    for name in task["imports"]:
        importlib.import_module(name)
    module, _, function = task["work"].partition(":")
    work = getattr(importlib.import_module(module), function)
    before = peak_memory()
    started, worked = time.perf_counter(), time.process_time()
    answer = work(*task["arguments"])
    result = Measurement(
        seconds=time.perf_counter() - started,
        peak_bytes=peak_memory() - before,
        cpu_seconds=time.process_time() - worked,
        answer=answer,
    )
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    _child(json.loads(sys.argv[1]))
