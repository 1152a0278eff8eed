"""What the tests of sidecars share: an empty cache, and small row groups so that small tables have many."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

import pytest

from lazydelta.sidecar.format import part_file
from lazydelta.sidecar.format import part_file as tiers
from lazydelta.sidecar.reading.discovery import shared_cache

Split = Callable[[int, int], None]
Form = Callable[[int], None]

# The package has functions of the same names as these modules.
planning = importlib.import_module("lazydelta.sidecar.building.plan")
publication = importlib.import_module("lazydelta.sidecar.building.publish")
leaf_writer = importlib.import_module("lazydelta.sidecar.format.leaves")


@pytest.fixture(autouse=True)
def cold_cache() -> Iterator[None]:
    """Begin and end every test with nothing remembered."""
    shared_cache.clear()
    yield
    shared_cache.clear()


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> Split:
    """Return a function that sets how many rows a row group has and how many row groups a part."""
    return lambda rows, groups: set_sizes(monkeypatch, rows, groups)


@pytest.fixture
def form(monkeypatch: pytest.MonkeyPatch) -> Form:
    """Return a function that gives sidecars one of three forms: that of small ones, with leaves, with tiers as well."""

    def choose(number: int) -> None:
        has_leaves, has_tiers = number % 3 > 0, number % 3 == 2
        monkeypatch.setattr(publication, "PARTS_IN_ROOT", 0 if has_leaves else 1 << 20)
        monkeypatch.setattr(leaf_writer, "LEAST_PARTS", 2)
        monkeypatch.setattr(tiers, "TIERED_ABOVE", 2 if has_tiers else 1 << 20)
        monkeypatch.setattr(planning, "_RANGES_IN_MANIFEST", 1 if has_tiers else 8)

    return choose


@pytest.fixture
def leafy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every manifest have leaves, of two parts each."""
    set_leaves(monkeypatch, 2)


def set_leaves(patch: pytest.MonkeyPatch, parts: int) -> None:
    """Let every manifest have leaves, of so many parts each."""
    patch.setattr(publication, "PARTS_IN_ROOT", 0)
    patch.setattr(leaf_writer, "LEAST_PARTS", parts)


@pytest.fixture
def tiered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables with statistics of three columns have tiers, the third column in the second one."""
    set_tiers(monkeypatch)


def set_tiers(patch: pytest.MonkeyPatch) -> None:
    """Let tables with statistics of three columns have tiers: of a timestamp and one more column, and of all others."""
    patch.setattr(tiers, "TIERED_ABOVE", 2)
    patch.setattr(planning, "_RANGES_IN_MANIFEST", 1)


def set_sizes(patch: pytest.MonkeyPatch, rows: int, groups: int) -> None:
    """Set how many rows a row group has and how many row groups a part."""
    patch.setattr(part_file, "ROWS_PER_GROUP", rows)
    patch.setattr(planning, "PART_ROWS", rows * groups)
