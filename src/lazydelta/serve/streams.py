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
    """What became of a stream: counted while it runs, handed on when its scan has ended."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.size = 0
        self.how = "done"
        self.error: BaseException | None = None


class _Making:
    """What the thread that makes batches shares with the one that sends them; it does not know the stream."""

    def __init__(self, answer: Answer, ended: Callable[[BaseException | None], None]) -> None:
        self.answer = answer
        self.ready: deque[tuple[pa.RecordBatch, Position]] = deque()
        self.changed = threading.Condition()
        self.is_done = False
        self.is_closed = False
        self.error: BaseException | None = None
        self._ended = ended

    def run(self) -> None:
        batches = self.answer.batches()
        error: BaseException | None = None
        try:
            for item in batches:
                with self.changed:
                    self.ready.append(item)
                    self.changed.notify_all()
                    self.changed.wait_for(lambda: self.is_closed or len(self.ready) < _BATCHES_AHEAD)
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
                self._ended(error)


class ServedStream:
    """An iterator of batches and the position behind each, which ends with its client.

    ``cancelled`` tells whether the client has left, ``ended`` is called once, when the scan has ended and its memory is
    free again. Dropping the stream closes it.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        cancelled: Callable[[], bool],
        ended: Callable[[Outcome], None],
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.outcome = outcome = Outcome()
        self._tell = ended
        making = _Making(answer, lambda error: _finish(outcome, error, ended))
        self._making = making
        self._cancelled = cancelled
        self._clock = clock
        self._seconds = seconds
        self._until = None if seconds is None else clock() + seconds
        self._thread: threading.Thread | None = None
        self._ending = False

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, Position]]:
        return self

    def __next__(self) -> tuple[pa.RecordBatch, Position]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._making.run, name="lazydelta-serve-stream", daemon=True)
            self._thread.start()
        making = self._making
        with making.changed:
            while not making.ready:
                if making.is_done:
                    break
                making.changed.wait(_LOOK_AROUND_SECONDS)
                if not making.ready:
                    self._look_around()
            if making.ready:
                # Also a client whose next batch is ready may have left.
                self._look_around()
                batch, position = making.ready.popleft()
                making.changed.notify_all()
                self.outcome.batches += 1
                self.outcome.rows += batch.num_rows
                self.outcome.size += batch.nbytes
                return batch, position
        if making.error is not None:
            raise making.error
        raise StopIteration

    def end_soon(self) -> None:
        """Have the client told that the server ends, the next time that it asks."""
        self._ending = True

    def close(self, how: str = "closed") -> None:
        """End the scan: no request begins after this. Nothing is waited for."""
        making = self._making
        with making.changed:
            if making.is_closed or making.is_done:
                return
            making.is_closed = True
            self.outcome.how = how
            making.ready.clear()
            making.changed.notify_all()
        making.answer.stop()
        if self._thread is None:
            making.is_done = True
            _finish(self.outcome, None, self._tell)

    def __del__(self) -> None:
        self.close("dropped")

    def _look_around(self) -> None:
        if self._cancelled():
            raise self._ended("cancelled", StreamClosedError("The client has left"))
        if self._ending:
            hint = "resume with the last ticket, here or at another server"
            raise self._ended("drained", ServerBusyError("The server is about to end", hint=hint))
        if self._until is not None and self._clock() > self._until:
            message = f"The stream was not at its end after {self._seconds} s"
            hint = "resume with the last ticket, or give more time"
            raise self._ended("deadline", DeadlineError(message, hint=hint))

    def _ended(self, how: str, error: LazyDeltaError) -> LazyDeltaError:
        # The condition's lock may be taken twice by one thread.
        self.close(how)
        return error


def _finish(outcome: Outcome, error: BaseException | None, ended: Callable[[Outcome], None]) -> None:
    if error is not None and outcome.how == "done":
        outcome.how, outcome.error = "failed", error
    ended(outcome)
