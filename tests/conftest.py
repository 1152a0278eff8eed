"""Fixtures that all tests share."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support import give_children_default_signals
from tests.support.golden import find_golden, unpack
from tests.support.rounds import leave_to_soak

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

give_children_default_signals()

# With it set, each of the many processes of the suite compiles what it imports: 0.57 instead of 0.21 s of CPU for
# `import lazydelta`, 2.1 instead of 0.8 s for the commands.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) is not None:
    sys.dont_write_bytecode = False

pytest_plugins = ["tests.support.azurite", "tests.support.delta_spark", "tests.support.s3"]

_MARKER_OF_FIXTURE = {
    "azurite": "azurite",
    "delta_spark": "peers",
    "s3_server": "s3",
    "golden_dir": "golden",
    "unpack_golden": "golden",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the services they use, so that `-m "not azurite"` needs no care by their authors."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in _MARKER_OF_FIXTURE:
                item.add_marker(_MARKER_OF_FIXTURE[fixture])
    leave_to_soak(items)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let Ctrl-C reach Python: nohup ignores it, and a JVM that another test started in this process takes it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if before is not None:
        signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Return the folder of the compatibility suite; it is no part of the project, so its absence is a skip."""
    folder = find_golden()
    if not folder.is_dir():
        pytest.skip("the compatibility suite (../shared/golden from the project's root) is absent")
    return folder


@pytest.fixture(scope="session")
def unpack_golden(golden_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that unpacks a table of the suite, once per session, and gives its folder."""
    into = tmp_path_factory.mktemp("golden")
    done: dict[str, Path] = {}

    def unpack_once(name: str) -> Path:
        if name not in done:
            done[name] = unpack(golden_dir, name, into)
        return done[name]

    return unpack_once
