"""Worker processes that tests can watch, forked from one template for all tests of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lazydelta.server import worker_pool
from lazydelta.server.worker_pool import WorkerPool


@pytest.fixture(scope="session", autouse=True)
def _workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ["LAZYDELTA_TEST_GATE"] = str(tmp_path_factory.mktemp("gate"))
    program = worker_pool._PROGRAM
    boot = "from lazydelta.server.worker import main"
    assert boot in program
    worker_pool._PROGRAM = program.replace(boot, f"import tests.server.worker_gate; {boot}")
    held = WorkerPool(memory=1 << 20, reading_memory=1 << 20, threads=1)
    yield
    held.close()
    worker_pool._PROGRAM = program
