"""File discovery through a sidecar, beside deltalake on the same table; and what building and refreshing cost.

What gates is what the project promises for ten million files. At other sizes the ratios are shown and decide nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from benchmarks.discovery import OURS, THEIRS, Case, Contender, Gate, true_counts
from benchmarks.measure import measure
from benchmarks.tables import cached_table
from lazydelta.storage import open_store
from lazydelta.testing import MadeTable, make_table
from lazydelta.write.checkpoint.writer import write_checkpoint, write_last_checkpoint

__all__ = ["GATED_FILES", "builders", "cases", "grown_table", "table_with_sidecar"]

GATED_FILES = 10_000_000
_DEVICE = "sensor-04242"
_BUILT = "sidecar-built"
_GROWN = "grown"
_COMMITS, _ADDS = 10, 1_000
_LOG = "_delta_log"
_SIDECARS = f"{_LOG}/_sidecars"


def cases(files: int) -> list[Case]:
    """Return the cases for a table of this size with a sidecar; all is made now that is not there."""
    folder, made = table_with_sidecar(files)
    truth = true_counts(folder, made)
    grown = grown_table(folder)
    uri, hour = str(folder), made.last_hour

    def ours(work: str, *arguments: object) -> Contender:
        return Contender("lazydelta", work, (uri, *arguments), OURS)

    def theirs(work: str, *arguments: object) -> Contender:
        return Contender("deltalake", work, (uri, *arguments), THEIRS, shared=True)

    built, refreshed = builders(folder, grown)
    hours, opened = theirs("files_of_hour", hour), theirs("open_table")
    device = (("device_id", "=", _DEVICE),)
    one_hour, total = ours("files_of_hour", hour), truth["all"] + _COMMITS * _ADDS
    return [
        Case("one hour, by the sidecar", one_hour, hours, Gate(500, peak=20), truth["hour"]),
        Case("first file of one hour", ours("first_of_hour", hour), hours, Gate(1000, peak=20), 1),
        Case("take 100 / our one hour", ours("take", 100), one_hour, Gate(1, smaller=0, peak=20), 100),
        Case("take 100 / open", ours("take", 100), opened, None, 100),
        Case("all files, by the sidecar", ours("all_files"), theirs("all_files"), Gate(15, peak=150), truth["all"]),
        Case(
            "unsorted statistics",
            ours("matching_files", device),
            theirs("files_with_value", "device_id", _DEVICE),
            Gate(20, peak=150),
            truth["predicate"],
        ),
        Case("unsorted statistics / open", ours("matching_files", device), opened, None, truth["predicate"]),
        Case("build", built, None, Gate(0, peak=1536), total),
        Case("refresh / build", refreshed, built, Gate(50, smaller=0), total),
    ]


def builders(folder: Path, grown: Path) -> tuple[Contender, Contender]:
    """Return who builds the sidecar of the grown table, and who refreshes the one that it had before it grew."""

    def without_sidecar() -> None:
        shutil.rmtree(grown / _SIDECARS, ignore_errors=True)

    def with_old_sidecar() -> None:
        without_sidecar()
        _link(folder / _SIDECARS, grown / _SIDECARS)

    return (
        Contender("lazydelta", "build_sidecar", (str(grown),), OURS, without_sidecar, shared=True),
        Contender("lazydelta", "refresh_sidecar", (str(grown),), OURS, with_old_sidecar),
    )


def table_with_sidecar(files: int) -> tuple[Path, MadeTable]:
    """Return a table of this size with its sidecar, both made now unless they are there."""
    folder, made = cached_table(files=files, checksum=True, seed=5)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build(folder)
    return folder, made


def _build(folder: Path) -> None:
    """Build the sidecar in a child, once."""
    if (folder / _BUILT).exists():
        return
    # Nothing is measured here: on a slow machine it may take its time.
    built = measure("benchmarks.lazydelta_work:build_sidecar", str(folder), imports=OURS, time_cap=7200.0)
    if built.failure is not None:
        raise RuntimeError(f"the sidecar of {folder} cannot be built: {built.failure}")
    (folder / _BUILT).touch()


def grown_table(folder: Path) -> Path:
    """Return the same table after ten more commits and a checkpoint of them; what did not change is linked."""
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _grow(folder)


def _grow(folder: Path) -> Path:
    grown = folder / _GROWN
    if (grown / _BUILT).exists():
        return grown
    shutil.rmtree(grown, ignore_errors=True)
    few = grown / "few"
    # A small table whose columns are the same has commits that fit.
    make_table(few, files=1, tail=_COMMITS, adds_per_commit=_ADDS, seed=6)
    for commit in sorted((few / _LOG).glob("*.json"))[-_COMMITS:]:
        (grown / _LOG).mkdir(exist_ok=True)
        commit.rename(grown / _LOG / commit.name)
    shutil.rmtree(few)
    _link(folder / _LOG, grown / _LOG)
    store = open_store(grown)
    write_last_checkpoint(store, write_checkpoint(store))
    (grown / _BUILT).touch()
    return grown


def _link(source: Path, target: Path) -> None:
    """Hard-link the files of a folder; they are only read."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file():
            os.link(file, target / file.name)
