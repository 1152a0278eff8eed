"""Builds and refreshes that are killed: for each a process that ends at the point that it was told.

The processes are copies of one that has everything loaded and no thread running, so that a hundred of them are quick.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import pytest

from lazydelta import sidecar
from lazydelta.sidecar.building import build
from tests.sidecar.conftest import set_sizes
from tests.support.points import Points

__all__ = ["main"]

_FLUSHED_ROWS = 8  # so that small tables go through temporary files as well


def main() -> None:
    """Do the jobs that come on the standard input, one after the other, and tell of each how it ended."""
    for line in sys.stdin:
        job: dict[str, Any] = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _work(job, writing)
        os.close(writing)
        with os.fdopen(reading) as said:
            counts = said.read()
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        answer = {
            "killed": killed,
            "failed": not killed and status != 0,
            "counts": json.loads(counts) if counts else None,
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _work(job: dict[str, Any], writing: int) -> None:
    # For good: this process has no other work.
    set_sizes(pytest.MonkeyPatch(), job["rows"], job["groups"])
    pytest.MonkeyPatch().setattr(build, "_PIECE_ROWS", _FLUSHED_ROWS)
    points = Points(job["timestamp"], job["at"])
    code = 1
    try:
        with points.counting():
            getattr(sidecar, job["deed"])(job["uri"], memory_budget=job["memory"])
        os.write(writing, json.dumps(points.counts).encode())
        code = 0
    finally:
        # Without the clean-up of the process that this one is a copy of.
        os._exit(code)


if __name__ == "__main__":
    main()
