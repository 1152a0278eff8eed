"""Maintenance that dies at a counted point: one process that forks a child for each kill, so that a kill is quick.

Asked on its standard input, one JSON line each: the deed, the table, and the point. The child ends there by SIGKILL, or
comes to its end; how it ended, and how many points it passed then, is the answer.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta

from lazydelta.maintenance.optimize import OptimizeSettings, optimize
from lazydelta.maintenance.vacuum import vacuum
from lazydelta.sidecar.handle import TableHandle
from lazydelta.write.row_changes.statements import delete_rows
from tests.support.points import Points

__all__ = ["main"]


def _do(deed: str, table: str) -> None:
    handle = TableHandle.open(table)
    if deed == "vacuum":
        vacuum(handle, retention=timedelta(0), enforce_retention=False, dry_run=False)
    elif deed == "delete":
        delete_rows(handle, "id IN (2, 3, 9, 18, 20, 23)")
    else:
        # A commit for each bin, so that kills fall between commits too.
        optimize(handle, settings=OptimizeSettings(commit_interval=timedelta(0), sort_by=["id"]))


def main() -> None:
    """Answer until standard input ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            points = Points(asked["kind"], asked["at"])
            with points.counting():
                _do(asked["deed"], asked["table"])
            os.write(writable, json.dumps(points.counts).encode())
            os._exit(0)
        os.close(writable)
        with os.fdopen(readable, "rb") as answer:
            counts = answer.read()
        _, status = os.waitpid(child, 0)
        told = {"code": os.waitstatus_to_exitcode(status), "counts": json.loads(counts) if counts else None}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
