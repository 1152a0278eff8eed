"""A line on standard error that says how a long scan gets on.

It shows up only after a second without an end, only on a terminal, and steps aside while results are printed: both
streams usually end in the same window.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TextIO

from lazydelta.cli.wording import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

__all__ = ["Progress"]

_PATIENCE_S = 1.0
_TICK_S = 0.2


class Progress:
    """Shows ``describe()`` and the time elapsed, from a thread, while the body of its ``with`` block works."""

    def __init__(self, stream: TextIO, describe: Callable[[], str]) -> None:
        self._stream = stream
        self._describe = describe
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._shown = False
        self._last_output = 0.0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._stream.isatty():
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
                    _print_dim(line)
                    self._shown = True

    def _clear(self) -> None:
        if self._shown:
            _erase_line()
            self._shown = False


# Rich is loaded by the thread that shows the first line: whoever has his answer within a second does without.


def _print_dim(line: str) -> None:
    from rich.text import Text  # noqa: PLC0415

    from lazydelta.cli.tables import console  # noqa: PLC0415

    console(stderr=True).print(Text(line, style="dim", no_wrap=True, overflow="crop"), end="")


def _erase_line() -> None:
    from rich.control import Control  # noqa: PLC0415
    from rich.segment import ControlType  # noqa: PLC0415

    from lazydelta.cli.tables import console  # noqa: PLC0415

    console(stderr=True).control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
