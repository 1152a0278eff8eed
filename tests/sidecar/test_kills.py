"""Builders and refreshes killed at any time: every tier answers as before, the next one works, clean tidies up."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lazydelta import sidecar
from lazydelta.sidecar.format.columns import FOLDER, manifest_path, sidecar_path
from lazydelta.sidecar.format.manifest import Manifest
from lazydelta.sidecar.reading.discovery import shared_cache
from tests.scan.hand_log import HandLog
from tests.sidecar.conftest import Split
from tests.sidecar.refreshed import COLUMNS, HOURS, file_in, gone_from
from tests.sidecar.sidecars import DISABLED, Answer, Place, rows

ROOT = Path(__file__).resolve().parents[2]
QUERIES = (None, "hour = '2026021005'", "id >= 150")
FILES, COMMITS = 200, 10
SHAPES = {"parts": (5, 4), "single": (50, 16)}
MEMORY = 40_000  # twenty rows: nothing is sorted without temporary files


@dataclass(frozen=True)
class Killer:
    """The process that has copies of itself killed; ``temporary`` is where it and they keep temporary files."""

    process: subprocess.Popen[str]
    temporary: Path

    def work(self, **job: Any) -> dict[str, Any]:
        """Let a job be done and return how it ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        ended: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert not ended["failed"]
        return ended


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    """Start the process."""
    temporary = tmp_path_factory.mktemp("temporary")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.sidecar.kill_work"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Killer(process, temporary)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0


def make(path: Path, *, built_before: bool) -> Place:
    """Write a table whose sidecar of version 0 is built, and then ten commits and a checkpoint of version 10."""
    log = HandLog(path, COLUMNS, partitions=["hour"], features=["deletionVectors"])
    log.commit(*(file_in(HOURS[number // 10], number) for number in range(FILES)))
    log.checkpoint()
    place = Place(str(path))
    if built_before:
        sidecar.build(place.uri)
    for number in range(COMMITS):
        log.commit(file_in(HOURS[number], 900 + number), gone_from(HOURS[2 * number], 20 * number))
    log.checkpoint()
    return place


def answers(place: Place, **options: Any) -> list[Answer]:
    """Return the answers to all queries, at the newest version and at the one before the change."""
    found = []
    for version in (None, 0):
        for where in QUERIES:
            shared_cache.clear()
            found.append(rows(place.open(version, **options), where)[0])
    return found


def tier(place: Place) -> int:
    """Return how the newest version is found."""
    shared_cache.clear()
    found: int = rows(place.open())[1].tier
    return found


def expected_tier(place: Place) -> int:
    """Return how it should be found, by the files that are there."""
    exists = place.store.exists
    return 1 if exists(manifest_path(COMMITS)) else 2 if exists(sidecar_path(COMMITS)) else 3


def files_there(place: Place) -> set[str]:
    """Return all files in the folder, hidden ones included."""
    folder = Path(place.uri) / FOLDER
    return {f"{FOLDER}/{each.name}" for each in folder.iterdir()} if folder.exists() else set()


def needed(place: Place) -> set[str]:
    """Return the manifests, the files that they refer to, their overviews, and a file that is a sidecar by itself."""
    found = {path for path in files_there(place) if path.endswith(".manifest.json")}
    parts = [part.file for path in found for part in Manifest.decode(place.store.get(path)).parts]
    overviews = {path.replace(".manifest.json", ".parquet") for path in found}
    alone = {sidecar_path(COMMITS), *overviews} & files_there(place)
    return found | set(parts) | alone


@dataclass(frozen=True)
class Template:
    """A table as it is before the deed, what the log says of it, and how much there is to do."""

    folder: Path
    job: dict[str, Any]
    truth: list[Answer]
    whole: dict[str, Any]

    @classmethod
    def of(cls, folder: Path, deed: str, shape: str, killer: Killer) -> Template:
        """Make the table, and let the deed be done once without a kill."""
        place = make(folder, built_before=deed == "refresh")
        rows_, groups = SHAPES[shape]
        job = {"deed": deed, "memory": MEMORY, "rows": rows_, "groups": groups}
        whole = killer.work(**job, uri=shutil.copytree(folder, f"{folder}-whole"), timestamp="", at=0)
        return cls(folder, job, answers(place, **DISABLED), whole)


def check(deed: str, count: int, killer: Killer, tmp_path: Path, split: Split) -> None:
    """Kill a deed at so many timestamps, on a fresh copy of the table each time."""
    dice = random.Random(count)
    templates: dict[str, Template] = {}
    left_over = 0
    for number in range(count):
        shape = "single" if number % 4 == 3 else "parts"
        split(*SHAPES[shape])
        if shape not in templates:
            templates[shape] = Template.of(tmp_path / shape, deed, shape, killer)
        template = templates[shape]
        place = Place(shutil.copytree(template.folder, f"{template.folder}-{number}"))
        timestamp = ("request", "publication", "write")[number % 3]
        last = template.whole["counts"][timestamp]
        # Spread over the run: one timestamp in each of as many stretches as there are kills.
        at = last * (number + dice.random()) / count
        ended = killer.work(**template.job, uri=place.uri, timestamp=timestamp, at=1 + int(at))
        assert ended["killed"]
        left_over += any(".lazydelta-" in path for path in files_there(place))
        assert answers(place) == template.truth
        assert tier(place) == expected_tier(place)
        if number % 2:
            tidy(place)
            assert answers(place) == template.truth
        assert getattr(sidecar, deed)(place.uri).num_files == FILES
        report = sidecar.verify(place.uri)
        assert report.ok, report.problems
        tidy(place)
        assert (answers(place), tier(place)) == (template.truth, 1)
        assert list(killer.temporary.iterdir()) == []
    assert left_over, "no kill left a temporary file behind"


def tidy(place: Place) -> None:
    """Clean up, and check that nothing unneeded is left."""
    sidecar.clean(place.uri, grace_hours=0)
    assert files_there(place) == needed(place)


@pytest.mark.parametrize("deed", ["build", "refresh"])
def test_killed_at_five_timestamps(deed: str, killer: Killer, tmp_path: Path, split: Split) -> None:
    check(deed, 5, killer, tmp_path, split)


@pytest.mark.slow
@pytest.mark.parametrize("deed", ["build", "refresh"])
def test_killed_at_forty_timestamps(deed: str, killer: Killer, tmp_path: Path, split: Split) -> None:
    check(deed, 40, killer, tmp_path, split)
