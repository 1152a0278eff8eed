"""Rows on their way to a client that may go away at any moment.

A call of Flight learns of its end only if it asks, and it cannot ask while it waits for DuckDB. So the rows are pulled
in a thread, and the thread of the call waits for them in short steps. Only this one asks: what tells whether the call
has ended lives no longer than the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from lazydelta.errors import StreamClosedError
from lazydelta.serve.flight_sql.statement import Running

__all__ = ["attended", "fetched", "stop_soon"]

T = TypeVar("T")

_STEP_SECONDS = 0.02
_END = object()
_NEXT, _ENOUGH = "next", "enough"


def fetched(
    running: Running, is_cancelled: Callable[[], bool], seconds: float | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a statement; a call that ended stops it, wherever it is, and so does the end of its time."""
    deadline = None if seconds is None else time.monotonic() + seconds
    asked: SimpleQueue[str] = SimpleQueue()
    answers: SimpleQueue[Any] = SimpleQueue()
    Thread(target=_pull, args=(running, asked, answers), name="lazydelta-sql", daemon=True).start()
    has_ended = False
    try:
        while True:
            asked.put(_NEXT)
            answer = _waited_for(answers, is_cancelled, deadline)
            has_ended = answer is _END or isinstance(answer, BaseException)
            if answer is _END:
                return
            if isinstance(answer, BaseException):
                raise answer
            yield answer
    finally:
        if not has_ended:
            # The client has gone, or its time is over.
            stop_soon(running)
        asked.put(_ENOUGH)


def attended(
    work: Callable[[], T], stop: Callable[[], None], is_cancelled: Callable[[], bool], seconds: float | None
) -> T:
    """Do work for a call and return what it makes; a call that ended stops it, and so does the end of its time."""
    deadline = None if seconds is None else time.monotonic() + seconds
    answers: SimpleQueue[Any] = SimpleQueue()

    def run() -> None:
        try:
            answers.put((True, work()))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            answers.put((False, error))

    Thread(target=run, name="lazydelta-sql", daemon=True).start()
    try:
        is_made, answer = _waited_for(answers, is_cancelled, deadline)
    except BaseException:
        stop()
        raise
    if not is_made:
        raise answer
    made: T = answer
    return made


def stop_soon(running: Running) -> None:
    """Have a statement begin no further request; a thread waits for those that are under way, which no call need do."""
    running.halt()
    Thread(target=running.cancel, name="lazydelta-sql-end", daemon=True).start()


def _waited_for(answers: SimpleQueue[Any], is_cancelled: Callable[[], bool], deadline: float | None) -> Any:
    while True:
        if deadline is not None and time.monotonic() > deadline:
            raise flight.FlightTimedOutError("The statement took longer than it may here (narrow it, or add a LIMIT)")
        try:
            return answers.get(timeout=_STEP_SECONDS)
        except Empty:
            if is_cancelled():
                raise StreamClosedError("The call was cancelled", hint="run the statement again") from None


def _pull(running: Running, asked: SimpleQueue[str], answers: SimpleQueue[Any]) -> None:
    batches = running.batches()
    try:
        while asked.get() == _NEXT:
            try:
                answer: Any = next(batches, _END)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
                answer = error
            answers.put(answer)
    finally:
        close: Any = getattr(batches, "close", None)
        if close is not None:
            close()
