"""What a run of the benchmark found: one record for each contender, question and circumstance, kept as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.measure import Measurement

__all__ = ["Key", "Record", "Run", "disagreements", "machine", "packages", "record_of"]

_FORMAT = 1
_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("lazydelta", "deltalake", "pyarrow", "obstore", "msgspec", "pandas", "polars", "pyspark", "delta-spark")


Key: TypeAlias = tuple[str, str, str, str]
"""Section, contender, question and circumstances."""


@dataclass(frozen=True, slots=True)
class Record:
    """Medians over the rounds; None is what was not measured, or not answered because of ``failure``.

    ``first_seconds`` counts from before the table was opened. ``variant`` says what is special about the circumstances:
    the size of the table, the length of the tail, the latency. ``rounds`` are the seconds of each round.
    """

    section: str
    contender: str
    question: str
    variant: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    first_seconds: float | None = None
    peak_bytes: int | None = None
    requests: int | None = None
    bytes: int | None = None
    round_trips: int | None = None
    first_round_trips: int | None = None
    answer: int | None = None
    failure: str | None = None
    rounds: list[float] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What makes it the same measurement in another run."""
        return self.section, self.contender, self.question, json.dumps(self.variant, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Run:
    """All records, with what they were measured on; ``parts`` are those of the benchmark that were gone through."""

    scale: int
    records: tuple[Record, ...]
    machine: dict[str, Any]
    packages: dict[str, str]
    time: str = ""
    parts: tuple[str, ...] = ()

    def save(self, file: Path) -> None:
        """Write it; times are cut to a tenth of a millisecond, so that a run is not mostly digits."""
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "format": _FORMAT,
            "time": self.time or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "scale": self.scale,
            "machine": self.machine,
            "packages": self.packages,
            "parts": list(self.parts),
            "records": [_short(asdict(each)) for each in self.records],
        }
        # Who is stopped while writing must not lose what took hours.
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(content, indent=1) + "\n")
        unfinished.replace(file)

    @classmethod
    def load(cls, file: Path) -> Run:
        """Read what was saved."""
        content = json.loads(file.read_text())
        if content.get("format") != _FORMAT:
            raise ValueError(f"{file} is of format {content.get('format')}, not {_FORMAT}: run the benchmark again")
        return cls(
            content["scale"],
            tuple(Record(**each) for each in content["records"]),
            content["machine"],
            content["packages"],
            content["time"],
            tuple(content.get("parts", ())),
        )

    def of(self, section: str) -> list[Record]:
        """Return the records of a section."""
        return [each for each in self.records if each.section == section]


def _short(record: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is not there, and round."""
    kept = {name: value for name, value in record.items() if value not in (None, {}, [])}
    return {
        name: round(value, 4)
        if isinstance(value, float)
        else [round(each, 4) for each in value]
        if name == "rounds"
        else value
        for name, value in kept.items()
    }


def record_of(
    section: str, contender: str, question: str, runs: Sequence[Measurement], variant: dict[str, Any] | None = None
) -> Record:
    """Take the medians of runs whose answers are dictionaries; one failed round fails all: a median would hide it."""
    empty = Record(section, contender, question, variant or {})
    failure = next((run.failure for run in runs if run.failure is not None), None)
    if failure is not None or not runs:
        return replace(empty, failure=failure or "not measured")
    answers = [run.answer for run in runs]

    def median(name: str) -> float | None:
        found = [each[name] for each in answers if each.get(name) is not None]
        return statistics.median(found) if found else None

    def whole(name: str) -> int | None:
        found = median(name)
        return None if found is None else int(found)

    counts = {each.get("count") for each in answers}
    if len(counts) != 1:
        return replace(empty, failure=f"the answers differ: {sorted(map(str, counts))}")
    peaks = [each.get("peak_bytes", run.peak_bytes) for each, run in zip(answers, runs, strict=True)]
    return replace(
        empty,
        seconds=median("seconds"),
        first_seconds=median("first_seconds"),
        peak_bytes=int(statistics.median(peak for peak in peaks if peak is not None)),
        requests=whole("requests"),
        bytes=whole("bytes"),
        round_trips=whole("round_trips"),
        first_round_trips=whole("first_round_trips"),
        answer=counts.pop(),
        rounds=[float(each["seconds"]) for each in answers],
    )


def disagreements(records: Iterable[Record]) -> list[str]:
    """Say where those who tell how many files they found do not tell the same; floors read whole row groups."""
    found: dict[tuple[str, str], dict[int, list[str]]] = {}
    for each in records:
        if each.answer is not None and each.contender != "floor":
            asked = (each.question, json.dumps(each.variant, sort_keys=True))
            found.setdefault(asked, {}).setdefault(each.answer, []).append(each.contender)
    return [
        f"{question} {variant}: " + ", ".join(f"{count} by {' '.join(names)}" for count, names in answers.items())
        for (question, variant), answers in found.items()
        if len(answers) > 1
    ]


def machine() -> dict[str, Any]:
    """Describe what this runs on, and how busy it is before anything is measured."""
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "cores": os.cpu_count(),
        "cpu": cpu,
        "memory_gb": round(memory / (1 << 20)),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 1),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def packages() -> dict[str, str]:
    """Return the versions of what was measured: those of this environment, and the pins of the peers' own."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    for line in (_ROOT / "requirements" / "peers.txt").read_text().splitlines():
        name, pinned, number = line.partition("==")
        if pinned and not name.startswith("#"):
            found[f"peers: {name}"] = number
    return found
