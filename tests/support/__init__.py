"""Real services and data that the tests run against."""

from __future__ import annotations

import os
import socket
from typing import NoReturn

import pytest

__all__ = ["free_port", "unavailable"]


def unavailable(what: str) -> NoReturn:
    """Skip the test because the machine lacks something that `make setup` provides; in CI that is a failure."""
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(f"{what} (not skipped, because CI is set)", pytrace=False)
    pytest.skip(what)


def free_port() -> int:
    """Return a port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
