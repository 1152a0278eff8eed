"""The tables of the ladder: the log of one table with its sidecar, and an Iceberg table of the same files beside it."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.discovery import OURS
from benchmarks.measure import measure
from benchmarks.questions import HOURS
from benchmarks.tables import cached_table

if TYPE_CHECKING:
    from lazydelta.testing import MadeTable

__all__ = ["LADDER_TABLE", "PEERS_PYTHON", "iceberg_table", "indexed_table"]

PEERS_PYTHON = Path(__file__).resolve().parents[1] / ".venv-peers" / "bin" / "python"
LADDER_TABLE: dict[str, Any] = {"hours": HOURS, "tail": 20, "removes": 100, "checksum": True, "seed": 5}
"""How the table of the ladder is made, but for its size."""
_BUILT = "sidecar-built"
_MAKING_TIME_CAP = 7200.0  # nothing is measured here: on a slow machine it may take its time


def indexed_table(files: int, **recipe: Any) -> tuple[Path, MadeTable]:
    """Return a table with its sidecar, both made now unless they are there."""
    folder, made = cached_table(files=files, **recipe)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / _BUILT).exists():
            # In a child, because a process keeps the peak that a build leaves behind.
            work = "benchmarks.lazydelta_work:build_sidecar"
            built = measure(work, str(folder), imports=OURS, time_cap=_MAKING_TIME_CAP)
            if built.failure is not None:
                raise RuntimeError(f"the sidecar of {folder} cannot be built: {built.failure}")
            (folder / _BUILT).touch()
    return folder, made


def iceberg_table(folder: Path) -> str | None:
    """Return where the metadata of an Iceberg table of the same files is, made now; None where PyIceberg is not."""
    if not PEERS_PYTHON.exists():
        return None
    place = folder.parent / f"{folder.name}.iceberg"
    with (folder.parent / f"{folder.name}.iceberg.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        written = measure(
            "benchmarks.iceberg_work:write",
            str(folder),
            str(place),
            python=str(PEERS_PYTHON),
            time_cap=_MAKING_TIME_CAP,
        )
    if written.failure is not None:
        shutil.rmtree(place, ignore_errors=True)
        return None
    return str(written.answer)
