"""How many row groups are under way depends on what is read of them, and on the memory that a scan may take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import DeltaTable, sidecar
from lazydelta.sidecar.format import part_file
from lazydelta.sidecar.reading import row_groups
from lazydelta.sidecar.reading.row_groups import RowGroups
from lazydelta.testing import make_table

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = 12


@pytest.fixture
def under_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many row groups were under way at each start of some."""
    found: list[int] = []
    start = RowGroups._start

    def noted(self: RowGroups, *arguments: Any) -> None:
        start(self, *arguments)
        found.append(len(self._started))

    monkeypatch.setattr(RowGroups, "_start", noted)
    return found


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a table with statistics of 40 columns and a sidecar of some small row groups."""
    monkeypatch.setattr(part_file, "ROWS_PER_GROUP", 50)
    make_table(tmp_path, files=50 * GROUPS, hours=24, columns=40)
    sidecar.build(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("most_rows", "together"), [(10_000, 4), (100, 2), (99, 1)])
def test_only_small_row_groups_are_decoded_together(
    table: Path, monkeypatch: pytest.MonkeyPatch, most_rows: int, together: int
) -> None:
    decoded: list[int] = []
    read = part_file.decode_groups

    def noted(footer: Any, indices: Any, *rest: Any, **options: Any) -> Any:
        decoded.append(len(indices))
        return read(footer, indices, *rest, **options)

    monkeypatch.setattr(row_groups, "decode_groups", noted)
    monkeypatch.setattr(row_groups, "ROWS_PER_GROUP", most_rows)
    stream = DeltaTable(table, options={"memory_budget": 1 << 30}).files(strategy="forward")
    assert len(stream.collect()) == 50 * GROUPS
    assert max(decoded) == together


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 5),
        ({"project_columns": False}, 1),
        ({"project_columns": False, "memory_budget": 1 << 30}, 5),
        ({"memory_budget": 60 << 20}, 2),
        ({"memory_budget": 1 << 20}, 1),
    ],
    ids=["core", "all columns", "all columns in much memory", "core in less", "core in little"],
)
def test_as_many_row_groups_are_under_way_as_fit_the_budget(
    table: Path, under_way: list[int], options: dict[str, Any], most: int
) -> None:
    stream = DeltaTable(table, options=options).files(strategy="forward")
    assert len(stream.collect()) == 50 * GROUPS
    assert stream.metrics.row_groups_read == GROUPS
    assert max(under_way) == most


def test_a_few_statistics_are_not_all_of_them(table: Path, under_way: list[int]) -> None:
    stream = DeltaTable(table).files([("device_id", ">=", "")], strategy="forward")
    assert len(stream.collect()) > 0
    assert max(under_way) >= 4
