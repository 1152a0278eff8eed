"""A store over a folder of the test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lazydelta.storage import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.storage import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))
