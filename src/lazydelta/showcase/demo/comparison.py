"""Discovery beside deltalake: the same question to both, each time in a process of its own.

A child imports the library, notes the time and its peak memory, opens the table, finds the files and reports. So
neither start nor imports are counted, for nobody, and nothing is warm but the machine's page cache, for both.
"""

from __future__ import annotations

import importlib
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from lazydelta.errors import LazyDeltaError

__all__ = ["Comparison", "Side", "compare"]

_ROUNDS = 3
_LIMIT = 100
_SECONDS = 300


class Side(msgspec.Struct, frozen=True):
    """The medians of one library; ``peak_bytes`` is by how much its peak memory grew."""

    files: int
    milliseconds: float
    peak_bytes: int


class Comparison(msgspec.Struct, frozen=True):
    """One question put to both; ``faster`` is how many times as fast lazydelta was, below 1 where it was slower."""

    question: str
    table_files: int
    lazydelta: Side
    deltalake: Side
    faster: float


def compare(uri: str, table_files: int, hour: str) -> list[Comparison]:
    """Ask both for the files of an hour, and for any hundred files."""
    return [
        _compared("the files of one hour", "hour", uri, table_files, hour),
        _compared(f"any {_LIMIT} files", "any", uri, table_files, hour),
    ]


def _compared(question: str, kind: str, uri: str, table_files: int, hour: str) -> Comparison:
    runs: dict[str, list[Side]] = {"lazydelta": [], "deltalake": []}
    for number in range(_ROUNDS):
        # Turn about, so that a machine that slows down favours neither.
        for library in sorted(runs, reverse=number % 2 == 0):
            runs[library].append(_measured(library, kind, uri, hour))
    ours, theirs = (_median(runs[library]) for library in ("lazydelta", "deltalake"))
    return Comparison(question, table_files, ours, theirs, round(theirs.milliseconds / ours.milliseconds, 2))


def _median(sides: list[Side]) -> Side:
    return Side(
        sides[0].files,
        statistics.median(side.milliseconds for side in sides),
        int(statistics.median(side.peak_bytes for side in sides)),
    )


def _measured(library: str, kind: str, uri: str, hour: str) -> Side:
    task = json.dumps({"library": library, "kind": kind, "uri": uri, "hour": hour})
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-m", __name__, task], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        detail = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        raise LazyDeltaError(f"{library} could not be measured on {uri}: {detail}", path=uri) from error
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Side)


def _ask(module: Any, library: str, kind: str, uri: str, hour: str) -> int:
    table = module.DeltaTable(uri)
    if kind == "hour":
        return len(table.file_uris(partition_filters=[("_event_hour", "=", hour)]))
    if library == "lazydelta":
        return sum(batch.num_rows for batch in table.files(limit=_LIMIT).batches())
    return len(table.file_uris()[:_LIMIT])  # there is no way to ask for less


def _peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        found = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(found.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS has bytes there


def _child(task: dict[str, str]) -> None:
    module = importlib.import_module(task["library"])
    importlib.import_module("pyarrow.parquet")
    before, began = _peak(), time.perf_counter()
    files = _ask(module, **task)
    milliseconds = (time.perf_counter() - began) * 1000
    sys.stdout.write(msgspec.json.encode(Side(files, milliseconds, _peak() - before)).decode() + "\n")


if __name__ == "__main__":
    _child(json.loads(sys.argv[1]))
