"""Real services and data that the tests run against."""

from __future__ import annotations

import os
import signal
import socket
from typing import NoReturn

import pytest

__all__ = ["free_port", "give_children_default_signals", "unavailable"]


def give_children_default_signals() -> None:
    """Let children of this process begin with the usual signals, also where the suite was started in the background.

    A process of a background shell, or of nohup, ignores some signals, and its children inherit that. They do not
    inherit a handler, so one that does nothing has the same effect here and none on them.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def unavailable(what: str) -> NoReturn:
    """Skip the test because the machine lacks something that `make setup` provides; in CI that is a failure."""
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(f"{what} (not skipped, because CI is set)", pytrace=False)
    pytest.skip(what)


def free_port() -> int:
    """Return a port of the loopback interface that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
