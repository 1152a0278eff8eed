"""Many clients at once: every answer is the in-process one, and nothing is left when they have gone."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lazydelta
from lazydelta import DeltaTable
from lazydelta.errors import LazyDeltaError
from lazydelta.server.budgets import Budgets
from lazydelta.server.flight import ServerLimits
from tests.rows.made_table import make_table
from tests.server.serving import location, serving

CLIENTS = 64
FILES, ROWS = 16, 100
_PATIENCE = 60


class _Crowd:
    """Clients that ask different questions; a third of them leaves midway."""

    def __init__(self, where: str, expected: Callable[[int], list[int]]) -> None:
        self._where = where
        self._expected = expected
        self._lock = threading.Lock()
        self.completed = self.cancelled = 0
        self.wrong: list[object] = []

    def run(self, number: int, goes_on: Callable[[int], bool]) -> None:
        rng, rounds = random.Random(number), 0
        with lazydelta.connect(self._where) as connection:
            table = connection.table("t")
            while goes_on(rounds):
                rounds += 1
                try:
                    self._ask(table, number * 97 % (FILES * ROWS), leaves=(number + rounds) % 3 == 0, rng=rng)
                except LazyDeltaError as error:
                    self.wrong.append((number, type(error).__name__, str(error)))

    def _ask(self, table: lazydelta.client.RemoteTable, least: int, *, leaves: bool, rng: random.Random) -> None:
        if rng.random() < 0.5:
            files = table.files(f"id >= {least}", batch_size=rng.choice([1, 4]))
            got = sorted(int(file.path[5:10]) for file in _some(files, leaves=leaves))
            files.close()
            want = sorted({each // ROWS for each in self._expected(least)})
        else:
            rows = table.rows(["id"], f"id >= {least}")
            got = sorted(id_ for batch in _some(rows, leaves=leaves) for id_ in batch.column("id").to_pylist())
            rows.close()
            want = self._expected(least)
        with self._lock:
            if leaves:
                self.cancelled += 1
                if not set(got) <= set(want):
                    self.wrong.append((least, "part", got))
            else:
                self.completed += 1
                if got != want:
                    self.wrong.append((least, len(got), len(want)))


def _some(stream: Any, *, leaves: bool) -> list[Any]:
    found = []
    for item in stream:
        found.append(item)
        if leaves:
            break
    return found


def _lazydelta_threads() -> list[str]:
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(("lazydelta-serve", "lazydelta-rows", "lazydelta-read"))
    ]


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _soak(folder: Path, goes_on: Callable[[int], bool]) -> _Crowd:
    make_table(folder / "t", files=FILES, rows=ROWS)
    ids = DeltaTable(folder / "t").rows(["id"]).read_all()["id"].to_pylist()
    budgets = Budgets(streams=CLIENTS * 2, streams_per_client=CLIENTS * 2, memory=8 << 30, memory_per_client=8 << 30)
    limits = ServerLimits(files_memory=16 << 20, rows_memory=16 << 20)
    with serving({"t": folder / "t"}, budgets=budgets, limits=limits) as server:
        crowd = _Crowd(location(server), lambda least: sorted(id_ for id_ in ids if id_ >= least))
        crowd.run(0, lambda rounds: rounds < 6)  # what is made once and kept is made now
        assert budgets.wait_until_idle(_PATIENCE)
        gc.collect()
        before, arrow_before = _open_files(), pa.total_allocated_bytes()
        clients = [threading.Thread(target=crowd.run, args=(number, goes_on)) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert budgets.wait_until_idle(_PATIENCE)
        assert (budgets.streams, budgets.memory) == (0, 0)
        assert budgets.most_streams > 1
        until = time.monotonic() + _PATIENCE
        while (_lazydelta_threads() or _open_files() > before + 2) and time.monotonic() < until:
            gc.collect()
            time.sleep(0.05)  # threads of pools end when they idle
        assert _lazydelta_threads() == []
        assert _open_files() <= before + 2
        # What caches keep was there before; a single stream of rows may reserve sixteen times as much.
        assert pa.total_allocated_bytes() - arrow_before < 1 << 20
    assert crowd.wrong == []
    return crowd


def test_64_clients_get_their_own_answers_and_leave_nothing_behind(tmp_path: Path) -> None:
    crowd = _soak(tmp_path, lambda rounds: rounds < 1)
    assert crowd.completed + crowd.cancelled == CLIENTS + 6
    assert crowd.cancelled > CLIENTS // 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_64_clients_for_a_minute(tmp_path: Path) -> None:
    until = time.monotonic() + 60
    crowd = _soak(tmp_path, lambda _: time.monotonic() < until)
    assert crowd.completed > CLIENTS
