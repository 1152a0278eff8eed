"""``ServedStream``: an answer on its way to a client, with a thread of its own behind it.

The thread that gRPC lends us must never wait for a store: a client that leaves is only noticed by who asks for it. So
the scan runs in a thread of its own, a few batches ahead, and gRPC's thread waits for the next batch, looking around
fifty times a second: is the client still there, is its time over, is the server about to end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa

from lazydelta.errors import DeadlineError, LazyDeltaError, ServerBusyError, StreamClosedError
from lazydelta.serve.answers import Answer
from lazydelta.serve.ticket import Position

__all__ = ["Outcome", "ServedStream"]

_LOOK_AROUND_SECONDS = 0.02
_BATCHES_AHEAD = 2


class Outcome:
    """What became of a stream; it is reported when its scan has ended and its client has all, or has left."""

    def __init__(self, report: Callable[[Outcome], None]) -> None:
        self.rows = 0
        self.size = 0
        self.how = "done"
        self.error: BaseException | None = None
        self._report = report
        self._awaited = {"scan", "client"}
        self._lock = threading.Lock()

    def sent(self, batch: pa.RecordBatch) -> None:
        """Count a batch that was handed to gRPC."""
        self.rows += batch.num_rows
        self.size += batch.nbytes

    def ended(self, side: str, how: str | None = None, error: BaseException | None = None) -> None:
        """Note that the scan or the client has come to its end; the first reason that is told counts."""
        with self._lock:
            if how is not None and self.how == "done":
                self.how, self.error = how, error
            if side not in self._awaited:
                return
            self._awaited.discard(side)
            is_over = not self._awaited
        if is_over:
            self._report(self)


class _Making:
    """What the thread that makes batches shares with the one that sends them; it does not know the stream."""

    def __init__(self, answer: Answer, outcome: Outcome, freed: Callable[[], None]) -> None:
        self.answer = answer
        self.outcome = outcome
        self.ready: deque[tuple[pa.RecordBatch, Position]] = deque()
        self.changed = threading.Condition()
        self.asked = 0
        self.is_done = False
        self.is_closed = False
        self.error: BaseException | None = None
        self._freed = freed

    def run(self) -> None:
        batches = self.answer.batches()
        error: BaseException | None = None
        try:
            for item in batches:
                with self.changed:
                    self.ready.append(item)
                    self.changed.notify_all()
                    self.changed.wait_for(lambda: self.is_closed or self._may_go_on())
                    if self.is_closed:
                        break
        except BaseException as raised:  # noqa: BLE001 - handed to the thread that sends, where it belongs
            error = raised
        finally:
            try:
                batches.close()
            finally:
                with self.changed:
                    self.is_done, self.error = True, error
                    self.changed.notify_all()
                self.end(error)

    def _may_go_on(self) -> bool:
        # The first batch leaves before work on the second begins: both need the interpreter's lock, and somebody waits.
        return len(self.ready) < _BATCHES_AHEAD and self.asked > 1

    def end(self, error: BaseException | None = None) -> None:
        """Give back what the scan has held."""
        self._freed()
        self.outcome.ended("scan", None if error is None else "failed", error)


class ServedStream:
    """An iterator of batches and the position behind each, which ends with its client.

    ``cancelled`` tells whether the client has left. ``freed`` is called when the scan has ended and its memory is free
    again, ``report`` when that is so and the client has all or has left; each once. Dropping the stream closes it.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        cancelled: Callable[[], bool],
        freed: Callable[[], None],
        report: Callable[[Outcome], None],
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.outcome = Outcome(report)
        self._making = _Making(answer, self.outcome, freed)
        self._cancelled = cancelled
        self._clock = clock
        self._seconds = seconds
        self._until = None if seconds is None else clock() + seconds
        self._thread: threading.Thread | None = None
        # Made when it is raised: an error that is kept holds the frames that it went through, and they hold the stream.
        self._why: Callable[[], LazyDeltaError] | None = None

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, Position]]:
        return self

    def __next__(self) -> tuple[pa.RecordBatch, Position]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._making.run, name="lazydelta-serve-stream", daemon=True)
            self._thread.start()
        making = self._making
        with making.changed:
            making.asked += 1
            making.changed.notify_all()
            # Also a client whose next batch is ready may have left.
            self._look_around()
            while not making.ready and not making.is_done:
                making.changed.wait(_LOOK_AROUND_SECONDS)
                self._look_around()
            if making.ready:
                batch, position = making.ready.popleft()
                making.changed.notify_all()
                self.outcome.sent(batch)
                return batch, position
        self.outcome.ended("client")
        if making.error is not None:
            raise making.error
        raise StopIteration

    def end_now(self) -> None:
        """End the scan because the server ends; the client is told when it takes what is on its way to it."""
        hint = "resume with the last ticket, here or at another server"
        self._end("drained", lambda: ServerBusyError("The server is about to end", hint=hint))

    def close(self, how: str = "closed") -> None:
        """End the scan: no request begins after this. Nothing is waited for."""
        making = self._making
        with making.changed:
            if making.is_closed:
                return
            making.is_closed = True
            is_cut = not making.is_done or bool(making.ready)
            self._why = self._why or (lambda: StreamClosedError("The stream was closed"))
            making.ready.clear()
            making.changed.notify_all()
        if not making.is_done:
            making.answer.stop()
        self.outcome.ended("client", how if is_cut else None)
        if self._thread is None:
            making.is_done = True
            making.end()

    def __del__(self) -> None:
        self.close("dropped")

    def _look_around(self) -> None:
        if self._why is None and self._cancelled():
            self._end("cancelled", lambda: StreamClosedError("The client has left"))
        if self._why is None and self._until is not None and self._clock() > self._until:
            message = f"The stream was not at its end after {self._seconds} s"
            hint = "resume with the last ticket, or give more time"
            self._end("deadline", lambda: DeadlineError(message, hint=hint))
        if self._why is not None:
            # An end that looks like the end of the data would be a lie.
            raise self._why()

    def _end(self, how: str, why: Callable[[], LazyDeltaError]) -> None:
        with self._making.changed:  # one thread may take it twice
            if self._making.is_done and not self._making.ready:
                return
            self._why = self._why or why
        self.close(how)
