"""File discovery on one table of a V1 checkpoint and nothing else, beside deltalake.

What gates is what the project promises for a million files. Everything else informs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.measure import Measurement, measure
from benchmarks.tables import cached_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lazydelta.testing import MadeTable

__all__ = ["GATED_FILES", "OURS", "THEIRS", "Case", "Contender", "Gate", "cases", "true_counts"]

GATED_FILES = 1_000_000
"""The size that the promises are about; at other sizes their ratios are shown and decide nothing."""

_DEVICE = "sensor-04242"
OURS = ("lazydelta", "pyarrow.parquet", "obstore")
THEIRS = ("deltalake", "pyarrow")
_MEMORY = 5.0


@dataclass(frozen=True, slots=True)
class Contender:
    """One side of a comparison; ``before`` is done ahead of every measurement and not measured.

    ``shared`` work takes so long that it is measured once a round, however many cases it is in. ``python`` is the
    interpreter of another environment.
    """

    name: str
    work: str
    arguments: tuple[object, ...]
    imports: tuple[str, ...]
    before: Callable[[], None] | None = None
    shared: bool = False
    python: str | None = None

    def run(self) -> Measurement:
        """Measure it once."""
        if self.before is not None:
            self.before()
        work = f"benchmarks.{self.name}_work:{self.work}"
        return measure(work, *self.arguments, imports=self.imports, python=self.python)


@dataclass(frozen=True, slots=True)
class Gate:
    """How many times faster, and how many times smaller in memory, we promise to be.

    ``peak`` is in megabytes, and so is ``above``: how far our peak may be above the other side's. ``of_cpu`` compares
    the CPU time of the two processes and not the clock.
    """

    faster: float
    smaller: float = _MEMORY
    peak: float | None = None
    above: float | None = None
    of_cpu: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """A question put to both; ``theirs`` None is a question that only we answer, ``gate`` None one that only informs.

    ``expected`` is the answer that our side must give; a fast wrong answer is no result.
    """

    name: str
    ours: Contender
    theirs: Contender | None
    gate: Gate | None
    expected: int


def cases(files: int) -> list[Case]:
    """Return the cases for a table of this size, which is made now if it is not there."""
    folder, made = cached_table(files=files)
    truth = true_counts(folder, made)
    uri, hour = str(folder), made.last_hour

    def ours(work: str, *arguments: object) -> Contender:
        return Contender("lazydelta", work, (uri, *arguments), OURS)

    def theirs(work: str, *arguments: object) -> Contender:
        return Contender("deltalake", work, (uri, *arguments), THEIRS)

    device = [["device_id", "=", _DEVICE]]
    found = truth["predicate"]
    opened = theirs("open_table")
    hours, listing = theirs("files_of_hour", hour), theirs("all_files")
    return [
        Case("files of one hour", ours("files_of_hour", hour), hours, Gate(15), truth["hour"]),
        Case("all files, in batches", ours("all_files"), listing, Gate(15), truth["all"]),
        Case("statistics predicate / open", ours("matching_files", device), opened, Gate(3), found),
        Case("the same as SQL text", ours("matching_files", f"device_id = '{_DEVICE}'"), opened, None, found),
        Case("the same, newest first", ours("matching_files", device, "reverse"), opened, None, found),
        Case("all files, as objects", ours("all_objects"), listing, None, truth["all"]),
        Case("the first file", ours("first_file"), opened, None, 1),
    ]


def true_counts(folder: Path, made: MadeTable) -> dict[str, int]:
    """Count what the answers must be, by a plain reading of the checkpoint."""
    kept = folder / f"truth-{_DEVICE}.json"
    if not kept.exists():
        counted = measure("benchmarks.reference_work:count", str(folder), made.last_hour, "device_id", _DEVICE)
        if counted.failure is not None:
            raise RuntimeError(f"cannot count the files of {folder}: {counted.failure}")
        kept.write_text(json.dumps(counted.answer))
    truth: dict[str, int] = json.loads(kept.read_text())
    return truth
