"""Counting what a scan of rows does: files found, files opened, requests after its end, threads left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from lazydelta.log.file_batch import FileBatch
from lazydelta.scan.scanner import LazyDeltaScanner
from lazydelta.storage import Request, observe

T = TypeVar("T")

__all__ = ["Watched", "hand_out_one_file_a_pull", "no_threads_are_left", "row_threads", "watch"]


@dataclass
class Watched:
    """Requests for data files, in their order."""

    requests: list[Request] = field(default_factory=list)

    @property
    def files(self) -> set[str]:
        """The data files that were asked for."""
        return {request.path for request in self.requests if "_delta_log" not in request.path}


@contextmanager
def watch() -> Iterator[Watched]:
    """Note every request of the process."""
    watched = Watched()
    with observe(watched.requests.append):
        yield watched


def hand_out_one_file_a_pull(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make every scan give its files one by one; return the list that grows with each file that was pulled."""
    pulled: list[str] = []
    original = LazyDeltaScanner.converted

    def one_by_one(scanner: LazyDeltaScanner, convert: Callable[[FileBatch], T]) -> Generator[T]:
        for batch in original(scanner, lambda found: found):
            for index in range(len(batch)):
                one = batch.slice(index, 1)
                pulled.append(one.path[0].as_py())
                yield convert(one)

    monkeypatch.setattr(LazyDeltaScanner, "converted", one_by_one)
    return pulled


def row_threads() -> list[str]:
    """Return the threads that read rows just now."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lazydelta-rows")]


def no_threads_are_left() -> bool:
    """Tell whether the threads that read rows end: engines drop what they read in threads of their own, a bit later."""
    deadline = time.monotonic() + 30
    while row_threads() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return not row_threads()
