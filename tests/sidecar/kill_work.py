"""Builds and refreshes that are killed: for each a process that ends as it was told, or as the clock has it.

The processes are copies of one that has everything loaded and no thread running, so that a hundred of them are quick.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import sidecar
from lazydelta.sidecar import external_sort
from lazydelta.storage import observe
from tests.sidecar.conftest import set_sizes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]

_FLUSHED_ROWS = 8  # so that small tables go through temporary files as well


def main() -> None:
    """Do the jobs that come on the standard input, one after the other, and tell of each how it ended."""
    for line in sys.stdin:
        job: dict[str, Any] = json.loads(line)
        reading, writing = os.pipe()
        began = time.perf_counter()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _work(job, writing)
        os.close(writing)
        if job["moment"] == "clock":
            time.sleep(job["at"])
            os.kill(child, signal.SIGKILL)
        with os.fdopen(reading) as said:
            counts = said.read()
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        answer = {
            "killed": killed,
            "failed": not killed and status != 0,
            "seconds": time.perf_counter() - began,
            "counts": json.loads(counts) if counts else None,
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


class _Moments:
    """Counts requests and publications, and ends this process before the one that it was told."""

    def __init__(self, moment: str, at: int) -> None:
        self._moment, self._at = moment, at
        self.counts = {"request": 0, "publication": 0}

    def reach(self, moment: str) -> None:
        self.counts[moment] += 1
        if moment == self._moment and self.counts[moment] == self._at:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, moment: str, function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def reached(*arguments: Any, **keywords: Any) -> None:
            self.reach(moment)
            function(*arguments, **keywords)

        return reached


def _work(job: dict[str, Any], writing: int) -> None:
    # For good: this process has no other work.
    set_sizes(pytest.MonkeyPatch(), job["rows"], job["groups"])
    pytest.MonkeyPatch().setattr(external_sort, "_FLUSH_ROWS", _FLUSHED_ROWS)
    moments = _Moments(job["moment"], job["at"])
    # A file that is written whole and has its name not yet: the moment that leaves temporary files behind.
    os.link = moments.before("publication", os.link)
    os.replace = moments.before("publication", os.replace)
    code = 1
    try:
        with observe(lambda _: moments.reach("request")):
            getattr(sidecar, job["deed"])(job["uri"], memory_budget=job["memory"])
        os.write(writing, json.dumps(moments.counts).encode())
        code = 0
    finally:
        # Without the clean-up of the process that this one is a copy of.
        os._exit(code)


if __name__ == "__main__":
    main()
