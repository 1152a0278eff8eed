"""Query engines as lazydelta imports them, and DuckDB as it opens it.

A database is in memory, in UTC, and without access to the program's variables.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import signal
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

from lazydelta.errors import require
from lazydelta.runtime.threads import Task, start_thread

__all__ = ["connect", "engine", "interrupts", "is_interrupt", "run_interruptibly"]

T = TypeVar("T")

_SETTINGS = (
    # DuckDB takes both from the machine. Timestamps without a zone, `date_trunc` and casts would then depend on the
    # machine; everywhere else in lazydelta they are UTC.
    "SET GLOBAL TimeZone = 'UTC'",
    "SET GLOBAL Calendar = 'gregorian'",
    # DuckDB would otherwise resolve unknown names to Python variables of this program.
    "SET GLOBAL python_enable_replacements = false",
)
# How DuckDB reports a Ctrl-C that it noticed itself, and one that arrived in an Arrow stream that it was reading.
_INTERRUPTED = "Query interrupted"
_STREAM_INTERRUPTED = re.compile(r" registered as .* failed: .*\bKeyboardInterrupt\b", re.DOTALL)
_INTERRUPT_SECONDS = 0.05
_NO_PROGRESS_BAR = "SET enable_progress_bar = false"


def engine(name: str, extra: str) -> ModuleType:
    """Import an engine, or raise an error that says how to install it."""
    require(extra, name)
    return importlib.import_module(name)


def connect(*settings: str, extra: str = "duckdb", **config: Any) -> Any:
    """Open a new in-memory database in UTC. lazydelta runs all of its own DuckDB queries in such databases.

    Args:
        settings: Statements to run before anything else, such as ``SET streaming_buffer_size = '64KB'``.
        extra: The extra that installs DuckDB, for the error message if it is missing.
        config: Settings that DuckDB takes when it opens a database, such as ``threads``.

    """
    require(extra, "duckdb")
    import duckdb  # noqa: PLC0415 - optional, and slow to import

    with interrupts():
        con = duckdb.connect(":memory:", config=config)
        for setting in (*_SETTINGS, *settings):
            con.execute(setting)
        # In a notebook without ipywidgets DuckDB refuses to set it; without them it has no bar to show.
        with contextlib.suppress(duckdb.InvalidInputException):
            con.execute(_NO_PROGRESS_BAR)
    return con


def run_interruptibly(con: Any, work: Callable[[], T]) -> T:
    """Run a call on a connection that computes for long, so that Ctrl-C ends it.

    A query of several threads in which DuckDB 2.0 notices the Ctrl-C itself waits for its threads for ever, about every
    third time. In a thread of its own it does not see the signal; this thread waits, and interrupts the connection.
    """
    if threading.current_thread() is not threading.main_thread() or not callable(signal.getsignal(signal.SIGINT)):
        return work()
    task = Task(work)
    try:
        start_thread(task.run, "lazydelta-query")
        return task.result()
    except KeyboardInterrupt:
        task.cancel()  # unless its thread has begun
        # Again and again, because an interrupt before the query began has no effect.
        while not task.done():
            con.interrupt()
            with contextlib.suppress(TimeoutError):
                task.exception(_INTERRUPT_SECONDS)
        raise


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` if DuckDB reports a Ctrl-C in the block, also while it sets up a query."""
    try:
        yield
    except Exception as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error of a DuckDB query is the Ctrl-C of the user; ``interrupt()`` by the program is not."""
    if type(error) is RuntimeError:
        return str(error) == _INTERRUPTED
    return _STREAM_INTERRUPTED.search(str(error)) is not None
