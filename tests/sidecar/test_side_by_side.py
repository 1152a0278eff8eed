"""A build uses more than one core: statistics are parsed, and parts are compressed, two at a time."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Lock
from typing import Any

import pytest

from lazydelta import DeltaTable
from lazydelta.sidecar import build
from lazydelta.sidecar.building import build as builder
from lazydelta.sidecar.building import publish
from lazydelta.sidecar.format.part_file import encode_part
from lazydelta.testing import make_table

LONG = 60.0  # longer than any wait of two builds side by side


class Together:
    """Lets the first two calls of a function go on only once both have begun."""

    def __init__(self, work: Any) -> None:
        self.calls = 0
        self._work = work
        self._lock = Lock()
        self._both = Barrier(2)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Do the work, for the first two once both are here."""
        with self._lock:
            self.calls += 1
            first = self.calls <= 2
        if first:
            self._both.wait(LONG)
        return self._work(*arguments, **named)


@pytest.mark.parametrize(("module", "name"), [(builder, "_parsed"), (publish, "encode_part")])
def test_two_are_at_work_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    make_table(tmp_path, files=6_000)
    together = Together(getattr(module, name))
    monkeypatch.setattr(module, name, together)
    built = build(tmp_path, memory_budget=4 << 20)  # with less, one part is encoded at a time
    assert built.num_files == 6_000
    assert built.num_parts > 2
    assert together.calls > 2
    assert len(list(DeltaTable(str(tmp_path)).files())) == 6_000


def test_an_error_of_one_part_leaves_no_part_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_table(tmp_path, files=3_000)
    calls = 0

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise MemoryError("no room")
        return encode_part(*arguments)

    monkeypatch.setattr(publish, "encode_part", failing)
    with pytest.raises(MemoryError, match="no room"):
        build(tmp_path, memory_budget=1 << 20)
    folder = tmp_path / "_delta_log" / "_sidecars"
    assert not [each for each in folder.rglob("*") if each.is_file()]
