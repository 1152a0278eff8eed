"""From measurements to verdicts: medians, ratios, a table for people and a file for programs."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.discovery import Case
    from benchmarks.measure import Measurement

__all__ = ["Result", "print_results", "save_results"]

_PACKAGES = ("lazydelta", "deltalake", "pyarrow", "obstore", "msgspec", "pandas", "pyspark", "delta-spark")
_MB = 1 << 20
# A peak below this is noise of the allocator, and a ratio to it would flatter us.
_LEAST_PEAK = 4 * _MB


@dataclass(frozen=True, slots=True)
class Side:
    """The medians of one side; None where it did not come to an end."""

    seconds: float | None
    peak_bytes: int | None
    failure: str | None

    @classmethod
    def of(cls, runs: list[Measurement], *, of_cpu: bool = False) -> Side:
        """Take the medians; one failed round fails the side, because a median would hide it."""
        failure = next((run.failure for run in runs if run.failure is not None), None)
        if failure is not None:
            return cls(None, None, failure)
        taken = (run.cpu_seconds if of_cpu else run.seconds for run in runs)
        seconds = [each for each in taken if each is not None]
        peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
        return cls(statistics.median(seconds), int(statistics.median(peaks)), None)


class Result:
    """All rounds of one case."""

    def __init__(self, case: Case, ours: list[Measurement], theirs: list[Measurement], *, gated: bool) -> None:
        self.case = case
        self.rounds = {"ours": ours, "theirs": theirs}
        of_cpu = case.gate is not None and case.gate.of_cpu
        self.ours = Side.of(ours, of_cpu=of_cpu)
        self.theirs = Side.of(theirs, of_cpu=of_cpu) if theirs else None
        self.gate = case.gate if gated else None

    @property
    def faster(self) -> float | None:
        """How many times faster we are."""
        if self.theirs is None or self.theirs.seconds is None or self.ours.seconds is None:
            return None
        return self.theirs.seconds / self.ours.seconds

    @property
    def smaller(self) -> float | None:
        """How many times less memory we need at the peak."""
        if self.theirs is None or self.theirs.peak_bytes is None or self.ours.peak_bytes is None:
            return None
        return self.theirs.peak_bytes / max(self.ours.peak_bytes, _LEAST_PEAK)

    def misses(self) -> list[str]:
        """Say what is not as promised: wrong answers always, ratios where the case gates."""
        name = self.case.name
        if self.ours.failure is not None:
            return [f"{name}: lazydelta failed: {self.ours.failure}"]
        wrong = {run.answer for run in self.rounds["ours"]} - {self.case.expected}
        found = [f"{name}: the answer is {answer}, not {self.case.expected}" for answer in wrong]
        if self.gate is not None and self.theirs is not None and self.theirs.failure is None:
            # A peer that ran out of memory or time has lost; there is no ratio to miss.
            for what, ratio, promised in (
                ("faster", self.faster, self.gate.faster),
                ("smaller", self.smaller, self.gate.smaller),
            ):
                if ratio is not None and ratio < promised:
                    found.append(f"{name}: {_digits(ratio, promised)} times {what}, promised are {promised:g}")
        peak = None if self.gate is None else self.gate.peak
        if peak is not None and self.ours.peak_bytes is not None and self.ours.peak_bytes > peak * _MB:
            found.append(f"{name}: {self.ours.peak_bytes / _MB:.0f} MB, promised are {peak:g}")
        above = None if self.gate is None else self.gate.above
        if above is not None and self.theirs is not None and self.theirs.peak_bytes is not None:
            more = ((self.ours.peak_bytes or 0) - self.theirs.peak_bytes) / _MB
            if more > above:
                found.append(f"{name}: {more:.0f} MB above the other side, promised are {above:g}")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "case": self.case.name,
            "gates": self.gate is not None,
            "faster": self.faster,
            "smaller": self.smaller,
            "misses": self.misses(),
            "rounds": {side: [asdict(run) for run in runs] for side, runs in self.rounds.items()},
        }


def print_results(title: str, results: list[Result]) -> None:
    """Print what gates, then what informs."""
    console = Console(width=None if Console().is_terminal else 130)
    for heading, gates in (("gates", True), ("informs", False)):
        chosen = [result for result in results if (result.gate is not None) == gates]
        if not chosen:
            continue
        table = Table("", "lazydelta", "beside", "faster", "smaller", title=f"{title}: {heading}", title_justify="left")
        for result in chosen:
            promised = result.gate
            table.add_row(
                result.case.name,
                _side(result.ours),
                "" if result.theirs is None else _side(result.theirs),
                _ratio(result.faster, None if promised is None else promised.faster),
                _ratio(result.smaller, None if promised is None else promised.smaller),
            )
        console.print(table)


def _side(side: Side) -> str:
    if side.seconds is None or side.peak_bytes is None:
        return side.failure or ""
    return f"{side.seconds:8.3f} s {side.peak_bytes / _MB:7.0f} MB"


def _ratio(ratio: float | None, promised: float | None) -> str:
    if ratio is None:
        return ""
    if not promised:
        return f"{ratio:.1f}x"
    return f"{_digits(ratio, promised)}x {'≥' if ratio >= promised else 'MISSES'} {promised:g}"


def _digits(ratio: float, promised: float) -> str:
    """Show how far a ratio is from being equal, where that is all that is promised."""
    return f"{ratio:.{2 if promised == 1 else 1}f}"


def save_results(folder: Path, suite: str, size: int, results: list[Result]) -> Path:
    """Write all rounds of all cases with what they were measured on."""
    folder.mkdir(parents=True, exist_ok=True)
    timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    file = folder / f"{suite}-{size}-{timestamp}.json"
    content = {
        "suite": suite,
        "size": size,
        "time": timestamp,
        "machine": {"cores": os.cpu_count(), "platform": platform.machine(), "python": platform.python_version()},
        "packages": {name: version(name) for name in _PACKAGES},
        "results": [result.as_dict() for result in results],
    }
    file.write_text(json.dumps(content, indent=2))
    return file
