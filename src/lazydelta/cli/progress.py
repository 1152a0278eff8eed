"""A line on standard error that says how a long scan gets on.

It shows up only after a second without an end, only on a terminal, and steps aside while results are printed: both
streams usually end in the same window.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from lazydelta.cli.wording import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from rich.console import Console

__all__ = ["Progress"]

_PATIENCE_S = 1.0
_TICK_S = 0.2


class Progress:
    """Shows ``describe()`` and the time elapsed, from a thread, while the body of its ``with`` block works."""

    def __init__(self, console: Console, describe: Callable[[], str]) -> None:
        self._console = console
        self._describe = describe
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._shown = False
        self._last_output = 0.0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._thread = threading.Thread(target=self._run, name="lazydelta-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._clear()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the line away while the caller prints."""
        with self._lock:
            self._clear()
            yield
            self._last_output = time.monotonic()

    def _run(self) -> None:
        started = time.monotonic()
        while not self._done.wait(_TICK_S):
            now = time.monotonic()
            # Results that pour out are progress enough.
            if now - max(started, self._last_output) < _PATIENCE_S and not self._shown:
                continue
            with self._lock:
                if not self._done.is_set():
                    self._clear()
                    line = f"{self._describe()}, {duration((now - started) * 1000)}"
                    self._console.print(Text(line, style="dim", no_wrap=True, overflow="crop"), end="")
                    self._shown = True

    def _clear(self) -> None:
        if self._shown:
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
            self._shown = False
