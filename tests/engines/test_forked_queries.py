"""Queries and forks: DataFusion's threads stay in the parent, and a child says so instead of waiting for them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa

import lazydelta

if TYPE_CHECKING:
    from pathlib import Path

# One process tries it: DataFusion's threads are for life, and a fork beside those of the tests would be luck.
_PROGRAM = """
import os, sys
import lazydelta

def rows():
    builder = lazydelta.QueryBuilder().register("t", lazydelta.DeltaTable(sys.argv[1]))
    return builder.execute("SELECT * FROM t").read_all()

def in_child():
    child = os.fork()
    if child == 0:
        try:
            said = str(len(rows()))
        except lazydelta.errors.ScanError as error:
            said = str(error)
        print(said, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

in_child()
print(len(rows()), flush=True)
in_child()
print(len(rows()), flush=True)
"""


def test_a_child_forked_after_a_query_is_told_why_it_can_run_none(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path / "t", pa.table({"id": [1, 2, 3]}))
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _PROGRAM, str(tmp_path / "t")],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.stderr == ""
    first, own, refused, again = done.stdout.splitlines()
    assert (first, own, again) == ("3", "3", "3")  # a child that is forked before runs queries of its own
    assert refused.startswith("The tokio runtime does not support forked processes: this one was forked")
    assert "spawn" in refused
