"""Writers that are killed anywhere, one after the other, over append, checkpoint, sidecar and clean-up together.

After each: every reader reads the table, what was acknowledged is there, what was not is absent or whole, and the next
writer goes on.
"""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

import lazydelta
from lazydelta.log.snapshot import open_snapshot
from tests.write.commits import new_table, rows, versions
from tests.write.kill_work import INTERVAL

if TYPE_CHECKING:
    from lazydelta.storage import Store
    from tests.support.azurite import Azurite

ROOT = Path(__file__).resolve().parents[2]
PROPERTIES = {"delta.checkpointInterval": str(INTERVAL), "delta.logRetentionDuration": "interval 0 days"}
_PROGRAM = "from tests.write.kill_work import main; main()"
# Where a writer is killed: before a request of a path with this mark, before any request, or in a write to a file.
_ANYWHERE, _IN_A_WRITE = "", "write"
_POINTS = (
    "_sidecars",
    ".checkpoint.parquet",
    _IN_A_WRITE,
    _ANYWHERE,
    ".json",
    "_last_checkpoint",
    ".crc",
    "p=r",
)
# Three commits and the maintenance that follows take about 50 requests, and 6 to 10 of each kind.
_REQUESTS, _REQUESTS_OF_A_KIND, _WRITES = 80, 9, 40
_FOR_EVER = 1_000
_LAST = 1_000_000
_TO_THE_END = 2 * INTERVAL + 1


@dataclass
class Ledger:
    """What must be in the table, and what the one writer who did not hear an answer may have changed."""

    store: Store
    expected: set[int] = field(default_factory=set)
    version: int = 0

    def judge(self, said: list[dict[str, Any]]) -> None:
        """Compare the table with what a writer said before it died."""
        open_end: tuple[int, list[int] | None] | None = None
        for words in said:
            if "begun" in words:
                open_end = words["begun"], words["removed"]
            elif "acknowledged" in words:
                assert open_end is not None
                self.expected = self._after(open_end)
                self.version = words["version"]
                open_end = None
        found = rows(self.store)
        possible = [sorted(self.expected)] + ([] if open_end is None else [sorted(self._after(open_end))])
        assert found in possible
        self.expected = set(found)
        self._check_readers(found)

    def _after(self, change: tuple[int, list[int] | None]) -> set[int]:
        row, removed = change
        return {row} | (set() if removed is None else self.expected.difference(removed))

    def _check_readers(self, expected: list[int]) -> None:
        """Read by way of the sidecar and without it, and with another library; totals must be those of the checksum."""
        options = self.store._settings.options
        for sidecar in (True, False):
            chosen = {"checksum": "error", "delta.sidecar.enabled": sidecar}
            table = lazydelta.DeltaTable(self.store.uri, storage_options=options, options=chosen)
            assert len(table.files().collect()) == len(expected)
            assert sorted(table.to_pyarrow_table(columns=["id"]).column("id").to_pylist()) == expected
        theirs = deltalake.DeltaTable(self.store.uri, storage_options=options)
        assert sorted(theirs.to_pyarrow_table().column("id").to_pylist()) == expected
        left = versions(self.store)
        assert left == list(range(left[0], left[-1] + 1))
        assert theirs.version() == left[-1]
        assert left[-1] in {self.version, self.version + 1}
        self.version = left[-1]


def _run(
    store: Store, first: int, commits: int, *, background: bool, kind: str = "", at: int = 0, mark: str = ""
) -> tuple[list[dict[str, Any]], int]:
    """Run a writer that dies at a point, or comes to its end, and return what it said and how it ended."""
    numbers = (first, commits, at, int(background))
    arguments = [pickle.dumps(store.carrying_credentials()).hex(), *(str(each) for each in numbers), kind, mark]
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"ready": True}
        process.stdin.write("go\n")
        process.stdin.flush()
        said, _ = process.communicate(timeout=100)
        return [json.loads(line) for line in said.splitlines()], process.returncode


def _kill_again_and_again(store: Store, kills: int, seed: int) -> Ledger:
    dice = random.Random(seed)
    ledger = Ledger(store)
    for number in range(kills):
        point, first, background = _POINTS[number % len(_POINTS)], (number + 1) * _FOR_EVER, dice.random() < 1 / 2
        if point == _IN_A_WRITE and not store.is_remote:
            said, code = _run(store, first, _FOR_EVER, background=background, kind="write", at=dice.randint(1, _WRITES))
        else:
            mark = _ANYWHERE if point == _IN_A_WRITE else point
            at = dice.randint(1, _REQUESTS if mark == _ANYWHERE else _REQUESTS_OF_A_KIND)
            said, code = _run(store, first, _FOR_EVER, background=background, kind="request", at=at, mark=mark)
            assert mark in said[-1]["killed"]
        assert "killed" in said[-1]
        assert code == -9
        ledger.judge(said)
    return ledger


def _go_on(ledger: Ledger) -> None:
    """Let one more writer live: it makes the checkpoint and the sidecar that the killed ones left undone."""
    said, code = _run(ledger.store, _LAST, _TO_THE_END, background=True)
    assert code == 0
    assert said[-1] == {"done": True}
    ledger.judge(said)
    segment = open_snapshot(ledger.store).segment
    assert segment.checkpoint is not None
    assert segment.checkpoint.version > ledger.version - _TO_THE_END
    stream = lazydelta.DeltaTable(ledger.store.uri, storage_options=ledger.store._settings.options).files()
    assert len(stream.collect()) == len(ledger.expected)
    assert stream.metrics.tier == 1


def _azure(azurite: Azurite) -> Store:
    container = azurite.container("killed")
    uri = f"abfss://{container}@{azurite.account}.dfs.core.windows.net/{uuid.uuid4().hex}"
    return new_table(uri, azurite.storage_options(), properties=PROPERTIES)


def test_writers_killed_on_a_local_disk_lose_nothing(tmp_path: Path) -> None:
    _go_on(_kill_again_and_again(new_table(tmp_path / "table", properties=PROPERTIES), kills=4, seed=3))


def test_writers_killed_on_azure_lose_nothing(azurite: Azurite) -> None:
    _go_on(_kill_again_and_again(_azure(azurite), kills=2, seed=4))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_writers_killed_at_fifty_points_of_a_local_disk_lose_nothing(tmp_path: Path) -> None:
    _go_on(_kill_again_and_again(new_table(tmp_path / "table", properties=PROPERTIES), kills=50, seed=50))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_writers_killed_at_fifty_points_of_azure_lose_nothing(azurite: Azurite) -> None:
    _go_on(_kill_again_and_again(_azure(azurite), kills=50, seed=51))
