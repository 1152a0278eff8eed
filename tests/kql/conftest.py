"""The tables of this folder's tests, written once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lazydelta import DeltaTable
from tests.kql.tables import write_tables

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def table_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of the tables by name."""
    return write_tables(tmp_path_factory.mktemp("kql"))


@pytest.fixture(scope="session")
def tables(table_paths: dict[str, Path]) -> dict[str, DeltaTable]:
    """Return the tables, opened."""
    return {name: DeltaTable(path) for name, path in table_paths.items()}
