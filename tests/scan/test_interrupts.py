"""Ctrl-C at every line of the code that starts threads and waits for them: out it comes, or the answer is complete.

The interrupt is raised by a trace function, in the main thread, as a signal handler would raise it. Each line is met
where it runs first and where it runs last.
"""

from __future__ import annotations

import dis
import linecache
import shutil
import sys
import threading
from _thread import interrupt_main
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import IncompleteScanError
from lazydelta.rows import flow, stream
from lazydelta.runtime import threads
from lazydelta.storage import bridge
from tests.rows.made_table import MadeTable, make_table

# Python ignores what is raised while an object is dropped, interrupts too: the answer has to be complete then.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FILES, ROWS = 9, 4
_TRACED = {module.__file__: module for module in (threads, flow, flow, stream, bridge)}
_PATIENCE = 30.0
Line = tuple[str, int]


@dataclass
class Trace:
    """Counts the lines of the traced modules that the main thread runs, and raises at one of them."""

    at: tuple[Line, int] | None = None
    error: type[BaseException] = KeyboardInterrupt
    seen: Counter[Line] = field(default_factory=Counter)
    functions: dict[Line, str] = field(default_factory=dict)

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """Follow one step of the interpreter."""
        path = frame.f_code.co_filename
        if path not in _TRACED:
            return None
        if event == "line" and not _leaves_a_block(frame):
            line = (path, frame.f_lineno)
            self.seen[line] += 1
            self.functions[line] = frame.f_code.co_qualname
            if self.at is not None and self.at[0] == line and self.at[1] == self.seen[line]:
                self.at = None
                raise self.error("release unlocked lock")
        return self


def _leaves_a_block(frame: FrameType) -> bool:
    """Tell whether it is the line of a ``with`` whose block is left: Python looks for signals only after that."""
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    step = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return text.startswith("with ") and not (step.startswith("LOAD_") and step != "LOAD_CONST")


@contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def no_hang(where: str) -> Iterator[None]:
    """Fail a call that does not come back: it is interrupted, and said to have hung."""
    hung = threading.Event()

    def end() -> None:
        hung.set()
        interrupt_main()

    watchdog = threading.Timer(_PATIENCE, end)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        assert not hung.is_set(), f"it hung after an interrupt at {where}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    folder = tmp_path_factory.mktemp("interrupts") / "t"
    made = make_table(folder, files=FILES, rows=ROWS)
    DeltaTable(made.uri).create_checkpoint()
    return made


def forward(folder: Path) -> int:
    return len(list(DeltaTable(folder).files(strategy="forward")))


def reverse(folder: Path) -> int:
    return len(list(DeltaTable(folder).files(strategy="reverse")))


def auto(folder: Path) -> int:
    return int(sum(batch.num_rows for batch in DeltaTable(folder).files().batches()))


def rows(folder: Path) -> int:
    found = DeltaTable(folder).rows(where="id >= 0 and text is not null")
    return int(sum(batch.num_rows for batch in found)) // ROWS


def all_rows(folder: Path) -> int:
    return int(DeltaTable(folder).to_pyarrow_table().num_rows) // ROWS


def places(trace: Trace) -> list[tuple[Line, int]]:
    found = {(line, number) for line, count in trace.seen.items() for number in (1, count)}
    return sorted(found, key=lambda each: (each[0], each[1]))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("scan", [forward, reverse, auto, rows, all_rows], ids=lambda each: each.__name__)
@pytest.mark.each_value
def test_a_scan_that_is_interrupted_says_so_or_is_complete(
    made: MadeTable, scan: Callable[[Path], int], error: type[BaseException]
) -> None:
    """Also where what arrives is the RuntimeError that Python makes of an interrupt inside `Thread.start()`."""
    dry = Trace()
    with tracing(dry):
        assert scan(made.path) == FILES
    interrupted = 0
    for line, number in places(dry):
        where = f"{Path(line[0]).name}:{line[1]} ({dry.functions[line]}), time {number}"
        with no_hang(where):
            try:
                with tracing(Trace(at=(line, number), error=error)):
                    found = scan(made.path)
            except (KeyboardInterrupt, IncompleteScanError):
                interrupted += 1
            except RuntimeError as raised:
                assert error is RuntimeError, f"{where}: {raised!r}"  # noqa: PT017 - one of many
                interrupted += 1
            else:
                assert found == FILES, where
    assert interrupted > len(places(dry)) // 2
    assert scan(made.path) == FILES


def delete(folder: Path) -> None:
    DeltaTable(folder).delete("id in (1, 5, 9)")


def optimize(folder: Path) -> None:
    DeltaTable(folder).optimize.compact()


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["first", "every"])
@pytest.mark.parametrize(
    ("change", "after"), [(delete, FILES * ROWS - 3), (optimize, FILES * ROWS)], ids=["delete", "optimize"]
)
def test_a_change_that_is_interrupted_is_done_or_not(
    made: MadeTable, tmp_path: Path, change: Callable[[Path], None], after: int, *, every: bool
) -> None:
    """By default where a line of `execution` runs first; with the slow tests everywhere."""

    def copy() -> Path:
        shutil.rmtree(tmp_path / "t", ignore_errors=True)
        return Path(shutil.copytree(made.path, tmp_path / "t"))

    dry = Trace()
    with tracing(dry):
        change(copy())
    assert DeltaTable(tmp_path / "t").to_pyarrow_table().num_rows == after
    for line, number in places(dry):
        if not every and (number > 1 or line[0] != threads.__file__):
            continue
        where = f"{Path(line[0]).name}:{line[1]} ({dry.functions[line]}), time {number}"
        folder = copy()
        with no_hang(where):
            try:
                with tracing(Trace(at=(line, number))):
                    change(folder)
            except KeyboardInterrupt:
                assert DeltaTable(folder).to_pyarrow_table().num_rows in {FILES * ROWS, after}, where
            else:
                assert DeltaTable(folder).to_pyarrow_table().num_rows == after, where
