"""A table of ten parts whose every part is known, to see which of them a refresh rewrites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lazydelta import sidecar
from lazydelta.sidecar import BuildResult
from lazydelta.sidecar.format.columns import manifest_path
from lazydelta.sidecar.format.manifest import Manifest
from lazydelta.sidecar.reading.discovery import shared_cache
from tests.scan.hand_log import HandLog, add, remove
from tests.sidecar.conftest import Split
from tests.sidecar.sidecars import Place, rows

COLUMNS = {"id": "long", "at": "timestamp", "hour": "string"}
HOURS = [f"20260210{hour:02d}" for hour in range(20)]
PREDICATES = (None, "hour = '2026021005'", "hour >= '2026021017'", "id < 40", "id >= 150", "hour = '1999010100'")


def file_in(hour: str | None, number: int, **keywords: Any) -> Any:
    """Return the add of a file that lies in an hour."""
    low = number % 200
    settings: dict[str, Any] = {"ids": (low, low + 5), "records": 7, "partition": {"hour": hour}} | keywords
    return add(f"f{number:05d}", **settings)


def gone_from(hour: str | None, number: int, **keywords: Any) -> Any:
    """Return the remove of a file that tells its hour."""
    action = remove(f"f{number:05d}", **keywords)
    action["remove"] |= {"extendedFileMetadata": True, "partitionValues": {"hour": hour}, "size": 10}
    return action


class Hourly:
    """A table of twenty hours with ten files each, its sidecar in ten parts of two hours each."""

    def __init__(self, path: Path, split: Split) -> None:
        split(5, 4)
        self.log = HandLog(path, COLUMNS, partitions=["hour"], features=["deletionVectors"])
        self.log.commit(*(file_in(HOURS[number // 10], number) for number in range(200)))
        self.log.checkpoint()
        self.place = Place(str(path))
        assert sidecar.build(self.place.uri).num_parts == 10

    def refresh(self) -> BuildResult:
        """Write a checkpoint and refresh the sidecar."""
        self.log.checkpoint()
        shared_cache.clear()
        return sidecar.refresh(self.place.uri)

    def parts(self, version: int | None = None) -> list[str]:
        """Return the parts of a sidecar, in order."""
        data = self.place.store.get(manifest_path(self.log.version if version is None else version))
        return [part.file for part in Manifest.decode(data).parts]

    def rewritten(self) -> list[int]:
        """Return which of the ten parts that were built first are not used any more."""
        now = set(self.parts())
        return [number for number, part in enumerate(self.parts(0)) if part not in now]

    def check(self) -> None:
        """Check that the sidecar equals the log, and that scans use it and find what the log has."""
        same(self.place)


def same(place: Place, predicates: tuple[Any, ...] = PREDICATES) -> None:
    """Check that the sidecar equals the log, and that scans use it and find what the log has."""
    report = sidecar.verify(place.uri)
    assert report.ok, report.problems
    for where in predicates:
        shared_cache.clear()
        found, metrics = rows(place.open(), where)
        assert found == place.answer(where)
        assert metrics.tier == 1
        assert metrics.sidecar_hits == 1
